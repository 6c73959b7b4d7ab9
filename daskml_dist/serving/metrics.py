"""Metrics of a server, in the text format of Prometheus (version 0.0.4).

Processes of one server add up: each keeps its totals in a room of its own of memory that all share,
and whichever is asked tells the sum, in which the others are as of half a second ago at most.
A process that follows another goes on from its totals, so the sums never fall.
"""

from __future__ import annotations

import bisect
import json
import logging
import mmap
import struct
import threading
from collections.abc import Iterable
from typing import Any

_LOG = logging.getLogger("daskml_dist.serving")

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
#: Upper ends of the histogram's buckets, seconds.
BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
)  # fmt: skip
#: Versions of a model that are told apart; those before leave the page, as they leave the service.
_VERSIONS = 16
#: Bytes of a half of a process's room; only pages in use take memory.
_HALF = 1 << 20

_Totals = dict[str, dict[tuple[str, ...], list[float]]]
_HELP = {
    "requests": ("counter", ("model", "version", "code"), "Requests by status code."),
    "rows": ("counter", ("model", "version"), "Rows answered."),
    "swaps": ("counter", ("model",), "Versions taken into service, in all processes."),
    "load_failures": ("counter", ("model",), "Versions not taken, in all processes."),
    "seconds": ("histogram", ("model", "version"), "Time from a request to its answer."),
    "cluster_seconds": ("histogram", ("model", "version"), "Time of answers of a cluster."),
}


class Metrics:
    """Counts and times of requests, of one process or of several that share them.

    Parameters
    ----------
    n_slots : int, default=1
        Processes that may be there at a time; made before they are forked.

    Examples
    --------
    >>> from daskml_dist.serving import Metrics
    >>> metrics = Metrics()
    >>> metrics.count("income", "3", 200)
    >>> [line for line in metrics.render().decode().splitlines() if 'code="200"' in line]
    ['daskml_dist_requests_total{model="income",version="3",code="200"} 1']
    """

    def __init__(self, n_slots: int = 1) -> None:
        self._totals: _Totals = {name: {} for name in _HELP}
        self._served: dict[str, str] = {}
        self._lock = threading.Lock()
        self._slot = 0
        self._board = _SharedCounters(n_slots) if n_slots > 1 else None
        self._is_full = False

    def count(self, model: str, version: str, code: int) -> None:
        """Count a request by its status code."""
        self._add("requests", (model, version, str(code)), 1.0)

    def observe(self, model: str, version: str, seconds: float, n_rows: int) -> None:
        """Note how long an answer took, and of how many rows it was."""
        self._add("rows", (model, version), float(n_rows))
        self._time("seconds", model, version, seconds)

    def observe_cluster(self, model: str, version: str, seconds: float) -> None:
        """Note an answer of a cluster's worker, and how long it took, its ways included."""
        self._time("cluster_seconds", model, version, seconds)

    def swapped(self, model: str, version: str) -> None:
        """Note that a version is served from now on."""
        self._served[model] = version
        self._add("swaps", (model,), 1.0)

    def failed(self, model: str) -> None:
        """Note that a version was not taken."""
        self._add("load_failures", (model,), 1.0)

    def render(self) -> bytes:
        """Return the page that Prometheus reads.

        Returns
        -------
        bytes
            UTF-8 text of the format 0.0.4; its type is `CONTENT_TYPE`.
        """
        with self._lock:
            parts = [{name: dict(series) for name, series in self._totals.items()}]
        if self._board is not None:
            parts += self._board.others(self._slot)
        lines: list[str] = []
        for name, (kind, labels, text) in _HELP.items():
            full = f"daskml_dist_{name}" + ("_total" if kind == "counter" else "")
            lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
            for key, values in sorted(_sum_series(part[name] for part in parts).items()):
                told = [
                    f'{label}="{_escape_label(one)}"'
                    for label, one in zip(labels, key, strict=True)
                ]
                lines += _format_series(full, kind, told, values)
        lines += [
            "# HELP daskml_dist_model_info The version of a model that this process serves.",
            "# TYPE daskml_dist_model_info gauge",
        ]
        for model, version in sorted(self._served.items()):
            served = f'model="{_escape_label(model)}",version="{_escape_label(version)}"'
            lines.append(f"daskml_dist_model_info{{{served}}} 1")
        return ("\n".join(lines) + "\n").encode()

    def attach(self, slot: int) -> None:
        """Go on, in a process just forked, from the totals of those that had its slot before."""
        self._slot = slot
        if self._board is not None and (totals := self._board.read(slot)):
            self._totals = totals

    def share(self) -> None:
        """Put the totals where the other processes see them; called twice a second."""
        if self._board is None:
            return
        with self._lock:
            fits = self._board.write(self._slot, self._totals)
        if not fits and not self._is_full:
            self._is_full = True
            _LOG.warning("Metrics of so many models are not shared: scrapes tell of one process")

    def _time(self, name: str, model: str, version: str, seconds: float) -> None:
        with self._lock:
            times = self._totals[name].get((model, version))
            if times is None:
                times = self._totals[name][model, version] = [0.0] * (len(BUCKETS) + 2)
            times[bisect.bisect_left(BUCKETS, seconds)] += 1.0
            times[-1] += seconds

    def _add(self, name: str, key: tuple[str, ...], amount: float) -> None:
        with self._lock:
            series = self._totals[name].get(key)
            if series is not None:
                series[0] += amount
                return
            self._totals[name][key] = [amount]
            if len(key) > 1:
                self._forget(key[0])

    def _forget(self, model: str) -> None:
        """Drop the versions of a model that were seen first, where there are many."""
        seen = dict.fromkeys(key[1] for key in self._totals["requests"] if key[0] == model)
        seen.update(dict.fromkeys(key[1] for key in self._totals["rows"] if key[0] == model))
        for version in list(seen)[:-_VERSIONS]:
            for name in ("requests", "rows", "seconds", "cluster_seconds"):
                series = self._totals[name]
                for key in [key for key in series if key[:2] == (model, version)]:
                    del series[key]


class _SharedCounters:
    """Rooms of memory that forked processes share, one a process: two halves and which holds."""

    _HEAD = struct.Struct("<QQQ")  # changes so far, bytes in each half

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._room = self._HEAD.size + 2 * _HALF
        self._memory = mmap.mmap(-1, n_slots * self._room)

    def write(self, slot: int, totals: _Totals) -> bool:
        told = {
            name: [[key, values] for key, values in series.items()]
            for name, series in totals.items()
        }
        data = json.dumps(told).encode()
        if len(data) > _HALF:
            return False
        start = slot * self._room
        changes, *sizes = self._HEAD.unpack_from(self._memory, start)
        half = (changes + 1) % 2
        sizes[half] = len(data)
        begin = start + self._HEAD.size + half * _HALF
        self._memory[begin : begin + len(data)] = data
        # Who dies before this line leaves the other half as it was.
        struct.pack_into("<QQ", self._memory, start + 8, *sizes)
        struct.pack_into("<Q", self._memory, start, changes + 1)
        return True

    def read(self, slot: int) -> _Totals | None:
        start = slot * self._room
        while True:
            changes, *sizes = self._HEAD.unpack_from(self._memory, start)
            if changes == 0:
                return None
            half = changes % 2
            begin = start + self._HEAD.size + half * _HALF
            data = self._memory[begin : begin + sizes[half]]
            # A half is written again two changes later at the earliest.
            if self._HEAD.unpack_from(self._memory, start)[0] == changes:
                break
        told = json.loads(data)
        return {name: {tuple(key): values for key, values in told.get(name, [])} for name in _HELP}

    def others(self, slot: int) -> list[_Totals]:
        found = (self.read(one) for one in range(self._n_slots) if one != slot)
        return [one for one in found if one is not None]


def _sum_series(
    parts: Iterable[dict[tuple[str, ...], list[float]]],
) -> dict[tuple[str, ...], list[float]]:
    total: dict[tuple[str, ...], list[float]] = {}
    for part in parts:
        for key, values in part.items():
            before = total.get(key)
            total[key] = [a + b for a, b in zip(before, values, strict=True)] if before else values
    return total


def _format_series(full: str, kind: str, labels: list[str], values: list[float]) -> list[str]:
    told = ",".join(labels)
    if kind == "counter":
        return [f"{full}{{{told}}} {_format_count(values[0])}"]
    lines, below = [], 0.0
    for end, n in zip((*map(str, BUCKETS), "+Inf"), values[:-1], strict=True):
        below += n
        lines.append(f'{full}_bucket{{{told},le="{end}"}} {_format_count(below)}')
    lines.append(f"{full}_sum{{{told}}} {values[-1]!r}")
    lines.append(f"{full}_count{{{told}}} {_format_count(below)}")
    return lines


def _format_count(value: Any) -> str:
    return str(int(value))


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
