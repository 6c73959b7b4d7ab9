"""Pulses of a fit, which trainers tell each second: made into rates, kept for its whole time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

__all__ = [
    "N_PULSES",
    "N_SPEEDS",
    "PULSES",
    "TRANSPORTS",
    "Pulse",
    "Pulses",
    "load_table",
    "speed_table",
]

#: Topic of what workers tell; that of `daskml_dist.training.worker.pulse`.
PULSES = "daskml_dist_pulses"
#: Moments that are kept of a fit: once there are as many, every second one goes.
N_PULSES = 400
#: Lanes whose speed is kept.
N_SPEEDS = 32
#: Ways of messages, by the names of columns.
TRANSPORTS = {"sockets": "sockets", "shared memory": "shared_memory", "NCCL": "nccl"}


@dataclass(frozen=True)
class Pulse:
    """Rates and sums of one moment.

    Parameters
    ----------
    at : float
        Seconds from the begin of the fit.
    speeds : tuple of (int, str, float)
        Lane, its worker, and its steps a second since the moment before.
    traffic : dict of str to float
        Bytes a second, by transport; empty where nothing is known of the moment before.
    sums : dict of str to float
        ``rows_here``, ``rows_streamed``, ``memory`` and ``spilled`` of all workers.
    """

    at: float
    speeds: tuple[tuple[int, str, float], ...]
    traffic: dict[str, float]
    sums: dict[str, float]


class Pulses:
    """The moments of a fit."""

    def __init__(self) -> None:
        self.kept: list[Pulse] = []
        self._last: tuple[float, dict[str, Any]] | None = None
        #: The moment that workers tell of now, since when.
        self._open: dict[str, dict[str, Any]] = {}
        self._since = 0.0

    def hear(self, at: float, told: dict[str, Any]) -> bool:
        """Take what a worker tells; True where it is the first of a moment, and ends the last."""
        ends = told["worker"] in self._open
        if ends:
            self.take(self._since, self._open)
            self._open = {}
        if not self._open:
            self._since = at
        self._open[told["worker"]] = told | {"steps": {lane: n for lane, n in told["steps"]}}
        return ends

    def take(self, at: float, workers: dict[str, Any]) -> None:
        """Take what all workers tell at one moment."""
        before, self._last = self._last, (at, workers)
        speeds: list[tuple[int, str, float]] = []
        traffic: Counter[str] = Counter()
        if before is not None and (passed := at - before[0]) > 0:
            for address in workers.keys() & before[1].keys():
                now, then = workers[address], before[1][address]
                speeds += [
                    (lane, address, (steps - then["steps"][lane]) / passed)
                    for lane, steps in now["steps"].items()
                    if lane < N_SPEEDS and steps >= then["steps"].get(lane, math.inf)
                ]
                for transport, moved in now["traffic"].items():
                    # Each generation counts from 0.
                    more = moved - then["traffic"].get(transport, 0)
                    traffic[transport] += (more if more >= 0 else moved) / passed
        names = ("rows_here", "rows_streamed", "memory", "spilled")
        sums = {name: float(sum(w[name] for w in workers.values())) for name in names}
        self.kept.append(Pulse(at, tuple(sorted(speeds)), dict(traffic), sums))
        if len(self.kept) > N_PULSES:
            del self.kept[1::2]


def speed_table(pulses: Pulses | None, colours: dict[str, str]) -> dict[str, list[Any]]:
    """Lines: steps a second of a lane for as long as one worker ran it."""
    lines: dict[tuple[int, str, int], tuple[list[float], list[float]]] = {}
    parts: dict[int, tuple[str, int]] = {}
    for pulse in [] if pulses is None else pulses.kept:
        for lane, worker, speed in pulse.speeds:
            last, part = parts.get(lane, ("", 0))
            parts[lane] = worker, part + (last != worker)
            times, speeds = lines.setdefault((lane, *parts[lane]), ([], []))
            times.append(pulse.at)
            speeds.append(speed)
    return {
        "seconds": [times for times, _ in lines.values()],
        "speed": [speeds for _, speeds in lines.values()],
        "lane": [lane for lane, *_ in lines],
        "worker": [worker for _, worker, _ in lines],
        "colour": [colours.get(worker, "#666666") for _, worker, _ in lines],
    }


def load_table(pulses: Pulses | None) -> dict[str, list[float]]:
    """Columns over the seconds of a fit.

    Returns
    -------
    dict of str to list of float
        ``seconds``; megabytes a second by the names of `TRANSPORTS`; ``rows_in_memory`` and
        ``rows_streamed``; ``gb_in_memory`` and ``gb_spilled`` of the workers.
    """
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
