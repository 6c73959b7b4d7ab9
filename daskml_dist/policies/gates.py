"""Gates: state machines that decide which pushes apply now, and which lanes may go on.

They never block: a server asks them after each message, and keeps the answers to lanes that may not
go on. Clocks count finished steps, so that a repeated push has no effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable

__all__ = ["ArrivalGate", "Gate", "RoundGate", "TrainerGate"]


class Gate(ABC):
    """Live state of one policy over a set of lanes.

    A lane's clock counts the steps that it has finished (pushed). Repeated pushes are refused
    here, which makes every push idempotent.

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
        """Let a lane take part from `clock` on."""
        self.clocks[lane] = clock

    def leave(self, lane: int) -> None:
        """Forget a lane, so that no lane waits for it; its open push, if any, counts."""
        self.clocks.pop(lane, None)

    @abstractmethod
    def push(self, lane: int, clock: int) -> bool:
        """Record the push of step `clock` (from 1) of a lane; return False if it is refused."""

    @abstractmethod
    def due(self) -> list[int]:
        """Return the lanes whose pushes apply next; none while a round is open."""

    @abstractmethod
    def may_go(self, lane: int) -> bool:
        """Return True if `lane` may start its next step now."""

    def may_all_go(self, lanes: Iterable[int]) -> bool:
        """Return True if the lanes of one trainer's message may start their next steps."""
        return all(self.may_go(lane) for lane in lanes)

    def clock(self, lane: int) -> int:
        """Return the clock that `lane` continues from."""
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
        self._round = clock
        self._spare = spare
        self._arrived: set[int] = set()

    def join(self, lane: int, clock: int) -> None:
        super().join(lane, max(clock, self._round))

    def push(self, lane: int, clock: int) -> bool:
        if lane not in self.clocks or lane in self._arrived or clock != self._round + 1:
            return False
        self.clocks[lane] = clock
        self._arrived.add(lane)
        return True

    def due(self) -> list[int]:
        """Return the lanes of a round once at most `spare` are missing, and open the next round."""
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
        #: Number of lanes at each clock, so that the slowest is found among few clocks, not many
        #: lanes.
        self._at = Counter(self.clocks.values())

    def join(self, lane: int, clock: int) -> None:
        self._count_lane_at(lane, clock)
        super().join(lane, clock)

    def leave(self, lane: int) -> None:
        self._count_lane_at(lane, None)
        super().leave(lane)

    def _count_lane_at(self, lane: int, clock: int | None) -> None:
        """Count a lane at another clock, or at none (None)."""
        if (before := self.clocks.get(lane)) is not None:
            self._at[before] -= 1
            if not self._at[before]:
                del self._at[before]
        if clock is not None:
            self._at[clock] += 1

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
        if self._staleness is None or lane not in self.clocks:
            return True
        return self.clocks[lane] - min(self._at) <= self._staleness


class TrainerGate(ArrivalGate):
    """Gate of trainers whose lanes send one message: the slowest lane of a trainer is bounded.

    It may lead the slowest lane of the other trainers by `staleness` clocks. Lanes of a trainer do
    not wait for each other, and the slowest trainer does not wait.
    """

    def may_all_go(self, lanes: Iterable[int]) -> bool:
        own = {lane: self.clocks[lane] for lane in lanes if lane in self.clocks}
        others = [clock for lane, clock in self.clocks.items() if lane not in own]
        if self._staleness is None or not own or not others:
            return True
        return min(own.values()) - min(others) <= self._staleness
