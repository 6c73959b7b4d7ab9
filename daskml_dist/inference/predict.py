"""Prediction over collections: a function of rows mapped over blocks, lazily where X is lazy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.data.blocks import check_finite_rows
from daskml_dist.data.collection import check_rows, feature_count
from daskml_dist.data.conversion import as_rows
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError
from daskml_dist.inference.transform import map_pieces

__all__ = ["map_rows", "row_pieces"]

#: Bytes of dense rows that are worked on at once, and rows that are worth a call.
_MOST_BYTES, _FEWEST_ROWS = 2**18, 256


def map_rows(
    function: Callable[[Any], NDArray[Any]],
    X: Any,
    *,
    dtype: DTypeLike,
    n_outputs: int | None = None,
    n_features: int | None = None,
) -> Any:
    """Apply a function of rows to X.

    Parameters
    ----------
    function : callable
        Takes a float32 or float64 array (C-contiguous) or CSR matrix of shape (n, n_features) and
        returns an array of shape (n,) or (n, n_outputs). Picklable. Not called for empty blocks.
    X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
        Of shape (n_rows, n_features).
    dtype : dtype
        Of the result; labels may be strings or objects.
    n_outputs : int, optional
        Columns of the result; None for a one-dimensional one.
    n_features : int, optional
        Columns that `X` must have.

    Returns
    -------
    ndarray or dask Array of shape (n_rows,) or (n_rows, n_outputs)
        Lazy where `X` is, with the row chunks of `X` (of unknown sizes for a dataframe).

    Raises
    ------
    InvalidDataError
        `X` is not two-dimensional or not numeric, or has another number of features. Of a block
        with NaN or infinity: at once, or when the result is computed.
    """
    X = check_rows(X)
    _check_n_features(X, n_features)
    apply = partial(_apply, dtype=np.dtype(dtype), n_outputs=n_outputs)
    if not is_dask(X):
        return apply(X, function)
    empty = np.empty((0,) if n_outputs is None else (0, n_outputs), dtype=dtype)
    return map_pieces(apply, function, X, empty)


def _apply(
    X: Any,
    function: Callable[[Any], NDArray[Any]],
    index: int | None = None,
    *,
    dtype: np.dtype[Any],
    n_outputs: int | None,
) -> NDArray[Any]:
    """Result of one block."""
    rows = as_rows(X, index=index)
    shape = (rows.shape[0],) if n_outputs is None else (rows.shape[0], n_outputs)
    if rows.shape[0] == 0:
        return np.empty(shape, dtype=dtype)
    out: NDArray[Any] | None = None
    for at, piece in row_pieces(rows, index):
        result = np.asarray(function(piece), dtype=dtype).reshape(-1, *shape[1:])
        if len(result) == rows.shape[0]:
            return result
        if out is None:
            out = np.empty(shape, dtype=dtype)
        out[at] = result
    assert out is not None
    return out


def row_pieces(rows: Any, index: int | None) -> Iterator[tuple[slice, Any]]:
    """A block of rows, a few at a time where they are dense: what is made of them stays in cache.

    Parameters
    ----------
    rows : ndarray or CSR matrix of shape (n_rows, n_features)
    index : int or None
        Of the block, for errors.

    Yields
    ------
    slice, ndarray or CSR matrix
        Where the piece lies; its rows, finite and aligned in memory, as what came over a network
        need not be.

    Raises
    ------
    InvalidDataError
        For NaN and infinity.
    """
    n_rows, n_features = rows.shape
    is_dense = isinstance(rows, np.ndarray)
    size = max(n_rows, 1)
    if is_dense:
        size = max(_MOST_BYTES // (rows.itemsize * max(n_features, 1)), _FEWEST_ROWS)
    for start in range(0, n_rows, size):
        at = slice(start, min(start + size, n_rows))
        piece = np.require(rows[at], requirements=["C", "A"]) if is_dense else rows
        try:
            check_finite_rows(piece, index)
        except InvalidDataError:
            check_finite_rows(rows, index)  # it names the row by its place in the block
            raise
        yield at, piece


def _check_n_features(X: Any, expected: int | None) -> None:
    found = feature_count(X)
    if expected is not None and found is not None and found != expected:
        raise InvalidDataError(
            f"X has {found} features, but estimator is expecting {expected} features as input. "
            "Select the columns that it was fitted on."
        )
