"""Steps of a lane alone on its replica: several at once, since only the last is waited for.

Where single rows are steps, a compiled loop makes those of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daskml_dist.ps.shard import Shard
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.row_by_row import RowByRow
from daskml_dist.training.worker.ready_blocks import fit_memory

__all__ = ["OwnRows", "OwnSteps", "own_steps"]

#: Single rows of which steps are made at once: a few milliseconds.
_ROWS_AT_ONCE = 1 << 14


def own_steps(context: Context, lane: Lane, replica: Shard) -> OwnSteps | OwnRows:
    """Steps of a lane alone on its replica, of batches or of single rows."""
    fit = context.fit
    if fit.steps.single_rows:
        most = max(1, _ROWS_AT_ONCE * fit.work.n_steps // max(lane.n_rows, 1))
        return OwnRows(lane, replica, RowByRow(fit, replica), most, context.rest)
    return OwnSteps(lane, replica, context.rest)


class OwnRows:
    """Steps of a lane's single rows, those of several batches at once.

    Parameters
    ----------
    lane : Lane
    replica : Shard
    rows : RowByRow
    most : int
        Batches at once.
    rest : callable
        Called between calls; may raise.
    """

    def __init__(
        self, lane: Lane, replica: Shard, rows: RowByRow, most: int, rest: Callable[[], None]
    ) -> None:
        self._lane = lane
        self._replica = replica
        self._rows = rows
        self._most = 1 if lane.tells else most
        self._rest = rest

    def take(self, count: int) -> None:
        """Take the steps of so many batches."""
        while count > 0:
            self._rest()
            batches = self._replica.steps_at_once(min(count, self._most))
            self._rows.step(self._lane, batches)
            count -= batches

    def draw_ahead(self, count: int) -> None:
        """Nothing: rows are drawn as batches come to them."""


class OwnSteps:
    """Steps of a lane, one by one, or several at once where a device or a compiled loop makes them.

    Parameters
    ----------
    lane : Lane
    replica : Shard
        Where the lane computes.
    rest : callable
        Called between steps; may raise.
    """

    def __init__(self, lane: Lane, replica: Shard, rest: Callable[[], None] = lambda: None) -> None:
        self._lane = lane
        self._replica = replica
        self._rest = rest
        self._recorded: Any | None = None
        # A replica on the host has nothing to do with what a device records.
        here = lane.backend.device == "cpu" or replica.on_device
        self._may = here and replica.steps_alone

    def take(self, count: int) -> None:
        """Take the next steps of the lane."""
        while count > 0:
            self._rest()
            count -= self._take_together(count) or self._take_one()

    def draw_ahead(self, count: int) -> None:
        """Draw the rows of the next steps, where these are made at once."""
        if self._recorded is not None and self._may:
            self._lane.draw_ahead(min(count, self._recorded.most))

    def _take_one(self) -> int:
        replica, batch = self._replica, self._lane.next_batch()
        # Where a batch has no rows, the replica may lie on a device, whose rows nobody gathers.
        index = batch.index if batch.n_rows else None
        w = replica.w if index is None else replica.w[index]
        replica.apply(self._lane.new_gradient(w, batch), batch.n_rows, index)
        return 1

    def _take_together(self, count: int) -> int:
        """Steps taken; none where each is made by itself."""
        lane, replica, gather = self._lane, self._replica, self._lane.ready_gather
        if gather is None or not self._may:
            return 0
        step = replica.empty_step()
        if self._recorded is None or not self._recorded.serves(step):
            with fit_memory(lane.backend, "What steps need"):
                self._recorded = lane.backend.recorder(gather, replica.rule.only.optimizer, step)
        if self._recorded is None:
            self._may = False
            return 0
        count = min(count, self._recorded.most)
        lane.take_steps(self._recorded, replica, count)
        return count
