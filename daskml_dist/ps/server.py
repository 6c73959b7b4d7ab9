"""State machine of a parameter server: one shard under one policy, and the pass ledger.

It never blocks. Each call passes a function that takes the answer. That function is called
immediately, or later by the call that makes the answer possible. Transports and the Dask actor only
carry messages.

At regular intervals of updates a server makes a snapshot of itself for its *standby*, a server on
another worker that only keeps snapshots. A new generation continues from the present state, or from
one of these snapshots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.host_threads import flush_denormals
from daskml_dist.compression import Compressor
from daskml_dist.policies.base import Consistency
from daskml_dist.ps.gradient_table import GradientTable, TableEntry
from daskml_dist.ps.growing_shard import GrowingShard
from daskml_dist.ps.ledger import PassLedger, PassReport
from daskml_dist.ps.messages import (
    CallPayload,
    CallReply,
    ServerReply,
    ServerRequest,
    ServerStatus,
    sum_in_lane_order,
)
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.ps.snapshots import (
    KEPT_SNAPSHOTS,
    AvailableSnapshots,
    ServerSnapshot,
    ShipSnapshot,
    SnapshotStore,
    standby_generation,
)


class ShardServer:
    """Server of one shard, with its policy's gate and, on the first server of a fit, the ledger.

    Thread-safe: every public method takes the lock.

    Parameters
    ----------
    policy : Consistency
    lanes : list of int
    shard : Shard or None
        None if the policy keeps the parameters in the trainers.
    ledger : PassLedger or None
        Present on the first server of a fit.
    n_trainers : int
        Trainers that must have arrived before any may start.
    generation : int
        Current generation; for a standby, that of `standby_generation`.
    clock : int
        Clock at which the lanes start.
    n_steps : int
        Steps of a lane in one pass.
    compression : Compressor or None
        Compression that trainers apply to their pushes.
    get_snapshot_clocks : int
        Number of snapshots that are kept.
    """

    def __init__(
        self,
        policy: Consistency,
        lanes: list[int],
        shard: Shard | None,
        ledger: PassLedger | None,
        n_trainers: int,
        generation: int = 0,
        clock: int = 0,
        n_steps: int = 1,
        compression: Compressor | None = None,
        max_snapshots: int = KEPT_SNAPSHOTS,
    ) -> None:
        self.generation = generation
        self.shard = shard
        self.ledger = ledger
        self._policy = policy
        self._state = ServerState(policy, lanes, shard, ledger, clock, n_steps, max_snapshots)
        self._snapshots = self._state.snapshots
        self._n_lanes = len(lanes)
        self._n_trainers = n_trainers
        self._compression = compression
        self._callers = WaitingCallers()
        self._aborted: str | None = None
        self._paused = False
        #: Timer for pushes that become due with time; None if there are none.
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    @property
    def most_answer_bytes(self) -> int:
        """Return the most bytes of parameters in one answer to every lane."""
        return 0 if self.shard is None else self.shard.w.nbytes * self._n_lanes

    @property
    def is_shared(self) -> bool:
        """Return whether several lanes use the server."""
        return self._n_lanes > 1

    @property
    def dropped(self) -> int:
        """Return the number of pushes that were dropped, since they were late or repeated."""
        return self._state.dropped

    @property
    def is_over(self) -> bool:
        """Return whether the server now refuses all messages permanently."""
        return self._aborted is not None

    # -- steps ---------------------------------------------------------------------------------

    def exchange(self, request: ServerRequest, reply: Callable[[ServerReply], None]) -> None:
        """Handle a push and/or a pull; `reply` is called once the policy releases the lanes."""
        if request.packed is not None:
            self._decompress_push(request)  # without the lock: others can push meanwhile
        with self._lock:
            refusal = self._find_refusal(request.generation)
            if refusal is None:
                if request.values is not None:
                    self._state.accept(request)
                    self._call_when_due()
                if request.pull:
                    self._callers.pulls.append((request, reply))
                ready = self._release_callers()
        if refusal is not None:
            if request.pull:
                reply(ServerReply(request.lanes[0], refusal))
            return
        for answer in ready:
            answer()

    def _call_when_due(self) -> None:
        """Start a timer if pushes become due with time; the caller holds the lock."""
        seconds = self._state.seconds_to_due()
        if seconds is not None and self._timer is None:
            self._timer = threading.Timer(seconds, self._apply_late)
            self._timer.daemon = True
            self._timer.start()

    def _apply_late(self) -> None:
        """Apply the pushes that have become due; runs in the timer's thread."""
        ready: ReadyAnswers = []
        with self._lock:
            self._timer = None
            if not (self.is_over or self._paused):
                self._state.apply_due()
                ready = self._release_callers()
                self._call_when_due()
        for answer in ready:
            answer()

    def _decompress_push(self, request: ServerRequest) -> None:
        """Decompress the values of a push."""
        assert self.shard is not None
        assert self._compression is not None
        assert request.packed is not None
        n_rows, width = self.shard.w.shape
        # If the push covers only some rows, it has the values of only these.
        n_rows = n_rows if request.index is None else len(request.index)
        request.values = np.empty((n_rows, width), dtype=self.shard.w.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            self._compression.decompress(request.packed, request.values.reshape(-1))
        request.packed, request.owned = None, True

    def _find_refusal(self, generation: int) -> ServerStatus | None:
        """Return why a message of a generation is refused; None if it is accepted."""
        if self._aborted is not None:
            return ServerStatus.ABORTED
        # A message of an earlier generation may come from lanes that have moved, or from before the
        # state that the fit was reset to.
        if generation != self.generation or self._paused:
            return ServerStatus.STALE_GENERATION
        return None

    def _release_callers(self) -> ReadyAnswers:
        """Return the answers to all callers that need not wait any longer."""
        # Lanes wait while the standby is behind; otherwise a loss would discard more steps than are
        # kept.
        if self.is_over or self._paused or self._snapshots.is_behind:
            return []
        ready, waiting = self._callers.stored(), []
        # Any call may change which lanes the policy releases, so all waiting pulls are checked
        # again.
        for request, reply in self._callers.pulls:
            if self._state.may_answer(request):
                ready.append(partial(reply, self._state.answer(request)))
            else:
                waiting.append((request, reply))
        self._callers.pulls = waiting
        return ready

    # -- control -------------------------------------------------------------------------------

    def call(self, op: str, payload: CallPayload, reply: CallReply) -> None:
        """Handle a control call; `reply` gets the answer immediately, or once all have called."""
        with self._lock:
            refusal = self._find_refusal(payload["generation"])
            if refusal is not None:
                ready: ReadyAnswers = [partial(reply, {"status": int(refusal)})]
            else:
                ready = getattr(self, f"_on_{op}")(payload, reply)
        for answer in ready:
            answer()

    def _on_rendezvous(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Register the arrival of a trainer; all are answered once all have arrived."""
        ready = self._callers.add_arrival(payload["rank"], payload["info"], reply, self._n_trainers)
        # Later generations continue with the running clock.
        if ready and self.ledger is not None and self.generation == 0:
            self.ledger.start_clock()
        return ready

    def _on_report(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Take a report on a pass; in lock-step, all are answered once the pass is closed."""
        ledger, number = self.ledger, payload["pass"]
        assert ledger is not None
        ledger.report(number, PassReport(**payload["report"]))
        if self._policy.lockstep:
            return self._callers.end_pass(number, reply, ledger)
        return [partial(reply, _make_ok_answer(stop=ledger.ends_with(number)))]

    def _on_count_passes(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Return the number of passes that all lanes have reported."""
        assert self.ledger is not None
        return [partial(reply, _make_ok_answer(passes=self.ledger.n_passes))]

    def _on_report_sums(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Take the sums over all lanes for several passes, from pass number `first` on."""
        ledger = self.ledger
        assert ledger is not None
        lanes, first, sums = ledger.lanes, payload["first"], payload["sums"]
        for number, (loss, rows, n_sent, n_received, *scores, age) in enumerate(sums, first):
            report = PassReport(lanes, loss, rows, 1, int(n_sent), int(n_received), scores=scores)
            ledger.report(number, report, age)
        return [partial(reply, _make_ok_answer(stop=ledger.ends_with(first + len(sums) - 1)))]

    def _on_leave(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Remove lanes, so that no other lane waits for them."""
        self._state.leave(payload["lanes"])
        ready: ReadyAnswers = [partial(reply, _make_ok_answer())]
        if self.shard is not None:
            ready += self._release_callers()
        return ready

    def _on_store(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Take snapshots of lanes that trainers hold; complete once all lanes' are stored."""
        self._snapshots.store(payload["clock"], payload["blob"], self.ledger)
        self._callers.at_store.append(reply)
        return self._release_callers()

    def _on_restore(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Return the lanes' snapshots from which this generation continues; empty at the start.

        If the call names lanes, only their snapshots are returned.
        """
        lanes = self._snapshots.lanes
        if "lanes" in payload:
            lanes = {n: lanes[n] for n in payload["lanes"] if n in lanes}
        return [partial(reply, _make_ok_answer(blob=lanes))]

    def _on_hold(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Store the rows that trainers hold, in case all trainers are lost."""
        self._growing_shard.held = payload["blob"]
        return [partial(reply, _make_ok_answer())]

    def _on_take_held(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Return the rows that trainers hold, as they were last stored."""
        return [partial(reply, _make_ok_answer(blob=self._growing_shard.held))]

    @property
    def _growing_shard(self) -> GrowingShard:
        """Return the shard of a growing table."""
        assert isinstance(self.shard, GrowingShard)
        return self.shard

    def _on_apply_pending_penalty(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Apply the pending penalty of parameters that no gradient has touched."""
        if self.shard is not None:
            self.shard.apply_pending_penalty()
        return [partial(reply, _make_ok_answer())]

    def _on_keep(self, payload: CallPayload, reply: CallReply) -> ReadyAnswers:
        """Keep a snapshot of the server that this standby belongs to."""
        # The standby also keeps the records of finished passes; snapshots only contain their
        # number.
        snapshot, records = payload["blob"]
        self._keep(snapshot)
        if self.ledger is not None:
            self.ledger.records[payload["first"] :] = records
        return [partial(reply, _make_ok_answer())]

    # -- snapshots --------------------------------------------------------------------------------

    def make_snapshots(self, ship: ShipSnapshot | None, interval: int = 1) -> None:
        """Make a snapshot every `interval` updates from now on, keep it, and pass it to `ship`.

        `ship` must not block, and :meth:`shipped` must be called once the standby has the snapshot.
        If it is None, the snapshots are only kept here.
        """
        with self._lock:
            self._state.begin_snapshots(ship, interval)
            ready = self._release_callers()
        for answer in ready:
            answer()

    def stop_shipping(self, ship: ShipSnapshot) -> None:
        """Stop passing snapshots to `ship`, unless it was replaced by another function."""
        with self._lock:
            if self._snapshots.ships_to(ship):
                self._snapshots.drop_standby()
            ready = self._release_callers()
        for answer in ready:
            answer()

    def shipped(self) -> None:
        """Count a snapshot that the standby has received."""
        with self._lock:
            self._snapshots.shipped()
            ready = self._release_callers()
        for answer in ready:
            answer()

    def last_snapshot(self) -> ServerSnapshot | None:
        """Return a snapshot of the present state, or else the lanes' last snapshot."""
        with self._lock:
            return (
                self._snapshots.recent_snapshots.last
                if self.shard is None
                else self._state.snapshot()
            )

    def get_snapshot_clocks(self) -> dict[int, dict[int, int]]:
        """Return the clocks of each kept snapshot, by its place."""
        with self._lock:
            return self._snapshots.recent_snapshots.clocks

    def snapshot_at(self, position: int) -> tuple[ServerSnapshot, list[Any]] | None:
        """Return a kept snapshot and its records; None if it is not kept any more."""
        with self._lock:
            snapshot = self._snapshots.recent_snapshots.get(position)
            if snapshot is None:
                return None
            n_records = snapshot.ledger.n_records if snapshot.ledger is not None else 0
            if self.shard is not None and snapshot.shard is not None:
                shard_snapshot = self.shard.whole_snapshot(position, snapshot.shard)
                snapshot = replace(snapshot, shard=shard_snapshot)
            return snapshot, [] if self.ledger is None else self.ledger.records[:n_records]

    def _keep(self, snapshot: ServerSnapshot) -> None:
        """Keep a snapshot of another server."""
        snapshots = self._snapshots.recent_snapshots
        if self.shard is not None and snapshot.shard is not None:
            table = snapshot.shard.table
            if table is not None and table.since < 0:
                snapshots.clear()  # all rows are replaced, so those of earlier places are lost
            self.shard.follow(snapshot.position, snapshot.shard, snapshots.max_snapshots)
        snapshots.add(snapshot.without_table())

    def take(self, snapshot: ServerSnapshot, records: list[Any]) -> None:
        """Keep a snapshot that another server made."""
        with self._lock:
            self._keep(snapshot)
            if self.ledger is not None:
                self.ledger.records[:] = records

    # -- the client ----------------------------------------------------------------------------

    def pause(self, generation: int) -> AvailableSnapshots:
        """Refuse messages of earlier generations; return the states to continue from.

        All waiting callers get the answer that their generation is stale.
        """
        with self._lock:
            # A standby, or a server without parameters, can only continue from snapshots.
            place = None
            clocks = self._snapshots.recent_snapshots.clocks
            if self.shard is not None and self.generation >= 0:
                place = self._state.find_position()
                clocks[place] = self._state.clocks()
            self.generation, self._paused = generation, True
            self._snapshots.begin_snapshots(None, 0)  # no snapshots are made from now on
            ready = self._callers.refuse(ServerStatus.STALE_GENERATION)
        for answer in ready:
            answer()
        return AvailableSnapshots(place, clocks)

    def renew(
        self,
        generation: int,
        lanes: Iterable[int],
        n_trainers: int | None = None,
        position: int | None = None,
    ) -> None:
        """Begin a new generation: open rounds are dropped, lanes continue from their clocks."""
        with self._lock:
            self.generation, self._paused = generation, False
            self._n_trainers = n_trainers or self._n_trainers
            self._state.renew(lanes, position)
            self._call_when_due()
            self._callers.renew()
            ready = self._callers.refuse(ServerStatus.STALE_GENERATION)
        for answer in ready:
            answer()

    def stand_by(self, generation: int) -> None:
        """From now on, keep snapshots of the server of a new generation."""
        with self._lock:
            self.generation, self._paused = standby_generation(generation), False

    def abort(self, reason: str) -> None:
        """Refuse all messages from now on, and answer all waiting callers."""
        with self._lock:
            # Only the first reason is kept.
            if self._aborted is not None:
                return
            self._aborted = reason
            self._snapshots.drop_standby()
            ready = self._callers.refuse(ServerStatus.ABORTED)
        for answer in ready:
            answer()

    def stop(self) -> None:
        """End the fit with the pass that is open."""
        with self._lock:
            if self.ledger is not None:
                self.ledger.stop()

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        """Adapt feature scales to rows of larger values; see :meth:`Shard.rescale`."""
        with self._lock:
            if self.shard is not None:
                self.shard.rescale(largest, norm)

    def state(self) -> ShardState | None:
        """Return a copy of the shard's state, penalties applied."""
        with self._lock:
            return None if self.shard is None else self.shard.state()


#: Answers that are ready. They are sent without the server's lock, since a reply may take long, or
#: call the server again.
ReadyAnswers = list[Callable[[], Any]]


def _make_ok_answer(**answer: Any) -> CallPayload:
    """Return the answer to a successful control call."""
    return {"status": int(ServerStatus.OK), **answer}


class WaitingCallers:
    """Callers whose answers a server holds back until its state releases them.

    Not thread-safe: the server that owns it holds a lock.
    """

    def __init__(self) -> None:
        #: Pulls, until the policy releases their lanes.
        self.pulls: list[tuple[ServerRequest, Callable[[ServerReply], None]]] = []
        #: Trainers that store snapshots, until the standby has the previous ones.
        self.at_store: list[CallReply] = []
        self._arrived: dict[int, Any] = {}
        self._at_rendezvous: list[CallReply] = []
        self._at_pass_end: list[tuple[int, CallReply]] = []

    def add_arrival(self, rank: int, info: Any, reply: CallReply, n_trainers: int) -> ReadyAnswers:
        """Register a trainer at a rendezvous; once all have arrived, each gets the others' info.

        A rendezvous may be repeated as often as needed.
        """
        self._arrived[rank] = info
        self._at_rendezvous.append(reply)
        # No trainer is answered before all have arrived, so that none waits for one that was never
        # started.
        if len(self._arrived) < n_trainers:
            return []
        peers = [self._arrived[rank] for rank in sorted(self._arrived)]
        self._arrived.clear()
        waiting, self._at_rendezvous = self._at_rendezvous, []
        return [partial(r, _make_ok_answer(peers=peers)) for r in waiting]

    def end_pass(self, pass_number: int, reply: CallReply, ledger: PassLedger) -> ReadyAnswers:
        """Register a lane's trainer that ended a pass; all are answered once the pass is closed."""
        self._at_pass_end.append((pass_number, reply))
        closed = [(n, r) for n, r in self._at_pass_end if ledger.is_closed(n)]
        self._at_pass_end = [(n, r) for n, r in self._at_pass_end if not ledger.is_closed(n)]
        return [partial(r, _make_ok_answer(stop=ledger.ends_with(n))) for n, r in closed]

    def stored(self) -> ReadyAnswers:
        """Return the answers to trainers that have stored snapshots."""
        ready: ReadyAnswers = [partial(reply, _make_ok_answer()) for reply in self.at_store]
        self.at_store = []
        return ready

    def refuse(self, status: ServerStatus) -> ReadyAnswers:
        """Return the same answer to all waiting callers."""
        ready: ReadyAnswers = [
            partial(reply, ServerReply(request.lanes[0], status)) for request, reply in self.pulls
        ]
        calls = [*self._at_rendezvous, *(reply for _, reply in self._at_pass_end), *self.at_store]
        ready += [partial(reply, {"status": int(status)}) for reply in calls]
        self.pulls, self.at_store = [], []
        self._at_rendezvous, self._at_pass_end = [], []
        return ready

    def renew(self) -> None:
        """Forget all arrivals: in a new generation, all trainers arrive again."""
        self._arrived.clear()


class ServerState:
    """State of a server from which it can continue; makes snapshots when they are due.

    Not thread-safe: the server that owns it holds a lock.

    Parameters
    ----------
    policy : Consistency
    lanes : list of int
    shard : Shard or None
    ledger : PassLedger or None
    clock : int
        Clock at which the lanes start.
    n_steps : int
        Steps of a lane in one pass.
    max_snapshots : int
        Number of snapshots that are kept.
    """

    def __init__(
        self,
        policy: Consistency,
        lanes: list[int],
        shard: Shard | None,
        ledger: PassLedger | None,
        clock: int,
        n_steps: int,
        max_snapshots: int,
    ) -> None:
        # Kept lanes build on an answer, so an answer must not be lost with this server.
        self.snapshots = SnapshotStore(len(lanes), max_snapshots, before_answers=policy.keeps_lanes)
        #: Pushes that were late or repeated.
        self.dropped = 0
        self._policy = policy
        self._shard = shard
        self._ledger = ledger
        self._gate = policy.gate(lanes, clock)
        self._n_steps = n_steps
        #: Clocks of lanes that have left.
        self._departed_clocks: dict[int, int] = {}
        self._pending: dict[int, ServerRequest] = {}
        self._gradients = GradientTable() if policy.gradient_table else None
        #: Rows (None: all) and parameters that each lane pulled last, if delays are corrected.
        self._pulled: dict[int, tuple[NDArray[np.int64] | None, NDArray[Any]]] = {}

    # -- steps ---------------------------------------------------------------------------------

    def accept(self, request: ServerRequest) -> None:
        """Take a push, and apply all pushes that it makes due."""
        if self._policy.loop == "shared":
            self._accept_change(request)
            return
        # The policy's gate records the push of each lane; it refuses clocks that it has seen
        # before.
        is_accepted = [self._gate.push(lane, request.clock) for lane in request.lanes]
        if not all(is_accepted):
            self.dropped += 1
            return
        self._pending[request.lanes[0]] = request
        self.apply_due()

    def seconds_to_due(self) -> float | None:
        """Return the seconds until pushes become due without a new one; None if they do not."""
        return self._gate.seconds_to_due()

    def apply_due(self) -> None:
        """Apply the pushes that are due according to the policy's gate."""
        # A push may complete a round, after which the next round may be due as well.
        while group := self._gate.pop_due_lanes():
            pushes = [self._pending.pop(lane) for lane in group if lane in self._pending]
            if pushes:
                # One step along the sum of the pushes.
                shard = self._shard
                assert shard is not None
                with flush_denormals(shard.rule.flushes):
                    self._step_shard(shard, pushes)
                self._snapshot_when_due(shard.version)

    def _step_shard(self, shard: Shard, pushes: list[ServerRequest]) -> None:
        """Step the shard along the sum of pushes, and count them in the ledger."""
        # Updates applied since the oldest of these gradients was computed.
        staleness = max(shard.version - push.version for push in pushes)
        applies = self._policy.applies(staleness, len(self._gate.clocks))
        rows = sum(push.rows for push in pushes) if applies else 0.0
        if self._ledger is not None:
            self._ledger.observe_staleness(staleness)
            self._count_pushes(self._ledger, pushes, applies)
        if not applies:
            # Ringmaster ASGD: the lane's step counts, but its gradient is dropped.
            self.dropped += 1
            return
        if self._policy.delay_compensation:
            for push in pushes:
                if push.rows and staleness:
                    self._compensate_delay(shard, push)
        # The pushes of a round make one step of their sum, in lane order, independent of arrival.
        index, total = sum_in_lane_order(
            [(p.lanes[0], p.index, p.values) for p in pushes if p.values is not None],
            {p.lanes[0] for p in pushes if p.owned},
        )
        if self._gradients is not None:
            entry = TableEntry(index, total, rows)
            step = self._gradients.add(pushes[0].lanes[0], entry, self._gate.clocks)
            if step is None:
                return
            index, total, rows = step.index, step.values, step.rows
        shard.apply(total, rows, index, shard.rule.schedule.scale(staleness))

    def _count_pushes(self, ledger: PassLedger, pushes: list[ServerRequest], applies: bool) -> None:
        """Count the steps of pushes in their passes, with rows and losses if they are applied."""
        if pushes[0].progress is None:
            rows = sum(push.rows for push in pushes) if applies else 0.0
            loss = sum(push.loss for push in pushes) if applies else 0.0
            ledger.count(self._find_pass(pushes[0].clock), rows, loss, 1)
            return
        # Lanes that step independently may be in different passes, and a push may span several.
        for push in pushes:
            assert push.progress is not None
            (clock, _, _), *parts = push.progress.tolist()
            for push_clock, rows, loss in parts:
                ledger.count(self._find_pass(int(push_clock)), rows, loss, int(push_clock - clock))
                clock = push_clock

    def _compensate_delay(self, shard: Shard, push: ServerRequest) -> None:
        """Correct a gradient for the updates since its lane pulled (Zheng et al. 2017, eq. 10)."""
        index, old = self._pulled[push.lanes[0]]
        assert push.values is not None
        # For a sparse batch, only its own rows were pulled.
        change = (shard.w if index is None else shard.w[index]) - old
        # For a sum of n gradients with mean g: n (g + c g * g * change).
        correction = push.values * push.values * change
        shard.clear_means_and_sums(correction, index)
        push.values = push.values + self._policy.delay_compensation / push.rows * correction
        push.owned = True

    def _accept_change(self, request: ServerRequest) -> None:
        """Add changes that a trainer's threads made in their own replica (``"hogwild"``)."""
        shard, progress = self._shard, request.progress
        assert shard is not None
        assert progress is not None
        assert request.values is not None
        staleness = shard.version - request.version
        if self._ledger is not None:
            self._ledger.observe_staleness(staleness)
        n_steps = 0
        for lane, (clock, rows, loss) in zip(request.lanes, progress.tolist(), strict=True):
            # Hogwild: one message reports the steps of several lanes in a shared replica. Steps
            # that an earlier message reported do not count again.
            steps = int(clock) - self._gate.clock(lane)
            if steps <= 0:
                continue
            self._gate.join(lane, int(clock))
            n_steps += steps
            if self._ledger is not None:
                self._ledger.count(self._find_pass(int(clock)), rows, loss, steps)
        with flush_denormals(shard.rule.flushes):
            shard.add(request.values, request.rows, request.index, n_steps)
        self._snapshot_when_due(shard.version)

    def _find_pass(self, clock: int) -> int:
        """Return the pass (from 1) to which a clock belongs."""
        return (clock - 1) // self._n_steps + 1

    def may_answer(self, request: ServerRequest) -> bool:
        """Return whether the policy allows the lanes of a pull to start their next step."""
        # A lane that joins a generation needs the server's state, even if its own push is in an
        # open round that still waits for other lanes.
        joins = self._policy.keeps_lanes and request.values is None
        return joins or self._gate.may_all_proceed(request.lanes)

    def answer(self, request: ServerRequest) -> ServerReply:
        """Return the reply to a pull whose lanes may continue."""
        shard = self._shard
        assert shard is not None
        # All rows: one immutable copy shared by all lanes. Some rows: indexing copies them in any
        # case.
        values = shard.published() if request.pull_index is None else shard.take(request.pull_index)
        lane = request.lanes[0]
        if self._policy.delay_compensation:
            self._pulled[lane] = request.pull_index, values
        stop = self._ledger is not None and self._ends_for(self._ledger, request)
        return ServerReply(
            lane, ServerStatus.OK, stop, shard.version, self._gate.clock(lane), values,
            n_steps=self._gate.count_steps(lane),
        )  # fmt: skip

    def _ends_for(self, ledger: PassLedger, request: ServerRequest) -> bool:
        """Return whether the fit has ended for the lanes of a pull."""
        # Threads that share memory count the passes of their messages themselves.
        if self._policy.loop == "shared":
            return ledger.stopped
        return ledger.ends_with(request.clock // self._n_steps)

    def leave(self, lanes: Iterable[int]) -> None:
        """Remove lanes, so that no other lane waits for them."""
        for lane in lanes:
            self._departed_clocks[lane] = self._gate.clock(lane)
            self._gate.leave(lane)
        if self._shard is not None:
            self.apply_due()

    # -- snapshots --------------------------------------------------------------------------------

    def begin_snapshots(self, ship: ShipSnapshot | None, interval: int) -> None:
        """Make a snapshot now and every `interval` updates; else ship the lanes' last one."""
        self.snapshots.begin_snapshots(ship, interval)
        if self._shard is not None:
            self._add_snapshot(is_complete=True)  # for a new standby
        else:
            self.snapshots.ship_last_snapshot()

    def _snapshot_when_due(self, version: int) -> None:
        """Make a snapshot if one is due after an update."""
        if self.snapshots.is_due(version):
            self._add_snapshot(is_complete=False)

    def _add_snapshot(self, is_complete: bool) -> None:
        """Make a snapshot, keep it and ship it."""
        self.snapshots.add(self.snapshot(is_complete))

    def snapshot(self, is_complete: bool = False) -> ServerSnapshot:
        """Return a snapshot of clocks, ledger and shard; of a table only its latest changes.

        A whole table would replace all snapshots of the standby, one of which may be the only
        common one from which this server and the others can continue together.
        """
        assert self._shard is not None
        place = self.find_position()
        shard = self._shard.snapshot_at(
            place, self.snapshots.recent_snapshots.max_snapshots, is_complete
        )
        ledger = None if self._ledger is None else self._ledger.snapshot()
        return ServerSnapshot(place, self.clocks(), shard, ledger)

    def find_position(self) -> int:
        """Return the place of the present state among the snapshots."""
        assert self._shard is not None
        if self._policy.lockstep:
            return max(self.clocks().values())
        return self._shard.version

    def clocks(self) -> dict[int, int]:
        """Return the clocks of all lanes."""
        clocks = {lane: self._gate.clock(lane) for lane in self._gate.clocks}
        return {**self._departed_clocks, **clocks}

    # -- generations ---------------------------------------------------------------------------

    def renew(self, lanes: Iterable[int], position: int | None) -> None:
        """Continue from the present state, or a place's snapshot; open rounds are dropped.

        Exception: pushes of lanes that resend them until they are applied are kept. Otherwise no
        round would ever complete if workers come and go faster than a round takes.
        """
        kept_pushes = self._pending if position is None and self._policy.keeps_lanes else {}
        clocks = self.clocks() if position is None else self._restore_snapshot(position)
        # In lock-step, a lane that returns joins the others' round.
        first = (max if self._policy.lockstep else min)(clocks.values(), default=0)
        # A new gate drops the open rounds; every lane joins at the clock from which it continues.
        self._gate = self._policy.gate((), first)
        for lane in lanes:
            self._gate.join(lane, clocks.get(lane, first))
        self._departed_clocks.clear()
        self._pending = {
            n: push for n, push in kept_pushes.items() if self._gate.push(n, push.clock)
        }
        self._pulled.clear()
        if self._gradients is not None:
            self._gradients = GradientTable()
        self.snapshots.renew()
        if self._ledger is not None:
            self._ledger.renew()
        self.apply_due()

    def _restore_snapshot(self, position: int) -> dict[int, int]:
        """Restore the snapshot of a place; return the lanes' clocks in it."""
        snapshot = self.snapshots.recent_snapshots[position]
        if snapshot.shard is not None:
            assert self._shard is not None
            self._shard.go_back(position, snapshot.shard)
        if snapshot.ledger is not None:
            assert self._ledger is not None
            self._ledger.restore(snapshot.ledger)
        self.snapshots.go_back_to(snapshot)
        return snapshot.clocks
