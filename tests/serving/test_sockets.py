"""Clients that misbehave on their sockets, with one that does not between them."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("httptools", reason="the extra serve is not installed")

import uvicorn

from daskml_dist.linear_model import LogisticRegression
from daskml_dist.serving.app import App
from daskml_dist.serving.connection import Connection
from tests.serving.stand_ins import Metrics, Models, tensor

POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
GOOD = json.dumps({"inputs": [tensor(np.ones((1, 3)))]}).encode()
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD

#: What is sent, and how the answer begins; none: the client leaves without one.
CLIENTS = {
    "no HTTP": (b"\x16\x03\x01\x00garbage\r\n\r\n", b"HTTP/1.1 400"),
    "half a head": (POST, None),
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


@pytest.fixture
def port():
    X = np.random.default_rng(0).standard_normal((30, 3))
    model = LogisticRegression().fit(X, X[:, 0] > 0)
    app = App(Models(m=model), Metrics(), max_bytes=10_000, body_seconds=0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app, loop="asyncio", http=Connection, ws="none", log_config=None, timeout_keep_alive=60
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.001)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def infer(one: socket.socket) -> int:
    """The status of the answer to a good request, sent whole: its body has little time to come."""
    one.sendall(WHOLE)
    return read(one)


def read(one: socket.socket) -> int:
    reply = http.client.HTTPResponse(one)
    reply.begin()
    assert reply.read()
    return reply.status


def test_who_misbehaves_disturbs_nobody(port):
    good = socket.create_connection(("127.0.0.1", port), timeout=60)
    opened = []
    for name, (sent, _) in CLIENTS.items():
        one = socket.create_connection(("127.0.0.1", port), timeout=60)
        one.sendall(sent)
        opened.append(one)
        assert infer(good) == 200, name
    for (name, (_, begins)), one in zip(CLIENTS.items(), opened, strict=True):
        if begins is not None:
            assert one.recv(100).startswith(begins), name
        one.close()
    good.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert read(good) == 200
    good.close()
