"""Arrays with a growing number of rows, in memory or in a mapped file without a name."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bytes that a processor fetches together; rows of this size are aligned to it.
_CACHE_LINE_BYTES = 64


class GrowingArray:
    """Matrix with a growing number of rows, in memory or in a mapped file without a name.

    Parameters
    ----------
    width : int
    dtype : dtype
    scattered : bool
        Whether its rows are mostly read in random order.
    """

    def __init__(self, width: int, dtype: Any, scattered: bool) -> None:
        self.values: NDArray[Any] = np.empty((0, width), dtype)
        self._scattered = scattered
        #: Rows for which memory, or the mapped file, has room; `values` are the first of them.
        self._reserved_rows = self.values
        self._file: int | None = None
        #: The current mapping of the file, and whether `values` lie in it.
        self._mapped: mmap.mmap | None = None
        self.is_mapped = False

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        width: int = self.values.shape[1]
        return width * self.values.dtype.itemsize

    def extend(self, n_rows: int, reserved: int, folder: str | None) -> NDArray[Any]:
        """Return an array of more rows, starting with the present ones, to pass to `take_over`.

        Parameters
        ----------
        n_rows : int
        reserved : int
            Rows for which memory is reserved; 0: they go into a mapped file. Once there, the array
            stays there and grows with the file: nothing is copied, and arrays that were handed out
            before are views of the same file.
        folder : str or None
            Folder of the file.
        """
        if reserved and n_rows <= len(self._reserved_rows):
            return self._reserved_rows
        old_values = self.values
        if reserved:
            extended = _reserve_memory(n_rows, max(reserved, n_rows), old_values)
        else:
            mapped = self._map(n_rows * self.row_bytes, folder)
            extended = np.frombuffer(mapped, old_values.dtype).reshape(n_rows, -1)
        if not self.is_mapped:
            extended[: len(old_values)] = old_values
        return extended

    def take_over(self, extended: NDArray[Any], n_rows: int) -> None:
        """Use the first `n_rows` rows of the extended array from now on."""
        self._reserved_rows, self.values = extended, extended[:n_rows]
        self.is_mapped = self._file is not None

    def _map(self, size: int, folder: str | None) -> mmap.mmap:
        """Return a mapping of the file's first bytes, creating or extending the file as needed."""
        if self._file is None:
            # The file has no name once it is open, so the system frees it with its last user.
            with tempfile.TemporaryFile(prefix="daskml-dist-rows-", dir=folder) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
        # Writing to a mapped page without space on the disk would kill the process, so space is
        # allocated.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file, 0, size)
        os.ftruncate(self._file, size)
        mapped = mmap.mmap(self._file, size)
        # If the file is larger than memory, reading ahead of a random row would only waste memory.
        if self._scattered and hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        self._mapped = mapped
        return mapped

    def release_pages(self) -> None:
        """Release the pages of the file that are in memory; they stay in the file."""
        # Written data is not lost: the mapping is shared with the file.
        if self._mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


def _reserve_memory(n_rows: int, reserved: int, like: NDArray[Any]) -> NDArray[Any]:
    """Return zeros for at least `n_rows` rows, and for `reserved` if the system allows it.

    Pages that are never written to are not committed, so reserving them costs nothing.
    """
    row_bytes = like.shape[1] * like.dtype.itemsize
    try:
        memory = np.zeros(reserved * row_bytes + _CACHE_LINE_BYTES, np.uint8)
    except MemoryError:
        reserved = n_rows
        memory = np.zeros(reserved * row_bytes + _CACHE_LINE_BYTES, np.uint8)
    # Aligned to a cache line, so that rows of 64 bytes never straddle two.
    n_skipped = -memory.ctypes.data % _CACHE_LINE_BYTES
    memory = memory[n_skipped : n_skipped + reserved * row_bytes]
    return memory.view(like.dtype).reshape(reserved, like.shape[1])
