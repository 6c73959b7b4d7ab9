"""HTTP messages over ASGI: bodies of requests, answers, and the token that a request must carry.

`RequestBodies.read` takes the body of a request within bounds of size, time and memory; `respond`
sends an answer. Nothing here knows what requests ask for.
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

#: ASGI's functions of a request, by which its messages are received and those of its answer sent.
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
#: Status, headers and body of an answer.
Response = tuple[int, Any, bytes]

JSON = ((b"content-type", b"application/json"),)
#: Header of an answer that is sent before the request's body has come, which ends the connection.
CLOSE = (b"connection", b"close")
#: Seconds for which the rest of a refused body is read and dropped, so that its client gets to the
#: answer: bytes that come to a closed socket reset the connection.
LINGER_SECONDS = 5.0
#: Bodies of the largest size for which there is memory at a time, on all connections together.
_MAX_LARGE_BODIES = 64

_ENCODER = msgspec.json.Encoder()
_ENCODINGS = (b"identity", b"gzip", b"deflate")
#: Window bits with which zlib reads the headers of gzip and of zlib (deflate), whichever there is.
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
    """Raise 401 where a request lacks the token; the time it takes does not depend on the token."""
    kind, _, given = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), token):
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
    """Return headers and body of an answer, compressed where the client takes gzip.

    Bodies of fewer than `min_bytes` bytes, and those that gzip does not make smaller, stay.
    """
    if len(body) < min_bytes:
        return headers, body
    # Caches must not give a compressed answer to a client that takes none.
    headers = (*headers, (b"vary", b"accept-encoding"))
    if not _accepts_gzip(request_headers.get(b"accept-encoding", b"")):
        return headers, body
    # The fastest level: a higher one takes more time than the bytes that it saves.
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
    """Send an answer, to a HEAD request without its body.

    Where the rest of the request's body is `unread`, the connection stays open until it has come,
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
    """Reader of requests' bodies, which come in pieces, with bounds of size, time and memory.

    Parameters
    ----------
    max_bytes : int
        Size of one body. All bodies that are held at a time may take 64 times as much: a client
        could otherwise begin one on each of its connections, and fill the memory.
    seconds : float
        Time that a body may take to arrive; it may get up to a quarter more.
    """

    def __init__(self, max_bytes: int, seconds: float) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._free_bytes = _MAX_LARGE_BODIES * max_bytes
        # Deadlines of the bodies that are being read, by the task that reads. All are looked at
        # together, periodically: a timer for each request would take a tenth of its time.
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        # Tasks that were cancelled for being late, rather than by somebody else.
        self._late: set[asyncio.Task[Any]] = set()
        self._is_watching = False

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes]) -> tuple[bytes, int]:
        """Return the whole body of a request, expanded, and the bytes to `release` after its use.

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
        # A body that says its length is refused before it is sent.
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
            # Cancelled by `_cancel_late`, and by nobody else as well: then it is a refusal.
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
        """Give back the memory of a body that is of no more use."""
        self._free_bytes += n_bytes

    def _cancel_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the tasks whose body has not come in time; look again while there are others."""
        now = loop.time()
        for task in [task for task, end in self._deadlines.items() if end <= now]:
            del self._deadlines[task]
            self._late.add(task)
            task.cancel()
        self._is_watching = bool(self._deadlines)
        if self._is_watching:
            loop.call_later(self._seconds / 4, self._cancel_late, loop)

    def _take_memory(self, n_bytes: int) -> None:
        """Count bytes of a body as held; raise 503 where all bodies together would be too large."""
        if n_bytes > self._free_bytes:
            raise RequestError(
                "Too many large requests are in progress: try again after a second, or send "
                "fewer rows at a time.",
                503,
                ((b"retry-after", b"1"), CLOSE),
            )
        self._free_bytes -= n_bytes

    def _expand(self, body: bytes) -> bytes:
        """Return a compressed body expanded; raise 413 where it would be larger than a body may."""
        expanded: list[bytes] = []
        left = self._max_bytes
        try:
            # A gzip file may be several, one behind the other (RFC 1952, 2.2).
            while body or not expanded:
                expander = zlib.decompressobj(_ANY_HEADER)
                # One byte more than there may be shows that the body is too large.
                expanded.append(expander.decompress(body, left + 1))
                left -= len(expanded[-1])
                if left < 0:
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
