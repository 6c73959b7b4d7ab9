"""The parameter server's state machine: one shard under one policy, and the pass ledger.

It never blocks. Each call hands over a function that takes the answer, called at once or later
by whichever call made the answer possible. Transports and the Dask actor only carry messages.

Every so many updates a server makes an image of itself for its *shadow*, a server on another
worker that only keeps images. A new generation goes on from the present state, or from an image.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.compression import Compressor
from daskml_dist.policies import Policy
from daskml_dist.ps.image import Holding, Images, LaneImage, ServerImage, shadow_of
from daskml_dist.ps.ledger import PassLedger, PassReport
from daskml_dist.ps.messages import Call, CallReply, Reply, Request, Status, sum_in_lane_order
from daskml_dist.ps.shard import Shard, ShardState

__all__ = ["ParameterServer"]

_Waiting = tuple[Request, Callable[[Reply], None]]
#: Answers that are ready; given once the lock is free again.
_Ready = list[Callable[[], Any]]
#: Images under way to the shadow from which on nobody is let go.
_MOST_UNDER_WAY = 2


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
        That of `shadow_of` for a shadow.
    clock : int
        Clock at which the lanes start.
    n_steps : int
        Steps of a lane in a pass.
    compression : Compressor or None
        What trainers compress their pushes with.
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
        n_steps: int = 1,
        compression: Compressor | None = None,
    ) -> None:
        self.generation = generation
        self.shard = shard
        self.ledger = ledger
        self.dropped = 0
        self._policy = policy
        self._gate = policy.gate(lanes, clock)
        self._n_lanes = len(lanes)
        self._n_trainers = n_trainers
        self._n_steps = n_steps
        self._compression = compression
        self._left: dict[int, int] = {}
        self._pending: dict[int, Request] = {}
        self._waiting: list[_Waiting] = []
        self._arrived: dict[int, Any] = {}
        self._at_rendezvous: list[CallReply] = []
        self._at_pass_end: list[tuple[int, CallReply]] = []
        self._at_store: list[CallReply] = []
        self._aborted: str | None = None
        self._paused = False
        self._images = Images()
        self._ship: Callable[[ServerImage], None] | None = None
        self._image_every = 0
        self._under_way = 0
        self._storing: dict[int, dict[int, LaneImage]] = {}
        self._lanes_at: ServerImage | None = None
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

    def _accept(self, request: Request) -> None:
        if request.progress is not None:
            self._accept_change(request)
            return
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
        rows = sum(push.rows for push in pushes)
        if self.ledger is not None:
            self.ledger.observe_staleness(staleness)
            loss = sum(push.loss for push in pushes)
            self.ledger.count(self._pass_of(pushes[0].clock), rows, loss, 1)
        index, total = sum_in_lane_order(
            [(p.lanes[0], p.index, p.values) for p in pushes if p.values is not None],
            {p.lanes[0] for p in pushes if p.owned},
        )
        shard.apply(total, rows, index, shard.rule.schedule.scale(staleness))
        self._shadow_when_due(shard.version)

    def _accept_change(self, request: Request) -> None:
        """Add what the threads of a trainer have changed in their own replica (``"hogwild"``)."""
        shard, progress = self.shard, request.progress
        assert shard is not None
        assert progress is not None
        assert request.values is not None
        staleness = shard.version - request.version
        if self.ledger is not None:
            self.ledger.observe_staleness(staleness)
        for lane, (clock, rows, loss) in zip(request.lanes, progress.tolist(), strict=True):
            steps = int(clock) - self._gate.clock(lane)
            if steps <= 0:
                continue
            self._gate.join(lane, int(clock))
            if self.ledger is not None:
                self.ledger.count(self._pass_of(int(clock)), rows, loss, steps)
        shard.add(request.values, request.rows)
        self._shadow_when_due(shard.version)

    def _pass_of(self, clock: int) -> int:
        return (clock - 1) // self._n_steps + 1

    def _released(self) -> _Ready:
        if self.is_over or self._paused or self._under_way >= _MOST_UNDER_WAY:
            return []
        ready: _Ready = [partial(reply, _ok()) for reply in self._at_store]
        self._at_store = []
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
        op : {"rendezvous", "report", "leave", "store", "restore", "keep"}
        payload : dict
            Plain values, ``generation`` among them, and images under ``blob``.
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
        if self.ledger is not None and self.generation == 0:
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
            done = [(n, r) for n, r in self._at_pass_end if ledger.is_closed(n)]
            self._at_pass_end = [(n, r) for n, r in self._at_pass_end if not ledger.is_closed(n)]
        else:
            done = [(payload["pass"], reply)]
        return [partial(r, _ok(stop=ledger.ends_with(n))) for n, r in done]

    def _on_leave(self, payload: Call, reply: CallReply) -> _Ready:
        for lane in payload["lanes"]:
            self._left[lane] = self._gate.clock(lane)
            self._gate.leave(lane)
        ready: _Ready = [partial(reply, _ok())]
        if self.shard is not None:
            self._apply_due()
            ready += self._released()
        return ready

    def _on_store(self, payload: Call, reply: CallReply) -> _Ready:
        """Take the images of lanes that trainers step by themselves; whole once all are there."""
        clock = payload["clock"]
        lanes = self._storing.setdefault(clock, {})
        lanes.update(payload["blob"])
        if len(lanes) == self._n_lanes:
            self._storing = {c: part for c, part in self._storing.items() if c > clock}
            ledger = None if self.ledger is None else self.ledger.image()
            image = ServerImage(clock, {number: clock for number in lanes}, None, ledger, lanes)
            self._images.add(image)
            self._send_to_shadow(image)
        self._at_store.append(reply)
        return self._released()

    def _on_restore(self, payload: Call, reply: CallReply) -> _Ready:
        """Give back the lanes' images that this generation goes on from; none at the start."""
        lanes = {} if self._lanes_at is None else self._lanes_at.lanes
        return [partial(reply, _ok(blob=lanes))]

    # -- the shadow ----------------------------------------------------------------------------

    def _on_keep(self, payload: Call, reply: CallReply) -> _Ready:
        """Keep an image of the server whose shadow this is."""
        image, records = payload["blob"]
        self._images.add(image)
        if self.ledger is not None:
            self.ledger.records[payload["first"] :] = records
        return [partial(reply, _ok())]

    def shadow(self, ship: Callable[[ServerImage], None] | None, every: int = 1) -> None:
        """Make an image every so many updates from now on, keep it, and hand it to `ship`.

        `ship` must not block, and somebody must call :meth:`shipped` once the shadow has it.
        None: the images are kept here alone.
        """
        with self._lock:
            self._ship, self._image_every, self._under_way = ship, every, 0
            if self.shard is not None:
                self._make_image()
            elif self._images.last is not None:
                self._send_to_shadow(self._images.last)
            ready = self._released()
        for answer in ready:
            answer()

    def unshadow(self, ship: Callable[[ServerImage], None]) -> None:
        """Hand no more images to `ship`, unless another one has taken its place."""
        with self._lock:
            if self._ship is ship:
                self._ship, self._under_way = None, 0
            ready = self._released()
        for answer in ready:
            answer()

    def shipped(self) -> None:
        """Note that the shadow has an image."""
        with self._lock:
            self._under_way = max(self._under_way - 1, 0)
            ready = self._released()
        for answer in ready:
            answer()

    def _shadow_when_due(self, version: int) -> None:
        if self._image_every and version % self._image_every == 0:
            self._make_image()

    def _make_image(self) -> None:
        image = self._image()
        self._images.add(image)
        self._send_to_shadow(image)

    def _image(self) -> ServerImage:
        shard = self.shard
        assert shard is not None
        ledger = None if self.ledger is None else self.ledger.image()
        return ServerImage(self._place(), self._clocks(), shard.image(), ledger)

    def last_image(self) -> ServerImage | None:
        """Image of the present state, or the last one of the lanes."""
        with self._lock:
            return self._images.last if self.shard is None else self._image()

    def _send_to_shadow(self, image: ServerImage) -> None:
        if self._ship is not None:
            self._under_way += 1
            self._ship(image)

    def kept(self) -> dict[int, dict[int, int]]:
        """Clocks at each image that is kept, by its place."""
        with self._lock:
            return self._images.clocks

    def image_at(self, place: int) -> tuple[ServerImage, list[Any]] | None:
        """A kept image, with the records that belong to it; None if it is kept no more."""
        with self._lock:
            image = self._images.get(place)
            if image is None:
                return None
            n_records = image.ledger.n_records if image.ledger is not None else 0
            return image, [] if self.ledger is None else self.ledger.records[:n_records]

    def take(self, image: ServerImage, records: list[Any]) -> None:
        """Keep an image that another server made."""
        with self._lock:
            self._images.add(image)
            if self.ledger is not None:
                self.ledger.records[:] = records

    def _place(self) -> int:
        assert self.shard is not None
        if self._policy.lockstep:
            return max(self._clocks().values())
        return self.shard.version

    def _clocks(self) -> dict[int, int]:
        clocks = {lane: self._gate.clock(lane) for lane in self._gate.clocks}
        return {**self._left, **clocks}

    # -- the client ----------------------------------------------------------------------------

    def pause(self, generation: int) -> Holding:
        """Refuse every message of an earlier generation, and tell what could be gone on from.

        Whoever waits is told that its generation is stale.
        """
        with self._lock:
            now = None
            clocks = self._images.clocks
            if self.shard is not None and self.generation >= 0:
                now = self._place()
                clocks[now] = self._clocks()
            self.generation, self._paused = generation, True
            self._ship, self._image_every, self._under_way = None, 0, 0
            ready = self._refuse_waiting(Status.STALE_GENERATION)
        for answer in ready:
            answer()
        return Holding(now, clocks)

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
            Place of the image to go on from; None: from the present.
        """
        with self._lock:
            self.generation, self._paused = generation, False
            self._n_trainers = n_trainers or self._n_trainers
            clocks = self._clocks() if at is None else self._go_back(at)
            # In lock-step, a lane that comes back takes up the others' round.
            first = (max if self._policy.lockstep else min)(clocks.values(), default=0)
            self._gate = self._policy.gate((), first)
            for lane in lanes:
                self._gate.join(lane, clocks.get(lane, first))
            self._left.clear()
            self._pending.clear()
            self._storing.clear()
            self._arrived.clear()
            self._ship, self._under_way = None, 0
            if self.ledger is not None:
                self.ledger.renew()
            ready = self._refuse_waiting(Status.STALE_GENERATION)
        for answer in ready:
            answer()

    def stand_by(self, generation: int) -> None:
        """Go on keeping images, of the server of a new generation."""
        with self._lock:
            self.generation, self._paused = shadow_of(generation), False

    def _go_back(self, at: int) -> dict[int, int]:
        image = self._images[at]
        if image.shard is not None:
            assert self.shard is not None
            self.shard.restore(image.shard)
        if image.ledger is not None:
            assert self.ledger is not None
            self.ledger.restore(image.ledger)
        self._lanes_at = image if image.lanes else None
        self._images.drop_from(at + 1)
        return image.clocks

    def abort(self, reason: str) -> None:
        """Refuse everything from now on, and answer whoever waits."""
        with self._lock:
            if self._aborted is not None:
                return
            self._aborted = reason
            self._ship = None
            ready = self._refuse_waiting(Status.ABORTED)
        for answer in ready:
            answer()

    def _refuse_waiting(self, status: Status) -> _Ready:
        ready: _Ready = [
            partial(reply, Reply(request.lanes[0], status)) for request, reply in self._waiting
        ]
        calls = [*self._at_rendezvous, *(reply for _, reply in self._at_pass_end), *self._at_store]
        ready += [partial(reply, {"status": int(status)}) for reply in calls]
        self._waiting, self._at_rendezvous, self._at_pass_end = [], [], []
        self._at_store = []
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
