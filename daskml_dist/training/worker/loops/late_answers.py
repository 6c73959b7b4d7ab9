"""Answers of the ledger to a trainer in lock-step, which makes its next steps meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.ps.snapshots import LaneSnapshot
from daskml_dist.training.worker.loops.context import Context

__all__ = ["LateAnswers"]


class LateAnswers:
    """Reports and snapshots of a trainer, whose answers are taken before the next one.

    Nobody waits for the answer to a report where only the client's wish can end the fit before its
    last pass: it then ends one pass later, for all trainers alike.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    """

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        self._context, self._connection = context, connection
        work = context.fit.work
        # In the client's own process the answer is there at once, and callbacks have their turn.
        self._may_be_late = not context.is_alone and work.lockstep and work.stopping.tol is None
        self._is_open = self._stops = False

    def store(self, clock: int, snapshots: dict[int, LaneSnapshot]) -> None:
        """Hand snapshots of the own lanes at a clock to the first server."""
        self._settle()
        self._connection.ask("store", clock=clock, blob=snapshots)
        self._is_open = True

    def report(self, number: int, weights: list[Any | None], meanwhile: Callable[[], None]) -> bool:
        """Report pass `number`; True when the fit ends with it.

        Parameters
        ----------
        number : int
        weights : list of arrays or None
            Parameters to validate each lane's held-out rows with.
        meanwhile : callable
            What to do before the answer is needed, where it is waited for.
        """
        context = self._context
        self._settle()
        context.send_report(self._connection, number, context.lanes, weights)
        self._is_open = True
        is_last = self._stops or number == context.fit.work.stopping.max_iter
        if self._may_be_late and not is_last:
            return False
        meanwhile()
        self._settle()
        context.end_pass()
        return self._stops or is_last

    def _settle(self) -> None:
        """Take the answer to what was said last."""
        if self._is_open:
            self._stops = bool(self._connection.answer().get("stop")) or self._stops
            self._is_open = False
