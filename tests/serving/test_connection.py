"""Connections: replies do not depend on how a stream of requests is split, and are in order."""

from __future__ import annotations

import asyncio
import gzip
import json
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("httptools", reason="the extra serve is not installed")

import uvicorn
from uvicorn.server import ServerState

from daskml_dist.linear_model import LogisticRegression
from daskml_dist.serving.app import App
from daskml_dist.serving.connection import LimitedConnection
from tests.serving.stand_ins import Metrics, Models, tensor

X = np.random.default_rng(0).standard_normal((30, 3))
MODEL = LogisticRegression().fit(X, X[:, 0] > 0)


def request(body, *lines, path="/v2/models/m/infer", method="POST"):
    """Return the bytes of a request."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: x", *lines]
    if method == "POST":
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


def infer_inputs(rows, **more):
    return {"inputs": [tensor(rows)], **more}


#: Requests of one connection, with the statuses of their replies.
STREAM = [
    (request(infer_inputs(X[:1], id="a")), 200),
    (request(infer_inputs(X[:2], outputs=[{"name": "predict"}, {"name": "predict_proba"}])), 200),
    (request(b"\x00garbage"), 400),
    (request(infer_inputs(X[:1, :2])), 422),
    (request(b"", method="GET", path="/v2/health/live"), 200),
    (request(infer_inputs(X[:1], outputs=[{"name": "fit"}])), 422),
    (request(infer_inputs(X[:1]), path="/v2/models/other/infer"), 404),
    (request(X[:1].tobytes(), "Content-Type: application/octet-stream"), 200),
    (request(b""), 400),
    (request(infer_inputs(X[:1]), "Content-Type: text/csv"), 415),
    (request(infer_inputs(X[:1]), path="/v2/models/m/versions/1/infer?x=1"), 200),
    (request(infer_inputs(X[:1]), path="/v2/models/m/infer"), 200),
    (request(infer_inputs(np.full((1, 3), np.nan))), 400),
    (request(infer_inputs(X[:3], id="z"), "Connection: close"), 200),
]


class Transport:
    """Transport that stores what a connection writes."""

    def __init__(self):
        self.written, self.closed, self.paused = b"", False, False

    def get_extra_info(self, name):
        return None

    def can_write_eof(self):
        return False

    def write(self, data):
        assert not self.closed
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False


def opened(model=MODEL, **settings):
    """Return a connection of an application, inside an event loop."""
    app = App(Models(m=model), Metrics(), **settings)
    kinds = {"http": LimitedConnection, "ws": "none", "timeout_keep_alive": 60}
    config = uvicorn.Config(app, log_config=None, **kinds)
    connection = LimitedConnection(config, ServerState(), {}, asyncio.get_running_loop())
    transport = Transport()
    connection.connection_made(transport)
    return SimpleNamespace(app=app, connection=connection, transport=transport)


async def answered(one, n):
    """Return the replies once there are `n` of them."""
    for _ in range(100):
        if one.transport.written.count(b"HTTP/1.1 ") >= n and not one.connection.tasks:
            break
        await asyncio.sleep(0)
    return one.transport.written


def replies(written):
    """Return the status and body of each reply."""
    found = []
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        found.append((int(lines[0].split()[1]), rest[:size]))
        written = rest[size:]
    return found


CUTS = {
    "one by one": lambda whole, ends: ends,
    "at once": lambda whole, ends: [],
    "head, then body": lambda whole, ends: sorted(
        [*ends, *(at + 4 for at in range(len(whole)) if whole[at : at + 4] == b"\r\n\r\n")]
    ),
    "every 7 bytes": lambda whole, ends: range(7, len(whole), 7),
    "every 300 bytes": lambda whole, ends: range(300, len(whole), 300),
    "a byte late": lambda whole, ends: [end + 1 for end in ends],
    "two and a half": lambda whole, ends: [(ends[at] + ends[at + 1]) // 2 for at in (1, 4, 7)],
    "now and then": lambda whole, ends: ends[:3] + ends[5:7] + [ends[8] - 1] + ends[9:],
}


@pytest.mark.parametrize("waits", [False, True], ids=["all sent", "each awaited"])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_replies_do_not_depend_on_splits_of_the_stream(cuts, together, waits):
    whole = b"".join(sent for sent, _ in STREAM)
    ends = np.cumsum([len(sent) for sent, _ in STREAM])[:-1].tolist()

    async def run():
        one = opened(together=together)
        at = 0
        for end in [*cuts(whole, ends), len(whole)]:
            one.connection.data_received(whole[at:end])
            at = end
            if waits:
                for _ in range(8):
                    await asyncio.sleep(0)
        found = replies(await answered(one, len(STREAM)))
        assert one.transport.closed
        assert not one.connection.tasks
        assert one.connection.server_state.total_requests == len(STREAM)
        return one, found

    one, found = asyncio.run(run())
    assert [status for status, _ in found] == [status for _, status in STREAM]
    answers = [json.loads(found[at][1]) for at in (0, 1, 13)]
    assert [one.get("id") for one in answers] == ["a", None, "z"]
    assert [one["outputs"][-1]["data"] for one in answers] == [
        MODEL.predict_proba(X[:n]).ravel().tolist() for n in (1, 2, 3)
    ]
    codes = one.app.metrics.codes
    assert codes["m", "1", 200] == sum(status == 200 for _, status in STREAM) - 1
    assert one.app.metrics.rows["m", "1"] == 1 + 2 + 1 + 1 + 1 + 3


def test_answers_of_whole_requests_are_compressed():
    whole = request(infer_inputs(X), "Accept-Encoding: gzip, deflate")

    async def run(**settings):
        one = opened(**settings)
        one.connection.data_received(whole)
        ((_, body),) = replies(await answered(one, 1))
        return one.transport.written, body

    _, plain = asyncio.run(run())
    written, body = asyncio.run(run(compress_from=100))
    assert b"content-encoding: gzip" in written
    assert gzip.decompress(body) == plain


def test_concurrent_requests_equal_separate_ones_bit_for_bit():
    """Whatever other requests share the iteration of the event loop."""
    rows = np.random.default_rng(1).standard_normal((150, 28)).astype(np.float32)
    model = LogisticRegression().fit(rows, rows[:, 0] > 0)

    async def run():
        connections = [opened(model=model) for _ in rows]
        app = connections[0].app
        calls = Mock(wraps=app.models.served["m"][0].predictor.each)
        app.models.served["m"][0].predictor.each = calls
        for one, row in zip(connections, rows, strict=True):
            one.connection.app = app
            one.connection.data_received(request({"inputs": [tensor(row[None], "FP32")]}))
        for one, row in zip(connections, rows, strict=True):
            ((status, body),) = replies(await answered(one, 1))
            (output,) = json.loads(body)["outputs"]
            assert status == 200
            assert output["data"] == model.predict_proba(row[None]).ravel().tolist()
        calls.assert_called_once()

    asyncio.run(run())


GOOD = request(infer_inputs(X[:1]))
HEAD = GOOD.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def test_requests_during_a_call_are_queued():
    async def run():
        one = opened(together=True)
        for _ in range(3):
            one.connection.data_received(GOOD)
        assert not one.transport.written
        assert len(replies(await answered(one, 3))) == 3
        one.connection.data_received(GOOD)
        one.connection.data_received(GOOD * 100)
        assert one.transport.paused
        one.connection.data_received(b"x" * 100)  # garbage after the requests
        while not one.transport.closed:
            await asyncio.sleep(0)
        assert [status for status, _ in replies(one.transport.written)] == [200] * 104

    asyncio.run(run())


LIVE = request(b"", method="GET", path="/v2/health/live")


@pytest.mark.parametrize("ends", [False, True])
def test_pipelined_requests_are_not_parsed_in_advance(ends):
    """Parsing thousands of pipelined requests in advance would take memory and block the loop."""

    async def run():
        one = opened()
        connection, transport = one.connection, one.transport
        connection.data_received(LIVE * 1000 + GOOD + LIVE[:9])
        if ends:
            assert connection.eof_received()
        most = 0
        while transport.written.count(b"HTTP/1.1 ") < 1001:
            most = max(most, len(connection.pipeline))
            assert transport.paused or not connection._unparsed
            await asyncio.sleep(0)
        assert most < 300
        assert not transport.paused
        found = replies(transport.written)
        assert json.loads(found[-1][1])["outputs"][0]["data"]
        if ends:
            assert transport.closed
        else:
            connection.data_received(LIVE[9:])
            assert len(replies(await answered(one, 1002))) == 1002

    asyncio.run(run())


CHUNKED = HEAD.replace(
    b"Content-Length: %d" % (len(GOOD) - len(HEAD)), b"Transfer-Encoding: chunked"
)
CHUNKED += b"%x\r\n%b\r\n0\r\n" % (len(GOOD) - len(HEAD), GOOD[len(HEAD) :])


def test_bytes_after_a_body_are_not_headers():
    async def run():
        one = opened()
        one.connection.data_received(CHUNKED + b"Content-Type: text/csv\r\n\r\n")
        ((status, _),) = replies(await answered(one, 1))
        assert status == 200
        one.connection.data_received(CHUNKED)
        for _ in range(3000):
            one.connection.data_received(b"X: %b\r\n" % (b"x" * 40))
        (_, (status, _)) = replies(await answered(one, 2))
        assert status == 431

    asyncio.run(run())


def test_nothing_is_written_to_a_disconnected_client(caplog):
    async def run():
        one = opened()
        one.connection.data_received(LIVE * 3)
        one.transport.close()
        one.connection.connection_lost(None)
        await answered(one, 3)

    asyncio.run(run())
    assert not caplog.records


def test_a_body_is_not_parsed_as_a_request():
    """A request is answered before its body, which contains another request, has arrived."""

    async def run():
        one = opened()
        head = request(GOOD, path="/nowhere")[: -len(GOOD)]
        one.connection.data_received(head)
        await answered(one, 1)
        one.connection.data_received(GOOD)
        one.connection.data_received(request(infer_inputs(X[:2], id="next")))
        found = replies(await answered(one, 2))
        assert [status for status, _ in found] == [404, 200]
        assert json.loads(found[1][1])["id"] == "next"

    asyncio.run(run())


def test_shutdown_waits_for_pending_replies():
    async def run():
        one, idle, gone = opened(together=True), opened(together=True), opened(together=True)
        one.connection.data_received(GOOD)
        gone.connection.data_received(GOOD)
        one.connection.shutdown()
        idle.connection.shutdown()
        assert not one.transport.closed
        assert idle.transport.closed
        gone.transport.close()
        gone.connection.connection_lost(None)
        written = await answered(one, 1)
        assert written.startswith(b"HTTP/1.1 200")
        assert b"connection: close\r\n" in written
        assert one.transport.closed
        assert not gone.transport.written

    asyncio.run(run())


def test_other_asgi_applications_are_served():
    async def plain(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def run():
        config = uvicorn.Config(plain, http=LimitedConnection, ws="none", log_config=None)
        connection = LimitedConnection(config, ServerState(), {}, asyncio.get_running_loop())
        one = SimpleNamespace(connection=connection, transport=Transport())
        connection.connection_made(one.transport)
        connection.data_received(GOOD)
        assert (await answered(one, 1)).startswith(b"HTTP/1.1 204")

    asyncio.run(run())
