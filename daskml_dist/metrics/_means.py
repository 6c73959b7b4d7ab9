"""Weighted sums of something of each row, from which means come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.metrics._columns import Columns, ScoredRows, called, check_total

__all__ = ["add", "block_sums", "mean_of_blocks", "weighted_mean", "weighted_sums"]

Values = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
Sums = NDArray[np.float64]


def weighted_sums(
    columns: Columns,
    values: Values,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    finish: Callable[[float, Sums], Any],
    compute: bool = True,
) -> Any:
    """Sum the weights, and the weighted values of all rows, in one pass."""
    collection = columns.align(y_true, y_pred, sample_weight)
    return columns.reduce(
        partial(_sums, values),
        add,
        collection,
        in_pieces=True,
        finish=partial(_of_sums, finish),
        compute=compute,
    )


def weighted_mean(
    columns: Columns,
    values: Values,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    finish: Callable[[Sums], Any],
    compute: bool = True,
) -> Any:
    """Return what `finish` makes of the mean of each target; parameters as `weighted_sums`."""
    end = partial(_of_means, finish)
    return weighted_sums(columns, values, y_true, y_pred, sample_weight, end, compute)


def _of_sums(finish: Callable[[float, Sums], Any], found: Sums) -> Any:
    return finish(float(found[0]), found[1:])


def _of_means(finish: Callable[[Sums], Any], weight: float, total: Sums) -> Any:
    check_total(weight)
    return finish(total / weight)


def mean_of_blocks(
    metric: Callable[..., Any],
    columns: Columns,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
) -> Sums:
    """Weighted mean of a metric that is the mean of something of each row."""
    collection = columns.align(y_true, y_pred, sample_weight)
    found = columns.reduce(partial(block_sums, metric), add, collection)
    check_total(found[0])
    return np.asarray(found[1:] / found[0])


def block_sums(metric: Callable[..., Any], rows: ScoredRows) -> Sums:
    """Sum of the weights of a block, and that of its metric's values of each row."""
    truth, predicted = (a.astype("float64", copy=False) for a in (rows.y_true, rows.y_pred))
    if rows.weight is None:
        mean = np.atleast_1d(called(metric, truth, predicted))
        return np.concatenate([[len(truth)], len(truth) * mean])
    # A mean has no meaning where weights cancel out, but each sign's has.
    sums = []
    for sign, of_sign in ((1.0, rows.weight >= 0), (-1.0, rows.weight < 0)):
        weight = np.abs(rows.weights[of_sign])
        total = float(weight.sum())
        if len(weight):
            given = {"sample_weight": weight} if total else {}
            mean = np.atleast_1d(called(metric, truth[of_sign], predicted[of_sign], **given))
            sums.append(sign * np.concatenate([[total], total * mean]))
    return add(sums)


def _sums(values: Values, rows: ScoredRows) -> Sums:
    found = values(rows.y_true, rows.y_pred)
    if rows.weight is None:
        return np.append(len(found), found.sum(axis=0, dtype=np.float64))
    return np.append(rows.weights.sum(), rows.weights @ found)


def add(sums: list[Sums]) -> Sums:
    """Sum of sums."""
    return np.asarray(np.sum(sums, axis=0))
