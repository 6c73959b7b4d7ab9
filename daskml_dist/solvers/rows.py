"""Rows as a statistic takes them: some at a time, dense or sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.numpy_backend import CSRRows
from daskml_dist.backends.row_slices import row_slices

__all__ = ["as_dense", "elementwise", "row_blocks"]

#: Bytes of dense float64 rows that are worked on together, and stay in a cache meanwhile.
_BLOCK = 1 << 18


def row_blocks(X: Any, *, dense: bool = False) -> Iterator[slice]:
    """Slices of X to be worked on one after the other; sparse rows are one, unless made dense."""
    n_rows, n_features = X.shape
    at_once = isinstance(X, CSRRows) and not dense
    return row_slices(n_rows, n_rows if at_once else _BLOCK // (8 * max(1, n_features)))


def elementwise(function: Callable[[Any], Any], X: Any) -> Any:
    """Apply a function that keeps zeros to all entries, in their dtype."""
    if not isinstance(X, CSRRows):
        return function(X).astype(X.dtype, copy=False)
    stored = X.X
    data = function(stored.data).astype(X.dtype, copy=False)
    return CSRRows(type(stored)((data, stored.indices, stored.indptr), shape=stored.shape), X.rows)


def as_dense(X: Any) -> NDArray[np.float64]:
    """The rows as a dense array."""
    rows = X.X[X.rows].toarray() if isinstance(X, CSRRows) else X
    return np.asarray(rows, dtype=np.float64)
