"""Shipping a server's snapshots to its standby on another worker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from daskml_dist.comm.base import ServerConnection
from daskml_dist.errors import TrainingError
from daskml_dist.ps.server import ParameterServer
from daskml_dist.ps.snapshots import ServerSnapshot, standby_of

__all__ = ["Shipper"]

#: Seconds between two looks at whether the server is still there.
_SLICE = 0.5


class Shipper:
    """Sender of snapshots in a thread of its own, one after the other. Call it with a snapshot.

    Parameters
    ----------
    server : ParameterServer
        Whose snapshots these are.
    connect : callable
        Opens the connection to the standby; called in the thread.
    on_failure : callable
        Takes the error that ended the shipping; the server goes on without a standby.
    """

    def __init__(
        self,
        server: ParameterServer,
        connect: Callable[[], ServerConnection],
        on_failure: Callable[[str], None],
    ) -> None:
        self._server = server
        self._connect = connect
        self._on_failure = on_failure
        self._generation = standby_of(server.generation)
        self._snapshots: queue.SimpleQueue[ServerSnapshot | None] = queue.SimpleQueue()
        self._taken = self._sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="daskml-standby")
        self._thread.start()

    def __call__(self, snapshot: ServerSnapshot) -> None:
        self._taken += 1
        self._snapshots.put(snapshot)

    @property
    def is_idle(self) -> bool:
        """Whether the standby has all snapshots, or can have no more."""
        return self._sent >= self._taken or not self._thread.is_alive()

    def close(self) -> None:
        """Send no more; returns at once."""
        self._snapshots.put(None)

    def _run(self) -> None:
        try:
            connection = self._connect()
            try:
                self._send_all(connection)
            finally:
                connection.close()
        except TrainingError as error:
            self._server.stop_shipping(self)
            self._on_failure(f"standby: {error}")

    def _next(self) -> ServerSnapshot | None:
        while not self._server.is_over:
            with suppress(queue.Empty):
                return self._snapshots.get(timeout=_SLICE)
        return None

    def _send_all(self, connection: ServerConnection) -> None:
        first = 0
        while (snapshot := self._next()) is not None:
            # Records only grow, so each goes over once.
            records, n_records = [], first
            if snapshot.ledger is not None and self._server.ledger is not None:
                n_records = snapshot.ledger.n_records
                records = self._server.ledger.records[first:n_records]
            payload = {"generation": self._generation, "first": first, "blob": (snapshot, records)}
            connection.call("keep", payload)
            first = n_records
            self._sent += 1
            self._server.shipped()
