"""Clients without the secret are refused in bounded time, while those of the fit are served."""

from __future__ import annotations

import os
import pickle
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

import pytest

from daskml_dist.comm import handshake, wire
from daskml_dist.comm.base import Endpoint, WaitBound
from daskml_dist.comm.channels import RingOffer
from daskml_dist.comm.handshake import NAME_BYTES, PEER, UP, RunSecret
from daskml_dist.comm.listener import Credentials, Listener, call_listener, call_peer
from daskml_dist.comm.server_connections import RemoteConnection
from daskml_dist.errors import CommunicationError
from tests.comm.attacks.relay import Relay
from tests.comm.attacks.served import BOUNDS, HOST, KEY, PATIENCE, SECRET, Served, is_closed

_HELLO = handshake._HELLO.pack(handshake._PROTOCOL, UP, bytes(NAME_BYTES), bytes(32))
GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100),
    os.urandom(1 << 16),
    b"daskml 2X" + bytes(100),
    _HELLO.replace(UP, PEER) + bytes(32),  # proofs of nothing
    _HELLO + bytes(RingOffer.SIZE + 32),
    pickle.dumps(print),
    *(_HELLO[:n] for n in (0, 5, len(_HELLO) - 1, len(_HELLO))),  # and then no more
]


def test_garbage_is_refused_while_others_are_served(served: Served) -> None:
    with ExitStack() as stack:
        socks = [stack.enter_context(closing(served.dial())) for _ in GARBAGE]
        for sock, words in zip(socks, GARBAGE, strict=True):
            with suppress(OSError):
                sock.sendall(words)
        served.works()
        assert all(map(is_closed, socks))
    served.works()


def test_slowly_sent_bytes_do_not_prolong_a_handshake(served: Served) -> None:
    with closing(socket.create_connection((HOST, served.endpoint.port), timeout=60)) as sock:
        since = time.monotonic()
        with suppress(OSError):
            for byte in bytes(10_000):
                sock.sendall(bytes([byte]))
                time.sleep(PATIENCE / 20)
        assert time.monotonic() - since < 10_000 * PATIENCE / 20 / 4


def test_the_listener_proves_itself_first() -> None:
    """A rogue server on a former port of a worker gets a nonce, and no data of the fit."""
    received: list[bytes] = []

    def answer(server: socket.socket, words: bytes) -> None:
        sock, _ = server.accept()
        with sock:
            sock.settimeout(20)
            received.append(sock.recv(1 << 16))
            sock.sendall(words)
            with suppress(OSError):
                received.append(sock.recv(1 << 16))

    reply = wire._CALL.pack(wire.CALL, 1 << 30) + pickle.dumps(print)
    for words in (reply, bytes(64), os.urandom(64), b""):
        received.clear()
        with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor(1) as pool:
            rogue = pool.submit(answer, server, words)
            endpoint = Endpoint(KEY, HOST, server.getsockname()[1])
            with pytest.raises(CommunicationError, match="another program may have its port"):
                call_listener(endpoint, Credentials(SECRET, patience=0.3))
            rogue.result(20)
        assert len(received[0]) == handshake._HELLO.size
        assert not any(received[1:])


def test_a_certificate_alone_is_not_enough(served: Served) -> None:
    """Nor is the secret alone, if the cluster has certificates."""
    others = [replace(served.credentials, secret=b"other")]
    if served.credentials.connect is not None:
        others.append(Credentials(SECRET, patience=PATIENCE))
    for other in others:
        with pytest.raises(CommunicationError, match="Cannot connect"):
            RemoteConnection(served.endpoint, other, WaitBound(20), BOUNDS)
    served.works()


def test_a_rogue_without_a_certificate_receives_nothing(
    contexts: dict[bool, dict[str, ssl.SSLContext]],
) -> None:
    received: list[bytes] = []
    rogue = Listener(HOST, Credentials(SECRET, patience=PATIENCE), on_pair=lambda *_: None)
    relay = Relay(rogue.endpoint)
    try:
        endpoint = Endpoint("", HOST, relay.port)
        with pytest.raises(CommunicationError, match="Cannot connect"):
            call_peer(endpoint, Credentials(SECRET, patience=PATIENCE, **contexts[True]), 1)
        received.append(relay.forwarded)
    finally:
        rogue.close()
        relay.close()
    assert handshake._PROTOCOL not in received[0]


def test_a_silent_listener_times_out() -> None:
    with socket.create_server((HOST, 0)) as server:
        endpoint = Endpoint(KEY, HOST, server.getsockname()[1])
        with pytest.raises(CommunicationError, match="timed out"):
            call_peer(endpoint, Credentials(SECRET, patience=0.2), 0)


def test_an_empty_secret_is_refused() -> None:
    with closing(Listener(HOST, Credentials(b""))) as listener:
        with pytest.raises(CommunicationError, match="Cannot connect"):
            call_peer(listener.endpoint, Credentials(b"", patience=PATIENCE), 4)
        with closing(socket.create_connection((HOST, listener.port), timeout=60)) as sock:
            sock.sendall(_HELLO)
            assert is_closed(sock)
    assert "ssss" not in repr(Credentials(SECRET))
    assert (
        str(secret := RunSecret.generate())
        == repr(pickle.loads(pickle.dumps(secret)))
        == "Secret(...)"
    )
