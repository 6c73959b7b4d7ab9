"""Paces of lanes: how many steps each lane makes per push, so that slow lanes push as often."""

from __future__ import annotations

from collections import deque
from statistics import median_low

#: Measurements of a lane's pace of which the median is taken: a single pause does not make it slow.
_KEPT_PACES = 5
#: Smallest number of steps between pushes, as a share of the fastest lane's. A slow lane then sends
#: at most 16 times as many messages per step; the cost of a message does not depend on its steps.
_LEAST_SHARE = 1 / 16
#: Relative change below which the number of steps is kept, since paces vary by a few per cent.
_LEAST_CHANGE = 0.25


class LanePaces:
    """Seconds that each lane takes for a step, and the number of steps between its pushes.

    The fastest lane pushes after `most_steps` steps. The others push after the number of steps that
    they make in the same time (dynamic local updates, Liu et al. 2024, section 5).

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
        self._max_steps = most_steps
        self._min_steps = max(least_steps, round(_LEAST_SHARE * most_steps))
        #: Time at which each lane began the steps of its next push.
        self._began: dict[int, float] = {}
        #: Recent measurements of each lane, in seconds per step.
        self._paces: dict[int, deque[float]] = {}
        #: Median of each lane's measurements, by which lanes are compared.
        self._medians: dict[int, float] = {}
        #: Number of steps that each lane was last given.
        self._announced_steps: dict[int, int] = {}

    def begin(self, lane: int, now: float) -> None:
        """Record that a lane begins the steps of its next push."""
        self._began[lane] = now

    def end(self, lane: int, n_steps: int, now: float) -> None:
        """Record that a lane has pushed `n_steps` steps."""
        # The first push of a lane is not measured: its time would include the start of its worker.
        if (began := self._began.pop(lane, None)) is not None and n_steps > 0:
            paces = self._paces.setdefault(lane, deque(maxlen=_KEPT_PACES))
            paces.append((now - began) / n_steps)
            self._medians[lane] = median_low(paces)

    def leave(self, lane: int) -> None:
        """Forget a lane, so that its pace no longer counts."""
        for by_lane in (self._began, self._paces, self._medians, self._announced_steps):
            by_lane.pop(lane, None)

    def count_steps(self, lane: int) -> int:
        """Return after how many steps a lane should push next; 0 if its pace is unknown."""
        if lane not in self._medians:
            return 0
        own_seconds, fastest = self._medians[lane], min(self._medians.values())
        n_steps = self._max_steps
        if own_seconds > fastest:
            n_steps = max(self._min_steps, round(self._max_steps * fastest / own_seconds))
        current = self._announced_steps.get(lane, self._max_steps)
        if abs(n_steps - current) > _LEAST_CHANGE * current:
            self._announced_steps[lane] = current = n_steps
        return current
