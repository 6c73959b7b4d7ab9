"""A run's name and secret, and an actor of it that is started while its rows are surveyed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import dask
from distributed import Client, Future

from daskml_dist.comm.base import Endpoint
from daskml_dist.comm.handshake import Secret
from daskml_dist.training.dask_internals import proxy_at, proxy_of, submit_all
from daskml_dist.training.worker.host import ServerHost

__all__ = ["Early", "is_actor"]

Tasks = dict[Any, tuple[Callable[..., Any], Iterable[Any]]]

_PREFIX = f"{ServerHost.__name__}-"
#: Seconds for the proxy of an actor that is there.
_SOON = 1.0


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
