"""Rates of a fit over time, made from the reports that workers send each second.

A report has counters: steps of each lane and bytes of each transport since the generation began.
Differences of a worker's successive reports, by its own clock, are rates (`_make_report`). Reports
of all workers that come within one interval make a moment (`RateSample`), which a second report of
the same worker ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

#: Topic of the workers' reports, as in `daskml_dist.training.worker.notifications`.
HEARTBEAT_TOPIC = "daskml_dist_heartbeats"
#: Most samples that are kept of a fit: beyond it every second one is dropped.
MAX_RATE_SAMPLES = 400
#: Lanes whose speed is kept, from lane 0 on.
MAX_SPEED_LANES = 32
#: Intervals between reports after which a silent worker counts as lost. One late report is usual
#: where the scheduler is busy.
_MAX_SILENT_INTERVALS = 2.5
#: Columns of the load table, by transport.
TRANSPORTS = {"sockets": "sockets", "shared memory": "shared_memory", "NCCL": "nccl"}


@dataclass(frozen=True)
class RateSample:
    """Rates and totals of all workers at one moment.

    Parameters
    ----------
    at : float
        Seconds from the begin of the fit.
    speeds : tuple of (int, str, float, float)
        Lane, its worker, seconds since the begin of the fit, and the lane's steps a second between
        the worker's last two reports.
    traffic : dict of str to float
        Bytes a second, by transport; empty until some worker has reported twice.
    sums : dict of str to float
        ``rows_here``, ``rows_streamed``, ``memory`` and ``spilled`` of all workers.
    """

    at: float
    speeds: tuple[tuple[int, str, float, float], ...]
    traffic: dict[str, float]
    sums: dict[str, float]


@dataclass(frozen=True)
class _Report:
    """Report of a worker, with the rates since its previous report.

    Parameters
    ----------
    at : float
        Seconds from the begin of the fit at which the worker made it.
    offset : float
        Seconds from the worker's clock to that of the fit.
    content : dict
    steps : dict of int to int
        By lane.
    speeds : dict of int to float
        Steps a second, by lane.
    traffic : dict of str to float
        Bytes a second, by transport.
    """

    at: float
    offset: float
    content: dict[str, Any]
    steps: dict[int, int]
    speeds: dict[int, float]
    traffic: dict[str, float]


class HeartbeatHistory:
    """Rates of a fit at successive moments, oldest first.

    A busy scheduler delivers reports late, or several at once. So rates are taken by the clock of
    the worker that counted, and a worker without a report in a moment counts with its last one.
    """

    def __init__(self) -> None:
        self.samples: list[RateSample] = []
        # The last report of each worker, and the workers that have reported in the present moment.
        self._last: dict[str, _Report] = {}
        self._open: list[str] = []

    def record(self, at: float, content: dict[str, Any]) -> bool:
        """Record a worker's report; return whether it opens a new moment and so ends the last."""
        worker = content["worker"]
        ends = worker in self._open
        if ends:
            self._close()
        self._last[worker] = _make_report(at, content, self._last.get(worker))
        self._open.append(worker)
        return ends

    def forget_others(self, workers: Collection[str]) -> None:
        """Forget workers that have no lanes any more: others count the rows that they took over."""
        if self._open and not self._last.keys() <= set(workers):
            self._close()
        self._last = {name: one for name, one in self._last.items() if name in workers}

    def _close(self) -> None:
        """End the present moment, with the last report of each worker."""
        at = max(self._last[worker].at for worker in self._open)
        # Workers that have been silent for too long count as lost, not with their last report.
        heard = {
            name: report
            for name, report in self._last.items()
            if report.at > at - _MAX_SILENT_INTERVALS * report.content["every"]
        }
        speeds = [
            (lane, name, heard[name].at, speed)
            for name in self._open
            if name in heard
            for lane, speed in heard[name].speeds.items()
        ]
        traffic: Counter[str] = Counter()
        for report in heard.values():
            traffic.update(report.traffic)
        names = ("rows_here", "rows_streamed", "memory", "spilled")
        sums = {name: float(sum(one.content[name] for one in heard.values())) for name in names}
        # Several late reports of one moment are merged with it.
        if self.samples and at <= self.samples[-1].at:
            last = self.samples.pop()
            at, speeds = last.at, [*last.speeds, *speeds]
        self.samples.append(RateSample(at, tuple(sorted(speeds)), dict(traffic), sums))
        self._open = []
        # Each second moment from the second on: the first one stays.
        if len(self.samples) > MAX_RATE_SAMPLES:
            del self.samples[1::2]


def _make_report(at: float, content: dict[str, Any], before: _Report | None) -> _Report:
    """Return a worker's report with its rates; the first one has none."""
    clock = content["clock"]
    steps = {lane: n for lane, n in content["steps"] if lane < MAX_SPEED_LANES}
    if before is None or (passed := clock - before.content["clock"]) <= 0:
        return _Report(at, at - clock, content, steps, {}, {})
    # The report with the shortest delivery gives the best estimate of the clocks' difference.
    offset = min(before.offset, at - clock)
    # No speed for a lane that has moved here, or whose counter a new generation has reset.
    speeds = {
        lane: (n - before.steps[lane]) / passed
        for lane, n in steps.items()
        if n >= before.steps.get(lane, math.inf)
    }
    # Counters begin at 0 again with a new generation: then the new value is all that was moved.
    moved = {
        transport: n - then if n >= (then := before.content["traffic"].get(transport, 0)) else n
        for transport, n in content["traffic"].items()
    }
    traffic = {transport: n / passed for transport, n in moved.items()}
    return _Report(clock + offset, offset, content, steps, speeds, traffic)


def make_speed_table(
    heartbeats: HeartbeatHistory | None, colours: dict[str, str]
) -> dict[str, list[Any]]:
    """Return lines of the steps per second of each lane, a new line where its worker changes."""
    # By lane, worker, and number of the line among the lane's.
    lines: dict[tuple[int, str, int], tuple[list[float], list[float]]] = {}
    parts: dict[int, tuple[str, int]] = {}
    for sample in [] if heartbeats is None else heartbeats.samples:
        for lane, worker, at, speed in sample.speeds:
            last, part = parts.get(lane, ("", 0))
            parts[lane] = worker, part + (last != worker)
            times, speeds = lines.setdefault((lane, *parts[lane]), ([], []))
            times.append(at)
            speeds.append(speed)
    return {
        "seconds": [times for times, _ in lines.values()],
        "speed": [speeds for _, speeds in lines.values()],
        "lane": [lane for lane, *_ in lines],
        "worker": [worker for _, worker, _ in lines],
        "colour": [colours.get(worker, "#666666") for _, worker, _ in lines],
    }


def make_load_table(heartbeats: HeartbeatHistory | None) -> dict[str, list[float]]:
    """Return traffic (MB/s), rows and memory (GB) of all workers, over the seconds of a fit."""
    samples = [] if heartbeats is None else heartbeats.samples
    table = {"seconds": [sample.at for sample in samples]}
    for transport, name in TRANSPORTS.items():
        table[name] = [sample.traffic.get(transport, 0.0) / 1e6 for sample in samples]
    for name, of, unit in (
        ("rows_in_memory", "rows_here", 1.0), ("rows_streamed", "rows_streamed", 1.0),
        ("gb_in_memory", "memory", 1e9), ("gb_spilled", "spilled", 1e9),
    ):  # fmt: skip
        table[name] = [sample.sums[of] / unit for sample in samples]
    return table
