"""Turns at a worker's compute threads, for the trainers of one run that share a process.

A worker that is given lanes of a lost one starts another trainer for them, beside its own. The
system would give each trainer as much of the processor, however few lanes it has: its lanes would
take more steps than the others'.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary


class ComputeTurns:
    """Semaphore that lets threads compute in the order in which they asked.

    A thread of several lanes that moves each of them once in a turn leaves all lanes of the process
    as many steps as any other.

    Parameters
    ----------
    n_threads : int
        Threads that may compute at once.
    """

    def __init__(self, n_threads: int) -> None:
        self._free = n_threads
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for the own turn; it ends with the context."""
        own = None
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                own = threading.Lock()
                own.acquire()
                self._waiting.append(own)
        if own is not None:
            own.acquire()
        try:
            yield
        finally:
            with self._lock:
                # A turn is handed on: a thread that asks again at once comes after those that wait.
                if self._waiting:
                    self._waiting.popleft().release()
                else:
                    self._free += 1


_turns: WeakValueDictionary[str, ComputeTurns] = WeakValueDictionary()
_turns_lock = threading.Lock()


def share_turns(run_id: str, n_threads: int) -> ComputeTurns:
    """Return the turns that all trainers of a run take in this process, while one holds them."""
    with _turns_lock:
        turns = _turns.get(run_id)
        if turns is None:
            turns = _turns[run_id] = ComputeTurns(n_threads)
        return turns
