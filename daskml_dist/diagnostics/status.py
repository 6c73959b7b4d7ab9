"""Facts of a fit so far, and the words that tell them."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daskml_dist.diagnostics.curves import CURVES

__all__ = ["Status", "estimate_seconds_left"]


#: Characters of a progress bar.
_BAR_WIDTH = 16
#: Passes of which curves are drawn, at most.
_MOST_RECORDS = 1000
#: The phase that passes tell of.
_PASSES = "training"
#: Seconds beyond which the remaining time is not shown.
_LONG = 1e7


class Status:
    """Facts of a fit so far.

    Parameters
    ----------
    max_iter : int or None
        Passes that count as the whole; None: the fit's own.
    work : str, default=""
        Name of what is no fit but makes many.

    Attributes
    ----------
    title : str
        Of the fit; empty before it begins.
    phase : str
        What the fit does, as callbacks are told.
    """

    def __init__(self, max_iter: int | None, work: str = "") -> None:
        self.title = work
        self._work = work
        self._noun = "block"
        self._entered = time.perf_counter()
        self.max_iter = max_iter
        self.phase = _PASSES
        self._done = 0
        self._total: int | None = None
        self._since = time.perf_counter()
        self._last: dict[str, Any] | None = None
        #: Pass, rows and seconds of each pass that counts.
        self._made: list[tuple[int, int, float]] = []
        #: Measures of the passes so far, for curves; of very many, of each second, fourth, ... one.
        self.records: list[dict[str, Any]] = []
        self._every = 1

    def begin(self, run: Any) -> None:
        """Take note that the fit begins."""
        lanes, servers = _format_count(run.n_lanes, "lane"), _format_count(run.n_servers, "server")
        self.title = f"{run.policy_name}, {lanes}, {servers}"
        self.phase = _PASSES
        if self.max_iter is None:
            self.max_iter = run.max_iter

    def enter(
        self, phase: str, done: int = 0, total: int | None = None, noun: str = "block"
    ) -> bool:
        """Take note of what the fit does; return whether it is something else than before."""
        before, self.phase, self._noun = self.phase, phase, noun
        if phase != before:
            self._entered = time.perf_counter()
        self._done, self._total = done, total
        return phase != before

    def add(self, record: dict[str, Any]) -> None:
        """Take note of a pass."""
        self.phase = _PASSES
        while self._made and self._made[-1][0] >= record["pass"]:
            self._made.pop()  # it was made again
        while self.records and self.records[-1]["pass"] >= record["pass"]:
            self.records.pop()
        self._made.append((record["pass"], record["rows"], record["seconds"]))
        self._last = record
        if len(self._made) % self._every == 0 or len(self._made) == 1:
            self.records.append({key: record.get(key) for key in ("pass", *CURVES)})
        if len(self.records) > _MOST_RECORDS:
            self.records, self._every = self.records[::2], 2 * self._every

    @property
    def in_passes(self) -> bool:
        """True while the fit makes passes."""
        return self.phase == _PASSES

    def position(self) -> str:
        """Return a text that tells the position of the fit."""
        if not self.in_passes:
            return self.phase if self._total is None else f"{self.phase} {self._counted()}"
        whole = "" if self.max_iter is None else f"/{self.max_iter}"
        return f"pass {self._pass}{whole}"

    def _counted(self) -> str:
        return f"{self._done}/{_format_count(self._total or 0, self._noun)}"

    @property
    def _rows(self) -> int:
        return sum(rows for _, rows, _ in self._made)

    @property
    def _seconds(self) -> float:
        return sum(seconds for *_, seconds in self._made)

    @property
    def _pass(self) -> int:
        return self._last["pass"] if self._last else 0

    @property
    def share(self) -> float | None:
        """Share of its phase that is done; None where that is not known."""
        done, total = (self._pass, self.max_iter) if self.in_passes else (self._done, self._total)
        return done / total if total else None

    def metrics(self) -> str:
        """Return a text of the current loss, scores and rates."""
        record = self._last
        if record is None or not self.in_passes:
            return "  ".join([self._elapsed(), *self._left_of_phase()])
        shown = [
            *_format_loss(record),
            _format_rate(record["rows"], record["seconds"]),
            f"staleness {record['staleness_mean']:.3g} (max {record['staleness_max']:.3g})",
            *_format_score(record),
            self._elapsed(),
            *self._left(),
        ]
        return "  ".join(shown)

    def _elapsed(self) -> str:
        return _format_clock(time.perf_counter() - self._since)

    def _left(self) -> list[str]:
        """Return the time for the remaining passes, which a tolerance may cut short."""
        each = self._seconds / max(len(self._made), 1)
        seconds = estimate_seconds_left(self._pass, self.max_iter, each)
        return [f"ETA <= {_format_clock(math.ceil(seconds))}"] if 0 < seconds < _LONG else []

    def _left_of_phase(self) -> list[str]:
        """Return the time for the remaining parts of a phase, at the pace so far."""
        if not self._done or self._total is None:
            return []
        spent = time.perf_counter() - self._entered
        seconds = spent / self._done * (self._total - self._done)
        return [f"ETA {_format_clock(math.ceil(seconds))}"] if 1 <= seconds < _LONG else []

    def opening(self) -> str:
        """Return the first line of a fit."""
        whole = "" if self.max_iter is None else f", at most {_format_count(self.max_iter, 'pass')}"
        return f"{self.title}: fit begins{whole}"

    def line(self) -> str:
        """Return the full status as one line."""
        named = f"{self._work}: " if self._work else ""
        return f"{named}{self.position()}  {self.metrics()}"

    def summary(self) -> str:
        """Return the last line of a fit; for one that never began, its last phase."""
        spent = time.perf_counter() - self._since
        if self._work:
            return f"{self._work}: {spent:.3g} s, last: {self.position()}"
        if not self.title:
            return f"no pass in {spent:.3g} s, last: {self.position()}"
        parts = [f"{self.title}: {_format_count(len(self._made), 'pass')} in {spent:.3g} s"]
        if self._last is not None:
            parts += [*_format_loss(self._last), _format_rate(self._rows, self._seconds)]
            parts += _format_score(self._last)
        return ", ".join(parts)

    def render(self) -> Table:
        """Return a table of one row, for rich."""
        total, done = (self.max_iter, self._pass) if self.in_passes else (self._total, self._done)
        bar = ProgressBar(total=total, completed=done, width=_BAR_WIDTH)
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        where = f"{self._work}: {self.position()}" if self._work else self.position()
        table.add_row(Text(where), bar, Text(self.metrics()))
        return table


def _format_clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _format_count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def _format_rate(rows: int, seconds: float) -> str:
    if seconds <= 0:
        return "- rows/s"
    rate = rows / seconds
    for unit in ("", "k", "M"):
        if rate < 999.5:
            return f"{rate:.3g}{unit} rows/s"
        rate /= 1000
    return f"{rate:.3g}G rows/s"


def _format_loss(record: dict[str, Any]) -> list[str]:
    """Return the loss as text, where the pass has one: naive Bayes counts without."""
    return [] if math.isnan(record["loss"]) else [f"loss {record['loss']:.6g}"]


def _format_score(record: dict[str, Any]) -> list[str]:
    score = record["val_score"]
    return [] if score is None else [f"val score {score:.4g}"]


def estimate_seconds_left(n_passes: int, most: int | None, seconds: float) -> float:
    """Return the seconds until the last pass at most; NaN where no estimate is possible."""
    if most is None or not n_passes or n_passes < _TELLING * most:
        return math.nan
    return seconds * max(0, most - n_passes)


#: Share of the passes before which their bound says nothing: most fits end long before a thousand.
_TELLING = 0.01
