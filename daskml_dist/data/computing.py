"""Computations on a cluster: the client that runs them, bounded waits, and retries.

`compute_with_retries` computes one lazy value, repeats it if workers are lost, and reports long
waits to the user. `Deadline` bounds every wait of the client; `check_client` refuses objects that
are not open, synchronous clients.
"""

from __future__ import annotations

import asyncio
import logging
import os
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
from weakref import WeakSet

import dask
from dask.base import compute, get_scheduler
from dask.delayed import delayed

from daskml_dist.dask_internals.task_graphs import MISSING_TASKS_HINT
from daskml_dist.errors import (
    DataLostError,
    InvalidParameterError,
    SchedulerLostError,
    TrainingError,
    WorkerLostError,
)

#: Attempts to compute a value if Dask gives up on it.
_MAX_ATTEMPTS = 4
#: Seconds of a computation after which its workers are protected from Ctrl-C.
_SHIELD_AFTER_SECONDS = 0.2
#: States of tasks that are not finished.
_UNFINISHED_STATES = ("waiting", "queued", "no-worker", "processing")

ProgressListener = Callable[[int, int], None]

_listener: ContextVar[ProgressListener | None] = ContextVar("daskml_dist_listener", default=None)


@contextmanager
def report_progress_to(listener: ProgressListener) -> Iterator[None]:
    """Report to a listener, about once a second, how many blocks of a reading are done."""
    # A context variable: fits in other threads have other listeners.
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def compute_with_retries(make_task: Callable[[str], Any], n_parts: int = 0) -> Any:
    """Return a value computed by Dask; start it again if workers are lost repeatedly."""
    client = get_computing_client()
    # A new name for each attempt: the scheduler remembers the keys of tasks that it gave up.
    for n_remaining in reversed(range(_MAX_ATTEMPTS)):
        try:
            name = f"block-{uuid4().hex}"
            return _compute_on_client(make_task(name), name, n_parts)
        except Exception as error:
            name = type(error).__name__
            if name == "FutureCancelledError" and _is_client_cut_off(client, error):
                raise SchedulerLostError(
                    "The connection to the Dask scheduler was lost, or its client was closed, "
                    "while rows were read. Start the cluster again, make a new Client, and repeat "
                    "the call."
                ) from error
            # The second message appears if the client that held rows is closed.
            if name == "FutureCancelledError" or str(error).startswith("Missing dependency"):
                raise DataLostError(
                    "The rows are no longer available. Scattered data cannot be recomputed, and "
                    "persisted data lives as long as the collection that persist() returned "
                    "(not just parts of it) and its client: keep these, or read the rows from "
                    f"storage. {MISSING_TASKS_HINT} ({error})"
                ) from error
            # Dask gives up a task if several workers died while running it, whatever the cause.
            if not n_remaining or name != "KilledWorker":
                raise
    raise AssertionError


def compute_together(values: Iterable[Any]) -> list[Any]:
    """Return lazy values, computed in one computation as :func:`compute_with_retries` does."""
    values = list(values)
    results: list[Any] = compute_with_retries(
        lambda name: delayed(list, pure=False)(values, dask_key_name=name)
    )
    return results


def _is_client_cut_off(client: Any | None, error: Exception) -> bool:
    """Return whether a cancellation means that the client has no scheduler any more."""
    # Its client may have connected again by now, to a scheduler that knows no task.
    is_lost = getattr(error, "reason", None) == "scheduler-connection-lost"
    return is_lost or (client is not None and client.status != "running")


def _compute_on_client(lazy: Any, name: str, n_parts: int) -> Any:
    """Return a value computed by Dask, on a client's cluster if there is a client.

    Dask alone would wait for workers forever, without a message.
    """
    # Without a client, Dask's local scheduler (threads, synchronous) computes; it cannot lose
    # workers.
    client = get_computing_client()
    if client is None:
        return compute(lazy)[0]

    def workers() -> list[dict[str, Any]]:
        return list(client.scheduler_info(n_workers=-1)["workers"].values())

    # One bound for every wait of a fit; users can configure it.
    timeout = configured_timeout()
    wait_for_workers(client, workers, timeout)
    try:
        progress_look = _make_progress_look(client, name, n_parts)
        with (
            shield_workers(client),
            watch_workers(client, workers, timeout, lazy.key, progress_look),
        ):
            return compute(lazy, scheduler=client)[0]
    finally:
        flush_releases(client)


@contextmanager
def shield_workers(client: Any = None) -> Iterator[None]:
    """Protect the workers of this process group from a Ctrl-C that ends the block.

    Without a client, those of the client that computes are protected, for calls in the main thread:
    Ctrl-C ends no others. (Within a task of a worker, asking for a client would make one.)
    """
    in_main = threading.current_thread() is threading.main_thread()
    if client is None and in_main and "distributed" in sys.modules:
        with suppress(InvalidParameterError):  # such a client computes nothing
            client = get_computing_client()
    if client is None:
        yield
        return
    from daskml_dist.dask_internals.interrupt_shields import Shielding

    with Shielding(client, f"daskml-{uuid4().hex}", _SHIELD_AFTER_SECONDS):
        yield


def configured_timeout() -> float:
    """Return the most seconds that any wait of a fit may take."""
    return configured_number("daskml_dist.timeout", 300.0)


def configured_number(name: str, default: float) -> float:
    """Return a setting of Dask's configuration, the default if it is None; raise if no number."""
    setting = dask.config.get(name, None)
    if setting is None:
        return default
    # A string that reads as a number is one: files of settings may quote it.
    with suppress(TypeError, ValueError):
        if not isinstance(setting, bool) and (number := float(setting)) >= 0.0:
            return number
    raise InvalidParameterError(
        f"{name} of Dask's configuration is {setting!r}, but must be a number that is at least 0, "
        f'without a unit: dask.config.set({{"{name}": {default:g}}}) is the default.'
    )


#: Texts that files of settings and environment variables use for a setting that is on, or off.
_FLAG_TEXTS = {
    **dict.fromkeys(("true", "yes", "on", "1", "y", "t"), True),
    **dict.fromkeys(("false", "no", "off", "0", "n", "f"), False),
}


def configured_flag(name: str, default: bool) -> bool:
    """Return a setting of Dask's configuration that is on or off, the default if it is None."""
    setting = dask.config.get(name, None)
    if setting is None:
        return default
    # Dask leaves DASK_...=no a string, which would count as true.
    with suppress(KeyError):
        return _FLAG_TEXTS[str(setting).strip().lower()]
    raise InvalidParameterError(
        f"{name} of Dask's configuration is {setting!r}, but must be true or false: "
        f'dask.config.set({{"{name}": {default}}}) is the default.'
    )


def _make_progress_look(client: Any, name: str, n_parts: int) -> Callable[[], None] | None:
    """Return a function that reports to the listener how many blocks are done, or None."""
    listener = _listener.get()
    if listener is None or not n_parts:
        return None

    def left(dask_scheduler: Any) -> int:
        group = dask_scheduler.task_groups.get(name)
        # Tasks with one name form a group, for which the scheduler maintains counts by state.
        return n_parts if group is None else sum(group.states.get(state, 0) for state in to_do)

    to_do = _UNFINISHED_STATES  # pickled with the function: a scheduler may lack the package
    return lambda: listener(n_parts - client.run_on_scheduler(left), n_parts)


_chosen_client: ContextVar[Any] = ContextVar("daskml_dist_client", default=None)

_CLIENT_CHOICES = (
    "'inline' to use this process for rows in memory, 'auto' for whichever is faster, or None "
    "for the current client"
)


def check_client(client: Any, operation: str = "fit", choices: str = _CLIENT_CHOICES) -> Any:
    """Return a client that can compute."""
    # Importing distributed takes half a second; if there is a client, it is already imported.
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        raise InvalidParameterError(
            f"client={client!r}: {_describe_wrong_client(client)} Other values of client: "
            f"{choices}."
        )
    if client.status in ("closing", "closed"):
        raise InvalidParameterError(
            f"client={client!r}: it is closed. Pass a Client that is open, such as "
            f"Client(address), and keep it open until {operation} has ended."
        )
    check_synchronous(client, operation)
    check_not_inherited(client, operation)
    return client


#: Clients that this process was forked with. Their threads exist in the parent process only, so
#: each call of them would wait for ever.
_inherited_clients: WeakSet[Any] = WeakSet()


def _note_inherited_clients() -> None:
    """Remember the clients of the parent process, in a process that was just forked."""
    if (distributed := sys.modules.get("distributed")) is not None:
        _inherited_clients.update(distributed.Client._instances)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_inherited_clients)


def is_inherited(client: Any) -> bool:
    """Return whether a client belongs to the process that this one was forked from."""
    return client in _inherited_clients


def check_not_inherited(client: Any, operation: str) -> None:
    """Raise an error if a client belongs to the process that this one was forked from."""
    if is_inherited(client):
        raise InvalidParameterError(
            f"{operation} cannot use {client!r}: it belongs to the process that this one was "
            "forked "
            'from. Start processes by another method, multiprocessing.get_context("spawn"), and '
            "make a Client(address) in each; or call this on rows in memory, with "
            "client='inline'."
        )


def check_synchronous(client: Any, operation: str) -> None:
    """Raise an error if a client belongs to an event loop."""
    if getattr(client, "asynchronous", False):
        raise _make_asynchronous_error(operation)


def _make_asynchronous_error(operation: str) -> InvalidParameterError:
    """Return the error for a client that belongs to an event loop."""
    return InvalidParameterError(
        f"{operation} needs a synchronous Client outside of its event loop, since it would block "
        "the loop. In the loop, await it in a thread: await model.fit_async(X, y), or await "
        "daskml_dist.run_async(function, ...). Elsewhere create one with Client(..., "
        "asynchronous=False); a task that fits is a plain function, not async."
    )


@contextmanager
def use_client(client: Any) -> Iterator[None]:
    """Make a client current in this thread, and use it for reductions of rows."""
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        yield
        return
    check_client(client)
    # Dask itself uses the current client only if one is its default.
    token = _chosen_client.set(client)
    try:
        with client.as_current():
            yield
    finally:
        _chosen_client.reset(token)


def get_computing_client(operation: str = "this call") -> Any:
    """Return the client that computes reductions of rows; None without one."""
    try:
        client = _chosen_client.get() or getattr(get_scheduler(), "__self__", None)
    except RuntimeError as error:  # newer versions of Dask refuse such a client
        raise _make_asynchronous_error(operation) from error
    check_synchronous(client, operation)
    if client is not None:
        check_not_inherited(client, operation)
    return client if getattr(client, "status", "") == "running" else None  # else Dask reports it


def _describe_wrong_client(client: Any) -> str:
    """Return advice on what to pass instead of an object that is not a client."""
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


#: Statuses of workers that accept tasks.
ACCEPTING_STATUSES = {"init", "running", "undefined", None}

#: Seconds after which a wait is reported.
_NOTICE_SECONDS = 1.5
#: Seconds that a cluster must be without any worker being started before it counts as lost: a call
#: of `scale` takes a moment to start workers.
_GIVE_UP_SECONDS = 3.0
#: Seconds after which a wait for workers to begin is reported: a worker's first fit imports the
#: package and compiles loops, which normally takes some ten seconds.
FIRST_TASK_NOTICE_SECONDS = 20.0

logger = logging.getLogger("daskml_dist")


class Deadline:
    """Time limit of one wait.

    It reports the wait by a warning of the logger ``daskml_dist``, which Python writes to standard
    error (a notebook shows it, and a progress display lets it through) unless the user has
    configured logging. Each text is logged once.

    Parameters
    ----------
    awaited : str
        What the wait is for.
    timeout : float
        Seconds without progress.
    remedy : str, default=""
        What the user can do meanwhile; a sentence.
    tell_after : float, default=1.5
        Seconds without progress after which the user is informed; at most half of `timeout`.
    """

    def __init__(
        self, awaited: str, timeout: float, remedy: str = "", *, tell_after: float = _NOTICE_SECONDS
    ) -> None:
        self._awaited = awaited
        # A short time limit is announced before it ends.
        self._tell_after = max(_NOTICE_SECONDS, min(tell_after, timeout / 2))
        self._timeout = timeout
        self._remedy = remedy
        self._since = time.monotonic()
        self._reported: set[str] = set()

    def renew(self) -> None:
        """Restart the time limit after progress."""
        self._since = time.monotonic()

    def has_time_left(self, state: str = "") -> bool:
        """Return whether time is left; report the wait once it has lasted a moment."""
        waited = time.monotonic() - self._since
        if waited > self._tell_after and state not in self._reported:
            self._reported.add(state)
            bound = f"{state}; {self._timeout:g} s" if state else f"{self._timeout:g} s"
            logger.warning("%s", f"waiting for {self._awaited} ({bound}). {self._remedy}".strip())
        return waited <= self._timeout


def wait_for_workers(
    client: Any,
    workers: Callable[[], Iterable[Mapping[str, Any]]],
    timeout: float,
    on_wait: Callable[[], None] | None = None,
    describe_cause: Callable[[], str] | None = None,
) -> None:
    """Wait until some worker accepts tasks.

    Meanwhile a pending task makes an adaptive cluster grow.
    """
    if _any_accepts_work(statuses := _get_statuses(workers)):
        return
    if on_wait is not None:
        on_wait()
    loss = _WorkerLoss(client, timeout)
    # An adaptive cluster starts workers only for pending tasks.
    task = client.submit(bool, pure=False)
    try:
        while not _any_accepts_work(statuses):
            if (error := loss.find_error(statuses, describe_cause)) is not None:
                raise error
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
    """Watch the workers while Dask computes; end the wait if all are permanently lost."""
    from distributed import Future  # not needed for rows in memory

    from daskml_dist.dask_internals.cluster import find_unmet_demands

    ended, gave_up = threading.Event(), []
    loss: _WorkerLoss | None = None
    unmet_deadline: Deadline | None = None

    def find_error() -> TrainingError | None:
        nonlocal loss, unmet_deadline
        if not _any_accepts_work(statuses := _get_statuses(workers)):
            loss = loss or _WorkerLoss(client, timeout)
            return loss.find_error(statuses)
        loss = None  # progress is possible again: a later loss has the whole time limit
        if look is not None:
            look()
        if not (demands := find_unmet_demands(client, [key])):
            unmet_deadline = None
            return None
        unmet_deadline = unmet_deadline or make_unmet_deadline(timeout)
        return None if unmet_deadline.has_time_left(demands) else make_unmet_error(timeout, demands)

    def watch() -> None:
        while not ended.wait(_NOTICE_SECONDS):
            with suppress(Exception):  # Dask reports a lost scheduler
                if (error := find_error()) is not None:
                    # The wait in `compute` then ends with an error, and this one is raised instead.
                    gave_up.append(error)
                    client.cancel([Future(key, client)], force=True)
                    return

    as_here = partial(copy_context().run, watch)  # keeps the user's current client
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
    """Send pending releases of keys to the scheduler before any other message.

    A release takes two iterations of the client's event loop, and a graph one. If the user computed
    keys that a fit has just released, the scheduler would mix tasks of two graphs, and keep some
    forever.
    """
    with suppress(Exception):  # a lost scheduler keeps nothing
        client.sync(asyncio.sleep, 0)


class _WorkerLoss:
    """Time limits of a wait during which no worker accepts tasks."""

    def __init__(self, client: Any, timeout: float) -> None:
        self._timeout = timeout
        self._deadline = Deadline("workers", timeout, _SCALE_REMEDY)
        self._places = _WorkerPlaces(client)

    def find_error(
        self, statuses: list[Any], why: Callable[[], str] | None = None
    ) -> TrainingError | None:
        """Return the error that ends the wait, with its cause; None while a worker may still come.

        `statuses` are the ones of the workers that there are, of which none accepts tasks.
        """
        if not statuses and self._places.are_given_up():
            return _make_no_place_error(self._places.n_requested, why() if why else "")
        if not self._deadline.has_time_left(_describe_statuses(statuses)):
            return _make_no_worker_error(self._timeout, statuses, why() if why else "")
        return None


class _WorkerPlaces:
    """Worker places of the cluster object that a client belongs to, such as `LocalCluster`.

    Such a cluster closes the nanny of a worker that is missing for `lost-worker-timeout` (15 s)
    after a loss, even if the worker was restarted in between and killed again. Then only another
    call of `scale` restarts it.
    """

    def __init__(self, client: Any) -> None:
        self._cluster = getattr(client, "cluster", None)
        self._since: float | None = None

    @property
    def n_requested(self) -> int:
        """Return the number of workers requested from the cluster."""
        return len(getattr(self._cluster, "worker_spec", None) or ())

    def are_given_up(self) -> bool:
        """Return whether all worker places have been unfilled, without replacement, for a while.

        An adaptive cluster fills them automatically, and a cluster that was just scaled is about
        to.
        """
        workers = getattr(self._cluster, "workers", None)
        adapts = getattr(self._cluster, "_adaptive", None) is not None
        # A worker runs or will be started: not given up yet.
        if (
            workers is None
            or len(workers)
            or adapts
            or not self.n_requested
            or self._are_being_filled()
        ):
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since >= _GIVE_UP_SECONDS

    def _are_being_filled(self) -> bool:
        """Return whether the cluster is starting workers or submitting jobs.

        The cluster counts workers only once they run: minutes later on a busy machine, or if jobs
        are submitted slowly.
        """
        is_about_to = getattr(self._cluster, "_correct_state_waiting", None) is not None
        lock = getattr(self._cluster, "_lock", None)
        return is_about_to or (isinstance(lock, asyncio.Lock) and lock.locked())


_SCALE_REMEDY = "Scale the cluster up, or give its workers more memory."
#: Dask ends a worker that cannot unpickle a task, without an error at the client.
_ENDED_REMEDY = (
    "If workers ended at their first task, see their logs: they need the same packages as this "
    "process. "
)
_UNMET_REMEDY = (
    'Start workers that have them (dask worker --resources "GPU=1"), or remove '
    "dask.annotate(resources=..., workers=...) from the collection and from the call."
)
_REFIT_REMEDY = (
    "Then fit again; with Checkpoint(path, resume=True) it resumes from the last checkpoint."
)


def make_unmet_deadline(timeout: float) -> Deadline:
    """Return the time limit for tasks that ask for what no worker offers."""
    return Deadline("workers for some of the tasks", timeout, _UNMET_REMEDY)


def make_unmet_error(timeout: float, demands: str) -> TrainingError:
    """Return the error for tasks that ask for what no worker offers."""
    return TrainingError(
        f"Some tasks could not start within {timeout:g} s: {demands}. {_UNMET_REMEDY} The time "
        "limit is daskml_dist.timeout in Dask's configuration."
    )


def _get_statuses(workers: Callable[[], Iterable[Mapping[str, Any]]]) -> list[Any]:
    """Return the status of each worker."""
    return [worker.get("status") for worker in workers()]


def _any_accepts_work(statuses: list[Any]) -> bool:
    """Return whether a worker with one of these statuses accepts tasks."""
    return bool(ACCEPTING_STATUSES.intersection(statuses))


def _make_no_worker_error(timeout: float, statuses: list[Any], cause: str = "") -> TrainingError:
    """Return the error for a wait in which no worker accepted tasks."""
    return TrainingError(
        f"No worker accepted work within {timeout:g} s ({_describe_statuses(statuses)}).{cause} "
        f"{_SCALE_REMEDY} {'' if statuses else _ENDED_REMEDY}{_REFIT_REMEDY} The time limit is "
        "daskml_dist.timeout in Dask's configuration."
    )


def _make_no_place_error(n_places: int, cause: str = "") -> TrainingError:
    """Return the error for a cluster that does not replace its lost workers."""
    return TrainingError(
        "All workers are lost, and the cluster starts no new ones: Dask gave up the places of "
        f"its {n_places} workers, as it does if a replaced worker is lost within "
        f"distributed.deploy.lost-worker-timeout (15 s).{cause} Request them again with "
        f"client.cluster.scale({n_places}), and check why they died: did they run out of memory? "
        f'{_REFIT_REMEDY} dask.config.set({{"distributed.deploy.lost-worker-timeout": "1h"}}) '
        "before the cluster is made keeps their places."
    )


def _describe_statuses(statuses: list[Any]) -> str:
    """Return the number of workers in each status, for an error."""
    if not statuses:
        return "0"
    counts = Counter("at their memory limit" if s == "paused" else str(s) for s in statuses)
    status_counts = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"0 of {len(statuses)}: {status_counts}"


#: Seconds during which sending is retried, and between two attempts.
_SCATTER_SECONDS, _SCATTER_PAUSE_SECONDS = 30.0, 0.1


def scatter_values(client: Any, value: Any, *, everywhere: bool = False) -> Any:
    """Return futures of values on the workers, as ``client.scatter``, but tolerate a dying worker.

    Dask sends a value to a worker that has just died until the scheduler notices the loss.
    """
    end = time.monotonic() + _SCATTER_SECONDS
    while True:
        try:
            # No hash: the values of a fit are always new, and hashing large ones is slow.
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
