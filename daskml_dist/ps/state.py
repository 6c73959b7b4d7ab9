"""The state of a server: its shard, its policy's gate and the ledger, as pushes change them."""

from __future__ import annotations

from collections.abc import Iterable

from daskml_dist.backends.denormals import arithmetic
from daskml_dist.policies import Consistency
from daskml_dist.ps.keeper import Ship, SnapshotKeeper
from daskml_dist.ps.ledger import PassLedger
from daskml_dist.ps.messages import Reply, Request, Status, sum_in_lane_order
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.snapshots import ServerSnapshot

__all__ = ["ServerState"]


class ServerState:
    """State of a server, which it would go on from; snapshots of it are made when due.

    Not thread-safe: the server that holds it guards it.

    Parameters
    ----------
    policy : Consistency
    lanes : list of int
    shard : Shard or None
    ledger : PassLedger or None
    clock : int
        Clock at which the lanes start.
    n_steps : int
        Steps of a lane in a pass.
    kept : int
        Snapshots that are kept.
    """

    def __init__(
        self,
        policy: Consistency,
        lanes: list[int],
        shard: Shard | None,
        ledger: PassLedger | None,
        clock: int,
        n_steps: int,
        kept: int,
    ) -> None:
        self.snapshots = SnapshotKeeper(len(lanes), kept)
        #: Pushes that came too late or twice.
        self.dropped = 0
        self._policy = policy
        self._shard = shard
        self._ledger = ledger
        self._gate = policy.gate(lanes, clock)
        self._n_steps = n_steps
        #: Clocks of lanes that have left.
        self._left: dict[int, int] = {}
        self._pending: dict[int, Request] = {}

    # -- steps ---------------------------------------------------------------------------------

    def accept(self, request: Request) -> None:
        """Take a push, and apply what is due with it."""
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
        shard = self._shard
        assert shard is not None
        with arithmetic(shard.rule.flushes):
            self._step(shard, pushes)
        self._snapshot_when_due(shard.version)

    def _step(self, shard: Shard, pushes: list[Request]) -> None:
        staleness = max(shard.version - push.version for push in pushes)
        rows = sum(push.rows for push in pushes)
        if self._ledger is not None:
            self._ledger.observe_staleness(staleness)
            loss = sum(push.loss for push in pushes)
            self._ledger.count(self._pass_of(pushes[0].clock), rows, loss, 1)
        index, total = sum_in_lane_order(
            [(p.lanes[0], p.index, p.values) for p in pushes if p.values is not None],
            {p.lanes[0] for p in pushes if p.owned},
        )
        shard.apply(total, rows, index, shard.rule.schedule.scale(staleness))

    def _accept_change(self, request: Request) -> None:
        """Add what the threads of a trainer have changed in their own replica (``"hogwild"``)."""
        shard, progress = self._shard, request.progress
        assert shard is not None
        assert progress is not None
        assert request.values is not None
        staleness = shard.version - request.version
        if self._ledger is not None:
            self._ledger.observe_staleness(staleness)
        for lane, (clock, rows, loss) in zip(request.lanes, progress.tolist(), strict=True):
            steps = int(clock) - self._gate.clock(lane)
            if steps <= 0:
                continue
            self._gate.join(lane, int(clock))
            if self._ledger is not None:
                self._ledger.count(self._pass_of(int(clock)), rows, loss, steps)
        with arithmetic(shard.rule.flushes):
            shard.add(request.values, request.rows, request.index)
        self._snapshot_when_due(shard.version)

    def _pass_of(self, clock: int) -> int:
        return (clock - 1) // self._n_steps + 1

    def may_go(self, lanes: Iterable[int]) -> bool:
        """Whether the policy lets lanes start their next step."""
        return self._gate.may_all_go(lanes)

    def answer(self, request: Request) -> Reply:
        """Reply to a pull, of lanes that may go."""
        shard = self._shard
        assert shard is not None
        values = shard.published() if request.pull_index is None else shard.w[request.pull_index]
        lane = request.lanes[0]
        stop = self._ledger is not None and self._ledger.stopped
        return Reply(lane, Status.OK, stop, shard.version, self._gate.clock(lane), values)

    def leave(self, lanes: Iterable[int]) -> None:
        """Wait for lanes no more."""
        for lane in lanes:
            self._left[lane] = self._gate.clock(lane)
            self._gate.leave(lane)
        if self._shard is not None:
            self._apply_due()

    # -- snapshots --------------------------------------------------------------------------------

    def begin_snapshots(self, ship: Ship | None, every: int) -> None:
        """Make a snapshot now and every so many updates; where there is a last one, hand it on."""
        self.snapshots.begin(ship, every)
        if self._shard is not None:
            self.snapshots.add(self.snapshot())
        else:
            self.snapshots.hand_on_last()

    def _snapshot_when_due(self, version: int) -> None:
        if self.snapshots.is_due(version):
            self.snapshots.add(self.snapshot())

    def snapshot(self) -> ServerSnapshot:
        """Snapshot of the present."""
        shard = self._shard
        assert shard is not None
        ledger = None if self._ledger is None else self._ledger.snapshot()
        return ServerSnapshot(self.place(), self.clocks(), shard.snapshot(), ledger)

    def place(self) -> int:
        """The present's place among the snapshots."""
        assert self._shard is not None
        if self._policy.lockstep:
            return max(self.clocks().values())
        return self._shard.version

    def clocks(self) -> dict[int, int]:
        """Clocks of all lanes."""
        clocks = {lane: self._gate.clock(lane) for lane in self._gate.clocks}
        return {**self._left, **clocks}

    # -- generations ---------------------------------------------------------------------------

    def renew(self, lanes: Iterable[int], at: int | None) -> None:
        """Go on from the present, or from the snapshot of a place; open rounds are dropped."""
        clocks = self.clocks() if at is None else self._go_back(at)
        # In lock-step, a lane that comes back takes up the others' round.
        first = (max if self._policy.lockstep else min)(clocks.values(), default=0)
        self._gate = self._policy.gate((), first)
        for lane in lanes:
            self._gate.join(lane, clocks.get(lane, first))
        self._left.clear()
        self._pending.clear()
        self.snapshots.renew()
        if self._ledger is not None:
            self._ledger.renew()

    def _go_back(self, at: int) -> dict[int, int]:
        snapshot = self.snapshots.kept[at]
        if snapshot.shard is not None:
            assert self._shard is not None
            self._shard.restore(snapshot.shard)
        if snapshot.ledger is not None:
            assert self._ledger is not None
            self._ledger.restore(snapshot.ledger)
        self.snapshots.go_back_to(snapshot)
        return snapshot.clocks
