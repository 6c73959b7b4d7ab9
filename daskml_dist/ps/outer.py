"""Outer steps: what lanes that step alone make of the mean of their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daskml_dist.backends.namespace import namespace
from daskml_dist.ps.shard_state import copied

__all__ = ["OuterStep"]


@dataclass(frozen=True)
class OuterStep:
    """Step with Nesterov's momentum from the last meeting towards the mean of the lanes.

    A rate of 1 without momentum goes to the mean itself. All lanes make the same step, so that its
    state is the same in each.

    Parameters
    ----------
    rate : float
    momentum : float

    References
    ----------
    A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
    """

    rate: float
    momentum: float

    state_names = ("outer_origin", "outer_velocity")

    def init(self, w: Any) -> dict[str, Any]:
        """State before the first meeting: where lanes set out from, and how fast they came."""
        return {"outer_origin": copied(w), "outer_velocity": namespace(w).zeros_like(w)}

    def take(self, w: Any, mean: Any, opt_state: dict[str, Any]) -> None:
        """Move `w` from where lanes set out, given the mean of where they are."""
        origin, velocity = (opt_state[name] for name in self.state_names)
        towards = mean - origin
        velocity *= self.momentum
        velocity += towards
        origin += self.rate * (towards + self.momentum * velocity)
        w[...] = origin
