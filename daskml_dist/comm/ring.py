"""Bytes from one process to another of the same host through a ring in shared memory.

One side writes and counts up the `head`, the other reads and counts up the `tail`; a frame may be
longer than the ring, since both work at once, a piece behind one another. The socket that the
ring was offered on carries nothing any more: its end of file is the end of the ring.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.comm.base import Wait
from daskml_dist.comm.life import SocketLife
from daskml_dist.comm.shared_memory import TOKEN, WORD, Bell, SharedSegment, Sleeper, fence, here
from daskml_dist.comm.socket import SEND_TIMEOUT, Inbox, Outbox, gone
from daskml_dist.comm.wire import Buffers
from daskml_dist.errors import CommunicationError, WaitTimeoutError

__all__ = ["RING_BYTES", "Offer", "Ring", "RingInbox", "RingOutbox", "accept_offer"]

_HEAD, _TAIL, _READER, _WRITER = 0, WORD, 2 * WORD, 3 * WORD
#: Bytes that may be on their way.
RING_BYTES = 1 << 22
#: Bytes after which the other side is told, so that it works on them meanwhile.
_PIECE = 1 << 18
#: Bytes from which a copy lets other threads run meanwhile.
_LARGE = 1 << 15
# place, process, descriptors of the memory and of both bells; digest of the token
_OFFER = struct.Struct("<qqqqq32s")
_NO = bytes(TOKEN)


@dataclass
class Ring:
    """Ring as both sides hold it, with the bell of the reader and that of the writer."""

    segment: SharedSegment
    reader: Bell
    writer: Bell


class Offer:
    """A new ring, as the caller of a socket offers it; empty where it cannot.

    Parameters
    ----------
    allowed : bool
        False offers nothing.
    """

    #: Bytes of an offer, and of the answer to it.
    SIZE, ANSWER = _OFFER.size, TOKEN

    def __init__(self, allowed: bool) -> None:
        self._ring: Ring | None = None
        self._memory = -1
        self.data = bytes(_OFFER.size)
        if not allowed:
            return
        try:
            segment, self._memory = SharedSegment.make(RING_BYTES)
            self._ring = ring = Ring(segment, Bell.make(), Bell.make())
        except OSError:
            self.close()
            return
        self.data = _OFFER.pack(
            here(), os.getpid(), self._memory, ring.reader.descriptor, ring.writer.descriptor,
            hashlib.sha256(segment.token).digest(),
        )  # fmt: skip

    def taken(self, answer: bytes) -> Ring | None:
        """The ring, if the answer proves that the other side sees it too."""
        ring, self._ring = self._ring, None
        self.close()
        if answer == _NO:
            return None
        if ring is None or not hmac.compare_digest(answer, ring.segment.token):
            raise ConnectionError("a false answer to an offer of shared memory")
        return ring

    def close(self) -> None:
        """Let go of what was not taken."""
        if self._memory >= 0:
            os.close(self._memory)
        self._memory, self._ring = -1, None


def accept_offer(data: bytes, allowed: bool) -> tuple[Ring | None, bytes]:
    """Take up an offer where it can be, and the answer to send."""
    place, pid, memory, reader, writer, digest = _OFFER.unpack(data)
    if not (allowed and place and place == here()):
        return None, _NO
    try:
        segment = SharedSegment.find(pid, memory, RING_BYTES)
        if not hmac.compare_digest(hashlib.sha256(segment.token).digest(), digest):
            return None, _NO  # another object under the same number
        return Ring(segment, Bell.find(pid, reader), Bell.find(pid, writer)), segment.token
    except OSError:
        return None, _NO


class RingOutbox(Outbox):
    """The writing side.

    Parameters
    ----------
    control : socket
    wait : Wait or None
        Bound of each send; None: a minute.
    ring : Ring
    """

    holds = RING_BYTES - (1 << 16)

    def __init__(self, control: socket.socket, wait: Wait | None, ring: Ring) -> None:
        super().__init__(control, wait)
        self._ring = ring
        self._words, self._data = ring.segment.words, ring.segment.data
        self._small = self._data.data
        self._head = self._posted = self._tail = 0
        wait = wait or Wait(SEND_TIMEOUT)
        self._sleeper = Sleeper(ring.writer, self._words, _WRITER, SocketLife(control), wait)

    def _put(self, buffers: Buffers, size: int) -> None:
        try:
            for buffer in buffers:
                self._write(buffer)
            self._post()
        except WaitTimeoutError as error:
            if self._wait is not None:
                raise
            raise CommunicationError(gone("sending to", error)) from error

    def _write(self, buffer: Any) -> None:
        done, n = 0, len(buffer)
        while done < n:
            room = self._room()
            at = self._head % RING_BYTES
            take = min(n - done, room, RING_BYTES - at, _PIECE)
            if take < _LARGE:
                self._small[at : at + take] = buffer[done : done + take]
            else:
                part = np.frombuffer(buffer, np.uint8, take, done)
                np.copyto(self._data[at : at + take], part)
            done += take
            self._head += take
            if self._head - self._posted >= _PIECE:
                self._post()

    def _room(self) -> int:
        if self._head - self._tail == RING_BYTES:
            self._post()
            self._tail = self._words[_TAIL]
            if self._head - self._tail == RING_BYTES:
                self._await_room()
        return RING_BYTES - (self._head - self._tail)

    def _await_room(self) -> None:
        if not self._sleeper.until(self._words, _TAIL, self._tail + 1):
            raise CommunicationError(gone("sending to", "end of file"))
        self._tail = self._words[_TAIL]

    def _post(self) -> None:
        fence()
        self._words[_HEAD] = self._posted = self._head
        fence()
        if self._words[_READER]:
            self._ring.reader.ring()


class RingInbox(Inbox):
    """The reading side; see `RingOutbox` for the parameters."""

    def __init__(self, control: socket.socket, wait: Wait | None, ring: Ring) -> None:
        super().__init__(control, wait)
        self._ring = ring
        self._words, self._data = ring.segment.words, ring.segment.data
        self._small = self._data.data
        self._head = self._tail = self._told = 0
        self._sleeper = Sleeper(ring.reader, self._words, _READER, SocketLife(control), wait)

    def read_into(self, target: memoryview) -> None:
        """Fill `target`."""
        done, n = 0, len(target)
        self.received += n
        while done < n:
            ready = self._ready()
            at = self._tail % RING_BYTES
            take = min(n - done, ready, RING_BYTES - at, _PIECE)
            if take < _LARGE:
                target[done : done + take] = self._small[at : at + take]
            else:
                part = np.frombuffer(target, np.uint8, take, done)
                np.copyto(part, self._data[at : at + take])
            done += take
            self._tail += take
            if self._tail - self._told >= _PIECE:
                self._tell()

    def _ready(self) -> int:
        if self._head == self._tail:
            self._head = self._words[_HEAD]
            if self._head == self._tail:
                self._await_more()
            fence()
        return self._head - self._tail

    def _await_more(self) -> None:
        self._tell()
        if not self._sleeper.until(self._words, _HEAD, self._head + 1):
            raise CommunicationError(gone("receiving from", "end of file"))
        self._head = self._words[_HEAD]

    def _tell(self) -> None:
        """Give back the room of what was read."""
        fence()
        self._words[_TAIL] = self._told = self._tail
        fence()
        if self._words[_WRITER]:
            self._ring.writer.ring()
