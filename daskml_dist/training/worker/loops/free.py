"""Loop *free*: each lane pushes and pulls at its own pace (``"async"``, ``"ssp"``).

The server applies each push on arrival. Under stale-synchronous parallel, a pull waits while its
lane is too far ahead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.ps.messages import LaneGradient, sum_in_lane_order
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.reader import LaneBatch


def run_free_loop(context: Context) -> None:
    """Run all lanes; each compute thread has its own connection."""
    context.run_in_threads(lambda lanes: _run_lanes_of_thread(context, lanes))


def _run_lanes_of_thread(context: Context, lanes: list[Lane]) -> None:
    """Run the lanes of one compute thread until all are done."""
    connection = context.connect()
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            open_lanes = [FreeLaneSteps(context, connection, lane) for lane in lanes]
            # Lanes of a thread alternate: while one waits for its answer, the next one computes.
            while open_lanes and not context.failed:
                context.raise_if_stopped()
                open_lanes = [lane for lane in open_lanes if lane.step()]
    finally:
        connection.close()


class FreeLaneSteps:
    """Steps of one lane, and its messages to the servers.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    lane : Lane
    ahead : bool, default=True
        Whether the next batch is drawn, and its parameters are requested, right after each step. In
        a stream the rows may not have arrived by then, so each step begins with both.
    """

    def __init__(
        self, context: Context, connection: ShardedConnection, lane: Lane, ahead: bool = True
    ) -> None:
        policy = context.fit.steps.policy
        self._context = context
        self._fit = context.fit
        self._connection = connection
        self._lane = lane
        self._ahead = ahead
        self._push_every = policy.push_every
        # Each sparse batch touches other parameters, so it needs a pull at every step.
        self._pull_every = 1 if self._fit.work.coordinates else policy.pull_every
        self._gradients: list[LaneGradient] = []
        self._rows = 0.0
        self._w: Any = None
        self._awaiting = False
        self._loss = 0.0
        # After a loss each lane continues from its own clock.
        clock = context.clocks[lane.number]
        # The report of a pass that ended at this clock may have been lost with its trainer.
        self._reports_first = (
            clock > self._fit.work.first_clock and clock % self._fit.work.n_steps == 0
        )
        lane.seek(clock)
        if ahead:
            self._draw_and_pull()

    def _draw_and_pull(self) -> None:
        """Draw the next batch, and request its parameters if a pull is due."""
        lane = self._lane
        self._batch = lane.draw_next_batch()
        if self._w is None or lane.clock % self._pull_every == 0:
            self._connection.send((lane.number,), lane.clock, pull_index=self._batch.index)
            self._awaiting = True

    def step(self) -> bool:
        """Make one step; return False once the lane is done."""
        lane = self._lane
        if self._reports_first:
            self._reports_first = False
            return self._end_pass(lane.clock // self._fit.work.n_steps)
        if not self._ahead:
            self._draw_and_pull()
        if self._awaiting:
            pulled = self._connection.receive(lane.number)
            self._w, self._awaiting = pulled.w, False
            # The fit has ended while this lane was computing.
            if pulled.stop:
                return self._leave_servers()
        # With `ahead`, the batch was drawn while the parameters were in transit.
        batch = self._batch
        self._gradients.append(
            (len(self._gradients), batch.index, lane.compute_gradient(self._w, batch))
        )
        self._rows += batch.n_rows
        self._loss += lane.last_batch_loss
        lane.clock += 1
        pass_ended = lane.clock % self._fit.work.n_steps == 0
        if not self._ahead:
            self._push_and_pull(None, flush=pass_ended)
        elif self._fit.work.coordinates:
            self._batch = lane.draw_next_batch()
            self._push_and_pull(self._batch, flush=pass_ended)
        else:
            self._push_and_pull(None, flush=pass_ended)
            self._batch = lane.draw_next_batch()
        return not pass_ended or self._end_pass(lane.clock // self._fit.work.n_steps)

    def _push_and_pull(self, next_batch: LaneBatch | None, flush: bool) -> None:
        """Push gradients and request parameters, each if due."""
        clock, number = self._lane.clock, self._lane.number
        # Gradients of `push_every` steps are summed into one push; a pass always ends with a push.
        push = flush or clock % self._push_every == 0
        pull = self._ahead and (flush or clock % self._pull_every == 0)
        pull_index = None if next_batch is None else next_batch.index
        if push:
            # One push for the gradients of several steps, computed at the last pulled parameters.
            index, total = sum_in_lane_order(self._gradients)
            self._connection.send(
                (number,), clock, self._rows, total, index,
                loss=self._loss, pull=pull, pull_index=pull_index,
                uncompressed=self._fit.steps.pushes_uncompressed(clock),
            )  # fmt: skip
            self._gradients, self._rows, self._loss = [], 0.0, 0.0
        elif pull:
            self._connection.send((number,), clock, pull_index=pull_index)
        self._awaiting = pull

    def push_rest(self) -> None:
        """Push the gradients that have not been pushed yet, if there are any."""
        if self._gradients:
            self._push_and_pull(None, flush=True)

    def _end_pass(self, pass_number: int) -> bool:
        """Report a pass; return False if it was the last."""
        w = None
        if self._fit.rows.validation_fraction:
            w = self._pull_whole_parameters()
        stop = self._context.report(self._connection, pass_number, [self._lane], [w])
        if stop or pass_number == self._fit.work.stopping.max_iter:
            return self._leave_servers()
        return True

    def _pull_whole_parameters(self) -> Any:
        """Pull all parameters, for validation."""
        lane = self._lane.number
        pulled = self._connection.receive(lane)
        if not self._fit.work.coordinates:
            self._w, self._awaiting = pulled.w, False
            return pulled.w
        # A pull without an index requests all parameters.
        self._connection.send((lane,), self._lane.clock)
        w = self._connection.receive(lane).w
        # Request the rows of the next batch again, since their answer was consumed above.
        self._connection.send((lane,), self._lane.clock, pull_index=self._batch.index)
        return w

    def _leave_servers(self) -> bool:
        """Notify the servers that the lane is done; return False."""
        # Gradients that were not pushed yet are dropped.
        self._connection.call_all("leave", lanes=[self._lane.number])
        return False
