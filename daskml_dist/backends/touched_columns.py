"""Columns that sparse rows of a batch touch, and the rows' numbers of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.csr_rows import CSRRows

__all__ = ["TouchedColumns"]


class TouchedColumns:
    """Search for the columns of batches, in memory that is used again. Used by one thread."""

    def __init__(self) -> None:
        self._seen = np.empty(0, dtype=np.bool_)
        self._position = np.empty(0, dtype=np.int32)
        self._numbered: NDArray[np.int64] | None = None

    def find(self, pieces: list[CSRRows]) -> NDArray[np.int64]:
        """Sorted unique columns of the pieces; the pieces are renumbered to them."""
        from daskml_dist.backends import csr_kernels

        n_features = pieces[0].shape[1]
        if len(self._seen) < n_features:
            self._seen = np.zeros(n_features, dtype=np.bool_)
            self._position = np.empty(n_features, dtype=np.int32)
            self._numbered = None
        found = [
            csr_kernels.new_columns(p.X.indptr, p.X.indices, p.X.data, p.rows, self._seen)
            for p in pieces
        ]
        columns = np.sort(np.concatenate(found))
        self._seen[columns] = False
        for piece in pieces:
            piece.columns = columns
        return columns

    def positions(self, columns: NDArray[np.int64]) -> NDArray[np.int32]:
        """The number of each of some columns, at its place among all."""
        # Only entries of touched columns are read, so the rest may hold old numbers.
        if self._numbered is not columns:
            self._position[columns] = np.arange(len(columns), dtype=np.int32)
            self._numbered = columns
        return self._position
