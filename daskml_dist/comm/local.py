"""The `local` transport: server and trainer share a process, so nothing is copied."""

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.shared_buffer import LocalBuffer, SharedBuffer
from daskml_dist.comm.base import (
    SLICE,
    Arrays,
    Communicator,
    Merge,
    Pending,
    ServerConnection,
    Wait,
    check_status,
)
from daskml_dist.ps.messages import Call, Reply, Request
from daskml_dist.ps.server import ParameterServer

__all__ = ["LocalConnection", "NoPeers", "count_servers", "find_server", "publish_server"]

_servers: weakref.WeakValueDictionary[str, ParameterServer] = weakref.WeakValueDictionary()


def publish_server(key: str, server: ParameterServer) -> None:
    """Let trainers of this process find `server`; it is forgotten when it is collected."""
    _servers[key] = server


def find_server(key: str) -> ParameterServer | None:
    """The server of that name, if it lives in this process."""
    return _servers.get(key)


def count_servers(prefix: str) -> int:
    """Servers of this process whose key begins so, and that are not over."""
    return sum(key.startswith(prefix) and not s.is_over for key, s in list(_servers.items()))


class LocalConnection(ServerConnection):
    """Calls the server's state machine directly."""

    def __init__(self, server: ParameterServer, wait: Wait) -> None:
        super().__init__()
        self._server = server
        self._wait = wait
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._asked = ""

    def send(self, request: Request) -> None:
        """Hand the request over; a push that cannot apply yet is kept by the server as it is."""
        self._server.exchange(request, self._replies.put)
        # Threads of other lanes, and those that serve other processes', wait for the GIL: they
        # would else get it only after the interpreter's switch interval (5 ms), many steps of
        # this lane. A lane alone saves the 50 microseconds.
        if self._server.is_shared:
            time.sleep(0)

    def _take(self, source: queue.SimpleQueue[Any], what: str) -> Any:
        since = time.monotonic()
        while True:
            try:
                return source.get(timeout=SLICE)
            except queue.Empty:
                self._wait.check(since, what)

    def _next_reply(self) -> Reply:
        reply: Reply = self._take(self._replies, "a server of this process")
        return reply

    def ask(self, op: str, payload: Call) -> None:
        """Make a control call."""
        self._asked = op
        self._server.call(op, payload, self._answers.put)

    def answer(self) -> Call:
        """Wait for the answer to what was asked."""
        answer: Call = self._take(self._answers, f"the server ({self._asked})")
        check_status(answer["status"])
        return answer

    def close(self) -> None:
        """Nothing to close."""


class NoPeers(Communicator):
    """The communicator of a single trainer."""

    rank = 0
    size = 1

    def _allreduce(self, array: Any, out: Any) -> Any:
        if out is None:
            return array
        out[...] = array
        return out

    def _allgather(self, arrays: Arrays) -> list[Arrays]:
        return [arrays]

    def board(
        self, n: int | None, dtype: Any, lanes: list[list[int]], in_order: bool
    ) -> SharedBuffer | None:
        """A board of the own gradients alone, where these are in few of the parameters."""
        return LocalBuffer(lanes[0]) if n is None else None

    def _alltoall(self, arrays: Arrays) -> Arrays:
        return [arrays[0]]

    def _reduce(self, arrays: Arrays, merge: Merge) -> Arrays:
        return arrays

    def _broadcast_bytes(self, buffers: Sequence[Any]) -> NDArray[np.uint8]:
        return np.empty(0, np.uint8)

    def begin(self, array: Any) -> Pending:
        """Return the array as a sum that is there already."""
        return Pending.of(array)
