"""Rates of a fit over time, computed from the reports that workers send every second.

A report has counters: steps of each lane and bytes of each transport since the generation began.
`_make_report` computes rates from the differences between a worker's successive reports, by the
worker's own clock. The reports of all workers within one interval form one sample (`RateSample`);
the sample is closed when a worker reports for the second time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

#: Topic of the workers' reports; equal to the one in `daskml_dist.training.worker.notifications`.
HEARTBEAT_TOPIC = "daskml_dist_heartbeats"
#: Largest number of samples kept per fit; beyond it, every second one is dropped.
MAX_RATE_SAMPLES = 400
#: Number of lanes whose speed is kept, starting at lane 0.
MAX_SPEED_LANES = 32
#: Number of intervals without a report after which a worker counts as lost. One late report is
#: normal if the scheduler is busy.
_MAX_SILENT_INTERVALS = 2.5
#: Columns of the load table, by transport.
TRANSPORTS = {"sockets": "sockets", "shared memory": "shared_memory", "NCCL": "nccl"}


@dataclass(frozen=True)
class RateSample:
    """Rates and totals of all workers at one moment.

    Parameters
    ----------
    seconds : float
        Seconds since the start of the fit.
    speeds : tuple of (int, str, float, float)
        Lane, its worker, seconds since the start of the fit, and the lane's steps per second
        between the worker's last two reports.
    traffic : dict of str to float
        Bytes per second, by transport; empty until at least one worker has reported twice.
    sums : dict of str to float
        ``rows_here``, ``rows_streamed``, ``memory`` and ``spilled``, summed over all workers.
    """

    seconds: float
    speeds: tuple[tuple[int, str, float, float], ...]
    traffic: dict[str, float]
    sums: dict[str, float]


@dataclass(frozen=True)
class _Report:
    """Report of a worker, with the rates since its previous report.

    Parameters
    ----------
    seconds : float
        Seconds since the start of the fit at which the worker made the report.
    offset : float
        Seconds to add to the worker's clock to get the clock of the fit.
    content : dict
    steps : dict of int to int
        By lane.
    speeds : dict of int to float
        Steps per second, by lane.
    traffic : dict of str to float
        Bytes per second, by transport.
    """

    seconds: float
    offset: float
    content: dict[str, Any]
    steps: dict[int, int]
    speeds: dict[int, float]
    traffic: dict[str, float]


class HeartbeatHistory:
    """Rates of a fit at successive times, oldest first.

    A busy scheduler delivers reports late, or several together. So rates use the clock of the
    worker that counted, and a sample without a report of some worker uses that worker's last one.
    """

    def __init__(self) -> None:
        self.samples: list[RateSample] = []
        # The last report of each worker, and the workers that have reported in the current sample.
        self._last: dict[str, _Report] = {}
        self._open: list[str] = []

    def record(self, seconds: float, content: dict[str, Any]) -> bool:
        """Record a worker's report; return whether it closed a sample and opened a new one."""
        worker = content["worker"]
        ends = worker in self._open
        if ends:
            self._close()
        self._last[worker] = _make_report(seconds, content, self._last.get(worker))
        self._open.append(worker)
        return ends

    def forget_others(self, workers: Collection[str]) -> None:
        """Forget workers without lanes: other workers now report the rows that they held."""
        if self._open and not self._last.keys() <= set(workers):
            self._close()
        self._last = {name: one for name, one in self._last.items() if name in workers}

    def _close(self) -> None:
        """Close the current sample, with the last report of each worker."""
        at = max(self._last[worker].seconds for worker in self._open)
        # Workers that have been silent for too long count as lost; their last report is not used.
        heard = {
            name: report
            for name, report in self._last.items()
            if report.seconds > at - _MAX_SILENT_INTERVALS * report.content["every"]
        }
        speeds = [
            (lane, name, heard[name].seconds, speed)
            for name in self._open
            if name in heard
            for lane, speed in heard[name].speeds.items()
        ]
        traffic: Counter[str] = Counter()
        for report in heard.values():
            traffic.update(report.traffic)
        names = ("rows_here", "rows_streamed", "memory", "spilled")
        sums = {name: float(sum(one.content[name] for one in heard.values())) for name in names}
        # Late reports that belong to the same time are merged into one sample.
        if self.samples and at <= self.samples[-1].seconds:
            last = self.samples.pop()
            at, speeds = last.seconds, [*last.speeds, *speeds]
        self.samples.append(RateSample(at, tuple(sorted(speeds)), dict(traffic), sums))
        self._open = []
        # Drop every second sample, but keep the first one.
        if len(self.samples) > MAX_RATE_SAMPLES:
            del self.samples[1::2]


def _make_report(seconds: float, content: dict[str, Any], previous: _Report | None) -> _Report:
    """Return a worker's report with its rates; a worker's first report has none."""
    clock = content["clock"]
    steps = {lane: n for lane, n in content["steps"] if lane < MAX_SPEED_LANES}
    if previous is None or (passed := clock - previous.content["clock"]) <= 0:
        return _Report(seconds, seconds - clock, content, steps, {}, {})
    # The report with the shortest delivery gives the best estimate of the clocks' difference.
    offset = min(previous.offset, seconds - clock)
    # No speed for a lane that has just moved to this worker, or whose counter a new generation
    # reset.
    speeds = {
        lane: (n - previous.steps[lane]) / passed
        for lane, n in steps.items()
        if n >= previous.steps.get(lane, math.inf)
    }
    # A new generation resets the counters to 0: then the new value is the whole difference.
    moved = {
        transport: n - then if n >= (then := previous.content["traffic"].get(transport, 0)) else n
        for transport, n in content["traffic"].items()
    }
    traffic = {transport: n / passed for transport, n in moved.items()}
    return _Report(clock + offset, offset, content, steps, speeds, traffic)


def make_speed_table(
    heartbeats: HeartbeatHistory | None, colours: dict[str, str]
) -> dict[str, list[Any]]:
    """Return lines of the steps per second of each lane, with a new line for each worker."""
    # Key: lane, worker, and index of the line among the lane's lines.
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
    table = {"seconds": [sample.seconds for sample in samples]}
    for transport, name in TRANSPORTS.items():
        table[name] = [sample.traffic.get(transport, 0.0) / 1e6 for sample in samples]
    for name, of, unit in (
        ("rows_in_memory", "rows_here", 1.0), ("rows_streamed", "rows_streamed", 1.0),
        ("gb_in_memory", "memory", 1e9), ("gb_spilled", "spilled", 1e9),
    ):  # fmt: skip
        table[name] = [sample.sums[of] / unit for sample in samples]
    return table
