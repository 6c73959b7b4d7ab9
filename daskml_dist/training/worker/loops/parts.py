"""Loop *parts*: rows of ids are on servers; trainers hold and sum all other parameters.

For models over ids with one policy per part (Lian et al., KDD 2022). A batch touches some rows of a
growing table, and all of the model's own rows: weights of layers, the intercept. At each step a
lane pulls and pushes rows of the table, and servers apply pushes on arrival. While these messages
are in transit, all trainers sum the gradients of the model's own rows, and make the same step on
their own copies.

All lanes are at one clock, which also counts the steps on the model's own rows. After a loss, lanes
go back to the clock that every server has received from all of them. Servers refuse pushes that
they have already applied, and trainers skip steps that their copies already include, so nothing is
lost or counted twice. The copies are equal, so any remaining trainer sends its copy to new ones;
the first server has an older copy, in case no trainer remains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import HeldRows, ShardState, copy_held_rows
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.loops.bulk import BulkSteps
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.reader import LaneBatch


def run_parts_loop(context: Context) -> ShardState | None:
    """Run all passes; rank 0 returns a state with only the rows that trainers hold."""
    connection = context.connect()
    try:
        steps = PartSteps(context, connection)
        context.set_left_behind(lambda: InterruptedState(steps.state()))
        steps.pull_first_parameters()
        for number in context.fit.work.passes(steps.clock):
            steps.run_steps_of_pass(number)
            stop = context.report(connection, number, context.lanes, [None] * len(context.lanes))
            # The last report closes the pass: the others may have been answered before it closed.
            if context.communicator.allreduce(np.array([float(stop)]))[0]:
                break
        if context.rank == 0:
            steps.hand_over()  # trainers may be lost before their results arrive
        connection.call_all("leave", lanes=[lane.number for lane in context.lanes])
        return steps.state() if context.rank == 0 else None
    finally:
        connection.close()


class PartSteps(BulkSteps):
    """Steps of a trainer's lanes, with a copy of the rows that all batches touch.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    """

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        super().__init__(context, connection)
        self._ids = context.fit.steps.model.own_ids
        self._all_positions = np.arange(len(self._ids))
        held_rows, self._clock = self._agree_on_start()
        self._replica = self._make_replica(held_rows)
        #: Steps of each lane that the copy includes.
        self._held_clock = held_rows.clock
        # A generation may end at any point; the next one then reads the rows in their state at that
        # time.
        context.memory["held"] = self._live_rows

    @property
    def clock(self) -> int:
        """Return the steps that each lane has made."""
        return self._clock

    def held_rows(self) -> HeldRows:
        """Return a copy of the rows that trainers hold."""
        return copy_held_rows(self._live_rows())

    def state(self) -> ShardState:
        """Return a state with only the rows that trainers hold."""
        held_rows = self.held_rows()
        return ShardState(held_rows.w[:0], {}, held=held_rows)

    def _live_rows(self) -> HeldRows:
        """Return the rows that trainers hold, which the next step changes."""
        replica = self._replica
        return HeldRows(self._ids, replica.w, replica.opt_state, replica.step, self._held_clock)

    # -- start of a generation -------------------------------------------------------------------

    def _agree_on_start(self) -> tuple[HeldRows, int]:
        """Return the rows and the clock from which all trainers continue."""
        context, communicator = self._context, self._context.communicator
        kept_rows: HeldRows | None = context.memory.get("held", lambda: None)()
        own_clocks = np.array(
            [-1 if kept_rows is None else kept_rows.clock, min(context.clocks.values())]
        )
        held_clocks, lane_clocks = np.stack([a for (a,) in communicator.allgather([own_clocks])]).T
        start = int(lane_clocks.min())
        # If the fit restarts from its beginning, so do these rows.
        if start > self._fit.work.first_clock and held_clocks.max() >= 0:
            owner = int(held_clocks.argmax())
            return self._share_rows(kept_rows if context.rank == owner else None, owner), start
        # No trainer with a copy is left: steps after the servers' copy are repeated.
        held_rows: HeldRows = self._connection.call("take_held")["blob"]
        return held_rows, min(start, held_rows.clock)

    def _share_rows(self, held_rows: HeldRows | None, owner: int) -> HeldRows:
        """Return the rows of trainer `owner`; all others pass None."""
        names = sorted(self._fit.steps.held_rule.state_names)
        own_arrays: list[NDArray[Any]] = []
        if held_rows is not None:
            counts = np.array([held_rows.step, held_rows.clock])
            own_arrays = [counts, held_rows.w, *(held_rows.opt_state[name] for name in names)]
        counts, w, *arrays = self._context.communicator.allgather(own_arrays)[owner]
        step, clock = counts.tolist()
        return HeldRows(self._ids, w, dict(zip(names, arrays, strict=True)), step, clock)

    def _make_replica(self, held_rows: HeldRows) -> Shard:
        """Return a shard with a copy of only these rows."""
        held_rows = copy_held_rows(held_rows)
        state = ShardState(held_rows.w, held_rows.opt_state, held_rows.step)
        return Shard(self._fit.steps.held_rule, state)

    # -- steps -----------------------------------------------------------------------------------

    def run_steps_of_pass(self, pass_number: int) -> None:
        """Make the steps of a pass, and store the rows on the first server at intervals."""
        # Servers count the updates of each lane.
        interval = -(-self._context.snapshot_every // len(self._context.lane_rows))
        end = pass_number * self._fit.work.n_steps
        while self._clock < end:
            self._context.raise_if_stopped()
            self.step()
            if interval and self._clock % interval == 0 and self._context.rank == 0:
                self.hand_over()

    def hand_over(self) -> None:
        """Store a copy of the rows that trainers hold on the first server."""
        self._connection.call("hold", blob=self.held_rows())

    def _rows_of_servers(self, rows: Any) -> Any:
        """Return a batch's touched rows, or their values, without the rows that trainers hold."""
        return rows[: max(0, len(rows) - len(self._ids))]

    def _receive_parameters(self) -> None:
        """Receive the rows of ids for the next step, and append the trainer's own rows."""
        super()._receive_parameters()
        for pulled in self._pulled:
            pulled.w = np.concatenate([pulled.w, self._replica.w])

    def _push_each_lane(self, batches: list[LaneBatch]) -> list[NDArray[Any]]:
        """Push the gradients of rows of ids; sum those of the own rows in the meantime."""
        gradients = super()._push_each_lane(batches)
        self._step_own_rows(gradients)
        return gradients

    def _step_own_rows(self, gradients: list[NDArray[Any]]) -> None:
        """Step the own rows along the sum of all lanes' gradients."""
        first, *other_parts = (gradient[-len(self._ids) :] for gradient in gradients)
        total = first.copy()
        for part in other_parts:
            total += part
        total = self._context.communicator.allreduce(total)
        # Lanes may have gone back to a clock before steps that the copy already includes.
        if self._clock >= self._held_clock:
            rows = self._context.step_rows(self._clock % self._fit.work.n_steps)
            self._replica.apply(total, rows, self._all_positions)
            self._held_clock = self._clock + 1
