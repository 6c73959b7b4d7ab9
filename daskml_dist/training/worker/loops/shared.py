"""Loop *shared*: threads race on one replica (``"hogwild"``); servers combine the trainers.

The threads of a trainer update one replica. Every few steps one of them sends the trainer's changes
since the last exchange to the servers, and adds the other trainers' changes to the replica.

By default a step is a batch's mean gradient, computed from parameters that other threads change at
the same time (Niu, Recht, Ré and Wright 2011). The update itself takes a lock: if updates of whole
arrays raced, one could lose a gradient's second moment and keep its first, which an adaptive
optimizer would then divide by almost zero. An update is short compared to a gradient of many rows.

On sparse rows of many features each row is a step, without locks (`backends/row_steps.py`): an
entry's step is computed from the moment that the same thread has just written, so a lost write does
not lengthen it. Threads stop only while their trainer adds the other trainers' changes: a row in
progress would overwrite them, and the next exchange would send that back as a change. A pass then
takes milliseconds, and sending all parameters would take most of the time. So exchanges are rare,
and each trainer damps its changes by how close they came to the minimum (`_damping_factor`): if a
parameter has nearly converged in every trainer, the changes are averaged; if it has only begun to
move, they are added.

Running means (the statistics of batch normalisation) are not sent as differences: each of several
trainers that began at the same value would move them by nearly the whole distance, and their sum
would end beyond what any batch held, such as at a negative variance. A step multiplies them by
their retention q and adds its batch's part. Of k steps a trainer sends the sum of the parts, and
servers multiply by q^k and add it: as if all steps were made in sequence.

Before each exchange, trainers apply the pending penalties of parameters that their rows did not
touch. Each trainer applies the penalties of its own steps, and a parameter that only one trainer's
rows have would otherwise be nearly unpenalised until the end, when all the others would shrink it
at once, past zero.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.row_slices import row_slices
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard import Shard, find_group_rows
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.row_by_row import RowByRow

#: Steps of a trainer between two exchanges with the servers.
STEPS_BETWEEN_EXCHANGES = 8
#: If rows are steps: time between two exchanges, as a multiple of the duration of the last one, so
#: that exchanges take at most 5 % of the time.
_EXCHANGE_AFTER = 20.0
#: Parameters that are damped at a time: 64 KiB in float64, so that temporaries stay in the cache.
_DAMPING_CHUNK = 1 << 13
#: If rows are steps: number of batches that a lane may be ahead of the trainer's slowest, and
#: seconds that it sleeps before it checks again.
_LEAD, _NAP = 2, 5e-5


def run_shared_loop(context: Context) -> ShardState | None:
    """Run all lanes; rank 0 returns its optimizer state (the servers hold the parameters)."""
    connection = context.connect()
    shared = SharedReplica(context, connection)
    # At an interruption the servers have the rest: they hold the parameters and count rows.
    context.set_left_behind(lambda: InterruptedState(shared.replica.state()))
    try:
        # Trainers do not begin together: from the initial parameters, a late one would repeat what
        # the others have learned by then, and the servers would add it once more.
        if context.generation or shared.has_others:
            shared.pull_parameters()
        context.run_in_threads(shared.run)
        shared.leave()
    finally:
        connection.close()
    return shared.replica.state() if context.rank == 0 else None


def _get_replica(context: Context, rule: UpdateRule, steps: int) -> Shard:
    """Return the replica of an earlier generation, or a new one."""
    replica: Shard | None = context.memory.get("replica")
    if replica is None or steps == 0:
        replica = Shard(rule, context.fit.make_start_state())
    # After a loss the trainer may have other lanes than before, at earlier clocks.
    replica.version, replica.rule = steps, rule
    context.memory["replica"] = replica
    return replica


class SharedReplica:
    """Replica that the threads of a trainer share, and its exchanges with the servers.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    state : ShardState, optional
        Initial state of the replica. The caller then sets the number of each step, counted over all
        trainers (`replica.version`), and pulls the parameters before the first step. By default the
        replica is that of the last generation, or a new one, and counts its own steps.
    """

    def __init__(
        self, context: Context, connection: ShardedConnection, state: ShardState | None = None
    ) -> None:
        fit = context.fit
        share = 1.0
        if state is None:
            share = len(context.lanes) / max(len(fit.rows.lane_rows), 1)
            rule = dataclasses.replace(fit.steps.rule, step_share=share)
            steps = sum(clock - fit.work.first_clock for clock in context.clocks.values())
            self.replica = _get_replica(context, rule, steps)
        else:
            self.replica = Shard(fit.steps.rule, state)
        self._context = context
        self._fit = fit
        self._connection = connection
        self._exchange_lock = threading.Lock()
        # The lock is for writing whole arrays; parameters may be read at any time.
        self._turns = SharedOrAlone()
        #: Whether other trainers step on the same parameters.
        self.has_others = share < 1
        self._name = min(lane.number for lane in context.lanes)
        self._lanes = [lane.number for lane in context.lanes]
        #: Clock, rows and loss of each lane; its thread stores a new entry after each step.
        self._lane_progress = {n: (context.clocks[n], 0.0, 0.0) for n in self._lanes}
        self._reported = dict(self._lane_progress)
        self._base = self.replica.w.copy() if state is None else self.replica.w
        self._delta = np.empty_like(self._base)
        self._clock = 0
        self._steps = self._steps_exchanged = 0
        self._stopped = self._has_sent_all = False
        self._exchange_every = fit.steps.policy.exchange_every
        #: Groups of running means whose retention is known.
        self._means = [g for g in self.replica.rule.groups if g.retention != 1]
        self._lead = min(_LEAD, self._exchange_every or _LEAD)
        self._rows: _DampedRowSteps | None = None
        if fit.steps.single_rows:
            rows = RowByRow(fit, self.replica, context.n_threads)
            self._rows = _DampedRowSteps(self.replica, rows, share)
        self._last_exchange, self._exchange_seconds = time.perf_counter(), 0.0

    def run(self, lanes: list[Lane]) -> None:
        """Run the steps of one thread's lanes."""
        with np.errstate(over="ignore", invalid="ignore"):
            for lane in lanes:
                lane.seek(self._context.clocks[lane.number])
            # After a loss the lanes continue from different clocks.
            for number in self._fit.work.passes(min(lane.clock for lane in lanes)):
                # The lane that is furthest behind is stepped first.
                waiting_lanes = [
                    (x.clock, i) for i, x in enumerate(lanes) if self._has_steps_left(x, number)
                ]
                heapify(waiting_lanes)
                while waiting_lanes:
                    lane = lanes[waiting_lanes[0][1]]
                    self._wait_for_slow_threads(lane)
                    if self._stopped or self._context.failed:
                        return
                    self._context.raise_if_stopped()
                    self._step_lane(lane)
                    _, index = heappop(waiting_lanes)
                    if self._has_steps_left(lane, number):
                        heappush(waiting_lanes, (lane.clock, index))
                if self._end_pass(number, lanes):
                    return

    def _wait_for_slow_threads(self, lane: Lane) -> None:
        """Wait while a lane is too far ahead of the trainer's slowest, if rows are steps."""
        if self._rows is None:
            return
        while lane.clock - min(clock for clock, _, _ in self._lane_progress.values()) >= self._lead:
            if self._stopped or self._context.failed:
                return
            self._context.raise_if_stopped()
            time.sleep(_NAP)

    def _has_steps_left(self, lane: Lane, pass_number: int) -> bool:
        """Return whether a lane has steps to make in a pass."""
        return lane.clock < pass_number * self._fit.work.n_steps

    def _step_lane(self, lane: Lane) -> None:
        """Make a lane's next step, and exchange changes with the servers if that is due."""
        self.step(lane)
        # One thread exchanges for all; the others continue, unless the policy sets the interval.
        if self._is_exchange_due() and self._exchange_lock.acquire(
            blocking=self._exchange_every > 0
        ):
            try:
                if self._is_exchange_due():
                    self.exchange_changes()
            finally:
                self._exchange_lock.release()

    def step(self, lane: Lane) -> None:
        """Make a lane's next step."""
        if self._rows is None:
            replica, batch = self.replica, lane.draw_next_batch()
            w = replica.w if batch.index is None else replica.w[batch.index]
            grad = lane.compute_gradient(w, batch)
            with self._turns.alone():
                replica.apply(grad, batch.n_rows, batch.index)
                # Within the lock, so that changes are read with the number of their steps.
                self._count_step(lane, batch.n_rows)
        else:
            with self._turns.together():
                n_rows = self._rows.step(lane)
            self._count_step(lane, n_rows)
        self._steps += 1

    def _count_step(self, lane: Lane, n_rows: float) -> None:
        """Count a step of a lane, with its rows and loss."""
        lane.clock += 1
        _, rows, loss = self._lane_progress[lane.number]
        self._lane_progress[lane.number] = lane.clock, rows + n_rows, loss + lane.last_batch_loss

    def _is_exchange_due(self) -> bool:
        """Return whether the trainer should exchange changes with the servers."""
        if self._rows is None:
            # Threads that increment the count at the same time may lose one, so this does not test
            # equality.
            return self._steps - self._steps_exchanged >= STEPS_BETWEEN_EXCHANGES
        if self._exchange_every:
            slowest = min(clock for clock, _, _ in self._lane_progress.values())
            return (
                slowest - min(clock for clock, _, _ in self._reported.values())
                >= self._exchange_every
            )
        return time.perf_counter() - self._last_exchange > _EXCHANGE_AFTER * self._exchange_seconds

    def exchange_changes(self, pull: bool = True, index: NDArray[np.int64] | None = None) -> Any:
        """Send this trainer's changes to the servers; with `pull`, add the other trainers' changes.

        The caller holds the lock of exchanges. `index` are the parameter rows that may have
        changed, if only these were pulled last; None: all rows.
        """
        since, self._steps_exchanged = time.perf_counter(), self._steps
        if self.has_others and self.replica.rule.penalty_is_lazy:
            with self._turns.alone():
                self.replica.apply_pending_penalty(by_optimizer=self._rows is not None)
        with self._turns.alone() if self._means else nullcontext():
            # Clock of each lane, with rows and loss since the last exchange. The server counts rows
            # and losses when it applies the changes.
            reported_before, self._reported = self._reported, dict(self._lane_progress)
            # Memory is reused: the first write to new memory takes longer than the sums.
            if index is None:
                delta = np.subtract(self.replica.w, self._base, out=self._delta)
            else:
                delta = self.replica.w[index] - self._base
        sent_means = self._leave_out_retained(
            delta, _count_steps(reported_before, self._reported), index
        )
        progress = np.array(
            [
                (
                    self._reported[n][0],
                    self._reported[n][1] - reported_before[n][1],
                    self._reported[n][2] - reported_before[n][2],
                )
                for n in self._lanes
            ]
        )
        if self._rows is not None:
            self._rows.damp_changes(delta)
        self._clock += 1
        self._connection.send(
            tuple(self._lanes),
            self._clock,
            progress[:, 1].sum(),
            delta,
            index,
            progress=progress,
            pull=pull,
        )
        if not pull:
            return None
        pulled = self._connection.receive(self._name)
        if self.has_others:
            # Threads have continued in the meantime, so the parameters are not replaced; the
            # others' changes are added: pulled - (base + own changes), computed in the memory of
            # `delta`.
            delta += self._base
            other_changes = np.subtract(pulled.w, delta, out=delta)
            for group, values in zip(self._means, sent_means, strict=True):
                other_changes[group.rows] = pulled.w[group.rows] - values
            with self._turns.alone():
                # What threads retained of the values since they were sent.
                steps = _count_steps(self._reported, self._lane_progress)
                for group in self._means:
                    other_changes[group.rows] *= group.retention**steps
                self.replica.w += other_changes
        # The next exchange measures changes from here.
        self._base = pulled.w
        self._stopped = self._stopped or pulled.stop
        self._last_exchange = time.perf_counter()
        self._exchange_seconds = self._last_exchange - since
        return pulled.w

    def _leave_out_retained(
        self, delta: NDArray[Any], steps: int, index: NDArray[np.int64] | None
    ) -> list[NDArray[Any]]:
        """Leave only the batches' parts in the changes of running means; return their values.

        `delta` are changes of all rows, or of those in `index`, in some steps.
        """
        values = []
        for group in self._means:
            rows = find_group_rows(group, index)
            values.append(delta[rows] + self._base[rows])
            # With value = base * q^k + parts: parts = (value - base) + (1 - q^k) * base.
            delta[rows] += (1 - group.retention**steps) * self._base[rows]
        return values

    def pull_parameters(self, index: NDArray[np.int64] | None = None) -> None:
        """Replace the replica's parameters, or some rows of them, by the servers'."""
        self._connection.send((self._name,), self._clock, pull_index=index)
        pulled = self._connection.receive(self._name)
        self.replica.replace(pulled.w, index)
        self._base, self._stopped = pulled.w, pulled.stop

    def _end_pass(self, pass_number: int, lanes: list[Lane]) -> bool:
        """Exchange changes and report a pass; return whether the fit ends."""
        with self._exchange_lock:
            w = self._send_last_changes() if self._has_finished else self.exchange_changes()
            stop = self._context.report(self._connection, pass_number, lanes, [w] * len(lanes))
            self._stopped = self._stopped or stop
        return self._stopped

    @property
    def _has_finished(self) -> bool:
        """Return whether no thread of this trainer has a step left, even if the ledger goes on."""
        last = self._fit.work.stopping.max_iter
        return not any(self._has_steps_left(lane, last) for lane in self._context.lanes)

    def _send_last_changes(self) -> Any:
        """Send the last changes; pull the others' changes only for validation."""
        pull = self._fit.rows.validation_fraction > 0
        if self._has_sent_all and not pull:
            return None  # sent by another thread; without a pull they would be sent twice
        self._has_sent_all = True
        # With other trainers, the exchange applies it.
        if not self.has_others:
            self.replica.apply_pending_penalty()
        return self.exchange_changes(pull=pull)

    def leave(self) -> None:
        """Send the last changes and leave the servers."""
        with self._exchange_lock:
            if not self._has_sent_all:
                self._send_last_changes()
            self._connection.call_all("leave", lanes=self._lanes)


def _count_steps(
    old_progress: Mapping[int, tuple[int, float, float]],
    new_progress: Mapping[int, tuple[int, float, float]],
) -> int:
    """Return the number of steps that all lanes made between two records of their clocks."""
    return sum(clock - old_progress[number][0] for number, (clock, _, _) in new_progress.items())


class _DampedRowSteps:
    """Steps of single rows; changes are damped for progress that other trainers also make."""

    def __init__(self, replica: Shard, rows: RowByRow, step_share: float) -> None:
        self._replica = replica
        self._step_share = step_share
        self._previous_state = self._opt_state()
        self._rate_sum = replica.rate_sum
        self.step = rows.step

    def _opt_state(self, row_slice: slice = slice(None)) -> dict[str, NDArray[Any]]:
        if self._step_share >= 1:
            return {}
        # One-dimensional copies, on which NumPy is several times faster.
        return {name: array[row_slice, 0].copy() for name, array in self._replica.opt_state.items()}

    def damp_changes(self, delta: NDArray[Any]) -> None:
        """Damp the changes since the last exchange in place, by `_damping_factor`."""
        if self._step_share >= 1:
            return
        replica = self._replica
        optimizer, rate = replica.rule.only_group.optimizer, replica.learning_rate()
        # All penalties of the steps since the last exchange have been applied.
        rates = replica.rate_sum - self._rate_sum
        self._rate_sum = replica.rate_sum
        for row_slice in row_slices(len(delta), _DAMPING_CHUNK):
            opt_state = self._opt_state(row_slice)
            state_before = {name: array[row_slice] for name, array in self._previous_state.items()}
            contraction = optimizer.contraction(state_before, opt_state, rate)
            if np.ndim(contraction) and replica.rule.penalty_is_lazy:
                sizes = optimizer.step_sizes(opt_state)
                self._add_penalty(contraction, row_slice, delta[row_slice, 0], rates * sizes, rates)
            delta[row_slice, 0] *= _damping_factor(contraction, self._step_share)
            for name, array in opt_state.items():
                state_before[name][...] = array

    def _add_penalty(
        self,
        contraction: NDArray[Any],
        row_slice: slice,
        delta: NDArray[Any],
        steps: Any,
        rates: float,
    ) -> None:
        """Add what the penalties of the steps since the last exchange contributed.

        `steps` is the sum of the lengths of the optimizer's steps along a gradient of 1. Parameters
        that no row touched were shrunk at once, by at most the sum of the `rates`; others in either
        way.
        """
        group = self._replica.rule.only_group
        penalised = slice(0, max(min(row_slice.stop, group.n_penalised) - row_slice.start, 0))
        own_contraction, w = contraction[penalised], self._replica.w[row_slice, 0][penalised]
        is_touched = own_contraction > 0
        steps = np.broadcast_to(steps, contraction.shape)[penalised]
        at_once, l2 = np.minimum(steps, rates), group.penalty.l2
        steps = np.where(is_touched, steps, 0.0)
        own_contraction += np.maximum(steps * l2, np.log1p(at_once * l2))
        if group.penalty.l1:
            # A soft threshold that reaches zero leaves nothing of the distance.
            largest = np.maximum(np.abs(w), np.abs(w - delta[penalised]))
            thresholds = np.maximum(steps, at_once) * group.penalty.l1
            share_left = 1 - np.minimum(thresholds / np.maximum(largest, 1e-30), 1)
            own_contraction -= np.log(np.maximum(share_left, 1e-12))


def _damping_factor(contraction: Any, share: float) -> Any:
    """Return the factor on the changes of one of ``1 / share`` trainers that move the same way.

    `contraction` is a: a trainer that makes the share `share` of all steps leaves ``exp(-a)`` of
    the distance to the minimum; all trainers' steps in sequence would have left ``exp(-a /
    share)``. With this factor, the sum of the trainers' changes equals the change of these steps in
    sequence.
    """
    n = round(1 / share)
    if n > 1 and n * share == 1:
        # share * (1 + q + ... + q^(n-1)) with q = exp(-a), by Horner's scheme: the geometric series
        # of the quotient below, in half the time.
        remaining = np.exp(-contraction)
        total = 1 + remaining
        for _ in range(n - 2):
            total = 1 + remaining * total
        return share * total
    a = np.maximum(contraction, 1e-6)
    return share * np.expm1(-a / share) / np.expm1(-a)


class SharedOrAlone:
    """Reader-writer lock that prefers writers: held by many threads together, or by one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0
        self._waiting = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the lock together with others; wait for threads that want it alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone: wait for all others, and block new ones."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._together)
                yield
            finally:
                self._waiting -= 1
                self._changed.notify_all()
