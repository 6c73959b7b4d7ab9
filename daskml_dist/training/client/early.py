"""A run's name and secret, and an actor of it that is started while its rows are surveyed."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import dask
from distributed import Client, Future

from daskml_dist.comm.handshake import Secret
from daskml_dist.training.dask_internals import proxy_of
from daskml_dist.training.worker.host import ServerHost

__all__ = ["Early"]

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
    """

    def __init__(self, client: Client) -> None:
        self.run_id = f"daskml-{uuid.uuid4().hex}"
        self.secret = Secret.make()
        self.address: str | None = None
        self._client = client
        self._future: Future[Any] | None = None
        self._asked: Any = None

    def start(self, address: str) -> None:
        """Start an actor without a part; returns before it is there."""
        self.address = address
        self._future = self.host(address, f"{self.run_id}-early")

    def host(self, address: str, key: str, *part: Any) -> Future[Any]:
        """Start an actor at a worker, with its part (`ServerHost.begin`) if that is known."""
        return self._client.submit(
            ServerHost,
            self.run_id,
            key,
            self.secret,
            bool(dask.config.get("daskml_dist.shared_memory", True)),
            *part,
            actor=True,
            workers=[address],
            allow_other_workers=False,
            pure=False,
        )

    def ask(self) -> None:
        """Ask the actor where it listens, if it is there by now; returns before it answers."""
        if self._future is not None and self._future.status == "finished" and self.address:
            proxy = proxy_of(self._client, self._future, ServerHost, self.address, _SOON)
            self._asked = proxy, proxy.endpoint()

    def take(self, address: str) -> tuple[Future[Any], Any] | None:
        """The actor at this worker, which is then the caller's; None where it is another's.

        Beside it lie, where it was asked, its proxy and what answers.
        """
        if address != self.address or self._future is None or self._future.status == "cancelled":
            return None
        taken = self._future, self._asked
        self._future = self._asked = self.address = None
        return taken

    def close(self) -> None:
        """Let go of the actor if nobody took it."""
        if self._future is not None:
            with suppress(Exception):
                self._future.cancel(force=True)
            self._future.release()
        self._future = self._asked = self.address = None
