"""Pulses of a fit, which trainers tell each second: made into rates, kept for its whole time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

__all__ = [
    "N_PULSES",
    "N_SPEEDS",
    "PULSES",
    "TRANSPORTS",
    "Pulse",
    "Pulses",
    "make_load_table",
    "make_speed_table",
]

#: Topic of what workers tell; that of `daskml_dist.training.worker.notifications`.
PULSES = "daskml_dist_pulses"
#: Moments that are kept of a fit: once there are as many, every second one goes.
N_PULSES = 400
#: Lanes whose speed is kept.
N_SPEEDS = 32
#: Times that a worker may be silent for as long as it takes from report to report: after that it is
#: taken for gone. One is usual where the scheduler is busy.
_SILENCES = 2.5
#: Ways of messages, by the names of columns.
TRANSPORTS = {"sockets": "sockets", "shared memory": "shared_memory", "NCCL": "nccl"}


@dataclass(frozen=True)
class Pulse:
    """Rates and sums of one moment.

    Parameters
    ----------
    at : float
        Seconds from the begin of the fit.
    speeds : tuple of (int, str, float, float)
        Lane, its worker, seconds from the begin of the fit, and the lane's steps a second since the
        worker's report before.
    traffic : dict of str to float
        Bytes a second, by transport; empty where no worker has told twice.
    sums : dict of str to float
        ``rows_here``, ``rows_streamed``, ``memory`` and ``spilled`` of all workers.
    """

    at: float
    speeds: tuple[tuple[int, str, float, float], ...]
    traffic: dict[str, float]
    sums: dict[str, float]


@dataclass(frozen=True)
class _Report:
    """Report of a worker, with the rates since its report before.

    Parameters
    ----------
    at : float
        Seconds from the begin of the fit at which the worker made it.
    offset : float
        Seconds from the worker's clock to that of the fit.
    told : dict
    steps : dict of int to int
        By lane.
    speeds : dict of int to float
        Steps a second, by lane.
    traffic : dict of str to float
        Bytes a second, by transport.
    """

    at: float
    offset: float
    told: dict[str, Any]
    steps: dict[int, int]
    speeds: dict[int, float]
    traffic: dict[str, float]


class Pulses:
    """The moments of a fit.

    Reports are late or come several at once where the scheduler is busy. Rates are therefore taken
    by the clock of the worker that counted, and a worker that has not told within a moment counts
    in its sums as it last told.
    """

    def __init__(self) -> None:
        self.kept: list[Pulse] = []
        #: The last report of each worker, and the workers that have told in the present moment.
        self._last: dict[str, _Report] = {}
        self._open: list[str] = []

    def hear(self, at: float, told: dict[str, Any]) -> bool:
        """Take what a worker tells; True where it is the first of a moment, and ends the last."""
        worker = told["worker"]
        ends = worker in self._open
        if ends:
            self._close()
        self._last[worker] = _report(at, told, self._last.get(worker))
        self._open.append(worker)
        return ends

    def forget_others(self, workers: Collection[str]) -> None:
        """Forget workers that have no lane any more: others tell of the rows that they had."""
        if self._open and not self._last.keys() <= set(workers):
            self._close()
        self._last = {name: one for name, one in self._last.items() if name in workers}

    def _close(self) -> None:
        """End the present moment, with what each worker has told last."""
        at = max(self._last[worker].at for worker in self._open)
        # A worker that is silent for longer may be gone.
        there = {
            name: report
            for name, report in self._last.items()
            if report.at > at - _SILENCES * report.told["every"]
        }
        speeds = [
            (lane, name, there[name].at, speed)
            for name in self._open
            if name in there
            for lane, speed in there[name].speeds.items()
        ]
        traffic: Counter[str] = Counter()
        for report in there.values():
            traffic.update(report.traffic)
        names = ("rows_here", "rows_streamed", "memory", "spilled")
        sums = {name: float(sum(one.told[name] for one in there.values())) for name in names}
        if self.kept and at <= self.kept[-1].at:  # reports that came late, many at once
            last = self.kept.pop()
            at, speeds = last.at, [*last.speeds, *speeds]
        self.kept.append(Pulse(at, tuple(sorted(speeds)), dict(traffic), sums))
        self._open = []
        if len(self.kept) > N_PULSES:
            del self.kept[1::2]


def _report(at: float, told: dict[str, Any], before: _Report | None) -> _Report:
    """Return a worker's report with its rates, which take another report before it."""
    clock, steps = told["clock"], {lane: n for lane, n in told["steps"] if lane < N_SPEEDS}
    if before is None or (passed := clock - before.told["clock"]) <= 0:
        return _Report(at, at - clock, told, steps, {}, {})
    # The report that was the least time on its way tells best how the two clocks differ.
    offset = min(before.offset, at - clock)
    # Lanes come from other workers, and each generation counts from 0.
    speeds = {
        lane: (n - before.steps[lane]) / passed
        for lane, n in steps.items()
        if n >= before.steps.get(lane, math.inf)
    }
    moved = {
        transport: n - then if n >= (then := before.told["traffic"].get(transport, 0)) else n
        for transport, n in told["traffic"].items()
    }
    traffic = {transport: n / passed for transport, n in moved.items()}
    return _Report(clock + offset, offset, told, steps, speeds, traffic)


def make_speed_table(pulses: Pulses | None, colours: dict[str, str]) -> dict[str, list[Any]]:
    """Return lines of the steps per second of each lane, one for each worker that ran it."""
    lines: dict[tuple[int, str, int], tuple[list[float], list[float]]] = {}
    parts: dict[int, tuple[str, int]] = {}
    for pulse in [] if pulses is None else pulses.kept:
        for lane, worker, at, speed in pulse.speeds:
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


def make_load_table(pulses: Pulses | None) -> dict[str, list[float]]:
    """Return columns over the seconds of a fit."""
    kept = [] if pulses is None else pulses.kept
    table = {"seconds": [pulse.at for pulse in kept]}
    for transport, name in TRANSPORTS.items():
        table[name] = [pulse.traffic.get(transport, 0.0) / 1e6 for pulse in kept]
    for name, of, unit in (
        ("rows_in_memory", "rows_here", 1.0), ("rows_streamed", "rows_streamed", 1.0),
        ("gb_in_memory", "memory", 1e9), ("gb_spilled", "spilled", 1e9),
    ):  # fmt: skip
        table[name] = [pulse.sums[of] / unit for pulse in kept]
    return table
