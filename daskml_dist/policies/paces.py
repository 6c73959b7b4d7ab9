"""Paces of lanes: after how many steps each should push, so that slow lanes push as often."""

from __future__ import annotations

from collections import deque
from statistics import median_low

#: Measurements of a lane's pace that its median is of: a lane that was stopped once is not slow.
_KEPT_PACES = 5
#: Smallest share of the steps between two pushes of the fastest lane, so that a slow lane sends at
#: most 16 times as often per step: a message costs as much whatever the steps that it tells of.
_LEAST_SHARE = 1 / 16
#: Relative change of a number of steps below which it stays as it is: paces vary by some per cent.
_LEAST_CHANGE = 0.25


class LanePaces:
    """Seconds that each lane takes for a step, and the number of steps between its pushes.

    The fastest lane pushes after `most_steps` steps. The others push after as many as they make in
    the same time (dynamic local updates, Liu et al. 2024, section 5).

    Parameters
    ----------
    most_steps : int
        Steps of the fastest lane between two pushes.
    least_steps : int, default=1
        Fewest steps between two pushes.

    References
    ----------
    B. Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024.
    """

    def __init__(self, most_steps: int, least_steps: int = 1) -> None:
        self._most = most_steps
        self._least = max(least_steps, round(_LEAST_SHARE * most_steps))
        #: When each lane began with the steps that it will push next.
        self._began: dict[int, float] = {}
        #: The last seconds per step of each lane.
        self._paces: dict[int, deque[float]] = {}
        #: Their median, by which a lane is as fast as another.
        self._medians: dict[int, float] = {}
        #: Steps that each lane was told last.
        self._told: dict[int, int] = {}

    def begin(self, lane: int, now: float) -> None:
        """Note that a lane begins with the steps of its next push."""
        self._began[lane] = now

    def end(self, lane: int, n_steps: int, now: float) -> None:
        """Note that a lane has pushed so many steps."""
        # The first push of a lane has no beginning: it would include the start of its worker.
        if (began := self._began.pop(lane, None)) is not None and n_steps > 0:
            paces = self._paces.setdefault(lane, deque(maxlen=_KEPT_PACES))
            paces.append((now - began) / n_steps)
            self._medians[lane] = median_low(paces)

    def leave(self, lane: int) -> None:
        """Forget a lane, whose pace no longer counts."""
        for known in (self._began, self._paces, self._medians, self._told):
            known.pop(lane, None)

    def count_steps(self, lane: int) -> int:
        """Return after how many steps a lane should push next; 0: its pace is not known."""
        if lane not in self._medians:
            return 0
        own, fastest = self._medians[lane], min(self._medians.values())
        wanted = self._most
        if own > fastest:
            wanted = max(self._least, round(self._most * fastest / own))
        told = self._told.get(lane, self._most)
        if abs(wanted - told) > _LEAST_CHANGE * told:
            self._told[lane] = told = wanted
        return told
