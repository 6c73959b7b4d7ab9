"""Bounded waits of the client: one that lasts tells the user what it waits for, and how long."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from daskml_dist.errors import TrainingError

__all__ = ["BEGINS", "TELL_OF_BEGINS", "Deadline", "tell_releases", "wait_for_workers", "watched"]

#: Status of workers that begin tasks.
BEGINS = {"init", "running", "undefined", None}

#: Seconds after which a wait tells of itself.
_TELL = 1.5
#: Seconds for which a cluster must be without anybody to start workers before this counts: a call
#: of `scale` takes a moment to begin them.
_GIVEN_UP = 3.0
#: Seconds after which a wait for workers to begin tells of itself: a worker's first fit imports the
#: package and compiles loops, which takes some ten seconds though all is well.
TELL_OF_BEGINS = 20.0

logger = logging.getLogger("daskml_dist")


class Deadline:
    """The bound of one wait.

    It tells of itself by a warning of the logger ``daskml_dist``, which Python writes to standard
    error (a notebook shows it, and a progress display lets it pass) unless the user has set up
    logging. Each text is told once.

    Parameters
    ----------
    what : str
        What is waited for.
    timeout : float
        Seconds without progress.
    remedy : str, default=""
        What the user can do meanwhile; a sentence.
    tell_after : float, default=1.5
        Seconds without progress after which the user is told; half of `timeout` at most.
    """

    def __init__(
        self, what: str, timeout: float, remedy: str = "", *, tell_after: float = _TELL
    ) -> None:
        self._what = what
        self._tell_after = max(_TELL, min(tell_after, timeout / 2))
        self._timeout = timeout
        self._remedy = remedy
        self._since = time.monotonic()
        self._told: set[str] = set()

    def renew(self) -> None:
        """Wait as long again: there was progress."""
        self._since = time.monotonic()

    def lasts(self, state: str = "") -> bool:
        """Return whether there is time left; tell of the wait once it has taken a moment.

        Parameters
        ----------
        state : str, default=""
            How far that is which is waited for.
        """
        waited = time.monotonic() - self._since
        if waited > self._tell_after and state not in self._told:
            self._told.add(state)
            bound = f"{state}; {self._timeout:g} s" if state else f"{self._timeout:g} s"
            logger.warning("%s", f"waiting for {self._what} ({bound}). {self._remedy}".strip())
        return waited <= self._timeout


def wait_for_workers(
    client: Any,
    workers: Callable[[], Iterable[Mapping[str, Any]]],
    timeout: float,
    on_wait: Callable[[], None] | None = None,
    why: Callable[[], str] | None = None,
) -> None:
    """Wait until some worker takes work.

    Meanwhile a task waits, so that an adaptive cluster grows.

    Parameters
    ----------
    client : distributed.Client
    workers : callable
        Returns what the scheduler knows of each worker that counts.
    timeout : float
        Seconds.
    on_wait : callable, optional
        Called before a wait, where there is one.
    why : callable, optional
        Returns a sentence of why workers are gone, for the error.

    Raises
    ------
    TrainingError
        None came.
    """
    if _some_begins(statuses := _statuses(workers)):
        return
    if on_wait is not None:
        on_wait()
    patience = Deadline("workers", timeout, _SCALE)
    places = _Places(client)
    task = client.submit(bool, pure=False)
    try:
        while not _some_begins(statuses):
            given_up = not statuses and places.are_given_up()
            if given_up or not patience.lasts(_tell(statuses)):
                cause = why() if why is not None else ""
                if given_up:
                    raise _no_place(places.number, cause)
                raise _no_worker(timeout, statuses, cause)
            time.sleep(0.05)
            statuses = _statuses(workers)
    finally:
        task.release()


@contextmanager
def watched(
    client: Any,
    workers: Callable[[], Iterable[Mapping[str, Any]]],
    timeout: float,
    key: Any,
    look: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Watch the workers while Dask computes, which waits for ever and silently for new ones.

    Parameters
    ----------
    client, workers, timeout
        As `wait_for_workers`.
    key : key
        Of the task that is waited for, which is cancelled where no worker comes.
    look : callable, optional
        Called now and then.

    Raises
    ------
    TrainingError
        All workers went, and none came.
    """
    from distributed import Future  # which rows in memory do without

    ended, gave_up = threading.Event(), []

    def watch() -> None:
        patience: Deadline | None = None
        places = _Places(client)
        while not ended.wait(_TELL):
            with suppress(Exception):  # of a scheduler that is gone Dask tells
                if _some_begins(statuses := _statuses(workers)):
                    patience, places = None, _Places(client)
                    if look is not None:
                        look()
                    continue
                patience = patience or Deadline("workers", timeout, _SCALE)
                if not statuses and places.are_given_up():
                    gave_up.append(_no_place(places.number))
                elif not patience.lasts(_tell(statuses)):
                    gave_up.append(_no_worker(timeout, statuses))
                if gave_up:
                    client.cancel([Future(key, client)], force=True)
                    return

    as_here = partial(copy_context().run, watch)  # with the user's client
    watcher = threading.Thread(target=as_here, name="daskml-watch", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if gave_up:
            raise gave_up[0] from error
        raise
    finally:
        ended.set()


def tell_releases(client: Any) -> None:
    """Send the scheduler what was released before anything else is sent.

    A release takes two turns of the client's loop, and a graph one. Were the user to compute what
    a fit has just let go of, the scheduler would mix tasks of two graphs, and keep some for ever.
    """
    with suppress(Exception):  # nothing is kept by a scheduler that is gone
        client.sync(asyncio.sleep, 0)


class _Places:
    """Places for workers of the cluster object that a client belongs to, as `LocalCluster` is one.

    Such a cluster of Dask's closes the nanny of a worker that is missing `lost-worker-timeout`
    (15 s) after a loss, even where it was brought back in between and killed once more. Nothing
    but another call of `scale` brings it back then.
    """

    def __init__(self, client: Any) -> None:
        self._cluster = getattr(client, "cluster", None)
        self._since: float | None = None

    @property
    def number(self) -> int:
        """Places that the cluster was asked for."""
        return len(getattr(self._cluster, "worker_spec", None) or ())

    def are_given_up(self) -> bool:
        """Return whether all places have had nobody to fill them for a while.

        An adaptive cluster fills them by itself, and one that was just scaled is about to.
        """
        kept = getattr(self._cluster, "workers", None)
        adapts = getattr(self._cluster, "_adaptive", None) is not None
        if kept is None or len(kept) or adapts or not self.number:
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since >= _GIVEN_UP


_SCALE = "Scale the cluster up, or give its workers more memory."
_THEN = "Then fit again; with Checkpoint(path, resume=True) it goes on from the last checkpoint."


def _statuses(workers: Callable[[], Iterable[Mapping[str, Any]]]) -> list[Any]:
    return [worker.get("status") for worker in workers()]


def _some_begins(statuses: list[Any]) -> bool:
    return bool(BEGINS.intersection(statuses))


def _no_worker(timeout: float, statuses: list[Any], why: str = "") -> TrainingError:
    return TrainingError(
        f"No worker that takes work was there within {timeout:g} s ({_tell(statuses)}).{why} "
        f"{_SCALE} {_THEN} daskml_dist.timeout in Dask's configuration is the time."
    )


def _no_place(n_places: int, why: str = "") -> TrainingError:
    return TrainingError(
        f"All workers are lost, and the cluster starts no others: it has given up the places of "
        f"its {n_places} workers, which Dask does with one that is lost once more within "
        f"distributed.deploy.lost-worker-timeout (15 s) of a loss.{why} Ask for them again, "
        f"client.cluster.scale({n_places}), and look why they ended: do they run out of memory? "
        f'{_THEN} dask.config.set({{"distributed.deploy.lost-worker-timeout": "1h"}}) before the '
        "cluster is made keeps their places."
    )


def _tell(statuses: list[Any]) -> str:
    if not statuses:
        return "0"
    counts = Counter("at their memory limit" if s == "paused" else str(s) for s in statuses)
    said = ", ".join(f"{count} {what}" for what, count in counts.items())
    return f"0 of {len(statuses)}: {said}"
