"""Connections of the server: uvicorn's, with limits on the size and slowness of requests.

`LimitedConnection` is uvicorn's protocol class over httptools, so parsing, keep-alive, pipelining
and flow control are uvicorn's. This module adds features that uvicorn leaves to a proxy in front of
it: heads of bounded size, requests that are read no faster than they are answered, refusals in JSON
that reach the client, and closing the connections of slow clients (`close_slow_connections`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from daskml_dist.serving.http_messages import LINGER_SECONDS, encode_error

#: A request whose head is larger is refused; nginx and Apache take 32 and 64 KiB.
MAX_HEAD_BYTES = 65_536
#: Bytes that are parsed at a time. All requests that begin in these are in memory together, and
#: take some kilobytes each, however short; a usual request of one row is smaller than this limit.
PARSED_AT_ONCE = 4096
#: Seconds of parsing after which the event loop serves other connections.
PARSE_SECONDS = 0.005


class LimitedConnection(HttpToolsProtocol):
    """Connection of uvicorn with bounded heads and refusals in JSON, which ignores upgrades.

    While a request waits for the answer to an earlier one, the bytes after it stay unparsed: once
    parsed, a request of twenty bytes takes some kilobytes. Bytes that take long to parse, such as
    chunks of one byte, are left to the next iteration of the event loop. An application may have a
    method ``count_refusal(status, body, client)``, which is called for each refusal made here.
    """

    head_bytes = 0  # of the current head, or of other bytes that are not a body
    body_left = 0  # remaining bytes of a body of known length
    is_in_head = False  # a request has begun, but its head has not ended
    is_refused = False  # nothing more is parsed

    # --- called by the transport -----------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Begin with an empty buffer, and with flow control that can throttle the client."""
        super().connection_made(transport)
        self.flow: Any = _HoldingFlow(transport)
        self._unparsed = b""
        self._is_half_closed = False  # the client sends nothing more, but may still read
        self._next_turn: asyncio.Handle | None = None
        self._in_turn: Any = None  # the request being answered; `cycle` is the newest one

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the request being answered that its client has disconnected, and end."""
        # uvicorn notifies only the newest request, which may still wait for an earlier one.
        self._unparsed = b""
        if self._next_turn is not None:
            self._next_turn.cancel()
        self.pipeline.clear()
        if self._in_turn is not None and not self._in_turn.response_complete:
            self._in_turn.disconnected = True
            self._in_turn.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, or keep them until they can be parsed."""
        if self.is_refused:
            return
        self._unset_keepalive_if_required()
        # Nearly all requests of few rows arrive complete, and are parsed without a copy.
        if self._unparsed or self.pipeline or len(data) > PARSED_AT_ONCE:
            self._unparsed += data
            if self._next_turn is None:
                self._parse_in_pieces()
        else:
            self._parse(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's is None alone
        """Return whether to stay open for answers, though the client sends nothing more.

        A connection of TLS cannot be closed by halves: it ends.
        """
        cycle, self._is_half_closed = self.cycle, True
        # Requests that are still unparsed are answered first.
        if self._unparsed and self.scheme == "http":
            return True
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme != "http":
            return False
        cycle.keep_alive = False
        return True

    # --- parsing ---------------------------------------------------------------------------------

    def _parse_in_pieces(self) -> None:
        """Parse the bytes kept so far until a request waits for another, or time is up."""
        data, offset, end = memoryview(self._unparsed), 0, time.perf_counter() + PARSE_SECONDS
        self._next_turn = None
        while offset < len(data) and not (self.pipeline or self.is_refused):
            if offset and time.perf_counter() >= end:
                self._next_turn = self.loop.call_soon(self._parse_in_pieces)
                break
            # The bytes of a body do not start requests: all remaining ones are parsed together.
            size = max(PARSED_AT_ONCE, self.body_left)
            self._parse(data[offset : offset + size])
            offset += size
        self._unparsed = b"" if self.is_refused else self._unparsed[offset:]
        self.flow.hold(bool(self._unparsed))
        if self._is_half_closed and not (self._unparsed or self.eof_received()):
            self.transport.close()

    def _parse(self, data: Any) -> None:
        """Parse bytes, which calls the callbacks below; refuse them if they are not HTTP."""
        # The callbacks set this to 0 at the end of a head, and for each piece of a body.
        self.head_bytes += len(data)
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])
                continue
            except httptools.HttpParserError:
                self.refuse(b"400 Bad Request", "This is not an HTTP/1.1 request: send one.")
            break
        if self.head_bytes > MAX_HEAD_BYTES:
            self.refuse(
                b"431 Request Header Fields Too Large",
                f"The request head is larger than {MAX_HEAD_BYTES} bytes: send less.",
            )

    def _without_upgrade(self, remaining_bytes: bytes) -> bytes:
        """Return the head just read without its upgrade request, and the following bytes.

        A server may answer in HTTP/1.1 (RFC 9110, 7.8). Some clients, such as Java's, request
        HTTP/2 in every first request; the parser stops after such a head, and parses no body.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.refuse(b"405 Method Not Allowed", "This server is not a proxy: send GET or POST.")
            return b""
        lines = [b"%b %b HTTP/1.1\r\n" % (method, self.url)]
        for name, value in self.headers:
            # The header Connection names Upgrade too: keep only its tokens about the connection.
            if name == b"connection":
                tokens = [word.strip() for word in value.lower().split(b",")]
                value = b", ".join(word for word in tokens if word in (b"close", b"keep-alive"))
            if name != b"upgrade" and (value or name != b"connection"):
                lines.append(b"%b: %b\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        return b"".join([*lines, b"\r\n", remaining_bytes])

    # --- callbacks of the parser -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the application, unless the head must be read again or the request is refused."""
        self.head_bytes = self.body_left = 0
        self.is_in_head = False
        encodings = []
        for name, value in self.headers:
            if name == b"content-length":
                self.body_left = int(value)
            elif name == b"transfer-encoding":
                encodings.append(value)
        if encodings and b",".join(encodings).strip().lower() != b"chunked":
            self.refuse(
                b"501 Not Implemented",
                "Only chunked Transfer-Encoding is supported: send no other.",
            )
        # A head that requests an upgrade is parsed again without it (`_without_upgrade`).
        if not (self.is_refused or self.parser.should_upgrade()):
            super().on_headers_complete()
            # Trailers after a chunked body are not headers of the request.
            self.headers = []

    def on_body(self, body: bytes) -> None:
        """Receive a piece of a body."""
        self.head_bytes = 0
        self.body_left -= len(body)
        if not self.is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body of a request."""
        self.head_bytes = 0
        if not (self.is_refused or self.parser.should_upgrade()):
            super().on_message_complete()

    # --- answers ---------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the application on a request, and store the request."""
        self._in_turn = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Continue with the next request, or end."""
        super().on_response_complete()
        if self._unparsed and self._next_turn is None and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._parse_in_pieces()
        if self.is_refused and self.timeout_keep_alive_task is not None:
            self._linger()

    def is_waiting(self) -> bool:
        """Return whether the connection waits only for more bytes of a request."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and (self.timeout_keep_alive_task is None or self.is_in_head)

    def refuse(self, status: bytes, message: str) -> None:
        """Send an error and end the connection, or end it after the answers to earlier requests."""
        if self.is_refused or self.transport.is_closing():
            return
        self.is_refused = True
        cycle = self.cycle
        is_under_way = cycle is not None and not cycle.response_complete
        if is_under_way and (self.pipeline or cycle.response_started or not cycle.more_body):
            # The client would take an error sent now for the answer to an earlier request.
            if cycle.more_body and self.pipeline:
                self.pipeline.popleft()  # the request whose body is damaged
            return
        # An application that still waits for the body is notified that its client has left.
        if is_under_way:
            cycle.disconnected = True
            cycle.message_event.set()
        body = encode_error(message)
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        count_refusal = getattr(self.config.app, "count_refusal", None)
        if count_refusal is not None:
            count_refusal(int(status[:3]), body, self.client)
        self._linger()

    def _linger(self) -> None:
        """Close the sending half now, and the other half when the client does, or after a while.

        Bytes that arrive at a closed connection reset it, possibly before the client has read its
        answer.
        """
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        try:
            self.transport.write_eof()
        except OSError:  # the client has left
            self.transport.abort()
        else:
            self.loop.call_later(LINGER_SECONDS, self.transport.close)


class _HoldingFlow(FlowControl):
    """Flow control that stops reading from the client while some of its bytes are unparsed."""

    _is_holding = False

    def hold(self, is_holding: bool) -> None:
        """Stop or resume reading from the client."""
        if is_holding:
            self._is_holding = True
            self.pause_reading()
        elif self._is_holding:
            self._is_holding = False
            self.resume_reading()

    def resume_reading(self) -> None:
        """Resume reading from the client, as uvicorn requests, unless bytes are held here."""
        if not self._is_holding:
            super().resume_reading()


async def close_slow_connections(connections: Collection[Any], seconds: float) -> None:
    """Close connections whose head does not arrive, or whose answer is not read, in `seconds`.

    It does not return. All connections are checked four times in `seconds`: a timer per request
    would take longer than parsing it. A client therefore has up to a quarter more time.
    """
    loop = asyncio.get_running_loop()
    # For each connection that waits for its client: its progress, and since when.
    since: dict[Any, tuple[Any, float]] = {}
    while True:
        await asyncio.sleep(seconds / 4)
        now, previous, since = loop.time(), since, {}
        for connection in list(connections):
            n_unread = connection.transport.get_write_buffer_size()
            if not n_unread and not connection.is_waiting():
                continue
            # A client makes progress if it begins another request, or has read some bytes.
            progress, began = (connection.cycle, n_unread), now
            if connection in previous and previous[connection][0] == progress:
                began = previous[connection][1]
            since[connection] = progress, began
            if now - began < seconds:
                continue
            # An unread answer would keep its memory; for an incomplete head, send a refusal that
            # the client may read; a connection without a request is closed.
            if n_unread:
                connection.transport.abort()
            elif connection.is_in_head:
                connection.refuse(
                    b"408 Request Timeout",
                    f"The head of the request did not come within {seconds:g} s: send it in time.",
                )
            else:
                connection.transport.close()
