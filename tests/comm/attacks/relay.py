"""A man in the middle, between a caller and a listener."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from daskml_dist.comm.base import Endpoint
from daskml_dist.comm.channels import close_socket
from tests.comm.attacks.served import HOST


class Relay:
    """Relay that changes the bytes it passes to a listener, and stores them."""

    def __init__(self, target: Endpoint, change: Callable[[bytes], bytes] = bytes) -> None:
        self.forwarded = b""
        self._target, self._change = target, change
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        self._pool = ThreadPoolExecutor(8)
        self._pool.submit(self._accept)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection((self._target.host, self._target.port))
                self._pool.submit(self._pass, near, far, True)
                self._pool.submit(self._pass, far, near, False)

    def _pass(self, source: socket.socket, sink: socket.socket, forth: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if forth:
                    data = self._change(data)
                    self.forwarded += data
                sink.sendall(data)
        close_socket(source)
        close_socket(sink)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._pool.shutdown()
