"""Results of many short tasks, for the client; tasks that are lost are started again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from distributed import CancelledError, Client, wait

from daskml_dist.dask_internals.cluster import (
    find_failed_task,
    find_unmet_demands,
    flush_client,
    is_dask_error,
    is_killed_worker,
    release_stuck_tasks,
)
from daskml_dist.data.block_errors import make_reading_error
from daskml_dist.data.computing import Deadline, make_unmet_deadline, make_unmet_error
from daskml_dist.errors import DaskMLDistError, DataLostError, WorkerLostError
from daskml_dist.training.client.membership import Membership

#: Seconds between two checks of tasks, and seconds that fetching results may take at first.
_LOOK, _FETCH = 0.5, 5.0
#: Seconds within which workers may report data that they have just made.
_MOMENT = 0.15
#: Times that a block's task is restarted after Dask gave up on it because its workers died.
MAX_TASK_RESTARTS = 4

_REFIT_REMEDY = "Check the workers' logs and the other work on the cluster, then fit again."

StartTasks = Callable[[list[int]], Mapping[int, Any]]
QueryFacts = Callable[[list[int], float], dict[int, Any]]


class Gathering:
    """Waiting for tasks on a cluster whose workers come and go.

    Parameters
    ----------
    client : Client
    membership : Membership
    timeout : float
        Seconds without any progress (no task ends, and no worker computes) after which it gives up.
    get_held_futures : callable
        Returns other futures of the fit, which its tasks may need.
    on_done : callable, optional
        Takes the number of awaited tasks that have ended; called at intervals.
    """

    def __init__(
        self,
        client: Client,
        membership: Membership,
        timeout: float,
        get_held_futures: Callable[[], Iterable[Any]] = tuple,
        on_done: Callable[[int], None] | None = None,
    ) -> None:
        self._client = client
        self._membership = membership
        self._timeout = timeout
        self._get_held_futures = get_held_futures
        self._on_done = on_done
        #: Workers that accepted work at the last check.
        self._last_ready_workers: set[str] = set()

    def close(self) -> None:
        """Drop the functions of the caller, which may refer back to this object."""
        self._get_held_futures, self._on_done = tuple, None

    def results(
        self, start_tasks: StartTasks, task_numbers: Iterable[int], description: str
    ) -> dict[int, Any]:
        """Return the results of one task for each number."""
        task_numbers = list(task_numbers)
        futures: dict[int, Any] = {}

        def begin() -> None:
            # Tasks are started for the first time, or again: Dask cancels tasks whose data was lost
            # with a worker.
            lost = [n for n in task_numbers if n not in futures or futures[n].status == "cancelled"]
            if lost:
                self._start_tasks(start_tasks, lost, futures)

        seconds, results = _FETCH, None
        try:
            while results is None:
                self._wait_until_done(futures, len(task_numbers), begin, description)
                results = self._fetch_results([futures[n] for n in task_numbers], seconds)
                if seconds > self._timeout:
                    raise WorkerLostError(
                        f"Waiting for {description}: they cannot be fetched. {_REFIT_REMEDY}"
                    )
                # A large result may take long, so each attempt gets more time.
                seconds *= 2
        finally:
            # An error's traceback would hold the futures, and with them the user's rows.
            for future in futures.values():
                future.release()
        return dict(zip(task_numbers, results, strict=True))

    def start_and_query(
        self, start_tasks: StartTasks, query_facts: QueryFacts, task_numbers: list[int]
    ) -> dict[int, Any]:
        """Start tasks whose data stays on workers; return facts that workers report soon.

        Workers report directly, before the client would know that their tasks have ended.
        """
        self._membership.wait_for_any_worker(self._timeout)
        futures: dict[int, Any] = {}
        self._start_tasks(start_tasks, task_numbers, futures)
        return query_facts(task_numbers, _MOMENT) if futures else {}

    def wait_until_made(
        self, start_tasks: StartTasks, task_numbers: Iterable[int], description: str
    ) -> None:
        """Wait for data that will stay on workers."""
        task_numbers = list(task_numbers)
        futures: dict[int, Any] = {}

        start = partial(self._start_tasks, start_tasks, task_numbers, futures)
        self._wait_until_done(futures, len(task_numbers), start, description)

    def wait_for(self, futures: Iterable[Any], description: str) -> None:
        """Wait for tasks that the user has started."""
        users = dict(enumerate(futures))

        def check() -> None:
            cancelled = [n for n, future in users.items() if future.status == "cancelled"]
            if cancelled:
                raise DataLostError(
                    f"Blocks {cancelled[:10]} of {description} were lost with their worker or "
                    "cancelled, or the client that persisted them was closed. Read them from "
                    "storage, persist them again, and fit again."
                )

        self._wait_until_done(users, len(users), check, description, is_own_task=False)

    def _wait_until_done(
        self,
        futures: dict[int, Any],
        n_futures: int,
        ensure_started: Callable[[], None],
        description: str,
        *,
        is_own_task: bool = True,
    ) -> None:
        """Wait for tasks; `ensure_started` restarts them if that is needed and they are ours."""
        patience = Deadline(description, self._timeout, "Check the cluster's dashboard.")
        unmet_patience: Deadline | None = None
        killed: Counter[int] = Counter()
        n_done = 0
        while True:
            self._membership.wait_for_any_worker(self._timeout)
            ensure_started()
            self._wait_a_moment(list(futures.values()))
            self._handle_failed_tasks(futures, killed, is_own_task)
            n_done_before, n_done = n_done, sum(f.status == "finished" for f in futures.values())
            # Report progress to the callbacks.
            if self._on_done is not None:
                self._on_done(n_done)
            if n_done == n_futures:
                return
            busy = self._is_cluster_busy(futures, is_own_task)
            if n_done == n_done_before and (demands := self._find_unmet_demands(futures)):
                unmet_patience = unmet_patience or make_unmet_deadline(self._timeout)
                if not unmet_patience.has_time_left(demands):
                    raise make_unmet_error(self._timeout, demands)
                continue
            unmet_patience = None
            if busy or n_done > n_done_before:
                patience.renew()
            elif not patience.has_time_left(
                f"{n_done} of {n_futures} there, no worker works on it"
            ):
                raise WorkerLostError(
                    f"Waiting for {description}: no progress for {self._timeout:g} s, with "
                    f"{n_done} of {n_futures} there. {_REFIT_REMEDY}"
                )

    def _find_unmet_demands(self, futures: Mapping[int, Any]) -> str:
        """Return what the tasks ask for that no worker offers; empty while some of them run."""
        pending = {future.key for future in futures.values() if future.status == "pending"}
        return find_unmet_demands(self._client, list(pending)) if pending else ""

    def _wait_a_moment(self, futures: list[Any]) -> None:
        """Wait a moment, or until all tasks have ended."""
        if not futures:
            time.sleep(_LOOK / 10)
            return
        if all(future.status == "finished" for future in futures):
            return
        futures = list({future.key: future for future in futures}.values())
        with suppress(TimeoutError, CancelledError), self._client.as_current():
            wait(futures, timeout=_LOOK)

    def _start_tasks(
        self, start_tasks: StartTasks, task_numbers: list[int], futures: dict[int, Any]
    ) -> None:
        """Start tasks; if the cluster cannot be reached, the next iteration tries again."""
        try:
            futures.update(start_tasks(task_numbers))
            flush_client(self._client)
        except (OSError, RuntimeError) as error:
            # The cluster cannot be reached at the moment.
            if isinstance(error, DaskMLDistError):
                raise
        except Exception as error:
            if not is_dask_error(error):
                raise

    def _fetch_results(self, futures: list[Any], seconds: float) -> list[Any] | None:
        """Return the results; None if one was lost in the meantime, or does not arrive."""
        fetch = partial(self._client.gather, futures, asynchronous=True)
        try:
            results: list[Any] = self._client.sync(fetch, callback_timeout=seconds)
        except Exception as error:
            if is_dask_error(error) or isinstance(error, OSError):
                return None
            raise
        return results

    def _handle_failed_tasks(
        self, futures: dict[int, Any], killed: Counter[int], is_own_task: bool
    ) -> None:
        """Restart tasks that ended by a loss; raise errors of the tasks themselves."""
        for number, future in list(futures.items()):
            if future.status != "error":
                continue
            error = future.exception(timeout=_FETCH)
            # Dask gives up on a task after some workers died while running it, which need not be
            # the task's fault.
            killed[number] += is_killed_worker(error)
            if killed[number] > MAX_TASK_RESTARTS:
                raise WorkerLostError(
                    f"Block {number} cannot be read: the workers that worked on it died "
                    f"repeatedly ({error}). Do they run out of memory? Use smaller chunks, or "
                    "workers with more memory, then fit again."
                ) from error
            if is_dask_error(error):
                release_stuck_tasks(
                    self._client, [future.key], [future.key], moves_pinned_tasks=is_own_task
                )
                if is_own_task:
                    futures.pop(number).release()
                else:
                    time.sleep(_LOOK / 5)  # until the client knows about the retry
            elif isinstance(error, DaskMLDistError):
                raise error
            else:
                failed = find_failed_task(self._client, future.key)
                task = "" if failed is None else f"the task {failed!r}"
                raise make_reading_error(f"Block {number}", error, task) from error

    def _is_cluster_busy(self, futures: dict[int, Any], is_own_task: bool) -> bool:
        """Return whether a worker computes anything; free tasks that wait for lost workers."""
        membership = self._membership
        # Silent workers are evicted, so that their tasks are started elsewhere.
        membership.evict_stopped(list(membership.call()))
        ready = set(membership.ready)
        busy = False
        with suppress(OSError):  # the scheduler is gone: the next roll call reports it
            busy = bool(ready) and any(self._client.processing(sorted(ready)).values())
        # Workers joined or left, or there is no progress: check for tasks that wait in vain.
        if not busy or ready != self._last_ready_workers:
            all_futures = [*futures.values(), *self._get_held_futures()]
            waiting = {future.key for future in all_futures if future.status in {"pending", "lost"}}
            release_stuck_tasks(self._client, list(waiting), moves_pinned_tasks=is_own_task)
        self._last_ready_workers = ready
        return busy
