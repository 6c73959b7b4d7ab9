"""A run's name and secret, and an actor of it that is started while its rows are surveyed."""

from __future__ import annotations

import uuid
from typing import Any

from distributed import Client, Future

from daskml_dist.comm.handshake import Secret
from daskml_dist.training.worker.host import ServerHost

__all__ = ["Early", "start_host"]


class Early:
    """Name and secret of a run, and its first actor, whose start a fit then need not wait for.

    Attributes
    ----------
    run_id : str
    secret : Secret
    address : str or None
        Worker of the actor, as long as nobody has taken it.
    """

    def __init__(self) -> None:
        self.run_id = f"daskml-{uuid.uuid4().hex}"
        self.secret = Secret.make()
        self.address: str | None = None
        self._future: Future[Any] | None = None

    def start(self, client: Client, address: str) -> None:
        """Start an actor without a part; returns before it is there."""
        self.address = address
        self._future = start_host(client, address, self.run_id, self.secret)

    def take(self, address: str) -> Future[Any] | None:
        """The actor at this worker, which is then the caller's; None where it is another's."""
        if address != self.address or self._future is None or self._future.status == "cancelled":
            return None
        future, self._future, self.address = self._future, None, None
        return future

    def close(self) -> None:
        """Let go of the actor if nobody took it."""
        if self._future is not None:
            self._future.cancel(force=True)
            self._future.release()
        self._future = self.address = None


def start_host(
    client: Client, address: str, run_id: str, secret: Secret, *part: Any
) -> Future[Any]:
    """Start an actor at a worker, with its part (`ServerHost.begin`) if that is known."""
    return client.submit(
        ServerHost,
        run_id,
        secret,
        *part,
        actor=True,
        workers=[address],
        allow_other_workers=False,
        pure=False,
    )
