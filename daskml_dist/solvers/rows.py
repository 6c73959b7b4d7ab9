"""Helpers of statistics: rows in tiles, dense or sparse, on any device; and a check of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from daskml_dist.backends.base import Backend, is_sparse
from daskml_dist.backends.namespace import arithmetic_dtype, cast, namespace, ones, total
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.errors import DivergedError
from daskml_dist.solvers.base import Array, Statistic, Sums

#: Bytes of dense float64 rows of a tile (256 KiB): they stay in a core's L2 cache.
_CACHE_BYTES = 1 << 18


def request_finite_sum(sums: Sums, statistic: Statistic) -> Array:
    """Return the sum of a statistic of the rows' squares; raise if it is not finite.

    Trainers have already refused NaN and infinity in X, so the cause can only be an overflow.
    """
    total = sums(statistic)
    check_squares_finite(total)
    return total


def check_squares_finite(sums: Any) -> None:
    """Raise `DivergedError` if sums of squares of the rows are NaN or infinite."""
    if not np.isfinite(sums).all():
        raise DivergedError(
            "The squares of the rows overflow. Scale the features (StandardScaler), or use float64."
        )


def row_tiles(
    X: Any, backend: Backend, *, dense: bool = False, cached: int = _CACHE_BYTES, at_least: int = 1
) -> Iterator[slice]:
    """Yield slices of X to process in turn; sparse rows are one slice, unless made dense."""
    n_rows, n_features = X.shape
    # A GPU takes large tiles; a CPU takes tiles that fit in its cache.
    entries = backend.entries_at_once or cached // 8
    at_once = is_sparse(X) and not dense
    step = n_rows if at_once else max(entries // max(1, n_features), at_least)
    return row_slices(n_rows, step)


def to_rows_dtype(array: Array, X: Any, backend: Backend) -> Any:
    """Copy a statistic's array to the rows' device, in the dtype of their arithmetic."""
    return cast(backend.to_device(array), arithmetic_dtype(X))


def to_float64(X: Any) -> Any:
    """Return the rows in float64; sparse rows stay sparse."""
    if is_sparse(X):
        return X.with_values(to_float64(X.values))
    return cast(X, namespace(X).float64)


def map_entries(function: Callable[[Any], Any], X: Any) -> Any:
    """Apply a function that keeps zeros to all entries, in their dtype."""
    if is_sparse(X):
        return X.with_values(map_entries(function, X.values))
    return cast(function(X), X.dtype)


def to_dense_float64(X: Any) -> Any:
    """Return the rows as a dense float64 array."""
    rows = X.toarray() if is_sparse(X) else X
    return cast(rows, namespace(rows).float64)


def sum_of_rows(X: Any, weight: Any | None, backend: Backend) -> Any:
    """Return the weighted sum of all entries of some rows, in float64, on their device."""
    if weight is None and not is_sparse(X):
        return total(X, dtype=namespace(X).float64)
    values = X.values if is_sparse(X) else X
    xp = namespace(values)
    ones_column = ones((X.shape[1], 1), arithmetic_dtype(values), like=values)
    row_sums = xp.reshape(backend.dot(X, ones_column), (-1,))
    row_sums = row_sums if weight is None else row_sums * cast(weight, row_sums.dtype)
    return total(cast(row_sums, xp.float64))


def sum_of_squares(X: Any, weight: Any | None, backend: Backend) -> Any:
    """Return the weighted sum of all squares of some rows, in float64, on their device."""
    return sum_of_rows(map_entries(lambda entries: entries * entries, X), weight, backend)
