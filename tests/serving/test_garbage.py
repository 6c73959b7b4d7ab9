"""Random malformed requests get 4xx, 501 or a reply, and a following valid request succeeds."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace

import pytest

pytest.importorskip("msgspec", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("httptools", reason="the extra serve is not installed")
import pyarrow as pa
from uvicorn.server import ServerState

from daskml_dist.serving.connection import LimitedConnection
from tests.serving import test_connection as whole
from tests.serving.test_connection import GOOD, MODEL, X, answered, infer_inputs, replies, request

RAW = json.dumps(
    {
        "inputs": [
            {
                "name": "x",
                "shape": [2, 3],
                "datatype": "FP64",
                "parameters": {"binary_data_size": 48},
            }
        ]
    }
).encode()


def arrow():
    table, sink = pa.table({f"c{at}": X[:4, at] for at in range(3)}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


#: Valid requests, and one with invalid rows.
WHOLE = [
    GOOD,
    request(infer_inputs(X[:1, :2])),
    request(infer_inputs(X[:2], id="a", outputs=[{"name": "predict"}])),
    request({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT8", "data": [[1, 2, 3]]}]}),
    request(RAW + X[:2].tobytes(), f"Inference-Header-Content-Length: {len(RAW)}"),
    request(arrow(), "Content-Type: application/vnd.apache.arrow.stream"),
    request(b"", method="GET", path="/v2/models/m"),
    whole.CHUNKED + b"\r\n",
]
#: Inserted bytes.
TOKENS = [
    b"null", b"-1", b"1e999", b"NaN", b"9" * 20, b"9" * 5000, b"[", b"]", b"{", b"}", b'"', b"\xff",
    b"\0", b"\r\n", b"\r\n\r\n", b"\\ud800", b"BYTES", b"BOOL", b"FP16", b"..", b"%00",
    b"%2f", b"[]", b"chunked", b"Content-Length: 5\r\n", b"Content-Encoding: gzip\r\n",
    b"[" * 3000, b"true", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"2",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
]  # fmt: skip


def drawn(rng):
    """Return a randomly changed request; half of them keep a correct content length."""
    data = bytearray(rng.choice(WHOLE))
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, kind = rng.randrange(len(data) + 1), rng.random()
        if kind < 0.3 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind < 0.6:
            data[at : at + rng.choice([0, 0, 3, 20])] = rng.choice(TOKENS)
        elif kind < 0.75:
            del data[at : at + rng.randrange(1, 60)]
        elif kind < 0.9:
            other = rng.choice(WHOLE)
            begin = rng.randrange(len(other))
            data[at:at] = other[begin : begin + rng.randrange(1, 200)]
        else:
            data[at:at] = data[at : at + 40] * 30
    head, end, body = bytes(data).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if rng.random() < 0.5:
        right = b"Content-Length: %d" % len(body)
        lines = [right if one.startswith(b"Content-Length") else one for one in lines]
    return b"\r\n".join(lines) + end + body


def new_connection(one):
    """Return a new connection to an application."""
    connection = LimitedConnection(
        one.connection.config, ServerState(), {}, asyncio.get_running_loop()
    )
    found = SimpleNamespace(connection=connection, transport=whole.Transport())
    connection.connection_made(found.transport)
    return found


def check_garbage(seed, n_clients):
    rng = random.Random(seed)
    truth = MODEL.predict_proba(X[:1]).ravel().tolist()

    async def run():
        one = whole.opened(max_bytes=100_000)
        app, free, received_statuses = one.app, one.app._bodies._free_bytes, set()
        for _ in range(n_clients):
            sent = drawn(rng)
            garbage, good = new_connection(one), new_connection(one)
            for data in (sent[: len(sent) // 2], sent[len(sent) // 2 :]):
                if not garbage.transport.closed:
                    garbage.connection.data_received(data)
            good.connection.data_received(GOOD)
            ((status, body),) = replies(await answered(good, 1))
            assert status == 200, sent
            assert json.loads(body)["outputs"][0]["data"] == truth, sent
            written = garbage.transport.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
            statuses = [status for status, _ in replies(written)]
            # 501: a body with an unknown coding.
            assert all(status < 500 or status == 501 for status in statuses), (sent, written)
            received_statuses.update(statuses)
            garbage.transport.close()
            garbage.connection.connection_lost(None)
            while garbage.connection.tasks:
                await asyncio.sleep(0)
        assert app.batcher.waiting == 0
        assert app._bodies._free_bytes == free
        assert received_statuses >= {200, 400, 404, 405, 415, 422}

    asyncio.run(run())


def test_malformed_requests_are_refused():
    check_garbage(0, 600)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_malformed_requests_are_refused(seed):
    check_garbage(seed, 5000)
