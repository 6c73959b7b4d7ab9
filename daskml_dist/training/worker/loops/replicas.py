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
from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.ps.messages import sum_in_lane_order
from daskml_dist.ps.shard_state import ShardSnapshot, ShardState, StateParts
from daskml_dist.ps.snapshots import LaneSnapshot
from daskml_dist.training.spec import Left
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.columns import Columns
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.device_placement import DevicePlacement
from daskml_dist.training.worker.loops.late_answers import LateAnswers
from daskml_dist.training.worker.loops.own_steps import OwnSteps, own_steps
from daskml_dist.training.worker.loops.pipeline import Pipelined
from daskml_dist.training.worker.loops.team import Team
from daskml_dist.training.worker.reader import Batch

__all__ = ["run_replicas"]


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
