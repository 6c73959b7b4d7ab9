"""Snapshots: copies of a server at one moment, from which another one can go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from daskml_dist.ps.ledger import LEDGER_PARTS, LedgerSnapshot
from daskml_dist.ps.shard_state import ShardSnapshot

__all__ = [
    "KEPT",
    "SENT",
    "AvailableSnapshots",
    "LaneSnapshot",
    "ServerSnapshot",
    "Snapshots",
    "standby_of",
    "whole",
]

#: Snapshots that are kept of one server of several: in lock-step these are one round apart at
#: most, so the last three of each have one in common.
KEPT = 3


def standby_of(generation: int) -> int:
    """The generation of a server that only keeps snapshots of another one, below 0.

    A server that was replaced thus cannot send snapshots to its successor's standby.
    """
    return -1 - generation


@dataclass(frozen=True)
class LaneSnapshot:
    """A lane that a trainer steps by itself: its sums in the open pass, and its parameters.

    Parameters
    ----------
    loss, rows : float
    steps : int
    shard : ShardSnapshot or None
        None where all lanes share the parameters, and another lane has them.
    start : int, default=0
        First row of the parameters that the shard holds.
    """

    loss: float
    rows: float
    steps: int
    shard: ShardSnapshot | None = None
    start: int = 0

    @property
    def held(self) -> ShardSnapshot:
        """Parameters of a lane that has some."""
        assert self.shard is not None
        return self.shard


def whole(lanes: Mapping[int, LaneSnapshot]) -> dict[int, LaneSnapshot]:
    """The same lanes, where shards that are parts of the parameters are one, the first lane's."""
    held = sorted((lane.start, n) for n, lane in lanes.items() if lane.shard is not None)
    if not any(start for start, _ in held):
        return dict(lanes)
    found = {n: replace(lane, shard=None, start=0) for n, lane in lanes.items()}
    first = min(found)
    parts = [shard for _, n in held if (shard := lanes[n].shard) is not None]
    found[first] = replace(found[first], shard=ShardSnapshot.join(parts))
    return found


@dataclass(frozen=True)
class ServerSnapshot:
    """A server at one moment.

    Parameters
    ----------
    at : int
        Its place among the snapshots of a server: the clock of all lanes where they step together,
        else the version of the shard.
    clocks : dict of lane to clock
    shard : ShardSnapshot or None
    ledger : LedgerSnapshot or None
    lanes : dict of lane to LaneSnapshot
        Where trainers hold the parameters.
    """

    at: int
    clocks: dict[int, int]
    shard: ShardSnapshot | None = None
    ledger: LedgerSnapshot | None = None
    lanes: dict[int, LaneSnapshot] = field(default_factory=dict)


#: What snapshots are made of, as it goes from one process to another.
SENT: tuple[type, ...] = (ServerSnapshot, LaneSnapshot, ShardSnapshot, *LEDGER_PARTS)


@dataclass(frozen=True)
class AvailableSnapshots:
    """Places that a server could go on from.

    Parameters
    ----------
    now : int or None
        Its present place; None for one that cannot go on as it is.
    clocks : dict of int to (dict of lane to clock)
        Clocks at its present place and at each snapshot that it keeps.
    """

    now: int | None
    clocks: dict[int, dict[int, int]]

    @property
    def places(self) -> set[int]:
        """All places that it could go on from."""
        return set(self.clocks)


class Snapshots:
    """The last snapshots of a server, by their place.

    Parameters
    ----------
    most : int
        That are kept.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._kept: deque[ServerSnapshot] = deque(maxlen=most)

    def add(self, snapshot: ServerSnapshot) -> None:
        """Keep a snapshot; one of the same place is replaced, the oldest is dropped."""
        self.drop_from(snapshot.at)
        self._kept.append(snapshot)

    def drop_from(self, at: int) -> None:
        """Drop the snapshots of a place and later: the server has gone back."""
        self._kept = deque((kept for kept in self._kept if kept.at < at), self._kept.maxlen)

    @property
    def last(self) -> ServerSnapshot | None:
        """The latest, if any."""
        return self._kept[-1] if self._kept else None

    def get(self, at: int) -> ServerSnapshot | None:
        """The snapshot of a place, if it is kept."""
        return next((snapshot for snapshot in self._kept if snapshot.at == at), None)

    def __getitem__(self, at: int) -> ServerSnapshot:
        return next(snapshot for snapshot in self._kept if snapshot.at == at)

    @property
    def clocks(self) -> dict[int, dict[int, int]]:
        """Clocks of each snapshot, by its place."""
        return {snapshot.at: snapshot.clocks for snapshot in self._kept}
