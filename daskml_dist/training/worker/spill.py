"""Room for what a trainer makes of its rows: in memory while it fits, else in files that it maps.

A file has no name, so nothing is left of it whatever ends the process. Its pages count as the
process's memory for as long as they are mapped, and Dask ends a worker for them as for others:
beyond a bound they are let go, and come again from the system's cache or the disk.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
import threading
import weakref
from itertools import count
from pathlib import Path
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import TrainingError

__all__ = ["SpillStore"]

Array = NDArray[Any]

#: Seconds between two looks at the mapped pages.
_EVERY = 0.02
#: Bytes of mapped pages that may stay at least.
_LEAST = 2**26
_STATM = Path("/proc/self/statm")


class SpillStore:
    """Room for arrays that live as long as somebody holds them.

    Parameters
    ----------
    budget : float
        Bytes of them in memory at most; half as many of mapped pages stay.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self._numbers = count()
        self._held: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._over = threading.Event()
        self._watch: threading.Thread | None = None
        self._at_first: int | None = None
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Array of zeros.

        Raises
        ------
        TrainingError
            There is no room on the disk.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            if not size or size + sum(a.nbytes for a in self._held.values()) <= self.budget:
                found = np.zeros(shape, dtype)
                self._held[next(self._numbers)] = found
                return found
        mapped = _mapped(size)
        with self._lock:
            self._maps.add(mapped)
            self._begin()
        return np.frombuffer(mapped, dtype).reshape(shape)

    def begin(self) -> None:
        """Go on in a thread that may be another: pages are watched again."""
        self._over.clear()
        if self._maps:
            self._begin()

    def end(self) -> None:
        """Let nothing be watched any more; arrays stay."""
        self._over.set()
        if self._watch is not None:
            self._watch.join()
            self._watch = None

    def _begin(self) -> None:
        if self._watch is None and hasattr(mmap, "MADV_DONTNEED") and _STATM.exists():
            if self._at_first is None:
                self._at_first = _file_pages()
            self._watch = threading.Thread(target=self._let_go, daemon=True)
            self._watch.start()

    def _let_go(self) -> None:
        at_first = self._at_first or 0
        most = max(self.budget / 2, _LEAST) / mmap.PAGESIZE
        while not self._over.wait(_EVERY):
            if _file_pages() - at_first > most:
                with self._lock:
                    maps = list(self._maps)
                for mapped in maps:
                    # What was written stays in the file: the mapping is shared.
                    mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(size: int) -> mmap.mmap:
    """A file of so many zeros, mapped."""
    folder = dask.config.get("temporary-directory", None)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # A write to a mapped page for which the disk has no room would end the process.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        where = folder or tempfile.gettempdir()
        raise TrainingError(
            f"What is made of the rows does not fit in memory, and {where} has no room for "
            f"{size:,} bytes of it ({error.strerror}). Set Dask's temporary-directory to a larger "
            "disk, raise memory_budget, or use more workers."
        ) from error


def _file_pages() -> int:
    """Pages of files, and of memory that is shared, in the process's memory."""
    with contextlib.suppress(OSError):
        return int(_STATM.read_text().split()[2])
    return 0
