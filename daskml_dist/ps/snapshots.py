"""Snapshots: copies of a server at one moment, from which another server can continue.

Recovery needs a moment to which all servers can go back (a consistent cut). In lock-step, each
clock is one; otherwise, each version of a single server is. A server keeps its last few snapshots
itself, for the loss of other servers, and sends each to a standby on another worker, for its own
loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from daskml_dist.ps.ledger import LEDGER_PARTS, LedgerSnapshot, PassLedger
from daskml_dist.ps.row_store import RowChanges
from daskml_dist.ps.shard_state import HeldRows, ShardSnapshot

#: Snapshots kept per server if there are several: in lock-step, servers are at most one round
#: apart, so the last three of each have one in common.
KEPT_SNAPSHOTS = 3


def standby_generation(generation: int) -> int:
    """Return the generation of a standby, which only keeps snapshots of another server; below 0.

    So a server that was replaced cannot send snapshots to its successor's standby.
    """
    return -1 - generation


@dataclass(frozen=True)
class LaneSnapshot:
    """Copy of a lane that a trainer steps: its sums in the open pass, its parameters.

    Parameters
    ----------
    loss, rows : float
    steps : int
    shard : ShardSnapshot or None
        None if all lanes share the parameters and another lane's snapshot holds them.
    start : int, default=0
        First parameter row in the shard.
    residuals : dict of str to ndarray
        Residuals: the parts that the lane left out of compressed messages.
    """

    loss: float
    rows: float
    steps: int
    shard: ShardSnapshot | None = None
    start: int = 0
    residuals: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def own_shard(self) -> ShardSnapshot:
        """Return the parameters; only for a lane that has them."""
        assert self.shard is not None
        return self.shard


def join_lane_snapshots(lanes: Mapping[int, LaneSnapshot]) -> dict[int, LaneSnapshot]:
    """Return lane snapshots with partial shards joined into one, in the first lane."""
    # Stages of a pipeline and ranges of columns hold parts of the parameters, from row `start` on.
    lanes_by_start = sorted((lane.start, n) for n, lane in lanes.items() if lane.shard is not None)
    if not any(start for start, _ in lanes_by_start):
        return dict(lanes)
    joined = {n: replace(lane, shard=None, start=0) for n, lane in lanes.items()}
    first = min(joined)
    parts = [shard for _, n in lanes_by_start if (shard := lanes[n].shard) is not None]
    joined[first] = replace(joined[first], shard=ShardSnapshot.join(parts))
    return joined


@dataclass(frozen=True)
class ServerSnapshot:
    """Copy of a server at one moment.

    Parameters
    ----------
    position : int
        Its place among the snapshots of a server: the clock of all lanes if they step together,
        else the version of the shard.
    clocks : dict of lane to clock
    shard : ShardSnapshot or None
    ledger : LedgerSnapshot or None
    lanes : dict of lane to LaneSnapshot
        Snapshots of lanes, if trainers hold the parameters.
    """

    position: int
    clocks: dict[int, int]
    shard: ShardSnapshot | None = None
    ledger: LedgerSnapshot | None = None
    lanes: dict[int, LaneSnapshot] = field(default_factory=dict)

    def without_table(self) -> ServerSnapshot:
        """Return the snapshot without a table's rows, which the row store restores itself."""
        if self.shard is None or self.shard.table is None:
            return self
        return replace(self, shard=replace(self.shard, table=None))


#: Classes of the objects in a snapshot; only these may be sent between processes.
SNAPSHOT_CLASSES: tuple[type, ...] = (
    ServerSnapshot,
    LaneSnapshot,
    ShardSnapshot,
    RowChanges,
    HeldRows,
    *LEDGER_PARTS,
)


@dataclass(frozen=True)
class AvailableSnapshots:
    """Places from which a server could continue.

    Parameters
    ----------
    current_position : int or None
        Its present place; None if it cannot continue from its present state.
    clocks : dict of int to (dict of lane to clock)
        Clocks at its present place and at each kept snapshot.
    """

    current_position: int | None
    clocks: dict[int, dict[int, int]]

    @property
    def positions(self) -> set[int]:
        """Return all places from which the server could continue."""
        return set(self.clocks)


class RecentSnapshots:
    """The last snapshots of a server, by their places.

    Parameters
    ----------
    max_snapshots : int
        Number of snapshots that are kept.
    """

    def __init__(self, max_snapshots: int = KEPT_SNAPSHOTS) -> None:
        self._snapshots: deque[ServerSnapshot] = deque(maxlen=max_snapshots)

    def add(self, snapshot: ServerSnapshot) -> None:
        """Keep a snapshot; drop those of the same or later places, and the oldest."""
        self.drop_from(snapshot.position)
        self._snapshots.append(snapshot)

    def drop_from(self, position: int) -> None:
        """Drop the snapshots of a place and later, since the server has gone back."""
        self._snapshots = deque(
            (snapshot for snapshot in self._snapshots if snapshot.position < position),
            self._snapshots.maxlen,
        )

    @property
    def last(self) -> ServerSnapshot | None:
        """Return the latest snapshot, if any."""
        return self._snapshots[-1] if self._snapshots else None

    def get(self, position: int) -> ServerSnapshot | None:
        """Return the snapshot of a place, if it is kept."""
        return next(
            (snapshot for snapshot in self._snapshots if snapshot.position == position), None
        )

    @property
    def max_snapshots(self) -> int:
        """Return the number of snapshots that are kept."""
        return self._snapshots.maxlen or 0

    def clear(self) -> None:
        """Drop all snapshots."""
        self._snapshots.clear()

    def __getitem__(self, position: int) -> ServerSnapshot:
        return next(snapshot for snapshot in self._snapshots if snapshot.position == position)

    @property
    def clocks(self) -> dict[int, dict[int, int]]:
        """Return the clocks of each snapshot, by its place."""
        return {snapshot.position: snapshot.clocks for snapshot in self._snapshots}


#: Sends a snapshot to the standby; must not block.
ShipSnapshot = Callable[[ServerSnapshot], None]
#: Most snapshots in flight to the standby before pulls block. Fewer if trainers store them, since
#: these step on to the next snapshot before they wait; and fewer if lanes discard the data they
#: sent once it is answered.
_MAX_IN_FLIGHT, _MAX_HANDED_OVER, _MAX_ANSWERED = 2, 1, 1


class SnapshotStore:
    """Store of a server's last snapshots, which sends each to its standby.

    Not thread-safe: the server that owns it holds a lock.

    Parameters
    ----------
    n_lanes : int
        Number of lanes whose snapshots make a complete one, if trainers hold the parameters.
    max_snapshots : int
        Number of snapshots that are kept.
    before_answers : bool, default=False
        Whether the standby must have a snapshot before lanes get answers based on it.
    """

    def __init__(self, n_lanes: int, max_snapshots: int, before_answers: bool = False) -> None:
        self.recent_snapshots = RecentSnapshots(max_snapshots)
        #: Lane snapshots from which this generation continues; empty at the start.
        self.lanes: dict[int, LaneSnapshot] = {}
        self._n_lanes = n_lanes
        #: Lane snapshots by their clock, until those of all lanes have arrived.
        self._storing: dict[int, dict[int, LaneSnapshot]] = {}
        self._max_in_flight = _MAX_ANSWERED if before_answers else _MAX_IN_FLIGHT
        #: Whether trainers store snapshots, since they hold the parameters.
        self._stored = False
        self._ship: ShipSnapshot | None = None
        #: Updates between two snapshots; 0 if none are made.
        self._interval = 0
        #: Snapshots that were sent and that the standby has not acknowledged.
        self._in_flight = 0

    @property
    def is_behind(self) -> bool:
        """Return whether too many snapshots are in flight to the standby to release lanes."""
        return self._in_flight >= (_MAX_HANDED_OVER if self._stored else self._max_in_flight)

    def is_due(self, version: int) -> bool:
        """Return whether a snapshot is due after update number `version`."""
        return bool(self._interval) and version % self._interval == 0

    def add(self, snapshot: ServerSnapshot) -> None:
        """Keep a snapshot of this server, and send it to the standby."""
        self.recent_snapshots.add(snapshot.without_table())
        self._ship_snapshot(snapshot)

    def _ship_snapshot(self, snapshot: ServerSnapshot) -> None:
        """Send a snapshot to the standby, if there is one."""
        if self._ship is not None:
            self._in_flight += 1
            self._ship(snapshot)

    def ship_last_snapshot(self) -> None:
        """Send the last snapshot, if there is one."""
        if self.recent_snapshots.last is not None:
            self._ship_snapshot(self.recent_snapshots.last)

    def store(self, clock: int, lanes: dict[int, LaneSnapshot], ledger: PassLedger | None) -> None:
        """Store snapshots of lanes at a clock; those of all lanes make one of the server."""
        self._stored = True
        stored = self._storing.setdefault(clock, {})
        stored.update(lanes)
        # A snapshot of the server is complete once every lane has stored its own at one clock.
        if len(stored) == self._n_lanes:
            # Snapshots of earlier clocks that some lanes never stored can no longer be completed.
            self._storing = {c: part for c, part in self._storing.items() if c > clock}
            ledger_snapshot = None if ledger is None else ledger.snapshot()
            clocks = dict.fromkeys(stored, clock)
            self.add(ServerSnapshot(clock, clocks, None, ledger_snapshot, stored))

    # -- the standby ----------------------------------------------------------------------------

    def begin_snapshots(self, ship: ShipSnapshot | None, interval: int) -> None:
        """Make snapshots every `interval` updates from now on, and pass them to `ship`, if any."""
        self._ship, self._interval, self._in_flight = ship, interval, 0

    def ships_to(self, ship: ShipSnapshot) -> bool:
        """Return whether snapshots are passed to this function."""
        return self._ship is ship

    def drop_standby(self) -> None:
        """Stop sending snapshots."""
        self._ship, self._in_flight = None, 0

    def shipped(self) -> None:
        """Count a snapshot that the standby has received."""
        self._in_flight = max(self._in_flight - 1, 0)

    # -- generations ---------------------------------------------------------------------------

    def renew(self) -> None:
        """Begin a new generation: snapshots of only some lanes are dropped."""
        self._storing.clear()
        self.drop_standby()

    def go_back_to(self, snapshot: ServerSnapshot) -> None:
        """Forget the snapshots after the one from which this generation continues."""
        self.lanes = snapshot.lanes
        self.recent_snapshots.drop_from(snapshot.position + 1)
