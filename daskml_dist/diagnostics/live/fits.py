"""The last fits of a cluster, as their clients have told them, and the tables of the page."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HANDLER", "Fit", "Fits", "lane_table", "mark_table", "pass_table"]

#: Name of the scheduler's handler that takes what clients tell.
HANDLER = "daskml_dist_training"
#: Fits that are kept, and of each the last passes, changes of membership, and lanes in a picture.
N_FITS, N_PASSES, N_CHANGES, N_LANES = 20, 2000, 100, 256
#: Passes that speed and remaining time are told from.
_RECENT = 5
#: Colours of workers: Okabe and Ito's, which colour-blind people tell apart.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#666666")
_COLUMNS = ("loss", "val_score", "eval_score", "staleness_mean", "staleness_max")


@dataclass
class Fit:
    """A fit, as far as its client has told of it.

    Parameters
    ----------
    fit, estimator, policy, client : str
        Names; of the client its id.
    max_iter, n_lanes, n_servers : int
    began : float
        Seconds since the epoch.
    """

    fit: str
    estimator: str
    policy: str
    client: str
    max_iter: int
    n_lanes: int
    n_servers: int
    began: float
    state: str = "running"
    #: Seconds from its begin to what was told last.
    at: float = 0.0
    #: Changes with each event.
    version: int = 0
    records: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=N_PASSES))
    #: Seconds and words of changes of membership; seconds and the worker of each lane.
    generations: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=N_CHANGES))
    lanes: deque[tuple[float, list[str]]] = field(default_factory=lambda: deque(maxlen=N_CHANGES))

    def take(self, event: dict[str, Any]) -> None:
        """Take an event in."""
        at, kind = event["at"], event["kind"]
        self.at, self.version = max(self.at, at), self.version + 1
        if kind == "pass":
            self._take_back(event["record"]["pass"] - 1)
            self.records.append(event["record"])
        elif kind == "generation":
            self._take_back(event["n_passes"])
            self.generations.append((at, event["text"]))
        elif kind == "lanes":
            self.lanes.append((at, event["lanes"]))
        elif kind == "end":
            self.state = event["how"]

    def _take_back(self, n_passes: int) -> None:
        """Forget what was told of later passes: they are made again."""
        while self.records and self.records[-1]["pass"] > n_passes:
            self.records.pop()

    @property
    def n_passes(self) -> int:
        """Number of the last pass."""
        return int(self.records[-1]["pass"]) if self.records else 0

    @property
    def rows_per_second(self) -> float:
        """Rows a second of the last passes; NaN before the first."""
        rows, seconds, _ = self._recent
        return rows / seconds if seconds > 0 else math.nan

    @property
    def seconds_left(self) -> float:
        """Seconds until its last pass at most, NaN before the first; 0 once it has ended."""
        if self.state != "running":
            return 0.0
        _, seconds, passes = self._recent
        return seconds / passes * max(0, self.max_iter - self.n_passes) if passes else math.nan

    @property
    def _recent(self) -> tuple[float, float, int]:
        """Rows, seconds and number of the last passes."""
        recent = list(self.records)[-_RECENT:]
        rows, seconds = (
            float(sum(record[key] for record in recent)) for key in ("rows", "seconds")
        )
        return rows, seconds, len(recent)


class Fits:
    """The last fits, oldest first."""

    def __init__(self) -> None:
        self._fits: dict[str, Fit] = {}

    def take(self, events: list[dict[str, Any]]) -> None:
        """Take what a client tells; of a fit that is not known, nothing."""
        for event in events:
            name = event["fit"]
            if event["kind"] == "begin":
                facts = {k: v for k, v in event.items() if k not in {"kind", "at"}}
                self._fits.pop(name, None)
                self._fits[name] = Fit(**facts)
                while len(self._fits) > N_FITS:
                    del self._fits[next(iter(self._fits))]
            elif name in self._fits:
                self._fits[name].take(event)

    def leave(self, client: str) -> None:
        """Note that a client is gone, and with it the fits that it ran."""
        for fit in self._fits.values():
            if fit.client == client and fit.state == "running":
                fit.state, fit.version = "its client has left", fit.version + 1

    def all(self) -> list[Fit]:
        """All that are kept, oldest first."""
        return list(self._fits.values())


def pass_table(fit: Fit | None) -> dict[str, list[float]]:
    """Columns over the passes of a fit, NaN where there is no value.

    Returns
    -------
    dict of str to list of float
        ``pass``, the measures of a record by their names, ``mb_pushed``, ``mb_pulled`` (megabytes)
        and ``rows_per_second``.
    """
    records = [] if fit is None else list(fit.records)
    table = {key: [_number(record.get(key)) for record in records] for key in ("pass", *_COLUMNS)}
    for way in ("pushed", "pulled"):
        table[f"mb_{way}"] = [_number(record.get(f"bytes_{way}")) / 1e6 for record in records]
    table["rows_per_second"] = [
        record["rows"] / record["seconds"] if record["seconds"] > 0 else math.nan
        for record in records
    ]
    return table


def lane_table(fit: Fit | None) -> dict[str, list[Any]]:
    """Rectangles: which worker ran a lane, from one moment to another (seconds)."""
    table: dict[str, list[Any]] = {
        key: [] for key in ("left", "right", "bottom", "top", "lane", "worker", "colour")
    }
    if fit is None or not fit.lanes:
        return table
    workers = dict.fromkeys(worker for _, lanes in fit.lanes for worker in lanes)
    colours = {w: _COLOURS[number % len(_COLOURS)] for number, w in enumerate(workers)}
    ends = [at for at, _ in list(fit.lanes)[1:]] + [fit.at]
    for (begin, lanes), end in zip(fit.lanes, ends, strict=True):
        for lane, worker in enumerate(lanes[:N_LANES]):
            row = (begin, end, lane - 0.45, lane + 0.45, lane, worker, colours[worker])
            for column, value in zip(table.values(), row, strict=True):
                column.append(value)
    return table


def mark_table(fit: Fit | None) -> dict[str, list[Any]]:
    """Marks of changes of membership: a line at a moment (seconds), and its words."""
    marks = [] if fit is None else list(fit.generations)
    top = 0 if fit is None else min(fit.n_lanes, N_LANES) - 0.5
    return {
        "at": [at for at, _ in marks],
        "bottom": [-0.5] * len(marks),
        "top": [top] * len(marks),
        "text": [text for _, text in marks],
    }


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
