"""Metrics of a server, in the text format of Prometheus (version 0.0.4).

A scrape reaches any one of a server's processes, but must report the counts of all. So each process
writes its totals, twice a second, to its own slot in shared memory; the scraped process adds the
others' slots to its own totals. A process that replaces another continues from the totals in its
slot, so the sums never decrease, as Prometheus requires of counters.
"""

from __future__ import annotations

import bisect
import json
import logging
import mmap
import struct
import threading
from collections.abc import Iterable

_LOG = logging.getLogger("daskml_dist.serving")

#: Media type of Prometheus's text format, with the version that scrapers check.
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds of the histogram's buckets, in seconds: from a small model in process to a request
#: answered by a cluster.
BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
)  # fmt: skip
#: Versions of a model that have their own series; older ones are dropped, since a stream that
#: publishes versions would otherwise create series without end.
_MAX_VERSIONS = 16
#: Bytes of one of the two buffers of a process, which hold some thousands of series as JSON; only
#: pages in use take memory.
_BUFFER_BYTES = 1 << 20

#: By metric, the values of each series by its labels: one number for a counter; for a histogram the
#: counts of its buckets, the count of larger values, and the sum.
_Totals = dict[str, dict[tuple[str, ...], list[float]]]
#: Type, labels and help text of each metric.
_METRICS = {
    "requests": ("counter", ("model", "version", "code"), "Requests by status code."),
    "rows": ("counter", ("model", "version"), "Rows answered."),
    "swaps": ("counter", ("model",), "Versions loaded, in all processes."),
    "load_failures": ("counter", ("model",), "Versions that failed to load, in all processes."),
    "seconds": ("histogram", ("model", "version"), "Time from a request to its answer."),
    "cluster_seconds": ("histogram", ("model", "version"), "Time of predictions on the cluster."),
}


class Metrics:
    """Counts and times of requests, of one process or of several that share them.

    Parameters
    ----------
    n_slots : int, default=1
        Most processes at a time. With more than one, make this before they are forked.

    Examples
    --------
    >>> from daskml_dist.serving import Metrics
    >>> metrics = Metrics()
    >>> metrics.count("income", "3", 200)
    >>> [line for line in metrics.render().decode().splitlines() if 'code="200"' in line]
    ['daskml_dist_requests_total{model="income",version="3",code="200"} 1']
    """

    def __init__(self, n_slots: int = 1) -> None:
        self._totals: _Totals = {name: {} for name in _METRICS}
        # Served version of each model.
        self._served: dict[str, str] = {}
        self._lock = threading.Lock()
        self._slot = 0
        self._board = _SharedCounters(n_slots) if n_slots > 1 else None
        self._is_full = False

    def count(self, model: str, version: str, code: int) -> None:
        """Count a request by its status code."""
        self._add("requests", (model, version, str(code)), 1.0)

    def observe(self, model: str, version: str, seconds: float, n_rows: int) -> None:
        """Record the seconds of a response, and the number of its rows."""
        self._add("rows", (model, version), float(n_rows))
        self._time("seconds", model, version, seconds)

    def observe_cluster(self, model: str, version: str, seconds: float) -> None:
        """Record the seconds of a response by a cluster's worker, including transfers."""
        self._time("cluster_seconds", model, version, seconds)

    def swapped(self, model: str, version: str) -> None:
        """Record that a version is served from now on."""
        self._served[model] = version
        self._add("swaps", (model,), 1.0)

    def failed(self, model: str) -> None:
        """Count a version that could not be loaded."""
        self._add("load_failures", (model,), 1.0)

    def render(self) -> bytes:
        """Return the page for Prometheus.

        Returns
        -------
        bytes
            UTF-8 text of the format 0.0.4; its type is `CONTENT_TYPE`.
        """
        with self._lock:
            process_totals = [{name: dict(series) for name, series in self._totals.items()}]
        if self._board is not None:
            process_totals += self._board.sum_other_slots(self._slot)
        lines: list[str] = []
        for name, (kind, labels, text) in _METRICS.items():
            full_name = f"daskml_dist_{name}" + ("_total" if kind == "counter" else "")
            lines += [f"# HELP {full_name} {text}", f"# TYPE {full_name} {kind}"]
            for key, values in sorted(
                _sum_series(totals[name] for totals in process_totals).items()
            ):
                pairs = [
                    f'{label}="{_escape_label(value)}"'
                    for label, value in zip(labels, key, strict=True)
                ]
                lines += _format_series(full_name, kind, ",".join(pairs), values)
        lines += [
            "# HELP daskml_dist_model_info The version of a model that this process serves.",
            "# TYPE daskml_dist_model_info gauge",
        ]
        for model, version in sorted(self._served.items()):
            served = f'model="{_escape_label(model)}",version="{_escape_label(version)}"'
            lines.append(f"daskml_dist_model_info{{{served}}} 1")
        return ("\n".join(lines) + "\n").encode()

    def attach(self, slot: int) -> None:
        """Continue, in a process just forked, from the totals of earlier processes in its slot."""
        self._slot = slot
        if self._board is not None and (totals := self._board.read(slot)):
            self._totals = totals

    def share(self) -> None:
        """Write the totals for the other processes to read; called twice a second."""
        if self._board is None:
            return
        with self._lock:
            has_room = self._board.write(self._slot, self._totals)
        if not has_room and not self._is_full:
            self._is_full = True
            _LOG.warning(
                "Too many models to share metrics between processes: a scrape reports a single "
                "process"
            )

    def _time(self, name: str, model: str, version: str, seconds: float) -> None:
        """Add a time to the histogram of a model's version."""
        with self._lock:
            buckets = self._totals[name].get((model, version))
            if buckets is None:
                buckets = self._totals[name][model, version] = [0.0] * (len(BUCKETS) + 2)
            buckets[bisect.bisect_left(BUCKETS, seconds)] += 1.0
            buckets[-1] += seconds

    def _add(self, name: str, key: tuple[str, ...], amount: float) -> None:
        """Add to the counter of a metric with the labels `key`."""
        with self._lock:
            series = self._totals[name].get(key)
            if series is not None:
                series[0] += amount
                return
            self._totals[name][key] = [amount]
            # A new series of a version; there may now be too many.
            if len(key) > 1:
                self._forget(key[0])

    def _forget(self, model: str) -> None:
        """Drop the oldest series of a model's versions, beyond the maximum number."""
        # Dicts keep the order of insertion, so the keys are in the order of first sight.
        versions = dict.fromkeys(key[1] for key in self._totals["requests"] if key[0] == model)
        versions.update(dict.fromkeys(key[1] for key in self._totals["rows"] if key[0] == model))
        for version in list(versions)[:-_MAX_VERSIONS]:
            for name in ("requests", "rows", "seconds", "cluster_seconds"):
                series = self._totals[name]
                for key in [key for key in series if key[:2] == (model, version)]:
                    del series[key]


class _SharedCounters:
    """Memory shared by forked processes: for each, a counter of changes and two buffers.

    A writer fills the buffer that is not valid, and then increments the counter, whose parity
    selects the valid one. So a writer that is killed leaves the old totals, and a reader that finds
    the counter unchanged has read consistent totals: the buffer that it read is written only after
    another change.
    """

    _HEAD = struct.Struct("<QQQ")  # number of changes, bytes in each buffer

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._slot_bytes = self._HEAD.size + 2 * _BUFFER_BYTES
        self._memory = mmap.mmap(-1, n_slots * self._slot_bytes)

    def write(self, slot: int, totals: _Totals) -> bool:
        """Write the totals of a slot; return False if they do not fit."""
        # JSON keys cannot be tuples.
        pairs = {
            name: [[key, values] for key, values in series.items()]
            for name, series in totals.items()
        }
        data = json.dumps(pairs).encode()
        if len(data) > _BUFFER_BYTES:
            return False
        start = slot * self._slot_bytes
        n_changes, *sizes = self._HEAD.unpack_from(self._memory, start)
        half = (n_changes + 1) % 2
        sizes[half] = len(data)
        data_start = start + self._HEAD.size + half * _BUFFER_BYTES
        self._memory[data_start : data_start + len(data)] = data
        struct.pack_into("<QQ", self._memory, start + 8, *sizes)
        # Last: from here on readers use the other buffer.
        struct.pack_into("<Q", self._memory, start, n_changes + 1)
        return True

    def read(self, slot: int) -> _Totals | None:
        """Return the totals of a slot; None if none were written."""
        start = slot * self._slot_bytes
        while True:
            n_changes, *sizes = self._HEAD.unpack_from(self._memory, start)
            if n_changes == 0:
                return None
            half = n_changes % 2
            data_start = start + self._HEAD.size + half * _BUFFER_BYTES
            data = self._memory[data_start : data_start + sizes[half]]
            # Changed in the meantime: the buffer may be partly overwritten, so it is read again.
            if self._HEAD.unpack_from(self._memory, start)[0] == n_changes:
                break
        pairs = json.loads(data)
        return {
            name: {tuple(key): values for key, values in pairs.get(name, [])} for name in _METRICS
        }

    def sum_other_slots(self, slot: int) -> list[_Totals]:
        """Return the totals of all slots except one, including processes that have ended."""
        totals = (self.read(number) for number in range(self._n_slots) if number != slot)
        return [slot_totals for slot_totals in totals if slot_totals is not None]


def _sum_series(
    process_series: Iterable[dict[tuple[str, ...], list[float]]],
) -> dict[tuple[str, ...], list[float]]:
    """Return the sums of the series of several processes, by their labels."""
    total: dict[tuple[str, ...], list[float]] = {}
    for series in process_series:
        for key, values in series.items():
            earlier = total.get(key)
            total[key] = (
                [a + b for a, b in zip(earlier, values, strict=True)] if earlier else values
            )
    return total


def _format_series(full: str, kind: str, labels: str, values: list[float]) -> list[str]:
    """Return the lines of a counter or of a histogram, whose buckets count all smaller values."""
    if kind == "counter":
        return [f"{full}{{{labels}}} {int(values[0])}"]
    lines, below = [], 0.0
    for end, n in zip((*map(str, BUCKETS), "+Inf"), values[:-1], strict=True):
        below += n
        lines.append(f'{full}_bucket{{{labels},le="{end}"}} {int(below)}')
    lines.append(f"{full}_sum{{{labels}}} {values[-1]!r}")
    lines.append(f"{full}_count{{{labels}}} {int(below)}")
    return lines


def _escape_label(text: str) -> str:
    """Return the value of a label as the text format has it between quotes."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
