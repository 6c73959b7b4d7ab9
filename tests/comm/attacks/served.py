"""A server of a fit under attack, on the loopback interface."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import numpy as np

from daskml_dist.comm.base import WaitBound
from daskml_dist.comm.listener import Credentials, Listener
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.server_connections import RemoteConnection, serve_connection
from daskml_dist.errors import CommunicationError
from daskml_dist.optimizers import get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Asynchronous
from daskml_dist.ps.messages import ServerRequest
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from tests.rules import one_group

HOST, KEY, SECRET = "127.0.0.1", "run-0-1", b"s" * 32
BOUNDS = MessageBounds("float64", 8, 1, 2)
#: Limit in seconds for a handshake here.
PATIENCE = 0.5


def make_server() -> ShardServer:
    rule = one_group(get_optimizer("sgd"), Constant(1.0), Penalty(0, 0), 8, 1.0)
    return ShardServer(
        Asynchronous(), [0, 1], Shard(rule, ShardState(np.zeros((8, 1)), {})), None, 1
    )


class Served:
    """A server with its listener, and the losses that it has noticed."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.losses = threading.Semaphore(0)
        count = lambda _: self.losses.release()  # noqa: E731
        answer = partial(serve_connection, make_server(), bounds=BOUNDS, on_loss=count)
        self.listener = Listener(HOST, credentials, on_pair=answer, key=KEY)
        self.endpoint = self.listener.endpoint

    def works(self) -> None:
        """Wait until a trainer of the fit is served; a busy machine may be slow."""
        until(self._is_exchanged)

    def _is_exchanged(self) -> bool:
        patient = replace(self.credentials, patience=20)
        with suppress(CommunicationError):
            connection = RemoteConnection(self.endpoint, patient, WaitBound(20), BOUNDS)
            with closing(connection):
                connection.send(ServerRequest((0,), 0, 1))
                assert connection.receive(0).values is not None
            return True
        return False

    def dial(self) -> socket.socket:
        """Return a socket of a stranger who knows the address, under TLS if the fit has it."""
        sock = socket.create_connection((HOST, self.endpoint.port), timeout=60)
        if self.credentials.connect is not None:
            sock = self.credentials.connect.wrap_socket(sock, server_hostname=HOST)
        return sock


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


def is_closed(sock: socket.socket) -> bool:
    """Return whether the other side closes a socket, whatever it sends before."""
    sock.settimeout(60)
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:  # closed with unread bytes
        pass
    return True
