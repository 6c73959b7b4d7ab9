"""Memory that two processes of one host and user share, and how one wakes the other.

A segment is an anonymous file (``memfd_create``) that the other process opens through
``/proc/PID/fd``: it has no name in ``/dev/shm``, so whatever ends a process, nothing is left.
That both see the same object is proved by a random token read from it, not by a host's name. What
is opened by a number must be what it is said to be: memory of this user alone, of the size that is
expected and that nobody can change any more, or a pipe of this user.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import select
import socket
import ssl
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import CHECK_SECONDS, WaitBound

try:
    import fcntl
except ImportError:  # Windows, where no memory file is made, and none is opened
    fcntl = None  # type: ignore[assignment]

#: Bytes of the token that proves a segment.
TOKEN_BYTES = 32
#: Words (of 8 bytes) from one counter to the next: each has a cache line of its own.
WORDS_PER_LINE = 16
#: Bytes before the data: the counters, then the token.
_HEADER_BYTES = 4096
#: Byte of the header at which the token starts; it is the header's end.
_TOKEN_START = _HEADER_BYTES - TOKEN_BYTES
#: Seconds to look without sleeping: about what going to sleep and waking up cost.
SPIN_SECONDS = 30e-6
#: Seconds to look where each rank has a processor: longer than a step of trainers in lock-step.
LONG_SPIN_SECONDS = 1e-3


def fence_memory() -> None:
    """Let all reads and writes before it happen before all after it, on any processor.

    Python has no such call. Letting go of a lock and taking it again are two atomic operations
    that together order everything around them.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()


def identify_machine() -> int:
    """Return a number of this machine, its boot, and this process's namespaces; 0 where unknown.

    Only for processes with the same number do process numbers mean the same, and cannot the
    network between them be cut while the memory still works.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        spaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("net", "pid")]
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(f"{boot}{spaces}".encode()).digest()[:7], "big")


def _reopen_descriptor(pid: int, descriptor: int) -> int:
    """Return a descriptor of this process for another process's file, by Linux's ``/proc``."""
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _required_seals() -> int:
    """Return the seals of a memory file whose size nobody can change any more."""
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedSegment:
    """A mapped piece of memory: 64-bit counters (`words`) and bytes (`data`)."""

    def __init__(self, memory: mmap.mmap) -> None:
        view = memoryview(memory)
        # Counters are read and written as whole words, which processors never tear.
        self.words = view[:_TOKEN_START].cast("Q")
        self.token = bytes(view[_TOKEN_START:_HEADER_BYTES])
        self.data: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, offset=_HEADER_BYTES)

    def find_word_address(self, index: int) -> int:
        """Return the address of a counter."""
        return self.find_address(8 * index - _HEADER_BYTES)

    def find_address(self, place: int) -> int:
        """Return the address of a byte of the data."""
        return int(self.data.__array_interface__["data"][0]) + place

    @classmethod
    def make(cls, size: int) -> tuple[SharedSegment, int]:
        """Return a new segment of `size` bytes of data, and its descriptor, to close once found.

        Pages that are never touched cost nothing.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("no memfd_create on this system")
        descriptor = os.memfd_create("daskml_dist", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, _HEADER_BYTES + size)
            # A process dies when memory that it has mapped is cut off: sealed, it cannot be.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _required_seals())
            memory = mmap.mmap(descriptor, _HEADER_BYTES + size)
        except BaseException:
            os.close(descriptor)
            raise
        memory[_TOKEN_START:_HEADER_BYTES] = secrets.token_bytes(TOKEN_BYTES)
        return cls(memory), descriptor

    @classmethod
    def find(cls, pid: int, number: int, size: int) -> SharedSegment:
        """Return another process's segment, by its descriptor there and the size of its data."""
        descriptor = _reopen_descriptor(pid, number)
        try:
            state = os.fstat(descriptor)
            private = state.st_uid == os.geteuid() and not state.st_mode & 0o077
            # Only memory has seals; to ask another file for them is an error.
            sealed = (
                fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _required_seals() == _required_seals()
            )
            if not (private and sealed and state.st_size == _HEADER_BYTES + size):
                raise OSError("not a private segment of this user")
            return cls(mmap.mmap(descriptor, state.st_size))
        finally:
            os.close(descriptor)


class WakePipe:
    """Pipe that a process sleeps at and others ring; both hold it whole."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def make(cls) -> WakePipe:
        """Return a new pipe."""
        ends = os.pipe()
        try:
            # Both ends in one, so that a pipe whose other holder is gone is merely silent.
            return cls(_reopen_descriptor(os.getpid(), ends[0]))
        finally:
            for end in ends:
                os.close(end)

    @classmethod
    def find(cls, pid: int, number: int) -> WakePipe:
        """Return the pipe of another process, by its descriptor there."""
        bell = cls(_reopen_descriptor(pid, number))
        state = os.fstat(bell.descriptor)
        if not stat.S_ISFIFO(state.st_mode) or state.st_uid != os.geteuid():
            raise OSError("not a bell of this user")
        return bell

    def ring(self) -> None:
        """Wake the process that sleeps at the pipe; a second call changes nothing."""
        with contextlib.suppress(OSError):
            os.write(self.descriptor, b"!")

    def silence(self) -> None:
        """Forget that it rang."""
        with contextlib.suppress(OSError):
            os.read(self.descriptor, 4096)

    def __del__(self) -> None:
        # Not before its last user is gone: the number could belong to another file by then.
        os.close(self.descriptor)


class SpinningWait:
    """Wait for all other sides to do something: a look for a moment, then sleep.

    Parameters
    ----------
    bell : WakePipe
    words : memoryview
    asleep : int
        Index of the own word that tells the others to ring.
    others : sequence of (memoryview, PeerLife)
        Words and life of each other side.
    awaited : int
        Index of the word of the others that is waited for.
    wait : WaitBound or None
        Bound of the wait; None: none but the other sides' lives.
    look : float
        Seconds to look without sleeping.
    """

    def __init__(
        self,
        bell: WakePipe,
        words: Any,
        asleep: int,
        others: Sequence[tuple[Any, PeerLife]],
        awaited: int,
        wait: WaitBound | None,
        look: float = SPIN_SECONDS,
    ) -> None:
        self._bell, self._words, self._asleep = bell, words, asleep
        #: Words and life of each other side, by the descriptor of its life.
        self._others = {life.fileno(): (theirs, life) for theirs, life in others}
        self._theirs = [theirs for theirs, _ in others]
        self._gone: set[int] = set()
        self._awaited, self._wait = awaited, wait
        self._look = look if wait else 0.0
        self._spin = self._look
        self._poll = select.poll()
        for descriptor in (bell.descriptor, *self._others):
            self._poll.register(descriptor, select.POLLIN)

    def wait_until(self, value: int) -> bool:
        """Wait until all others' words are `value` or more; False where one is gone before."""
        now, index = time.perf_counter, self._awaited
        start = now()
        end = start + self._spin
        # Step 1: look without sleeping, which is over sooner than a process wakes up where the
        # other sides are about to come.
        coming = self._theirs.copy()
        while now() < end:
            while coming[-1][index] >= value:
                coming.pop()
                if not coming:
                    return True
        try:
            return self._sleep_until(value)
        finally:
            # Looking pays where it is short; else another process wants the processor.
            self._spin = self._look if now() - start < 3 * self._look else 0.0

    def _sleep_until(self, value: int) -> bool:
        """Sleep until all words reach the value; return False where another side is gone."""
        since, index = time.monotonic(), self._awaited
        try:
            while True:
                # Step 2: say that this side sleeps, look once more, and only then sleep: another
                # side writes its part first and looks at this word second, so that one of both
                # always sees the other.
                self._words[self._asleep] = 1
                fence_memory()
                missing = [n for n, (words, _) in self._others.items() if words[index] < value]
                for number in missing:
                    words, life = self._others[number]
                    # What it did before it went counts.
                    if (number in self._gone or life.has_announced_end()) and words[index] < value:
                        return False
                if not missing:
                    return True
                self._sleep_once(since, missing)
        finally:
            self._words[self._asleep] = 0

    def _sleep_once(self, since: float, missing: list[int]) -> None:
        """Sleep until a wake-up or a check is due, and note who is gone."""
        heard = [number for number, _ in self._poll.poll(CHECK_SECONDS * 1e3)]
        if self._bell.descriptor in heard:
            self._bell.silence()
        elif not heard and self._wait is not None:
            self._wait.check(since, "the other side of a connection")
        for number in heard or missing:
            if number in self._others and self._others[number][1].is_gone():
                # The sign of an end stays, and would wake this side for ever.
                self._poll.unregister(number)
                self._gone.add(number)


class PeerLife(Protocol):
    """Sign that the other side is there; what it did before it went counts."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the other side goes."""

    def has_announced_end(self) -> bool:
        """Return whether a side has said, in the memory itself, that it is done."""

    def is_gone(self) -> bool:
        """Return whether the other side is gone, or this one has closed."""


class SocketLife:
    """Life of a socket on which nothing is sent: its end of file is that of the other side.

    Parameters
    ----------
    sock : socket
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._sock.fileno()

    def has_announced_end(self) -> bool:
        """Return False: the socket alone tells."""
        return False

    def is_gone(self) -> bool:
        """Return whether the other side, or this one, has closed the socket."""
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
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._words: tuple[Any, Any] = [0], [0]
        self._index = 0

    def watch(self, own: Any, other: Any, index: int) -> None:
        """Look, too, at the word in which each side says that it is done."""
        self._words, self._index = (own, other), index

    def fileno(self) -> int:
        """Return the descriptor of the process."""
        return self._descriptor

    def has_announced_end(self) -> bool:
        """Return whether a side is done."""
        own, other = self._words
        return bool(own[self._index] or other[self._index])

    def is_gone(self) -> bool:
        """Return whether a side is done, or the process has ended."""
        return self.has_announced_end() or bool(self._poll.poll(0))

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


#: Bytes from which a copy lets other threads run meanwhile.
_LARGE_WRITE_BYTES = 1 << 15


class PieceWriter:
    """Writes buffers one after the other, as far as there is room."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.length = sum(len(buffer) for buffer in buffers)
        self._left = [memoryview(buffer) for buffer in reversed(buffers) if len(buffer)]

    def write(self, room: memoryview) -> None:
        """Fill some room with the next bytes, as far as there are any."""
        at = 0
        while self._left and at < len(room):
            buffer = self._left.pop()
            take = min(len(buffer), len(room) - at)
            _copy_bytes(room[at : at + take], buffer[:take])
            if take < len(buffer):
                self._left.append(buffer[take:])
            at += take


def _copy_bytes(to: memoryview, source: memoryview) -> None:
    """Copy bytes between buffers of one length."""
    if len(to) < _LARGE_WRITE_BYTES:
        to[:] = source
    else:  # lets other threads run meanwhile
        np.copyto(np.frombuffer(to, np.uint8), np.frombuffer(source, np.uint8))
