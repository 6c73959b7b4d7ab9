"""Statistics of columns: of rows in any order in memory, a few values of each column at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.backends.row_slices import row_slices
from daskml_dist.errors import InvalidDataError

__all__ = ["check_no_infinity", "column_moments", "column_ranges"]

Numbers = NDArray[np.float64]

#: Values of a column, and columns, that are worked on together and stay in the cache.
_VALUES, _BYTES, _COLUMNS = 8192, 2**19, 256


def column_ranges(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Least and greatest value of each column; NaN counts as missing.

    Parameters
    ----------
    rows : ndarray of float32 or float64 of shape (n_rows, n_columns)
        C- or Fortran-ordered.

    Returns
    -------
    low, high : ndarray of shape (n_columns,)
        Of the dtype of `rows`; NaN of a column without values.

    Raises
    ------
    InvalidDataError
        For infinity.
    """
    low, high = np.full((2, rows.shape[1]), np.nan, dtype=rows.dtype)
    for at, tile in _tiles(rows, rows.dtype):
        np.fmin(low[at], np.fmin.reduce(tile, axis=1), out=low[at])
        np.fmax(high[at], np.fmax.reduce(tile, axis=1), out=high[at])
    check_no_infinity(low)
    check_no_infinity(high)
    return low, high


def column_moments(rows: NDArray[Any]) -> tuple[Numbers, Numbers, Numbers]:
    """Number of values of each column, their mean and their variance; NaN counts as missing.

    Those of a few values at a time, in two steps (their mean, then the deviations from it), are
    merged as in Chan, Golub and LeVeque (1983), so that no digits are lost to a large mean.

    Parameters
    ----------
    rows : ndarray of float32 or float64 of shape (n_rows, n_columns)
        C- or Fortran-ordered.

    Returns
    -------
    count, mean, var : ndarray of float64 of shape (n_columns,)
        NaN for mean and variance of a column without values.

    Raises
    ------
    InvalidDataError
        For infinity.
    """
    count, mean, squares = np.zeros((3, rows.shape[1]))
    for at, tile in _tiles(rows, np.float64):
        n, m, s = _moments(tile)
        together = count[at] + n
        share = n / np.maximum(together, 1)
        apart = m - mean[at]
        squares[at] += s + apart**2 * count[at] * share
        mean[at] += apart * share
        count[at] = together
    some = np.where(count > 0, count, np.nan)
    return count, np.where(count > 0, mean, np.nan), squares / some


def check_no_infinity(values: NDArray[Any]) -> None:
    """Check that values, or what shows theirs, are finite or NaN.

    Raises
    ------
    InvalidDataError
        They are not.
    """
    if np.isinf(values).any():
        raise InvalidDataError(
            "Input X contains infinity. Replace it, for example X.replace([inf, -inf], nan)."
        )


def _tiles(rows: NDArray[Any], dtype: DTypeLike) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Some columns, and some values of each, of shape (n_columns, n_values); not to be changed."""
    n_rows, n_columns = rows.shape
    itemsize = np.dtype(dtype).itemsize
    # Columns that lie so already are read in their place.
    ready = rows.dtype == dtype and rows.flags.f_contiguous and rows.flags.aligned
    for at in row_slices(n_columns, _COLUMNS):
        columns = rows[:, at].T
        size = min(_VALUES, _BYTES // (itemsize * len(columns)), n_rows)
        place = None if ready else np.empty((len(columns), size), dtype)
        for some in row_slices(n_rows, size):
            tile = columns[:, some]
            if place is not None:
                copied = place[:, : tile.shape[1]]
                copied[...] = tile
                tile = copied
            yield at, tile


def _moments(tile: Numbers) -> tuple[Any, Numbers, Numbers]:
    """Number of values of each column, mean, and sum of squared deviations from it."""
    n: Any = tile.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        total = tile.sum(axis=1)
    missing = None
    if np.isnan(total).any() or np.isinf(total).any():
        check_no_infinity(tile)
        missing = np.isnan(tile)
        tile = np.where(missing, 0.0, tile)
        n, total = n - missing.sum(axis=1), tile.sum(axis=1)
    mean = total / np.maximum(n, 1)
    apart = tile - mean[:, None]
    if missing is not None:
        np.copyto(apart, 0.0, where=missing)
    return n, mean, np.einsum("ij,ij->i", apart, apart)
