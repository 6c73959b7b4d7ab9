"""Life of the other side of shared memory: that of a socket, or of its process."""

from __future__ import annotations

import os
import select
import socket
import ssl
from typing import Any, Protocol

__all__ = ["Life", "ProcessLife", "SocketLife"]


class Life(Protocol):
    """Sign that the other side is there; what it did before it went counts."""

    def fileno(self) -> int:
        """Descriptor that becomes readable when the other side goes."""

    def has_said(self) -> bool:
        """Whether a side has said, in the memory itself, that it is done."""

    def is_gone(self) -> bool:
        """Whether the other side is gone, or this one has closed."""


class SocketLife:
    """Life of a socket on which nothing is sent: its end of file is that of the other side.

    Parameters
    ----------
    sock : socket
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        """Descriptor of the socket."""
        return self._sock.fileno()

    def has_said(self) -> bool:
        """Never: the socket tells."""
        return False

    def is_gone(self) -> bool:
        """Whether the other side, or this one, has closed the socket."""
        try:
            self._sock.setblocking(False)
            return len(self._sock.recv(1)) == 0
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True


class ProcessLife:
    """Life of a process of this host, and of the one in it who shares the memory.

    Parameters
    ----------
    pid : int
        To be given before anything else is opened by this number: while that is found to be
        the other side's, so is the process.

    Raises
    ------
    OSError
        There is no such process, or the system cannot watch it.
    """

    def __init__(self, pid: int) -> None:
        if not hasattr(os, "pidfd_open"):
            raise OSError("no pidfd_open on this system")
        self._descriptor = os.pidfd_open(pid)
        self._words: tuple[Any, ...] = ()
        self._index = 0

    def watch(self, own: Any, other: Any, index: int) -> None:
        """Look, too, at the word in which each side says that it is done."""
        self._words, self._index = (own, other), index

    def fileno(self) -> int:
        """Descriptor of the process."""
        return self._descriptor

    def has_said(self) -> bool:
        """Whether a side is done."""
        return any(words[self._index] for words in self._words)

    def is_gone(self) -> bool:
        """Whether a side is done, or the process has ended."""
        return self.has_said() or bool(select.select([self._descriptor], [], [], 0)[0])

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
