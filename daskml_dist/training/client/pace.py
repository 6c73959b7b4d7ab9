"""Pace of workers, from the time that their lanes take for a row: some are slow for long."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

__all__ = ["Pace"]

#: Speed, as a share of the median worker's, below which a worker is slow.
_SLOW = 0.4
#: Looks in a row, at different passes, and seconds, after which it is so persistently.
_LOOKS, _SECONDS = 3, 2.0


class Pace:
    """Follows the speed of the workers of a run.

    Parameters
    ----------
    lane_rows : sequence of int
        Rows of each lane.
    """

    def __init__(self, lane_rows: Sequence[int]) -> None:
        self._rows = lane_rows
        self._seen = 0
        #: Looks at which a worker was slow in a row, and when the first of them was.
        self._slow: dict[str, tuple[int, float]] = {}

    def look(
        self, passes: int, busy: Mapping[int, float], workers: Mapping[int, str]
    ) -> dict[str, float]:
        """Take the lanes' last pass; return the speed of each persistently slow worker.

        Parameters
        ----------
        passes : int
            Passes that have ended; a look at the same one again is ignored.
        busy : mapping of lane to float
            Seconds that each lane computed in its last pass.
        workers : mapping of lane to worker

        Returns
        -------
        dict of worker to float
            Rows a second, as a share of the median worker's.
        """
        if passes <= self._seen:
            return {}
        self._seen = passes
        speeds = self._speeds(busy, workers)
        if len(speeds) < 2:
            return {}
        now, median = time.monotonic(), statistics.median(speeds.values())
        slow = {worker: speed / median for worker, speed in speeds.items()}
        slow = {worker: share for worker, share in slow.items() if share < _SLOW}
        self._slow = {
            worker: (self._slow.get(worker, (0, now))[0] + 1, self._slow.get(worker, (0, now))[1])
            for worker in slow
        }
        return {
            worker: share
            for worker, share in slow.items()
            if self._slow[worker][0] >= _LOOKS and now - self._slow[worker][1] >= _SECONDS
        }

    def _speeds(self, busy: Mapping[int, float], workers: Mapping[int, str]) -> dict[str, float]:
        rows: dict[str, float] = {}
        seconds: dict[str, float] = {}
        for lane, worker in workers.items():
            if busy.get(lane, 0) > 0:
                rows[worker] = rows.get(worker, 0) + self._rows[lane]
                seconds[worker] = seconds.get(worker, 0) + busy[lane]
        return {worker: rows[worker] / seconds[worker] for worker in rows}
