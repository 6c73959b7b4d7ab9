"""A run's actors and tasks on the cluster, as the client holds them."""

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

from daskml_dist.comm.base import SLICE, Endpoint
from daskml_dist.comm.handshake import Secret
from daskml_dist.dask_internals.cluster import proxy_at, proxy_of, submit_all
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import BlockInfo
from daskml_dist.data.computing import FIRST_TASK_NOTICE_SECONDS, Deadline, scatter_values
from daskml_dist.errors import DaskMLDistError
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.host import ServerHost, get_ready, packed, run_trainer
from daskml_dist.training.worker.notifications import tell_bundles, tell_results

__all__ = [
    "BUSY",
    "Early",
    "Host",
    "RunActors",
    "TrainerTask",
    "WorkerUnreachableError",
    "ask_of_bundles",
    "is_actor",
]


#: Seconds that a call to an actor may take.
_CALL = 30.0
#: Bytes of parameters in a fit that travels with each task.
_SMALL = 2**18
#: What keeps a worker from beginning its part.
BUSY = "Are they busy with other tasks?"
Tasks = dict[Any, tuple[Callable[..., Any], Iterable[Any]]]
_PREFIX = f"{ServerHost.__name__}-"
#: Seconds for the proxy of an actor that is there.
_SOON = 1.0
#: Seconds in which workers are to tell of bundles.
_TELL = 3.0
#: Seconds for which workers are asked for results: a longer fit would not notice.
_SHORT = 2.0


class WorkerUnreachableError(Exception):
    """A worker of the run does not answer; inside the client only."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"worker {address}: {reason}")
        self.address = address


@dataclass(eq=False)
class Host:
    """An actor that hosts a server, or a standby of one.

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
    """A trainer: its task, and the part that it has in the present generation."""

    spec: TrainerSpec
    address: str
    future: Future[Any]

    @property
    def lanes(self) -> tuple[LaneSpec, ...]:
        """Its lanes."""
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
        self._is_small = fit.work.carried <= _SMALL
        self._fit_future: Future[Any] | None = None
        self._serial = 0
        self._futures: list[Future[Any]] = []
        self._told = ToldResults(client, self._run_id, on_end)

    def _spec(self) -> FitSpec | Future[Any]:
        """The fit as an argument of a task: itself, or on the cluster where it is large.

        There it is scattered anew if it went with a worker.
        """
        if self._is_small:
            return self._fit
        if self._fit_future is None or self._fit_future.status != "finished":
            try:
                self._fit_future = scatter_values(self._client, self._fit)
            except TimeoutError as error:
                raise WorkerUnreachableError("of the cluster", "none is there") from error
        return self._fit_future

    def next_name(self) -> int:
        """A number that no trainer or host of the run had before."""
        self._serial += 1
        return self._serial

    # -- actors --------------------------------------------------------------------------------

    def open_host(self, number: int, address: str, generation: int, n_trainers: int) -> Host:
        """Start an actor for server `number`; returns before it is there."""
        part = (self._spec(), number, n_trainers, generation)
        # A fit that lies on the cluster reaches tasks alone.
        if self._is_small and (early := self._early.take(address)) is not None:
            future, (proxy, answer) = early
            host = Host(number, address, future, part, proxy, answer)
        else:
            key = f"{self._run_id}-{number}-{self.next_name()}"
            host = Host(number, address, self._early.host(address, key, *part))
        self._futures.append(host.future)
        return host

    def meet(self, host: Host) -> Endpoint:
        """Wait for an actor, and learn where it listens."""
        return self.meet_all([host])[0]

    def meet_all(self, hosts: Sequence[Host]) -> list[Endpoint]:
        """Meet several actors at once; one that has no part yet `give_parts` gives it."""
        for host in hosts:
            self._await(host)
            if host.answer is None:
                host.answer = self._call(host, "endpoint")
        deadline = time.monotonic() + _CALL
        for host in hosts:
            known = isinstance(host.answer, Endpoint)
            host.endpoint = host.answer if known else self._answer(host, host.answer, deadline)
            host.answer = None
        return [host.endpoint for host in hosts if host.endpoint is not None]

    def give_parts(self, hosts: Sequence[Host]) -> None:
        """Give actors that have none yet their parts; raises as :meth:`ask`."""
        waiting = [host for host in hosts if host.part]
        said = [self.begin_asking([host], "begin", *host.part) for host in waiting]
        for host, answer in zip(waiting, said, strict=True):
            answer()
            host.part = ()

    def _await(self, host: Host) -> None:
        what = f"worker {host.address} to begin its part"
        patience = Deadline(what, self._fit.run.timeout, BUSY, tell_after=FIRST_TASK_NOTICE_SECONDS)
        while host.proxy is None:
            with suppress(TimeoutError):
                host.proxy = self._proxy(host, SLICE)
            if host.proxy is not None:
                break
            self._check(host)
            if not self.is_ready(host) and not self._begins(host.address):
                raise WorkerUnreachableError(host.address, "paused, at its memory limit")
            if not patience.lasts():
                raise WorkerUnreachableError(
                    host.address, f"no answer within {self._fit.run.timeout:g} s"
                )

    def is_ready(self, host: Host) -> bool:
        """Whether an actor that was started is there by now."""
        return host.future.status == "finished"

    def _proxy(self, host: Host, timeout: float) -> Any:
        try:
            return proxy_of(self._client, host.future, ServerHost, host.address, timeout)
        except (TimeoutError, DaskMLDistError):
            raise
        except Exception as error:
            if self._is_there(host.address) and host.future.status == "error":
                raise
            raise WorkerUnreachableError(host.address, repr(error)) from error

    def _check(self, host: Host) -> None:
        if host.future.status in {"lost", "cancelled"}:
            raise WorkerUnreachableError(host.address, "lost")
        if not self._is_there(host.address):
            raise WorkerUnreachableError(host.address, "stopped answering, or lost")

    def ask(self, host: Host, method: str, *args: Any, timeout: float = _CALL) -> Any:
        """Call a method of an actor.

        Raises
        ------
        WorkerUnreachableError
            It does not answer.
        """
        return self.ask_all([host], method, *args, timeout=timeout)[0]

    def ask_all(
        self, hosts: Sequence[Host], method: str, *args: Any, timeout: float = _CALL
    ) -> list[Any]:
        """Call a method of several actors at once; raises as :meth:`ask`."""
        return self.begin_asking(hosts, method, *args, timeout=timeout)()

    def begin_asking(
        self, hosts: Sequence[Host], method: str, *args: Any, timeout: float = _CALL
    ) -> Callable[[], list[Any]]:
        """Begin to call a method of several actors; what is returned waits for their answers."""
        deadline = time.monotonic() + timeout
        calls = [(host, self._call(host, method, *args)) for host in hosts]
        return lambda: [self._answer(host, call, deadline) for host, call in calls]

    def _call(self, host: Host, method: str, *args: Any) -> Any:
        try:
            return getattr(host.proxy, method)(*args)
        except (OSError, RuntimeError) as error:
            raise WorkerUnreachableError(host.address, repr(error)) from error

    def _answer(self, host: Host, call: Any, deadline: float) -> Any:
        try:
            while True:
                # A call that was under way when its worker was killed may never be answered.
                with suppress(TimeoutError):
                    return call.result(timeout=SLICE)
                self._check(host)
                if time.monotonic() > deadline:
                    raise WorkerUnreachableError(host.address, "no answer in time")
        except (OSError, RuntimeError) as error:
            if isinstance(error, DaskMLDistError):
                raise
            raise WorkerUnreachableError(host.address, repr(error)) from error

    def discard_host(self, host: Host) -> None:
        """Let an actor end; one whose worker is gone too."""
        if host.proxy is not None and self._is_there(host.address):
            with suppress(Exception):
                host.proxy.close().result(timeout=2)
        host.proxy = None
        self._cancel([host.future])

    # -- tasks ---------------------------------------------------------------------------------

    def open_trainers(self, parts: Sequence[tuple[TrainerSpec, str, Any]]) -> list[TrainerTask]:
        """Start trainers: the spec, the worker and the blocks of each."""
        fit = self._spec() if parts else None
        # Dask's dashboard shows what comes first in a key.
        name = self._fit.run.name
        keys = [f"{name}-trainer-{spec.name}-{self._run_id}" for spec, _, _ in parts]
        given = list(zip(keys, parts, strict=True))
        futures = submit_all(
            self._client,
            {key: (run_trainer, (fit, spec, blocks)) for key, (spec, _, blocks) in given},
            {key: address for key, (_, address, _) in given},
        )
        for future in futures.values():
            future.add_done_callback(lambda _: self._on_end())
        self._futures += futures.values()
        return [TrainerTask(spec, address, futures[key]) for key, (spec, address, _) in given]

    def _gathered(self, seats: Sequence[TrainerTask]) -> list[Any]:
        """Results of trainers that have ended, each sent once: a large one takes its time."""

        async def gather() -> list[Any]:
            futures = [seat.future for seat in seats]
            found: list[Any] = await self._client.gather(futures, asynchronous=True)
            return found

        loop: Any = self._client.loop
        running = asyncio.run_coroutine_threadsafe(gather(), loop.asyncio_loop)
        while True:
            with suppress(TimeoutError):
                return running.result(timeout=SLICE)
            for seat in seats:
                # It may have gone with its worker, and would then never come.
                if seat.future.status != "finished" or not self._is_there(seat.address):
                    running.cancel()
                    raise WorkerUnreachableError(seat.address, "lost")

    def ask_for_results(self, seats: Sequence[TrainerTask]) -> None:
        """Have trainers' workers tell their results at once, if these come soon."""
        keys: dict[str, list[Any]] = {}
        for seat in seats:
            keys.setdefault(seat.address, []).append(seat.future.key)
        self._told.ask(keys)

    def have_ended(self, seats: Sequence[TrainerTask]) -> bool:
        """Whether all these trainers have ended well."""
        told = self._told.of([seat.future.key for seat in seats])
        return told is not None or all(seat.future.status == "finished" for seat in seats)

    def results(self, seats: Sequence[TrainerTask]) -> list[Any]:
        """Results of trainers that have ended, all at once."""
        if (told := self._told.of([seat.future.key for seat in seats])) is not None:
            return told
        try:
            return self._gathered(seats)
        except Exception:
            return [self._result(seat) for seat in seats]  # to see which one is lost

    def _result(self, seat: TrainerTask) -> Any:
        try:
            return self._gathered([seat])[0]
        except Exception as error:
            raise WorkerUnreachableError(seat.address, repr(error)) from error

    def get_ready(self, address: str) -> Future[bool]:
        """Have a worker load the fit; returns before it has."""
        key = f"{self._run_id}-ready-{self.next_name()}"
        fit = packed(self._fit) if self._is_small else self._spec()
        tasks = {key: (get_ready, (fit,))}
        future: Future[bool] = submit_all(self._client, tasks, {key: address})[key]
        self._futures.append(future)
        return future

    def discard_trainer(self, seat: TrainerTask) -> None:
        """Let go of a trainer's task, finished or not."""
        self._cancel([seat.future])

    def discard_task(self, future: Future[Any]) -> None:
        """Let go of a task, finished or not."""
        self._cancel([future])

    def _cancel(self, futures: Iterable[Future[Any]]) -> None:
        futures = list(futures)
        # An actor lives while any proxy of it does; cancelling does not wait for these.
        unfinished = [f for f in futures if is_actor(f.key) or not (f.done() or self._ended(f))]
        with suppress(Exception):
            self._client.cancel(unfinished, force=True)
        for future in futures:
            future.release()
            if future in self._futures:
                self._futures.remove(future)

    def _ended(self, future: Future[Any]) -> bool:
        """Whether a task has ended well, as its worker or the scheduler says."""
        return future.status == "finished" or self._told.of([future.key]) is not None

    def let_go(self) -> bool:
        """Leave nothing on the cluster, by letting go alone; False where that is not enough.

        An actor that is cancelled ends by itself, with all that it has opened.
        """
        if not all(self._ended(future) for future in self._futures):
            return False
        self._cancel(self._futures)
        self._fit_future = None
        return True

    def close(self, hosts: Iterable[Host], seats: Iterable[TrainerTask]) -> None:
        """Leave nothing on the cluster."""
        for host in hosts:
            self.discard_host(host)
        for seat in seats:
            self.discard_trainer(seat)
        self._cancel(self._futures)
        self._fit_future = None


class Early:
    """Name and secret of a run, and its first actor, for whose start a fit need not wait.

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
        self.secret = Secret.make()
        self.address: str | None = None
        self._name = f"{self.run_id}-early"
        self.key = _task_of(self._name)
        self._client = client
        self._future: Future[Any] | None = None
        #: Its proxy, and what will answer where it listens.
        self._asked: tuple[Any, Any] = (None, None)

    def place(self, address: str) -> None:
        """Choose the worker of an actor without a part."""
        self.address = address

    def start(
        self, tasks: Tasks | None = None, workers: dict[Any, str | None] | None = None
    ) -> dict[Any, Any]:
        """Start the actor where it has its place, and other tasks in the same message.

        Parameters
        ----------
        tasks, workers
            As `submit_all`, whose futures it returns.
        """
        tasks, pins = tasks or {}, dict(workers or {})
        if self.address is None or self._future is not None:
            return submit_all(self._client, tasks, pins)
        pins[self.key] = self.address
        own: Tasks = {self.key: (ServerHost, self._arguments(self._name))}
        futures = submit_all(self._client, own | tasks, pins, [self.key])
        self._future = futures.pop(self.key)
        return futures

    def host(self, address: str, name: str, *part: Any) -> Future[Any]:
        """Start an actor at a worker, with its part (`ServerHost.begin`)."""
        key, arguments = _task_of(name), (*self._arguments(name), *part)
        tasks: Tasks = {key: (ServerHost, arguments)}
        future: Future[Any] = submit_all(self._client, tasks, {key: address}, [key])[key]
        return future

    def _arguments(self, name: str) -> tuple[Any, ...]:
        shares = bool(dask.config.get("daskml_dist.shared_memory", True))
        return self.run_id, name, self.secret, shares

    def hear(self, endpoint: Endpoint) -> None:
        """Take note of where the actor listens, as its worker says."""
        assert self.address is not None
        proxy = proxy_at(self._client, self.key, ServerHost, self.address)
        self._asked = proxy, endpoint

    def ask(self) -> None:
        """Ask the actor where it listens, if it is there by now; returns before it answers."""
        future, asked = self._future, self._asked[0] is not None
        if not asked and future is not None and future.status == "finished" and self.address:
            proxy = proxy_of(self._client, future, ServerHost, self.address, _SOON)
            self._asked = proxy, proxy.endpoint()

    def take(self, address: str) -> tuple[Future[Any], tuple[Any, Any]] | None:
        """The actor at this worker, which is then the caller's; None where it is another's.

        Beside it lie, where that is known, its proxy and where it listens, or what will say so.
        """
        if address != self.address or self._future is None or self._future.status == "cancelled":
            return None
        taken = self._future, self._asked
        self._future, self._asked, self.address = None, (None, None), None
        return taken

    def close(self) -> None:
        """Let go of the actor if nobody took it."""
        if self._future is not None:
            with suppress(Exception):
                self._future.cancel(force=True)
            self._future.release()
        self._future, self._asked, self.address = None, (None, None), None


def _task_of(name: str) -> str:
    """Key of the task that makes an actor."""
    return f"{_PREFIX}{name}"


def is_actor(key: Any) -> bool:
    """Whether a task makes an actor of a run."""
    return str(key).startswith(_PREFIX)


def ask_of_bundles(
    client: Client, keys: Mapping[str, list[Any]], early: Early | None = None, wait: float = 0.0
) -> dict[int, tuple[str, BlockInfo]]:
    """Ask workers what they know of the blocks of some bundles in their memory.

    Parameters
    ----------
    client : Client
    keys : mapping of worker to list of keys
        The bundles that each is asked of.
    early : Early, optional
        Its worker is asked for this actor, too.
    wait : float, default=0
        Seconds for which a worker may wait until it has made them all.

    Returns
    -------
    dict of int to (worker, BlockInfo)
        Perhaps not of all.
    """
    asked: dict[str, tuple[list[Any], str | None]] = {w: (here, None) for w, here in keys.items()}
    if early is not None and early.address is not None:
        asked[early.address] = keys.get(early.address, []), early.key
    answers: dict[str, Any] = {}
    if asked:
        with suppress(Exception):  # some worker does not answer: Dask will tell
            asking = partial(_broadcast, client, tell_bundles, asked, wait)
            answers = client.sync(asking, callback_timeout=_TELL)
    found = {}
    for address, (told, endpoint) in answers.items():
        found.update({i: (address, info) for infos in told for i, info in infos.items()})
        if early is not None and endpoint is not None:
            early.hear(endpoint)
    return found


class ToldResults:
    """Results of trainers, as their workers tell them; of a short fit alone.

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
        """Ask workers for the results of some tasks, when there are any; returns at once."""

        async def ask() -> None:
            with suppress(Exception):  # one is lost, or the client closes: the scheduler says so
                told = await _broadcast(self._client, tell_results, keys, self._run_id, _SHORT)
                for results in told.values():
                    self._found.update(results)
                self._on_all()

        self._client.loop.add_callback(ask)

    def of(self, keys: Sequence[Any]) -> list[Any] | None:
        """Results of some tasks; None where not all have been told."""
        return [self._found[key] for key in keys] if self._found.keys() >= set(keys) else None


async def _broadcast(
    client: Any, function: Callable[..., Any], asked: Mapping[str, Any], *args: Any
) -> dict[str, Any]:
    """Answers of some workers, each of which finds by its address what it is asked for.

    It is one message of the client's; whoever is gone does not answer.
    """
    running = client.run(function, asked, *args, workers=list(asked), on_error="ignore")
    answers: dict[str, Any] = await running
    return answers
