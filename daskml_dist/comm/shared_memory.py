"""Memory that two processes of one host and user share, and how one wakes the other.

A segment is an anonymous file (``memfd_create``) that the other process opens through
``/proc/PID/fd``. It has no name in ``/dev/shm``, so nothing is left behind however a process ends.
A random token read from the memory, not a host's name, proves that both processes see the same
object. A file that is opened by its number is checked: it must be memory of this user alone, of the
expected size and sealed against changes of size, or a pipe of this user.
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

#: Bytes of the token that identifies a segment.
TOKEN_BYTES = 32
#: Words (of 8 bytes) between two counters, so that each has its own cache line.
WORDS_PER_LINE = 16
#: Bytes before the data: the counters, then the token.
_HEADER_BYTES = 4096
#: Byte of the header at which the token starts; the token ends the header.
_TOKEN_START = _HEADER_BYTES - TOKEN_BYTES
#: Seconds to poll without sleeping: about the cost of falling asleep and waking up.
SPIN_SECONDS = 30e-6
#: Seconds to poll if each rank has a processor: longer than a lock-step step of trainers.
LONG_SPIN_SECONDS = 1e-3


def fence_memory() -> None:
    """Complete all earlier reads and writes before any later one, on any processor.

    Python has no such call. Releasing a lock and acquiring it again are two atomic operations that
    together order all memory accesses around them.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()


def identify_machine() -> int:
    """Return a number of this machine, its boot, and this process's namespaces; 0 if unknown.

    Only between processes with equal numbers do process ids have the same meaning, and can the
    network not be cut while the shared memory still works.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("net", "pid")]
    except OSError:
        return 0
    return int.from_bytes(hashlib.sha256(f"{boot_id}{namespaces}".encode()).digest()[:7], "big")


def _reopen_descriptor(pid: int, descriptor: int) -> int:
    """Return a descriptor for another process's file, opened through Linux's ``/proc``."""
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _required_seals() -> int:
    """Return the seals that make the size of a memory file immutable."""
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedSegment:
    """Mapped piece of memory: 64-bit counters (`words`) and bytes (`data`)."""

    def __init__(self, memory: mmap.mmap) -> None:
        view = memoryview(memory)
        # Counters are read and written as whole words, which processors never split.
        self.words = view[:_TOKEN_START].cast("Q")
        self.token = bytes(view[_TOKEN_START:_HEADER_BYTES])
        self.data: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, offset=_HEADER_BYTES)

    def find_word_address(self, index: int) -> int:
        """Return the address of a counter."""
        return self.find_address(8 * index - _HEADER_BYTES)

    def find_address(self, offset: int) -> int:
        """Return the address of a byte of the data."""
        return int(self.data.__array_interface__["data"][0]) + offset

    @classmethod
    def allocate(cls, size: int) -> tuple[SharedSegment, int]:
        """Return a new segment of `size` bytes of data, and its descriptor.

        The caller closes the descriptor once other processes have opened it. Pages that are never
        touched use no memory.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("no memfd_create on this system")
        descriptor = os.memfd_create("daskml_dist", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, _HEADER_BYTES + size)
            # A process is killed when memory that it has mapped is truncated; seals prevent that.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _required_seals())
            memory = mmap.mmap(descriptor, _HEADER_BYTES + size)
        except BaseException:
            os.close(descriptor)
            raise
        memory[_TOKEN_START:_HEADER_BYTES] = secrets.token_bytes(TOKEN_BYTES)
        return cls(memory), descriptor

    @classmethod
    def find(cls, pid: int, peer_descriptor: int, size: int) -> SharedSegment:
        """Return another process's segment, by its descriptor there and the size of its data."""
        descriptor = _reopen_descriptor(pid, peer_descriptor)
        try:
            state = os.fstat(descriptor)
            is_private = state.st_uid == os.geteuid() and not state.st_mode & 0o077
            # Only memory files have seals; querying another file raises an error.
            is_sealed = (
                fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _required_seals() == _required_seals()
            )
            if not (is_private and is_sealed and state.st_size == _HEADER_BYTES + size):
                raise OSError("not a private segment of this user")
            return cls(mmap.mmap(descriptor, state.st_size))
        finally:
            os.close(descriptor)


class WakePipe:
    """Pipe at which one process sleeps and which others write to; each holds both ends."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def make(cls) -> WakePipe:
        """Return a new pipe."""
        ends = os.pipe()
        try:
            # Both ends in one descriptor, so that the pipe only goes silent if its other holder
            # ends.
            return cls(_reopen_descriptor(os.getpid(), ends[0]))
        finally:
            for end in ends:
                os.close(end)

    @classmethod
    def find(cls, pid: int, peer_descriptor: int) -> WakePipe:
        """Return the pipe of another process, by its descriptor there."""
        wake_pipe = cls(_reopen_descriptor(pid, peer_descriptor))
        state = os.fstat(wake_pipe.descriptor)
        if not stat.S_ISFIFO(state.st_mode) or state.st_uid != os.geteuid():
            raise OSError("this descriptor is no wake pipe of this user")
        return wake_pipe

    def wake(self) -> None:
        """Wake the process that sleeps at the pipe; a second call has no effect."""
        with contextlib.suppress(OSError):
            os.write(self.descriptor, b"!")

    def drain(self) -> None:
        """Discard received wake-ups."""
        with contextlib.suppress(OSError):
            os.read(self.descriptor, 4096)

    def __del__(self) -> None:
        # Only when no user is left: afterwards the number may belong to another file.
        os.close(self.descriptor)


class SpinningWait:
    """Wait until all other sides reach a value: it polls for a moment, then sleeps.

    Parameters
    ----------
    wake_pipe : WakePipe
    own_words : memoryview
    asleep : int
        Index of this side's word that makes the others send a wake-up.
    peers : sequence of (memoryview, PeerLife)
        Words and liveness check of each other side.
    awaited : int
        Index of the others' word that must reach the value.
    wait : WaitBound or None
        Bound of the wait; None means only the other sides' ends stop it.
    spin_seconds : float
        Seconds to poll without sleeping.
    """

    def __init__(
        self,
        wake_pipe: WakePipe,
        own_words: Any,
        asleep: int,
        peers: Sequence[tuple[Any, PeerLife]],
        awaited: int,
        wait: WaitBound | None,
        spin_seconds: float = SPIN_SECONDS,
    ) -> None:
        self._wake_pipe, self._own_words, self._asleep = wake_pipe, own_words, asleep
        #: Words and liveness check of each other side, by the check's descriptor.
        self._peers_by_descriptor = {
            life.fileno(): (peer_words, life) for peer_words, life in peers
        }
        self._peer_words = [peer_words for peer_words, _ in peers]
        self._ended_peers: set[int] = set()
        self._awaited, self._wait = awaited, wait
        self._max_spin = spin_seconds if wait else 0.0
        self._spin_seconds = self._max_spin
        self._poll = select.poll()
        for descriptor in (wake_pipe.descriptor, *self._peers_by_descriptor):
            self._poll.register(descriptor, select.POLLIN)

    def wait_until(self, value: int) -> bool:
        """Wait until all others' words are `value` or more; False if a side ended before."""
        now, index = time.perf_counter, self._awaited
        start = now()
        end = start + self._spin_seconds
        # Step 1: poll without sleeping. If the other sides are about to arrive, this takes less
        # time than waking a process.
        awaited_words = self._peer_words.copy()
        while now() < end:
            while awaited_words[-1][index] >= value:
                awaited_words.pop()
                if not awaited_words:
                    return True
        try:
            return self._sleep_until(value)
        finally:
            # Polling pays if the wait is short; otherwise another process needs the processor.
            self._spin_seconds = self._max_spin if now() - start < 3 * self._max_spin else 0.0

    def _sleep_until(self, value: int) -> bool:
        """Sleep until all words reach the value; return False if another side ended."""
        since, index = time.monotonic(), self._awaited
        try:
            while True:
                # Step 2: set the sleep flag, check once more, and only then sleep. The other side
                # writes its word first and reads this flag second, so at least one side sees the
                # other's write.
                self._own_words[self._asleep] = 1
                fence_memory()
                behind = [
                    n for n, (words, _) in self._peers_by_descriptor.items() if words[index] < value
                ]
                for number in behind:
                    words, life = self._peers_by_descriptor[number]
                    # Writes that a side made before it ended still count.
                    if (number in self._ended_peers or life.has_announced_end()) and words[
                        index
                    ] < value:
                        return False
                if not behind:
                    return True
                self._sleep_once(since, behind)
        finally:
            self._own_words[self._asleep] = 0

    def _sleep_once(self, since: float, missing: list[int]) -> None:
        """Sleep until a wake-up or until a check is due, and record which sides have ended."""
        readable = [number for number, _ in self._poll.poll(CHECK_SECONDS * 1e3)]
        if self._wake_pipe.descriptor in readable:
            self._wake_pipe.drain()
        elif not readable and self._wait is not None:
            self._wait.check(since, "the other side of a connection")
        for number in readable or missing:
            if (
                number in self._peers_by_descriptor
                and self._peers_by_descriptor[number][1].has_ended()
            ):
                # The signal of an end persists, and would wake this side for ever.
                self._poll.unregister(number)
                self._ended_peers.add(number)


class PeerLife(Protocol):
    """Liveness check of another side; its writes before its end still count."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the other side ends."""

    def has_announced_end(self) -> bool:
        """Return whether a side has announced, in the memory itself, that it is done."""

    def has_ended(self) -> bool:
        """Return whether the other side has ended, or this one has closed."""


class SocketLife:
    """Liveness check by an idle socket: its end of file is the end of the other side.

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
        """Return False: only the socket shows an end."""
        return False

    def has_ended(self) -> bool:
        """Return whether the other side, or this one, has closed the socket."""
        try:
            self._sock.setblocking(False)
            return len(self._sock.recv(1)) == 0
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True


class ProcessLife:
    """Liveness check of a process of this host, and of the user of the shared memory in it.

    Parameters
    ----------
    pid : int
        Must be opened before any file of this process is: if such a file then proves to be the
        other side's, so is the process.

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
        self._own_and_peer_words: tuple[Any, Any] = [0], [0]
        self._index = 0

    def watch(self, own_words: Any, peer_words: Any, index: int) -> None:
        """Also check the word in which each side announces that it is done."""
        self._own_and_peer_words, self._index = (own_words, peer_words), index

    def fileno(self) -> int:
        """Return the descriptor of the process."""
        return self._descriptor

    def has_announced_end(self) -> bool:
        """Return whether either side is done."""
        own_words, peer_words = self._own_and_peer_words
        return bool(own_words[self._index] or peer_words[self._index])

    def has_ended(self) -> bool:
        """Return whether either side is done, or the process has ended."""
        return self.has_announced_end() or bool(self._poll.poll(0))

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


#: Smallest copy, in bytes, that releases the GIL (32 KiB): for smaller copies, releasing and
#: reacquiring it costs more than the copy.
_LARGE_COPY_BYTES = 1 << 15


class PieceWriter:
    """Writer of buffers, one after the other, into limited space."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.length = sum(len(buffer) for buffer in buffers)
        self._pending = [memoryview(buffer) for buffer in reversed(buffers) if len(buffer)]

    def write(self, target: memoryview) -> None:
        """Fill `target` with the next bytes, as far as any are left."""
        offset = 0
        while self._pending and offset < len(target):
            buffer = self._pending.pop()
            size = min(len(buffer), len(target) - offset)
            copy_bytes(target[offset : offset + size], buffer[:size])
            if size < len(buffer):
                self._pending.append(buffer[size:])
            offset += size


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy bytes between buffers of equal length."""
    if len(target) < _LARGE_COPY_BYTES:
        target[:] = source
    else:  # NumPy's copy releases the GIL
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
