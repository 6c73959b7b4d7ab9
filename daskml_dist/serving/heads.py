"""Heads of requests for inference, each read once: clients send the same bytes again and again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from daskml_dist.errors import RequestError

__all__ = ["Head", "Heads"]

#: Bytes of a head that is kept, and heads.
_LONGEST, _MOST = 2048, 1024
#: Headers that ask for more than an answer, or say in another way where the body ends.
_BESIDES = frozenset((b"connection", b"expect", b"transfer-encoding", b"upgrade"))


class Head(NamedTuple):
    """Head of a request for inference, found to be in order."""

    size: int
    """Bytes of the body."""
    path: str
    name: str
    version: str | None
    codec: ModuleType
    headers: dict[bytes, bytes]


class Heads:
    """Heads of requests by their bytes.

    Parameters
    ----------
    plain : callable
        ``plain(path, headers, size)`` is the head of a POST, or None, or raises RequestError:
        where something is wrong with it, or it needs more than one answer of a model.

    Notes
    -----
    Only what a parser of HTTP of its own finds to be one whole head is a head here, and only where
    nothing in it asks for more than the answer to a body of a known length. All else is None, and
    is for the connection's parser to read and to answer.
    """

    def __init__(self, plain: Callable[[str, dict[bytes, bytes], int], Head | None]) -> None:
        self._plain = plain
        self._known: dict[bytes, Head | None] = {}

    def __call__(self, data: bytes) -> Head | None:
        """The head of its bytes, the empty line at its end included."""
        try:
            return self._known[data]
        except KeyError:
            pass
        if len(data) > _LONGEST:
            return None
        if len(self._known) >= _MOST:  # of clients whose heads differ from request to request
            self._known.clear()
        found = self._known[data] = self._read(data)
        return found

    def _read(self, data: bytes) -> Head | None:
        import httptools

        reader = _Reader(httptools.HttpRequestParser)
        try:
            reader.parser.feed_data(data[:-1])
            if reader.whole:  # it ended before, and this is of its body
                return None
            reader.parser.feed_data(data[-1:])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return None
        length = reader.headers.get(b"content-length", b"")
        if (
            not (reader.whole and reader.plain)
            or not reader.headers.keys().isdisjoint(_BESIDES)
            or not (length.isdigit() and len(length) < 12)
            or not reader.url.isascii()
            or not reader.url.startswith(b"/")
            or any(mark in reader.url for mark in b"%?#")
        ):
            return None
        try:
            return self._plain(reader.url.decode(), reader.headers, int(length))
        except RequestError:  # the application tells
            return None


class _Reader:
    """Facts of a head, as a parser tells them."""

    def __init__(self, parser: Callable[[Any], Any]) -> None:
        self.parser = parser(self)
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.whole = self.plain = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        parser = self.parser
        self.whole = True
        self.plain = (
            parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
        )
