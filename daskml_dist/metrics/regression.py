"""Metrics of predicted numbers. One target at a time."""

from __future__ import annotations

import math
import warnings
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist.data.spread import Spread
from daskml_dist.metrics._columns import Columns, ScoredRows, check_total, is_lazy
from daskml_dist.metrics._means import weighted_mean
from daskml_dist.metrics._readers import check_not_negative, read_numbers

__all__ = [
    "mean_absolute_error",
    "mean_squared_error",
    "r2_score",
    "root_mean_squared_error",
]

COLUMNS = Columns(read_numbers, read_numbers)


def mean_squared_error(y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Mean of the squared errors.

    Parameters
    ----------
    y_true, y_pred : dask Array or Series, or array-like, of shape (n_rows,) or (n_rows, 1)
        Numbers; those of a Dask collection are summed as float64.
    sample_weight : like `y_true`, or a float, or None

    Returns
    -------
    float

    Raises
    ------
    InvalidDataError
        The columns cannot be aligned, or hold NaN or infinity; there are several targets; the
        weights sum to zero.
    """
    if is_lazy(y_true, y_pred, sample_weight):
        return weighted_mean(COLUMNS, _squares, y_true, y_pred, sample_weight)
    metric = sklearn.metrics.mean_squared_error
    return float(COLUMNS.in_memory(metric, y_true, y_pred, sample_weight))


def root_mean_squared_error(y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Square root of :func:`mean_squared_error`, which tells the parameters and errors.

    Returns
    -------
    float
    """
    return math.sqrt(mean_squared_error(y_true, y_pred, sample_weight=sample_weight))


def mean_absolute_error(y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Mean of the absolute errors; parameters and errors as :func:`mean_squared_error`.

    Returns
    -------
    float
    """
    if is_lazy(y_true, y_pred, sample_weight):
        return weighted_mean(COLUMNS, _sizes, y_true, y_pred, sample_weight)
    metric = sklearn.metrics.mean_absolute_error
    return float(COLUMNS.in_memory(metric, y_true, y_pred, sample_weight))


def r2_score(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, force_finite: bool = True
) -> float:
    """Coefficient of determination: the share of the variance of `y_true` that is predicted.

    Means and variances of the blocks are merged as in Chan, Golub and LeVeque (1983), "Algorithms
    for computing the sample variance", which loses no digits to a large mean.

    Parameters
    ----------
    y_true, y_pred : dask Array or Series, or array-like, of shape (n_rows,) or (n_rows, 1)
        Numbers; those of a Dask collection are summed as float64.
    sample_weight : like `y_true`, or a float, or None
        Not negative for a Dask collection.
    force_finite : bool, default=True
        For a constant `y_true`, give 1.0 (all predicted) or 0.0 instead of NaN or -inf.

    Returns
    -------
    float
        NaN, with scikit-learn's warning, of fewer than two rows.

    Raises
    ------
    InvalidDataError
        As :func:`mean_squared_error`.
    """
    if not is_lazy(y_true, y_pred, sample_weight):
        metric = sklearn.metrics.r2_score
        score = COLUMNS.in_memory(metric, y_true, y_pred, sample_weight, force_finite=force_finite)
        return float(score)
    collection = COLUMNS.align(y_true, y_pred, sample_weight)
    moments = COLUMNS.reduce(_moments, _merge_moments, collection)
    if moments.n_rows < 2:
        message = "R^2 score is not well-defined with less than two samples."
        warnings.warn(message, UndefinedMetricWarning, stacklevel=2)
        return math.nan
    check_total(moments.targets.weight)
    return _explained(moments.errors, float(moments.targets.squares[0]), force_finite)


def _squares(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.subtract(y_true, y_pred, dtype="float64") ** 2)


def _sizes(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.abs(np.subtract(y_true, y_pred, dtype="float64")))


# --- R^2 -------------------------------------------------------------------------------------


class _Moments(NamedTuple):
    n_rows: int
    targets: Spread
    errors: float  # weighted sum of squared errors


def _moments(rows: ScoredRows) -> _Moments:
    weights = rows.weights
    check_not_negative(weights)
    errors = float(weights @ _squares(rows.y_true, rows.y_pred))
    return _Moments(len(rows.y_true), Spread.of(rows.y_true, weights), errors)


def _merge_moments(parts: list[_Moments]) -> _Moments:
    n_rows, targets, errors = zip(*parts, strict=True)
    return _Moments(sum(n_rows), reduce(add, targets), sum(errors))


def _explained(errors: float, spread: float, force_finite: bool) -> float:
    if spread > 0:
        return 1.0 - errors / spread
    if force_finite:
        return 0.0 if errors else 1.0
    return -math.inf if errors else math.nan
