"""Places on the screen that show the status of a fit."""

from __future__ import annotations

import importlib
import time
from contextlib import suppress
from html import escape
from threading import Lock, Timer

import rich
from rich.console import Console
from rich.errors import LiveError
from rich.live import Live
from rich.text import Text

from daskml_dist.diagnostics.curves import make_curves_html
from daskml_dist.diagnostics.status import Status

__all__ = ["Display", "Snapshot", "make_status_html", "make_summary_html", "open_display"]

_WIDTH, _HEIGHT, _COLOUR = 160, 10, "#4c8bf5"


#: Redraws of the display a second.
_REFRESH_PER_SECOND = 4
#: Seconds after which plain output tells of what lasts, by whether each pass has its line; and
#: the longest time until it tells of it again.
_LASTS, _LASTS_LONGEST = {False: 5.0, True: 1.0}, 600.0


def open_display(console: Console | None, status: Status, verbose: int) -> Display:
    """Open the display that suits a console, or from `verbose` 2 on a line a pass."""
    console = console or rich.get_console()
    if verbose > 1:
        return Display(console, status, each_pass=True)
    if console.is_jupyter:
        with suppress(ImportError):
            return _NotebookDisplay(console, status)
    elif console.is_terminal and console.is_interactive:
        # Before rich 14.1 a console carries one live display at a time.
        with suppress(LiveError):
            return _TerminalDisplay(console, status)
    return Display(console, status)


class Display:
    """Plain lines. It is open once made.

    Parameters
    ----------
    console : rich.console.Console
    status : Status
    each_pass : bool, default=False
        Whether each pass has a line.
    """

    def __init__(self, console: Console, status: Status, *, each_pass: bool = False) -> None:
        self._console = console
        self._status = status
        self._each_pass = each_pass
        self._lock = Lock()
        self._timer: Timer | None = None
        #: Number of the latest wait; that of one whose thread is not heard any more is lower.
        self._turn = 0
        self._wait()

    def begin(self) -> None:
        """Show that the fit begins."""
        if self._each_pass:
            self.note(self._status.opening())

    def enter(self, *, anew: bool) -> None:
        """Show what the fit does, or how far that is which it does already."""
        if anew:
            with self._lock:
                self._wait()

    def show(self) -> None:
        """Show a pass."""
        if self._each_pass:
            self.note(self._status.line())

    def show_line(self, text: str) -> None:
        """Leave a line where each pass has one."""
        if self._each_pass:
            self.note(text)

    def note(self, text: str) -> None:
        """Leave a line."""
        # As Text: neither markup nor colours; and never broken at the width of a log.
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Leave the summary, and nothing after it."""
        with self._lock:
            self._turn += 1
            if self._timer is not None:
                self._timer.cancel()
        self.note(self._status.summary())

    def _wait(self, seconds: float | None = None) -> None:
        """Tell of what lasts after a while, and again after twice as long."""
        seconds = seconds or _LASTS[self._each_pass]
        if self._timer is not None:
            self._timer.cancel()
        self._turn += 1
        self._timer = Timer(seconds, self._tell_again, (self._turn, seconds))
        self._timer.daemon = True
        self._timer.start()

    def _tell_again(self, turn: int, seconds: float) -> None:
        with self._lock:
            if turn != self._turn:
                return
            if not (self._each_pass and self._status.in_passes):
                with suppress(OSError, ValueError):  # the output has been closed
                    self.note(self._status.line())
            self._wait(min(2 * seconds, _LASTS_LONGEST))


class _TerminalDisplay(Display):
    """A live line that a thread of rich redraws, so that short passes cost nothing."""

    def __init__(self, console: Console, status: Status) -> None:
        super().__init__(console, status)
        self._live = Live(
            get_renderable=status.render,
            console=console,
            transient=True,
            refresh_per_second=_REFRESH_PER_SECOND,
        )
        self._live.start()

    def close(self) -> None:
        self._live.stop()
        super().close()

    def _wait(self, seconds: float | None = None) -> None:
        pass


class _NotebookDisplay(Display):
    """An output cell rewritten in place. rich's own way would need ipywidgets."""

    def __init__(self, console: Console, status: Status) -> None:
        super().__init__(console, status)
        display = importlib.import_module("IPython.display").display
        self._handle = display(Snapshot(status.line(), make_status_html(status)), display_id=True)
        self._shown = time.perf_counter()

    def enter(self, *, anew: bool) -> None:
        if anew:
            self._show()
        else:
            self.show()

    def show(self) -> None:
        if time.perf_counter() - self._shown >= 1 / _REFRESH_PER_SECOND:
            self._show()

    def _show(self) -> None:
        self._handle.update(Snapshot(self._status.line(), make_status_html(self._status)))
        self._shown = time.perf_counter()

    def close(self) -> None:
        self._handle.update(Snapshot(self._status.summary(), make_summary_html(self._status)))

    def _wait(self, seconds: float | None = None) -> None:
        pass


class Snapshot:
    """Picture of a moment in a notebook, and its text where there is no HTML.

    Parameters
    ----------
    text, html : str
    """

    def __init__(self, text: str, html: str) -> None:
        self._text, self._html = text, html

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def make_status_html(status: Status) -> str:
    """Return position, bar, numbers and curves of a running fit."""
    line = (
        f"<b>{escape(status.position())}</b> {_make_bar(status.share)} {escape(status.metrics())}"
    )
    title = f"<div>{escape(status.title)}</div>" if status.title else ""
    return _frame_html(f"{title}<div>{line}</div>", status)


def make_summary_html(status: Status) -> str:
    """Return summary and curves of a fit that has ended."""
    return _frame_html(f"<div>{escape(status.summary())}</div>", status)


def _frame_html(text: str, status: Status) -> str:
    curves = make_curves_html(status.records)
    return (
        f'<div class="daskml-status">{text}'
        f'<div style="display:flex;flex-wrap:wrap;gap:1em">{curves}</div></div>'
    )


def _make_bar(share: float | None) -> str:
    """Return a bar filled by the share that is done, or nothing where it is unknown."""
    if share is None:
        return ""
    done = _WIDTH * min(max(share, 0.0), 1.0)
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="progressbar" '
        f'aria-valuenow="{100 * done / _WIDTH:.0f}"><rect width="{_WIDTH}" height="{_HEIGHT}" '
        f'rx="3" fill="#8884"/><rect width="{done:.1f}" height="{_HEIGHT}" rx="3" '
        f'fill="{_COLOUR}"/></svg>'
    )
