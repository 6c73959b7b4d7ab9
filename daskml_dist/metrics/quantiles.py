"""Metrics of medians and other quantiles, which are exact.

A sketch tells in one pass between which two numbers a quantile lies. Where it left numbers out, a
second pass keeps those between the two, about a thousandth of the rows, and sums the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.data.quantiles import SKETCH_SIZE, ColumnSketch, merge_sketches, sketch_columns
from daskml_dist.metrics._columns import ScoredRows, called, check_total
from daskml_dist.metrics._faces import face
from daskml_dist.metrics._means import add, block_sums
from daskml_dist.metrics._outputs import averaged, check_outputs, explained, undefined
from daskml_dist.metrics._readers import check_not_negative
from daskml_dist.metrics.regression import COLUMNS, OF

__all__ = ["d2_absolute_error_score", "d2_pinball_score", "median_absolute_error"]

Numbers = NDArray[np.float64]

#: Share of the weight, to either side of a quantile, between which it is looked for first: more
#: than sketches err by that were merged a few times.
_MARGIN = 4 / SKETCH_SIZE

_NOTES = """
Notes
-----
Exact. Of a Dask collection it takes one pass where each target has at most 8192 distinct numbers,
else two, as a rule, of which the second keeps about a thousandth of them.
"""


class _First(NamedTuple):
    n_rows: int
    sketches: list[ColumnSketch]
    sums: Numbers  # of the weights, and of the losses of each target


class _Around(NamedTuple):
    """Numbers of a column near a quantile, their weights, and sums of those below and above.

    The sums are of weights, and of weighted distances from the nearer end.
    """

    values: Numbers
    weights: Numbers
    below: Numbers
    above: Numbers


# --- median ----------------------------------------------------------------------------------


def _median(
    y_true: Any, y_pred: Any, sample_weight: Any, *, multioutput: Any = "uniform_average"
) -> Any:
    check_outputs(multioutput)
    collection = COLUMNS.align(y_true, y_pred, sample_weight)
    first = COLUMNS.reduce(partial(_sketched, alpha=None), _merge_first, collection)
    check_total(first.sums[0])
    columns = _near(collection, first.sketches, 0.5, of_errors=True)
    return averaged(np.array([_median_of(near, sample_weight) for near in columns]), multioutput)


def _median_of(near: _Around, sample_weight: Any) -> float:
    weights = near.weights.copy()
    # Which number it is depends on how much lies outside, not where.
    weights[0] += near.below[0]
    weights[-1] += near.above[0]
    if sample_weight is None:
        return float(ColumnSketch(near.values, weights).quantile(0.5))
    zeros = np.zeros(len(weights))
    metric = theirs.median_absolute_error
    return float(called(metric, zeros, near.values, sample_weight=weights))


# --- shares of the loss ----------------------------------------------------------------------


def _d2(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    *,
    alpha: float = 0.5,
    multioutput: Any = "uniform_average",
) -> Any:
    check_outputs(multioutput)
    called(theirs.mean_pinball_loss, [1.0], [1.0], alpha=alpha)  # a bad one is told before work
    collection = COLUMNS.align(y_true, y_pred, sample_weight)
    first = COLUMNS.reduce(partial(_sketched, alpha=alpha), _merge_first, collection)
    if first.n_rows < 2:
        return undefined("D^2")
    check_total(first.sums[0])
    columns = _near(collection, first.sketches, alpha, of_errors=False)
    least = np.array([_least_loss(near, alpha) for near in columns])
    return explained(first.sums[1:], least, multioutput)


def _least_loss(near: _Around, alpha: float) -> float:
    """Pinball loss of the quantile, which no other number has less of."""
    values, weights = near.values, near.weights
    total = near.below[0] + weights.sum() + near.above[0]
    reached = near.below[0] + np.cumsum(weights)
    at = min(int(np.searchsorted(reached, alpha * total)), len(values) - 1)
    distances = values - values[at]
    over = weights @ np.maximum(distances, 0.0)
    over += near.above[1] + near.above[0] * (values[-1] - values[at])
    under = weights @ np.maximum(-distances, 0.0)
    under += near.below[1] + near.below[0] * (values[at] - values[0])
    return float(alpha * over + (1 - alpha) * under)


# --- the passes ------------------------------------------------------------------------------


def _numbers(rows: ScoredRows, of_errors: bool) -> Numbers:
    found = rows.y_true.astype(np.float64, copy=False)
    found = np.abs(found - rows.y_pred) if of_errors else found
    return found if found.ndim == 2 else found[:, None]


def _sketched(rows: ScoredRows, alpha: float | None) -> _First:
    check_not_negative(rows.weights)
    numbers = _numbers(rows, alpha is None)
    sums = np.array([rows.weights.sum()])
    if alpha is not None:
        loss = partial(theirs.mean_pinball_loss, alpha=alpha, multioutput="raw_values")
        sums = block_sums(loss, rows)
    weight = None if rows.weight is None else rows.weights
    return _First(len(numbers), sketch_columns(numbers, weight), sums)


def _merge_first(parts: list[_First]) -> _First:
    n_rows, sketches, sums = zip(*parts, strict=True)
    merged = [merge_sketches(list(column)) for column in zip(*sketches, strict=True)]
    return _First(sum(n_rows), merged, add(list(sums)))


def _near(
    collection: Collection, sketches: list[ColumnSketch], share: float, *, of_errors: bool
) -> list[_Around]:
    """Numbers of each column around a quantile; all of them where the sketches have all."""
    if not any(sketch.error for sketch in sketches):
        nothing = np.zeros(2)
        return [_Around(s.values, s.weights, nothing, nothing) for s in sketches]
    margin = _MARGIN
    while True:
        shares = np.array([share - margin, share + margin])
        ends = np.array([_ends(sketch, shares) for sketch in sketches])
        look = partial(_look, ends=ends, of_errors=of_errors)
        found = COLUMNS.reduce(look, _merge_around, collection)
        if all(_holds(near, share) for near in found):
            return found
        margin *= 16  # sketches were merged more often than they should


def _ends(sketch: ColumnSketch, shares: Numbers) -> Numbers:
    reached = np.cumsum(sketch.weights)
    at = np.searchsorted(reached, shares * reached[-1])
    ends = sketch.values[np.minimum(at, len(reached) - 1)]
    return np.where(shares < 0, -np.inf, np.where(shares > 1, np.inf, ends))


def _holds(near: _Around, share: float) -> bool:
    """Say if the quantile is one of the numbers, and the next one too where it is met exactly."""
    inside = near.weights.sum()
    asked = share * (near.below[0] + inside + near.above[0])
    low = near.below[0] < asked or near.below[0] == 0
    return bool(inside > 0 and low and (near.below[0] + inside > asked or near.above[0] == 0))


def _look(rows: ScoredRows, ends: Numbers, of_errors: bool) -> list[_Around]:
    weights, found = rows.weights, []
    for column, (low, high) in zip(_numbers(rows, of_errors).T, ends, strict=True):
        inside = (column >= low) & (column <= high) & (weights > 0)
        below, above = column < low, column > high
        sums = [
            np.array([weights[part].sum(), weights[part] @ np.abs(column[part] - end)])
            for part, end in ((below, low), (above, high))
        ]
        found.append(_Around(*_distinct(column[inside], weights[inside]), *sums))
    return found


def _merge_around(parts: list[list[_Around]]) -> list[_Around]:
    found = []
    for columns in zip(*parts, strict=True):
        values, weights, below, above = zip(*columns, strict=True)
        own = _distinct(np.concatenate(values), np.concatenate(weights))
        found.append(_Around(*own, add(list(below)), add(list(above))))
    return found


def _distinct(values: Numbers, weights: Numbers) -> tuple[Numbers, Numbers]:
    names, at = np.unique(values, return_inverse=True)
    return names, np.bincount(at, weights, len(names)).astype(np.float64, copy=False)


d2_absolute_error_score = face(
    theirs.d2_absolute_error_score,
    _d2,
    COLUMNS,
    "Share of the absolute error of the median that is predicted.",
    of=OF,
    module=__name__,
    notes=_NOTES,
)
d2_pinball_score = face(
    theirs.d2_pinball_score,
    _d2,
    COLUMNS,
    "Share of the pinball loss of the quantile that is predicted.",
    of=OF,
    module=__name__,
    notes=_NOTES + "The loss of the quantile is the least that any one number has.\n",
)
median_absolute_error = face(
    theirs.median_absolute_error,
    _median,
    COLUMNS,
    "Median of the absolute errors.",
    of=OF,
    module=__name__,
    notes=_NOTES,
)
