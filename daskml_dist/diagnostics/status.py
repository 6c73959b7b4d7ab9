"""Status of a fit in progress, and its texts.

`Status` stores the reports of callbacks (phases, passes) and formats them for every display: as a
line, a summary, or a table row of rich. Times are wall time in seconds.
"""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daskml_dist.diagnostics.curves import CURVES

#: Characters of a progress bar.
_BAR_WIDTH = 16
#: Largest number of records kept for curves; beyond it, every second one is dropped.
_MAX_RECORDS = 1000
#: Name of the phase in which passes are made.
_PASSES = "training"
#: Remaining seconds (about four months) above which they are not shown.
_MAX_SECONDS_LEFT = 1e7

#: Share of `max_iter` that must be done before the remaining time is estimated: a fit may end long
#: before `max_iter`, and a bound of many times its length would be useless.
_MIN_SHARE_OF_ESTIMATE = 0.01


class Status:
    """Phase, passes and measures of a fit in progress.

    Parameters
    ----------
    max_iter : int or None
        Number of passes that counts as 100 %; None: the fit's own.
    work : str, default=""
        Name of an operation that makes several fits, such as a search.

    Attributes
    ----------
    title : str
        Policy and size of the fit; empty before it begins.
    phase : str
        Current phase, as passed to callbacks.
    """

    def __init__(self, max_iter: int | None, work: str = "") -> None:
        self.title = work
        self._work = work
        self.max_iter = max_iter
        # The phase, its start time, and its parts: number done, total number, noun.
        self.phase = _PASSES
        self._entered = time.perf_counter()
        self._n_done = 0
        self._total: int | None = None
        self._noun = "block"
        self._since = time.perf_counter()
        # Record of the last pass; and (pass, rows, seconds) of each pass that is still valid.
        self._last: dict[str, Any] | None = None
        self._finished_passes: list[tuple[int, int, float]] = []
        #: Measures of every `_curve_interval`-th pass, for curves.
        self.records: list[dict[str, Any]] = []
        self._curve_interval = 1

    def record_start(self, run: Any) -> None:
        """Record the start of a fit."""
        lanes, servers = _format_count(run.n_lanes, "lane"), _format_count(run.n_servers, "server")
        self.title = f"{run.policy_name}, {lanes}, {servers}"
        self.phase = _PASSES
        if self.max_iter is None:
            self.max_iter = run.max_iter

    def enter(
        self, phase: str, n_done: int = 0, total: int | None = None, noun: str = "block"
    ) -> bool:
        """Record the phase and its progress; return whether the phase is new."""
        last_phase, self.phase, self._noun = self.phase, phase, noun
        if phase != last_phase:
            self._entered = time.perf_counter()
        self._n_done, self._total = n_done, total
        return phase != last_phase

    def add(self, record: dict[str, Any]) -> None:
        """Record a pass."""
        self.phase = _PASSES
        # A pass repeated after the loss of a worker replaces its first record and all later ones.
        while self._finished_passes and self._finished_passes[-1][0] >= record["pass"]:
            self._finished_passes.pop()
        while self.records and self.records[-1]["pass"] >= record["pass"]:
            self.records.pop()
        self._finished_passes.append((record["pass"], record["rows"], record["seconds"]))
        self._last = record
        if (
            len(self._finished_passes) % self._curve_interval == 0
            or len(self._finished_passes) == 1
        ):
            self.records.append({key: record.get(key) for key in ("pass", *CURVES)})
        if len(self.records) > _MAX_RECORDS:
            self.records, self._curve_interval = self.records[::2], 2 * self._curve_interval

    @property
    def in_passes(self) -> bool:
        """Return whether the fit is now making passes."""
        return self.phase == _PASSES

    def position(self) -> str:
        """Return the pass, or the phase with its progress, as text."""
        if not self.in_passes:
            if self._total is None:
                return self.phase
            return f"{self.phase} {self._n_done}/{_format_count(self._total, self._noun)}"
        limit = "" if self.max_iter is None else f"/{self.max_iter}"
        return f"pass {self._pass}{limit}"

    @property
    def _seconds(self) -> float:
        """Return the total seconds of all passes."""
        return sum(seconds for *_, seconds in self._finished_passes)

    @property
    def _pass(self) -> int:
        """Return the number of the last pass; 0 before the first."""
        return self._last["pass"] if self._last else 0

    @property
    def completed_share(self) -> float | None:
        """Return the completed share of the phase; None if it is unknown."""
        n_done, total = (
            (self._pass, self.max_iter) if self.in_passes else (self._n_done, self._total)
        )
        return n_done / total if total else None

    def metrics(self) -> str:
        """Return loss, rate, staleness, score and times of the last pass as text."""
        record = self._last
        if record is None or not self.in_passes:
            return "  ".join([self._elapsed(), *self._left_of_phase()])
        texts = [
            *_format_loss(record),
            _format_rate(record["rows"], record["seconds"]),
            f"staleness {record['staleness_mean']:.3g} (max {record['staleness_max']:.3g})",
            *_format_score(record),
            self._elapsed(),
            *self._format_time_left(),
        ]
        return "  ".join(texts)

    def _elapsed(self) -> str:
        return _format_clock(time.perf_counter() - self._since)

    def _format_time_left(self) -> list[str]:
        """Return the time left until `max_iter` as text; a tolerance may end the fit earlier."""
        seconds_per_pass = self._seconds / max(len(self._finished_passes), 1)
        seconds = estimate_seconds_left(self._pass, self.max_iter, seconds_per_pass)
        return (
            [f"ETA <= {_format_clock(math.ceil(seconds))}"]
            if 0 < seconds < _MAX_SECONDS_LEFT
            else []
        )

    def _left_of_phase(self) -> list[str]:
        """Return the time left in a phase at its pace so far as text, if at least one second."""
        if not self._n_done or self._total is None:
            return []
        elapsed = time.perf_counter() - self._entered
        seconds = elapsed / self._n_done * (self._total - self._n_done)
        return (
            [f"ETA {_format_clock(math.ceil(seconds))}"] if 1 <= seconds < _MAX_SECONDS_LEFT else []
        )

    def opening(self) -> str:
        """Return the first line of a fit."""
        limit = "" if self.max_iter is None else f", at most {_format_count(self.max_iter, 'pass')}"
        return f"{self.title}: fit begins{limit}"

    def line(self) -> str:
        """Return the full status as one line."""
        prefix = f"{self._work}: " if self._work else ""
        return f"{prefix}{self.position()}  {self.metrics()}"

    def summary(self) -> str:
        """Return the last line of a fit; if it never began, with its last phase."""
        elapsed = time.perf_counter() - self._since
        # An operation with several fits has no passes.
        if self._work:
            return f"{self._work}: {elapsed:.3g} s, last: {self.position()}"
        if not self.title:
            return f"no pass in {elapsed:.3g} s, last: {self.position()}"
        parts = [
            f"{self.title}: {_format_count(len(self._finished_passes), 'pass')} in {elapsed:.3g} s"
        ]
        if self._last is not None:
            rows = sum(rows for _, rows, _ in self._finished_passes)
            parts += [*_format_loss(self._last), _format_rate(rows, self._seconds)]
            parts += _format_score(self._last)
        return ", ".join(parts)

    def render(self) -> Table:
        """Return a table of one row, for rich."""
        total, n_done = (
            (self.max_iter, self._pass) if self.in_passes else (self._total, self._n_done)
        )
        bar = ProgressBar(total=total, completed=n_done, width=_BAR_WIDTH)
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        description = f"{self._work}: {self.position()}" if self._work else self.position()
        table.add_row(Text(description), bar, Text(self.metrics()))
        return table


def _format_clock(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds."""
    return str(timedelta(seconds=int(seconds)))


def _format_count(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"


def _format_rate(rows: int, seconds: float) -> str:
    """Return rows per second with three digits, as multiples of 1,000."""
    if seconds <= 0:
        return "- rows/s"
    rate = rows / seconds
    # From 999.5 on, three digits round to 1,000, so the next unit is used.
    for unit in ("", "k", "M"):
        if rate < 999.5:
            return f"{rate:.3g}{unit} rows/s"
        rate /= 1000
    return f"{rate:.3g}G rows/s"


def _format_loss(record: dict[str, Any]) -> list[str]:
    """Return the loss as text; nothing for fits without one, such as naive Bayes."""
    return [] if math.isnan(record["loss"]) else [f"loss {record['loss']:.6g}"]


def _format_score(record: dict[str, Any]) -> list[str]:
    """Return the validation score as text; nothing for fits without validation rows."""
    score = record["val_score"]
    return [] if score is None else [f"val score {score:.4g}"]


def estimate_seconds_left(n_passes: int, max_passes: int | None, seconds: float) -> float:
    """Return the seconds left for `max_passes` passes of `seconds` each, after `n_passes` of them.

    NaN if that is unknown, or too early to estimate.
    """
    if max_passes is None or not n_passes or n_passes < _MIN_SHARE_OF_ESTIMATE * max_passes:
        return math.nan
    return seconds * max(0, max_passes - n_passes)
