"""Gates: state machines that tell which pushes apply now, and who may go on."""

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
        """Forget a lane: nobody waits for it any more. Its open push, if any, still counts."""
        self.clocks.pop(lane, None)

    @abstractmethod
    def push(self, lane: int, clock: int) -> bool:
        """Record that `lane` pushed its step `clock` (from 1); False when it must be dropped."""

    @abstractmethod
    def due(self) -> list[int]:
        """Lanes whose pushes form the next apply; empty when nothing is due."""

    @abstractmethod
    def may_go(self, lane: int) -> bool:
        """Whether `lane` may start its next step now."""

    def may_all_go(self, lanes: Iterable[int]) -> bool:
        """Whether the lanes of a message, which are of one trainer, may start their next steps."""
        return all(self.may_go(lane) for lane in lanes)

    def clock(self, lane: int) -> int:
        """The clock that `lane` goes on from."""
        return self.clocks.get(lane, 0)


class RoundGate(Gate):
    """Rounds: a round applies once all lanes but `spare` have pushed it.

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
    """Pushes apply on arrival; a lane may lead the slowest by `staleness` clocks.

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
        #: Number of the lanes at each clock: few clocks where lanes are many.
        self._at = Counter(self.clocks.values())

    def join(self, lane: int, clock: int) -> None:
        self._move(lane, clock)
        super().join(lane, clock)

    def leave(self, lane: int) -> None:
        self._move(lane, None)
        super().leave(lane)

    def _move(self, lane: int, clock: int | None) -> None:
        """Count a lane at another clock, or at none."""
        if (before := self.clocks.get(lane)) is not None:
            self._at[before] -= 1
            if not self._at[before]:
                del self._at[before]
        if clock is not None:
            self._at[clock] += 1

    def push(self, lane: int, clock: int) -> bool:
        if lane not in self.clocks or clock <= self.clocks[lane]:
            return False
        self._move(lane, clock)
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
    """Lanes of a trainer that speak together: its slowest may lead others' by `staleness`.

    They do not wait for each other, and the slowest trainer for nobody.
    """

    def may_all_go(self, lanes: Iterable[int]) -> bool:
        own = {lane: self.clocks[lane] for lane in lanes if lane in self.clocks}
        others = [clock for lane, clock in self.clocks.items() if lane not in own]
        if self._staleness is None or not own or not others:
            return True
        return min(own.values()) - min(others) <= self._staleness
