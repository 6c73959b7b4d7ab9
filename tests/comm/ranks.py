"""Ranks that are threads of one process, over real sockets and real shared memory."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from daskml_dist.comm.base import Communicator, WaitBound
from daskml_dist.comm.choosing_communicators import choose_communicator
from daskml_dist.comm.listener import Credentials
from daskml_dist.comm.socket_group import PeerGroup, PeerListener

__all__ = ["PATIENCE", "Ranks", "host_number"]

#: Seconds that ranks wait for each other: compiling on a busy machine takes many.
PATIENCE = 200.0
_HOST, _SECRET = "127.0.0.1", b"s" * 32
_here = threading.local()


def host_number() -> int:
    """Return the simulated host number of the calling rank."""
    number: int = _here.number
    return number


class Ranks:
    """Ranks, each in a separate thread."""

    def __init__(
        self,
        allowed: list[bool],
        wait: WaitBound,
        hosts: list[int] | None,
        **tls: ssl.SSLContext,
    ) -> None:
        credentials = Credentials(_SECRET, patience=PATIENCE, **tls)
        listeners = [PeerListener(_HOST, credentials) for _ in allowed]
        endpoints = [listener.endpoint for listener in listeners]
        self._pool = ThreadPoolExecutor(len(allowed))

        def meet(rank: int) -> Communicator:
            _here.number = hosts[rank] if hosts else 1
            peers = PeerGroup(rank, endpoints, listeners[rank], credentials, wait)
            return choose_communicator(peers, wait, allowed[rank])

        self.groups = list(self._pool.map(meet, range(len(allowed))))

    def each(self, act: Callable[[Communicator], Any]) -> list[Any]:
        """Call a function with each rank's communicator; return the results by rank."""
        return list(self._pool.map(act, self.groups))

    def close(self) -> None:
        """Close the communicators and the threads."""
        for group in self.groups:
            group.close()
        self._pool.shutdown()
