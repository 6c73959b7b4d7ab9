"""Arrays whose rows grow in number, in memory or in a mapped file that has no name."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What a processor fetches at once: rows of as many bytes begin where one does.
_CACHE_LINE_BYTES = 64


class GrowingArray:
    """Matrix whose rows grow in number: in memory, or in a mapped file that has no name.

    Parameters
    ----------
    width : int
    dtype : dtype
    scattered : bool
        Whether its rows are read at random places mostly.
    """

    def __init__(self, width: int, dtype: Any, scattered: bool) -> None:
        self.values: NDArray[Any] = np.empty((0, width), dtype)
        self._scattered = scattered
        #: Rows for which memory, or the mapped file, has room: the first are `values`.
        self._room = self.values
        self._file: int | None = None
        #: The file as it is mapped now, and whether `values` lie there.
        self._mapped: mmap.mmap | None = None
        self.is_mapped = False

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        width: int = self.values.shape[1]
        return width * self.values.dtype.itemsize

    def extend(self, n_rows: int, reserved: int, folder: str | None) -> NDArray[Any]:
        """Return room for more rows, of which the first are the present ones, to take over.

        Parameters
        ----------
        n_rows : int
        reserved : int
            Rows for which memory is reserved; 0: they go into a mapped file. Once there the array
            stays there and grows with the file: nothing is copied, and arrays that were given out
            before are parts of the new one.
        folder : str or None
            Of the file.
        """
        if reserved and n_rows <= len(self._room):
            return self._room
        before = self.values
        if reserved:
            room = _reserve_memory(n_rows, max(reserved, n_rows), before)
        else:
            mapped = self._map(n_rows * self.row_bytes, folder)
            room = np.frombuffer(mapped, before.dtype).reshape(n_rows, -1)
        if not self.is_mapped:
            room[: len(before)] = before
        return room

    def take_over(self, room: NDArray[Any], n_rows: int) -> None:
        """Hold the first rows of extended room from now on."""
        self._room, self.values, self.is_mapped = room, room[:n_rows], self._file is not None

    def _map(self, size: int, folder: str | None) -> mmap.mmap:
        """Return the first bytes of the file, mapped; it is made or extended as needed."""
        if self._file is None:
            # The file has no name once it is open, so the system frees it with its last user.
            with tempfile.TemporaryFile(prefix="daskml-dist-rows-", dir=folder) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
        # A write to a mapped page for which the disk has no room would end the process.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file, 0, size)
        os.ftruncate(self._file, size)
        mapped = mmap.mmap(self._file, size)
        # Where the file is larger than memory, the pages beside one that is read are not wanted.
        if self._scattered and hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        self._mapped = mapped
        return mapped

    def release_pages(self) -> None:
        """Let go of the pages of the file that are in memory; they stay in the file."""
        # What was written is not lost: the mapping is shared.
        if self._mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


def _reserve_memory(n_rows: int, reserved: int, like: NDArray[Any]) -> NDArray[Any]:
    """Return zeros for some rows at least, and for more if the system reserves as much memory.

    Memory that was never written to is not committed, and is not paid for.
    """
    row_bytes = like.shape[1] * like.dtype.itemsize
    try:
        memory = np.zeros(reserved * row_bytes + _CACHE_LINE_BYTES, np.uint8)
    except MemoryError:
        reserved = n_rows
        memory = np.zeros(reserved * row_bytes + _CACHE_LINE_BYTES, np.uint8)
    # From the start of a cache line on, so that rows of 64 bytes never lie in two.
    skipped = -memory.ctypes.data % _CACHE_LINE_BYTES
    memory = memory[skipped : skipped + reserved * row_bytes]
    return memory.view(like.dtype).reshape(reserved, like.shape[1])
