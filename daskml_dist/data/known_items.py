"""Baskets of which some entries are unknown, as columns of what is there and of what is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.delayed import delayed
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.lazy import is_dask, is_dask_frame
from daskml_dist.data.lowering import frame_pieces
from daskml_dist.data.optional import load_pandas
from daskml_dist.errors import InvalidDataError

__all__ = ["mark_known"]


def mark_known(X: Any) -> Any:
    """Return baskets with two columns an item: all whether it is there, then all whether known.

    Parameters
    ----------
    X : array-like, pandas.DataFrame, dask Array or dask DataFrame
        Of shape (n_rows, n_items); NaN, None and ``pandas.NA`` are unknown.

    Returns
    -------
    ndarray, dask Array, or list of delayed ndarray, of bool
        Of shape (n_rows, 2 * n_items).

    Raises
    ------
    InvalidDataError
        The rows are sparse, or not two-dimensional; of a part where it is computed: entries are
        negative, infinite or no numbers.
    """
    if hasattr(getattr(X, "_meta", X), "tocsr"):
        raise InvalidDataError(
            "X is sparse, and entries that are not stored are known to be zero. Leave null_values "
            "out, or give dense rows: X.toarray()."
        )
    if is_dask_frame(X):
        mark = delayed(_mark_block, pure=False)
        return [mark(part) for part in frame_pieces(X)]
    if not is_dask(X):
        return _mark_block(X if hasattr(X, "shape") else np.asarray(X))
    _check_table(X)
    X = X.rechunk({1: -1})
    chunks = X.chunks[0], (2 * X.shape[1],)
    return X.map_blocks(_mark_block, dtype=np.bool_, chunks=chunks, meta=np.empty((0, 0), np.bool_))


def _mark_block(block: Any) -> NDArray[np.bool_]:
    """Return which entries of rows in memory are above zero, and which are known."""
    _check_table(block)
    if not is_dataframe_like(block) and block.dtype.kind == "O":
        block = load_pandas().DataFrame(block)
    try:
        if is_dataframe_like(block):
            values = block.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            values = block.astype(np.float64, copy=False)
    except (ValueError, TypeError) as error:
        raise InvalidDataError(
            f"X holds what is no number ({error}). An entry tells whether an item is in a basket: "
            "give 0, 1, or NaN where nobody knows."
        ) from error
    if (values < 0).any() or np.isinf(values).any():
        raise InvalidDataError(
            "X holds entries below zero or infinite. An entry tells whether, or how much of, an "
            "item is in a basket: make it zero or more, or NaN where nobody knows."
        )
    known = ~np.isnan(values)
    return np.hstack([known & (values != 0), known])


def _check_table(X: Any) -> None:
    if X.ndim != 2:
        raise InvalidDataError(
            f"X has {X.ndim} dimensions. Give a row for each basket and a column for each item."
        )
