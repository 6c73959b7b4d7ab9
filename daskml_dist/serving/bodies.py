"""Bodies of requests: how long one may be, and take to come, and how many may be held at a time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from daskml_dist.errors import RequestError
from daskml_dist.serving.http import CLOSE, ClientDisconnectedError, Receive

__all__ = ["Bodies"]

_T = TypeVar("_T")
#: Bodies of the largest size that are held at a time, whether they come or wait for an answer.
_AT_ONCE = 64
#: Encodings of bodies that are known.
_ENCODINGS = (b"identity", b"gzip", b"deflate")
#: Window bits by which zlib reads the headers of gzip and of zlib (deflate), whichever there is.
_ANY_HEADER = 32 + zlib.MAX_WBITS


class Bodies:
    """Bodies that come in pieces over many connections.

    Parameters
    ----------
    max_bytes : int
        Of a body. All that are held at a time have room for 64 of these: a client could otherwise
        begin one on each of its connections, and fill the memory.
    seconds : float
        That a body may take; it has a quarter more at most.
    """

    def __init__(self, max_bytes: int, seconds: float) -> None:
        self._max_bytes = max_bytes
        self._free = _AT_ONCE * max_bytes
        self._deadlines = _Deadlines(seconds)

    @asynccontextmanager
    async def of(self, receive: Receive, headers: Mapping[bytes, bytes]) -> AsyncIterator[bytes]:
        """The whole body of a request, whose room is held until the block ends.

        One that is compressed (``Content-Encoding: gzip`` or ``deflate``) is expanded.
        """
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in _ENCODINGS:
            raise RequestError(
                f"The body's encoding {encoding[:40].decode(errors='replace')!r} is not known: "
                "send gzip, deflate or none.",
                415,
                ((b"accept-encoding", b"gzip, deflate"), CLOSE),
            )
        told = headers.get(b"content-length")
        if told is not None and told.isdigit() and int(told) > self._max_bytes:
            raise self._too_large()
        pieces: list[bytes] = []
        try:
            await self._deadlines.within(self._come(receive, pieces))
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if encoding != b"identity":
                body = self._expanded(body)
                pieces.append(body)  # its room is held too
                if len(body) > self._free:
                    pieces.pop()
                    raise _no_room()
                self._free -= len(body)
            yield body
        finally:
            self._free += sum(map(len, pieces))

    async def _come(self, receive: Receive, pieces: list[bytes]) -> None:
        left, is_more = self._max_bytes, True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            piece, is_more = message.get("body", b""), message.get("more_body", False)
            left -= len(piece)
            if left < 0:
                raise self._too_large()
            if len(piece) > self._free:
                raise _no_room()
            self._free -= len(piece)
            pieces.append(piece)

    def _expanded(self, body: bytes) -> bytes:
        """Expand a compressed body, but for one that would grow larger than a body may be."""
        found: list[bytes] = []
        left = self._max_bytes
        try:
            while body or not found:  # files of gzip may follow each other
                expander = zlib.decompressobj(_ANY_HEADER)
                # A byte more than there may be tells that it is too large.
                found.append(expander.decompress(body, left + 1))
                left -= len(found[-1])
                if left < 0:
                    raise self._too_large()
                if not expander.eof:
                    raise zlib.error("it ends too early")
                body = expander.unused_data
        except zlib.error as error:
            raise RequestError(
                f"The body is not what its Content-Encoding tells ({error}): send it as gzip or "
                "deflate make it, or without that header.",
                400,
            ) from error
        return b"".join(found)

    def _too_large(self) -> RequestError:
        # What is still to come of the body is not read, so the connection cannot be used again.
        return RequestError(
            f"The body is larger than {self._max_bytes} bytes: send fewer rows at a time, as raw "
            "bytes or Arrow, or serve with a larger limit.",
            413,
            (CLOSE,),
        )


def _no_room() -> RequestError:
    return RequestError(
        "Too many large bodies are on their way: try again after a second, or send fewer rows at a "
        "time.",
        503,
        ((b"retry-after", b"1"), CLOSE),
    )


class _Deadlines:
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
        """Result of what is waited for, where it comes in time."""
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
