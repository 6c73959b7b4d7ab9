"""Placement of a trainer's own parameters: on the device that computes with them, or on the host.

With one trainer a step then moves nothing between host and device; with several, only what trainers
exchange.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from daskml_dist.backends.namespace import is_host
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.ready_blocks import get_fit_backend

__all__ = ["DevicePlacement", "move_arrays"]

R = TypeVar("R")


class DevicePlacement:
    """Device of a trainer's replicas, with moves to and from it.

    Parameters
    ----------
    context : Context
    alone : bool
        Whether each replica is one lane's.
    """

    def __init__(self, context: Context, alone: bool) -> None:
        self._rule = context.fit.steps.rule
        self._backend = get_fit_backend(context.fit)
        self._is_host = self._backend.device == "cpu"
        if self._rule.coordinates and not self._is_host:
            # Rows of parameters at drawn indices are gathered, and put back, by the host, unless
            # a device makes the steps of every lane by itself. All trainers find the same.
            # A device that makes whole steps of sparse rows needs no host for the indices.
            gathers = [lane.gather for lane in context.lanes if lane.n_rows]
            self._is_host = not alone or None in gathers

    def shard(self, state: ShardState, start: int = 0, rule: UpdateRule | None = None) -> Shard:
        """Make a replica, or its rows from `start` on, from a state on the host."""
        backend = None if self._is_host else self._backend
        return Shard(rule or self._rule, self.enter(state), start, backend=backend)

    def enter(self, record: R) -> R:
        """Return a state or snapshot (a dataclass) with its arrays on the device."""
        return record if self._is_host else move_arrays(record, self._backend.to_device)

    def leave(self, record: R) -> R:
        """Return a state or snapshot with its arrays on the host."""
        return record if self._is_host else move_arrays(record, self._backend.to_numpy)

    def to_host(self, array: Any) -> Any:
        """Return an array on the host."""
        return array if is_host(array) else self._backend.to_numpy(array)

    def to_device(self, array: Any) -> Any:
        """Return an array where the replicas lie."""
        return array if self._is_host else self._backend.to_device(array)


def move_arrays(record: Any, move: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass whose arrays have moved."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: one(part) for name, part in value.items()}
        return move(value) if hasattr(value, "ndim") else value

    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return dataclasses.replace(record, **{name: one(value) for name, value in values.items()})
