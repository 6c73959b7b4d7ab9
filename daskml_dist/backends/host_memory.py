"""Reused host memory, since new pages cost more than the work on them.

Dask's workers set ``MALLOC_TRIM_THRESHOLD_``, which makes glibc return every freed array of 128 KiB
or more to the system. A new array of that size is then zeroed page by page again, which takes
longer than many steps. `Scratch` keeps arrays by use; `keep_freed_memory` changes glibc's setting.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """Memory of one thread, one array for each use."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[Any]] = {}

    def empty(self, use: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an uninitialised array, valid until the next call with the same use."""
        size, memory = math.prod(shape), self._buffers.get(use)
        if memory is None or memory.dtype != dtype or memory.size < size:
            memory = self._buffers[use] = np.empty(size, dtype)
        return memory[:size].reshape(shape)


#: Bytes of a cache line, and of a vector: in aligned rows no vector crosses a line boundary.
CACHE_LINE_BYTES = 64


def allocate_aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an uninitialised array that begins at a cache line."""
    size, n = np.dtype(dtype).itemsize, math.prod(shape)
    # NumPy aligns to 16 or 64 bytes: allocate one more line, and move the start.
    buffer = np.empty(n + CACHE_LINE_BYTES // size, dtype)
    n_skipped = -buffer.ctypes.data % CACHE_LINE_BYTES // size
    return buffer[n_skipped : n_skipped + n].reshape(shape)


#: Numbers of the parameters M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's ``mallopt``.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Up to this size, arrays come from the heap (32 MiB, the limit of glibc's own adaptation); and
#: free bytes at the top of the heap that are not returned to the system (256 MiB).
_KEPT_ARRAY_BYTES, _KEPT_TOP_BYTES = 1 << 25, 1 << 28
#: Environment variable in which Dask sets the trim threshold, and glibc's default mmap threshold.
_TRIM_VARIABLE, _DEFAULT_MMAP_BYTES = "MALLOC_TRIM_THRESHOLD_", 1 << 17

_lock = threading.Lock()
_users = 0


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory for later arrays within the context; then return it to the system."""
    trim_threshold = os.environ.get(_TRIM_VARIABLE, "")
    if not trim_threshold.isdecimal() or not _has_glibc():
        yield  # the allocator adapts its thresholds itself
        return
    # By default glibc raises both thresholds adaptively; setting one of them, as Dask does,
    # disables that.
    _count_user(1, int(trim_threshold))
    try:
        yield
    finally:
        _count_user(-1, int(trim_threshold))


def _has_glibc() -> bool:
    """Return whether this process's allocator is glibc's."""
    try:
        return hasattr(ctypes.CDLL(None), "mallopt")
    except (TypeError, OSError):  # Windows cannot open the process itself as a library
        return False


def _count_user(delta: int, trim: int) -> None:
    """Count active contexts; the first and the last one change the allocator's settings."""
    global _users
    glibc = ctypes.CDLL(None)
    with _lock:
        _users += delta
        if delta == 1 and _users == 1:
            glibc.mallopt(_MMAP_THRESHOLD, _KEPT_ARRAY_BYTES)
            glibc.mallopt(_TRIM_THRESHOLD, _KEPT_TOP_BYTES)
        elif _users == 0:
            glibc.mallopt(_MMAP_THRESHOLD, _DEFAULT_MMAP_BYTES)
            glibc.mallopt(_TRIM_THRESHOLD, trim)
            glibc.malloc_trim(0)
