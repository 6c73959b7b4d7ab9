"""Entries of a sparse matrix put into the order of its rows, and of its columns in each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["in_rows"]

Array = NDArray[Any]

#: Entries from which compiled counting is worth loading numba for.
_MANY = 1 << 18


def in_rows(
    rows: Array, columns: Array, values: Array | None, shape: tuple[int, int]
) -> tuple[NDArray[np.int64], Array, Array | None]:
    """Entries as a CSR matrix; those of the same row and column stay apart, in their order.

    Parameters
    ----------
    rows, columns : ndarray of int32 of shape (n_entries,)
    values : ndarray of shape (n_entries,), or None
    shape : tuple of int

    Returns
    -------
    indptr : ndarray of int64 of shape (n_rows + 1,)
    indices : ndarray of int32 of shape (n_entries,)
    values : ndarray or None
    """
    if len(rows) < _MANY:
        order = _sorted(columns, shape[1])
        order = order[_sorted(rows[order], shape[0])]
        indptr = np.zeros(shape[0] + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=shape[0]), out=indptr[1:])
        return indptr, columns[order], None if values is None else values[order]
    from daskml_dist.backends import graph_kernels

    return graph_kernels.in_rows(rows, columns, values, shape)


def _sorted(keys: Array, n_keys: int) -> NDArray[np.intp]:
    """Order of some keys; NumPy counts keys of 16 bits instead of comparing them."""
    return np.argsort(keys.astype(np.uint16) if n_keys <= 1 << 16 else keys, kind="stable")
