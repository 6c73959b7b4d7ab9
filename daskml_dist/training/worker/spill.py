"""Store of arrays computed from a trainer's rows: in memory if they fit, else in mapped files.

A file has no name, so nothing is left of it however the process ends. Its pages count as memory of
the process while they are mapped, and Dask would kill the worker for them. So pages beyond a bound
are released; they are read again from the system's cache or the disk.
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

Array = NDArray[Any]

#: Seconds between two counts of the mapped pages: memory grows by at most a few hundred MB in this
#: time.
_WATCH_SECONDS = 0.02
#: Bytes of mapped pages that may always stay in memory.
_LEAST_MAPPED_BYTES = 2**26
_STATM = Path("/proc/self/statm")


class SpillStore:
    """Allocator of arrays that spill to mapped files beyond a budget.

    Parameters
    ----------
    budget : float
        Most bytes of arrays in memory; of mapped pages, half as many stay in memory.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self._array_ids = count()
        self._live_arrays: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._stop_event = threading.Event()
        self._watch: threading.Thread | None = None
        self._at_first: int | None = None
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of zeros, in memory or in a mapped file."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            # In memory as long as all live arrays together fit into the budget.
            if not size or size + sum(a.nbytes for a in self._live_arrays.values()) <= self.budget:
                array = np.zeros(shape, dtype)
                self._live_arrays[next(self._array_ids)] = array
                return array
        # Outside the lock, since reserving disk space may take long.
        mapped_file = _map_zeros(size)
        with self._lock:
            self._maps.add(mapped_file)
            self._start_watching()
        return np.frombuffer(mapped_file, dtype).reshape(shape)

    def begin(self) -> None:
        """Resume watching the mapped pages, at the start of a generation."""
        self._stop_event.clear()
        if self._maps:
            self._start_watching()

    def end(self) -> None:
        """Stop watching the mapped pages; arrays stay valid."""
        self._stop_event.set()
        if self._watch is not None:
            self._watch.join()
            self._watch = None

    def _start_watching(self) -> None:
        """Start the thread that releases mapped pages, if the system supports it."""
        if self._watch is None and hasattr(mmap, "MADV_DONTNEED") and _STATM.exists():
            if self._at_first is None:
                self._at_first = _count_file_pages()
            # Dask measures the process's memory several times a second, so pages must be released
            # more often.
            self._watch = threading.Thread(target=self._release_pages, daemon=True)
            self._watch.start()

    def _release_pages(self) -> None:
        """Release mapped pages while more than the bound are in memory."""
        at_first = self._at_first or 0
        max_pages = max(self.budget / 2, _LEAST_MAPPED_BYTES) / mmap.PAGESIZE
        while not self._stop_event.wait(_WATCH_SECONDS):
            if _count_file_pages() - at_first > max_pages:
                with self._lock:
                    mapped_files = list(self._maps)
                for mapped_file in mapped_files:
                    # Written data stays in the file, since the mapping is shared.
                    mapped_file.madvise(mmap.MADV_DONTNEED)


def _map_zeros(size: int) -> mmap.mmap:
    """Return an anonymous mapped file of `size` zero bytes."""
    folder = dask.config.get("temporary-directory", None)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Writing to a mapped page without space on the disk would kill the process, so space is
            # allocated.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        folder_used = folder or tempfile.gettempdir()
        raise TrainingError(
            f"Data computed from the rows does not fit in memory, and {folder_used} has no space "
            f"for {size:,} bytes of it ({error.strerror}). Set Dask's temporary-directory to a "
            "larger disk, raise memory_budget, or use more workers."
        ) from error


def _count_file_pages() -> int:
    """Return the number of file and shared-memory pages that the process has in memory."""
    with contextlib.suppress(OSError):
        return int(_STATM.read_text().split()[2])
    return 0
