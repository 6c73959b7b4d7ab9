"""Limits of connections: on heads, on requests read ahead, and on the time of whoever is slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from daskml_dist.serving.http import LINGER, error_body

__all__ = ["MOST_HEAD_BYTES", "Limited", "close_slow"]

#: Bytes of a request's head, beyond which it is refused; those of one piece more at most.
MOST_HEAD_BYTES = 65_536
#: Bytes that are parsed at a time: all requests that begin in these may be under way at once.
_PIECE = 4096
#: Seconds of parsing after which the event loop has a turn for all else.
_TURN = 0.005


class Limited(HttpToolsProtocol):
    """A connection of uvicorn's that bounds heads, passes over upgrades, and refuses in JSON.

    What comes behind a request that waits for another's answer is kept as it came: parsed, a
    request of twenty bytes takes some kilobytes. So is what takes long to parse, such as chunks of
    a byte, until the loop's next turn. An application that has a method ``refused(status, body,
    client)`` is told of each answer that is given here.
    """

    head_bytes = 0
    body_left = 0  # bytes that are still to come of a body of a known length
    is_refused = False

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(transport)
        self.flow: Any = _Flow(transport)
        self._ahead = b""
        self._is_ended = False
        self._next_turn: asyncio.Handle | None = None
        self._answered: Any = None  # the request whose turn it is

    def connection_lost(self, exc: Exception | None) -> None:
        """End; the request whose turn it is need not be the one that came last."""
        self._ahead = b""
        if self._next_turn is not None:
            self._next_turn.cancel()
        self.pipeline.clear()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        if not self.is_refused:
            self._unset_keepalive_if_required()
            self._ahead = self._ahead + data if self._ahead else data
            if self._next_turn is None:
                self._read_on()

    def _read_on(self) -> None:
        """Parse what has come, until a request waits behind another, or the loop has its turn."""
        data, at, end = memoryview(self._ahead), 0, time.perf_counter() + _TURN
        self._next_turn = None
        while at < len(data) and not (self.pipeline or self.is_refused):
            if at and time.perf_counter() >= end:
                self._next_turn = self.loop.call_soon(self._read_on)
                break
            size = max(_PIECE, self.body_left)
            self._parse(data[at : at + size])
            at += size
        self._ahead = b"" if self.is_refused else self._ahead[at:]
        self.flow.hold(bool(self._ahead))
        if self._is_ended and not (self._ahead or self.eof_received()):
            self.transport.close()

    def _parse(self, data: Any) -> None:
        """Parse bytes; of those that are neither a body nor the end of a head only so many."""
        self.head_bytes += len(data)
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as told:
                data = self._without_upgrade(data[told.args[0] :])
                continue
            except httptools.HttpParserError:
                self.refuse(b"400 Bad Request", "This is no request of HTTP/1.1: send one.")
            break
        if self.head_bytes > MOST_HEAD_BYTES:
            self.refuse(
                b"431 Request Header Fields Too Large",
                f"The head of the request is larger than {MOST_HEAD_BYTES} bytes: send less.",
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes behind a body is none."""
        if self.is_in_head():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a request; one that asks for another protocol is read anew, without its asking."""
        self.head_bytes = 0
        lengths = (int(value) for name, value in self.headers if name == b"content-length")
        self.body_left = next(lengths, 0)
        coded = [value for name, value in self.headers if name == b"transfer-encoding"]
        if coded and b",".join(coded).strip().lower() != b"chunked":
            self.refuse(
                b"501 Not Implemented",
                "Bodies are read as they are, or chunked: send no other Transfer-Encoding.",
            )
        if not (self.is_refused or self.parser.should_upgrade()):
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self.head_bytes = 0
        self.body_left -= len(body)
        if not self.is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body of a request."""
        self.head_bytes = 0
        if not (self.is_refused or self.parser.should_upgrade()):
            super().on_message_complete()

    def _without_upgrade(self, behind: bytes) -> bytes:
        """Bytes to be read in place of a head that asks for an upgrade, and those behind it.

        A server may answer in HTTP/1.1 (RFC 9110, 7.8). Some clients ask for HTTP/2 in every first
        request, Java's own for one; the parser stops behind such a head, and takes no body.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.refuse(b"405 Method Not Allowed", "This is no proxy: send GET or POST.")
            return b""
        lines = [b"%b %b HTTP/1.1\r\n" % (method, self.url)]
        for name, value in self.headers:
            if name == b"connection":
                words = [one.strip() for one in value.lower().split(b",")]
                value = b", ".join(one for one in words if one in (b"close", b"keep-alive"))
            if name != b"upgrade" and (value or name != b"connection"):
                lines.append(b"%b: %b\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        return b"".join([*lines, b"\r\n", behind])

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's is None alone
        """Answer what has come, though its client sends no more (in TLS there is no such state)."""
        cycle, self._is_ended = self.cycle, True
        if self._ahead and self.scheme == "http":  # it is read when its turn comes
            return True
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme != "http":
            return False
        cycle.keep_alive = False
        return True

    def is_in_head(self) -> bool:
        """Return whether a head has begun, and not ended."""
        if self.cycle is None:
            return self.headers is not None
        return self.headers is not self.cycle.scope["headers"]

    def is_waiting(self) -> bool:
        """Say if nothing but bytes of the client is waited for, and not for a next request."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and (self.timeout_keep_alive_task is None or self.is_in_head())

    def refuse(self, status: bytes, message: str) -> None:
        """End the connection with an answer, or after those of the requests that came before."""
        if self.is_refused or self.transport.is_closing():
            return
        self.is_refused = True
        cycle = self.cycle
        under_way = cycle is not None and not cycle.response_complete
        if under_way and (self.pipeline or cycle.response_started or not cycle.more_body):
            # An answer now would be taken for one to these.
            if cycle.more_body and self.pipeline:
                self.pipeline.popleft()  # whose body is damaged
            return
        if under_way:  # the application is told that its client has left
            cycle.disconnected = True
            cycle.message_event.set()
        body = error_body(message)
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        told = getattr(self.config.app, "refused", None)
        if told is not None:
            told(int(status[:3]), body, self.client)
        self._linger()

    def on_response_complete(self) -> None:
        """Go on to the next request, or to the end."""
        super().on_response_complete()
        if self._ahead and self._next_turn is None and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._read_on()
        if self.is_refused and self.timeout_keep_alive_task is not None:
            self._linger()

    def _linger(self) -> None:
        """End this half of the connection, and the other once the client does, or a while after.

        What is still to come would reset a closed connection before the client reads its answers.
        """
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        try:
            self.transport.write_eof()
        except OSError:  # it has left
            self.transport.abort()
        else:
            self.loop.call_later(LINGER, self.transport.close)


class _Flow(FlowControl):
    """Control of a connection's flow, of which nothing is read while bytes of it are held."""

    _holds = False

    def hold(self, holds: bool) -> None:
        """Read nothing until there is nothing to hold."""
        if holds:
            self._holds = True
            self.pause_reading()
        elif self._holds:
            self._holds = False
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._holds:
            super().resume_reading()


async def close_slow(connections: Collection[Any], seconds: float) -> None:
    """Close connections, without end, whose heads do not come, or whose answers are not taken.

    One look a while at all of them: a timer for each request would cost more than the request's
    parsing.
    """
    loop = asyncio.get_running_loop()
    since: dict[Any, tuple[Any, float]] = {}
    while True:
        await asyncio.sleep(seconds / 4)
        now, before, since = loop.time(), since, {}
        for one in list(connections):
            unread = one.transport.get_write_buffer_size()
            if not unread and not one.is_waiting():
                continue
            # It stands still as long as it is in the same request with as much to be read.
            standing, began = (one.cycle, unread), now
            if one in before and before[one][0] == standing:
                began = before[one][1]
            since[one] = standing, began
            if now - began < seconds:
                continue
            if unread:
                one.transport.abort()
            elif one.is_in_head():
                _refuse_slow(one, seconds)
            else:
                one.transport.close()


def _refuse_slow(one: Limited, seconds: float) -> None:
    words = f"The head of the request did not come within {seconds:g} s: send it at once."
    one.refuse(b"408 Request Timeout", words)
