"""The parameter server's state machine: one shard under one policy, and the pass ledger.

It never blocks. Each call hands over a function that takes the answer, called at once or later
by whichever call made the answer possible. Transports and the Dask actor only carry messages.

Every so many updates a server makes a snapshot of itself for its *standby*, a server on another
worker that only keeps snapshots. A new generation goes on from the present state, or from one of
these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.compression import Compressor
from daskml_dist.policies import Consistency
from daskml_dist.ps.callers import Callers, Ready
from daskml_dist.ps.keeper import Ship
from daskml_dist.ps.ledger import PassLedger, PassReport
from daskml_dist.ps.messages import Call, CallReply, Reply, Request, Status, ok
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.ps.snapshots import KEPT, AvailableSnapshots, ServerSnapshot, standby_of
from daskml_dist.ps.state import ServerState

__all__ = ["ParameterServer"]


class ParameterServer:
    """One shard, its policy's gate and (on the first server of a fit) the ledger.

    Thread-safe: every public method takes the lock.

    Parameters
    ----------
    policy : Consistency
    lanes : list of int
    shard : Shard or None
        None where the policy keeps the parameters in the trainers.
    ledger : PassLedger or None
        Present on the first server of a fit.
    n_trainers : int
        Trainers that must have arrived before any may start.
    generation : int
        That of `standby_of` for a standby.
    clock : int
        Clock at which the lanes start.
    n_steps : int
        Steps of a lane in a pass.
    compression : Compressor or None
        What trainers compress their pushes with.
    kept : int
        Snapshots that are kept.
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
        kept: int = KEPT,
    ) -> None:
        self.generation = generation
        self.shard = shard
        self.ledger = ledger
        self._policy = policy
        self._state = ServerState(policy, lanes, shard, ledger, clock, n_steps, kept)
        self._snapshots = self._state.snapshots
        self._n_lanes = len(lanes)
        self._n_trainers = n_trainers
        self._compression = compression
        self._callers = Callers()
        self._aborted: str | None = None
        self._paused = False
        self._lock = threading.Lock()

    @property
    def most_answer_bytes(self) -> int:
        """Bytes of parameters in the answers to all lanes at once, at most."""
        return 0 if self.shard is None else self.shard.w.nbytes * self._n_lanes

    @property
    def is_shared(self) -> bool:
        """Whether several lanes use it."""
        return self._n_lanes > 1

    @property
    def dropped(self) -> int:
        """Pushes that came too late or twice; none was applied."""
        return self._state.dropped

    @property
    def is_over(self) -> bool:
        """Whether it refuses everything for good."""
        return self._aborted is not None

    # -- steps ---------------------------------------------------------------------------------

    def exchange(self, request: Request, reply: Callable[[Reply], None]) -> None:
        """Take a push and/or a pull; `reply` gets the answer once the policy lets the lanes go.

        Parameters
        ----------
        request : Request
        reply : callable
            Called once with a :class:`Reply` if ``request.pull``, from any thread.
        """
        if request.packed is not None:
            self._unpack(request)  # not under the lock: others push meanwhile
        with self._lock:
            refusal = self._refusal(request.generation)
            if refusal is None:
                if request.values is not None:
                    self._state.accept(request)
                if request.pull:
                    self._callers.pulls.append((request, reply))
                ready = self._released()
        if refusal is not None:
            if request.pull:
                reply(Reply(request.lanes[0], refusal))
            return
        for answer in ready:
            answer()

    def _unpack(self, request: Request) -> None:
        assert self.shard is not None
        assert self._compression is not None
        assert request.packed is not None
        n_rows, width = self.shard.w.shape
        n_rows = n_rows if request.index is None else len(request.index)
        request.values = np.empty((n_rows, width), dtype=self.shard.w.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            self._compression.decompress(request.packed, request.values.reshape(-1))
        request.packed, request.owned = None, True

    def _refusal(self, generation: int) -> Status | None:
        if self._aborted is not None:
            return Status.ABORTED
        if generation != self.generation or self._paused:
            return Status.STALE_GENERATION
        return None

    def _released(self) -> Ready:
        if self.is_over or self._paused or self._snapshots.is_behind:
            return []
        ready, still = self._callers.stored(), []
        for request, reply in self._callers.pulls:
            if self._state.may_go(request.lanes):
                ready.append(partial(reply, self._state.answer(request)))
            else:
                still.append((request, reply))
        self._callers.pulls = still
        return ready

    # -- control -------------------------------------------------------------------------------

    def call(self, op: str, payload: Call, reply: CallReply) -> None:
        """Take a control call; `reply` gets the answer, at once or once all have called.

        Parameters
        ----------
        op : str
            "rendezvous", "report", "report_sums", "leave", "store", "restore",
            "apply_pending_penalty" or "keep".
        payload : dict
            Plain values, ``generation`` among them, and snapshots under ``blob``.
        reply : callable
        """
        with self._lock:
            refusal = self._refusal(payload["generation"])
            if refusal is not None:
                ready: Ready = [partial(reply, {"status": int(refusal)})]
            else:
                ready = getattr(self, f"_on_{op}")(payload, reply)
        for answer in ready:
            answer()

    def _on_rendezvous(self, payload: Call, reply: CallReply) -> Ready:
        ready = self._callers.arrive(payload["rank"], payload["info"], reply, self._n_trainers)
        if ready and self.ledger is not None and self.generation == 0:
            self.ledger.start_clock()
        return ready

    def _on_report(self, payload: Call, reply: CallReply) -> Ready:
        ledger, number = self.ledger, payload["pass"]
        assert ledger is not None
        ledger.report(number, PassReport(**payload["report"]))
        if self._policy.lockstep:
            return self._callers.end_pass(number, reply, ledger)
        return [partial(reply, ok(stop=ledger.ends_with(number)))]

    def _on_report_sums(self, payload: Call, reply: CallReply) -> Ready:
        """Take the reports of sums over all lanes, each a pass, from number `first` on."""
        ledger = self.ledger
        assert ledger is not None
        lanes, first, sums = sorted(ledger.lanes), payload["first"], payload["sums"]
        for number, (loss, rows, sent, received, *scores, age) in enumerate(sums, first):
            report = PassReport(lanes, loss, rows, 1, int(sent), int(received), scores=scores)
            ledger.report(number, report, age)
        return [partial(reply, ok(stop=ledger.ends_with(first + len(sums) - 1)))]

    def _on_leave(self, payload: Call, reply: CallReply) -> Ready:
        self._state.leave(payload["lanes"])
        ready: Ready = [partial(reply, ok())]
        if self.shard is not None:
            ready += self._released()
        return ready

    def _on_store(self, payload: Call, reply: CallReply) -> Ready:
        """Take snapshots of lanes that trainers step by themselves; whole once all are there."""
        self._snapshots.store(payload["clock"], payload["blob"], self.ledger)
        self._callers.at_store.append(reply)
        return self._released()

    def _on_restore(self, payload: Call, reply: CallReply) -> Ready:
        """Give back the lanes' snapshots that this generation goes on from; none at the start.

        Of some lanes alone, where these are named.
        """
        lanes = self._snapshots.lanes
        if "lanes" in payload:
            lanes = {n: lanes[n] for n in payload["lanes"] if n in lanes}
        return [partial(reply, ok(blob=lanes))]

    def _on_apply_pending_penalty(self, payload: Call, reply: CallReply) -> Ready:
        """Apply the penalty that is pending for parameters that no gradient touched."""
        if self.shard is not None:
            self.shard.apply_pending_penalty()
        return [partial(reply, ok())]

    def _on_keep(self, payload: Call, reply: CallReply) -> Ready:
        """Keep a snapshot of the server whose standby this is."""
        snapshot, records = payload["blob"]
        self._snapshots.kept.add(snapshot)
        if self.ledger is not None:
            self.ledger.records[payload["first"] :] = records
        return [partial(reply, ok())]

    # -- snapshots --------------------------------------------------------------------------------

    def make_snapshots(self, ship: Ship | None, every: int = 1) -> None:
        """Make a snapshot every so many updates from now on, keep it, and hand it to `ship`.

        `ship` must not block, and somebody must call :meth:`shipped` once the standby has it.
        None: the snapshots are kept here alone.
        """
        with self._lock:
            self._state.begin_snapshots(ship, every)
            ready = self._released()
        for answer in ready:
            answer()

    def stop_shipping(self, ship: Ship) -> None:
        """Hand no more snapshots to `ship`, unless another one has taken its place."""
        with self._lock:
            if self._snapshots.ships_to(ship):
                self._snapshots.drop_standby()
            ready = self._released()
        for answer in ready:
            answer()

    def shipped(self) -> None:
        """Note that the standby has a snapshot."""
        with self._lock:
            self._snapshots.shipped()
            ready = self._released()
        for answer in ready:
            answer()

    def last_snapshot(self) -> ServerSnapshot | None:
        """Snapshot of the present state, or the last one of the lanes."""
        with self._lock:
            return self._snapshots.kept.last if self.shard is None else self._state.snapshot()

    def kept(self) -> dict[int, dict[int, int]]:
        """Clocks at each snapshot that is kept, by its place."""
        with self._lock:
            return self._snapshots.kept.clocks

    def snapshot_at(self, place: int) -> tuple[ServerSnapshot, list[Any]] | None:
        """A kept snapshot, with the records that belong to it; None if it is kept no more."""
        with self._lock:
            snapshot = self._snapshots.kept.get(place)
            if snapshot is None:
                return None
            n_records = snapshot.ledger.n_records if snapshot.ledger is not None else 0
            return snapshot, [] if self.ledger is None else self.ledger.records[:n_records]

    def take(self, snapshot: ServerSnapshot, records: list[Any]) -> None:
        """Keep a snapshot that another server made."""
        with self._lock:
            self._snapshots.kept.add(snapshot)
            if self.ledger is not None:
                self.ledger.records[:] = records

    # -- the client ----------------------------------------------------------------------------

    def pause(self, generation: int) -> AvailableSnapshots:
        """Refuse every message of an earlier generation, and tell what could be gone on from.

        Whoever waits is told that its generation is stale.
        """
        with self._lock:
            now = None
            clocks = self._snapshots.kept.clocks
            if self.shard is not None and self.generation >= 0:
                now = self._state.place()
                clocks[now] = self._state.clocks()
            self.generation, self._paused = generation, True
            self._snapshots.pause()
            ready = self._callers.refuse(Status.STALE_GENERATION)
        for answer in ready:
            answer()
        return AvailableSnapshots(now, clocks)

    def renew(
        self,
        generation: int,
        lanes: Iterable[int],
        n_trainers: int | None = None,
        at: int | None = None,
    ) -> None:
        """Begin a new generation: open rounds are dropped, lanes go on from their clocks.

        Parameters
        ----------
        generation : int
        lanes : iterable of int
        n_trainers : int or None
            None: as many as before.
        at : int or None
            Place of the snapshot to go on from; None: from the present.
        """
        with self._lock:
            self.generation, self._paused = generation, False
            self._n_trainers = n_trainers or self._n_trainers
            self._state.renew(lanes, at)
            self._callers.renew()
            ready = self._callers.refuse(Status.STALE_GENERATION)
        for answer in ready:
            answer()

    def stand_by(self, generation: int) -> None:
        """Go on keeping snapshots, of the server of a new generation."""
        with self._lock:
            self.generation, self._paused = standby_of(generation), False

    def abort(self, reason: str) -> None:
        """Refuse everything from now on, and answer whoever waits."""
        with self._lock:
            if self._aborted is not None:
                return
            self._aborted = reason
            self._snapshots.drop_standby()
            ready = self._callers.refuse(Status.ABORTED)
        for answer in ready:
            answer()

    def stop(self) -> None:
        """End the fit at the end of the pass that is open."""
        with self._lock:
            if self.ledger is not None:
                self.ledger.stop()

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        """Go on with rows of larger values; see :meth:`Shard.rescale`."""
        with self._lock:
            if self.shard is not None:
                self.shard.rescale(largest, norm)

    def state(self) -> ShardState | None:
        """Copy of the shard's state, penalties settled."""
        with self._lock:
            return None if self.shard is None else self.shard.state()

    def published(self) -> NDArray[Any] | None:
        """Read-only parameters of the shard."""
        with self._lock:
            return None if self.shard is None else self.shard.published()
