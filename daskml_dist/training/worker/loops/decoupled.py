"""Loop *decoupled*: lanes train independently, and wait for no particular lane (``"local"``).

Each lane has a replica. Every `average_every` steps it sends its progress since the last push (its
*way*) to the server of each shard. The server makes an outer step of the mean progress of the lanes
that its gate combines into a round. If the policy has `fragments`, shards take turns, and a lane
continues to step while it waits for an answer; its progress in the meantime belongs to its next
push. So each step counts exactly once, whenever an answer arrives (Streaming DiLoCo, Douillard et
al. 2025; Decoupled DiLoCo 2026). Under `steps_by_speed` the first server sends each lane the number
of steps until its next push (dynamic local updates, Liu et al. 2024).

A trainer keeps its lanes' replicas when other trainers are lost, and resends pushes that a server
has not applied. A lane of a lost trainer continues from the servers' parameters.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import RENEWED_MESSAGE
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.compression import Feedback, Packed
from daskml_dist.errors import GenerationError
from daskml_dist.ps.messages import ServerReply
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState, copy_array
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.kept_values import kept_values
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context, DevicePlacement
from daskml_dist.training.worker.loops.replicas import make_lane_steps

#: Number of times that a lane checks for an answer between two pushes, so that the delay of an
#: answer is at most an eighth of the steps between pushes.
_LOOKS_PER_PUSH = 8
#: Increment of the pause between two checks of a thread whose lanes all wait, and the longest pause
#: in seconds, which is short compared to a round of many steps.
_PAUSE_SECONDS, _LONGEST_PAUSE = 2e-5, 1e-3
#: Name of the lanes' memories among the values that a run keeps in its process: a trainer that
#: takes over lanes from another trainer of the same process continues with them.
_MEMORY = "decoupled"


def run_decoupled_loop(context: Context) -> ShardState | None:
    """Run all lanes; lane 0's trainer returns its optimizer state (servers hold the parameters)."""
    placement = DevicePlacement(context, alone=True)
    memory: dict[int, LaneMemory] = kept_values(context.run_id).setdefault(_MEMORY, {})
    lane_numbers = {lane.number for lane in context.lanes}
    for number in set(memory) - lane_numbers:  # another trainer has these lanes now
        del memory[number]
    context.set_left_behind(
        lambda: InterruptedState(_leave_state(placement, memory[min(memory)])) if memory else None
    )
    context.run_in_threads(lambda lanes: _run_lanes_of_thread(context, placement, memory, lanes))
    return _leave_state(placement, memory[0]) if 0 in lane_numbers else None


def _leave_state(placement: DevicePlacement, memory: LaneMemory) -> ShardState:
    """Return the state of a lane's replica, on the host."""
    return placement.leave(memory.replica.state())


def _run_lanes_of_thread(
    context: Context, placement: DevicePlacement, memory: dict[int, LaneMemory], lanes: list[Lane]
) -> None:
    """Run the lanes of one compute thread until all are done."""
    connection = context.connect()
    reports = OpenReports(context, connection)
    open_lanes = [
        DecoupledLane(context, placement, memory, connection, reports, lane) for lane in lanes
    ]
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            since, pause = time.monotonic(), 0.0
            while open_lanes and not context.failed:
                context.raise_if_stopped()
                # A lane may wait for the next push of another lane of this thread, or for an answer
                # that follows the answer of another shard, so no lane may block the thread.
                reports.take_answers()
                if any([lane.step() for lane in open_lanes]):
                    since, pause = time.monotonic(), 0.0
                    open_lanes = [lane for lane in open_lanes if not lane.is_done]
                    continue
                context.wait.check(since, "the servers")
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause + _PAUSE_SECONDS)
    finally:
        connection.close()


@dataclass(slots=True)
class _OpenPush:
    """Push without an answer yet, kept to be sent again after a loss."""

    clock: int
    rows: float
    values: NDArray[Any] | None
    packed: Packed | None
    progress: NDArray[np.float64] | None


@dataclass(slots=True)
class _ShardView:
    """State of one shard, as a lane knows it.

    Parameters
    ----------
    origin : array
        Parameters from which the lane's next push measures its progress.
    applied : int
        Clock of the last push that the server has applied.
    feedback : Feedback or None
        Error feedback with the residual of compressed pushes.
    push : _OpenPush or None
        The push that has no answer yet.
    """

    origin: Any
    applied: int
    feedback: Feedback | None
    push: _OpenPush | None = None

    @property
    def last_push_clock(self) -> int:
        """Return the clock of the last push."""
        return self.applied if self.push is None else self.push.clock


@dataclass(slots=True)
class LaneMemory:
    """A lane's replica and its open exchanges, which the next generation continues.

    Parameters
    ----------
    replica : Shard
    clock : int
    views : list of _ShardView
    reported : int
        Number of passes that were reported.
    pending_stretches : list of (int, float, float)
        Stretches of steps that some server does not know of yet: the clock at their end, their rows
        and their summed loss.
    """

    replica: Shard
    clock: int
    views: list[_ShardView]
    reported: int
    pending_stretches: list[tuple[int, float, float]] = field(default_factory=list)
    #: Held while a trainer steps the lane; then the last trainer that took the lane, and its
    #: generation.
    lock: threading.Lock = field(default_factory=threading.Lock)
    owner: object = None
    generation: int = 0

    def take(self, owner: object, generation: int) -> None:
        """Take the lane over from a trainer that may not know of the generation yet."""
        with self.lock:
            if generation < self.generation:
                raise GenerationError(RENEWED_MESSAGE)
            self.owner, self.generation = owner, generation


class OpenReports:
    """Reports of passes by the lanes of one thread, without an answer yet.

    No lane waits for the answers: if the server stops, lanes continue until there is another one.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    """

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        self._context, self._connection = context, connection
        self._lanes: deque[DecoupledLane] = deque()

    def send(self, lane: DecoupledLane, pass_number: int, rows: Lane, w: Any) -> None:
        """Send a lane's report."""
        self._context.send_pass_report(self._connection, pass_number, [rows], [w])
        self._lanes.append(lane)

    def take_answers(self, *, all_of_them: bool = False) -> None:
        """Take the answers that have arrived; or wait for all, before another call is made."""
        while self._lanes and (all_of_them or self._connection.has_answer_to_call()):
            # Calls are answered in order.
            ends = self._context.take_report_answer(self._connection)
            self._lanes.popleft().take_answer(ends)


class DecoupledLane:
    """Steps of one lane, and its exchanges with the servers.

    Parameters
    ----------
    context : Context
    placement : DevicePlacement
    memory : dict of int to LaneMemory
        Memories of the trainer's lanes, also of earlier generations.
    connection : ShardedConnection
    reports : OpenReports
    lane : Lane
    """

    def __init__(
        self,
        context: Context,
        placement: DevicePlacement,
        memory: dict[int, LaneMemory],
        connection: ShardedConnection,
        reports: OpenReports,
        lane: Lane,
    ) -> None:
        self._context, self._placement = context, placement
        self._connection, self._lane = connection, lane
        self._reports = reports
        #: Pass whose report has no answer yet, and an answer not yet processed: whether the fit
        #: ends with that pass.
        self._open_report: int | None = None
        self._answer: bool | None = None
        work, policy = context.fit.work, context.fit.steps.policy
        self._slices = work.layout.slices()
        self._average_every, self._n_fragments = policy.average_every, policy.fragments
        self._in_order = context.fit.run.deterministic
        self._n_steps = work.n_steps
        self._end = work.stopping.max_iter * work.n_steps
        #: Whether a lane waits for an answer before its next push. With a quorum at several shards
        #: this could be a deadlock: lanes would wait for each other at different shards.
        self._waits = len(self._slices) == 1 or policy.quorum is None
        self._left_shards: set[int] = set()
        self._memories = memory
        self._is_new = lane.number not in memory
        self._owner = object()
        #: Mean weight of the lane's rows, which then have mean 1: each lane steps alone.
        self._mean_weight = 1.0
        if context.averages_by_weights:
            self._mean_weight = lane.sum_weights() / max(lane.n_rows, 1)
            lane.divide_weights(self._mean_weight)
        if self._is_new:
            self._make_replica(context.fit.make_start_state())
        memory[lane.number].take(self._owner, context.generation)
        #: Shards that a new generation pulls from first.
        self._joining = range(len(self._slices)) if context.generation else range(0)
        self._attach()
        for s in self._joining:
            connection.pull_from_shard(s, lane.number, self._memory.clock)

    def _make_replica(self, state: ShardState) -> None:
        """Make a new replica at the lane's clock from a state on the host."""
        fit, number = self._context.fit, self._lane.number
        clock, first = self._context.clocks[number], fit.work.first_clock
        state.step += clock - first
        replica = self._placement.make_replica(state, rule=fit.steps.rule.of_independent_lanes)
        compressor, dtype = fit.work.compression, np.dtype(fit.rows.dtype)
        views = [
            _ShardView(
                copy_array(replica.w[rows, ...]),
                clock,
                Feedback(compressor, replica.w[rows, ...].shape, dtype) if compressor else None,
            )
            for rows in self._slices
        ]
        self._memories[number] = LaneMemory(
            replica, clock, views, fit.work.first_pass, owner=self._owner,
            generation=self._context.generation,
        )  # fmt: skip

    def _attach(self) -> None:
        """Continue with the lane from its memory."""
        self._memory = memory = self._memories[self._lane.number]
        self._lane.seek(memory.clock)
        self._lane_steps = make_lane_steps(self._context, self._lane, memory.replica)

    # -- one turn of a lane --------------------------------------------------------------------

    def step(self) -> bool:
        """Do the work that is possible without waiting; return whether there was any."""
        with self._memory.lock:
            if self._memory.owner is not self._owner:
                raise GenerationError(RENEWED_MESSAGE)
            return self._step()

    def _step(self) -> bool:
        """Do the work that is possible without waiting, as the owner of the lane."""
        if self._joining:
            has_answer, number = self._connection.has_answer_of_shard, self._lane.number
            if not all(has_answer(s, number) for s in self._joining):
                return False
            self._join_generation()
        progressed = self._merge_answers()
        self._report_pass()
        memory = self._memory
        for s, view in enumerate(memory.views):
            if view.push is None and self._is_due(s, view):
                view.push = self._make_push(s, view)
                self._send(s, view.push)
                progressed = True
        if memory.clock >= self._end:
            # All passes that were counted are reported before the lane leaves.
            return (self._open_report is None and self._leave_shards()) or progressed
        if self._must_wait():
            return progressed
        self._take_steps()
        return True

    def _must_wait(self) -> bool:
        """Return whether the lane needs an answer before its next step."""
        clock, views = self._memory.clock, self._memory.views
        return any(self._find_latest_merge(s) <= clock for s in range(len(views)))

    @property
    def is_done(self) -> bool:
        """Return whether the lane has made all its steps, and every server has applied them."""
        return len(self._left_shards) == len(self._slices)

    def _find_latest_merge(self, s: int) -> float:
        """Return the clock up to which a lane steps without an answer; infinity: no limit."""
        push = self._memory.views[s].push
        if push is None:
            return math.inf
        if not self._n_fragments:
            return push.clock
        # At a clock that depends on the push alone, so that the fit is the same in each run.
        if self._in_order:
            return push.clock + max(1, self._average_every // self._n_fragments)
        return self._find_next_push(s, push.clock) if self._waits else math.inf

    def _find_next_push(self, s: int, clock: int) -> int:
        """Return the clock of the next push to a shard after `clock`, ignoring the fit's end."""
        # Fragments are spread evenly over the interval; the last one is pushed at its end.
        n = self._n_fragments or 1
        offset = (s * n // len(self._slices) + 1) * self._average_every // n % self._average_every
        return clock + self._average_every - (clock - offset) % self._average_every

    def _take_steps(self) -> None:
        """Make the steps up to the next exchange, the end of the pass, or the next check."""
        memory, (loss, rows, _) = self._memory, self._lane.sums
        clock = memory.clock
        stop_clocks = [self._end, clock + self._n_steps - clock % self._n_steps]
        for s, view in enumerate(memory.views):
            stop_clocks.append(self._find_next_push(s, clock))
            # Steps up to here are repeated for other shards, and must not count twice for this one.
            if view.applied > clock:
                stop_clocks.append(view.applied)
            if view.push is not None and self._in_order:
                stop_clocks.append(int(self._find_latest_merge(s)))
            elif view.push is not None:
                push_interval = self._average_every // self._n_fragments
                stop_clocks.append(clock + max(1, push_interval // _LOOKS_PER_PUSH))
        self._lane_steps.take(min(stop_clocks) - clock)
        self._lane.clock = memory.clock = min(stop_clocks)
        for s, view in enumerate(memory.views):
            # This shard already knows these steps, which another shard lacked, so its progress
            # starts here.
            if memory.clock == view.applied:
                view.origin = copy_array(memory.replica.w[self._slices[s], ...])
        loss, rows = self._lane.sums[0] - loss, self._lane.sums[1] - rows
        # Servers count by pass, so stretches of the same pass are merged.
        sent_clocks = [view.last_push_clock for view in memory.views]
        if memory.pending_stretches and clock % self._n_steps and clock not in sent_clocks:
            _, more_rows, lost = memory.pending_stretches.pop()
            rows, loss = more_rows + rows, lost + loss
        memory.pending_stretches = [
            part for part in memory.pending_stretches if part[0] > min(sent_clocks)
        ]
        memory.pending_stretches.append((memory.clock, rows, loss))

    # -- exchanges -----------------------------------------------------------------------------

    def _is_due(self, s: int, view: _ShardView) -> bool:
        """Return whether a push to a shard is due, or the end is reached."""
        clock = self._memory.clock
        is_turn = clock == self._end or clock == self._find_next_push(s, clock - 1)
        return view.applied < clock and is_turn

    def _make_push(self, s: int, view: _ShardView) -> _OpenPush:
        """Return the push of the lane's progress since the last one, and start the next one."""
        memory, shard_slice = self._memory, self._slices[s]
        memory.replica.apply_pending_penalty()
        w = memory.replica.w[shard_slice, ...]
        parts = [part for part in memory.pending_stretches if part[0] > view.applied]
        # In the mean over lanes, rows count by their weights.
        rows = float(sum(n for _, n, _ in parts)) * self._mean_weight
        # The negative progress serves as a gradient; servers divide the sum of all pushes by their
        # rows.
        negative_progress = self._placement.to_host(view.origin - w)
        values = negative_progress * rows
        for group in memory.replica.rule.groups:
            if group.additive:  # sums are not multiplied by rows
                group_rows = group.part_within(shard_slice.start, shard_slice.stop).rows
                values[group_rows] = negative_progress[group_rows]
        view.origin = copy_array(w)
        packed, progress = None, None
        if s == 0:
            progress = np.array([(view.applied, 0.0, 0.0), *parts], np.float64)
        if view.feedback is not None and rows:
            # The last push includes all of the residual.
            if memory.clock == self._end:
                values, _ = view.feedback.flush(values)
            else:
                packed = view.feedback.pack(values)
        return _OpenPush(
            memory.clock, rows, None if packed is not None else values, packed, progress
        )

    def _send(self, s: int, push: _OpenPush) -> None:
        """Send a push, whose answer is then open."""
        self._connection.push_to_shard(
            s, self._lane.number, push.clock, push.rows, push.values, push.packed, push.progress
        )

    def _merge_answers(self) -> bool:
        """Merge the answers that have arrived; return whether there were any."""
        memory, number, has_answers = self._memory, self._lane.number, False
        for s, view in enumerate(memory.views):
            may_merge = view.push is not None and (
                not self._in_order or memory.clock >= min(self._end, self._find_latest_merge(s))
            )
            if may_merge and self._connection.has_answer_of_shard(s, number):
                self._merge(s, view, self._connection.receive_from_shard(s, number))
                has_answers = True
        return has_answers

    def _merge(self, s: int, view: _ShardView, reply: ServerReply) -> None:
        """Continue from a shard's parameters plus the lane's progress since its push."""
        w = self._memory.replica.w[self._slices[s], ...]
        assert reply.values is not None
        shard_params = self._placement.to_device(reply.values)
        w[...] = shard_params + (w - view.origin)
        view.origin, view.applied, view.push = shard_params, reply.clock, None
        # Dynamic local updates: the number of steps until the lane's next push depends on its
        # speed.
        if s == 0 and reply.n_steps:
            self._average_every = reply.n_steps
        # The fit has ended while this lane was computing.
        if reply.stop:
            self._end = min(self._end, self._memory.clock)

    def _report_pass(self) -> None:
        """Process the answer to the last report, and report the next pass that was counted."""
        memory = self._memory
        if self._open_report is not None and self._answer is not None:
            memory.reported = self._open_report
            if self._answer:
                self._end = min(self._end, memory.clock)
            self._open_report = self._answer = None
        n_counted = memory.views[0].applied // self._n_steps
        if self._open_report is None and memory.reported < n_counted:
            self._open_report = memory.reported + 1
            w = memory.replica.w if self._context.fit.rows.validation_fraction else None
            self._reports.send(self, self._open_report, self._lane, w)

    def take_answer(self, is_last_pass: bool) -> None:
        """Store the answer to the open report, which the lane's next turn processes."""
        self._answer = is_last_pass

    def _leave_shards(self) -> bool:
        """Leave the servers that have applied everything; return whether there were any."""
        has_left = False
        self._reports.take_answers(all_of_them=True)
        for s, view in enumerate(self._memory.views):
            # Without delay, since other lanes may wait for a quorum there.
            if view.push is None and s not in self._left_shards:
                self._connection.leave_shard(s, self._lane.number)
                self._left_shards.add(s)
                has_left = True
        return has_left

    def _join_generation(self) -> None:
        """Continue from the servers' present state, with the lane's memory."""
        number = self._lane.number
        replies = [self._connection.receive_from_shard(s, number) for s in self._joining]
        self._joining = range(0)
        views = self._memory.views
        is_known = [
            reply.clock in (view.applied, view.last_push_clock)
            for view, reply in zip(views, replies, strict=True)
        ]
        # A server that had to go back no longer has the state on which the lane was based.
        if not (self._is_new or all(is_known)):
            self._make_replica(self._context.fit.make_start_state())
            self._attach()
            views = self._memory.views
        # Reports may have been lost with a trainer or a server; repeated ones are ignored.
        self._reports.take_answers(all_of_them=True)
        self._memory.reported = int(self._connection.call("count_passes")["passes"])
        for s, (view, reply) in enumerate(zip(views, replies, strict=True)):
            if view.push is not None and reply.clock != view.push.clock:
                self._send(s, view.push)  # it was lost with the open round
            else:
                self._merge(s, view, reply)
