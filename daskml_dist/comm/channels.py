"""One-way byte channels between processes: by a socket, or a ring in shared memory.

An `Outbox` sends frames, an `Inbox` reads them. Between processes of one host a ring carries the
bytes: a lock-free queue of one producer and one consumer (Lamport 1983). The writer advances the
`head`, the reader advances the `tail`, so each counter has one writer. A frame may be longer than
the ring, since the reader drains it while the writer fills it. The socket on which the ring was
offered carries no more data: its end of file is the end of the ring.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from daskml_dist.comm.base import (
    CHECK_SECONDS,
    SILENCES_TO_BREAK,
    ConnectionSettings,
    WaitBound,
)
from daskml_dist.comm.shared_memory import (
    TOKEN_BYTES,
    WORDS_PER_LINE,
    SharedSegment,
    SocketLife,
    SpinningWait,
    WakePipe,
    copy_bytes,
    fence_memory,
    identify_machine,
)
from daskml_dist.comm.wire import Buffers
from daskml_dist.errors import (
    CommunicationError,
    DaskMLDistError,
    SilentPeerError,
    WaitTimeoutError,
)

#: Bytes of an inbox's buffer, and of the largest frame that is joined before it is sent: up to this
#: size a copy costs less than a system call, and the system's own buffers hold it.
_BUFFER_BYTES = 1 << 16
#: Bytes that the system's buffers always hold (32 KiB), even with other data in transit.
_BUFFERED_BYTES = 1 << 15
#: Seconds that one send may take before the other side counts as lost.
SEND_SECONDS = 60.0
#: Seconds between two probes of an idle connection: the smallest value that TCP allows.
_PROBE_SECONDS = 1
#: Fields of Linux's `struct tcp_info`: unacknowledged retransmissions and probes, and the
#: milliseconds since the last data and the last acknowledgement arrived.
_TCP_INFO = struct.Struct("=2xBB48xII")
#: Errors of the kernel for a connection whose other side cannot be reached. The last two replace
#: the first if the route, or the last router, noticed it earlier.
_UNREACHABLE = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})


class Outbox:
    """Sending side of a socket. Thread-safe.

    Parameters
    ----------
    sock : socket
    wait : WaitBound or None
        Bound of each send; None means one minute.
    """

    #: Bytes that may be sent before the other side reads any.
    holds = _BUFFER_BYTES

    def __init__(self, sock: socket.socket, wait: WaitBound | None = None) -> None:
        _set_timeout(sock, CHECK_SECONDS if wait else SEND_SECONDS)
        self._sock = sock
        self._wait = wait
        self._lock = threading.Lock()
        self.bytes_sent = 0

    def send(self, buffers: Buffers) -> None:
        """Send all buffers as one frame."""
        size = sum(len(b) for b in buffers)
        try:
            with self._lock:
                self._send_frame(buffers, size)
                self.bytes_sent += size
        except BaseException as error:
            self._break_off(error)

    def _break_off(self, error: BaseException) -> NoReturn:
        """Close the socket after a failed send, and raise the error."""
        # Part of a frame may have been sent; the other side could not read anything after it.
        self.close()
        if isinstance(error, OSError) and not isinstance(error, DaskMLDistError):
            raise _make_lost_error("sending to", error) from error
        raise error

    def _send_frame(self, buffers: Buffers, size: int) -> None:
        """Send the buffers of a frame, which have `size` bytes; the caller holds the lock."""
        for buffer in self._join_small(buffers, size):
            self._send_all(buffer)

    @staticmethod
    def _join_small(buffers: Buffers, size: int) -> Buffers:
        """Return the buffers of a frame, joined if small, to send them in one system call."""
        return buffers if size > _BUFFER_BYTES or len(buffers) == 1 else [b"".join(buffers)]

    def _send_all(self, buffer: Any) -> None:
        """Send a whole buffer, within the bound of the wait."""
        if self._wait is None:
            self._sock.sendall(buffer)
            return
        remaining, since, silent = memoryview(buffer), time.monotonic(), False
        while remaining:
            try:
                remaining = remaining[self._sock.send(remaining) :]
            except TimeoutError as error:
                if error.errno in _UNREACHABLE:  # the socket's own timeout has no errno
                    raise
                # The other side does not read: it may be stopped, and replaced by now.
                self._wait.check(since, "the other side of a connection")
                if not silent and (silent := _is_silent(self._sock)):
                    self._wait.on_silence()

    def close(self) -> None:
        """Close the socket; the other side then reads an end of file."""
        close_socket(self._sock)


class EagerOutbox(Outbox):
    """Sending side of a socket, whose frames may begin in one thread and end in another.

    Ranks that send each other large frames must receive meanwhile, or both wait for ever. Handing a
    frame to another thread takes 0.1 ms, as long as 100 KiB at 10 Gbit/s, so that thread only gets
    the bytes that the system's buffers do not accept immediately.
    """

    def __init__(self, sock: socket.socket, wait: WaitBound | None = None) -> None:
        super().__init__(sock, wait)
        self._unsent: deque[memoryview] = deque()
        # A TLS record must be sent whole, even if the system accepts only part of it now.
        self._has_records = isinstance(sock, ssl.SSLSocket)

    def begin_sending(self, buffers: Buffers) -> bool:
        """Send the part of a frame that is accepted immediately; return whether that is all of it.

        The buffers must not change before :meth:`finish` has sent the rest, which is sent before
        any other frame.
        """
        size = sum(len(b) for b in buffers)
        try:
            with self._lock:
                self._unsent.extend(memoryview(b) for b in self._join_small(buffers, size))
                self.bytes_sent += size
                if size <= _BUFFERED_BYTES:
                    self._send_rest()
                while self._unsent and not self._has_records and _is_ready(self._sock, "write"):
                    self._count_as_sent(self._sock.send(self._unsent[0]))
                return not self._unsent
        except BaseException as error:
            self._break_off(error)

    def finish(self) -> None:
        """Send the rest of all frames that were begun."""
        try:
            with self._lock:
                self._send_rest()
        except BaseException as error:
            self._break_off(error)

    def _send_frame(self, buffers: Buffers, size: int) -> None:
        self._send_rest()
        super()._send_frame(buffers, size)

    def _send_rest(self) -> None:
        """Send all pending bytes; the caller holds the lock."""
        while self._unsent:
            self._send_all(self._unsent[0])
            self._unsent.popleft()

    def _count_as_sent(self, n_bytes: int) -> None:
        """Remove sent bytes from the front of the pending buffers."""
        remaining = self._unsent[0][n_bytes:]
        if remaining:
            self._unsent[0] = remaining
        else:
            self._unsent.popleft()


class Inbox:
    """Receiving side of a socket, for one reader.

    Parameters
    ----------
    sock : socket
    wait : WaitBound or None
        Bound of each read; None waits until the socket is closed.
    """

    def __init__(self, sock: socket.socket, wait: WaitBound | None) -> None:
        _set_timeout(sock, CHECK_SECONDS if wait else None)
        self.sock = sock
        self._wait = wait
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self.received = 0

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        n = len(target)
        self.received += n
        n_read = min(n, self._end - self._start)
        if n_read:
            target[:n_read] = self._buffer[self._start : self._start + n_read]
            self._start += n_read
        while n_read < n:
            # Large parts are received in place. Small ones go through a buffer, so that one system
            # call receives several.
            if n - n_read >= _BUFFER_BYTES:
                n_read += self._receive_some(target[n_read:])
                continue
            self._start, self._end = 0, self._receive_some(self._buffer)
            size = min(n - n_read, self._end)
            target[n_read : n_read + size] = self._buffer[:size]
            self._start = size
            n_read += size

    def has_arrived(self) -> bool:
        """Return whether there is something to read, or the connection has ended."""
        if self._start < self._end:
            return True
        # TLS may have decrypted more bytes than were requested.
        if getattr(self.sock, "pending", lambda: 0)():
            return True
        return _is_ready(self.sock, "read")

    def _receive_some(self, target: memoryview) -> int:
        """Read at least one byte into the start of `target`; return the number of bytes."""
        since, silent = time.monotonic(), False
        while True:
            try:
                count = self.sock.recv_into(target)
            except OSError as error:
                # The kernel's own timeout is a TimeoutError as well, but has an errno.
                if not isinstance(error, TimeoutError) or error.errno in _UNREACHABLE:
                    raise _make_lost_error("receiving from", error) from error
                if self._wait is not None:
                    self._wait.check(since, "the other side of a connection")
                    if not silent and (silent := _is_silent(self.sock)):
                        self._wait.on_silence()
                continue
            if count == 0:
                raise CommunicationError(describe_lost_connection("receiving from", "end of file"))
            return count

    def close(self) -> None:
        """Close the socket."""
        close_socket(self.sock)


def _is_ready(sock: socket.socket, direction: Literal["read", "write"]) -> bool:
    """Return whether a read or write would return without waiting, or would raise."""
    if sock.fileno() < 0:
        return True
    if not hasattr(select, "poll"):  # Windows, whose select has no limit on descriptors
        readers, writers = ([sock], []) if direction == "read" else ([], [sock])
        return any(select.select(readers, writers, [], 0))
    poll = select.poll()
    poll.register(sock, select.POLLIN if direction == "read" else select.POLLOUT)
    return bool(poll.poll(0))


def _set_timeout(sock: socket.socket, seconds: float | None) -> None:
    """Set the timeout of each system call on a socket."""
    try:
        sock.settimeout(seconds)
    except OSError as error:  # closed already
        raise CommunicationError(describe_lost_connection("speaking to", error)) from error


def describe_lost_connection(doing: str, error: object) -> str:
    """Return the message for a lost connection to a worker."""
    return (
        f"Lost the connection while {doing} another worker of the fit ({error}). A worker was "
        "probably closed or killed; look at the workers' logs and fit again."
    )


def _make_lost_error(doing: str, error: OSError) -> CommunicationError:
    """Return the error of a broken connection: a silent host has a class of its own."""
    kind = SilentPeerError if error.errno in _UNREACHABLE else CommunicationError
    return kind(describe_lost_connection(doing, error))


def tune_socket(sock: socket.socket, settings: ConnectionSettings) -> None:
    """Send small frames without delay, and detect a host that has fallen silent.

    A host that lost its power or its cable does not close its connections. But the kernel of a
    running host acknowledges data, however busy or stopped its processes are. So a connection
    counts as silent, and finally breaks, if acknowledgements stop: either of sent data (TCP's user
    timeout, RFC 5482) or, on an idle connection, of probes (keepalive, RFC 1122), whose clock has
    whole seconds.
    """
    broken_after = settings.silence * settings.broken_after
    # Do not delay a packet in order to fill it (Nagle's algorithm).
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere Dask's heartbeats detect it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(broken_after * 1e3))


def _is_silent(sock: socket.socket) -> bool:
    """Return whether a probe or retransmitted data has had no acknowledgement for too long.

    This happens long before the connection breaks, but may be due to a single lost packet.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        break_milliseconds = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    except (AttributeError, OSError):  # not Linux, or closed already
        return False
    retransmits, probes, since_data, since_acknowledged = _TCP_INFO.unpack(info)
    allowed_silence = break_milliseconds / SILENCES_TO_BREAK
    return bool(retransmits or probes) and min(since_data, since_acknowledged) > allowed_silence


def close_socket(sock: socket.socket) -> None:
    """Close a socket, even if other threads use it; may be called twice."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


#: Words of a ring's header, each in its own cache line: bytes written, bytes read, and whether the
#: reader or the writer sleeps.
_HEAD_WORD, _TAIL_WORD = 0, WORDS_PER_LINE
_READER_ASLEEP, _WRITER_ASLEEP = 2 * WORDS_PER_LINE, 3 * WORDS_PER_LINE
#: Bytes of a ring (4 MiB): the most that can be in transit.
RING_BYTES = 1 << 22
#: Bytes after which the other side is notified (256 KiB), so that it processes them in parallel,
#: while they are still in a cache that both share.
_NOTIFY_BYTES = 1 << 18
# identity of the machine, process, descriptors of the memory and of both wake pipes (five int64);
# SHA-256 digest of the token
_OFFER = struct.Struct("<qqqqq32s")
#: Answer that refuses an offer: zeros, which are never a token.
_REFUSAL = bytes(TOKEN_BYTES)


@dataclass
class Ring:
    """Ring as both sides hold it, with the wake pipe of the reader and that of the writer."""

    segment: SharedSegment
    reader: WakePipe
    writer: WakePipe


class RingOffer:
    """New ring, as the calling side of a socket offers it; empty if no ring is possible.

    Parameters
    ----------
    allowed : bool
        False offers nothing.
    """

    #: Bytes of an offer, and of its answer.
    SIZE, ANSWER = _OFFER.size, TOKEN_BYTES

    def __init__(self, allowed: bool) -> None:
        self._ring: Ring | None = None
        self._memory = -1
        self.data = bytes(_OFFER.size)
        if not allowed:
            return
        try:
            segment, self._memory = SharedSegment.allocate(RING_BYTES)
            self._ring = ring = Ring(segment, WakePipe.make(), WakePipe.make())
        except OSError:
            self.close()
            return
        # The digest identifies the object without revealing its token.
        self.data = _OFFER.pack(
            identify_machine(), os.getpid(), self._memory,
            ring.reader.descriptor, ring.writer.descriptor,
            hashlib.sha256(segment.token).digest(),
        )  # fmt: skip

    def accept_answer(self, answer: bytes) -> Ring | None:
        """Return the ring if the answer proves that the other side can read it; None if refused."""
        ring, self._ring = self._ring, None
        self.close()
        if answer == _REFUSAL:
            return None
        if ring is None or not hmac.compare_digest(answer, ring.segment.token):
            raise ConnectionError("a wrong answer to an offer of shared memory")
        return ring

    def close(self) -> None:
        """Close the descriptor through which the other side finds the memory, and drop the ring."""
        if self._memory >= 0:
            os.close(self._memory)
        self._memory, self._ring = -1, None


def accept_ring_offer(data: bytes, allowed: bool) -> tuple[Ring | None, bytes]:
    """Return the ring of an offer, None if it cannot be used, and the answer to send."""
    machine, pid, memory, reader, writer, digest = _OFFER.unpack(data)
    if not (allowed and machine and machine == identify_machine()):
        return None, _REFUSAL
    try:
        segment = SharedSegment.find(pid, memory, RING_BYTES)
        if not hmac.compare_digest(hashlib.sha256(segment.token).digest(), digest):
            return None, _REFUSAL  # another object under the same number
        return Ring(segment, WakePipe.find(pid, reader), WakePipe.find(pid, writer)), segment.token
    except OSError:
        return None, _REFUSAL


class RingOutbox(Outbox):
    """Writing side of a ring.

    Parameters
    ----------
    control : socket
        Socket on which the ring was offered.
    wait : WaitBound or None
        Bound of each send; None means one minute.
    ring : Ring
    """

    #: Less than the ring, since it may still hold answers that were not read yet.
    holds = RING_BYTES - (1 << 16)

    def __init__(self, control: socket.socket, wait: WaitBound | None, ring: Ring) -> None:
        super().__init__(control, wait)
        self._ring = ring
        self._words, self._data = ring.segment.words, ring.segment.data.data
        # `_head` and `_tail` are this side's copies of the counters, so that shared memory is read
        # only when the ring seems full. `_posted` is the head that was last published.
        self._head = self._posted = self._tail = 0
        wait = wait or WaitBound(SEND_SECONDS)
        peers = [(self._words, SocketLife(control))]
        self._sleeper = SpinningWait(
            ring.writer, self._words, _WRITER_ASLEEP, peers, _TAIL_WORD, wait
        )

    def _send_frame(self, buffers: Buffers, size: int) -> None:
        try:
            for buffer in buffers:
                self._write(buffer)
            self._publish_head()
        except WaitTimeoutError as error:
            if self._wait is not None:
                raise
            raise CommunicationError(describe_lost_connection("sending to", error)) from error

    def _write(self, buffer: Any) -> None:
        """Copy a buffer into the ring, piece by piece as there is room."""
        n_written, n, source = 0, len(buffer), memoryview(buffer)
        while n_written < n:
            n_free = self._find_free_bytes()
            offset = self._head % RING_BYTES
            # A piece stops at the end of the ring; the next one starts at its beginning.
            size = min(n - n_written, n_free, RING_BYTES - offset, _NOTIFY_BYTES)
            copy_bytes(self._data[offset : offset + size], source[n_written : n_written + size])
            n_written += size
            self._head += size
            if self._head - self._posted >= _NOTIFY_BYTES:
                self._publish_head()

    def _find_free_bytes(self) -> int:
        """Return the free bytes of the ring; wait for the reader if it is full."""
        if self._head - self._tail == RING_BYTES:
            self._publish_head()
            self._tail = self._words[_TAIL_WORD]
            if self._head - self._tail == RING_BYTES:
                if not self._sleeper.wait_until(self._tail + 1):
                    raise CommunicationError(describe_lost_connection("sending to", "end of file"))
                self._tail = self._words[_TAIL_WORD]
        return RING_BYTES - (self._head - self._tail)

    def _publish_head(self) -> None:
        """Publish the number of bytes written, and wake the reader if it sleeps."""
        # The bytes must be visible before the head that announces them.
        fence_memory()
        self._words[_HEAD_WORD] = self._posted = self._head
        # The head must be visible before the flag is read. The reader sets its flag first and then
        # reads the head again (Dekker's pattern), so at least one side sees the other's write.
        fence_memory()
        if self._words[_READER_ASLEEP]:
            self._ring.reader.wake()


class RingInbox(Inbox):
    """Reading side of a ring; see `RingOutbox` for the parameters."""

    def __init__(self, control: socket.socket, wait: WaitBound | None, ring: Ring) -> None:
        super().__init__(control, wait)
        self._ring = ring
        self._words, self._data = ring.segment.words, ring.segment.data.data
        # As the writer's counters; `_published_tail` is the tail that was last published.
        self._head = self._tail = self._published_tail = 0
        peers = [(self._words, SocketLife(control))]
        self._sleeper = SpinningWait(
            ring.reader, self._words, _READER_ASLEEP, peers, _HEAD_WORD, wait
        )

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        n_read, n = 0, len(target)
        self.received += n
        while n_read < n:
            n_ready = self._count_ready()
            offset = self._tail % RING_BYTES
            size = min(n - n_read, n_ready, RING_BYTES - offset, _NOTIFY_BYTES)
            copy_bytes(target[n_read : n_read + size], self._data[offset : offset + size])
            n_read += size
            self._tail += size
            if self._tail - self._published_tail >= _NOTIFY_BYTES:
                self._publish_tail()

    def has_arrived(self) -> bool:
        """Return whether there is something to read, or the ring has ended."""
        # The socket of a ring carries no data: it becomes readable when the ring has ended.
        has_bytes = self._head != self._tail or self._words[_HEAD_WORD] != self._tail
        return bool(has_bytes) or super().has_arrived()

    def _count_ready(self) -> int:
        """Return the bytes that can be read; wait for the writer if there are none."""
        if self._head == self._tail:
            self._head = self._words[_HEAD_WORD]
            if self._head == self._tail:
                self._publish_tail()
                if not self._sleeper.wait_until(self._head + 1):
                    raise CommunicationError(
                        describe_lost_connection("receiving from", "end of file")
                    )
                self._head = self._words[_HEAD_WORD]
            fence_memory()  # no byte is read before the head that announces it
        return self._head - self._tail

    def _publish_tail(self) -> None:
        """Publish the number of bytes read, whose room is free again; wake a sleeping writer."""
        fence_memory()  # all reads must finish before the writer may write there
        self._words[_TAIL_WORD] = self._published_tail = self._tail
        fence_memory()
        if self._words[_WRITER_ASLEEP]:
            self._ring.writer.wake()
