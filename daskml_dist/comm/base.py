"""What every transport and communicator offers, and the one way to wait."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import GenerationError, RunAbortedError, WaitTimeoutError
from daskml_dist.ps.messages import Call, Reply, Request, Status

__all__ = ["Communicator", "Endpoint", "ServerConnection", "Wait", "check_status"]

_RENEWED = "The membership of the fit changed; this trainer is told how it goes on."
#: Seconds between two looks at whether a wait still makes sense.
SLICE = 0.2


@dataclass(frozen=True)
class Endpoint:
    """Where a server or a trainer listens.

    Parameters
    ----------
    key : str
        Unique name of the listener; the same process finds it by this name.
    host, port : str, int
        Address of its socket; port 0: it has none (same process only).
    """

    key: str
    host: str = ""
    port: int = 0


@dataclass
class Wait:
    """The bound of every wait of a trainer.

    Parameters
    ----------
    timeout : float
        Seconds without an answer after which :class:`WaitTimeoutError` is raised.
    is_aborted : callable
        Looked at every 0.2 s; True ends the wait with :class:`RunAbortedError`.
    is_renewed : callable
        Likewise, for :class:`GenerationError`: the trainer belongs to a newer generation.
    """

    timeout: float = 300.0
    is_aborted: Callable[[], bool] = field(default=lambda: False)
    is_renewed: Callable[[], bool] = field(default=lambda: False)

    def check(self, since: float, what: str) -> None:
        """Raise when the wait for `what`, begun at `since` (monotonic), must end."""
        if self.is_aborted():
            raise RunAbortedError(
                "The fit was stopped by its client; see the error that the client raised."
            )
        if self.is_renewed():
            raise GenerationError(_RENEWED)
        if time.monotonic() - since > self.timeout:
            raise WaitTimeoutError(
                f"Nothing came from {what} for {self.timeout:g} s. Is a worker stopped or "
                "overloaded? Look at the workers' logs, or raise the bound with "
                'dask.config.set({"daskml_dist.timeout": seconds}).'
            )


def check_status(status: int) -> None:
    """Raise for an answer that is not OK."""
    if status == Status.OK:
        return
    if status == Status.STALE_GENERATION:
        raise GenerationError(_RENEWED)
    raise RunAbortedError("The fit was stopped; see the error that the client raised.")


class ServerConnection(ABC):
    """A trainer thread's connection to one server. Not thread-safe."""

    bytes_pushed: int = 0
    bytes_pulled: int = 0

    @abstractmethod
    def send(self, request: Request) -> None:
        """Send a push or pull; its arrays must not change before its answer, if any, has come."""

    @abstractmethod
    def _next_reply(self) -> Reply:
        """Wait for the next answer, whichever lane's."""

    @abstractmethod
    def call(self, op: str, payload: Call) -> Call:
        """Make a control call and wait for its answer."""

    @abstractmethod
    def close(self) -> None:
        """Close; may be called twice."""

    def __init__(self) -> None:
        self._early: dict[int, Reply] = {}

    def receive(self, lane: int) -> Reply:
        """Wait for the answer to the open request of `lane`.

        Raises
        ------
        RunAbortedError, WaitTimeoutError, CommunicationError
        """
        while lane not in self._early:
            self._keep(self._next_reply())
        return self._early.pop(lane)

    def _keep(self, reply: Reply) -> None:
        check_status(reply.status)
        self._early[reply.lane] = reply


class Communicator(ABC):
    """All trainers of a fit, who meet without a server. Every rank makes the same calls."""

    rank: int
    size: int
    bytes_sent: int = 0
    bytes_received: int = 0

    @abstractmethod
    def allreduce(self, array: NDArray[Any]) -> NDArray[Any]:
        """Sum of all ranks' arrays, the same to the bit on all of them; may reuse `array`."""

    def reduce_scatter(self, array: NDArray[Any], bounds: list[int]) -> NDArray[Any]:
        """The own range, ``bounds[rank]:bounds[rank + 1]``, of the sum of flat arrays."""
        return self.allreduce(array)[bounds[self.rank] : bounds[self.rank + 1]]

    @abstractmethod
    def allgather(self, arrays: list[NDArray[Any]]) -> list[list[NDArray[Any]]]:
        """The arrays of every rank, by rank; shapes may differ from rank to rank."""

    def broadcast_bytes(self, data: bytes = b"") -> bytes:
        """The bytes of rank 0, on every rank; what others give is not sent."""
        own = [np.frombuffer(data, dtype=np.uint8)] if self.rank == 0 and data else []
        sent = self.allgather(list(own))[0]
        return sent[0].tobytes() if sent else b""

    @abstractmethod
    def close(self) -> None:
        """Close; may be called twice."""
