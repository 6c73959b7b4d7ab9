"""The keeper of a server's snapshots: the last ones, and their way to the standby."""

from __future__ import annotations

from collections.abc import Callable

from daskml_dist.ps.ledger import PassLedger
from daskml_dist.ps.snapshots import LaneSnapshot, ServerSnapshot, Snapshots

__all__ = ["Ship", "SnapshotKeeper"]

#: Hands a snapshot to the standby; must not block.
Ship = Callable[[ServerSnapshot], None]
#: Snapshots under way to the standby from which on nobody is let go; of those that trainers hand
#: over, who make the steps up to the next one before they take the answer.
_MOST_UNDER_WAY, _MOST_HANDED_OVER = 2, 1


class SnapshotKeeper:
    """Keeper of a server's last snapshots, which hands each on to its standby.

    Not thread-safe: the server that holds it guards it.

    Parameters
    ----------
    n_lanes : int
        Lanes whose snapshots make a whole one, where trainers hold the parameters.
    most : int
        Snapshots that are kept.
    """

    def __init__(self, n_lanes: int, most: int) -> None:
        self.kept = Snapshots(most)
        #: The lanes' snapshots that this generation goes on from; none at the start.
        self.lanes: dict[int, LaneSnapshot] = {}
        self._n_lanes = n_lanes
        self._storing: dict[int, dict[int, LaneSnapshot]] = {}
        self._stored = False
        self._ship: Ship | None = None
        self._every = 0
        self._under_way = 0

    @property
    def is_behind(self) -> bool:
        """Whether snapshots under way to the standby are so many that no lane is let go."""
        return self._under_way >= (_MOST_HANDED_OVER if self._stored else _MOST_UNDER_WAY)

    def is_due(self, version: int) -> bool:
        """Whether a snapshot is to be made after update number `version`."""
        return bool(self._every) and version % self._every == 0

    def add(self, snapshot: ServerSnapshot) -> None:
        """Keep a snapshot of this server, and hand it on."""
        self.kept.add(snapshot)
        self._hand_on(snapshot)

    def _hand_on(self, snapshot: ServerSnapshot) -> None:
        if self._ship is not None:
            self._under_way += 1
            self._ship(snapshot)

    def hand_on_last(self) -> None:
        """Hand the last snapshot on, if there is one."""
        if self.kept.last is not None:
            self._hand_on(self.kept.last)

    def store(self, clock: int, lanes: dict[int, LaneSnapshot], ledger: PassLedger | None) -> None:
        """Take snapshots of lanes at a clock; those of all lanes make one of the server."""
        self._stored = True
        stored = self._storing.setdefault(clock, {})
        stored.update(lanes)
        if len(stored) == self._n_lanes:
            self._storing = {c: part for c, part in self._storing.items() if c > clock}
            counted = None if ledger is None else ledger.snapshot()
            clocks = dict.fromkeys(stored, clock)
            self.add(ServerSnapshot(clock, clocks, None, counted, stored))

    # -- the standby ----------------------------------------------------------------------------

    def begin(self, ship: Ship | None, every: int) -> None:
        """Have snapshots made every so many updates, and hand them to `ship`, if any."""
        self._ship, self._every, self._under_way = ship, every, 0

    def ships_to(self, ship: Ship) -> bool:
        """Whether snapshots go there."""
        return self._ship is ship

    def drop_standby(self) -> None:
        """Hand no more snapshots on."""
        self._ship, self._under_way = None, 0

    def shipped(self) -> None:
        """Note that the standby has a snapshot."""
        self._under_way = max(self._under_way - 1, 0)

    # -- generations ---------------------------------------------------------------------------

    def pause(self) -> None:
        """Have no more snapshots made."""
        self.begin(None, 0)

    def renew(self) -> None:
        """Begin a new generation: snapshots of some lanes alone are dropped."""
        self._storing.clear()
        self.drop_standby()

    def go_back_to(self, snapshot: ServerSnapshot) -> None:
        """Forget the snapshots after one that this generation goes on from."""
        self.lanes = snapshot.lanes
        self.kept.drop_from(snapshot.at + 1)
