"""Memory of large arrays that is used again: what a process gets anew costs more than a copy."""

from __future__ import annotations

import contextlib
import weakref

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReusedMemory"]

#: Bytes from which it pays.
_MIN_REUSED_BYTES = 1 << 20
#: Bytes that wait for the next use at most.
_MAX_KEPT_BYTES = 1 << 26

#: Memory that waits, by its size.
_FreeMemory = dict[int, list[NDArray[np.uint8]]]


class ReusedMemory:
    """Gives out arrays of bytes, and takes their memory back once nobody holds a part of them."""

    def __init__(self) -> None:
        self._free: _FreeMemory = {}

    def empty(self, size: int) -> NDArray[np.uint8]:
        """Return an array of `size` bytes, with anything in it."""
        if size < _MIN_REUSED_BYTES:
            return np.empty(size, np.uint8)
        whole = self._taken(size)
        # Whatever views are made of this array hold it, and not the one behind it.
        array: NDArray[np.uint8] = np.frombuffer(whole.data, np.uint8)
        weakref.finalize(array, _keep_memory, self._free, whole).atexit = False
        return array

    def _taken(self, size: int) -> NDArray[np.uint8]:
        with contextlib.suppress(LookupError):
            return self._free[size].pop()
        return np.empty(size, np.uint8)


def _keep_memory(free: _FreeMemory, whole: NDArray[np.uint8]) -> None:
    """Keep memory for the next use; the garbage collector may call this in any thread."""
    held = sum(size * len(some) for size, some in list(free.items()))
    if held + len(whole) > _MAX_KEPT_BYTES:
        free.clear()
    free.setdefault(len(whole), []).append(whole)
