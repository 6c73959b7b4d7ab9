"""Computations on a cluster: the client that runs them, bounded waits, and retries.

`compute_with_retries` computes one lazy value, again where workers are lost, and tells the user of
a wait. `Deadline` bounds every wait of the client; `check_client` refuses objects that are no
open, synchronous client.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any
from uuid import uuid4

import dask
from dask.base import compute, get_scheduler

from daskml_dist.dask_internals.task_graphs import MISSING_TASKS_HINT
from daskml_dist.errors import (
    DataLostError,
    InvalidParameterError,
    SchedulerLostError,
    TrainingError,
    WorkerLostError,
)

#: Times that a value is computed where Dask gives up.
_MAX_ATTEMPTS = 4
#: States of tasks that are not done.
_UNFINISHED_STATES = ("waiting", "queued", "no-worker", "processing")

ProgressListener = Callable[[int, int], None]

_listener: ContextVar[ProgressListener | None] = ContextVar("daskml_dist_listener", default=None)


@contextmanager
def report_progress_to(listener: ProgressListener) -> Iterator[None]:
    """Let a listener hear about each second how many blocks of a reading are done."""
    # A context variable: fits in other threads have listeners of their own.
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def compute_with_retries(make: Callable[[str], Any], n_parts: int = 0) -> Any:
    """Return a value that Dask computes, begun anew where workers are lost again and again."""
    # A new name for each attempt: the scheduler remembers tasks that it gave up by their keys.
    for left in reversed(range(_MAX_ATTEMPTS)):
        try:
            name = f"block-{uuid4().hex}"
            return _compute_on_client(make(name), name, n_parts)
        except Exception as error:
            name = type(error).__name__
            # The second is said where the client that held rows is closed.
            if name == "FutureCancelledError" or str(error).startswith("Missing dependency"):
                raise DataLostError(
                    "The rows are no longer available. Scattered data cannot be recomputed, and "
                    "persisted data lives as long as the collection that persist() returned "
                    "(not just parts of it) and its client: keep these, or read the rows from "
                    f"storage. {MISSING_TASKS_HINT} ({error})"
                ) from error
            # Dask gives a task up while whose work workers died again and again; by any cause.
            if not left or name != "KilledWorker":
                raise
    raise AssertionError


def _compute_on_client(lazy: Any, name: str, n_parts: int) -> Any:
    """Return a value that Dask computes, on a client's cluster where there is a client.

    Dask itself would wait for workers for ever, and say nothing.
    """
    # Without a client Dask's own scheduler (threads, synchronous) computes; it has no workers to
    # lose.
    client = get_computing_client()
    if client is None:
        return compute(lazy)[0]

    def workers() -> list[dict[str, Any]]:
        return list(client.scheduler_info(n_workers=-1)["workers"].values())

    # One bound for every wait of a fit, which users can set.
    timeout = float(dask.config.get("daskml_dist.timeout", 300.0))
    wait_for_workers(client, workers, timeout)
    try:
        with watch_workers(
            client, workers, timeout, lazy.key, _make_progress_look(client, name, n_parts)
        ):
            return compute(lazy, scheduler=client)[0]
    finally:
        flush_releases(client)


def _make_progress_look(client: Any, name: str, n_parts: int) -> Callable[[], None] | None:
    """Return a function that tells the listener how many blocks are done, else None."""
    listener = _listener.get()
    if listener is None or not n_parts:
        return None

    def left(dask_scheduler: Any) -> int:
        group = dask_scheduler.task_groups.get(name)
        # Tasks of one name are a group, whose states the scheduler counts as they change.
        return n_parts if group is None else sum(group.states.get(state, 0) for state in to_do)

    to_do = _UNFINISHED_STATES  # the function travels whole, as a scheduler may lack the package
    return lambda: listener(n_parts - client.run_on_scheduler(left), n_parts)


_chosen_client: ContextVar[Any] = ContextVar("daskml_dist_client", default=None)

_CLIENT_CHOICES = (
    "'inline' to use this process for rows in memory, 'auto' for whichever is faster, or None "
    "for the current client"
)


def check_client(client: Any, what: str = "fit", choices: str = _CLIENT_CHOICES) -> Any:
    """Return a client that work can be given to."""
    # Loading distributed takes half a second, and who has a client has loaded it.
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        raise InvalidParameterError(
            f"client={client!r}: {_describe_wrong_client(client)} Other values of client: "
            f"{choices}."
        )
    if client.status in ("closing", "closed"):
        raise InvalidParameterError(
            f"client={client!r}: it is closed. Pass a Client that is open, such as "
            f"Client(address), and keep it open until {what} has ended."
        )
    check_synchronous(client, what)
    return client


def check_synchronous(client: Any, what: str) -> None:
    """Raise an error where a client belongs to an event loop."""
    if getattr(client, "asynchronous", False):
        raise _make_asynchronous_error(what)


def _make_asynchronous_error(what: str) -> InvalidParameterError:
    """Return the error of a client that belongs to an event loop."""
    return InvalidParameterError(
        f"{what} needs a synchronous Client outside of its event loop, since it would block the "
        "loop. In the loop, await it in a thread: await model.fit_async(X, y), or await "
        "daskml_dist.run_async(function, ...). Elsewhere create one with Client(..., "
        "asynchronous=False); a task that fits is a plain function, not async."
    )


@contextmanager
def use_client(client: Any) -> Iterator[None]:
    """Let a client be the current one, and the one that computes reductions of rows, in a
    thread.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        yield
        return
    check_client(client)
    # Dask itself asks for the current client only where one is its default.
    token = _chosen_client.set(client)
    try:
        with client.as_current():
            yield
    finally:
        _chosen_client.reset(token)


def get_computing_client(what: str = "this call") -> Any:
    """Return the client that computes reductions of rows now; None without one."""
    try:
        client = _chosen_client.get() or getattr(get_scheduler(), "__self__", None)
    except RuntimeError as error:  # newer versions of Dask refuse such a client themselves
        raise _make_asynchronous_error(what) from error
    check_synchronous(client, what)
    return client if getattr(client, "status", "") == "running" else None  # else Dask says so


def _describe_wrong_client(client: Any) -> str:
    """Return what to pass in place of something that is no client."""
    if isinstance(client, str):
        return (
            "that is a string. Pass a distributed.Client of its address, "
            f"client=Client({client!r})."
        )
    if callable(getattr(client, "get_client", None)):
        return "that is a cluster. Pass a distributed.Client of it, client=cluster.get_client()."
    if isinstance(client, type):
        return "that is a class. Pass a distributed.Client, such as client=Client(address)."
    return "pass a distributed.Client, such as client=Client(address)."


#: Status of workers that begin tasks.
ACCEPTING_STATUSES = {"init", "running", "undefined", None}

#: Seconds after which a wait tells of itself.
_NOTICE_SECONDS = 1.5
#: Seconds for which a cluster must be without anybody to start workers before this counts: a call
#: of `scale` takes a moment to begin them.
_GIVE_UP_SECONDS = 3.0
#: Seconds after which a wait for workers to begin tells of itself: a worker's first fit imports the
#: package and compiles loops, which takes some ten seconds though all is well.
FIRST_TASK_NOTICE_SECONDS = 20.0

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
        self, what: str, timeout: float, remedy: str = "", *, tell_after: float = _NOTICE_SECONDS
    ) -> None:
        self._what = what
        # A short bound is told of before it ends.
        self._tell_after = max(_NOTICE_SECONDS, min(tell_after, timeout / 2))
        self._timeout = timeout
        self._remedy = remedy
        self._since = time.monotonic()
        self._told: set[str] = set()

    def renew(self) -> None:
        """Wait as long again: there was progress."""
        self._since = time.monotonic()

    def has_time_left(self, state: str = "") -> bool:
        """Return whether there is time left; tell of the wait once it has taken a moment."""
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
    """
    if _any_accepts_work(statuses := _get_statuses(workers)):
        return
    if on_wait is not None:
        on_wait()
    patience = Deadline("workers", timeout, _SCALE_REMEDY)
    places = _WorkerPlaces(client)
    # An adaptive cluster starts workers only for tasks that wait.
    task = client.submit(bool, pure=False)
    try:
        while not _any_accepts_work(statuses):
            given_up = not statuses and places.are_given_up()
            if given_up or not patience.has_time_left(_describe_statuses(statuses)):
                cause = why() if why is not None else ""
                if given_up:
                    raise _make_no_place_error(places.n_requested, cause)
                raise _make_no_worker_error(timeout, statuses, cause)
            time.sleep(0.05)
            statuses = _get_statuses(workers)
    finally:
        task.release()


@contextmanager
def watch_workers(
    client: Any,
    workers: Callable[[], Iterable[Mapping[str, Any]]],
    timeout: float,
    key: Any,
    look: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Watch the workers while Dask computes, and end the wait where all are gone for good."""
    from distributed import Future  # which rows in memory do without

    ended, gave_up = threading.Event(), []

    def watch() -> None:
        patience: Deadline | None = None
        places = _WorkerPlaces(client)
        while not ended.wait(_NOTICE_SECONDS):
            with suppress(Exception):  # of a scheduler that is gone Dask tells
                # Progress is possible again: the wait begins anew, and so does the count of empty
                # places.
                if _any_accepts_work(statuses := _get_statuses(workers)):
                    patience, places = None, _WorkerPlaces(client)
                    if look is not None:
                        look()
                    continue
                patience = patience or Deadline("workers", timeout, _SCALE_REMEDY)
                if not statuses and places.are_given_up():
                    gave_up.append(_make_no_place_error(places.n_requested))
                elif not patience.has_time_left(_describe_statuses(statuses)):
                    gave_up.append(_make_no_worker_error(timeout, statuses))
                if gave_up:
                    # The wait of `compute` ends with an error, in whose place `gave_up` is raised.
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


def flush_releases(client: Any) -> None:
    """Send the scheduler what was released before anything else is sent.

    A release takes two turns of the client's loop, and a graph one. Were the user to compute what
    a fit has just let go of, the scheduler would mix tasks of two graphs, and keep some for ever.
    """
    with suppress(Exception):  # nothing is kept by a scheduler that is gone
        client.sync(asyncio.sleep, 0)


class _WorkerPlaces:
    """Places for workers of the cluster object that a client belongs to, as `LocalCluster` is one.

    Such a cluster of Dask's closes the nanny of a worker that is missing `lost-worker-timeout`
    (15 s) after a loss, even where it was brought back in between and killed once more. Nothing
    but another call of `scale` brings it back then.
    """

    def __init__(self, client: Any) -> None:
        self._cluster = getattr(client, "cluster", None)
        self._since: float | None = None

    @property
    def n_requested(self) -> int:
        """Return the number of workers that the cluster was asked for."""
        return len(getattr(self._cluster, "worker_spec", None) or ())

    def are_given_up(self) -> bool:
        """Return whether all places have had nobody to fill them for a while.

        An adaptive cluster fills them by itself, and one that was just scaled is about to.
        """
        kept = getattr(self._cluster, "workers", None)
        adapts = getattr(self._cluster, "_adaptive", None) is not None
        # Someone fills the places, or will: nothing is given up yet.
        if kept is None or len(kept) or adapts or not self.n_requested or self._are_being_filled():
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since >= _GIVE_UP_SECONDS

    def _are_being_filled(self) -> bool:
        """Return whether the cluster starts workers, or submits jobs, at this moment.

        It counts them only once they run: on a busy machine, or where jobs are submitted slowly,
        after minutes.
        """
        is_about_to = getattr(self._cluster, "_correct_state_waiting", None) is not None
        lock = getattr(self._cluster, "_lock", None)
        return is_about_to or (isinstance(lock, asyncio.Lock) and lock.locked())


_SCALE_REMEDY = "Scale the cluster up, or give its workers more memory."
_REFIT_REMEDY = (
    "Then fit again; with Checkpoint(path, resume=True) it resumes from the last checkpoint."
)


def _get_statuses(workers: Callable[[], Iterable[Mapping[str, Any]]]) -> list[Any]:
    """Return the status of each worker."""
    return [worker.get("status") for worker in workers()]


def _any_accepts_work(statuses: list[Any]) -> bool:
    """Return whether a worker of these statuses begins tasks."""
    return bool(ACCEPTING_STATUSES.intersection(statuses))


def _make_no_worker_error(timeout: float, statuses: list[Any], why: str = "") -> TrainingError:
    """Return the error of a wait in which no worker took work."""
    return TrainingError(
        f"No worker accepted work within {timeout:g} s ({_describe_statuses(statuses)}).{why} "
        f"{_SCALE_REMEDY} {_REFIT_REMEDY} The time limit is daskml_dist.timeout in Dask's "
        "configuration."
    )


def _make_no_place_error(n_places: int, why: str = "") -> TrainingError:
    """Return the error of a cluster that does not replace its lost workers."""
    return TrainingError(
        "All workers are lost, and the cluster starts no new ones: Dask gave up the places of "
        f"its {n_places} workers, as it does if a replaced worker is lost within "
        f"distributed.deploy.lost-worker-timeout (15 s).{why} Request them again with "
        f"client.cluster.scale({n_places}), and check why they died: did they run out of memory? "
        f'{_REFIT_REMEDY} dask.config.set({{"distributed.deploy.lost-worker-timeout": "1h"}}) '
        "before the cluster is made keeps their places."
    )


def _describe_statuses(statuses: list[Any]) -> str:
    """Return how many workers there are of each status, for an error."""
    if not statuses:
        return "0"
    counts = Counter("at their memory limit" if s == "paused" else str(s) for s in statuses)
    said = ", ".join(f"{count} {what}" for what, count in counts.items())
    return f"0 of {len(statuses)}: {said}"


#: Seconds for which another worker is tried, and between two trials.
_SCATTER_SECONDS, _SCATTER_PAUSE_SECONDS = 30.0, 0.1


def scatter_values(client: Any, value: Any, *, everywhere: bool = False) -> Any:
    """Return futures of values on the workers, as ``client.scatter`` does, though a worker dies.

    Dask sends a value to a worker that has just died as long as the scheduler has not noticed.
    """
    end = time.monotonic() + _SCATTER_SECONDS
    while True:
        try:
            # Without a hash: values of a fit are new each time, and hashing large ones takes long.
            return client.scatter(value, hash=False, broadcast=everywhere)
        except TimeoutError:
            raise
        except OSError as error:
            if client.status != "running":
                raise SchedulerLostError(
                    "The connection to the Dask scheduler was lost. Start the cluster again, and "
                    "make a new Client."
                ) from error
            if time.monotonic() > end:
                raise WorkerLostError(
                    f"No worker took {_SCATTER_SECONDS:g} s what was sent to it ({error}). Check "
                    "the workers' logs: did they run out of memory?"
                ) from error
            time.sleep(_SCATTER_PAUSE_SECONDS)
