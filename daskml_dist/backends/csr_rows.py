"""Chosen rows of CSR blocks on the host, and the columns that batches of them use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import SparseRows


class TouchedColumns:
    """Search for the columns that batches use, in reused memory; for one thread.

    A batch uses few of many columns, so nothing here may cost time proportional to all columns:
    marks are set and cleared only for used columns.
    """

    def __init__(self) -> None:
        #: Marks of all columns, all False between calls.
        self._is_seen = np.empty(0, dtype=np.bool_)
        #: Number of each column of `_numbered`, the columns that were numbered last.
        self._position = np.empty(0, dtype=np.int32)
        self._numbered: NDArray[np.int64] | None = None

    def find(self, row_views: list[CSRRows]) -> NDArray[np.int64]:
        """Return the sorted unique columns of the pieces, and renumber the pieces to them."""
        from daskml_dist.backends import csr_kernels

        n_features = row_views[0].shape[1]
        # Marks have the length of all features, and are kept between batches; only used ones are
        # reset.
        if len(self._is_seen) < n_features:
            self._is_seen = np.zeros(n_features, dtype=np.bool_)
            self._position = np.empty(n_features, dtype=np.int32)
            self._numbered = None
        piece_columns = [
            csr_kernels.find_new_columns(p.X.indptr, p.X.indices, p.X.data, p.rows, self._is_seen)
            for p in row_views
        ]
        columns = np.sort(np.concatenate(piece_columns))
        self._is_seen[columns] = False
        for piece in row_views:
            piece.columns = columns
        return columns

    def positions(self, columns: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return an array over all columns with each used column's number."""
        # Only entries of used columns are read, so the others may hold outdated numbers.
        if self._numbered is not columns:
            self._position[columns] = np.arange(len(columns), dtype=np.int32)
            self._numbered = columns
        return self._position


class CSRRows(SparseRows):
    """Chosen rows of a CSR block, without a copy of their entries.

    Parameters
    ----------
    X : scipy.sparse CSR matrix or array of shape (n, n_features)
    rows : ndarray of int of shape (n_rows,)
    """

    __slots__ = ("X", "columns", "rows", "shape")

    def __init__(self, X: Any, rows: NDArray[np.intp]) -> None:
        self.X = X
        self.rows = rows
        self.shape = (len(rows), X.shape[1])
        # Row i of the weights belongs to columns[i]; None if the weights have a row per column.
        self.columns: NDArray[np.int64] | None = None

    @property
    def dtype(self) -> Any:
        """Return the dtype of the entries."""
        return self.X.dtype

    @property
    def values(self) -> NDArray[Any]:
        """Return the entries of the whole block."""
        entries: NDArray[Any] = self.X.data
        return entries

    def with_values(self, values: Any) -> CSRRows:
        """Return the same rows with other entries in the same positions."""
        parts = values, self.X.indices, self.X.indptr
        return CSRRows(type(self.X)(parts, shape=self.X.shape), self.rows)

    def toarray(self) -> NDArray[Any]:
        """Return the rows as a dense array."""
        rows: NDArray[Any] = self.X[self.rows].toarray()
        return rows

    def __getitem__(self, row_slice: slice) -> CSRRows:
        """Return the rows of a slice."""
        return CSRRows(self.X, self.rows[row_slice])


def add_csr_gradient(
    kernel: str | None,
    X: CSRRows,
    touched: TouchedColumns,
    y: NDArray[Any],
    weight: NDArray[Any] | None,
    w: NDArray[Any],
    out: NDArray[Any],
    parameters: tuple[float, ...],
) -> float | None:
    """Add the gradient of the summed loss of rows to `out`; return the summed loss.

    Parameters
    ----------
    kernel : str or None
        Name of the loss's kernel.
    X : CSRRows
    touched : TouchedColumns
        Object that has found the columns used by the rows.
    y, weight : ndarray of shape (n,)
    w, out : ndarray of shape (n_touched, width)
    parameters : tuple of float
        Parameters of the loss.
    """
    from daskml_dist.backends import csr_kernels
    from daskml_dist.backends.elementary_functions import ROW_LOSSES

    block, columns = X.X, X.columns
    # None makes the caller use the general way: for other losses, dense steps, several outputs, or
    # dtypes for which the loop would have to be compiled again.
    same = X.dtype == y.dtype == w.dtype == out.dtype
    if kernel is None or kernel not in ROW_LOSSES:
        return None
    if columns is None or w.shape[1] > 1 or not same:
        return None
    run = csr_kernels.compile_row_gradients(kernel)
    weight = np.empty(0, block.dtype) if weight is None else weight
    return float(
        run(
            block.indptr, block.indices, block.data, X.rows, touched.positions(columns), y, weight,
            w[:, 0], out[:, 0], len(w) > len(columns), parameters,
        )
    )  # fmt: skip
