"""A live view of a fit, in a terminal and in a notebook."""

from __future__ import annotations

import importlib
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import rich
from rich.console import Console
from rich.errors import LiveError
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daskml_dist.errors import InvalidParameterError

__all__ = ["Progress"]

_REFRESH_PER_SECOND = 4
_BAR_WIDTH = 16


class Progress:
    """Callback that shows how a fit goes on, and leaves one line of summary.

    A terminal shows one live line: pass, loss, rows per second, staleness, validation score and
    the time since the fit began. A notebook shows the same, renewed as passes end. Output that
    is neither (a file, a pipe, a batch job's log) gets one plain line per pass.

    Parameters
    ----------
    console : rich.console.Console or None, default=None
        Where to write; None takes rich's own console, which writes to standard output. Copies
        share the console; a pickle leaves it behind.
    max_iter : int or None, default=None
        Number of passes that count as the whole; None takes the fit's ``max_iter``.

    Raises
    ------
    InvalidParameterError
        `max_iter` is less than 1.

    Examples
    --------
    >>> from daskml_dist.diagnostics.progress import Progress
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(callbacks=[Progress()]).fit(X, y)  # doctest: +SKIP
    """

    def __init__(self, console: Console | None = None, max_iter: int | None = None) -> None:
        if max_iter is not None and max_iter < 1:
            raise InvalidParameterError(
                f"Progress(max_iter={max_iter}): give at least 1, or None for the fit's own"
            )
        self.console = console
        self.max_iter = max_iter
        self._status: _Status | None = None
        self._display: _Display | None = None

    # An estimator is cloned and pickled with its callbacks, but a console holds locks and files.

    def __deepcopy__(self, memo: dict[int, Any]) -> Progress:
        return type(self)(self.console, self.max_iter)

    def __reduce__(self) -> tuple[type[Progress], tuple[None, int | None]]:
        return type(self), (None, self.max_iter)

    def on_fit_begin(self, run: Any) -> None:
        """Open the display.

        Parameters
        ----------
        run : object
            With the attributes ``max_iter``, ``policy_name``, ``n_lanes`` and ``n_servers``.
        """
        self.on_fit_end(run)  # of an earlier fit that nobody ended
        status = _Status(
            title=f"{run.policy_name}, {_count(run.n_lanes, 'lane')}, "
            f"{_count(run.n_servers, 'server')}",
            max_iter=run.max_iter if self.max_iter is None else self.max_iter,
            begin=time.perf_counter(),
        )
        self._status, self._display = status, _open_display(self.console, status)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Show a pass that ended.

        Parameters
        ----------
        run : object
        record : dict
            The record of the pass: ``pass``, ``loss``, ``rows``, ``seconds``,
            ``staleness_mean``, ``staleness_max`` and ``val_score``.
        """
        if self._status is not None and self._display is not None:
            self._status.add(record)
            self._display.show()

    def on_generation(self, run: Any, event: Any) -> None:
        """Note on a line of its own that the membership of the fit changed.

        Parameters
        ----------
        run : object
        event : object
            Shown as its `str`.
        """
        if self._display is not None:
            self._display.note(f"membership changed: {event}")

    def on_fit_end(self, run: Any) -> None:
        """Close the display, whether the fit succeeded or not, and leave the summary.

        Parameters
        ----------
        run : object
        """
        display, self._display = self._display, None
        if display is not None:
            display.close()


@dataclass
class _Status:
    """Facts of the fit so far, and the words that tell them."""

    title: str
    max_iter: int | None
    begin: float
    last: dict[str, Any] | None = None
    n_passes: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, record: dict[str, Any]) -> None:
        self.n_passes += 1
        self.rows += record["rows"]
        self.seconds += record["seconds"]
        self.last = record

    def position(self) -> str:
        whole = "" if self.max_iter is None else f"/{self.max_iter}"
        return f"pass {self.last['pass'] if self.last else 0}{whole}"

    def metrics(self) -> str:
        record = self.last
        if record is None:
            return self.elapsed()
        shown = [
            *_loss(record),
            _rate(record["rows"], record["seconds"]),
            f"staleness {record['staleness_mean']:.3g} (max {record['staleness_max']:.3g})",
            *_score(record),
            self.elapsed(),
        ]
        return "  ".join(shown)

    def elapsed(self) -> str:
        return str(timedelta(seconds=int(time.perf_counter() - self.begin)))

    def opening(self) -> str:
        whole = "" if self.max_iter is None else f", at most {_count(self.max_iter, 'pass')}"
        return f"{self.title}: fit begins{whole}"

    def line(self) -> str:
        return f"{self.position()}  {self.metrics()}"

    def summary(self) -> str:
        spent = time.perf_counter() - self.begin
        parts = [f"{self.title}: {_count(self.n_passes, 'pass')} in {spent:.3g} s"]
        if self.last is not None:
            parts += [*_loss(self.last), _rate(self.rows, self.seconds)]
            parts += _score(self.last)
        return ", ".join(parts)

    def render(self) -> Table:
        bar = ProgressBar(
            total=self.max_iter,
            completed=self.last["pass"] if self.last else 0,
            width=_BAR_WIDTH,
        )
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        table.add_row(Text(self.position()), bar, Text(self.metrics()))
        return table


class _Display(Protocol):
    """Place on the screen that shows a status. It is open once made."""

    def show(self) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def _open_display(console: Console | None, status: _Status) -> _Display:
    console = console or rich.get_console()
    if console.is_jupyter:
        with suppress(ImportError):
            return _NotebookDisplay(console, status)
    elif console.is_terminal and console.is_interactive:
        # Before rich 14.1 a console carries one live display at a time.
        with suppress(LiveError):
            return _TerminalDisplay(console, status)
    return _PlainDisplay(console, status)


class _PlainDisplay:
    """One line per event."""

    def __init__(self, console: Console, status: _Status) -> None:
        self._console = console
        self._status = status
        self.note(status.opening())

    def show(self) -> None:
        self.note(self._status.line())

    def note(self, text: str) -> None:
        # As Text: neither markup nor colours; and never broken at the width of a log.
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        self.note(self._status.summary())


class _TerminalDisplay(_PlainDisplay):
    """A live line that a thread of rich redraws, so that short passes cost nothing."""

    def __init__(self, console: Console, status: _Status) -> None:
        self._console = console
        self._status = status
        self._live = Live(
            get_renderable=status.render,
            console=console,
            transient=True,
            refresh_per_second=_REFRESH_PER_SECOND,
        )
        self._live.start()

    def show(self) -> None:
        pass

    def close(self) -> None:
        self._live.stop()
        super().close()


class _NotebookDisplay(_PlainDisplay):
    """An output cell rewritten in place. rich's own way would need ipywidgets."""

    def __init__(self, console: Console, status: _Status) -> None:
        self._console = console
        self._status = status
        display = importlib.import_module("IPython.display").display
        self._handle = display(status.render(), display_id=True)
        self._shown = time.perf_counter()

    def show(self) -> None:
        now = time.perf_counter()
        if now - self._shown >= 1 / _REFRESH_PER_SECOND:
            self._handle.update(self._status.render())
            self._shown = now

    def close(self) -> None:
        self._handle.update(Text(self._status.summary()))


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def _rate(rows: int, seconds: float) -> str:
    if seconds <= 0:
        return "- rows/s"
    rate = rows / seconds
    for unit in ("", "k", "M"):
        if rate < 999.5:
            return f"{rate:.3g}{unit} rows/s"
        rate /= 1000
    return f"{rate:.3g}G rows/s"


def _loss(record: dict[str, Any]) -> list[str]:
    """The loss, where the pass has one: naive Bayes counts without."""
    return [] if math.isnan(record["loss"]) else [f"loss {record['loss']:.6g}"]


def _score(record: dict[str, Any]) -> list[str]:
    score = record["val_score"]
    return [] if score is None else [f"val score {score:.4g}"]
