"""Connections of libraries that are shut down when a group ends, beside those of other tasks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from daskml_dist.integrations import _connections
from daskml_dist.integrations._connections import LibraryConnections, break_connections

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="sockets are listed by Linux only"
)


class _Group:
    """A group of two ranks, the other of which has opened no sockets."""

    size = 2
    has_ended = False

    def allgather(self, value: Any) -> list[Any]:
        return [value, []]


@pytest.fixture
def close_all() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _open(stack: ExitStack, *, is_library: bool) -> tuple[int, Any]:
    """Return the descriptor of a connection that no Python object has, and its other end."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = socket.create_connection(server.getsockname())
    other, _ = server.accept()
    descriptor = client.detach()
    stack.callback(socket.close, descriptor)
    if is_library:
        # A socket of a library in another language, as the other rank's would be.
        detached = other.detach()
        stack.callback(socket.close, detached)
        return descriptor, detached
    stack.callback(other.close)
    return descriptor, other


def _is_shut(descriptor: int) -> bool:
    """Return whether a connection was shut down."""
    with socket.socket(fileno=os.dup(descriptor)) as one:
        one.setblocking(False)
        try:
            return one.recv(1) == b""
        except BlockingIOError:
            return False


def test_connections_of_other_tasks_stay_open(close_all: ExitStack) -> None:
    before, _ = _open(close_all, is_library=True)
    group: Any = _Group()
    connections = LibraryConnections(group)
    of_library, _ = _open(close_all, is_library=True)
    other, _ = _open(close_all, is_library=False)
    connections.claim()
    later, _ = _open(close_all, is_library=True)
    connections.shut()
    assert [_is_shut(one) for one in (before, of_library, other, later)] == [
        False,
        True,
        False,
        False,
    ]


def test_services_stay_open_before_the_library_is_connected(
    close_all: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    group: Any = _Group()
    with break_connections(group):
        of_library, _ = _open(close_all, is_library=True)
        pair = socket.socketpair()  # no connection of TCP
        local = pair[0].detach()
        close_all.callback(socket.close, local)
        close_all.callback(pair[1].close)
        group.has_ended = True
        until = time.monotonic() + 10
        while not _is_shut(of_library) and time.monotonic() < until:
            time.sleep(0.05)
        assert (_is_shut(of_library), _is_shut(local)) == (True, False)
    connections = LibraryConnections(group)
    service, _ = _open(close_all, is_library=True)
    monkeypatch.setattr(_connections, "_read_first_free_port", lambda: 65_536)
    connections.shut()
    assert not _is_shut(service)
