"""Rows that a user holds out, behind those of the fit."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError

__all__ = ["joined"]

Inputs = tuple[Any, Any, Any]


def joined(given: Inputs, held: Inputs) -> tuple[Inputs, tuple[str, int]]:
    """X, y and weights with those held out behind them.

    Returns
    -------
    tuple, (kind, n)
        The first n "rows", or "blocks", are those of the fit.

    Raises
    ------
    InvalidDataError
        The two cannot be put together.
    """
    given, held = _with_columns(given), _with_columns(held)
    if (given[2] is None) != (held[2] is None):
        given, held = _with_weights(given), _with_weights(held)
    n = _length(given[0])
    found: Any = tuple(
        None if a is None else _behind(a, b) for a, b in zip(given, held, strict=True)
    )
    if n is not None:
        return found, ("rows", n)
    return found, ("blocks", int(given[0].npartitions))


def _with_columns(inputs: Inputs) -> Inputs:
    from daskml_dist.data.collection import take_columns

    return take_columns(*inputs)


def _with_weights(inputs: Inputs) -> Inputs:
    """Weights of 1 where there are none."""
    X, y, weight = inputs
    if weight is not None:
        return inputs
    if is_dask(y):
        ones = y.map_partitions(_ones_like) if is_series_like(y) else da.ones_like(y, dtype=float)
        return X, y, ones
    return X, y, np.ones(len(y))


def _ones_like(y: Any) -> Any:
    return y.astype(object).map(lambda _: 1.0).astype(float)


def _length(X: Any) -> int | None:
    if is_dask(X) and (is_dataframe_like(X) or np.isnan(X.shape[0])):
        return None
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _behind(a: Any, b: Any) -> Any:
    """Rows of `b` behind those of `a`."""
    if np.isscalar(a) or np.isscalar(b):
        raise InvalidDataError(
            "With X_val, weights are to be given a row: a number for all rows has no length."
        )
    if is_dask(a) or is_dask(b):
        if is_dataframe_like(a) or is_series_like(a):
            import dask.dataframe as dd

            b = b if is_dask(b) else dd.from_pandas(b, npartitions=1)
            return dd.concat([a, b])
        parts = [v if is_dask(v) else da.from_array(np.asarray(v)) for v in (a, b)]
        if parts[0].ndim == 2:
            parts = [v.rechunk({1: -1}) for v in parts]
        return da.concatenate(parts)
    if hasattr(a, "iloc"):
        import pandas as pd

        return pd.concat([a, b], ignore_index=True)
    return np.concatenate([np.asarray(a), np.asarray(b)])
