"""Works that are no fit, such as searches: what they do now, on the screen and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import dask

from daskml_dist.data.computing import report_progress_to
from daskml_dist.diagnostics.display import Display, open_display
from daskml_dist.diagnostics.live.feed import SearchFeed
from daskml_dist.diagnostics.status import Status

__all__ = ["doing", "reading", "tell", "tell_rung"]


class _WorkReport:
    """A work under way.

    Parameters
    ----------
    name : str
    verbose : int
    at_once : bool
        Whether the page shows it from now on, and not from the first block that it hears of.
    """

    def __init__(self, name: str, verbose: int, *, at_once: bool = True) -> None:
        self._name = name
        self._feed = SearchFeed(name) if at_once else None
        self._status: Status | None = None
        self._display: Display | None = None
        self._said = ""
        #: Of threads that tell, and whether there is nothing more to tell.
        self._lock, self._closed = Lock(), False
        if verbose:
            self._status = Status(None, work=name)
            self._status.enter("starting" if at_once else "reading")
            self._display = open_display(None, self._status, verbose)

    def tell(self, phase: str, done: int, total: int | None, noun: str) -> None:
        self._said = phase if total is None else f"{phase} {done}/{total}"
        with self._lock:
            self._show(phase, done, total, noun)

    def read(self, done: int, total: int) -> None:
        """Tell of blocks that are read, as a part of what was told; in any thread."""
        with self._lock:
            if not self._closed:
                self._feed = self._feed or SearchFeed(self._name)
                phase = f"{self._said}: reading" if self._said else "reading"
                self._show(phase, done, total, "block")

    def _show(self, phase: str, done: int, total: int | None, noun: str) -> None:
        if self._status is not None and self._display is not None:
            self._display.enter(anew=self._status.enter(phase, done, total, noun))
        if self._feed is not None:
            self._feed.phase(phase if total is None else f"{phase} {done}/{total}")

    def rung(self, scores: Sequence[dict[str, Any]]) -> None:
        if self._feed is not None:
            self._feed.rung(scores)

    def note(self, text: str) -> None:
        if self._display is not None:
            self._display.show_line(text)

    def close(self, how: str) -> None:
        with self._lock:
            self._closed = True
            if self._feed is not None:
                self._feed.end(how)
            if self._display is not None:
                self._display.close()


_now: ContextVar[_WorkReport | None] = ContextVar("daskml_dist_work", default=None)


@contextmanager
def doing(name: str, verbose: Any) -> Iterator[None]:
    """Make a work the one that :func:`tell` reports to while the context is open."""
    with _during(_WorkReport(name, _level(verbose))):
        yield


@contextmanager
def reading(name: str, verbose: Any = None) -> Iterator[None]:
    """Report how many blocks are read while the context is open, if it lasts.

    The page shows nothing of what takes less than about two seconds. Within a work it is a part of
    that.
    """
    if (work := _now.get()) is not None:
        with report_progress_to(work.read):
            yield
        return
    work = _WorkReport(name, _level(verbose), at_once=False)
    with _during(work), report_progress_to(work.read):
        yield


def _level(verbose: Any) -> int:
    return int((dask.config.get("daskml_dist.verbose", 0) if verbose is None else verbose) or 0)


@contextmanager
def _during(work: _WorkReport) -> Iterator[None]:
    token, how = _now.set(work), "ended"
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        how = "interrupted" if interrupted else f"failed: {type(error).__name__}"
        raise
    finally:
        _now.reset(token)
        work.close(how)


def tell(phase: str, done: int = 0, total: int | None = None, noun: str = "fit") -> None:
    """Tell what the work does now; outside of one, nothing."""
    if (work := _now.get()) is not None:
        work.tell(phase, done, total, noun)


def tell_rung(name: str, scores: Sequence[dict[str, Any]]) -> None:
    """Tell the scores of candidates that have come to a rung."""
    if (work := _now.get()) is None or not scores:
        return
    work.rung(scores)
    best = max((told["score"] for told in scores if told["score"] == told["score"]), default=None)
    shown = "" if best is None else f", best score {best:.4g}"
    work.note(f"{name}: {len(scores)} candidates{shown}")
