"""Displays of the status of a fit: plain lines, a live line of a terminal, a notebook's output.

A display gets a `Status` that callbacks update; they call `enter` and `show` after a change. All
three displays have the methods of `Display`, which prints plain lines.
"""

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

#: Size in pixels, and colour, of a notebook's progress bar.
_BAR_WIDTH, _BAR_HEIGHT, _BAR_COLOUR = 160, 10, "#4c8bf5"
#: Redraws of the display per second.
_REFRESH_PER_SECOND = 4
#: Seconds within one phase after which plain output repeats the status, by whether each pass has
#: its own line; the delay doubles each time, up to the maximum.
_FIRST_DELAY, _MAX_DELAY = {False: 5.0, True: 1.0}, 600.0


def open_display(console: Console | None, status: Status, verbose: int) -> Display:
    """Open the display that suits a console; `verbose` >= 2 prints a plain line for each pass."""
    console = console or rich.get_console()
    if verbose > 1:
        return Display(console, status, each_pass=True)
    if console.is_jupyter:
        # Without IPython's display module the notebook gets plain lines.
        with suppress(ImportError):
            return _NotebookDisplay(console, status)
    elif console.is_terminal and console.is_interactive:
        # Before rich 14.1 a console supports only one live display at a time.
        with suppress(LiveError):
            return _TerminalDisplay(console, status)
    return Display(console, status)


class Display:
    """Display of plain lines, open as soon as it is constructed.

    Parameters
    ----------
    console : rich.console.Console
    status : Status
    each_pass : bool, default=False
        Whether each pass gets its own line.
    """

    def __init__(self, console: Console, status: Status, *, each_pass: bool = False) -> None:
        self._console = console
        self._status = status
        self._each_pass = each_pass
        # Guards the timer, which the fit's thread and the timer's thread both replace.
        self._lock = Lock()
        self._timer: Timer | None = None
        # Number of the latest timer: an older one that could not be cancelled in time does nothing.
        self._timer_number = 0
        self._restart_timer()

    def show_start(self) -> None:
        """Show that the fit begins."""
        if self._each_pass:
            self.note(self._status.opening())

    def enter(self, *, is_new_phase: bool) -> None:
        """Show the phase of the fit, or its progress if the phase is the same as before."""
        if is_new_phase:
            with self._lock:
                self._restart_timer()

    def show(self) -> None:
        """Show a completed pass."""
        if self._each_pass:
            self.note(self._status.line())

    def show_line(self, text: str) -> None:
        """Print a line, if each pass gets one."""
        if self._each_pass:
            self.note(text)

    def note(self, text: str) -> None:
        """Print a permanent line."""
        # As Text, so that brackets are not markup; with soft_wrap, so that files get one line.
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Print the summary, and stop all further output."""
        with self._lock:
            self._timer_number += 1
            if self._timer is not None:
                self._timer.cancel()
        self.note(self._status.summary())

    def _restart_timer(self, seconds: float | None = None) -> None:
        """Start the timer that repeats the status, in place of the previous one."""
        seconds = seconds or _FIRST_DELAY[self._each_pass]
        if self._timer is not None:
            self._timer.cancel()
        self._timer_number += 1
        self._timer = Timer(seconds, self._repeat_status, (self._timer_number, seconds))
        self._timer.daemon = True
        self._timer.start()

    def _repeat_status(self, timer_number: int, seconds: float) -> None:
        """Print the status, and start a timer of twice the delay."""
        with self._lock:
            if timer_number != self._timer_number:
                return
            if not (self._each_pass and self._status.in_passes):
                # A closed output must not end the timer's thread with a traceback.
                with suppress(OSError, ValueError):
                    self.note(self._status.line())
            self._restart_timer(min(2 * seconds, _MAX_DELAY))


class _TerminalDisplay(Display):
    """Display of a live line, redrawn by a thread of rich, so that short passes do not wait."""

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

    # The live line always shows the status, so no timer has to repeat it.
    def _restart_timer(self, seconds: float | None = None) -> None:
        pass


class _NotebookDisplay(Display):
    """Display that rewrites one output in place; rich's own display would need ipywidgets."""

    def __init__(self, console: Console, status: Status) -> None:
        super().__init__(console, status)
        display = importlib.import_module("IPython.display").display
        self._handle = display(Snapshot(status.line(), make_status_html(status)), display_id=True)
        self._shown = time.perf_counter()

    # A new phase is shown immediately; passes and progress only a few times per second, since each
    # update is a message to the browser.
    def enter(self, *, is_new_phase: bool) -> None:
        if is_new_phase:
            self._show()
        else:
            self.show()

    def show(self) -> None:
        if time.perf_counter() - self._shown >= 1 / _REFRESH_PER_SECOND:
            self._show()

    def _show(self) -> None:
        """Rewrite the output with the present status."""
        self._handle.update(Snapshot(self._status.line(), make_status_html(self._status)))
        self._shown = time.perf_counter()

    def close(self) -> None:
        self._handle.update(Snapshot(self._status.summary(), make_summary_html(self._status)))

    def _restart_timer(self, seconds: float | None = None) -> None:
        pass


class Snapshot:
    """Rich output of a notebook: HTML, with a plain text for frontends without HTML.

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
    """Return position, bar, measures and curves of a running fit, as HTML."""
    position, metrics = escape(status.position()), escape(status.metrics())
    line = f"<b>{position}</b> {_make_bar(status.completed_share)} {metrics}"
    title = f"<div>{escape(status.title)}</div>" if status.title else ""
    return _frame_html(f"{title}<div>{line}</div>", status)


def make_summary_html(status: Status) -> str:
    """Return summary and curves of a fit that has ended, as HTML."""
    return _frame_html(f"<div>{escape(status.summary())}</div>", status)


def _frame_html(text: str, status: Status) -> str:
    """Return a block of text with the curves below it, as HTML."""
    curves = make_curves_html(status.records)
    return (
        f'<div class="daskml-status">{text}'
        f'<div style="display:flex;flex-wrap:wrap;gap:1em">{curves}</div></div>'
    )


def _make_bar(completed_share: float | None) -> str:
    """Return a bar filled by the completed share, or nothing if that is unknown."""
    if completed_share is None:
        return ""
    done_width = _BAR_WIDTH * min(max(completed_share, 0.0), 1.0)
    return (
        f'<svg width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" role="progressbar" '
        f'aria-valuenow="{100 * done_width / _BAR_WIDTH:.0f}">'
        f'<rect width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" '
        f'rx="3" fill="#8884"/><rect width="{done_width:.1f}" height="{_BAR_HEIGHT}" rx="3" '
        f'fill="{_BAR_COLOUR}"/></svg>'
    )
