"""Thousands of connections, incomplete and repeated ones, and exhausted file descriptors."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import Any

import pytest

from daskml_dist.comm import handshake
from daskml_dist.comm import listener as module
from daskml_dist.comm.base import ConnectionSettings, Endpoint, WaitBound
from daskml_dist.comm.handshake import NAME_BYTES, UP
from daskml_dist.comm.listener import Channel, Credentials, call_peer
from daskml_dist.comm.socket_group import PeerListener
from daskml_dist.errors import CommunicationError
from tests.comm.attacks.served import HOST, KEY, PATIENCE, SECRET, Served, is_closed, until


def _open_channel(
    endpoint: Endpoint, credentials: Credentials, role: bytes, name: bytes
) -> Channel:
    for _ in range(20):  # a busy machine may exceed the listener's timeout
        with suppress(CommunicationError):
            call = module._ListenerCall(endpoint, replace(credentials, patience=20), role, name)
            call.offer()
            return call.channel()
    raise AssertionError("no handshake succeeds")


@pytest.mark.parametrize(
    "credentials",
    [False, pytest.param(True, marks=pytest.mark.slow)],  # silent connections, also under TLS
    ids=["tcp", "tls"],
    indirect=True,
)
def test_a_thousand_silent_connections_do_not_block_the_fit(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent connections delay those of the fit at most by their timeout, and all are dropped."""
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.1)
    listener, welcome, lock = served.listener, served.listener._authenticate, threading.Lock()
    under_way = most = 0

    def count(guest: Any) -> Any:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        try:
            return welcome(guest)
        finally:
            with lock:
                under_way -= 1

    monkeypatch.setattr(listener, "_authenticate", count)
    with ExitStack() as stack:
        for _ in range(1000):
            sock = socket.socket()
            stack.enter_context(closing(sock))
            sock.setblocking(False)
            sock.connect_ex((HOST, served.endpoint.port))
        served.works()
    assert 0 < most <= module._MAX_HANDSHAKES
    until(lambda: not listener._pending and not listener._open and not listener._half_connections)


@pytest.mark.parametrize("fault", ["descriptors", "threads"])
def test_the_listener_survives_exhausted_system_resources(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 5

    def lacks(start: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            nonlocal left
            mine = getattr(self, "name", "daskml-serve") == "daskml-serve"
            if left and mine:
                left -= 1
                raise error
            return start(self, *args)

        return call

    served = Served(Credentials(SECRET, settings=ConnectionSettings(False), patience=PATIENCE))
    try:
        if fault == "descriptors":
            no_file = OSError(errno.EMFILE, "Too many open files")
            monkeypatch.setattr(socket.socket, "accept", lacks(socket.socket.accept, no_file))
        else:
            no_thread = RuntimeError("can't start new thread")
            start = lacks(threading.Thread.start, no_thread)
            monkeypatch.setattr(threading.Thread, "start", start)
            for _ in range(5):
                with closing(served.dial()) as sock:
                    assert is_closed(sock)
        served.works()
        assert left == 0
    finally:
        served.listener.close()


def test_half_a_connection_expires(served: Served) -> None:
    listener = served.listener
    endpoint, credentials = served.endpoint, served.credentials
    up = _open_channel(endpoint, credentials, UP, b"n" * NAME_BYTES)
    try:
        assert is_closed(up.sock)
        until(lambda: not listener._half_connections and not listener._open)
        # The other half arrives after the first has expired.
        late = _open_channel(endpoint, credentials, handshake.DOWN, b"n" * NAME_BYTES)
        until(lambda: not listener._half_connections and not listener._open)
        late.close()
    finally:
        up.close()
    served.works()


def test_two_channels_of_one_direction_are_refused(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            channel = _open_channel(served.endpoint, served.credentials, UP, b"n" * NAME_BYTES)
            stack.enter_context(closing(channel))
        assert is_closed(channel.sock)
    until(lambda: not served.listener._open)
    served.works()


def test_a_rank_that_connects_twice_is_refused() -> None:
    listener = PeerListener(HOST, Credentials(SECRET), KEY)
    first = call_peer(listener.endpoint, Credentials(SECRET), 1)
    inbox = listener.open_inbox(1, WaitBound(20))
    second = call_peer(listener.endpoint, Credentials(SECRET), 1)
    assert is_closed(second)
    first.sendall(b"x")
    got = bytearray(1)
    inbox.read_into(memoryview(got))
    assert got == b"x"
    for end in (first, second, listener):
        end.close()


def test_closed_connections_are_dropped(served: Served) -> None:
    for _ in range(3):
        served.works()
    until(lambda: not served.listener._open and not served.listener._pending)
