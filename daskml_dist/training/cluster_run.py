"""One fit on a cluster: place, launch, watch, gather, and leave nothing behind."""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from itertools import cycle, islice
from typing import Any

from distributed import Client
from distributed.client import Future

from daskml_dist.comm.base import Endpoint
from daskml_dist.data.placement import Placement
from daskml_dist.data.recipes import Recipes
from daskml_dist.errors import (
    CallbackError,
    DaskMLDistError,
    TrainingError,
    WaitTimeoutError,
    WorkerLostError,
    is_consequence,
)
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import FitResult, RunView
from daskml_dist.training.host import ServerHost, abort_run, forget_run, run_trainer
from daskml_dist.training.servers import joined_state, n_servers
from daskml_dist.training.spec import FitSpec, TrainerResult, TrainerSpec

__all__ = ["TrainingRun"]

#: Seconds between two looks at the fit: short at first, so that short fits end at once.
_FIRST_LOOK, _LOOK = 0.01, 0.2
#: Seconds between two looks at the list of workers.
_ROLL_CALL = 1.0
#: Seconds that a call to an actor, and the end of all trainers after an error, may take.
_CALL, _WIND_DOWN = 30.0, 15.0


class TrainingRun:
    """The client's side of one fit.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    placement : Placement
    blocks : mapping of int to Future of Block, or Recipes
    threads : mapping of worker address to its number of threads
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        placement: Placement,
        blocks: Mapping[int, Future[Any]] | Recipes,
        threads: Mapping[str, int],
    ) -> None:
        self._client = client
        self._fit = fit
        self._lanes = placement.by_worker()
        self._blocks = blocks
        self._threads = threads
        self._id = f"daskml-{uuid.uuid4().hex}"
        self._secret = secrets.token_bytes(32)
        self._trainer_addresses = list(self._lanes)
        self._server_addresses = self._place_servers()
        self._host_futures: list[Future[Any]] = []
        self._hosts: list[Any] = []
        self._trainers: list[Future[Any]] = []
        self._told = 0
        self._trainer_ended = threading.Event()

    def _place_servers(self) -> list[str]:
        """Spread over the workers: those without rows to train on first."""
        idle = [w for w in sorted(self._threads) if w not in self._lanes]
        return list(islice(cycle([*idle, *self._trainer_addresses]), n_servers(self._fit)))

    def run(self, callbacks: CallbackList) -> FitResult:
        """Run the fit to its end, or clean up and raise."""
        view = RunView(
            self._id,
            self._fit,
            self._trainer_addresses,
            self._server_addresses,
            self._stop,
        )
        try:
            callbacks.on_fit_begin(view)
            self._launch()
            self._watch(callbacks, view)
            result = self._gather()
            self._tell(callbacks, view)
        except BaseException as error:
            cause = error
            try:
                cause = self._wind_down(error)
            finally:  # also when the user interrupts once more
                self._clean_up()
                if isinstance(cause, WorkerLostError):
                    with suppress(CallbackError):
                        callbacks.on_generation(view, {"event": "lost", "reason": str(cause)})
                callbacks.on_fit_end(view, cause)
            if cause is error:
                raise
            raise cause from error
        self._clean_up()
        callbacks.on_fit_end(view)
        return result

    # -- launch --------------------------------------------------------------------------------

    def _launch(self) -> None:
        fit_future = self._client.scatter(self._fit, hash=False)
        keys = [f"{self._id}-{s}" for s in range(len(self._server_addresses))]
        self._host_futures = [
            self._client.submit(
                ServerHost,
                fit_future,
                number,
                len(self._lanes),
                key,
                self._secret,
                actor=True,
                workers=[address],
                allow_other_workers=False,
                pure=False,
            )
            for number, (key, address) in enumerate(zip(keys, self._server_addresses, strict=True))
        ]
        self._hosts = [self._result(future) for future in self._host_futures]
        endpoints = tuple(self._ask(host.endpoint()) for host in self._hosts)
        for rank, address in enumerate(self._lanes):
            self._trainers.append(self._submit(rank, address, endpoints, fit_future))

    def _submit(
        self, rank: int, address: str, servers: tuple[Endpoint, ...], fit: Future[Any]
    ) -> Future[Any]:
        lanes = tuple(self._lanes[address])
        spec = TrainerSpec(
            self._id, rank, len(self._lanes), 0, lanes, self._threads[address], servers,
            self._secret,
        )  # fmt: skip
        needed = sorted({s.block for lane in lanes for s in lane.segments})
        blocks: Any
        if isinstance(self._blocks, Recipes):
            blocks = self._blocks.pack(needed)
        else:
            blocks = {i: self._blocks[i] for i in needed}
        trainer = self._client.submit(
            run_trainer,
            fit,
            spec,
            blocks,
            workers=[address],
            allow_other_workers=False,
            pure=False,
            retries=0,
            key=f"{self._id}-trainer-{rank}",
        )
        trainer.add_done_callback(lambda _: self._trainer_ended.set())
        return trainer

    def _result(self, future: Future[Any]) -> Any:
        """Result of a future that is quick unless its worker is lost."""
        deadline = time.monotonic() + self._fit.timeout
        while True:
            with suppress(TimeoutError):
                return future.result(timeout=_ROLL_CALL)
            self._check_workers()
            self._check_kept(future)
            if time.monotonic() > deadline:
                raise WaitTimeoutError(
                    f"A server of the fit did not start within {self._fit.timeout:g} s. Are all "
                    "threads of a worker busy with other tasks? Free them, or raise the bound "
                    'with dask.config.set({"daskml_dist.timeout": seconds}).'
                )

    def _ask(self, call: Any) -> Any:
        deadline = time.monotonic() + _CALL
        try:
            while True:
                # A call that was under way when its worker was killed may never be answered.
                with suppress(TimeoutError):
                    return call.result(timeout=_ROLL_CALL)
                self._check_workers()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no answer within {_CALL:g} s")
        except (OSError, RuntimeError) as error:
            if isinstance(error, DaskMLDistError):
                raise
            raise self._lost_soon() or WorkerLostError(
                f"A server of the fit does not answer ({error!r}). Its worker was probably lost; "
                "fit again."
            ) from error

    # -- watch ---------------------------------------------------------------------------------

    def _watch(self, callbacks: CallbackList, view: RunView) -> None:
        look, roll_call = _FIRST_LOOK, time.monotonic()
        while True:
            self._pause(look)
            self._raise_failed()
            if all(trainer.done() for trainer in self._trainers):
                return
            self._tell(callbacks, view)
            look = min(look * 1.5, _LOOK)
            if time.monotonic() - roll_call > _ROLL_CALL:
                self._check_workers()
                roll_call = time.monotonic()

    def _pause(self, seconds: float) -> None:
        """Sleep until a trainer ends, but no longer than so many seconds."""
        self._trainer_ended.wait(seconds)
        self._trainer_ended.clear()

    def _raise_failed(self) -> None:
        for trainer in self._trainers:
            self._check_kept(trainer)
            if trainer.status in {"error", "cancelled"}:
                trainer.result(timeout=_CALL)

    def _check_kept(self, future: Future[Any]) -> None:
        """Raise for a future that went with its worker: its result would never come."""
        if future.status == "lost":
            raise self._lost_soon() or WorkerLostError(
                "A worker that held a part of the fit was lost. Look at the workers' logs, then "
                "fit again."
            )

    def _tell(self, callbacks: CallbackList, view: RunView) -> None:
        for record in self._ask(self._hosts[0].records(self._told)):
            self._told += 1
            callbacks.on_pass_end(view, record)

    def _stop(self) -> None:
        self._ask(self._hosts[0].stop())

    def _check_workers(self) -> None:
        """Raise when a worker of the fit is gone."""
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        for role, addresses in (
            ("a trainer", self._trainer_addresses),
            ("a server", self._server_addresses),
        ):
            for address in addresses:
                if address not in there:
                    raise WorkerLostError(
                        f"Worker {address}, which ran {role} of the fit, was lost. Look at its "
                        "log (memory, walltime), then fit again."
                    )

    def _gather(self) -> FitResult:
        results: list[TrainerResult] = [
            trainer.result(timeout=self._fit.timeout) for trainer in self._trainers
        ]
        shards = [self._ask(host.state()) for host in self._hosts]
        stopping, partial = self._ask(self._hosts[0].end())
        records = self._ask(self._hosts[0].records(0))
        return FitResult(joined_state(self._fit, shards, results), records, stopping, partial)

    # -- the end -------------------------------------------------------------------------------

    def _wind_down(self, error: BaseException) -> BaseException:
        """Stop all that runs; return the error to tell the user."""
        for host in self._hosts:
            with suppress(Exception):
                host.abort(str(error)).result(timeout=2)
        self._on_trainers(abort_run)
        deadline = time.monotonic() + _WIND_DOWN
        lost: BaseException | None = None
        while not all(t.done() for t in self._trainers) and time.monotonic() < deadline:
            try:
                self._check_workers()
            except WorkerLostError as gone:
                lost = gone
                break
            self._pause(_LOOK)
        return self._root_cause(error, lost)

    def _root_cause(self, error: BaseException, lost: BaseException | None) -> BaseException:
        if not isinstance(error, Exception) or (
            isinstance(error, DaskMLDistError) and not is_consequence(error)
        ):
            return error
        for trainer in self._trainers:
            if trainer.status == "error":
                own = trainer.exception(timeout=_CALL)
                if isinstance(own, DaskMLDistError) and not is_consequence(own):
                    return own
        if lost is None:
            lost = self._lost_soon()
        if lost is not None:
            return lost
        if isinstance(error, DaskMLDistError):
            return error
        return TrainingError(f"The fit failed on a worker: {error!r}. See the cause above.")

    def _lost_soon(self) -> BaseException | None:
        """A closed connection is often seen before the scheduler notes the worker's loss."""
        for _ in range(15):
            try:
                self._check_workers()
            except WorkerLostError as gone:
                return gone
            time.sleep(_LOOK)
        return None

    def _on_trainers(self, function: Any) -> None:
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        workers = [w for w in self._trainer_addresses if w in there]
        if workers:
            with suppress(Exception):
                self._client.run(function, self._id, workers=workers, on_error="ignore")

    def _clean_up(self) -> None:
        """Leave no actor, task, socket or flag behind."""
        for host in self._hosts:
            with suppress(Exception):
                host.close().result(timeout=2)
        self._hosts = []
        # An actor lives while any proxy of it does; cancelling does not wait for these.
        unfinished = [t for t in self._trainers if not t.done()]
        with suppress(Exception):
            self._client.cancel([*unfinished, *self._host_futures], force=True)
        for future in [*self._trainers, *self._host_futures]:
            future.release()
        self._trainers, self._host_futures = [], []
        self._on_trainers(forget_run)
