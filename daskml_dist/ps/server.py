"""The parameter server's state machine: one shard under one policy, and the pass ledger.

It never blocks. Each call hands over a function that takes the answer, called at once or later
by whichever call made the answer possible. Transports and the Dask actor only carry messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from numpy.typing import NDArray

from daskml_dist.policies import Policy
from daskml_dist.ps.ledger import PassLedger, PassReport
from daskml_dist.ps.messages import Call, CallReply, Reply, Request, Status, sum_in_lane_order
from daskml_dist.ps.shard import Shard, ShardState

__all__ = ["ParameterServer"]

_Waiting = tuple[Request, Callable[[Reply], None]]
#: Answers that are ready; given once the lock is free again.
_Ready = list[Callable[[], Any]]


class ParameterServer:
    """One shard, its policy's gate and (on the first server of a fit) the ledger.

    Thread-safe: every public method takes the lock.

    Parameters
    ----------
    policy : Policy
    lanes : list of int
    shard : Shard or None
        None where the policy keeps the parameters in the trainers.
    ledger : PassLedger or None
        Present on the first server of a fit.
    n_trainers : int
        Trainers that must have arrived before any may start.
    generation : int
    clock : int
        Clock at which the lanes start.
    """

    def __init__(
        self,
        policy: Policy,
        lanes: list[int],
        shard: Shard | None,
        ledger: PassLedger | None,
        n_trainers: int,
        generation: int = 0,
        clock: int = 0,
    ) -> None:
        self.generation = generation
        self.shard = shard
        self.ledger = ledger
        self.dropped = 0
        self._policy = policy
        self._gate = policy.gate(lanes, clock)
        self._n_lanes = len(lanes)
        self._n_trainers = n_trainers
        self._pending: dict[int, Request] = {}
        self._waiting: list[_Waiting] = []
        self._arrived: dict[int, Any] = {}
        self._at_rendezvous: list[CallReply] = []
        self._at_pass_end: list[tuple[int, CallReply]] = []
        self._aborted: str | None = None
        self._lock = threading.Lock()

    @property
    def most_answer_bytes(self) -> int:
        """Bytes of parameters in the answers to all lanes at once, at most."""
        return 0 if self.shard is None else self.shard.w.nbytes * self._n_lanes

    # -- steps ---------------------------------------------------------------------------------

    def exchange(self, request: Request, reply: Callable[[Reply], None]) -> None:
        """Take a push and/or a pull; `reply` gets the answer once the policy lets the lanes go.

        Parameters
        ----------
        request : Request
        reply : callable
            Called once with a :class:`Reply` if ``request.pull``, from any thread.
        """
        with self._lock:
            refusal = self._refusal(request.generation)
            if refusal is None:
                if request.values is not None:
                    self._accept(request)
                if request.pull:
                    self._waiting.append((request, reply))
                ready = self._released()
        if refusal is not None:
            if request.pull:
                reply(Reply(request.lanes[0], refusal))
            return
        for answer in ready:
            answer()

    def _refusal(self, generation: int) -> Status | None:
        if self._aborted is not None:
            return Status.ABORTED
        return None if generation == self.generation else Status.STALE_GENERATION

    def _accept(self, request: Request) -> None:
        accepted = [self._gate.push(lane, request.clock) for lane in request.lanes]
        if not all(accepted):
            self.dropped += 1
            return
        self._pending[request.lanes[0]] = request
        self._apply_due()

    def _apply_due(self) -> None:
        while group := self._gate.due():
            pushes = [self._pending.pop(lane) for lane in group if lane in self._pending]
            if pushes:
                self._apply(pushes)

    def _apply(self, pushes: list[Request]) -> None:
        shard = self.shard
        assert shard is not None
        staleness = max(shard.version - push.version for push in pushes)
        if self.ledger is not None:
            self.ledger.observe_staleness(staleness)
        rows = sum(push.rows for push in pushes)
        index, total = sum_in_lane_order(
            [(p.lanes[0], p.index, p.values) for p in pushes if p.values is not None]
        )
        if self._policy.loop == "shared":
            shard.add(total, rows)
        else:
            shard.apply(total, rows, index, shard.rule.schedule.scale(staleness))

    def _released(self) -> _Ready:
        ready: _Ready = []
        still = []
        for request, reply in self._waiting:
            if all(self._gate.may_go(lane) for lane in request.lanes):
                ready.append(partial(reply, self._answer(request)))
            else:
                still.append((request, reply))
        self._waiting = still
        return ready

    def _answer(self, request: Request) -> Reply:
        shard = self.shard
        assert shard is not None
        values = shard.snapshot() if request.pull_index is None else shard.w[request.pull_index]
        lane = request.lanes[0]
        stop = self.ledger is not None and self.ledger.stopped
        return Reply(lane, Status.OK, stop, shard.version, self._gate.clock(lane), values)

    # -- control -------------------------------------------------------------------------------

    def call(self, op: str, payload: Call, reply: CallReply) -> None:
        """Take a control call; `reply` gets the answer, at once or once all have called.

        Parameters
        ----------
        op : {"rendezvous", "report", "leave"}
        payload : dict
            JSON values, ``generation`` among them.
        reply : callable
        """
        with self._lock:
            refusal = self._refusal(payload["generation"])
            if refusal is not None:
                ready: _Ready = [partial(reply, {"status": int(refusal)})]
            else:
                ready = getattr(self, f"_on_{op}")(payload, reply)
        for answer in ready:
            answer()

    def _on_rendezvous(self, payload: Call, reply: CallReply) -> _Ready:
        self._arrived[payload["rank"]] = payload["info"]
        self._at_rendezvous.append(reply)
        if len(self._arrived) < self._n_trainers:
            return []
        if self.ledger is not None:
            self.ledger.start_clock()
        peers = [self._arrived[rank] for rank in sorted(self._arrived)]
        waiting, self._at_rendezvous = self._at_rendezvous, []
        return [partial(r, _ok(peers=peers)) for r in waiting]

    def _on_report(self, payload: Call, reply: CallReply) -> _Ready:
        ledger = self.ledger
        assert ledger is not None
        ledger.report(payload["pass"], PassReport(**payload["report"]))
        if self._policy.lockstep:
            self._at_pass_end.append((payload["pass"], reply))
            done = [r for number, r in self._at_pass_end if ledger.is_closed(number)]
            self._at_pass_end = [(n, r) for n, r in self._at_pass_end if not ledger.is_closed(n)]
        else:
            done = [reply]
        return [partial(r, _ok(stop=ledger.stopped)) for r in done]

    def _on_leave(self, payload: Call, reply: CallReply) -> _Ready:
        for lane in payload["lanes"]:
            self._gate.leave(lane)
        if self.ledger is not None:
            self.ledger.leave(payload["rows"])
        ready: _Ready = [partial(reply, _ok())]
        if self.shard is not None:
            self._apply_due()
            ready += self._released()
        return ready

    # -- the client ----------------------------------------------------------------------------

    def renew(self, generation: int, lanes: list[int], clock: int) -> None:
        """Begin a new generation: open rounds are dropped, `lanes` go on from `clock`.

        Whoever waits is told that its generation is stale.
        """
        with self._lock:
            self.generation = generation
            self._gate = self._policy.gate(lanes, clock)
            self._pending.clear()
            self._arrived.clear()
            ready = self._refuse_waiting(Status.STALE_GENERATION)
        for answer in ready:
            answer()

    def abort(self, reason: str) -> None:
        """Refuse everything from now on, and answer whoever waits."""
        with self._lock:
            if self._aborted is not None:
                return
            self._aborted = reason
            ready = self._refuse_waiting(Status.ABORTED)
        for answer in ready:
            answer()

    def _refuse_waiting(self, status: Status) -> _Ready:
        ready: _Ready = [
            partial(reply, Reply(request.lanes[0], status)) for request, reply in self._waiting
        ]
        calls = [*self._at_rendezvous, *(reply for _, reply in self._at_pass_end)]
        ready += [partial(reply, {"status": int(status)}) for reply in calls]
        self._waiting, self._at_rendezvous, self._at_pass_end = [], [], []
        return ready

    def stop(self) -> None:
        """End the fit at the end of the pass that is open."""
        with self._lock:
            if self.ledger is not None:
                self.ledger.stop()

    def state(self) -> ShardState | None:
        """Copy of the shard's state, penalties settled."""
        with self._lock:
            return None if self.shard is None else self.shard.state()

    def snapshot(self) -> NDArray[Any] | None:
        """Read-only parameters of the shard."""
        with self._lock:
            return None if self.shard is None else self.shard.snapshot()


def _ok(**answer: Any) -> Call:
    return {"status": int(Status.OK), **answer}
