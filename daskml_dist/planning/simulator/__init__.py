"""A simulator of training: the real policies and gates, with modelled time."""

from __future__ import annotations

from daskml_dist.planning.simulator.events import (
    Costs,
    SimulatedRun,
    Stragglers,
    Training,
    allreduce_seconds,
    simulate,
)

__all__ = ["Costs", "SimulatedRun", "Stragglers", "Training", "allreduce_seconds", "simulate"]
