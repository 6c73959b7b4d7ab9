"""Bytes through a socket, one direction each."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

from daskml_dist.comm.base import SLICE, Wait
from daskml_dist.comm.wire import Buffers
from daskml_dist.errors import CommunicationError, DaskMLDistError

__all__ = ["SEND_TIMEOUT", "Inbox", "Outbox", "close_socket", "gone"]

_BUFFER = 1 << 16
#: Seconds that one send may take before the other side counts as gone.
SEND_TIMEOUT = 60.0


class Outbox:
    """The sending direction. Thread-safe.

    Parameters
    ----------
    sock : socket
    wait : Wait or None
        Bound of each send; None: a minute.
    """

    #: Bytes that may be on their way though nobody reads them yet.
    holds = _BUFFER

    def __init__(self, sock: socket.socket, wait: Wait | None = None) -> None:
        _bound(sock, SLICE if wait else SEND_TIMEOUT)
        self._sock = sock
        self._wait = wait
        self._lock = threading.Lock()
        self.sent = 0

    def send(self, buffers: Buffers) -> None:
        """Send all buffers as one frame."""
        size = sum(len(b) for b in buffers)
        try:
            with self._lock:
                self._put(buffers, size)
                self.sent += size
        except BaseException as error:
            # Half a frame may be out: what follows it could not be read.
            self.close()
            if isinstance(error, OSError) and not isinstance(error, DaskMLDistError):
                raise CommunicationError(gone("sending to", error)) from error
            raise

    def _put(self, buffers: Buffers, size: int) -> None:
        if size <= _BUFFER:
            self._send_all(buffers[0] if len(buffers) == 1 else b"".join(buffers))
            return
        for buffer in buffers:
            self._send_all(buffer)

    def _send_all(self, buffer: Any) -> None:
        if self._wait is None:
            self._sock.sendall(buffer)
            return
        rest, since = memoryview(buffer), time.monotonic()
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except TimeoutError:
                # The other side does not read: perhaps it is stopped, and replaced meanwhile.
                self._wait.check(since, "the other side of a connection")

    def close(self) -> None:
        """Close the socket; the other side reads an end of file."""
        close_socket(self._sock)


class Inbox:
    """The receiving direction. One reader.

    Parameters
    ----------
    sock : socket
    wait : Wait or None
        Bound of each read; None waits until the socket is closed.
    """

    def __init__(self, sock: socket.socket, wait: Wait | None) -> None:
        _bound(sock, SLICE if wait else None)
        self.sock = sock
        self._wait = wait
        self._buffer = memoryview(bytearray(_BUFFER))
        self._start = self._end = 0
        self.received = 0

    def read_into(self, target: memoryview) -> None:
        """Fill `target`."""
        n = len(target)
        self.received += n
        have = min(n, self._end - self._start)
        if have:
            target[:have] = self._buffer[self._start : self._start + have]
            self._start += have
        while have < n:
            if n - have >= _BUFFER:
                have += self._recv(target[have:])
                continue
            self._start, self._end = 0, self._recv(self._buffer)
            take = min(n - have, self._end)
            target[have : have + take] = self._buffer[:take]
            self._start = take
            have += take

    def _recv(self, target: memoryview) -> int:
        since = time.monotonic()
        while True:
            try:
                count = self.sock.recv_into(target)
            except TimeoutError:
                if self._wait is not None:
                    self._wait.check(since, "the other side of a connection")
                continue
            except OSError as error:
                raise CommunicationError(gone("receiving from", error)) from error
            if count == 0:
                raise CommunicationError(gone("receiving from", "end of file"))
            return count

    def close(self) -> None:
        """Close the socket."""
        close_socket(self.sock)


def _bound(sock: socket.socket, seconds: float | None) -> None:
    try:
        sock.settimeout(seconds)
    except OSError as error:  # closed already
        raise CommunicationError(gone("speaking to", error)) from error


def gone(doing: str, error: object) -> str:
    """Message where the other side is not there any more."""
    return (
        f"Lost the connection while {doing} another worker of the fit ({error}). A worker was "
        "probably closed or killed; look at the workers' logs and fit again."
    )


def close_socket(sock: socket.socket) -> None:
    """Close a socket, whatever others do with it; may be called twice."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
