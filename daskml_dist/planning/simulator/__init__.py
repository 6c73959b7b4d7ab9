"""A simulator of training: the real policies and gates, with modelled time."""

from __future__ import annotations

from daskml_dist.planning.simulator.events import (
    OperationCosts,
    SimulatedRun,
    Stragglers,
    Training,
    allreduce_seconds,
    simulate,
)

__all__ = [
    "OperationCosts",
    "SimulatedRun",
    "Stragglers",
    "Training",
    "allreduce_seconds",
    "simulate",
]
