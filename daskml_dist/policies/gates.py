"""Gates: state machines that decide which pushes are applied, and which lanes may start a step.

They never block: a server asks them after each message, and delays its answer to lanes that may not
start their next step. Clocks count finished steps, so that a repeated push has no effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable


class Gate(ABC):
    """State machine of one policy over a set of lanes.

    A lane's clock counts the steps that it has pushed. Repeated pushes are refused, which makes
    every push idempotent.

    Parameters
    ----------
    lanes : iterable of int
        The lanes that take part from the start.
    clock : int, default=0
        The clock at which they start.

    Examples
    --------
    >>> from daskml_dist.policies import Gate, get_policy
    >>> gate = get_policy('sync').gate([0, 1])
    >>> type(gate).__name__
    'RoundGate'
    """

    def __init__(self, lanes: Iterable[int], clock: int = 0) -> None:
        self.clocks: dict[int, int] = dict.fromkeys(lanes, clock)

    def join(self, lane: int, clock: int) -> None:
        """Add a lane, which has made `clock` steps."""
        self.clocks[lane] = clock

    def leave(self, lane: int) -> None:
        """Remove a lane, so that no lane waits for it; its push in the open round stays."""
        self.clocks.pop(lane, None)

    @abstractmethod
    def push(self, lane: int, clock: int) -> bool:
        """Record the push of step `clock` (from 1) of a lane; return False if it is refused."""

    @abstractmethod
    def due(self) -> list[int]:
        """Return the lanes whose pushes are to be applied together now; none: nothing is to do."""

    @abstractmethod
    def may_go(self, lane: int) -> bool:
        """Return True if `lane` may start its next step now."""

    def may_all_go(self, lanes: Iterable[int]) -> bool:
        """Return True if the lanes of one trainer's message may start their next steps."""
        return all(self.may_go(lane) for lane in lanes)

    def clock(self, lane: int) -> int:
        """Return the clock from which `lane` continues."""
        return self.clocks.get(lane, 0)


class RoundGate(Gate):
    """Gate of rounds: a round is applied once all lanes but `spare` have pushed their step.

    Examples
    --------
    >>> from daskml_dist.policies import RoundGate
    >>> gate = RoundGate([0, 1])
    >>> [gate.push(0, 1), gate.may_go(0), gate.push(1, 1), gate.may_go(0)]
    [True, False, True, False]
    """

    def __init__(self, lanes: Iterable[int], clock: int = 0, *, spare: int = 0) -> None:
        super().__init__(lanes, clock)
        #: Clock of the round that was applied last, from which all lanes continue.
        self._round = clock
        self._spare = spare
        #: Lanes that have pushed in the open round.
        self._arrived: set[int] = set()

    def join(self, lane: int, clock: int) -> None:
        super().join(lane, max(clock, self._round))  # rounds so far went without it

    def push(self, lane: int, clock: int) -> bool:
        # Refused: repeated pushes, and those of backup workers that come after their round.
        if lane not in self.clocks or lane in self._arrived or clock != self._round + 1:
            return False
        self.clocks[lane] = clock
        self._arrived.add(lane)
        return True

    def due(self) -> list[int]:
        """Return the lanes of a round once at most `spare` are missing, and open the next round."""
        # A lane that has left may be in `_arrived` but not in `clocks`. At least one of the others
        # is waited for, whatever `spare` is.
        missing = sum(lane not in self._arrived for lane in self.clocks)
        if not self._arrived or missing > min(self._spare, max(len(self.clocks) - 1, 0)):
            return []
        group = sorted(self._arrived)
        self._arrived.clear()
        self._round += 1
        return group

    def may_go(self, lane: int) -> bool:
        return lane not in self._arrived

    def clock(self, lane: int) -> int:
        return self._round


class ArrivalGate(Gate):
    """Gate that applies pushes on arrival; a lane may lead the slowest by `staleness` clocks.

    Examples
    --------
    >>> from daskml_dist.policies import ArrivalGate
    >>> gate = ArrivalGate([0, 1], staleness=1)
    >>> [gate.push(0, 1), gate.may_go(0), gate.push(0, 2), gate.may_go(0)]
    [True, True, True, False]
    """

    def __init__(
        self, lanes: Iterable[int], clock: int = 0, *, staleness: int | None = None
    ) -> None:
        super().__init__(lanes, clock)
        self._staleness = staleness
        self._arrived: list[int] = []
        #: Number of lanes at each clock. The slowest clock is the smallest key, found among few
        #: clocks instead of many lanes.
        self._n_lanes_at = Counter(self.clocks.values())

    def join(self, lane: int, clock: int) -> None:
        self._count_lane_at(lane, clock)
        super().join(lane, clock)

    def leave(self, lane: int) -> None:
        self._count_lane_at(lane, None)
        super().leave(lane)

    def _count_lane_at(self, lane: int, clock: int | None) -> None:
        """Move a lane to another clock in the counts; None: remove it from them."""
        if (before := self.clocks.get(lane)) is not None:
            self._n_lanes_at[before] -= 1
            if not self._n_lanes_at[before]:
                del self._n_lanes_at[before]
        if clock is not None:
            self._n_lanes_at[clock] += 1

    def push(self, lane: int, clock: int) -> bool:
        if lane not in self.clocks or clock <= self.clocks[lane]:
            return False
        self._count_lane_at(lane, clock)
        self.clocks[lane] = clock
        self._arrived.append(lane)
        return True

    def due(self) -> list[int]:
        return [self._arrived.pop(0)] if self._arrived else []

    def may_go(self, lane: int) -> bool:
        # Stale-synchronous parallel (Ho et al. 2013): the lead over the slowest lane is bounded.
        if self._staleness is None or lane not in self.clocks:
            return True
        return self.clocks[lane] - min(self._n_lanes_at) <= self._staleness


class TrainerGate(ArrivalGate):
    """Gate of trainers whose lanes send one message: the slowest lane of a trainer is bounded.

    That lane may lead the slowest lane of the other trainers by `staleness` clocks. Lanes of one
    trainer do not wait for each other, and the slowest trainer does not wait.
    """

    def may_all_go(self, lanes: Iterable[int]) -> bool:
        own = {lane: self.clocks[lane] for lane in lanes if lane in self.clocks}
        others = [clock for lane, clock in self.clocks.items() if lane not in own]
        if self._staleness is None or not own or not others:
            return True
        return min(own.values()) - min(others) <= self._staleness
