"""What a trainer remembers of the sums of a solver, to make none of them twice after a loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SumLog"]

#: Bytes of sums that a trainer remembers at most; a solver that needs more begins anew.
_MEMORY = 2**28
#: Bytes of memory that is got at once for several large sums: in large pages it costs half.
_SLAB = 2**25
_LARGE = 2**20

Array = NDArray[np.float64]


class SumLog:
    """The sums so far, and the rows that they were made of.

    Parameters
    ----------
    n_rows : int

    Attributes
    ----------
    sums : list of ndarray
        Read-only: whoever asks for a sum sees what is remembered.
    is_whole : bool
        Whether no sum has been forgotten.
    """

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.sums: list[Array] = []
        self.is_whole = True
        self._n_bytes = 0
        self._slab: Array = np.empty(0)

    def room(self, n: int) -> Array:
        """Memory for the next sum, of `n` numbers."""
        if not (self.is_whole and _LARGE <= 8 * n <= _SLAB // 2):
            return np.empty(n)
        if len(self._slab) < n:
            self._slab = np.empty(_SLAB // 8)
        room, self._slab = self._slab[:n], self._slab[n:]
        return room

    def add(self, total: Array) -> None:
        """Remember a sum as it is: whoever sees it may not change it."""
        total.flags.writeable = False
        if not self.is_whole:
            return
        self._n_bytes += total.nbytes
        self.sums.append(total)
        if self._n_bytes > _MEMORY:
            self.sums, self.is_whole, self._slab = [], False, np.empty(0)

    def become(self, sums: list[Array]) -> None:
        """Remember what another trainer does."""
        self.sums, self._n_bytes = [], 0
        for total in sums:
            self.add(total)
