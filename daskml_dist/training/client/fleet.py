"""A run's actors and tasks on the cluster, as the client holds them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import Client
from distributed.client import Future

from daskml_dist.comm.base import SLICE, Endpoint
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.waiting import Patience
from daskml_dist.errors import DaskMLDistError
from daskml_dist.training.client.early import Early
from daskml_dist.training.dask_internals import proxy_of
from daskml_dist.training.spec import FitSpec, TrainerSpec
from daskml_dist.training.worker.host import ServerHost, run_trainer

__all__ = ["BUSY", "Fleet", "Gone", "Host", "Seat", "call_workers"]

#: Seconds that a call to an actor may take.
_CALL = 30.0
#: Bytes of parameters in a fit that travels with each task.
_SMALL = 2**18
#: What keeps a worker from beginning its part.
BUSY = "Are they busy with other tasks?"


class Gone(Exception):
    """A worker of the run does not answer; inside the client only."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"worker {address}: {reason}")
        self.address = address


@dataclass(eq=False)
class Host:
    """An actor that hosts a server, or a standby of one.

    `part` is what it is still to be told, `answer` what will answer where it listens.
    """

    number: int
    address: str
    future: Future[Any]
    part: tuple[Any, ...] = ()
    proxy: Any = None
    answer: Any = None
    endpoint: Endpoint | None = None


@dataclass(eq=False)
class Seat:
    """A trainer: its task, and the part that it has in the present generation."""

    spec: TrainerSpec
    address: str
    future: Future[Any]

    @property
    def lanes(self) -> tuple[LaneSpec, ...]:
        """Its lanes."""
        return self.spec.lanes


class Fleet:
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
        #: Answers of actors that were given their parts.
        self._said: list[Callable[[], list[Any]]] = []

    def _spec(self) -> FitSpec | Future[Any]:
        """The fit as an argument of a task: itself, or on the cluster where it is large.

        There it is scattered anew if it went with a worker.
        """
        if self._is_small:
            return self._fit
        if self._fit_future is None or self._fit_future.status != "finished":
            try:
                self._fit_future = self._client.scatter(self._fit, hash=False)
            except TimeoutError as error:
                raise Gone("of the cluster", "none is there") from error
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
            future, asked = early
            proxy, answer = asked or (None, None)
            host = Host(number, address, future, part, proxy, answer)
        else:
            key = f"{self._run_id}-{number}-{self.next_name()}"
            host = Host(number, address, self._early.host(address, key, *part))
        self._futures.append(host.future)
        return host

    def meet(self, host: Host) -> Endpoint:
        """Wait for an actor, give it its part, and learn where it listens."""
        return self.meet_all([host])[0]

    def meet_all(self, hosts: Sequence[Host]) -> list[Endpoint]:
        """Meet several actors at once; what they say to their parts `confirm` hears."""
        for host in hosts:
            self._await(host)
            if host.part:
                self._said.append(self.begin_asking([host], "begin", *host.part))
            host.answer = host.answer or self._call(host, "endpoint")
        deadline = time.monotonic() + _CALL
        endpoints: list[Endpoint] = [self._answer(h, h.answer, deadline) for h in hosts]
        for host, endpoint in zip(hosts, endpoints, strict=True):
            host.endpoint, host.answer, host.part = endpoint, None, ()
        return endpoints

    def confirm(self) -> None:
        """Wait until actors have taken the parts that they were given; raises as :meth:`ask`."""
        said, self._said = self._said, []
        for answer in said:
            answer()

    def _await(self, host: Host) -> None:
        what = f"worker {host.address} to begin its part"
        patience = Patience(what, self._fit.run.timeout, BUSY)
        while host.proxy is None:
            with suppress(TimeoutError):
                host.proxy = self._proxy(host, SLICE)
            if host.proxy is not None:
                break
            self._check(host)
            if not self.is_ready(host) and not self._begins(host.address):
                raise Gone(host.address, "paused, at its memory limit")
            if not patience.lasts():
                raise Gone(host.address, f"no answer within {self._fit.run.timeout:g} s")

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
            raise Gone(host.address, repr(error)) from error

    def _check(self, host: Host) -> None:
        if host.future.status in {"lost", "cancelled"}:
            raise Gone(host.address, "lost")
        if not self._is_there(host.address):
            raise Gone(host.address, "stopped answering, or lost")

    def ask(self, host: Host, method: str, *args: Any, timeout: float = _CALL) -> Any:
        """Call a method of an actor.

        Raises
        ------
        Gone
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
            raise Gone(host.address, repr(error)) from error

    def _answer(self, host: Host, call: Any, deadline: float) -> Any:
        try:
            while True:
                # A call that was under way when its worker was killed may never be answered.
                with suppress(TimeoutError):
                    return call.result(timeout=SLICE)
                self._check(host)
                if time.monotonic() > deadline:
                    raise Gone(host.address, "no answer in time")
        except (OSError, RuntimeError) as error:
            if isinstance(error, DaskMLDistError):
                raise
            raise Gone(host.address, repr(error)) from error

    def discard_host(self, host: Host) -> None:
        """Let an actor end; one whose worker is gone too."""
        if host.proxy is not None and self._is_there(host.address):
            with suppress(Exception):
                host.proxy.close().result(timeout=2)
        host.proxy = None
        self._cancel([host.future])

    # -- tasks ---------------------------------------------------------------------------------

    def open_trainer(self, spec: TrainerSpec, address: str, blocks: Any) -> Seat:
        """Start a trainer."""
        future = self._client.submit(
            run_trainer,
            self._spec(),
            spec,
            blocks,
            workers=[address],
            allow_other_workers=False,
            pure=False,
            retries=0,
            key=f"{self._run_id}-trainer-{spec.name}",
        )
        future.add_done_callback(lambda _: self._on_end())
        self._futures.append(future)
        return Seat(spec, address, future)

    def result(self, seat: Seat) -> Any:
        """Result of a trainer that has ended."""
        patience = SLICE
        while True:
            with suppress(TimeoutError):
                return seat.future.result(timeout=patience)
            patience *= 2  # as in `meet`; a large result takes its time
            # It may have gone with its worker, and would then never come.
            if seat.future.status != "finished" or not self._is_there(seat.address):
                raise Gone(seat.address, "lost")

    def results(self, seats: Sequence[Seat]) -> list[Any]:
        """Results of trainers that have ended, all at once."""
        gather = partial(self._client.gather, [s.future for s in seats], asynchronous=True)
        try:
            found: list[Any] = self._client.sync(gather, callback_timeout=SLICE)
        except Exception:
            return [self._result(seat) for seat in seats]  # one may be lost, or is large
        return found

    def _result(self, seat: Seat) -> Any:
        try:
            return self.result(seat)
        except Exception as error:
            raise Gone(seat.address, repr(error)) from error

    def discard_trainer(self, seat: Seat) -> None:
        """Let go of a trainer's task, finished or not."""
        self._cancel([seat.future])

    def _cancel(self, futures: Iterable[Future[Any]]) -> None:
        futures = list(futures)
        # An actor lives while any proxy of it does; cancelling does not wait for these.
        unfinished = [f for f in futures if str(f.key).startswith("ServerHost") or not f.done()]
        with suppress(Exception):
            self._client.cancel(unfinished, force=True)
        for future in futures:
            future.release()
            if future in self._futures:
                self._futures.remove(future)

    def let_go(self) -> bool:
        """Leave nothing on the cluster, by letting go alone; False where that is not enough.

        An actor that is cancelled ends by itself, with all that it has opened.
        """
        if any(future.status != "finished" for future in self._futures):
            return False
        self._cancel(self._futures)
        self._fit_future = None
        return True

    def close(self, hosts: Iterable[Host], seats: Iterable[Seat]) -> None:
        """Leave nothing on the cluster."""
        for host in hosts:
            self.discard_host(host)
        for seat in seats:
            self.discard_trainer(seat)
        self._cancel(self._futures)
        self._fit_future = None


def call_workers(
    client: Client,
    function: Callable[..., Any],
    args: Mapping[str, tuple[Any, ...]],
    timeout: float,
) -> dict[str, Any]:
    """Call a function on some workers at once; return the answers that came in time.

    Parameters
    ----------
    client : Client
    function : callable
    args : mapping of worker address to tuple
        Arguments for each.
    timeout : float
        Seconds.
    """

    async def call(address: str) -> dict[str, Any]:
        with suppress(Exception):
            # In the client's own loop, `run` is a coroutine.
            running: Any = client.run(function, *args[address], workers=[address])
            return dict(await running)
        return {}

    async def call_all() -> dict[str, Any]:
        calls = {asyncio.ensure_future(call(address)): address for address in args}
        deadline = time.monotonic() + timeout
        pending = set(calls)
        while pending and time.monotonic() < deadline:
            _, pending = await asyncio.wait(pending, timeout=min(SLICE, timeout))
            if pending:
                # A worker that is gone by now will not answer.
                scheduler: Any = client.scheduler
                there = (await scheduler.identity(n_workers=-1))["workers"]
                pending = {running for running in pending if calls[running] in there}
        for running in calls:
            running.cancel()
        done = [running for running in calls if running.done() and not running.cancelled()]
        return {address: value for running in done for address, value in running.result().items()}

    if not args:
        return {}
    answers: dict[str, Any] = client.sync(call_all)
    return answers
