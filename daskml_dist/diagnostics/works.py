"""Works of many fits, such as searches: what they do now, on the screen and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from daskml_dist.diagnostics.display import Display, open_display
from daskml_dist.diagnostics.live.search_feed import SearchFeed
from daskml_dist.diagnostics.status import Status

__all__ = ["doing", "tell", "tell_rung"]


class _Work:
    """A work under way."""

    def __init__(self, name: str, verbose: int) -> None:
        self.feed = SearchFeed(name)
        self.status: Status | None = None
        self.display: Display | None = None
        if verbose:
            self.status = Status(None, work=name)
            self.display = open_display(None, self.status, verbose)

    def tell(self, phase: str, done: int, total: int | None, noun: str) -> None:
        if self.status is not None and self.display is not None:
            self.display.enter(anew=self.status.enter(phase, done, total, noun))
        self.feed.phase(phase if total is None else f"{phase} {done}/{total}")

    def note(self, text: str) -> None:
        if self.display is not None:
            self.display.show_line(text)


_now: ContextVar[_Work | None] = ContextVar("daskml_dist_work", default=None)


@contextmanager
def doing(name: str, verbose: Any) -> Iterator[None]:
    """While a work is under way, :func:`tell` is of it.

    Parameters
    ----------
    name : str
        Of the estimator's class.
    verbose : int
        0: nothing on the screen; 1: a live line, and one of summary; 2 or more: a line for each
        rung too.
    """
    work = _Work(name, int(verbose or 0))
    token, how = _now.set(work), "ended"
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        how = "interrupted" if interrupted else f"failed: {type(error).__name__}"
        raise
    finally:
        _now.reset(token)
        work.feed.end(how)
        if work.display is not None:
            work.display.close()


def tell(phase: str, done: int = 0, total: int | None = None, noun: str = "fit") -> None:
    """Tell what the work does now; outside of one, nothing.

    Parameters
    ----------
    phase : str
    done, total : int, int or None
        How many of its parts are done.
    noun : str
        What these are.
    """
    if (work := _now.get()) is not None:
        work.tell(phase, done, total, noun)


def tell_rung(name: str, scores: Sequence[dict[str, Any]]) -> None:
    """Tell the scores of candidates that have come to a rung.

    Parameters
    ----------
    name : str
        Of the rung, such as "9 passes".
    scores : sequence of dict
        ``candidate``, ``bracket``, ``resource`` and ``score`` of each.
    """
    if (work := _now.get()) is None or not scores:
        return
    work.feed.rung(scores)
    best = max((told["score"] for told in scores if told["score"] == told["score"]), default=None)
    shown = "" if best is None else f", best score {best:.4g}"
    work.note(f"{name}: {len(scores)} candidates{shown}")
