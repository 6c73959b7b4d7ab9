"""Places on the screen that show the status of a fit."""

from __future__ import annotations

import importlib
import time
from contextlib import suppress
from threading import Lock, Timer

import rich
from rich.console import Console
from rich.errors import LiveError
from rich.live import Live
from rich.text import Text

from daskml_dist.diagnostics.status import Status
from daskml_dist.diagnostics.status_html import Snapshot, status_html, summary_html

__all__ = ["Display", "open_display"]

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
        self._handle = display(Snapshot(status.line(), status_html(status)), display_id=True)
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
        self._handle.update(Snapshot(self._status.line(), status_html(self._status)))
        self._shown = time.perf_counter()

    def close(self) -> None:
        self._handle.update(Snapshot(self._status.summary(), summary_html(self._status)))

    def _wait(self, seconds: float | None = None) -> None:
        pass
