"""Recent fits of a cluster as reported by their clients, and the data tables of the figures.

`RecentFits` runs on the scheduler and applies events to `Fit` objects. The functions below turn a
fit into tables of columns for bokeh. Each accepts None for a page without a fit, and then returns
empty columns.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from daskml_dist.diagnostics.curves import COLOURS, LEAST_SPAN, number_or_nan
from daskml_dist.diagnostics.live.heartbeats import HeartbeatHistory
from daskml_dist.diagnostics.status import estimate_seconds_left

#: Name of the scheduler's handler of the clients' events.
HANDLER = "daskml_dist_training"
#: Largest number of fits that are kept, and for each fit of its last passes, changes of membership,
#: lanes in a figure, and scores of rungs.
N_FITS, N_PASSES, N_CHANGES, N_LANES, N_RUNGS = 20, 2000, 100, 256, 2000
#: Number of last passes from which the speed and the remaining time are computed.
_N_RECENT_PASSES = 5
#: Measures whose axis need not contain 0, and all measures of a record.
LEVELS = ("loss", "val_score", "eval_score")
_COLUMNS = (*LEVELS, "staleness_mean", "staleness_max")


@dataclass
class Fit:
    """State of a fit, built from the events of its client.

    Parameters
    ----------
    fit, estimator, policy, client : str
        Names; for the client, its id.
    max_iter : int or None
        Largest number of passes; None if the fit has no such limit.
    n_lanes, n_servers : int
    began : float
        Seconds since the epoch.
    """

    fit: str
    estimator: str
    policy: str
    client: str
    max_iter: int | None
    n_lanes: int
    n_servers: int
    began: float
    state: str = "running"
    #: Seconds from the start to the latest event or report.
    elapsed_seconds: float = 0.0
    #: Incremented by each event, so that the page knows when to redraw.
    version: int = 0
    records: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=N_PASSES))
    #: (Second, text) of each change of membership; then (second, worker of each lane from then on).
    generations: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=N_CHANGES))
    lanes: deque[tuple[float, list[str]]] = field(default_factory=lambda: deque(maxlen=N_CHANGES))
    #: Current phase.
    phase: str = ""
    #: (Candidate, bracket, resource, score), as reported by searches.
    rungs: deque[tuple[int, int, float, float]] = field(
        default_factory=lambda: deque(maxlen=N_RUNGS)
    )
    heartbeats: HeartbeatHistory = field(default_factory=HeartbeatHistory)
    #: Begin of the fit on this process's monotonic clock: the earliest begin that an event implies,
    #: since delays in delivery can only make it seem later.
    local_start: float = math.inf

    def take(self, event: dict[str, Any]) -> None:
        """Update the state with an event."""
        at, kind = event["at"], event["kind"]
        self.elapsed_seconds, self.version = max(self.elapsed_seconds, at), self.version + 1
        self.local_start = min(self.local_start, time.monotonic() - at)
        if kind == "pass":
            # A repeated pass replaces its first report and the reports of later passes.
            self._take_back(event["record"]["pass"] - 1)
            self.records.append(event["record"])
        elif kind == "phase":
            self.phase = event["text"]
        elif kind == "rung":
            self.rungs.extend(tuple(score) for score in event["scores"])
        elif kind == "generation":
            self._take_back(event["n_passes"])
            self.generations.append((at, event["text"]))
        elif kind == "lanes":
            self.lanes.append((at, event["lanes"]))
            self.heartbeats.forget_others(event["lanes"])
        elif kind == "end":
            self.state = event["how"]

    def hear(self, report: dict[str, Any]) -> None:
        """Update the rates with the report of a worker."""
        if self.state == "running":
            self.elapsed_seconds = max(self.elapsed_seconds, time.monotonic() - self.local_start)
            if self.heartbeats.record(self.elapsed_seconds, report):
                self.version += 1

    def _take_back(self, n_passes: int) -> None:
        """Drop the passes after the first `n_passes`: they will be repeated."""
        while self.records and self.records[-1]["pass"] > n_passes:
            self.records.pop()

    @property
    def n_passes(self) -> int:
        """Return the number of the last pass."""
        return int(self.records[-1]["pass"]) if self.records else 0

    @property
    def passes(self) -> str:
        """Return the number of the last pass as text, with `max_iter` if there is one."""
        return f"{self.n_passes}" if self.max_iter is None else f"{self.n_passes}/{self.max_iter}"

    @property
    def rows_per_second(self) -> float:
        """Return the rows per second of the last passes; NaN before the first one."""
        rows, seconds, _ = self._recent
        return rows / seconds if seconds > 0 else math.nan

    @property
    def seconds_left(self) -> float:
        """Return an upper bound of the remaining seconds: NaN if unknown, 0 after the end."""
        if self.state != "running":
            return 0.0
        _, seconds, passes = self._recent
        return estimate_seconds_left(self.n_passes, self.max_iter, seconds / max(passes, 1))

    @property
    def _recent(self) -> tuple[float, float, int]:
        """Return rows, seconds and number of the last passes."""
        recent = list(self.records)[-_N_RECENT_PASSES:]
        rows, seconds = (
            float(sum(record[key] for record in recent)) for key in ("rows", "seconds")
        )
        return rows, seconds, len(recent)


class RecentFits:
    """The most recent fits, oldest first."""

    def __init__(self) -> None:
        self._fits: dict[str, Fit] = {}
        # The fit of each run id: a fit that trains in parts has one run id per part.
        self._fit_of: dict[str, str] = {}

    def take(self, events: list[dict[str, Any]]) -> None:
        """Apply the events of a client; events of unknown fits are ignored."""
        for event in events:
            name = event["fit"]
            if event["kind"] == "begin":
                # Remove and insert again, so that the newest fit is the last of the dict.
                facts = {k: v for k, v in event.items() if k not in {"kind", "at"}}
                self._fits.pop(name, None)
                self._fits[name] = Fit(**facts)
                self._fit_of[name] = name
                while len(self._fits) > N_FITS:
                    oldest = next(iter(self._fits))
                    del self._fits[oldest]
                    self._fit_of = {r: fit for r, fit in self._fit_of.items() if fit != oldest}
            elif event["kind"] == "part":
                self._fit_of[event["run"]] = name
            elif name in self._fits:
                self._fits[name].take(event)

    def hear(self, report: dict[str, Any]) -> None:
        """Apply the report of a worker; reports of unknown runs are ignored."""
        fit = self._fits.get(self._fit_of.get(report["run"], ""))
        if fit is not None:
            fit.hear(report)

    def leave(self, client: str) -> None:
        """Record that a client has left, and with it the fits that it ran."""
        for fit in self._fits.values():
            if fit.client == client and fit.state == "running":
                fit.state, fit.version = "its client has left", fit.version + 1

    def all(self) -> list[Fit]:
        """Return all stored fits, oldest first."""
        return list(self._fits.values())


def make_pass_table(fit: Fit | None) -> dict[str, list[float]]:
    """Return columns over the passes of a fit; NaN marks a missing value."""
    records = [] if fit is None else list(fit.records)
    table = {
        key: [number_or_nan(record.get(key)) for record in records] for key in ("pass", *_COLUMNS)
    }
    # Invisible points below and above each value keep the axis from shrinking to almost no height.
    for name in LEVELS:
        half = [LEAST_SPAN / 2 * abs(value) for value in table[name]]
        table[f"{name}_low"] = [v - h for v, h in zip(table[name], half, strict=True)]
        table[f"{name}_high"] = [v + h for v, h in zip(table[name], half, strict=True)]
    for way in ("pushed", "pulled"):
        table[f"mb_{way}"] = [number_or_nan(record.get(f"bytes_{way}")) / 1e6 for record in records]
    table["rows_per_second"] = [
        record["rows"] / record["seconds"] if record["seconds"] > 0 else math.nan
        for record in records
    ]
    return table


def make_staleness_table(fit: Fit | None) -> dict[str, list[Any]]:
    """Return bars of the gradients applied in the stored passes, by their staleness in versions."""
    # Entry i counts staleness 0 (i = 0), 1 (i = 1), or 2^(i - 1) to 2^i - 1 (larger i).
    counts: list[int] = []
    for record in () if fit is None else fit.records:
        found = record.get("staleness_counts") or []
        counts += [0] * (len(found) - len(counts))
        for at, count in enumerate(found):
            counts[at] += count
    names = [f"{1 << at >> 1}+" if at > 1 else str(at) for at in range(len(counts))]
    return {"versions": names, "count": counts}


def assign_colours(fit: Fit | None) -> dict[str, str]:
    """Return a colour for each worker that ran a lane."""
    lanes = [] if fit is None else fit.lanes
    workers = dict.fromkeys(worker for _, some in lanes for worker in some)
    return {w: COLOURS[number % len(COLOURS)] for number, w in enumerate(workers)}


def make_lane_table(fit: Fit | None) -> dict[str, list[Any]]:
    """Return rectangles of the lanes that each worker ran, with begin and end in seconds."""
    table: dict[str, list[Any]] = {
        key: [] for key in ("left", "right", "bottom", "top", "lane", "worker", "colour")
    }
    if fit is None or not fit.lanes:
        return table
    colours = assign_colours(fit)
    # An assignment of lanes lasts until the next one begins; the last one, until now.
    ends = [at for at, _ in list(fit.lanes)[1:]] + [fit.elapsed_seconds]
    for (begin, lanes), end in zip(fit.lanes, ends, strict=True):
        for lane, worker in enumerate(lanes[:N_LANES]):
            row = (begin, end, lane - 0.45, lane + 0.45, lane, worker, colours[worker])
            for column, value in zip(table.values(), row, strict=True):
                column.append(value)
    return table


def make_mark_table(fit: Fit | None) -> dict[str, list[Any]]:
    """Return marks of changes of membership: the second and the text of each."""
    marks = [] if fit is None else list(fit.generations)
    top = 0 if fit is None else min(fit.n_lanes, N_LANES) - 0.5
    return {
        "at": [at for at, _ in marks],
        "bottom": [-0.5] * len(marks),
        "top": [top] * len(marks),
        "text": [text for _, text in marks],
    }


def make_rung_table(fit: Fit | None) -> dict[str, list[Any]]:
    """Return lines of the scores of each candidate over its rungs, without failed ones (NaN)."""
    lines: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    for candidate, bracket, resource, score in () if fit is None else fit.rungs:
        if not math.isnan(score):
            resources, scores = lines.setdefault((bracket, candidate), ([], []))
            resources.append(resource)
            scores.append(score)
    return {
        "resource": [resources for resources, _ in lines.values()],
        "score": [scores for _, scores in lines.values()],
        "last": [resources[-1] for resources, _ in lines.values()],
        "came_to": [scores[-1] for _, scores in lines.values()],
        "bracket": [bracket for bracket, _ in lines],
        "name": [f"bracket {bracket}" for bracket, _ in lines],
        "candidate": [candidate for _, candidate in lines],
        "colour": [COLOURS[bracket % len(COLOURS)] for bracket, _ in lines],
    }
