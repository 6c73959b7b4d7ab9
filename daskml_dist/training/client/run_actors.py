"""Actors and tasks of a run on the cluster, from the client's side.

`ActorCalls` calls methods of actors and detects lost workers. `RunActors` starts, calls and
releases the actors that host parameter servers and the tasks of the trainers. `EarlyHost` starts
the run's first actor while the rows are still being read. `DirectResults` and `query_bundles`
request results and block facts directly from workers, which is faster than waiting for the
scheduler's report.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import Client, Future

from daskml_dist.comm.base import CHECK_SECONDS, Endpoint
from daskml_dist.comm.handshake import RunSecret
from daskml_dist.dask_internals.cluster import make_actor_proxy, submit_tasks, wait_for_actor
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import BlockInfo
from daskml_dist.data.computing import FIRST_TASK_NOTICE_SECONDS, Deadline, scatter_values
from daskml_dist.errors import DaskMLDistError
from daskml_dist.training.client.membership import Membership, ignore_event
from daskml_dist.training.spec import FitSpec, TrainerSpec, configured_connections
from daskml_dist.training.worker.host import ServerHost, load_fit_on_worker, pack_fit, run_trainer
from daskml_dist.training.worker.notifications import await_bundles, await_results

#: Seconds after which an unanswered call of an actor's method counts as a lost worker.
_CALL_TIMEOUT_SECONDS = 30.0
#: Most bytes of state in a fit that is sent with each task (256 KiB); a larger one is scattered
#: once, and tasks get its future.
_MAX_INLINE_FIT_BYTES = 2**18
#: Hint of messages about a worker that does not start its task.
BUSY = "Are they busy with other tasks?"
Tasks = dict[Any, tuple[Callable[..., Any], Iterable[Any]]]
#: Prefix of the keys of tasks that create an actor.
_ACTOR_KEY_PREFIX = f"{ServerHost.__name__}-"
#: Seconds to wait for the proxy of an actor whose task has finished.
_PROXY_TIMEOUT_SECONDS = 1.0
#: Seconds that workers may take to answer a query for bundles.
_QUERY_TIMEOUT_SECONDS = 3.0
#: Seconds for which workers hold a request for results until the trainer ends. Beyond that the
#: scheduler's report is used: in a longer fit the milliseconds gained do not matter.
_RESULT_WAIT_SECONDS = 2.0


class WorkerUnreachableError(Exception):
    """A worker of the run does not answer; raised inside the client only."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"worker {address}: {reason}")
        self.address = address


@dataclass(eq=False)
class ActorHandle:
    """Actor that hosts a server, its standby or lanes of a stream, as the client knows it."""

    actor_index: int
    address: str
    future: Future[Any]
    #: Arguments with which the actor's `ServerHost.begin` must still be called; empty afterwards.
    begin_args: tuple[Any, ...] = ()
    proxy: Any = None
    #: Pending call for the endpoint, or the endpoint itself; None before and after the request.
    endpoint_answer: Any = None
    #: Address at which the server accepts trainers, once it is known.
    endpoint: Endpoint | None = None
    #: Class of the actor.
    kind: type[Any] = ServerHost


@dataclass(eq=False)
class TrainerTask:
    """Running task of a trainer: its spec, its worker's address and its future."""

    spec: TrainerSpec
    address: str
    future: Future[Any]

    @property
    def lanes(self) -> tuple[LaneSpec, ...]:
        """Return the trainer's lanes."""
        return self.spec.lanes


class ActorCalls:
    """Calls of the methods of a run's actors, which distinguish lost workers from busy ones.

    Every method raises `WorkerUnreachableError` if an actor or its worker is lost.

    Parameters
    ----------
    client : Client
    membership : Membership
    timeout : float
        Seconds that a worker may take to start an actor.
    """

    def __init__(self, client: Client, membership: Membership, timeout: float) -> None:
        self._client = client
        self._membership = membership
        self._timeout = timeout

    def _await_proxy(self, host: ActorHandle) -> None:
        """Wait until an actor runs and its proxy is known; raise if it cannot start."""
        description = f"worker {host.address} to begin its part"
        deadline = Deadline(description, self._timeout, BUSY, tell_after=FIRST_TASK_NOTICE_SECONDS)
        # Starting takes as long as the worker is busy, so the loop only gives up when the worker is
        # gone, paused or silent.
        while host.proxy is None:
            with suppress(TimeoutError):
                host.proxy = self._get_proxy(host)
                break
            self._check_host(host)
            if not self.is_ready(host) and not self._membership.begins_new_work(host.address):
                raise WorkerUnreachableError(host.address, "paused, at its memory limit")
            if not deadline.has_time_left():
                raise WorkerUnreachableError(host.address, f"no answer within {self._timeout:g} s")

    def is_ready(self, host: ActorHandle) -> bool:
        """Return whether the task that creates an actor has finished."""
        return host.future.status == "finished"

    def _get_proxy(self, host: ActorHandle) -> Any:
        """Return the proxy of an actor; raise `TimeoutError` while it does not run."""
        try:
            return wait_for_actor(self._client, host.future, host.kind, host.address, CHECK_SECONDS)
        except (TimeoutError, DaskMLDistError):
            raise
        except Exception as error:
            if self._membership.is_member(host.address) and host.future.status == "error":
                raise
            # An error in the actor's constructor is the user's; any other one may be a lost worker.
            raise WorkerUnreachableError(host.address, repr(error)) from error

    def _check_host(self, host: ActorHandle) -> None:
        """Raise `WorkerUnreachableError` if an actor or its worker is lost."""
        if host.future.status in {"lost", "cancelled"}:
            raise WorkerUnreachableError(host.address, "lost")
        if not self._membership.is_member(host.address):
            raise WorkerUnreachableError(host.address, "stopped answering, or lost")

    def _call_method(self, host: ActorHandle, method: str, *args: Any) -> Any:
        """Call an actor's method without waiting; return the pending call."""
        try:
            return getattr(host.proxy, method)(*args)
        except (OSError, RuntimeError) as error:
            raise WorkerUnreachableError(host.address, repr(error)) from error

    def _await_answer(
        self,
        host: ActorHandle,
        call: Any,
        deadline: float,
        check_others: Callable[[], None] = ignore_event,
    ) -> Any:
        """Wait for the answer of a pending call, as long as the actor's worker is alive."""
        try:
            while True:
                # A call in progress when its worker was killed may never be answered.
                with suppress(TimeoutError):
                    return call.result(timeout=CHECK_SECONDS)
                self._check_host(host)
                check_others()
                # A process that compiles, or waits for a core, answers late.
                if time.monotonic() > deadline and not self._membership.is_busy(host.address):
                    raise WorkerUnreachableError(host.address, "no answer in time")
        except (OSError, RuntimeError) as error:
            if isinstance(error, DaskMLDistError):
                raise
            raise WorkerUnreachableError(host.address, repr(error)) from error


class RunActors(ActorCalls):
    """Actors and tasks of one run: starts, calls and releases them.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    early : EarlyHost
        The run's id and secret, and its first actor if one was started early.
    membership : Membership
    on_end : callable
        Called in the client's event loop thread when a trainer's task ends, and when workers have
        answered a request for results.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        early: EarlyHost,
        membership: Membership,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(client, membership, fit.run.timeout)
        self._fit = fit
        self._early = early
        self._run_id = early.run_id
        self._on_end = on_end
        # Only the state from which the fit continues can be large; its size is known without
        # pickling.
        self._is_small = fit.work.carried_bytes <= _MAX_INLINE_FIT_BYTES
        self._fit_future: Future[Any] | None = None
        self._serial = 0
        self._futures: list[Future[Any]] = []
        self._direct_results = DirectResults(client, self._run_id, on_end)

    def _fit_argument(self) -> FitSpec | Future[Any]:
        """Return the fit as an argument of tasks: itself if it is small, else a future of it."""
        if self._is_small:
            return self._fit
        # Scattered once for all tasks, and again if its worker was lost.
        if self._fit_future is None or self._fit_future.status != "finished":
            try:
                self._fit_future = scatter_values(self._client, self._fit)
            except TimeoutError as error:
                raise WorkerUnreachableError("of the cluster", "none is there") from error
        return self._fit_future

    def next_serial_number(self) -> int:
        """Return a number that no trainer or actor of the run has had before."""
        # Names are never reused, so that late messages of old actors cannot be confused with new
        # ones.
        self._serial += 1
        return self._serial

    # -- actors --------------------------------------------------------------------------------

    def start_host_actor(
        self, server_index: int, address: str, generation: int, n_trainers: int
    ) -> ActorHandle:
        """Submit an actor for server `server_index`; do not wait until it runs."""
        begin_args = (self._fit_argument(), server_index, n_trainers, generation)
        # The early actor receives the fit by a method call, which cannot take the future of a large
        # fit.
        if self._is_small and (claimed := self._early.claim(address)) is not None:
            future, (proxy, endpoint_answer) = claimed
            host = ActorHandle(server_index, address, future, begin_args, proxy, endpoint_answer)
        else:
            key = f"{self._run_id}-{server_index}-{self.next_serial_number()}"
            host = ActorHandle(
                server_index, address, self._early.start_host(address, key, *begin_args)
            )
        self._futures.append(host.future)
        return host

    def wait_for_endpoints(self, hosts: Sequence[ActorHandle]) -> list[Endpoint]:
        """Wait until several actors run; return the endpoints of their servers."""
        # All calls are started first, then all answers are awaited.
        for host in hosts:
            self._await_proxy(host)
            if host.endpoint_answer is None:
                host.endpoint_answer = self._call_method(host, "endpoint")
        deadline = time.monotonic() + self._timeout
        for host in hosts:
            answer = host.endpoint_answer
            is_known = isinstance(answer, Endpoint)
            host.endpoint = answer if is_known else self._await_answer(host, answer, deadline)
            host.endpoint_answer = None
        return [host.endpoint for host in hosts if host.endpoint is not None]

    def begin_waiting_hosts(self, hosts: Sequence[ActorHandle]) -> None:
        """Make actors that were started without a fit create servers; raise as :meth:`call`."""
        waiting = [host for host in hosts if host.begin_args]
        # The timeout is the fit's own: many processes that import modules at the same time on few
        # cores take a minute. A lost or silent worker is detected in the meantime.
        calls = [
            self.start_call_on_hosts([host], "begin", *host.begin_args, timeout=self._timeout)
            for host in waiting
        ]
        for host, wait_for_answer in zip(waiting, calls, strict=True):
            wait_for_answer()
            host.begin_args = ()

    def call(
        self, host: ActorHandle, method: str, *args: Any, timeout: float = _CALL_TIMEOUT_SECONDS
    ) -> Any:
        """Call a method of an actor and return its answer; raise if the worker is unreachable."""
        return self.call_hosts([host], method, *args, timeout=timeout)[0]

    def call_hosts(
        self,
        hosts: Sequence[ActorHandle],
        method: str,
        *args: Any,
        timeout: float = _CALL_TIMEOUT_SECONDS,
    ) -> list[Any]:
        """Call a method of several actors in parallel; raise as :meth:`call`."""
        return self.start_call_on_hosts(hosts, method, *args, timeout=timeout)()

    def start_call_on_hosts(
        self,
        hosts: Sequence[ActorHandle],
        method: str,
        *args: Any,
        timeout: float = _CALL_TIMEOUT_SECONDS,
    ) -> Callable[[], list[Any]]:
        """Call a method of several actors; return the function that waits for their answers."""
        deadline = time.monotonic() + timeout
        calls = [(host, self._call_method(host, method, *args)) for host in hosts]
        return lambda: [self._await_answer(host, call, deadline) for host, call in calls]

    def discard_host_actor(self, host: ActorHandle) -> None:
        """Stop an actor and release it, even if its worker is lost."""
        # An actor closes its sockets itself if it still can.
        if host.proxy is not None and self._membership.is_member(host.address):
            with suppress(Exception):
                host.proxy.close().result(timeout=2)
        host.proxy = None
        self.discard_futures([host.future])

    # -- tasks ---------------------------------------------------------------------------------

    def start_trainers(
        self, assignments: Sequence[tuple[TrainerSpec, str, Any]]
    ) -> list[TrainerTask]:
        """Submit trainers, given the spec, the worker's address and the blocks of each."""
        fit = self._fit_argument() if assignments else None
        # The fit's name comes first, since Dask's dashboard groups tasks by the prefix of the key.
        name = self._fit.run.name
        keys = [f"{name}-trainer-{spec.name}-{self._run_id}" for spec, _, _ in assignments]
        by_key = list(zip(keys, assignments, strict=True))
        futures = submit_tasks(
            self._client,
            {key: (run_trainer, (fit, spec, blocks)) for key, (spec, _, blocks) in by_key},
            {key: address for key, (_, address, _) in by_key},
        )
        # Wake the client's watching thread as soon as a trainer ends.
        for future in futures.values():
            future.add_done_callback(lambda _: self._on_end())
        self._futures += futures.values()
        return [TrainerTask(spec, address, futures[key]) for key, (spec, address, _) in by_key]

    def _gather_results(self, trainers: Sequence[TrainerTask]) -> list[Any]:
        """Return the results of finished trainers; raise if one is lost before it is fetched."""

        async def gather() -> list[Any]:
            futures = [trainer.future for trainer in trainers]
            results: list[Any] = await self._client.gather(futures, asynchronous=True)
            return results

        loop: Any = self._client.loop
        gathering = asyncio.run_coroutine_threadsafe(gather(), loop.asyncio_loop)
        while True:
            with suppress(TimeoutError):
                return gathering.result(timeout=CHECK_SECONDS)
            # A result that was lost with its worker would be awaited for ever.
            lost = self._membership.find_lost({trainer.address for trainer in trainers})
            for trainer in trainers:
                if trainer.future.status != "finished" or trainer.address in lost:
                    gathering.cancel()
                    raise WorkerUnreachableError(trainer.address, "lost")

    def request_results(self, trainers: Sequence[TrainerTask]) -> None:
        """Request results from the trainers' workers as soon as they end, if that is soon."""
        keys: dict[str, list[Any]] = {}
        for trainer in trainers:
            keys.setdefault(trainer.address, []).append(trainer.future.key)
        self._direct_results.request(keys)

    def have_trainers_ended(self, trainers: Sequence[TrainerTask]) -> bool:
        """Return whether all of the trainers have ended without an error."""
        results = self._direct_results.get([trainer.future.key for trainer in trainers])
        return results is not None or all(
            trainer.future.status == "finished" for trainer in trainers
        )

    def collect_results(self, trainers: Sequence[TrainerTask]) -> list[Any]:
        """Return the results of finished trainers; raise if one is lost."""
        results = self._direct_results.get([trainer.future.key for trainer in trainers])
        if results is not None:
            return results
        try:
            return self._gather_results(trainers)
        except Exception:
            # One at a time, so that the error names the lost trainer.
            return [self._gather_result(trainer) for trainer in trainers]

    def _gather_result(self, trainer: TrainerTask) -> Any:
        """Return the result of one trainer; raise `WorkerUnreachableError` if it is lost."""
        try:
            return self._gather_results([trainer])[0]
        except Exception as error:
            raise WorkerUnreachableError(trainer.address, repr(error)) from error

    def preload_fit(self, address: str) -> Future[bool]:
        """Submit a task that loads the fit and its backend on a worker; return its future."""
        key = f"{self._run_id}-ready-{self.next_serial_number()}"
        fit = pack_fit(self._fit) if self._is_small else self._fit_argument()
        tasks = {key: (load_fit_on_worker, (fit,))}
        future: Future[bool] = submit_tasks(self._client, tasks, {key: address})[key]
        self._futures.append(future)
        return future

    def discard_futures(self, futures: Iterable[Future[Any]]) -> None:
        """Cancel unfinished tasks and all actors among the futures, and release all of them."""
        futures = list(futures)
        # Actors are cancelled even if finished; otherwise they live as long as any of their
        # proxies.
        unfinished = [
            f for f in futures if is_actor_key(f.key) or not (f.done() or self._has_ended(f))
        ]
        with suppress(Exception):
            self._client.cancel(unfinished, force=True)
        for future in futures:
            future.release()
            if future in self._futures:
                self._futures.remove(future)

    def _has_ended(self, future: Future[Any]) -> bool:
        """Return whether a task ended without an error, as the scheduler or its worker reported."""
        return future.status == "finished" or self._direct_results.get([future.key]) is not None

    def release_if_ended(self) -> bool:
        """Release all tasks and actors if all have ended; else do nothing and return False.

        A cancelled actor ends by itself and closes its resources.
        """
        # A running task must be cancelled and awaited; the caller then calls `close`.
        if not all(self._has_ended(future) for future in self._futures):
            return False
        self.discard_futures(self._futures)
        self._fit_future = None
        return True

    def close(self, hosts: Iterable[ActorHandle]) -> None:
        """Stop and release all actors and tasks of the run."""
        for host in hosts:
            self.discard_host_actor(host)
        self.discard_futures(self._futures)
        self._fit_future = None


class EarlyHost:
    """Identity of a run, and its first actor, which starts while the rows are read.

    The actor runs without a fit until :class:`RunActors` claims it for a server.

    Parameters
    ----------
    client : Client

    Attributes
    ----------
    run_id : str
    secret : RunSecret
    address : str or None
        Worker of the actor; None before one is chosen and after the actor was claimed.
    key : str
        Key of the task that creates the actor.
    """

    def __init__(self, client: Client) -> None:
        self.run_id = f"daskml-{uuid.uuid4().hex}"
        self.secret = RunSecret.generate()
        self.address: str | None = None
        self._name = f"{self.run_id}-early"
        self.key = _make_actor_key(self._name)
        self._client = client
        self._future: Future[Any] | None = None
        #: Proxy of the actor, and its endpoint or the pending call for it.
        self._endpoint_request: tuple[Any, Any] = (None, None)

    def choose_actor_worker(self, address: str) -> None:
        """Choose the worker on which :meth:`start` starts the actor."""
        self.address = address

    def start(
        self, tasks: Tasks | None = None, workers: dict[Any, str | None] | None = None
    ) -> dict[Any, Any]:
        """Submit the actor together with other tasks; return the futures of the other tasks."""
        # One message for the actor and the blocks, so that the scheduler sends them together.
        tasks, pins = tasks or {}, dict(workers or {})
        if self.address is None or self._future is not None:
            return submit_tasks(self._client, tasks, pins)
        pins[self.key] = self.address
        actor_task: Tasks = {self.key: (ServerHost, self._host_arguments(self._name))}
        futures = submit_tasks(self._client, actor_task | tasks, pins, [self.key])
        self._future = futures.pop(self.key)
        return futures

    def start_host(self, address: str, name: str, *begin_args: Any) -> Future[Any]:
        """Submit another actor of the run; with `begin_args` it creates its server immediately."""
        key, arguments = _make_actor_key(name), (*self._host_arguments(name), *begin_args)
        tasks: Tasks = {key: (ServerHost, arguments)}
        future: Future[Any] = submit_tasks(self._client, tasks, {key: address}, [key])[key]
        return future

    def _host_arguments(self, name: str) -> tuple[Any, ...]:
        """Return the arguments of `ServerHost` that all actors of the run share."""
        return self.run_id, name, self.secret, configured_connections()

    def set_endpoint(self, endpoint: Endpoint) -> None:
        """Record the endpoint of the actor, which its worker reported."""
        assert self.address is not None
        proxy = make_actor_proxy(self._client, self.key, ServerHost, self.address)
        self._endpoint_request = proxy, endpoint

    def request_endpoint(self) -> None:
        """Request the actor's endpoint if it runs already; do not wait for the answer."""
        future, is_requested = self._future, self._endpoint_request[0] is not None
        if not is_requested and future is not None and future.status == "finished" and self.address:
            # Its worker may be lost at this moment; the run then detects it, and uses another one.
            with suppress(OSError, RuntimeError):
                proxy = wait_for_actor(
                    self._client, future, ServerHost, self.address, _PROXY_TIMEOUT_SECONDS
                )
                self._endpoint_request = proxy, proxy.endpoint()

    def claim(self, address: str) -> tuple[Future[Any], tuple[Any, Any]] | None:
        """Hand over the actor's future if it is on the given worker, else return None.

        The proxy and the endpoint (or the pending call for it) are included; None if unknown.
        """
        if address != self.address or self._future is None or self._future.status == "cancelled":
            return None
        claimed = self._future, self._endpoint_request
        self._future, self._endpoint_request, self.address = None, (None, None), None
        return claimed

    def close(self) -> None:
        """Cancel the actor if it was not claimed."""
        if self._future is not None:
            with suppress(Exception):
                self._future.cancel(force=True)
            self._future.release()
        self._future, self._endpoint_request, self.address = None, (None, None), None


def _make_actor_key(name: str) -> str:
    """Return the key of the task that creates an actor."""
    return f"{_ACTOR_KEY_PREFIX}{name}"


def is_actor_key(key: Any) -> bool:
    """Return whether a task creates an actor of a run."""
    return str(key).startswith(_ACTOR_KEY_PREFIX)


def query_bundles(
    client: Client, keys: Mapping[str, list[Any]], early: EarlyHost | None = None, wait: float = 0.0
) -> dict[int, tuple[str, BlockInfo]]:
    """Request facts of the bundles' blocks in workers' memory; return address and facts."""
    # One request per worker: the keys of its bundles, and the key of the early actor if it is
    # there.
    requests: dict[str, tuple[list[Any], str | None]] = {
        w: (bundles, None) for w, bundles in keys.items()
    }
    if early is not None and early.address is not None:
        requests[early.address] = keys.get(early.address, []), early.key
    answers: dict[str, Any] = {}
    if requests:
        with suppress(Exception):  # a worker does not answer: the scheduler will report it
            query = partial(_run_on_workers, client, await_bundles, requests, wait)
            answers = client.sync(query, callback_timeout=_QUERY_TIMEOUT_SECONDS)
    located = {}
    for address, (bundle_infos, endpoint) in answers.items():
        located.update({i: (address, info) for infos in bundle_infos for i, info in infos.items()})
        if early is not None and endpoint is not None:
            early.set_endpoint(endpoint)
    return located


class DirectResults:
    """Results of trainers sent directly by their workers, within `_RESULT_WAIT_SECONDS`.

    Results of a longer fit, or of a lost worker, are collected through the scheduler instead.

    Parameters
    ----------
    client : Client
    run_id : str
    on_answers : callable
        Called in the client's event loop thread once all workers have answered a request, with or
        without results (without, if a trainer is still running).
    """

    def __init__(self, client: Client, run_id: str, on_answers: Callable[[], None]) -> None:
        self._client: Any = client
        self._run_id = run_id
        self._on_answers = on_answers
        self._results: dict[Any, Any] = {}

    def request(self, keys: Mapping[str, list[Any]]) -> None:
        """Request the results of tasks from workers when they end; do not wait for the answers."""

        async def fetch() -> None:
            # A lost worker or a closing client is detected through the scheduler.
            with suppress(Exception):
                answers = await _run_on_workers(
                    self._client, await_results, keys, self._run_id, _RESULT_WAIT_SECONDS
                )
                for results in answers.values():
                    self._results.update(results)
                self._on_answers()

        self._client.loop.add_callback(fetch)

    def get(self, keys: Sequence[Any]) -> list[Any] | None:
        """Return the results of tasks; None unless all have arrived."""
        return [self._results[key] for key in keys] if self._results.keys() >= set(keys) else None


async def _run_on_workers(
    client: Any, function: Callable[..., Any], requests: Mapping[str, Any], *args: Any
) -> dict[str, Any]:
    """Run a function on the workers in the keys of `requests`; return the answers by address.

    All workers get the same message, in which each finds its request by its own address. Lost
    workers are missing in the answers.
    """
    calls = client.run(function, requests, *args, workers=list(requests), on_error="ignore")
    answers: dict[str, Any] = await calls
    return answers
