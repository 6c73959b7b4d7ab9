"""Prediction over collections: a function of rows mapped over blocks, lazily where X is lazy."""

from __future__ import annotations

from collections.abc import Callable
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

__all__ = ["map_rows"]

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
    if isinstance(rows, np.ndarray):
        size = max(_MOST_BYTES // (rows.itemsize * max(rows.shape[1], 1)), _FEWEST_ROWS)
        if rows.shape[0] > size:
            return _in_pieces(rows, function, index, np.empty(shape, dtype=dtype), size)
    check_finite_rows(rows, index)
    return np.asarray(function(rows), dtype=dtype).reshape(shape)


def _in_pieces(
    rows: NDArray[Any],
    function: Callable[[Any], NDArray[Any]],
    index: int | None,
    out: NDArray[Any],
    size: int,
) -> NDArray[Any]:
    """Result of a block, a few rows at a time: what is made of them stays in the cache."""
    try:
        for start in range(0, len(rows), size):
            piece = rows[start : start + size]
            check_finite_rows(piece, index)
            out[start : start + size] = np.reshape(function(piece), (-1, *out.shape[1:]))
    except InvalidDataError:
        check_finite_rows(rows, index)  # which names the row by its place in the block
        raise
    return out


def _check_n_features(X: Any, expected: int | None) -> None:
    found = feature_count(X)
    if expected is not None and found is not None and found != expected:
        raise InvalidDataError(
            f"X has {found} features, but estimator is expecting {expected} features as input. "
            "Select the columns that it was fitted on."
        )
