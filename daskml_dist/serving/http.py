"""Bodies and answers over ASGI, and who may ask."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from daskml_dist.errors import RequestError

__all__ = [
    "CLOSE",
    "JSON",
    "LINGER",
    "Deadlines",
    "Gone",
    "Receive",
    "Send",
    "body_of",
    "check_token",
    "error_body",
    "json_body",
    "respond",
]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_T = TypeVar("_T")
Headers = Iterable[tuple[bytes, bytes]]

JSON = ((b"content-type", b"application/json"),)
#: Header of refusals before a body has come, whose connection cannot be used again.
CLOSE = (b"connection", b"close")
_ENCODER = msgspec.json.Encoder()
#: Seconds for which the rest of what is refused is passed over.
LINGER = 5.0


class Gone(Exception):
    """The client has left, and nobody waits for an answer."""


def json_body(told: Any) -> bytes:
    """Body of JSON of what it is made of."""
    body: bytes = _ENCODER.encode(told)
    return body


def error_body(message: str) -> bytes:
    """A refusal, as the protocol has it."""
    return json_body({"error": message})


class Deadlines:
    """Ends of the time that bodies have to come: one look a while at all of them.

    A timer for each request would cost a tenth of it.

    Parameters
    ----------
    seconds : float
        That a body may take; it has a quarter more at most.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._looks = False

    async def within(self, waited: Awaitable[_T]) -> _T:
        """Result of what is waited for, where it comes in time.

        Raises
        ------
        RequestError
            408: it does not.
        """
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._ends[task] = loop.time() + self.seconds
        if not self._looks:
            self._looks = True
            loop.call_later(self.seconds / 4, self._look, loop)
        try:
            return await waited
        except asyncio.CancelledError:
            if task not in self._late or task.uncancel() > 0:  # somebody else ends the task
                raise
            raise RequestError(
                f"The body did not come within {self.seconds:g} s: send it at once.", 408, (CLOSE,)
            ) from None
        finally:
            self._ends.pop(task, None)
            self._late.discard(task)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, end in self._ends.items() if end <= now]:
            del self._ends[task]
            self._late.add(task)
            task.cancel()
        self._looks = bool(self._ends)
        if self._looks:
            loop.call_later(self.seconds / 4, self._look, loop)


async def body_of(
    receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int, deadlines: Deadlines
) -> bytes:
    """The whole body of a request.

    Raises
    ------
    RequestError
        413: it is larger than `max_bytes`; 408: it did not come in time.
    Gone
    """
    told = headers.get(b"content-length")
    if told is not None and told.isdigit() and int(told) > max_bytes:
        raise _too_large(max_bytes)
    message = await deadlines.within(receive())
    if message["type"] == "http.disconnect":
        raise Gone
    body: bytes = message.get("body", b"")
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    if not message.get("more_body"):
        return body
    return await deadlines.within(_rest(receive, body, max_bytes))


async def _rest(receive: Receive, first: bytes, max_bytes: int) -> bytes:
    pieces, size = [first], len(first)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body"):
            return b"".join(pieces)


def _too_large(max_bytes: int) -> RequestError:
    # What is still to come of the body is not read, so the connection cannot be used again.
    return RequestError(
        f"The body is larger than {max_bytes} bytes: send fewer rows at a time, as raw bytes or "
        "Arrow, or serve with a larger limit.",
        413,
        (CLOSE,),
    )


def check_token(headers: Mapping[bytes, bytes], token: bytes) -> None:
    """Truth of a request's carrying the token, in a time that does not depend on the token.

    Raises
    ------
    RequestError
        401
    """
    kind, _, given = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), token):
        raise RequestError(
            "This server wants a token: send the header Authorization: Bearer TOKEN.",
            401,
            ((b"www-authenticate", b"Bearer"),),
        )


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
