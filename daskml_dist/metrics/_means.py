"""Weighted sums of something of each row, from which means come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.metrics._columns import Columns, ScoredRows, check_total

__all__ = ["weighted_mean", "weighted_sums"]

Values = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


def weighted_sums(
    columns: Columns, values: Values, y_true: Any, y_pred: Any, sample_weight: Any
) -> tuple[float, float]:
    """Sum the weights, and the weighted values of all rows, in one pass.

    Parameters
    ----------
    columns : Columns
    values : callable
        Takes `y_true` and `y_pred` of a block and returns one value a row. Picklable.
    y_true, y_pred, sample_weight
        Of which one is a Dask collection.

    Returns
    -------
    weight, sum : float
    """
    collection = columns.align(y_true, y_pred, sample_weight)
    weight, total = columns.reduce(partial(_sums, values), _add, collection, in_pieces=True)
    return float(weight), float(total)


def weighted_mean(
    columns: Columns, values: Values, y_true: Any, y_pred: Any, sample_weight: Any
) -> float:
    """Weighted mean; parameters as `weighted_sums`.

    Raises
    ------
    InvalidDataError
        The weights sum to zero.
    """
    weight, total = weighted_sums(columns, values, y_true, y_pred, sample_weight)
    check_total(weight)
    return total / weight


def _sums(values: Values, rows: ScoredRows) -> NDArray[np.float64]:
    found = values(rows.y_true, rows.y_pred)
    if rows.weight is None:
        return np.array([len(found), found.sum(dtype=np.float64)])
    return np.array([rows.weights.sum(), rows.weights @ found])


def _add(sums: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.sum(sums, axis=0))
