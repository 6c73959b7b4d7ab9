"""Metrics of predicted probabilities."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics._columns import Columns, ScoredRows, check_total, is_lazy
from daskml_dist.metrics._readers import (
    check_one_kind,
    join_labels,
    read_labels,
    read_scores,
    unique_labels,
)

__all__ = ["log_loss"]

COLUMNS = Columns(read_labels, read_scores, "y_proba")


def log_loss(
    y_true: Any,
    y_proba: Any,
    *,
    normalize: bool = True,
    sample_weight: Any = None,
    labels: Any = None,
) -> float:
    """Mean negative logarithm of the probability that was given to the true label.

    Source: Bishop (2006), "Pattern Recognition and Machine Learning", p. 209.

    Parameters
    ----------
    y_true : dask Array or Series, or array-like, of shape (n_rows,) or (n_rows, 1)
        Labels: strings, booleans or whole numbers.
    y_proba : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,), the probability of the larger of two labels, or of shape
        (n_rows, n_classes), with columns in the order of the sorted labels. Clipped to
        [eps, 1 - eps] of its dtype, float32 or float64.
    normalize : bool, default=True
        False gives the sum over the rows instead of the mean.
    sample_weight : like `y_true`, or a float, or None
    labels : array-like of shape (n_classes,), optional
        All labels, where `y_true` may lack some.

    Returns
    -------
    float
        The logarithms of a Dask collection are summed as float64.

    Raises
    ------
    InvalidParameterError
        `labels` has fewer than two.
    InvalidDataError
        The columns cannot be aligned, hold NaN, or probabilities outside [0, 1]; there are other
        labels than `y_proba` has columns; the weights sum to zero.
    """
    classes = None if labels is None else _unique_classes(labels)
    if not is_lazy(y_true, y_proba, sample_weight):
        options = {"normalize": normalize, "labels": labels}
        metric = sklearn.metrics.log_loss
        return float(COLUMNS.in_memory(metric, y_true, y_proba, sample_weight, **options))
    if classes is not None and not np.array_equal(classes, np.asarray(labels)):
        warnings.warn(
            f"Labels passed were {np.asarray(labels).tolist()}, but the columns of y_proba are "
            f"taken in the order {classes.tolist()}.",
            UserWarning,
            stacklevel=2,
        )
    collection = COLUMNS.align(y_true, y_proba, sample_weight)
    summarise = partial(_losses, classes=classes)
    losses = COLUMNS.reduce(summarise, _join_losses, collection, in_pieces=True)
    if not losses.sums_to_one:
        message = "The y_prob values do not sum to one. Make sure to pass probabilities."
        warnings.warn(message, UserWarning, stacklevel=2)
    total = _total(losses, classes)
    if not normalize:
        return total
    check_total(losses.weight)
    return total / losses.weight


class _Losses(NamedTuple):
    """Of each label that is there, the loss of its rows if its column were the first, second, ...

    Which column it is only all blocks together tell.
    """

    labels: NDArray[Any]
    by_column: NDArray[np.float64]  # (n_labels, n_columns)
    weight: float
    sums_to_one: bool


def _losses(rows: ScoredRows, classes: NDArray[Any] | None) -> _Losses:
    proba = rows.y_pred
    if proba.min() < 0 or proba.max() > 1:
        raise InvalidDataError(
            f"y_proba holds {proba.min()} to {proba.max()}, which are no probabilities. Pass what "
            "predict_proba() returns."
        )
    if proba.ndim == 1:
        proba = np.column_stack([1 - proba, proba])
    labels, at = unique_labels(rows.y_true)
    _check_labels(labels, classes, proba.shape[1])
    eps = np.finfo(proba.dtype).eps
    totals = proba @ np.ones(proba.shape[1], dtype=proba.dtype)
    sums_to_one = np.abs(totals - 1).max() <= np.sqrt(eps)
    weight = float(len(at) if rows.weight is None else rows.weight.sum())
    if len(labels) == proba.shape[1]:
        # All labels are there, so each one's column is known, and the sum is enough.
        by_label = np.zeros((len(labels), len(labels)))
        by_label[0, 0] = _known_loss(proba, at, rows.weight, eps)
    else:
        # One row a label, which holds the weights of its rows: their sums are one product.
        places = (at, np.arange(len(at)))
        weights = sparse.csr_array((rows.weights, places), shape=(len(labels), len(at)))
        by_label = weights @ -np.log(np.clip(proba, eps, 1 - eps)).astype("float64", copy=False)
    return _Losses(labels, by_label, weight, bool(sums_to_one))


def _known_loss(
    proba: NDArray[Any], at: NDArray[np.intp], weight: NDArray[Any] | None, eps: Any
) -> float:
    """Summed loss of rows whose label's column is `at`."""
    n_columns = proba.shape[1]
    given = proba.ravel().take(np.arange(0, proba.size, n_columns) + at, mode="clip")
    logs = np.log(np.clip(given, eps, 1 - eps, out=given), out=given)
    return -float(logs.sum(dtype=np.float64) if weight is None else weight @ logs.astype("f8"))


def _check_labels(labels: NDArray[Any], classes: NDArray[Any] | None, n_columns: int) -> None:
    """Check those of a block; too many would make its summary as large as the block."""
    if classes is None:
        if len(labels) > n_columns:
            raise _wrong_count(labels, n_columns)
        return
    check_one_kind(labels, classes)
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise InvalidDataError(
            f"y_true contains values {unknown.tolist()} not belonging to the passed labels "
            f"{classes.tolist()}. Add them to `labels`."
        )


def _join_losses(parts: list[_Losses]) -> _Losses:
    labels = join_labels([part.labels for part in parts])
    by_column = np.zeros((len(labels), parts[0].by_column.shape[1]))
    for part in parts:
        by_column[np.searchsorted(labels, part.labels)] += part.by_column
    weight = sum(part.weight for part in parts)
    return _Losses(labels, by_column, weight, all(part.sums_to_one for part in parts))


def _total(losses: _Losses, classes: NDArray[Any] | None) -> float:
    n_columns = losses.by_column.shape[1]
    known = losses.labels if classes is None else classes
    if classes is None and len(known) == 1:
        raise InvalidDataError(
            f"y_true contains only one label ({known[0]}). Provide the list of all expected class "
            "labels through the labels argument."
        )
    if len(known) != n_columns:
        raise _wrong_count(known, n_columns)
    column = np.searchsorted(known, losses.labels)
    return float(losses.by_column[np.arange(len(column)), column].sum())


def _wrong_count(labels: NDArray[Any], n_columns: int) -> InvalidDataError:
    return InvalidDataError(
        f"There are {len(labels)} labels or more, {labels[:10].tolist()}, while y_proba has "
        f"probabilities of {n_columns}. Pass one column a label, and all labels in the labels "
        "argument where y_true may lack some."
    )


def _unique_classes(labels: Any) -> NDArray[Any]:
    classes, _ = unique_labels(np.asarray(labels))
    if len(classes) < 2:
        raise InvalidParameterError(
            f"The labels array needs to contain at least two labels, got {classes.tolist()}. Name "
            "all that y_proba has probabilities of."
        )
    return classes
