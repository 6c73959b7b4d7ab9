"""Answers over ASGI, and who may ask."""

from __future__ import annotations

import asyncio
import gzip
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from daskml_dist.errors import RequestError

__all__ = [
    "CLOSE",
    "JSON",
    "LINGER",
    "ClientDisconnectedError",
    "Receive",
    "Send",
    "check_token",
    "compress",
    "error_body",
    "json_body",
    "respond",
]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON = ((b"content-type", b"application/json"),)
#: Header of refusals before a body has come, whose connection cannot be used again.
CLOSE = (b"connection", b"close")
_ENCODER = msgspec.json.Encoder()
#: Seconds for which the rest of what is refused is passed over.
LINGER = 5.0


class ClientDisconnectedError(Exception):
    """The client has left, and nobody waits for an answer."""


def json_body(told: Any) -> bytes:
    """Body of JSON of what it is made of."""
    body: bytes = _ENCODER.encode(told)
    return body


def error_body(message: str) -> bytes:
    """A refusal, as the protocol has it."""
    return json_body({"error": message})


def check_token(headers: Mapping[bytes, bytes], token: bytes) -> None:
    """Truth of a request's carrying the token, in a time that does not depend on the token."""
    kind, _, given = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), token):
        raise RequestError(
            "This server wants a token: send the header Authorization: Bearer TOKEN.",
            401,
            ((b"www-authenticate", b"Bearer"),),
        )


@lru_cache(maxsize=256)
def _takes_gzip(accepted: bytes) -> bool:
    """Return whether a header Accept-Encoding takes gzip, which "gzip;q=0" does not."""
    for one in accepted.lower().split(b","):
        name, *params = one.replace(b" ", b"").split(b";")
        if name in (b"gzip", b"x-gzip", b"*"):
            return not any(p.startswith(b"q=") and not p[2:].strip(b"0.") for p in params)
    return False


def compress(
    asked: Mapping[bytes, bytes], headers: Headers, body: bytes, least: int
) -> tuple[Headers, bytes]:
    """Return the headers and the body of an answer, as gzip where its client takes that.

    Bodies of fewer than `least` bytes, and those that gzip does not make smaller, stay as they are.
    """
    if len(body) < least:
        return headers, body
    headers = (*headers, (b"vary", b"accept-encoding"))
    if not _takes_gzip(asked.get(b"accept-encoding", b"")):
        return headers, body
    # The fastest level: the time of a larger one is longer than that of its bytes on their way.
    smaller = gzip.compress(body, compresslevel=1, mtime=0)
    if len(smaller) >= len(body):
        return headers, body
    return (*headers, (b"content-encoding", b"gzip")), smaller


async def respond(
    send: Send,
    status: int,
    headers: Headers,
    body: bytes,
    bare: bool,
    unread: Receive | None = None,
) -> None:
    """Send an answer; `bare` without its body, which HEAD has not.

    Where the request's body is `unread`, the connection is closed once it has come, or after some
    seconds: to close it at once would reset it, and the client would not see why.
    """
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    body = b"" if bare else body
    if unread is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while (await unread()).get("more_body"):
                    pass
    await send({"type": "http.response.body", "body": body})
