"""Sorting entries of a sparse matrix by row, and by column within each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Number of entries from which compiled counting sorts are worth loading numba (half a second).
MIN_COMPILED_ENTRIES = 1 << 18


class Entries(NamedTuple):
    """Part of the entries of a matrix, with local codes for their rows and columns.

    Parameters
    ----------
    rows, columns : ndarray of int32 of shape (n_entries,)
        Codes.
    values : ndarray of float of shape (n_entries,), or None
    row_of, column_of : ndarray of int32
        Row and column of the matrix for each code.
    """

    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: Array | None
    row_of: NDArray[np.int32]
    column_of: NDArray[np.int32]


#: Function that yields all entries, part by part, in the same order on each call.
Source = Callable[[], Iterable[Entries]]


def count_column_entries(read_entries: Source, n_columns: int) -> NDArray[np.int64]:
    """Return the number of entries in each column."""
    uses = np.zeros(n_columns, np.int64)
    for part in read_entries():
        # No column has two codes.
        uses[part.column_of] += np.bincount(part.columns, minlength=len(part.column_of))
    return uses


def sort_into_csr(
    read_entries: Source,
    n_rows: int,
    uses: NDArray[np.int64],
    column_ids: NDArray[np.int32],
    dtype: Any,
) -> tuple[NDArray[np.int64], NDArray[np.int32], Array | None]:
    """Return entries as a CSR matrix; duplicates are kept, in their order.

    Besides the entries and the result, it needs memory for the entries of some rows at a time.

    Parameters
    ----------
    read_entries : callable
        Yields the entries.
    n_rows : int
    uses : ndarray of int64 of shape (n_columns,)
        Entries of each column, from `count_column_entries`.
    column_ids : ndarray of int32 of shape (n_columns,)
        Number that represents each column in the matrix.
    dtype : dtype or None
        Dtype of the values; None: no values.

    Returns
    -------
    indptr : ndarray of int64 of shape (n_rows + 1,)
    indices : ndarray of int32 of shape (n_entries,)
        Within a row sorted by column, not by the representing numbers.
    values : ndarray or None
    """
    indptr = np.zeros(n_rows + 1, np.int64)
    for part in read_entries():
        indptr[1:][part.row_of] += np.bincount(part.rows, minlength=len(part.row_of))
    np.cumsum(indptr, out=indptr)
    # Many entries: two compiled counting sorts, without a copy of all entries.
    if indptr[-1] >= MIN_COMPILED_ENTRIES:
        from daskml_dist.backends import graph_kernels

        return indptr, *graph_kernels.sort_entries(read_entries, indptr, uses, column_ids, dtype)
    # Few entries: two stable sorts, the last by row.
    rows = np.concatenate([part.row_of[part.rows] for part in read_entries()])
    columns = np.concatenate([part.column_of[part.columns] for part in read_entries()])
    order = _stable_order(columns, len(uses))
    order = order[_stable_order(rows[order], n_rows)]
    values = None
    if dtype is not None:
        values = np.concatenate([part.values for part in read_entries()]).astype(dtype, copy=False)[
            order
        ]
    return indptr, column_ids[columns[order]], values


def _stable_order(keys: Array, n_keys: int) -> NDArray[np.intp]:
    """Return the stable order of keys; NumPy sorts 16-bit keys by counting."""
    return np.argsort(keys.astype(np.uint16) if n_keys <= 1 << 16 else keys, kind="stable")
