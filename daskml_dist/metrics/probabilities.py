"""Metrics of predicted probabilities."""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.signatures import telling_arguments
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.metrics._by_column import (
    ByColumn,
    by_column,
    check_labels,
    check_probabilities,
    join_columns,
    total,
    unique_classes,
)
from daskml_dist.metrics._columns import Columns, ScoredRows, check_total, is_lazy
from daskml_dist.metrics._indicators import are_indicators, read_indicators
from daskml_dist.metrics._readers import read_labels, read_scores, unique_labels

__all__ = ["brier_score_loss", "log_loss"]

COLUMNS = Columns(read_labels, read_scores, "y_proba")
INDICATED = Columns(read_indicators, read_scores, "y_proba", several=True)


@telling_arguments
def log_loss(
    y_true: Any,
    y_proba: Any = None,
    *,
    normalize: bool = True,
    sample_weight: Any = None,
    labels: Any = None,
    y_pred: Any = "deprecated",
    compute: bool = True,
) -> Any:
    """Mean negative logarithm of the probability that was given to the true label.

    Source: Bishop (2006), "Pattern Recognition and Machine Learning", p. 209.

    Parameters
    ----------
    y_true : dask Array, Series or DataFrame, or array-like
        Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers. Or
        indicators of labels, of shape (n_rows, n_labels), whose logarithms are summed.
    y_proba : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,), the probability of the larger of two labels, or of shape
        (n_rows, n_classes), with columns in the order of the sorted labels. Clipped to
        [eps, 1 - eps] of its dtype, float32 or float64.
    normalize : bool, default=True
        False gives the sum over the rows instead of the mean.
    sample_weight : like `y_true`, or a float, or None
    labels : array-like of shape (n_classes,), optional
        All labels, where `y_true` may lack some.
    y_pred : like `y_proba`
        Its name in older versions of scikit-learn.
    compute : bool, default=True
        False gives a lazy score of Dask collections (a `dask.delayed.Delayed`): several that are
        computed together, by `dask.compute`, read the rows once.

    Returns
    -------
    float, or Delayed of a float without `compute`
        The logarithms of a Dask collection are summed as float64.

    Raises
    ------
    InvalidParameterError
        `labels` has fewer than two.
    InvalidDataError
        The columns cannot be aligned, hold NaN, or probabilities outside [0, 1]; there are other
        labels than `y_proba` has columns; the weights sum to zero.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import log_loss
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> round(float(log_loss(y_true, scores)), 4)
    0.4297
    """
    y_proba = _named_anew(y_proba, y_pred)
    classes = None if labels is None else unique_classes(labels)
    if not is_lazy(y_true, y_proba, sample_weight):
        options = {"normalize": normalize, "labels": labels}
        metric = sklearn.metrics.log_loss
        return float(COLUMNS.in_memory(metric, y_true, y_proba, sample_weight, **options))
    if classes is not None and not np.array_equal(classes, np.asarray(labels)):
        warnings.warn(
            f"Labels passed were {np.asarray(labels).tolist()}, but the columns of y_proba are "
            f"taken in the order {classes.tolist()}.",
            UserWarning,
            stacklevel=user_stack_level(),
        )
    indicated = are_indicators(y_true, y_proba)
    columns = INDICATED if indicated else COLUMNS
    summarise = _indicated_losses if indicated else partial(_losses, classes=classes)
    collection = columns.align(y_true, y_proba, sample_weight)
    finish = partial(_loss_of, indicated, classes, normalize)
    return columns.reduce(
        summarise, join_columns, collection, in_pieces=True, finish=finish, compute=compute
    )


def _loss_of(
    indicated: bool, classes: NDArray[Any] | None, normalize: bool, losses: ByColumn
) -> float:
    """Return the loss of the sums of all rows."""
    if not losses.sums_to_one:
        message = "The y_prob values do not sum to one. Make sure to pass probabilities."
        warnings.warn(message, UserWarning, stacklevel=user_stack_level())
    summed = float(losses.sums[0, 0]) if indicated else total(losses, classes)
    return _finished(losses, summed, normalize)


def _named_anew(y_proba: Any, y_pred: Any) -> Any:
    """Probabilities, which had another name in scikit-learn."""
    if isinstance(y_pred, str) and y_pred == "deprecated":
        if y_proba is None:
            raise InvalidTypeError("log_loss() misses the argument y_proba. Pass probabilities.")
        return y_proba
    if y_proba is not None:
        raise InvalidDataError(
            "Cannot use both `y_pred` and `y_proba`. `y_pred` is deprecated, use `y_proba`."
        )
    message = (
        "`y_pred` was renamed to `y_proba` in version 1.9 and will be removed when scikit-learn "
        "removes it. Pass `y_proba`."
    )
    warnings.warn(message, FutureWarning, stacklevel=user_stack_level())
    return y_pred


def _losses(rows: ScoredRows, classes: NDArray[Any] | None) -> ByColumn:
    proba = rows.y_pred
    check_probabilities(proba)
    if proba.ndim == 1:
        proba = np.column_stack([1 - proba, proba])
    labels, at = unique_labels(rows.y_true)
    check_labels(labels, classes, proba.shape[1])
    eps = np.finfo(proba.dtype).eps
    sums_to_one = _sums_to_one(proba)
    if len(labels) < proba.shape[1]:
        found = by_column(rows, proba, partial(_logs, eps=eps), classes)
        return found._replace(sums_to_one=sums_to_one)
    # All labels are there, so each one's column is known, and the sum is enough.
    weight = float(len(at) if rows.weight is None else rows.weight.sum())
    by_label = np.zeros((len(labels), len(labels)))
    by_label[0, 0] = _known_loss(proba, at, rows.weight, eps)
    return ByColumn(labels, by_label, weight, sums_to_one)


def _indicated_losses(rows: ScoredRows) -> ByColumn:
    """Summed losses of some rows, as of one label."""
    check_probabilities(rows.y_pred)
    logs = _logs(rows.y_pred, np.finfo(rows.y_pred.dtype).eps)
    summed = rows.weights @ (logs * rows.y_true).sum(axis=1, dtype=np.float64)
    sums = np.full((1, 1), summed)
    return ByColumn(np.zeros(1), sums, float(rows.weights.sum()), _sums_to_one(rows.y_pred))


def _sums_to_one(proba: NDArray[Any]) -> bool:
    totals = proba @ np.ones(proba.shape[1], dtype=proba.dtype)
    return bool(np.abs(totals - 1).max() <= np.sqrt(np.finfo(proba.dtype).eps))


def _logs(proba: NDArray[Any], eps: Any) -> NDArray[Any]:
    return np.asarray(-np.log(np.clip(proba, eps, 1 - eps)))


def _known_loss(
    proba: NDArray[Any], at: NDArray[np.intp], weight: NDArray[Any] | None, eps: Any
) -> float:
    """Summed loss of rows whose label's column is `at`."""
    n_columns = proba.shape[1]
    given = proba.ravel().take(np.arange(0, proba.size, n_columns) + at, mode="clip")
    logs = np.log(np.clip(given, eps, 1 - eps, out=given), out=given)
    return -float(logs.sum(dtype=np.float64) if weight is None else weight @ logs.astype("f8"))


def _finished(found: ByColumn, summed: float, normalize: bool) -> float:
    if not normalize:
        return summed
    check_total(found.weight)
    return summed / found.weight


# --- Brier score -----------------------------------------------------------------------------


@telling_arguments
def brier_score_loss(
    y_true: Any,
    y_proba: Any,
    *,
    sample_weight: Any = None,
    pos_label: Any = None,
    labels: Any = None,
    scale_by_half: bool | str = "auto",
) -> float:
    """Mean squared distance of the probabilities from 1 for the true label and 0 for the others.

    Source: Brier (1950), "Verification of forecasts expressed in terms of probability".

    Parameters
    ----------
    y_true : dask Array or Series, or array-like, of shape (n_rows,) or (n_rows, 1)
        Labels: strings, booleans or whole numbers.
    y_proba : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,), the probability of the positive label, or of shape
        (n_rows, n_classes), with columns in the order of the sorted labels.
    sample_weight : like `y_true`, or a float, or None
    pos_label : label, optional
        The positive one of two, which must be there; by default 1 of numbers from -1, 0 and 1,
        else the larger number.
    labels : array-like of shape (n_classes,), optional
        All labels, where `y_true` may lack some.
    scale_by_half : bool or "auto", default="auto"
        Halve the distance, so that it is at most 1; "auto" does it for two classes.

    Returns
    -------
    float

    Raises
    ------
    InvalidParameterError
        `labels` has fewer than two, or `scale_by_half` is no bool.
    InvalidDataError
        As :func:`log_loss`; the labels are strings and `pos_label` is not given.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import brier_score_loss
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> round(float(brier_score_loss(y_true, scores)), 4)
    0.142
    """
    metric, options = sklearn.metrics.brier_score_loss, {"pos_label": pos_label}
    more = {"labels": labels, "scale_by_half": scale_by_half}
    of_old = not set(more) <= set(inspect.signature(metric).parameters)
    if not (of_old or is_lazy(y_true, y_proba, sample_weight)):
        score = COLUMNS.in_memory(metric, y_true, y_proba, sample_weight, **options, **more)
        if pos_label is not None:
            _positive(np.unique(y_true), pos_label)
        return float(score)
    if scale_by_half not in ("auto", True, False):
        raise InvalidParameterError(f"scale_by_half={scale_by_half!r}: pass 'auto' or a bool.")
    classes = None if labels is None else unique_classes(labels)
    found, of_one = _all_distances(y_true, y_proba, sample_weight, classes)
    if of_one:
        columns = (found.labels == _positive(found.labels, pos_label)).astype(int)
        summed = float(found.sums[np.arange(len(columns)), columns].sum())
    else:
        summed = total(found, classes)
    halved = found.sums.shape[1] == 2 if scale_by_half == "auto" else bool(scale_by_half)
    return _finished(found, summed, True) * (0.5 if halved else 1.0)


def _all_distances(
    y_true: Any, y_proba: Any, sample_weight: Any, classes: NDArray[Any] | None
) -> tuple[ByColumn, bool]:
    """Distances of all rows, and whether they are of one column of probabilities."""
    if not is_lazy(y_true, y_proba, sample_weight):
        rows = COLUMNS.read(None, y_proba, y_true, sample_weight)
        if not len(rows.y_true):
            raise InvalidDataError("y_true and y_proba have no rows. Look at where they come from.")
        return _distances(rows, classes), rows.y_pred.ndim == 1
    collection = COLUMNS.align(y_true, y_proba, sample_weight)
    found = COLUMNS.reduce(partial(_distances, classes=classes), join_columns, collection)
    return found, collection.n_features == 1


def _distances(rows: ScoredRows, classes: NDArray[Any] | None) -> ByColumn:
    check_probabilities(rows.y_pred)
    proba = rows.y_pred.astype("float64", copy=False)
    table = np.column_stack([1 - proba, proba]) if proba.ndim == 1 else proba
    return by_column(rows, table, _squared_distances, classes)


def _squared_distances(table: NDArray[Any]) -> NDArray[np.float64]:
    # With both terms of one sign: |p|^2 - 2 p_j + 1 would lose the digits of a small distance.
    others = (table**2).sum(axis=1, keepdims=True) - table**2
    return np.asarray(np.maximum(others, 0.0) + (1 - table) ** 2)


def _positive(labels: NDArray[Any], pos_label: Any) -> Any:
    if pos_label is not None:
        if len(labels) == 2 and pos_label not in labels.tolist():
            raise InvalidDataError(
                f"pos_label={pos_label!r} is not a valid label. It should be one of "
                f"{labels.tolist()}."
            )
        return pos_label
    if labels.dtype.kind not in "biuf":
        raise InvalidDataError(
            f"y_true takes value in {labels.tolist()} and pos_label is not specified: either make "
            "y_true take value in {0, 1} or {-1, 1} or pass pos_label explicitly."
        )
    return 1 if set(labels.tolist()) <= {-1, 0, 1} else labels[-1]
