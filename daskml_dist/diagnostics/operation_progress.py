"""Progress of operations that are more than one fit, such as searches, on screen and dashboard.

An operation opens a context (`report_operation`, or `report_reading` if it only reads blocks). Code
at any depth within it calls `report_phase`, without having to pass a reporter: the current reporter
is a context variable, so other threads and tasks have their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import dask

from daskml_dist.data.computing import configured_number, report_progress_to, shield_workers
from daskml_dist.diagnostics.display import Display, open_display
from daskml_dist.diagnostics.live.feed import SearchFeed
from daskml_dist.diagnostics.status import Status


class _ProgressReport:
    """Reporter of a running operation, to a display and to the dashboard's page.

    Parameters
    ----------
    name : str
    verbose : int
    at_once : bool
        Whether the page shows the operation from its start, instead of from the first report of
        blocks.
    """

    def __init__(self, name: str, verbose: int, *, at_once: bool = True) -> None:
        self._name = name
        self._feed = SearchFeed(name) if at_once else None
        self._status: Status | None = None
        self._display: Display | None = None
        self._phase_text = ""
        # Several threads report concurrently; reports that arrive after the end are dropped.
        self._lock, self._closed = Lock(), False
        if verbose:
            self._status = Status(None, work=name)
            self._status.enter("starting" if at_once else "reading")
            self._display = open_display(None, self._status, verbose)

    def show_phase(self, phase: str, n_done: int, total: int | None, noun: str) -> None:
        """Show the current phase, with `n_done` of `total` parts; `noun` names a part."""
        self._phase_text = _format_phase(phase, n_done, total)
        with self._lock:
            self._show(phase, n_done, total, noun)

    def show_blocks_read(self, n_done: int, total: int) -> None:
        """Show how many blocks have been read in the current phase; called from any thread."""
        with self._lock:
            if not self._closed:
                # The page shows the operation from the first report; short reads end before that.
                self._feed = self._feed or SearchFeed(self._name)
                phase = f"{self._phase_text}: reading" if self._phase_text else "reading"
                self._show(phase, n_done, total, "block")

    def _show(self, phase: str, n_done: int, total: int | None, noun: str) -> None:
        """Show a phase on the display and on the page; called with the lock held."""
        if self._status is not None and self._display is not None:
            self._display.enter(is_new_phase=self._status.enter(phase, n_done, total, noun))
        if self._feed is not None:
            self._feed.phase(_format_phase(phase, n_done, total))

    def rung(self, scores: Sequence[dict[str, Any]]) -> None:
        """Send the scores of a search's rung to the page."""
        if self._feed is not None:
            self._feed.rung(scores)

    def note(self, text: str) -> None:
        """Print a line, if `verbose` requests one for each pass."""
        if self._display is not None:
            self._display.show_line(text)

    def close(self, end_state: str) -> None:
        """End the report; `end_state` is the final state that the page shows."""
        with self._lock:
            self._closed = True
            if self._feed is not None:
                self._feed.end(end_state)
            if self._display is not None:
                self._display.close()


def _format_phase(phase: str, n_done: int, total: int | None) -> str:
    """Return a phase with its progress as text."""
    return phase if total is None else f"{phase} {n_done}/{total}"


#: Report of the operation that the current thread or task belongs to.
_current_report: ContextVar[_ProgressReport | None] = ContextVar("daskml_dist_work", default=None)


@contextmanager
def report_operation(name: str, verbose: Any) -> Iterator[None]:
    """Report an operation while the context is open; :func:`report_phase` sets its phase."""
    report = _ProgressReport(name, _resolve_verbose(verbose))
    # Also between the fits and the computations of the operation.
    with _report_during(report), shield_workers():
        yield


@contextmanager
def report_reading(name: str, verbose: Any = None) -> Iterator[None]:
    """Report how many blocks have been read while the context is open.

    Reads of less than about two seconds are not shown on the page. Inside another operation, blocks
    are shown as progress of the phase of that operation.
    """
    # Reading blocks inside a search is progress of the search.
    if (report := _current_report.get()) is not None:
        with report_progress_to(report.show_blocks_read):
            yield
        return
    report = _ProgressReport(name, _resolve_verbose(verbose), at_once=False)
    with _report_during(report), report_progress_to(report.show_blocks_read):
        yield


def _resolve_verbose(verbose: Any) -> int:
    """Return `verbose`, or Dask's setting ``daskml_dist.verbose`` where it is None."""
    if verbose is not None:
        return int(verbose or 0)
    setting = dask.config.get("daskml_dist.verbose", None)
    return int(
        setting if isinstance(setting, bool) else configured_number("daskml_dist.verbose", 0)
    )


@contextmanager
def _report_during(report: _ProgressReport) -> Iterator[None]:
    """Make a report the current one, and close it with the state in which the context ends."""
    token, end_state = _current_report.set(report), "ended"
    try:
        yield
    # KeyboardInterrupt too: the page shows how an operation ended.
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        end_state = "interrupted" if interrupted else f"failed: {type(error).__name__}"
        raise
    finally:
        _current_report.reset(token)
        report.close(end_state)


def report_phase(phase: str, n_done: int = 0, total: int | None = None, noun: str = "fit") -> None:
    """Report the phase of the current operation; without one, do nothing."""
    if (report := _current_report.get()) is not None:
        report.show_phase(phase, n_done, total, noun)


def report_rung(name: str, scores: Sequence[dict[str, Any]]) -> None:
    """Report the scores of the candidates that have reached a rung of a search."""
    if (report := _current_report.get()) is None or not scores:
        return
    report.rung(scores)
    # The score of a failed candidate is NaN, which is not equal to itself.
    best = max(
        (record["score"] for record in scores if record["score"] == record["score"]), default=None
    )
    best_text = "" if best is None else f", best score {best:.4g}"
    report.note(f"{name}: {len(scores)} candidates{best_text}")
