"""Misbehaving clients on sockets, alternating with a well-behaved one."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("httptools", reason="the extra serve is not installed")

from daskml_dist.linear_model import LogisticRegression
from daskml_dist.serving import connection, http_messages
from daskml_dist.serving.app import App
from daskml_dist.serving.connection import MAX_HEAD_BYTES, close_slow_connections
from tests.serving.stand_ins import Metrics, Models, tensor
from tests.serving.threads import served

POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
GOOD = json.dumps({"inputs": [tensor(np.ones((1, 3)))]}).encode()
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD

#: Sent bytes and the start of the reply; None if the client leaves without one.
CLIENTS = {
    "no HTTP": (b"\x16\x03\x01\x00garbage\r\n\r\n", b"HTTP/1.1 400"),
    "leaves amid its head": (POST, None),
    "half a head": (POST, b"HTTP/1.1 408"),
    "nothing": (b"", b""),
    "empty lines": (b"\r\n\r\n", b""),
    "long head": (POST + b"X: " + b"x" * (MAX_HEAD_BYTES - len(POST) - 2), b"HTTP/1.1 431"),
    "no chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 400"),
    "half a body": (POST + b"Content-Length: 100\r\n\r\n{", None),
    "slow": (POST + b"Content-Length: 100\r\n\r\n{", b"HTTP/1.1 408"),
    "giant": (POST + b"Content-Length: 1000000000000\r\n\r\n" + b"0" * 4096, b"HTTP/1.1 413"),
    "giant in pieces": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"4000\r\n" + b"0" * 0x4000 + b"\r\n",
        b"HTTP/1.1 413",
    ),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n12", b"HTTP/1.1 400"),
    "no body": (POST + b"Content-Length: 0\r\n\r\n", b"HTTP/1.1 400"),
    "pipelined": (WHOLE * 3, b"HTTP/1.1 200"),
}


def served_for(seconds):
    """Serve an application with the given timeouts for headers and bodies."""
    X = np.random.default_rng(0).standard_normal((30, 3))
    model = LogisticRegression().fit(X, X[:, 0] > 0)
    app = App(Models(m=model), Metrics(), max_bytes=10_000, body_seconds=seconds)
    return served(app, seconds)


@pytest.fixture
def port():
    """Provide the port of a server that soon closes slow connections."""
    with served_for(0.5) as found:
        yield found


@pytest.fixture
def patient(monkeypatch):
    """Provide the port of a server with timeouts for clients of a busy machine."""
    monkeypatch.setattr(connection, "LINGER_SECONDS", 60.0)
    monkeypatch.setattr(http_messages, "LINGER_SECONDS", 60.0)
    with served_for(60.0) as found:
        yield found


def infer(one: socket.socket) -> int:
    """Return the status of the reply to a valid request that is sent in one piece."""
    one.sendall(WHOLE)
    return read(one)


def read(one: socket.socket) -> int:
    reply = http.client.HTTPResponse(one)
    reply.begin()
    assert reply.read()
    return reply.status


def connect_and_send(port, sent, listen):
    """Return the socket of a client that connects and sends bytes, and the reply to it.

    It repeats if there is no reply: a busy machine may take longer between connecting and sending
    than a silent connection is kept.
    """
    for _ in range(20):
        one = socket.create_connection(("127.0.0.1", port), timeout=60)
        try:
            one.sendall(sent)
            if received := listen(one):
                return one, received
        except (OSError, http.client.RemoteDisconnected):
            pass
        one.close()
    raise AssertionError("nobody is answered")


def test_misbehaving_clients_do_not_affect_others(port):
    good, status = connect_and_send(port, WHOLE, read)
    assert status == 200
    opened = []
    for name, (sent, _) in CLIENTS.items():
        one = socket.create_connection(("127.0.0.1", port), timeout=60)
        with suppress(OSError):  # already closed on a busy machine; repeated below
            one.sendall(sent)
        opened.append(one)
        assert infer(good) == 200, name
    for (name, (sent, begins)), one in zip(CLIENTS.items(), opened, strict=True):
        if begins is not None:
            reply = b""
            with suppress(OSError):
                reply = one.recv(100)
            if begins and not reply:
                one.close()
                one, reply = connect_and_send(port, sent, lambda one: one.recv(100))
            assert reply.startswith(begins), name
            assert begins or not reply, name
        one.close()
    good.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert read(good) == 200
    good.close()


def rest(one):
    """Return all bytes of a server until it closes the connection."""
    received = b""
    while more := one.recv(65536):
        received += more
    one.close()
    return received


@pytest.mark.parametrize(
    ("behind", "statuses"),
    [(b"POST /v2", [b"200", b"408"]), (b"\x00", [b"200"]), (POST + b"\x00\r\n", [b"200"])],
)
def test_garbage_after_a_request_does_not_replace_its_reply(port, behind, statuses):
    """The request's reply comes first; a reply to garbage could be mistaken for it."""
    _, replies = connect_and_send(port, WHOLE + behind, rest)
    assert [line.split()[0] for line in replies.split(b"HTTP/1.1")[1:]] == statuses


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        # Requests to upgrade to HTTP/2, one after the other on a connection.
        (WHOLE.replace(b"Host", UPGRADE + b"Host") * 2 + b"\x00", [b"200", b"200"]),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", [b"405"]),
        # Longer than accepted, and sent completely before the reply is read.
        (POST + b"Content-Length: 4000000\r\n\r\n" + b"0" * 4_000_000, [b"413"]),
    ],
    ids=["upgrade", "connect", "large"],
)
def test_upgrade_connect_and_large_requests_are_answered(patient, sent, statuses):
    with socket.create_connection(("127.0.0.1", patient), timeout=60) as one:
        one.sendall(sent)
        replies = rest(one)
    assert [line.split()[0] for line in replies.split(b"HTTP/1.1")[1:]] == statuses


@pytest.mark.parametrize("sent", [WHOLE, WHOLE.replace(b"Host", b"Expect: x\r\nHost")])
def test_half_closed_connections_are_answered(patient, sent):
    """With the package's own reader, and with uvicorn's."""
    with socket.create_connection(("127.0.0.1", patient), timeout=60) as one:
        one.sendall(sent)
        one.shutdown(socket.SHUT_WR)
        assert rest(one).startswith(b"HTTP/1.1 200")


def test_bytes_after_garbage_do_not_suppress_the_reply(patient):
    """Unread bytes would reset a connection that is closed immediately."""
    with socket.create_connection(("127.0.0.1", patient), timeout=60) as one:
        one.sendall(b"\x00\r\n\r\n")
        one.recv(1, socket.MSG_PEEK)
        one.sendall(WHOLE)
        one.shutdown(socket.SHUT_WR)
        assert rest(one).count(b"HTTP/1.1 400") == 1


def test_a_client_that_reads_nothing_is_disconnected():
    """An unread reply is dropped after a timeout; one that is read slowly is not."""

    class Opened:
        def __init__(self, takes):
            self.left, self.takes, self.aborted = 10**6, takes, asyncio.Event()
            self.cycle, self.transport = None, self

        def get_write_buffer_size(self):
            self.left -= self.takes
            return self.left

        def abort(self):
            self.aborted.set()

    async def run():
        dead, slow = Opened(0), Opened(1)
        limit = asyncio.create_task(close_slow_connections([dead, slow], 0.02))
        await dead.aborted.wait()
        limit.cancel()
        return slow

    slow = asyncio.run(run())
    assert slow.left < 10**6
    assert not slow.aborted.is_set()
