"""Limits of connections: refusals are counted and logged, and slow parsing blocks no others."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

pytest.importorskip("msgspec", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("httptools", reason="the extra serve is not installed")

from daskml_dist.serving import connection
from tests.serving.test_connection import CHUNKED, GOOD, HEAD, answered, opened, replies

#: Bytes that are refused before they form a request, and the status.
REFUSED = {
    "no HTTP": (b"\x00\r\n\r\n", 400),
    "no end of a head": (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
    "a body that is coded": (CODED := CHUNKED.replace(b"chunked", b"gzip, chunked"), 501),
    "coded twice": (CHUNKED.replace(b"chunked", b"gzip\r\nTransfer-Encoding: chunked"), 501),
    "coded, behind another": (GOOD + CODED, 0),
}


@pytest.mark.parametrize("size", [7, 10**6])
@pytest.mark.parametrize(("sent", "status"), REFUSED.values(), ids=REFUSED)
def test_invalid_requests_are_counted_and_logged(sent, status, size, caplog):
    caplog.set_level(logging.INFO, "daskml_dist.serving.access")

    async def run():
        one = opened(access_log=True)
        for at in range(0, len(sent), size):
            if not one.transport.closed:
                one.connection.data_received(sent[at : at + size])
        while not one.transport.closed:
            await asyncio.sleep(0)
        return one.app.metrics.codes, replies(one.transport.written)

    codes, found = asyncio.run(run())
    if not status:  # a reply now would be taken for that of an earlier or later request
        assert [code for code, _ in found] in ([200], [200, 501])
        assert sum(codes.values()) == len(caplog.records) == len(found)
        return
    ((received_status, body),) = found
    assert received_status == status
    assert "send" in json.loads(body)["error"]
    assert codes == {("", "", status): 1}
    assert caplog.messages == [f'- "-" {status} {len(body)} 0.000000']


@pytest.mark.parametrize("name", ["chunked", "Chunked"])
def test_chunks_of_one_byte_do_not_block_the_loop(name, monkeypatch):
    """Their parsing is slow, and other connections must not wait for a whole read."""
    monkeypatch.setattr(connection, "PARSE_SECONDS", 0.0)
    body = GOOD[len(HEAD) :]
    body += b" " * (20_000 - len(body))
    head = CHUNKED.partition(b"\r\n\r\n")[0].replace(b"chunked", name.encode())
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)

    async def run():
        one, turns = opened(), 0
        one.connection.data_received(head + b"\r\n\r\n" + chunks + b"0\r\n\r\n" + GOOD)
        while one.connection._unparsed:
            assert one.transport.paused
            turns += 1
            await asyncio.sleep(0)
        assert turns >= len(chunks) // connection.PARSED_AT_ONCE
        assert not one.transport.paused
        assert [status for status, _ in replies(await answered(one, 2))] == [200, 200]
        # Nothing more is parsed after a disconnection.
        one.connection.data_received(head + b"\r\n\r\n" + chunks)
        one.transport.close()
        one.connection.connection_lost(None)
        assert one.connection._next_turn.cancelled()
        await answered(one, 3)

    asyncio.run(run())
