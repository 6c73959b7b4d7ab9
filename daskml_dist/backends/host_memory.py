"""Host memory that is used again, since new pages cost more than the work on them.

Dask's workers run with ``MALLOC_TRIM_THRESHOLD_``, by which glibc returns every array of 128 KiB to
the system as soon as it is let go; the next one like it is filled with zeros page by page again,
which takes longer than many a step. `Scratch` keeps arrays by use, `keep_freed_memory` tells glibc.
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
    """Memory of one thread, a piece for each use."""

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def empty(self, use: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an uninitialised array, valid until the next one of the same use."""
        size, held = math.prod(shape), self._held.get(use)
        if held is None or held.dtype != dtype or held.size < size:
            held = self._held[use] = np.empty(size, dtype)
        return held[:size].reshape(shape)


#: Bytes of a cache line, which a vector fills: aligned rows never need two lines for a vector.
CACHE_LINE_BYTES = 64


def allocate_aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an uninitialised array that begins at a cache line."""
    size, n = np.dtype(dtype).itemsize, math.prod(shape)
    # numpy aligns to 16 or 64 bytes as it likes: a line more is asked for, and the start moved.
    room = np.empty(n + CACHE_LINE_BYTES // size, dtype)
    skipped = -room.ctypes.data % CACHE_LINE_BYTES // size
    return room[skipped : skipped + n].reshape(shape)


#: Numbers of the parameters M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's ``mallopt``.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Bytes up to which arrays come from the heap (32 MiB, the most that glibc's own adaptation comes
#: to); and free bytes at the heap's top that are not given back to the system (256 MiB).
_KEPT_ARRAY_BYTES, _KEPT_TOP_BYTES = 1 << 25, 1 << 28
#: Environment variable by which Dask sets the trim threshold, and glibc's default mmap threshold.
_TRIM_VARIABLE, _DEFAULT_MMAP_BYTES = "MALLOC_TRIM_THRESHOLD_", 1 << 17

_lock = threading.Lock()
_users = 0


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep memory of arrays for the next ones meanwhile; then give it back at once."""
    trim = os.environ.get(_TRIM_VARIABLE, "")
    if not trim.isdecimal() or not _has_glibc():
        yield  # the allocator learns by itself
        return
    # By default glibc raises both thresholds as it learns; setting one of them, as Dask does, ends
    # that.
    _count_user(1, int(trim))
    try:
        yield
    finally:
        _count_user(-1, int(trim))


def _has_glibc() -> bool:
    """Return whether this process's allocator is glibc's."""
    try:
        return hasattr(ctypes.CDLL(None), "mallopt")
    except (TypeError, OSError):  # Windows has no library of the process itself
        return False


def _count_user(by: int, trim: int) -> None:
    """Count those who want memory kept; the first and the last of them tell the allocator."""
    global _users
    glibc = ctypes.CDLL(None)
    with _lock:
        _users += by
        if by == 1 and _users == 1:
            glibc.mallopt(_MMAP_THRESHOLD, _KEPT_ARRAY_BYTES)
            glibc.mallopt(_TRIM_THRESHOLD, _KEPT_TOP_BYTES)
        elif _users == 0:
            glibc.mallopt(_MMAP_THRESHOLD, _DEFAULT_MMAP_BYTES)
            glibc.mallopt(_TRIM_THRESHOLD, trim)
            glibc.malloc_trim(0)
