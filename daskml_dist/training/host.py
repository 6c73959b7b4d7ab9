"""The Dask actor that hosts a server of a fit, and the Dask task that runs a trainer.

The actor's methods are short and asynchronous; pushes and pulls reach the server through the
listener's own threads, never through the worker's event loop.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from functools import partial
from typing import Any

from distributed import Future, get_client, get_worker, secede
from distributed.comm.addressing import get_address_host

from daskml_dist.comm.base import Endpoint, Wait
from daskml_dist.comm.local import publish_server
from daskml_dist.comm.socket import Credentials, Listener, serve
from daskml_dist.data.blocks import Block
from daskml_dist.data.recipes import Recipes
from daskml_dist.errors import WorkerLostError
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.server import ParameterServer
from daskml_dist.ps.shard import ShardState
from daskml_dist.training.servers import make_server
from daskml_dist.training.spec import FitSpec, TrainerResult, TrainerSpec
from daskml_dist.training.trainer import Trainer

__all__ = ["ServerHost", "abort_run", "forget_run", "run_trainer"]

#: Runs that this process must stop.
_aborted: set[str] = set()


def abort_run(run_id: str) -> None:
    """Make the trainers of a run in this process stop at their next wait."""
    _aborted.add(run_id)


def forget_run(run_id: str) -> None:
    """Forget that a run was aborted, once its trainers are gone."""
    _aborted.discard(run_id)


def _credentials(worker: Any, secret: bytes) -> Credentials:
    """TLS contexts of the cluster's `Security`, where it has them."""
    listen = worker.security.get_listen_args("worker").get("ssl_context")
    connect = worker.security.get_connection_args("worker").get("ssl_context")
    return Credentials(secret, listen, connect)


def _host(worker: Any) -> str:
    address = str(worker.address)
    return "127.0.0.1" if address.startswith("inproc") else str(get_address_host(address))


class ServerHost:
    """Actor: one server, its listener, and what the client asks of it.

    Parameters
    ----------
    fit : FitSpec
    number : int
        Which server of the fit.
    n_trainers : int
    key : str
        Name under which trainers of the same process find the server.
    secret : bytes
    """

    def __init__(self, fit: FitSpec, number: int, n_trainers: int, key: str, secret: bytes) -> None:
        worker = get_worker()
        self._server = make_server(fit, number, n_trainers)
        publish_server(key, self._server)
        answer = partial(serve, self._server, dtype=fit.dtype, width=fit.model.width)
        host = _host(worker)
        listener = Listener(host, _credentials(worker, secret), on_pair=answer)
        self._endpoint = Endpoint(key, host, listener.port)
        # The scheduler drops the actor when its client goes: then nobody may wait for it.
        self._close = weakref.finalize(self, _close, self._server, listener)

    async def endpoint(self) -> Endpoint:
        """Where trainers reach it."""
        return self._endpoint

    async def records(self, start: int) -> list[dict[str, Any]]:
        """Records of the passes from number `start` (from 0) on."""
        ledger = self._server.ledger
        return [] if ledger is None else ledger.records[start:]

    async def end(self) -> tuple[StoppingRule, float]:
        """The stopping rule as the last pass left it, and the rows after the last whole pass."""
        ledger = self._server.ledger
        assert ledger is not None
        return ledger.rule, ledger.partial_rows

    async def state(self) -> ShardState | None:
        """The shard's state."""
        return self._server.state()

    async def stop(self) -> None:
        """End the fit with the open pass."""
        self._server.stop()

    async def abort(self, reason: str) -> None:
        """Refuse everything from now on."""
        self._server.abort(reason)

    async def close(self) -> None:
        """Close the listener and all connections."""
        self._close()


def _close(server: ParameterServer, listener: Listener) -> None:
    server.abort("the fit is over")
    listener.close()


def run_trainer(fit: FitSpec, spec: TrainerSpec, blocks: dict[int, Block] | bytes) -> TrainerResult:
    """Dask task: run a trainer on this worker, on blocks or packed recipes of them.

    It leaves the worker's thread pool before it waits for anyone, so that trainers never hold
    the slots that others wait for: two fits at once cannot deadlock.
    """
    worker = get_worker()
    secede()
    wait = Wait(fit.timeout, is_aborted=lambda: spec.run_id in _aborted)
    threading.current_thread().name = f"daskml-trainer-{spec.rank}"
    trainer = Trainer(fit, spec, wait, _credentials(worker, spec.secret), _host(worker))
    if not isinstance(blocks, bytes):
        return trainer.run(blocks)
    recipes = Recipes.unpack(blocks)
    fetch = _Fetch(worker, wait) if recipes.held else _nothing_held
    return trainer.run(lambda number: recipes.make(number, fetch))


def _nothing_held(key: Any) -> Any:
    raise KeyError(key)


class _Fetch:
    """Gets data that workers hold; of this worker's own without a copy, from disk if spilled."""

    def __init__(self, worker: Any, wait: Wait) -> None:
        self._worker = worker
        self._wait = wait
        # Only here: a task may ask for a client, its helper threads may not.
        self._client = get_client()

    def __call__(self, key: Any) -> Any:
        # The worker's memory is the event loop's alone.
        here = asyncio.run_coroutine_threadsafe(self._local(key), self._worker.loop.asyncio_loop)
        found, value = here.result(timeout=self._wait.timeout)
        if found:
            return value
        future: Future[Any] = Future(key, self._client)
        try:
            return future.result(timeout=self._wait.timeout)
        except Exception as error:
            raise WorkerLostError(
                f"Rows that a worker held could not be fetched ({error!r}): it was probably lost. "
                "Fit again."
            ) from error
        finally:
            future.release()

    async def _local(self, key: Any) -> tuple[bool, Any]:
        data = self._worker.data
        return (True, data[key]) if key in data else (False, None)
