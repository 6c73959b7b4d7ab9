"""Steps of the lanes of several trainers at once, in one loop on each: they meet in its memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.shared_buffer import SharedBuffer
from daskml_dist.models.base import LinearForm
from daskml_dist.ps.shard import Shard
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.ready_blocks import backend_of

__all__ = ["Team"]


class Team:
    """Steps of a replica by the gradients of all lanes, several at once where all trainers can.

    Parameters
    ----------
    context : Context
    replica : Shard
        Of this trainer; all trainers make the same calls for theirs.
    in_order : bool
        Whether gradients are added up in the order of the lanes.
    """

    def __init__(self, context: Context, replica: Shard, in_order: bool) -> None:
        self._context, self._replica, self._in_order = context, replica, in_order
        self._backend = backend_of(context.fit)
        self._recorded: Any | None = None
        self._board: SharedBuffer | None = None
        #: Steps before which some lane copies its rows; None where nobody asks any more.
        self._from: int | None = None
        work = context.fit.work
        if work.linear is not None and replica.rule.steps_alone:
            self._from = self._first_step(work.linear)

    def _first_step(self, linear: LinearForm) -> int:
        if self._context.fit.work.coordinates:
            return 0  # whatever reads sparse rows is compiled
        n_steps = self._context.fit.work.n_steps
        batches = [-(-n // n_steps) for n in self._context.lane_rows if n]
        copied = self._backend.steps_copied
        return max((copied(linear.dense_kernel, n * linear.n_features) for n in batches), default=0)

    def take(self, clock: int, most: int) -> int:
        """Take the next steps from a clock on; how many, none where each is made by itself."""
        if self._from is None or clock < self._from:
            return 0
        if self._board is None:
            self._board = self._meet()
        step = self._replica.empty_step()
        if self._board is not None and not (self._recorded and self._recorded.serves(step)):
            self._recorded = self._recorder(self._board)
        if self._board is None or self._recorded is None:
            self._from = None
            return 0
        count: int = min(most, self._recorded.most)
        self._run(clock, count)
        return count

    def draw_ahead(self, most: int) -> None:
        """Draw the rows of the next steps, where these are made at once."""
        if self._recorded is not None and self._from is not None:
            for lane in self._context.lanes:
                lane.draw_ahead(min(most, self._recorded.most))

    def _meet(self) -> SharedBuffer | None:
        """The board, where all trainers can use it."""
        context, w = self._context, self._replica.w
        own = [lane.number for lane in context.lanes]
        told = context.communicator.allgather([np.array([self._can(), *own])])
        if not all(array[0] for (array,) in told):
            return None
        lanes = [array[1:].tolist() for (array,) in told]
        n = None if context.fit.work.coordinates else len(w)
        return context.communicator.board(n, w.dtype, lanes, self._in_order)

    def _can(self) -> bool:
        """Whether this trainer could make several steps at once."""
        lanes = [lane for lane in self._context.lanes if lane.n_rows]
        if not lanes or self._context.pool is not None or self._replica.on_device:
            return False
        return all(lane.gather is not None for lane in lanes)

    def _recorder(self, board: SharedBuffer) -> Any | None:
        gathers = [lane.gather if lane.n_rows else None for lane in self._context.lanes]
        replica = self._replica
        optimizer = replica.rule.only.optimizer
        return self._backend.team_recorder(gathers, optimizer, replica.empty_step(), board)

    def _run(self, clock: int, count: int) -> None:
        context, replica = self._context, self._replica
        drawn = [lane.draws(count) for lane in context.lanes]
        counts = np.array([rows for _, rows in drawn], np.int64).T.copy()
        numbers = np.arange(clock, clock + count) % context.fit.work.n_steps
        steps = replica.next_steps(context.step_rows(numbers).tolist())
        assert self._recorded is not None
        run = self._recorded([draws for draws, _ in drawn], counts, steps)
        try:
            run.run()
        finally:
            replica.take_back(steps[run.made :])
            for i, (lane, (_, rows)) in enumerate(zip(context.lanes, drawn, strict=True)):
                lane.count_steps(rows[: run.made], run.losses[: run.made, i], run.seconds[i])
