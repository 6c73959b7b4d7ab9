"""HTTP messages over ASGI: request bodies, responses, and the token of requests.

`RequestBodies.read_body` reads the body of a request within limits of size, time and memory;
`respond` sends a response. This module does not depend on the content of requests.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from daskml_dist.errors import RequestError

#: ASGI's functions of a request, which receive its messages and send those of its response.
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
#: Status, headers and body of a response.
Response = tuple[int, Any, bytes]

JSON = ((b"content-type", b"application/json"),)
#: Header of a response sent before the request's body has arrived, which ends the connection.
CLOSE = (b"connection", b"close")
#: Seconds for which the rest of a refused body is read and dropped, so that its client can read the
#: response: bytes that arrive at a closed socket reset the connection.
LINGER_SECONDS = 5.0
#: Number of bodies of maximum size that fit in memory together, over all connections.
_MAX_LARGE_BODIES = 64

_ENCODER = msgspec.json.Encoder()
_ENCODINGS = (b"identity", b"gzip", b"deflate")
#: Window bits with which zlib accepts both gzip and zlib (deflate) headers.
_ANY_HEADER = 32 + zlib.MAX_WBITS


class ClientDisconnectedError(Exception):
    """The client has closed the connection, so no answer is sent."""


def encode_json(content: Any) -> bytes:
    """Return content as JSON in UTF-8."""
    body: bytes = _ENCODER.encode(content)
    return body


def encode_error(message: str) -> bytes:
    """Return the body of an error, in the form of the Open Inference Protocol."""
    return encode_json({"error": message})


def check_token(headers: Mapping[bytes, bytes], token: bytes) -> None:
    """Raise 401 if a request lacks the token; the time it takes does not depend on the token."""
    kind, _, credentials = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() != b"bearer" or not hmac.compare_digest(credentials.strip(), token):
        raise RequestError(
            "This server requires a token: send the header Authorization: Bearer TOKEN.",
            401,
            ((b"www-authenticate", b"Bearer"),),
        )


# --- answers -------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _accepts_gzip(accept_encoding: bytes) -> bool:
    """Return whether a header Accept-Encoding accepts gzip; "gzip;q=0" does not."""
    # Clients send one of a few values, so nearly all calls are answered from the cache.
    for entry in accept_encoding.lower().split(b","):
        name, *params = entry.replace(b" ", b"").split(b";")
        if name in (b"gzip", b"x-gzip", b"*"):
            return not any(p.startswith(b"q=") and not p[2:].strip(b"0.") for p in params)
    return False


def compress_response(
    request_headers: Mapping[bytes, bytes], headers: Headers, body: bytes, min_bytes: int
) -> tuple[Headers, bytes]:
    """Return headers and body of a response, compressed if the client accepts gzip.

    Bodies of fewer than `min_bytes` bytes, and those that gzip does not make smaller, are not
    changed.
    """
    if len(body) < min_bytes:
        return headers, body
    # Caches must not send a compressed response to a client that does not accept it.
    headers = (*headers, (b"vary", b"accept-encoding"))
    if not _accepts_gzip(request_headers.get(b"accept-encoding", b"")):
        return headers, body
    # The fastest level: higher ones take more time than the saved bytes.
    compressed = gzip.compress(body, compresslevel=1, mtime=0)
    if len(compressed) >= len(body):
        return headers, body
    return (*headers, (b"content-encoding", b"gzip")), compressed


async def respond(
    send: Send,
    status: int,
    headers: Headers,
    body: bytes,
    is_head: bool,
    unread: Receive | None = None,
) -> None:
    """Send a response; for a HEAD request, without its body.

    If the rest of the request's body is `unread`, the connection stays open until it has arrived,
    or for some seconds.
    """
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    body = b"" if is_head else body
    if unread is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (await unread()).get("more_body"):
                    pass
    await send({"type": "http.response.body", "body": body})


# --- bodies of requests --------------------------------------------------------------------------


class RequestBodies:
    """Reader of request bodies, which arrive in pieces, with limits of size, time and memory.

    Parameters
    ----------
    max_bytes : int
        Size of one body. All bodies held at the same time may take 64 times as much: a client could
        otherwise begin one on each of its connections, and fill the memory.
    seconds : float
        Time that a body may take to arrive; it may take up to a quarter more.
    """

    def __init__(self, max_bytes: int, seconds: float) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._free_bytes = _MAX_LARGE_BODIES * max_bytes
        # Deadlines of the bodies being read, by the reading task. All are checked together,
        # periodically: a timer per request would take a tenth of its time.
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        # Tasks that were cancelled for being late, and not for another reason.
        self._late: set[asyncio.Task[Any]] = set()
        self._is_watching = False

    async def read_body(
        self, receive: Receive, headers: Mapping[bytes, bytes]
    ) -> tuple[bytes, int]:
        """Return a request's whole body, decompressed, and the bytes to `release` after use.

        Raises RequestError (408, 413, 415, 400, 503) or ClientDisconnectedError.
        """
        encoding = headers.get(b"content-encoding", b"identity")
        if encoding != b"identity" and (encoding := encoding.strip().lower()) not in _ENCODINGS:
            raise RequestError(
                f"The body's encoding {encoding[:40].decode(errors='replace')!r} is not "
                "supported: send gzip, deflate or none.",
                415,
                ((b"accept-encoding", b"gzip, deflate"), CLOSE),
            )
        # A body with a stated length is refused before it is sent.
        length = headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self._max_bytes:
            raise self._too_large()
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._deadlines[task] = loop.time() + self._seconds
        if not self._is_watching:
            self._is_watching = True
            loop.call_later(self._seconds / 4, self._cancel_late, loop)
        pieces: list[bytes] = []
        n_held, more_body = 0, True
        try:
            while more_body:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnectedError
                piece, more_body = message.get("body", b""), message.get("more_body", False)
                n_piece = len(piece)
                if n_held + n_piece > self._max_bytes:
                    raise self._too_large()
                self._take_memory(n_piece)
                n_held += n_piece
                pieces.append(piece)
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if encoding != b"identity":
                body = self._expand(body)
                self._take_memory(len(body))
                n_held += len(body)
        except asyncio.CancelledError:
            self.release(n_held)
            # Cancelled only by `_cancel_late`: then it is a refusal.
            if task not in self._late or task.uncancel() > 0:
                raise
            raise RequestError(
                f"The body did not come within {self._seconds:g} s: send it in time.", 408, (CLOSE,)
            ) from None
        except BaseException:
            self.release(n_held)
            raise
        finally:
            self._deadlines.pop(task, None)
            self._late.discard(task)
        return body, n_held

    def release(self, n_bytes: int) -> None:
        """Release the memory of a body that is no longer used."""
        self._free_bytes += n_bytes

    def _cancel_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the tasks whose body has not arrived in time; check again if others remain."""
        now = loop.time()
        for task in [task for task, end in self._deadlines.items() if end <= now]:
            del self._deadlines[task]
            self._late.add(task)
            task.cancel()
        self._is_watching = bool(self._deadlines)
        if self._is_watching:
            loop.call_later(self._seconds / 4, self._cancel_late, loop)

    def _take_memory(self, n_bytes: int) -> None:
        """Count bytes of a body as held; raise 503 if all bodies together would be too large."""
        if n_bytes > self._free_bytes:
            raise RequestError(
                "Too many large requests are in progress: try again after a second, or send "
                "fewer rows at a time.",
                503,
                ((b"retry-after", b"1"), CLOSE),
            )
        self._free_bytes -= n_bytes

    def _expand(self, body: bytes) -> bytes:
        """Return a decompressed body; raise 413 if it would be larger than a body may be."""
        expanded: list[bytes] = []
        bytes_left = self._max_bytes
        try:
            # A gzip file may have several members (RFC 1952, 2.2).
            while body or not expanded:
                expander = zlib.decompressobj(_ANY_HEADER)
                # One byte more than allowed shows that the body is too large.
                expanded.append(expander.decompress(body, bytes_left + 1))
                bytes_left -= len(expanded[-1])
                if bytes_left < 0:
                    raise self._too_large()
                if not expander.eof:
                    raise zlib.error("it ends too early")
                body = expander.unused_data
        except zlib.error as error:
            raise RequestError(
                f"The body does not match its Content-Encoding ({error}): send a valid gzip or "
                "deflate body, or omit that header.",
                400,
            ) from error
        return b"".join(expanded)

    def _too_large(self) -> RequestError:
        """Return the error of a body that is too large."""
        # The rest of the body is not read, so the connection cannot be used again.
        return RequestError(
            f"The body is larger than {self._max_bytes} bytes: send fewer rows at a time, as raw "
            "bytes or Arrow, or serve with a larger limit.",
            413,
            (CLOSE,),
        )
