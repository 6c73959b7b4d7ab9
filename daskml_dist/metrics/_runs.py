"""Runs: the distinct scores of rows, sorted, with the weight that each label has at each.

All that a ranking metric needs of rows is in a run, which is as long as there are distinct scores.
One that grows too long gives up the order within bins of neighbours, and remembers the bins, so
that what the metric may have become is known from both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError
from daskml_dist.metrics._readers import join_labels, unique_labels

__all__ = ["ScoreRun", "make_run", "merge_runs", "ranked_rows"]


@dataclass(frozen=True, eq=False)
class ScoreRun:
    """Weights by score and label, in the order of `low`.

    Parameters
    ----------
    labels : ndarray of shape (n_labels,)
        One or two, sorted.
    low, high : ndarray of float64 of shape (n,)
        The scores of an entry lie between the two; they are one score where the two are equal.
    weights : ndarray of float64 of shape (n, n_labels)
    """

    labels: NDArray[Any]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    weights: NDArray[np.float64]


def make_run(
    labels: NDArray[Any], scores: NDArray[Any], weight: NDArray[np.float64], limit: int | None
) -> ScoreRun:
    """Make the run of one or more rows."""
    names, at = unique_labels(labels)
    weights = np.zeros((len(labels), _count(names)))
    weights[np.arange(len(labels)), at] = weight
    scores = scores.astype("float64", copy=False)
    return _shorten(_sort(names, scores, scores, weights, np.argsort(scores)), limit)


def merge_runs(runs: list[ScoreRun], limit: int | None) -> ScoreRun:
    """Merge one or more runs; `limit`, what is returned and raised as in `make_run`."""
    names = join_labels([run.labels for run in runs])
    n_labels = _count(names)
    weights = [_of_labels(run, names, n_labels) for run in runs]
    low = np.concatenate([run.low for run in runs])
    high = np.concatenate([run.high for run in runs])
    # A stable sort gains from runs that are sorted already.
    order = np.argsort(low, kind="stable")
    return _shorten(_sort(names, low, high, np.concatenate(weights), order), limit)


def ranked_rows(
    run: ScoreRun, positive: Any, favourably: bool
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Rows that have the run's metric."""
    is_bin = run.high > run.low
    # Just beyond the bin, so that no tie with a score at its edge halves what may be lost.
    above = np.where(is_bin, np.nextafter(run.high, np.inf), run.high)
    below = np.where(is_bin, np.nextafter(run.low, -np.inf), run.low)
    is_positive = [int(label == positive) for label in run.labels]
    scores = [above if bool(one) == favourably else below for one in is_positive]
    return np.repeat(is_positive, len(above)), np.concatenate(scores), run.weights.T.ravel()


def _of_labels(run: ScoreRun, names: NDArray[Any], n_labels: int) -> NDArray[np.float64]:
    """Weights of a run, with a column for each of the names."""
    if len(run.labels) == n_labels:
        return run.weights
    wide = np.zeros((len(run.low), n_labels))
    wide[:, np.searchsorted(names, run.labels)] = run.weights
    return wide


def _count(labels: NDArray[Any]) -> int:
    if len(labels) > 2:
        raise InvalidDataError(
            f"y_true has more than two labels, {labels[:3].tolist()} among them, and y_score one "
            "column. Score one label at a time, with y_true == label."
        )
    return len(labels)


def _sort(
    labels: NDArray[Any],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    weights: NDArray[np.float64],
    order: NDArray[np.intp],
) -> ScoreRun:
    """Bring entries into an order, in which equal ones are neighbours, and sum these."""
    low, high = low.take(order), high.take(order)
    differs = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    weights = weights.take(order, axis=0)
    if len(starts) == len(low):
        return ScoreRun(labels, low, high, weights)
    sums = np.add.reduceat(weights, starts, axis=0)
    return ScoreRun(labels, low[starts], high[starts], sums)


def _shorten(run: ScoreRun, limit: int | None) -> ScoreRun:
    """Sum neighbours into bins of nearly equal weight, each label counting as much as the other."""
    if limit is None or len(run.low) <= limit:
        return run
    totals = run.weights.sum(axis=0)
    columns = zip(run.weights.T, np.where(totals > 0, totals, 1), strict=True)
    shares = np.sum([weights / total for weights, total in columns], axis=0)
    before = np.concatenate([[0.0], np.cumsum(shares)])
    at = (before[:-1] * (limit / (before[-1] or 1.0))).astype(np.int64)
    at = np.minimum(at, limit - 1)
    starts = np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]]))
    high = np.maximum.reduceat(run.high, starts)
    return ScoreRun(run.labels, run.low[starts], high, np.add.reduceat(run.weights, starts, axis=0))
