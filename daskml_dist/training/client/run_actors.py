"""Actors and tasks of a run on the cluster, as the client holds them.

`RunActors` starts, asks and discards them. `Early` starts the run's first actor while the rows are
read; `ToldResults` and `ask_of_bundles` get what workers know before the scheduler reports it.
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

import dask
from distributed import Client, Future

from daskml_dist.comm.base import CHECK_SECONDS, Endpoint
from daskml_dist.comm.handshake import RunSecret
from daskml_dist.dask_internals.cluster import make_actor_proxy, submit_tasks, wait_for_actor
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import BlockInfo
from daskml_dist.data.computing import FIRST_TASK_NOTICE_SECONDS, Deadline, scatter_values
from daskml_dist.errors import DaskMLDistError
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.host import ServerHost, load_fit_on_worker, pack_fit, run_trainer
from daskml_dist.training.worker.notifications import tell_bundles, tell_results

__all__ = [
    "BUSY",
    "Early",
    "Host",
    "RunActors",
    "ToldResults",
    "TrainerTask",
    "WorkerUnreachableError",
    "ask_of_bundles",
    "is_actor_key",
]


#: Seconds that a call to an actor may take.
_CALL = 30.0
#: Bytes of parameters in a fit that travels with each task; larger ones are scattered once.
_SMALL = 2**18
#: What keeps a worker from beginning its part.
BUSY = "Are they busy with other tasks?"
Tasks = dict[Any, tuple[Callable[..., Any], Iterable[Any]]]
_PREFIX = f"{ServerHost.__name__}-"
#: Seconds for the proxy of an actor that is there.
_SOON = 1.0
#: Seconds that workers may take to tell of bundles.
_TELL = 3.0
#: Seconds for which workers wait with results: a longer fit would not notice the gain.
_SHORT = 2.0


class WorkerUnreachableError(Exception):
    """A worker of the run does not answer; raised inside the client only."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"worker {address}: {reason}")
        self.address = address


@dataclass(eq=False)
class Host:
    """Actor that hosts a server, or a standby of one.

    `part` is what it is still to be told, `answer` where it listens, or what will say so.
    """

    number: int
    address: str
    future: Future[Any]
    part: tuple[Any, ...] = ()
    proxy: Any = None
    answer: Any = None
    endpoint: Endpoint | None = None


@dataclass(eq=False)
class TrainerTask:
    """Task of a trainer, and its part in the present generation."""

    spec: TrainerSpec
    address: str
    future: Future[Any]

    @property
    def lanes(self) -> tuple[LaneSpec, ...]:
        """Return the trainer's lanes."""
        return self.spec.lanes


class RunActors:
    """Actors and tasks of a run: started, asked and discarded.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    early : Early
        The run's name and secret, and its actor that is there already.
    is_there : callable
        Whether a worker still counts, by its address; takes the roll.
    begins : callable
        Whether a worker begins what it is given, by its address.
    on_end : callable
        Called in a thread of the client's when a trainer's task ends.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        early: Early,
        is_there: Callable[[str], bool],
        begins: Callable[[str], bool],
        on_end: Callable[[], None],
    ) -> None:
        self._client = client
        self._fit = fit
        self._early = early
        self._run_id = early.run_id
        self._is_there = is_there
        self._begins = begins
        self._on_end = on_end
        #: Only the state that it goes on from can be large; asking does not pickle it.
        self._is_small = fit.work.carried_bytes <= _SMALL
        self._fit_future: Future[Any] | None = None
        self._serial = 0
        self._futures: list[Future[Any]] = []
        self._told = ToldResults(client, self._run_id, on_end)

    def _fit_argument(self) -> FitSpec | Future[Any]:
        """Return the fit as an argument of tasks: itself, or its future where it is large.

        There it is scattered anew if it went with a worker.
        """
        if self._is_small:
            return self._fit
        # Scattered once for all tasks, and again if it went with its worker.
        if self._fit_future is None or self._fit_future.status != "finished":
            try:
                self._fit_future = scatter_values(self._client, self._fit)
            except TimeoutError as error:
                raise WorkerUnreachableError("of the cluster", "none is there") from error
        return self._fit_future

    def next_unique_name(self) -> int:
        """Return a number that no trainer or host of the run had before."""
        # Names are never used twice, so that late messages of old actors cannot be mistaken.
        self._serial += 1
        return self._serial

    # -- actors --------------------------------------------------------------------------------

    def start_host_actor(self, number: int, address: str, generation: int, n_trainers: int) -> Host:
        """Start an actor for server `number`; return before it is there."""
        part = (self._fit_argument(), number, n_trainers, generation)
        # A fit that lies on the cluster reaches tasks alone.
        if self._is_small and (early := self._early.take(address)) is not None:
            future, (proxy, answer) = early
            host = Host(number, address, future, part, proxy, answer)
        else:
            key = f"{self._run_id}-{number}-{self.next_unique_name()}"
            host = Host(number, address, self._early.host(address, key, *part))
        self._futures.append(host.future)
        return host

    def meet_host(self, host: Host) -> Endpoint:
        """Wait for an actor, and return where it listens."""
        return self.meet_all_hosts([host])[0]

    def meet_all_hosts(self, hosts: Sequence[Host]) -> list[Endpoint]:
        """Wait for several actors, and return where they listen."""
        # First start all calls, then wait for all answers.
        for host in hosts:
            self._await_proxy(host)
            if host.answer is None:
                host.answer = self._call_method(host, "endpoint")
        deadline = time.monotonic() + _CALL
        for host in hosts:
            known = isinstance(host.answer, Endpoint)
            host.endpoint = (
                host.answer if known else self._await_answer(host, host.answer, deadline)
            )
            host.answer = None
        return [host.endpoint for host in hosts if host.endpoint is not None]

    def give_missing_parts(self, hosts: Sequence[Host]) -> None:
        """Give actors that have none yet their parts; raises as :meth:`ask`."""
        waiting = [host for host in hosts if host.part]
        said = [self.start_asking_hosts([host], "begin", *host.part) for host in waiting]
        for host, answer in zip(waiting, said, strict=True):
            answer()
            host.part = ()

    def _await_proxy(self, host: Host) -> None:
        """Wait until an actor is there."""
        what = f"worker {host.address} to begin its part"
        patience = Deadline(what, self._fit.run.timeout, BUSY, tell_after=FIRST_TASK_NOTICE_SECONDS)
        # Starting takes as long as the worker is busy; give up only when it is gone, paused or
        # silent.
        while host.proxy is None:
            with suppress(TimeoutError):
                host.proxy = self._get_proxy(host, CHECK_SECONDS)
            if host.proxy is not None:
                break
            self._check_host(host)
            if not self.is_ready(host) and not self._begins(host.address):
                raise WorkerUnreachableError(host.address, "paused, at its memory limit")
            if not patience.lasts():
                raise WorkerUnreachableError(
                    host.address, f"no answer within {self._fit.run.timeout:g} s"
                )

    def is_ready(self, host: Host) -> bool:
        """Return whether an actor that was started is there by now."""
        return host.future.status == "finished"

    def _get_proxy(self, host: Host, timeout: float) -> Any:
        """Return the proxy of an actor; raise `TimeoutError` while it is not there."""
        try:
            return wait_for_actor(self._client, host.future, ServerHost, host.address, timeout)
        except (TimeoutError, DaskMLDistError):
            raise
        except Exception as error:
            if self._is_there(host.address) and host.future.status == "error":
                raise
            raise WorkerUnreachableError(host.address, repr(error)) from error

    def _check_host(self, host: Host) -> None:
        """Raise where an actor's worker is gone."""
        if host.future.status in {"lost", "cancelled"}:
            raise WorkerUnreachableError(host.address, "lost")
        if not self._is_there(host.address):
            raise WorkerUnreachableError(host.address, "stopped answering, or lost")

    def ask(self, host: Host, method: str, *args: Any, timeout: float = _CALL) -> Any:
        """Call a method of an actor."""
        return self.ask_all_hosts([host], method, *args, timeout=timeout)[0]

    def ask_all_hosts(
        self, hosts: Sequence[Host], method: str, *args: Any, timeout: float = _CALL
    ) -> list[Any]:
        """Call a method of several actors at once; raises as :meth:`ask`."""
        return self.start_asking_hosts(hosts, method, *args, timeout=timeout)()

    def start_asking_hosts(
        self, hosts: Sequence[Host], method: str, *args: Any, timeout: float = _CALL
    ) -> Callable[[], list[Any]]:
        """Call a method of several actors; return the function that waits for their answers."""
        deadline = time.monotonic() + timeout
        calls = [(host, self._call_method(host, method, *args)) for host in hosts]
        return lambda: [self._await_answer(host, call, deadline) for host, call in calls]

    def _call_method(self, host: Host, method: str, *args: Any) -> Any:
        """Start a call of an actor's method."""
        try:
            return getattr(host.proxy, method)(*args)
        except (OSError, RuntimeError) as error:
            raise WorkerUnreachableError(host.address, repr(error)) from error

    def _await_answer(self, host: Host, call: Any, deadline: float) -> Any:
        """Wait for the answer of a call."""
        try:
            while True:
                # A call that was under way when its worker was killed may never be answered.
                with suppress(TimeoutError):
                    return call.result(timeout=CHECK_SECONDS)
                self._check_host(host)
                if time.monotonic() > deadline:
                    raise WorkerUnreachableError(host.address, "no answer in time")
        except (OSError, RuntimeError) as error:
            if isinstance(error, DaskMLDistError):
                raise
            raise WorkerUnreachableError(host.address, repr(error)) from error

    def discard_host_actor(self, host: Host) -> None:
        """End an actor, also one whose worker is gone."""
        # An actor closes its sockets itself if it still can.
        if host.proxy is not None and self._is_there(host.address):
            with suppress(Exception):
                host.proxy.close().result(timeout=2)
        host.proxy = None
        self._cancel_futures([host.future])

    # -- tasks ---------------------------------------------------------------------------------

    def start_trainers(self, parts: Sequence[tuple[TrainerSpec, str, Any]]) -> list[TrainerTask]:
        """Start trainers, given the spec, the worker and the blocks of each."""
        fit = self._fit_argument() if parts else None
        # Dask's dashboard shows what comes first in a key.
        name = self._fit.run.name
        # Dask groups tasks on its dashboard by the beginning of their keys.
        keys = [f"{name}-trainer-{spec.name}-{self._run_id}" for spec, _, _ in parts]
        given = list(zip(keys, parts, strict=True))
        futures = submit_tasks(
            self._client,
            {key: (run_trainer, (fit, spec, blocks)) for key, (spec, _, blocks) in given},
            {key: address for key, (_, address, _) in given},
        )
        # Wake the watching client as soon as a trainer ends.
        for future in futures.values():
            future.add_done_callback(lambda _: self._on_end())
        self._futures += futures.values()
        return [TrainerTask(spec, address, futures[key]) for key, (spec, address, _) in given]

    def _gather_results(self, trainers: Sequence[TrainerTask]) -> list[Any]:
        """Return the results of trainers that have ended; raise where one is lost meanwhile."""

        async def gather() -> list[Any]:
            futures = [trainer.future for trainer in trainers]
            found: list[Any] = await self._client.gather(futures, asynchronous=True)
            return found

        loop: Any = self._client.loop
        running = asyncio.run_coroutine_threadsafe(gather(), loop.asyncio_loop)
        while True:
            with suppress(TimeoutError):
                return running.result(timeout=CHECK_SECONDS)
            for trainer in trainers:
                # It may have gone with its worker, and would then never come.
                if trainer.future.status != "finished" or not self._is_there(trainer.address):
                    running.cancel()
                    raise WorkerUnreachableError(trainer.address, "lost")

    def ask_for_results(self, trainers: Sequence[TrainerTask]) -> None:
        """Let the trainers' workers tell their results at once, if these come soon."""
        keys: dict[str, list[Any]] = {}
        for trainer in trainers:
            keys.setdefault(trainer.address, []).append(trainer.future.key)
        self._told.ask(keys)

    def have_trainers_ended(self, trainers: Sequence[TrainerTask]) -> bool:
        """Return whether all these trainers have ended well."""
        told = self._told.of([trainer.future.key for trainer in trainers])
        return told is not None or all(trainer.future.status == "finished" for trainer in trainers)

    def results(self, trainers: Sequence[TrainerTask]) -> list[Any]:
        """Return the results of trainers that have ended, all at once."""
        if (told := self._told.of([trainer.future.key for trainer in trainers])) is not None:
            return told
        try:
            return self._gather_results(trainers)
        except Exception:
            return [
                self._gather_result(trainer) for trainer in trainers
            ]  # to see which one is lost

    def _gather_result(self, trainer: TrainerTask) -> Any:
        """Return the result of one trainer; raise where it is lost."""
        try:
            return self._gather_results([trainer])[0]
        except Exception as error:
            raise WorkerUnreachableError(trainer.address, repr(error)) from error

    def get_ready(self, address: str) -> Future[bool]:
        """Let a worker load the fit; return before it has."""
        key = f"{self._run_id}-ready-{self.next_unique_name()}"
        fit = pack_fit(self._fit) if self._is_small else self._fit_argument()
        tasks = {key: (load_fit_on_worker, (fit,))}
        future: Future[bool] = submit_tasks(self._client, tasks, {key: address})[key]
        self._futures.append(future)
        return future

    def discard_trainer(self, trainer: TrainerTask) -> None:
        """Release a trainer's task, finished or not."""
        self._cancel_futures([trainer.future])

    def discard_task(self, future: Future[Any]) -> None:
        """Release a task, finished or not."""
        self._cancel_futures([future])

    def _cancel_futures(self, futures: Iterable[Future[Any]]) -> None:
        """Cancel unfinished tasks and all actors, and release all futures."""
        futures = list(futures)
        # An actor lives while any proxy of it does; cancelling does not wait for these.
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
        """Return whether a task has ended well, as its worker or the scheduler says."""
        return future.status == "finished" or self._told.of([future.key]) is not None

    def let_go(self) -> bool:
        """Release all that the run holds; return False where a clean-up is needed too.

        An actor that is cancelled ends by itself, with all that it has opened.
        """
        # A task that still runs must be cancelled, which takes a clean-up.
        if not all(self._has_ended(future) for future in self._futures):
            return False
        self._cancel_futures(self._futures)
        self._fit_future = None
        return True

    def close(self, hosts: Iterable[Host], trainers: Iterable[TrainerTask]) -> None:
        """Leave nothing on the cluster."""
        for host in hosts:
            self.discard_host_actor(host)
        for trainer in trainers:
            self.discard_trainer(trainer)
        self._cancel_futures(self._futures)
        self._fit_future = None


class Early:
    """Name and secret of a run, and its first actor, started while the rows are read.

    Parameters
    ----------
    client : Client

    Attributes
    ----------
    run_id : str
    secret : Secret
    address : str or None
        Worker of the actor, as long as nobody has taken it.
    key : str
        Of the actor's task.
    """

    def __init__(self, client: Client) -> None:
        self.run_id = f"daskml-{uuid.uuid4().hex}"
        self.secret = RunSecret.make()
        self.address: str | None = None
        self._name = f"{self.run_id}-early"
        self.key = _make_actor_key(self._name)
        self._client = client
        self._future: Future[Any] | None = None
        #: Its proxy, and what will answer where it listens.
        self._asked: tuple[Any, Any] = (None, None)

    def choose_actor_worker(self, address: str) -> None:
        """Choose the worker of an actor without a part."""
        self.address = address

    def start(
        self, tasks: Tasks | None = None, workers: dict[Any, str | None] | None = None
    ) -> dict[Any, Any]:
        """Start the actor, and other tasks in the same message; return the futures of these."""
        # One message for the actor and the blocks: the scheduler sends them at once.
        tasks, pins = tasks or {}, dict(workers or {})
        if self.address is None or self._future is not None:
            return submit_tasks(self._client, tasks, pins)
        pins[self.key] = self.address
        own: Tasks = {self.key: (ServerHost, self._host_arguments(self._name))}
        futures = submit_tasks(self._client, own | tasks, pins, [self.key])
        self._future = futures.pop(self.key)
        return futures

    def host(self, address: str, name: str, *part: Any) -> Future[Any]:
        """Start an actor at a worker, with its part (`ServerHost.begin`)."""
        key, arguments = _make_actor_key(name), (*self._host_arguments(name), *part)
        tasks: Tasks = {key: (ServerHost, arguments)}
        future: Future[Any] = submit_tasks(self._client, tasks, {key: address}, [key])[key]
        return future

    def _host_arguments(self, name: str) -> tuple[Any, ...]:
        """Return the first arguments of an actor."""
        shares = bool(dask.config.get("daskml_dist.shared_memory", True))
        return self.run_id, name, self.secret, shares

    def take_message(self, endpoint: Endpoint) -> None:
        """Note where the actor listens, as its worker says."""
        assert self.address is not None
        proxy = make_actor_proxy(self._client, self.key, ServerHost, self.address)
        self._asked = proxy, endpoint

    def ask(self) -> None:
        """Ask the actor where it listens, if it is there; return before it answers."""
        future, asked = self._future, self._asked[0] is not None
        if not asked and future is not None and future.status == "finished" and self.address:
            proxy = wait_for_actor(self._client, future, ServerHost, self.address, _SOON)
            self._asked = proxy, proxy.endpoint()

    def take(self, address: str) -> tuple[Future[Any], tuple[Any, Any]] | None:
        """Return the actor at a worker, for the caller to keep; None where it is at another.

        Beside it lie, where that is known, its proxy and where it listens, or what will say so.
        """
        if address != self.address or self._future is None or self._future.status == "cancelled":
            return None
        taken = self._future, self._asked
        self._future, self._asked, self.address = None, (None, None), None
        return taken

    def close(self) -> None:
        """Release the actor if nobody took it."""
        if self._future is not None:
            with suppress(Exception):
                self._future.cancel(force=True)
            self._future.release()
        self._future, self._asked, self.address = None, (None, None), None


def _make_actor_key(name: str) -> str:
    """Return the key of the task that makes an actor."""
    return f"{_PREFIX}{name}"


def is_actor_key(key: Any) -> bool:
    """Return whether a task makes an actor of a run."""
    return str(key).startswith(_PREFIX)


def ask_of_bundles(
    client: Client, keys: Mapping[str, list[Any]], early: Early | None = None, wait: float = 0.0
) -> dict[int, tuple[str, BlockInfo]]:
    """Ask workers what they know of the blocks of some bundles in their memory."""
    # One question a worker: its bundles, and whether the actor listens.
    asked: dict[str, tuple[list[Any], str | None]] = {w: (here, None) for w, here in keys.items()}
    if early is not None and early.address is not None:
        asked[early.address] = keys.get(early.address, []), early.key
    answers: dict[str, Any] = {}
    if asked:
        with suppress(Exception):  # some worker does not answer: Dask will tell
            asking = partial(_run_on_workers, client, tell_bundles, asked, wait)
            answers = client.sync(asking, callback_timeout=_TELL)
    found = {}
    for address, (told, endpoint) in answers.items():
        found.update({i: (address, info) for infos in told for i, info in infos.items()})
        if early is not None and endpoint is not None:
            early.take_message(endpoint)
    return found


class ToldResults:
    """Results of trainers, as their workers tell them; of short fits only.

    Parameters
    ----------
    client : Client
    run_id : str
    on_all : callable
        Called in a thread of the client's once all have been told.
    """

    def __init__(self, client: Client, run_id: str, on_all: Callable[[], None]) -> None:
        self._client: Any = client
        self._run_id = run_id
        self._on_all = on_all
        self._found: dict[Any, Any] = {}

    def ask(self, keys: Mapping[str, list[Any]]) -> None:
        """Ask workers for the results of some tasks, once they have them; return at once."""

        async def ask() -> None:
            with suppress(Exception):  # one is lost, or the client closes: the scheduler says so
                told = await _run_on_workers(self._client, tell_results, keys, self._run_id, _SHORT)
                for results in told.values():
                    self._found.update(results)
                self._on_all()

        self._client.loop.add_callback(ask)

    def of(self, keys: Sequence[Any]) -> list[Any] | None:
        """Return the results of some tasks; None where not all have been told."""
        return [self._found[key] for key in keys] if self._found.keys() >= set(keys) else None


async def _run_on_workers(
    client: Any, function: Callable[..., Any], asked: Mapping[str, Any], *args: Any
) -> dict[str, Any]:
    """Return the answers of some workers, each of which finds its question by its address.

    It is one message of the client's; whoever is gone does not answer.
    """
    running = client.run(function, asked, *args, workers=list(asked), on_error="ignore")
    answers: dict[str, Any] = await running
    return answers
