"""Loop *replicas*: trainers hold the parameters themselves and combine them by all-reduce.

``"allreduce"`` sums gradients at each step into one replica per trainer (`SummedSteps`). Under
``"local"`` and ``"average"`` each lane trains independently, and parameters are averaged every few
steps, or once at the end (`AveragedSteps`). In federated averaging, only the lanes that are drawn
for a round train (`FederatedSteps`). A single lane on its replica takes several steps in one call
(`OwnSteps`), and so do trainers of one host through shared memory (`ReplicaTeamSteps`). Lanes that
hold columns or pipeline stages have their own kinds of steps (`columns.py`, `pipeline.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import is_host
from daskml_dist.backends.shared_buffer import SharedBuffer
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.compression import (
    CompressedSum,
    Compressor,
    Feedback,
    FeedbackSum,
    LaneExchange,
    Packed,
)
from daskml_dist.models.base import LinearForm
from daskml_dist.ps.messages import LaneGradient, sum_in_lane_order
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardSnapshot, ShardState, StateParts, copy_array
from daskml_dist.ps.snapshots import LaneSnapshot
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.columns import ColumnSteps
from daskml_dist.training.worker.loops.context import (
    Context,
    DevicePlacement,
    LaneScatter,
    gather_lane_arrays,
    gather_lane_parts,
)
from daskml_dist.training.worker.loops.pipeline import PipelineSteps
from daskml_dist.training.worker.loops.row_by_row import RowByRow
from daskml_dist.training.worker.reader import LaneBatch, explain_memory_errors, get_fit_backend

#: Rows in one call if each row is a step: a few milliseconds, so that Ctrl-C and lost workers are
#: noticed soon.
_SINGLE_ROWS_PER_CALL = 1 << 14


def run_replicas_loop(context: Context) -> ShardState | StateParts | None:
    """Run all passes; rank 0 returns the state, or each rank the parts that only it holds."""
    connection = context.connect()
    run = _choose_steps(context)
    try:
        # All lanes of a lock-step fit begin at the same clock.
        for lane in context.lanes:
            lane.seek(context.clock)
        if context.resumed:
            # Lanes and replicas continue from snapshots.
            lane_numbers = [lane.number for lane in context.lanes]
            # Lanes of columns need no other lane's parameters.
            arguments = {} if context.fit.steps.columns is None else {"lanes": lane_numbers}
            snapshots: dict[int, LaneSnapshot] = connection.call("restore", **arguments)["blob"]
            for lane in context.lanes:
                snapshot = snapshots[lane.number]
                lane.sums = snapshot.loss, snapshot.rows, snapshot.steps
            run.restore(snapshots)
        context.set_left_behind(run.get_interrupted_state)
        _run_passes(context, connection, run)
        state = run.state()
        return state if context.rank == 0 or isinstance(state, StateParts) else None
    finally:
        connection.close()


def _choose_steps(context: Context) -> _ReplicaSteps:
    """Return the kind of steps for the fit's policy and layout."""
    if context.fit.steps.pipeline is not None:
        return PipelineSteps(context)
    if context.fit.steps.columns is not None:
        return ColumnSteps(context)
    policy = context.fit.steps.policy
    if policy.draws_lanes:
        return FederatedSteps(context)
    if policy.sums_within_hosts:
        return HostSteps(context)
    return SummedSteps(context) if policy.sums_gradients else AveragedSteps(context)


def _run_passes(context: Context, connection: ShardedConnection, run: _ReplicaSteps) -> None:
    """Run the remaining passes, with snapshots and reports."""
    n_steps, clock = context.fit.work.n_steps, context.clock
    answers = DelayedAnswers(context, connection)
    for number in context.fit.work.passes(clock):
        while clock < number * n_steps:
            context.raise_if_stopped()
            clock += run.steps(clock, _steps_to_stop(context, clock))
            if context.snapshot_every and clock % context.snapshot_every == 0:
                answers.store(clock, run.snapshots())
        # While the other trainers' reports arrive, the next rows are drawn.
        weights, draw_ahead = run.validation_weights(), partial(_draw_ahead, context, run, clock)
        if answers.report(number, weights, draw_ahead):
            return


def _steps_to_stop(context: Context, clock: int) -> int:
    """Return the number of steps from a clock to the end of the pass, or to the next snapshot."""
    n_steps = context.fit.work.n_steps - clock % context.fit.work.n_steps
    if context.snapshot_every:
        n_steps = min(n_steps, context.snapshot_every - clock % context.snapshot_every)
    return n_steps


def _draw_ahead(context: Context, run: _ReplicaSteps, clock: int) -> None:
    """Draw the rows of the next steps while the other trainers' reports arrive."""
    if clock < context.fit.work.stopping.max_iter * context.fit.work.n_steps:
        run.draw_rows_ahead(clock, _steps_to_stop(context, clock))


class SummedSteps:
    """Steps of one replica per trainer, by the summed gradients of all lanes.

    Parameters
    ----------
    context : Context
    state : ShardState, optional
        Initial state of the replica; by default the fit's.
    rule : UpdateRule, optional
        Rule of the replica; by default the fit's.
    """

    def __init__(
        self, context: Context, state: ShardState | None = None, rule: UpdateRule | None = None
    ) -> None:
        self._context = context
        self._fit = context.fit
        self._lanes = context.lanes
        is_alone = context.communicator.size == len(self._lanes) == 1
        #: Sum of the lanes' compressed gradients; None without compression.
        self._compressed: CompressedSum | None = None
        # A single lane sends no messages.
        if (compressor := self._fit.work.compression) is not None and not is_alone:
            numbers = [lane.number for lane in self._lanes]
            parameters = self._fit.steps.model.parameters
            if self._fit.work.coordinates:
                # Gradients of touched rows are sent together, whether or not rows are running means
                # or sums.
                parts = (replace(p, buffer=False, additive=False) for p in parameters.parts)
                parameters = replace(parameters, parts=tuple(parts))
            self._compressed = compressor.make_sum(
                numbers, len(context.lane_rows), parameters, self._fit.rows.dtype
            )
        self._placement = DevicePlacement(context, is_alone)
        self.replica = self._placement.make_replica(
            state or self._fit.make_start_state(), rule=rule
        )
        self._in_order = self._fit.run.deterministic or self._fit.work.coordinates
        self._alone = (
            OwnSteps(self._lanes[0], self.replica, context.raise_if_stopped) if is_alone else None
        )
        self._team = ReplicaTeamSteps(context, self.replica, self._in_order)

    def steps(self, clock: int, max_steps: int) -> int:
        """Take the next steps from a clock on; return how many were taken."""
        # One lane in total: no exchange, so all steps are taken in one call.
        if self._alone is not None:
            self._alone.take(max_steps)
            return max_steps
        # Several trainers on one host: many steps in one compiled loop, through shared memory.
        if self._compressed is None and (n_taken := self._team.take(clock, max_steps)):
            return n_taken
        last = clock + 1 == self._fit.work.stopping.max_iter * self._fit.work.n_steps
        self.step(self._context.step_rows(clock % self._fit.work.n_steps), last=last)
        return 1

    def step(self, rows: float, *, last: bool = False) -> None:
        """Take one step along the next batches of all lanes, which have `rows` rows in total.

        The `last` step also sends all residuals of compression.
        """
        # A step without rows is skipped, and the message of a lane would be lost with it.
        if self._compressed is not None and rows > 0:
            index, total = self._sum_compressed(self._compressed, last)
            self.replica.apply(self._placement.to_device(total), rows, index)
            return
        # Deterministic sums, or gradients of touched rows: all gradients are gathered and added in
        # lane order.
        if self._in_order:
            index, total = self._sum_in_lane_order()
            total = self._placement.to_device(total)
        else:
            index, total = None, self._context.communicator.allreduce(self._sum_own_lanes())
        self.replica.apply(total, rows, index)

    def draw_rows_ahead(self, clock: int, max_steps: int) -> None:
        """Draw the rows of the next steps."""
        if self._alone is not None:
            self._alone.draw_rows_ahead(max_steps)
        elif self._compressed is None:
            self._team.draw_rows_ahead(max_steps)

    def _sum_own_lanes(self) -> Any:
        """Return the sum of the gradients of this trainer's lanes."""
        w = self.replica.w
        if self._context.pool is None:
            # One thread: all lanes add their gradients to the first lane's array.
            first, *other_lanes = self._lanes
            total = first.own_gradient(w, first.draw_next_batch())
            for lane in other_lanes:
                lane.add_gradient(w, lane.draw_next_batch(), total)
            return total
        parts = self._context.map(self._compute_gradient, self._lanes)
        total = parts[0][1]
        for _, part in parts[1:]:
            total += part
        return total

    def _compute_gradient(self, lane: Lane) -> tuple[LaneBatch, Any]:
        """Return a lane's next batch and its gradient."""
        batch = lane.draw_next_batch()
        w = self.replica.w if batch.index is None else self.replica.w[batch.index]
        return batch, lane.compute_gradient(w, batch)

    def _sum_in_lane_order(self) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
        """Return the gradients of all lanes of all ranks, added in lane order."""
        arrays: list[NDArray[Any]] = [np.array([lane.number for lane in self._lanes])]
        for batch, lane_gradient in self._context.map(self._compute_gradient, self._lanes):
            gradient = self._placement.to_host(lane_gradient)
            arrays += [gradient] if batch.index is None else [batch.index, gradient]
        stride = 2 if self._fit.work.coordinates else 1
        parts = []
        for numbers, *lane_arrays in self._context.communicator.allgather(arrays):
            for i, number in enumerate(numbers.tolist()):
                *index, gradient = lane_arrays[i * stride : (i + 1) * stride]
                parts.append((number, index[0] if index else None, gradient))
        return sum_in_lane_order(parts)

    def _sum_compressed(
        self, sums: CompressedSum, last: bool
    ) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
        """Return the sum of the gradients of all lanes of all ranks, sent in compressed form."""
        batch_gradients = self._context.map(self._compute_gradient, self._lanes)
        own_gradients = {
            lane.number: (batch.index, self._placement.to_host(gradient))
            for lane, (batch, gradient) in zip(self._lanes, batch_gradients, strict=True)
        }
        if isinstance(sums, FeedbackSum) and self._fit.work.coordinates:
            return self._sum_compressed_rows(sums, own_gradients, last)
        gradients = {n: gradient for n, (_, gradient) in own_gradients.items()}
        return None, sums.add_up(gradients, self._exchange, last=last)

    def _sum_compressed_rows(
        self, sums: FeedbackSum, own_gradients: dict[int, tuple[Any, NDArray[Any]]], last: bool
    ) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
        """Return the sum of the gradients of the rows that lanes touch."""
        arrays_sent = {}
        for n, (index, gradient) in own_gradients.items():
            if last:
                values, index = sums.flush(n, gradient, index)
                arrays_sent[n] = [index, values]
            else:
                arrays_sent[n] = [index, *sums.pack(n, gradient, index).arrays]
        parts: list[LaneGradient] = []
        width = self._fit.work.layout.width
        for n, (index, *arrays) in self._exchange.gather(arrays_sent).items():
            values = arrays[0]
            if not last:
                values = np.empty((len(index), width), self._fit.rows.dtype)
                sums.unpack(Packed(tuple(arrays)), values)
            parts.append((n, index, values))
        return sum_in_lane_order(parts)

    @cached_property
    def _exchange(self) -> LaneExchange:
        """Return the exchange of compressed gradients between lanes."""
        communicator = self._context.communicator

        def add(own_arrays: dict[int, NDArray[Any]]) -> NDArray[Any]:
            """Return the sum of the arrays of all lanes."""
            if self._fit.run.deterministic:
                return sum_in_lane_order(gather_lane_parts(communicator, list(own_arrays.items())))[
                    1
                ]
            first, *other_arrays = own_arrays.values()
            total = first.copy()
            for array in other_arrays:
                total += array
            summed: NDArray[Any] = communicator.allreduce(total)
            return summed

        return LaneExchange(
            partial(gather_lane_arrays, communicator),
            add,
            LaneScatter(communicator, [lane.number for lane in self._lanes]),
            self._context.map,
        )

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Return every lane's sums; lane 0 also has the replica's parameters."""
        return {
            lane.number: LaneSnapshot(
                *lane.sums,
                None if lane.number else self.snapshot_replica(),
                residuals={}
                if self._compressed is None
                else self._compressed.snapshot(lane.number),
            )
            for lane in self._lanes
        }

    def snapshot_replica(self) -> ShardSnapshot:
        """Return a snapshot of the replica, on the host."""
        return self._placement.leave(self.replica.snapshot())

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Restore the replica from lane 0's snapshot, and each lane's residual."""
        self.replica.restore(self._placement.enter(lanes[0].own_shard))
        if self._compressed is not None:
            self._compressed.restore({n: lane.residuals for n, lane in lanes.items()})

    def get_interrupted_state(self) -> InterruptedState:
        """Return the replica's state at an interruption."""
        return InterruptedState(self.state(), rows=sum(lane.sums[1] for lane in self._lanes))

    def validation_weights(self) -> list[Any | None]:
        """Return the replica's parameters for each lane."""
        return [self.replica.w] * len(self._lanes)

    def state(self) -> ShardState:
        """Return the replica's state, on the host."""
        return self._placement.leave(self.replica.state())


class AveragedSteps:
    """Steps of one replica per lane, averaged every few steps and at the end.

    Lanes are weighted by their rows: by the sums of the rows' weights.

    Parameters
    ----------
    context : Context
    start : callable, optional
        Returns the initial state of a lane's replica, from the lane's number; by default the fit's
        initial state.
    """

    def __init__(self, context: Context, start: Callable[[int], ShardState] | None = None) -> None:
        self._context = context
        self._fit = context.fit
        self._lanes = context.lanes
        self._placement = DevicePlacement(context, alone=True)
        # Each lane's weight in the mean is its share of the rows, by their weights. The rows of a
        # stream are not known yet.
        is_stream = start is not None
        weights = tuple(map(float, context.lane_rows)) if is_stream else context.weigh_lanes()
        total = sum(weights)
        self._all_shares = [weight / total for weight in weights]
        self._shares = {lane.number: self._all_shares[lane.number] for lane in context.lanes}
        if not is_stream:
            balance_weights(context, weights)
        rule = self._fit.steps.rule
        start = start or (lambda number: self._fit.make_start_state())
        self.replicas = {
            number: self._placement.make_replica(start(number), rule=rule.scale_to_share(share))
            for number, share in self._shares.items()
        }
        self._lane_steps = [
            make_lane_steps(context, lane, self.replicas[lane.number]) for lane in context.lanes
        ]
        self._average_every = context.fit.steps.policy.average_every
        if self._fit.work.compression is not None:
            for replica in self.replicas.values():
                # The residuals of an earlier fit's lanes do not belong to this fit.
                replica.opt_state["outer_residual"][...] = 0
                if (
                    not self._average_every
                ):  # the only progress of a lane is measured from the start
                    replica.opt_state["outer_origin"][...] = replica.w
        # Allocated once: writing to new memory takes longer than computing the mean.
        w = self.replicas[context.lanes[0].number].w
        self._mean_buffer = (
            np.empty(w.shape, w.dtype) if self._average_every and is_host(w) else None
        )

    def steps(self, clock: int, max_steps: int) -> int:
        """Take the next steps from a clock on, at most to the next averaging; return how many."""
        count = self._steps_to_average(clock, max_steps)
        self._context.map(lambda lane_steps: lane_steps.take(count), self._lane_steps)
        if self._average_every and (clock + count) % self._average_every == 0:
            # Lazily regularised parameters are averaged without the pending penalty; each lane
            # applies it when it touches them.
            values = {n: replica.w for n, replica in self.replicas.items()}
            if self._fit.work.compression is not None:
                mean = self._average_progress(self._fit.work.compression, values)
            else:
                mean = self._average_lanes(values, self._mean_buffer)
            for replica in self.replicas.values():
                replica.take_outer_step(self._placement.to_device(mean))
        return count

    def _steps_to_average(self, clock: int, max_steps: int) -> int:
        """Return the number of steps from a clock on, at most to the next averaging."""
        return (
            min(max_steps, self._average_every - clock % self._average_every)
            if self._average_every
            else max_steps
        )

    def draw_rows_ahead(self, clock: int, max_steps: int) -> None:
        """Draw the rows of the next steps."""
        count = self._steps_to_average(clock, max_steps)
        for lane_steps in self._lane_steps:
            lane_steps.draw_rows_ahead(count)

    def _average_lanes(self, values: dict[int, Any], out: NDArray[Any] | None = None) -> Any:
        """Return the weighted mean over all lanes; on the host if deterministic."""
        if not self._fit.run.deterministic:
            return self._context.communicator.allreduce(self._sum_weighted(values, out))
        parts = [(n, self._placement.to_host(values[n] * self._shares[n])) for n in sorted(values)]
        return sum_in_lane_order(gather_lane_parts(self._context.communicator, parts))[1]

    def _average_progress(self, compressor: Compressor, values: dict[int, Any]) -> NDArray[Any]:
        """Return the mean over all lanes, each of which sends a compressed difference.

        A lane sends its progress since the last averaging; the part that the compressor omits is
        added to its next message. Each lane is packed separately, so the result does not depend on
        which trainer runs it.
        """
        own_progress = {
            n: list(self._pack_progress(n, w, compressor).arrays) for n, w in values.items()
        }
        packed_progress = gather_lane_arrays(self._context.communicator, own_progress)
        first = self.replicas[min(self.replicas)]
        # All lanes started from the same parameters.
        mean: NDArray[Any] = self._placement.to_host(first.opt_state["outer_origin"]).copy()
        progress = np.empty_like(mean)
        for n, arrays in packed_progress.items():
            compressor.decompress(Packed(tuple(arrays)), progress.reshape(-1))
            mean += self._all_shares[n] * progress
        return mean

    def _pack_progress(self, lane: int, w: Any, compressor: Compressor) -> Packed:
        """Return a lane's progress since the last averaging, compressed, and keep the residual."""
        to_host, state = self._placement.to_host, self.replicas[lane].opt_state
        progress = to_host(w) - to_host(state["outer_origin"])
        # The only message is at the end, with another one for the averages of averaged SGD, so no
        # residual is kept.
        if not self._average_every:
            return compressor.compress(progress.reshape(-1))
        residual = state["outer_residual"]
        feedback = Feedback(compressor, (0,), progress.dtype)
        # On the host this is the state's own array, which packing changes; a device gets a copy
        # back.
        feedback.residual = to_host(residual)
        packed = feedback.pack(progress)
        if feedback.residual is not residual:
            residual[...] = self._placement.to_device(feedback.residual)
        return packed

    def _sum_weighted(self, values: dict[int, Any], out: NDArray[Any] | None = None) -> Any:
        """Return the weighted sum of this trainer's lanes, in `out` if given."""
        first, *other_numbers = sorted(values)
        if out is None:
            total = values[first] * self._shares[first]
        else:
            total = np.multiply(values[first], self._shares[first], out=out)
        for n in other_numbers:
            total += values[n] * self._shares[n]
        return total

    def get_interrupted_state(self) -> InterruptedState:
        """Return the mean of this trainer's lanes' parameters at an interruption."""
        share = sum(self._shares.values())
        state = self._join_lanes(
            lambda values: self._sum_weighted(values) / share if share else values[min(values)]
        )
        return InterruptedState(state, share, sum(lane.sums[1] for lane in self._lanes))

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Return every lane's sums and parameters."""
        return {
            lane.number: LaneSnapshot(*lane.sums, self._take_snapshot(lane.number))
            for lane in self._lanes
        }

    def _take_snapshot(self, lane_number: int) -> ShardSnapshot:
        """Return a snapshot of a lane's replica, on the host."""
        return self._placement.leave(self.replicas[lane_number].snapshot())

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Restore each lane's replica from its own snapshot."""
        for number, replica in self.replicas.items():
            replica.restore(self._placement.enter(lanes[number].own_shard))

    def validation_weights(self) -> list[Any | None]:
        """Return each lane's parameters, contiguous for the matrix products of validation."""
        if not self._fit.rows.validation_fraction:
            return [None] * len(self._lanes)
        # A replica may interleave parameters with the optimizer state; matrix products need a copy.
        lane_params = (self.replicas[lane.number].w for lane in self._lanes)
        return [np.ascontiguousarray(w) if is_host(w) else w for w in lane_params]

    def state(self) -> ShardState:
        """Return the mean of the lanes' parameters, with the first lane's optimizer state."""
        compressor = self._fit.work.compression
        # Lanes that are averaged during the fit have made little progress at the end, and send it
        # uncompressed.
        if compressor is None or self._average_every:
            return self._join_lanes(self._average_lanes)
        return self._join_lanes(partial(self._average_progress, compressor))

    def _join_lanes(self, mean: Callable[[dict[int, Any]], Any]) -> ShardState:
        """Return one state from all lanes' replicas, averaged by a function."""
        states = {n: self._placement.leave(r.state()) for n, r in self.replicas.items()}
        # A lane whose rows weigh nothing has seen no gradients, by which later steps are scaled.
        first = states[min(states, key=lambda n: (not self._shares[n], n))]
        first.w = mean({n: s.w for n, s in states.items()})
        # Averaged SGD: the mean of the lanes' averages; a lane without an average yet uses its
        # parameters.
        averages = {n: s.average for n, s in states.items() if s.average is not None}
        if self._fit.steps.rule.average_after is not None:
            first.average = mean({n: averages.get(n, s.w) for n, s in states.items()})
        return first


class FederatedSteps:
    """Steps of the clients drawn for each round, from common parameters to their mean.

    Federated averaging (McMahan et al. 2017); a pass is a round. A trainer holds the common
    parameters, and replicas only of its drawn lanes until the round ends. The draw depends only on
    seed and round, so all trainers know it.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fit = context.fit
        self._lanes = context.lanes
        self._placement = DevicePlacement(context, alone=True)
        #: Common parameters, with the state of the outer step; their optimizer state stays
        #: unchanged.
        self.common = self._placement.make_replica(self._fit.make_start_state())
        #: Weight of each lane in a mean.
        self._weights = context.weigh_lanes()
        balance_weights(context, self._weights)

    def steps(self, clock: int, max_steps: int) -> int:
        """Take the steps of the round that begins at a clock; return how many."""
        count, rows = self._fit.work.n_steps, self._context.lane_rows
        # Snapshots, reports and the end of a fit are between passes, and so between rounds.
        assert clock % count == 0, "steps from within a round"
        assert max_steps == count, "steps from within a round"
        work = self._fit.steps
        drawn = work.policy.draw_clients(work.seed, clock // count, rows)
        weights, total = self._weights, sum(self._weights[n] for n in drawn)
        if not total:  # the rows of all drawn lanes weigh nothing
            weights, total = rows, sum(rows[n] for n in drawn)
        clients = [
            self._begin_client(lane, clock // count, weights[lane.number] / total)
            for lane in self._lanes
            if lane.number in drawn
        ]
        self._context.map(lambda client: client.take(), clients)
        mean = self._average(clients)
        # Lanes that are not drawn count the steps, too, so that all lanes have the same clock.
        for lane in self._lanes:
            lane.skip(clock + count - lane.reached)
        self.common.skip(count, sum(rows[n] for n in drawn))
        self.common.take_outer_step(self._placement.to_device(mean))
        return count

    def _begin_client(self, lane: Lane, round_number: int, mean_share: float) -> _Client:
        """Return a drawn lane with its own replica, starting at the common parameters."""
        work, common = self._fit.steps, self.common
        rule = replace(work.rule, outer=None).scale_to_share(mean_share)
        state = ShardState(copy_array(common.w), {}, common.step, common.rows)
        replica = self._placement.make_replica(state, rule=rule)
        # Each round begins with a new optimizer state, except for the scales of features.
        if "scale" in replica.opt_state:
            replica.opt_state["scale"][...] = common.opt_state["scale"]
        replica.restart_optimizer()
        replica.anchor = common.w
        own_steps = OwnSteps(lane, replica, self._context.raise_if_stopped)
        n_steps = work.clients[lane.number].n_steps
        n_steps = work.policy.limit_client_steps(work.seed, round_number, lane.number, n_steps)
        return _Client(replica, own_steps, mean_share, lane.number, n_steps)

    def _average(self, clients: list[_Client]) -> Any:
        """Return the mean of all drawn lanes' parameters, weighted by their rows' weights."""
        parts = [
            (c.lane_number, self._placement.to_host(c.replica.w * c.mean_share)) for c in clients
        ]
        communicator = self._context.communicator
        if self._fit.run.deterministic:
            return sum_in_lane_order(gather_lane_parts(communicator, parts))[1]
        total = np.zeros(self._fit.steps.shape, self._fit.rows.dtype)
        for _, part in parts:
            total += part
        return communicator.allreduce(total)

    def draw_rows_ahead(self, clock: int, max_steps: int) -> None:
        """Do nothing: the next round draws the lanes first."""

    def get_interrupted_state(self) -> InterruptedState:
        """Return the common parameters at an interruption; the open round's progress is lost."""
        return InterruptedState(self.state(), rows=sum(lane.sums[1] for lane in self._lanes))

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Return every lane's sums; lane 0 also has the common parameters."""
        return {
            lane.number: LaneSnapshot(*lane.sums, None if lane.number else self._take_snapshot())
            for lane in self._lanes
        }

    def _take_snapshot(self) -> ShardSnapshot:
        """Return a snapshot of the common parameters, on the host."""
        return self._placement.leave(self.common.snapshot())

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Restore the common parameters from the snapshot of lane 0."""
        self.common.restore(self._placement.enter(lanes[0].own_shard))

    def validation_weights(self) -> list[Any | None]:
        """Return the common parameters for each lane."""
        return [self.common.w] * len(self._lanes)

    def state(self) -> ShardState:
        """Return the state of the common parameters, on the host."""
        return self._placement.leave(self.common.state())


def balance_weights(context: Context, weights: Sequence[float]) -> None:
    """Divide the weights of each lane's rows so that their mean is 1, for lanes that step alone.

    `weights` are the sums of all lanes, by which the lanes are averaged: so a row of weight 2
    equals two rows, in the lane's steps and in the mean. With weights far below 1, the penalty
    would outweigh a lane's gradients, and an adaptive optimizer's steps would be as long as ever.
    """
    if context.averages_by_weights:
        for lane in context.lanes:
            lane.divide_weights(weights[lane.number] / max(lane.n_rows, 1))


@dataclass
class _Client:
    """Drawn lane, with its replica, its share of the mean, and the steps that it makes."""

    replica: Shard
    lane_steps: OwnSteps
    mean_share: float
    lane_number: int
    n_steps: int

    def take(self) -> None:
        """Take the steps of the round."""
        self.lane_steps.take(self.n_steps)
        # The replica ends here, so later steps cannot apply the penalties of untouched rows.
        self.replica.apply_pending_penalty()


class HostSteps:
    """Steps of one replica per host, by the summed gradients of its lanes, averaged over hosts.

    Each trainer of a host holds the same replica, as under ``"allreduce"``. Hosts are averaged by
    their rows' weights every few steps and at the end, like lanes under ``"local"``.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fit = context.fit
        self._lanes = context.lanes
        self._average_every = context.fit.steps.policy.average_every
        host = context.of_host()
        self._host = host.communicator
        #: The host's weight in the mean: its share of the rows, by their weights.
        weights = context.weigh_lanes()
        host_weight = sum(w for w, n_rows in zip(weights, host.lane_rows, strict=True) if n_rows)
        self._mean_share = host_weight / sum(weights)
        if context.averages_by_weights:
            for lane in context.lanes:
                lane.divide_weights(host_weight / max(sum(host.lane_rows), 1))
        self._steps = SummedSteps(host, rule=self._fit.steps.rule.scale_to_share(self._mean_share))

    def steps(self, clock: int, max_steps: int) -> int:
        """Take the next steps from a clock on, at most to the next averaging; return how many."""
        count, n_done = self._steps_to_average(clock, max_steps), 0
        while n_done < count:
            n_done += self._steps.steps(clock + n_done, count - n_done)
        if (clock + count) % self._average_every == 0:
            replica = self._steps.replica
            replica.take_outer_step(self._average_hosts(replica.w))
        return count

    def _steps_to_average(self, clock: int, max_steps: int) -> int:
        """Return the number of steps from a clock on, at most to the next averaging."""
        return min(max_steps, self._average_every - clock % self._average_every)

    def draw_rows_ahead(self, clock: int, max_steps: int) -> None:
        """Draw the rows of the next steps."""
        self._steps.draw_rows_ahead(clock, self._steps_to_average(clock, max_steps))

    def _average_hosts(self, values: Any) -> Any:
        """Return the mean over all hosts, weighted by their rows' weights."""
        communicator = self._context.communicator
        if not self._fit.run.deterministic:
            # All trainers of a host have the same parameters, and each adds a part of their weight.
            return communicator.allreduce(values * (self._mean_share / self._host.size))
        # One array per host, in the order of the hosts' first lanes.
        own_parts = [(self._lanes[0].number, values * self._mean_share)]
        parts = gather_lane_parts(communicator, own_parts if self._host.rank == 0 else [])
        return sum_in_lane_order(parts)[1]

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Return every lane's sums; one lane of each host also has the host's parameters."""
        # Snapshots are made right after averaging, so all hosts have the same parameters.
        snapshots = {lane.number: LaneSnapshot(*lane.sums, None) for lane in self._lanes}
        if self._host.rank == 0:
            first = self._lanes[0]
            replica = self._steps.snapshot_replica()
            snapshots[first.number] = LaneSnapshot(*first.sums, replica)
        return snapshots

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Restore the replica from the snapshot of the first lane that has parameters.

        After a loss, lanes may be on other hosts than before.
        """
        first = min(number for number, lane in lanes.items() if lane.shard is not None)
        self._steps.restore({0: lanes[first]})

    def get_interrupted_state(self) -> InterruptedState:
        """Return the host's state at an interruption."""
        rows = sum(lane.sums[1] for lane in self._lanes)
        return InterruptedState(self._steps.state(), self._mean_share / self._host.size, rows)

    def validation_weights(self) -> list[Any | None]:
        """Return the replica's parameters for each lane."""
        return self._steps.validation_weights()

    def state(self) -> ShardState:
        """Return the mean of the hosts' parameters, with this host's optimizer state."""
        state = self._steps.state()
        host_params = state.w
        state.w = self._average_hosts(host_params)
        if self._fit.steps.rule.average_after is not None:
            state.average = self._average_hosts(
                host_params if state.average is None else state.average
            )
        return state


_ReplicaSteps = (
    SummedSteps | AveragedSteps | FederatedSteps | HostSteps | PipelineSteps | ColumnSteps
)


class DelayedAnswers:
    """Reports and snapshots of a trainer; the answer to one is received before the next is sent.

    The answer to a snapshot arrives once the standby has it, which over a slow network takes as
    long as many steps. So reports do not wait for it, and snapshots do not wait for the answer to a
    report.

    A trainer does not wait for the answer to a report either, if only the client can end the fit
    early (no `tol`). The fit then ends one pass after the client's request, in all trainers.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    """

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        self._context, self._connection = context, connection
        work = context.fit.work
        # In the client's process the answer is immediate, and callbacks must run before the next
        # pass.
        self._may_be_late = not context.is_alone and work.lockstep and work.stopping.tol is None
        self._stops = False
        #: Kinds of messages without an answer yet: "store", "report" or both.
        self._open: set[str] = set()

    def store(self, clock: int, snapshots: dict[int, LaneSnapshot]) -> None:
        """Send snapshots of this trainer's lanes at a clock to the first server."""
        self._take_answer("store")
        self._connection.send_call("store", clock=clock, blob=snapshots)
        self._open.add("store")

    def report(
        self, pass_number: int, weights: list[Any | None], meanwhile: Callable[[], None]
    ) -> bool:
        """Report pass `pass_number`; return whether the fit ends with it.

        `meanwhile` is called before the answer is awaited, if it is.
        """
        context = self._context
        self._take_answer("report")
        context.send_pass_report(self._connection, pass_number, context.lanes, weights)
        self._open.add("report")
        # The answer to the last report is always awaited.
        is_last = self._stops or pass_number == context.fit.work.stopping.max_iter
        if self._may_be_late and not is_last:
            return False
        meanwhile()
        self._take_answer("report")
        if self._stops or is_last:  # other calls follow on the same connection
            self._take_answer("store")
        context.end_pass()
        return self._stops or is_last

    def _take_answer(self, op: str) -> None:
        """Receive the answer to a report or snapshot, and any answers before it."""
        while op in self._open:
            answer = self._connection.answer()
            # The answer to a report contains whether the fit ends.
            self._open.remove("report" if "stop" in answer else "store")
            self._stops = bool(answer.get("stop")) or self._stops


def make_lane_steps(context: Context, lane: Lane, replica: Shard) -> OwnSteps | SingleRowSteps:
    """Return the steps, by batches or single rows, of a lane with its own replica."""
    fit = context.fit
    if fit.steps.single_rows:
        max_steps = max(1, _SINGLE_ROWS_PER_CALL * fit.work.n_steps // max(lane.n_rows, 1))
        return SingleRowSteps(
            lane, replica, RowByRow(fit, replica), max_steps, context.raise_if_stopped
        )
    return OwnSteps(lane, replica, context.raise_if_stopped)


class SingleRowSteps:
    """Steps of a lane by single rows; one call covers several batches.

    Parameters
    ----------
    lane : Lane
    replica : Shard
    rows : RowByRow
    max_steps : int
        Most batches in one call.
    raise_if_stopped : callable
        Called between calls; may raise.
    """

    def __init__(
        self,
        lane: Lane,
        replica: Shard,
        rows: RowByRow,
        max_steps: int,
        raise_if_stopped: Callable[[], None],
    ) -> None:
        self._lane = lane
        self._replica = replica
        self._rows = rows
        self._batches_per_call = 1 if lane.calls_step_callbacks else max_steps
        self._raise_if_stopped = raise_if_stopped

    def take(self, count: int) -> None:
        """Take the steps of `count` batches."""
        while count > 0:
            self._raise_if_stopped()
            batches = self._replica.steps_at_once(min(count, self._batches_per_call))
            self._rows.step(self._lane, batches)
            count -= batches

    def draw_rows_ahead(self, count: int) -> None:
        """Do nothing: rows are drawn when their batch is stepped."""


class OwnSteps:
    """Steps of a lane, one by one, or several in one call of a device or compiled loop.

    Parameters
    ----------
    lane : Lane
    replica : Shard
        Replica on the device where the lane computes.
    raise_if_stopped : callable
        Called between steps; may raise.
    """

    def __init__(
        self, lane: Lane, replica: Shard, raise_if_stopped: Callable[[], None] = lambda: None
    ) -> None:
        self._lane = lane
        self._replica = replica
        self._raise_if_stopped = raise_if_stopped
        self._recorded: Any | None = None
        # A recorded step updates the replica, so it must be where the lane computes.
        is_local = lane.backend.device == "cpu" or replica.on_device
        self._can_record = is_local and replica.steps_alone

    def take(self, count: int) -> None:
        """Take the next steps of the lane."""
        while count > 0:
            self._raise_if_stopped()
            count -= self._take_recorded_steps(count) or self._take_single_step()

    def draw_rows_ahead(self, count: int) -> None:
        """Draw the rows of the next steps, if several are taken in one call."""
        if self._recorded is not None and self._can_record:
            self._lane.draw_rows_ahead(min(count, self._recorded.max_steps))

    def _take_single_step(self) -> int:
        """Take one step; return 1."""
        replica, batch = self._replica, self._lane.draw_next_batch()
        # An empty batch has no rows to gather, and the replica may be on a device.
        index = batch.index if batch.n_rows else None
        w = replica.w if index is None else replica.w[index]
        replica.apply(self._lane.own_gradient(w, batch), batch.n_rows, index)
        return 1

    def _take_recorded_steps(self, count: int) -> int:
        """Take several steps in one call; return how many, 0 if that is not possible."""
        lane, replica, gather = self._lane, self._replica, self._lane.gather_when_ready
        if gather is None or not self._can_record:
            return 0
        step = replica.empty_step()
        # The step is recorded (compiled) once, and again when its form changes.
        if self._recorded is None or not self._recorded.serves(step):
            with explain_memory_errors(lane.backend, "What steps need"):
                self._recorded = lane.backend.recorder(
                    gather, replica.rule.only_group.optimizer, step
                )
        if self._recorded is None:
            self._can_record = False
            return 0
        count = min(count, self._recorded.max_steps)
        lane.take_recorded_steps(self._recorded, replica, count)
        return count


class ReplicaTeamSteps:
    """Steps by the summed gradients of all lanes, several in one call over shared memory.

    Trainers of one host run the same compiled loop, and sum at each step in a `SharedBuffer`.

    Parameters
    ----------
    context : Context
    replica : Shard
        Replica of this trainer; all trainers make the same calls for theirs.
    in_order : bool
        Whether gradients are added in lane order.
    """

    def __init__(self, context: Context, replica: Shard, in_order: bool) -> None:
        self._context, self._replica, self._in_order = context, replica, in_order
        self._backend = get_fit_backend(context.fit)
        self._recorded: Any | None = None
        self._shared_buffer: SharedBuffer | None = None
        #: First step from which no lane copies its rows; None if such steps are impossible.
        self._first_team_step: int | None = None
        work = context.fit.work
        if work.linear is not None and replica.rule.steps_alone:
            self._first_team_step = self._find_first_step(work.linear)

    def _find_first_step(self, linear: LinearForm) -> int:
        """Return the first step from which no lane copies its rows."""
        if self._context.fit.work.coordinates:
            return 0  # steps on sparse rows are compiled in any case
        n_steps = self._context.fit.work.n_steps
        batches = [-(-n // n_steps) for n in self._context.lane_rows if n]
        # Trainers must switch to the compiled loop at the same step, so the largest lane decides.
        copied = self._backend.steps_copied
        return max((copied(linear.dense_kernel, n * linear.n_features) for n in batches), default=0)

    def take(self, clock: int, max_steps: int) -> int:
        """Take the next steps from a clock on; return how many, 0 if that is not possible."""
        if self._first_team_step is None or clock < self._first_team_step:
            return 0
        if self._shared_buffer is None:
            self._shared_buffer = self._open_shared_buffer()
        step = self._replica.empty_step()
        if self._shared_buffer is not None and not (self._recorded and self._recorded.serves(step)):
            gathers = [lane.gather if lane.n_rows else None for lane in self._context.lanes]
            optimizer = self._replica.rule.only_group.optimizer
            self._recorded = self._backend.team_recorder(
                gathers, optimizer, step, self._shared_buffer
            )
        if self._shared_buffer is None or self._recorded is None:
            self._first_team_step = None
            return 0
        count: int = min(max_steps, self._recorded.max_steps)
        self._run_steps(clock, count)
        return count

    def draw_rows_ahead(self, max_steps: int) -> None:
        """Draw the rows of the next steps, if several are taken in one call."""
        if self._recorded is not None and self._first_team_step is not None:
            for lane in self._context.lanes:
                lane.draw_rows_ahead(min(max_steps, self._recorded.max_steps))

    def _open_shared_buffer(self) -> SharedBuffer | None:
        """Return the buffer that all trainers share; None if any of them cannot use it."""
        context, w = self._context, self._replica.w
        lane_numbers = [lane.number for lane in context.lanes]
        # All trainers must make the same choice, so each sends whether it can, and its lanes.
        gathered = context.communicator.allgather(
            [np.array([self._can_step_at_once(), *lane_numbers])]
        )
        if not all(array[0] for (array,) in gathered):
            return None
        lanes = [array[1:].tolist() for (array,) in gathered]
        n = None if context.fit.work.coordinates else len(w)
        return context.communicator.board(n, w.dtype, lanes, self._in_order)

    def _can_step_at_once(self) -> bool:
        """Return whether this trainer could take several steps in one call."""
        lanes = [lane for lane in self._context.lanes if lane.n_rows]
        if not lanes or self._context.pool is not None or self._replica.on_device:
            return False
        return all(lane.gather is not None for lane in lanes)

    def _run_steps(self, clock: int, count: int) -> None:
        """Take steps in one call of the compiled loop, and count those that were made."""
        context, replica = self._context, self._replica
        drawn = [lane.draw_batch_runs(count) for lane in context.lanes]
        # Rows of each lane in each step, of which the loop only uses whether there are any; rounded
        # up, since mean numbers of rows may be below one.
        counts = np.ceil([rows for _, rows in drawn]).astype(np.int64).T.copy()
        numbers = np.arange(clock, clock + count) % context.fit.work.n_steps
        steps = replica.next_steps(context.step_rows(numbers).tolist())
        assert self._recorded is not None
        run = self._recorded([draws for draws, _ in drawn], counts, steps)
        try:
            run.run()
        finally:
            # A lost trainer may end the call early: steps that were not made are not counted.
            replica.uncount_steps(steps[run.n_steps_made :])
            for i, (lane, (_, rows)) in enumerate(zip(context.lanes, drawn, strict=True)):
                lane.count_made_steps(
                    rows[: run.n_steps_made], run.losses[: run.n_steps_made, i], run.seconds[i]
                )
