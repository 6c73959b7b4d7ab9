"""Replicas: trainers hold the parameters and meet by all-reduce.

``"allreduce"`` sums gradients at each step into one replica a trainer; ``"local"`` and
``"average"`` let each lane step alone and average parameters now and then, or once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import is_host
from daskml_dist.backends.shared_buffer import SharedBuffer
from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.models.base import LinearForm
from daskml_dist.ps.messages import sum_in_lane_order
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardSnapshot, ShardState, StateParts
from daskml_dist.ps.snapshots import LaneSnapshot
from daskml_dist.training.spec import Left
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.columns import Columns
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.device_placement import DevicePlacement
from daskml_dist.training.worker.loops.pipeline import Pipelined
from daskml_dist.training.worker.loops.row_by_row import RowByRow
from daskml_dist.training.worker.reader import Batch
from daskml_dist.training.worker.ready_blocks import backend_of, fit_memory

__all__ = ["LateAnswers", "OwnSteps", "Team", "run_replicas"]


#: Single rows of which steps are made at once: a few milliseconds.
_ROWS_AT_ONCE = 1 << 14


def run_replicas(context: Context) -> ShardState | StateParts | None:
    """Run all passes; rank 0 returns the state, or each rank the parts that it alone holds."""
    connection = context.connect()
    run = _run_of(context)
    try:
        for lane in context.lanes:
            lane.seek(context.clock)
        if context.resumed:
            _restore(context, connection, run)
        context.leaves(run.left)
        _run_passes(context, connection, run)
        state = run.state()
        return state if context.rank == 0 or isinstance(state, StateParts) else None
    finally:
        connection.close()


def _run_of(context: Context) -> _Run:
    if context.fit.steps.pipeline is not None:
        return Pipelined(context)
    if context.fit.steps.columns is not None:
        return Columns(context)
    return _Summed(context) if context.fit.steps.policy.sums_gradients else _Averaged(context)


def _run_passes(context: Context, connection: ShardedConnection, run: _Run) -> None:
    n_steps, done = context.fit.work.n_steps, context.clock
    ledger = LateAnswers(context, connection)
    for number in context.fit.work.passes(done):
        while done < number * n_steps:
            context.rest()
            done += run.steps(done, _most(context, done))
            if context.snapshot_every and done % context.snapshot_every == 0:
                ledger.store(done, run.snapshots())
        weights, ahead = run.validation_weights(), partial(_draw_ahead, context, run, done)
        if ledger.report(number, weights, ahead):
            return


def _most(context: Context, done: int) -> int:
    """Steps from a clock on to the next end of a pass, or snapshot."""
    most = context.fit.work.n_steps - done % context.fit.work.n_steps
    if context.snapshot_every:
        most = min(most, context.snapshot_every - done % context.snapshot_every)
    return most


def _draw_ahead(context: Context, run: _Run, done: int) -> None:
    """Draw the rows of the steps that follow, while others' reports come in."""
    if done < context.fit.work.stopping.max_iter * context.fit.work.n_steps:
        run.draw_ahead(done, _most(context, done))


def _restore(context: Context, connection: ShardedConnection, run: _Run) -> None:
    """Go on from the snapshots of the lanes that the fit went back to."""
    own = [lane.number for lane in context.lanes]
    some = {} if context.fit.steps.columns is None else {"lanes": own}
    snapshots: dict[int, LaneSnapshot] = connection.call("restore", **some)["blob"]
    for lane in context.lanes:
        snapshot = snapshots[lane.number]
        lane.sums = snapshot.loss, snapshot.rows, snapshot.steps
    run.restore(snapshots)


class _Summed:
    """One replica a trainer; the gradients of all lanes are summed at each step."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fit = context.fit
        self._lanes = context.lanes
        alone = context.communicator.size == len(self._lanes) == 1
        self._home = DevicePlacement(context, alone)
        self._replica = self._home.shard(self._fit.start_state())
        self._in_order = self._fit.run.deterministic or self._fit.work.coordinates
        self._alone = OwnSteps(self._lanes[0], self._replica, context.rest) if alone else None
        self._team = Team(context, self._replica, self._in_order)

    def steps(self, clock: int, most: int) -> int:
        """Take the next steps from a clock on; how many were taken."""
        if self._alone is not None:
            self._alone.take(most)
            return most
        if taken := self._team.take(clock, most):
            return taken
        rows = self._context.step_rows(clock % self._fit.work.n_steps)
        if self._in_order:
            index, total = self._gathered()
            total = self._home.to_device(total)
        else:
            index, total = None, self._context.communicator.allreduce(self._sum())
        self._replica.apply(total, rows, index)
        return 1

    def draw_ahead(self, clock: int, most: int) -> None:
        """Draw the rows of the next steps."""
        if self._alone is not None:
            self._alone.draw_ahead(most)
        else:
            self._team.draw_ahead(most)

    def _sum(self) -> Any:
        w = self._replica.w
        if self._context.pool is None:
            first, *others = self._lanes
            total = first.own_gradient(w, first.next_batch())
            for lane in others:
                lane.add_gradient(w, lane.next_batch(), total)
            return total
        parts = self._context.map(self._gradient, self._lanes)
        total = parts[0][1]
        for _, part in parts[1:]:
            total += part
        return total

    def _gradient(self, lane: Lane) -> tuple[Batch, Any]:
        batch = lane.next_batch()
        w = self._replica.w if batch.index is None else self._replica.w[batch.index]
        return batch, lane.new_gradient(w, batch)

    def _gathered(self) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
        """Every lane's gradient on every rank, added in lane order."""
        arrays: list[NDArray[Any]] = [np.array([lane.number for lane in self._lanes])]
        for batch, own in self._context.map(self._gradient, self._lanes):
            gradient = self._home.to_host(own)
            arrays += [gradient] if batch.index is None else [batch.index, gradient]
        stride = 2 if self._fit.work.coordinates else 1
        parts = []
        for numbers, *rest in self._context.communicator.allgather(arrays):
            for i, number in enumerate(numbers.tolist()):
                *index, gradient = rest[i * stride : (i + 1) * stride]
                parts.append((number, index[0] if index else None, gradient))
        return sum_in_lane_order(parts)

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Every lane's sums; the parameters with the first lane's."""
        return {
            lane.number: LaneSnapshot(*lane.sums, None if lane.number else self._snapshot())
            for lane in self._lanes
        }

    def _snapshot(self) -> ShardSnapshot:
        return self._home.leave(self._replica.snapshot())

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Go on from the parameters that came with the first lane."""
        self._replica.restore(self._home.enter(lanes[0].held))

    def left(self) -> Left:
        """The replica, as far as it came."""
        return Left(self.state(), rows=sum(lane.sums[1] for lane in self._lanes))

    def validation_weights(self) -> list[Any | None]:
        return [self._replica.w] * len(self._lanes)

    def state(self) -> ShardState:
        return self._home.leave(self._replica.state())


class _Averaged:
    """One replica a lane, averaged by rows every so many steps and at the end."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fit = context.fit
        self._lanes = context.lanes
        self._home = DevicePlacement(context, alone=True)
        total = sum(context.lane_rows)
        self._shares = {
            lane.number: context.lane_rows[lane.number] / total for lane in context.lanes
        }
        rule = self._fit.steps.rule
        self._replicas = {
            number: self._home.shard(self._fit.start_state(), rule=rule.of_share(share))
            for number, share in self._shares.items()
        }
        self._own = [
            own_steps(context, lane, self._replicas[lane.number]) for lane in context.lanes
        ]
        self._every = context.fit.steps.policy.average_every
        # New memory is dearer than a mean.
        w = self._replicas[context.lanes[0].number].w
        self._room = np.empty(w.shape, w.dtype) if self._every and is_host(w) else None

    def steps(self, clock: int, most: int) -> int:
        """Take the next steps from a clock on, up to where parameters meet; how many."""
        count = self._count(clock, most)
        self._context.map(lambda own: own.take(count), self._own)
        if self._every and (clock + count) % self._every == 0:
            # The penalty that is pending for untouched parameters is applied by each lane when it
            # touches them.
            mean = self._mean({n: r.w for n, r in self._replicas.items()}, self._room)
            for replica in self._replicas.values():
                replica.meet(self._home.to_device(mean))
        return count

    def _count(self, clock: int, most: int) -> int:
        """Steps from a clock on, up to where parameters meet."""
        return min(most, self._every - clock % self._every) if self._every else most

    def draw_ahead(self, clock: int, most: int) -> None:
        """Draw the rows of the next steps."""
        count = self._count(clock, most)
        for own in self._own:
            own.draw_ahead(count)

    def _mean(self, values: dict[int, Any], room: NDArray[Any] | None = None) -> Any:
        """Mean over all lanes, weighted by their rows; where they lie, or on the host."""
        if not self._fit.run.deterministic:
            return self._context.communicator.allreduce(self._own_sum(values, room))
        numbers = sorted(values)
        parts = (self._home.to_host(values[n] * self._shares[n]) for n in numbers)
        own = [np.array(numbers), *parts]
        return sum_in_lane_order(
            [
                (number, None, part)
                for theirs, *rest in self._context.communicator.allgather(own)
                for number, part in zip(theirs.tolist(), rest, strict=True)
            ]
        )[1]

    def _own_sum(self, values: dict[int, Any], room: NDArray[Any] | None = None) -> Any:
        """The own lanes' part of the mean; in memory that is used again, where there is some."""
        first, *others = sorted(values)
        if room is None:
            total = values[first] * self._shares[first]
        else:
            total = np.multiply(values[first], self._shares[first], out=room)
        for n in others:
            total += values[n] * self._shares[n]
        return total

    def left(self) -> Left:
        """The mean of the own lanes, as far as each came."""
        share = sum(self._shares.values())
        state = self._joined(lambda values: self._own_sum(values) / share)
        return Left(state, share, sum(lane.sums[1] for lane in self._lanes))

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Every lane's sums and parameters."""
        return {
            lane.number: LaneSnapshot(*lane.sums, self._snapshot(lane.number))
            for lane in self._lanes
        }

    def _snapshot(self, number: int) -> ShardSnapshot:
        return self._home.leave(self._replicas[number].snapshot())

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Go on from each lane's own parameters."""
        for number, replica in self._replicas.items():
            replica.restore(self._home.enter(lanes[number].held))

    def validation_weights(self) -> list[Any | None]:
        if not self._fit.rows.validation_fraction:
            return [None] * len(self._lanes)
        # Parameters that lie side by side with what belongs to them are copied for the products.
        found = (self._replicas[lane.number].w for lane in self._lanes)
        return [np.ascontiguousarray(w) if is_host(w) else w for w in found]

    def state(self) -> ShardState:
        """The mean of the lanes' parameters, with the first lane's optimizer state."""
        return self._joined(self._mean)

    def _joined(self, mean: Callable[[dict[int, Any]], Any]) -> ShardState:
        states = {n: self._home.leave(r.state()) for n, r in self._replicas.items()}
        first = states[min(states)]
        first.w = mean({n: s.w for n, s in states.items()})
        # Lanes see their averages at different rows, so all of them or none has one.
        averages = {n: s.average for n, s in states.items() if s.average is not None}
        if self._fit.steps.rule.average_after is not None:
            first.average = mean({n: averages.get(n, s.w) for n, s in states.items()})
        return first


_Run = _Summed | _Averaged | Pipelined | Columns


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
        replica.apply(self._lane.own_gradient(w, batch), batch.n_rows, index)
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
