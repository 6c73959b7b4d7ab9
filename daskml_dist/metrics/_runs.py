"""Score runs: the distinct scores of rows, sorted, with the weight of each label at each score.

A run contains all facts about rows that a ranking metric needs, with an entry for each distinct
score. Runs of blocks are merged as in a merge sort. A run with more entries than its limit is
binned: neighbouring scores are summed and their range is kept, so that the metric has a lower and
an upper bound (:func:`rank_run_rows`). Several classes or labels have a run each, whose scores are
averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics._columns import (
    ScoredColumns,
    ScoredRows,
    average_block_means,
    call_sklearn_metric,
    check_label_kinds,
    check_weight_total,
    check_weights_nonnegative,
    find_unique_labels,
    merge_labels,
    read_indicators,
    read_scores,
)

AverageOption: TypeAlias = Literal["macro", "weighted", "micro"] | None


#: Columns of multilabel metrics: indicators of 0 and 1, and a score for each label.
INDICATED_SCORES = ScoredColumns(read_indicators, read_scores, "y_score", multi_output=True)


# --- runs of two labels ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScoreRun:
    """Weights by score and label, sorted by `low`.

    Parameters
    ----------
    labels : ndarray of shape (n_labels,)
        One or two, sorted.
    low, high : ndarray of float64 of shape (n,)
        Range of the scores of each entry: equal for a single score, different for a bin.
    weights : ndarray of float64 of shape (n, n_labels)
    """

    labels: NDArray[Any]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    weights: NDArray[np.float64]

    def has_bins(self) -> bool:
        """Return whether some entries are bins of several scores, whose order is lost."""
        return bool((self.high > self.low).any())


def make_score_run(
    labels: NDArray[Any], scores: NDArray[Any], weight: NDArray[np.float64], limit: int | None
) -> ScoreRun:
    """Return the run of one or more rows, of at most `limit` entries (None: no limit)."""
    names, codes = find_unique_labels(labels)
    weights = np.zeros((len(labels), _count_run_labels(names)))
    # One column for each label; each row fills the column of its label.
    weights[np.arange(len(labels)), codes] = weight
    scores = scores.astype("float64", copy=False)
    return _bin_neighbours(_sort_and_sum(names, scores, scores, weights, np.argsort(scores)), limit)


def merge_score_runs(runs: list[ScoreRun], limit: int | None) -> ScoreRun:
    """Return the run of the rows of all runs, of at most `limit` entries."""
    names = merge_labels([run.labels for run in runs])
    n_labels = _count_run_labels(names)
    weights = [_widen_to_labels(run, names, n_labels) for run in runs]
    low = np.concatenate([run.low for run in runs])
    high = np.concatenate([run.high for run in runs])
    # A stable sort (radix or timsort) is faster on runs that are already sorted.
    order = np.argsort(low, kind="stable")
    merged = _sort_and_sum(names, low, high, np.concatenate(weights), order)
    return _bin_neighbours(merged, limit)


def _count_run_labels(labels: NDArray[Any]) -> int:
    """Return the number of labels; raise if there are more than two."""
    if len(labels) > 2:
        raise InvalidDataError(
            f"y_true has more than two labels, {labels[:3].tolist()} among them, but y_score has "
            "one column. Score one label at a time, with y_true == label."
        )
    return len(labels)


def _widen_to_labels(run: ScoreRun, names: NDArray[Any], n_labels: int) -> NDArray[np.float64]:
    """Return the weights of a run with a column for each label of `names`."""
    if len(run.labels) == n_labels:
        return run.weights
    weights = np.zeros((len(run.low), n_labels))
    weights[:, np.searchsorted(names, run.labels)] = run.weights
    return weights


def _sort_and_sum(
    labels: NDArray[Any],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    weights: NDArray[np.float64],
    order: NDArray[np.intp],
) -> ScoreRun:
    """Return the run of entries in the given order, in which equal ones are adjacent and summed."""
    low, high = low.take(order), high.take(order)
    differs = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    weights = weights.take(order, axis=0)
    if len(starts) == len(low):
        return ScoreRun(labels, low, high, weights)
    sums = np.add.reduceat(weights, starts, axis=0)
    return ScoreRun(labels, low[starts], high[starts], sums)


def _bin_neighbours(run: ScoreRun, limit: int | None) -> ScoreRun:
    """Return the run with neighbours summed into at most `limit` bins of about equal weight."""
    if limit is None or len(run.low) <= limit:
        return run
    # Shares of each label's own total, so that a rare label is binned as finely as a frequent one.
    totals = run.weights.sum(axis=0)
    columns = zip(run.weights.T, np.where(totals > 0, totals, 1), strict=True)
    shares = np.sum([weights / total for weights, total in columns], axis=0)
    shares_before = np.concatenate([[0.0], np.cumsum(shares)])
    # Number of each entry's bin: the cumulative share before it, on a scale of 0 to `limit`.
    bins = (shares_before[:-1] * (limit / (shares_before[-1] or 1.0))).astype(np.int64)
    bins = np.minimum(bins, limit - 1)
    starts = np.flatnonzero(np.concatenate([[True], bins[1:] != bins[:-1]]))
    # Entries are sorted by `low` only: any entry of a bin may have the largest `high`.
    high = np.maximum.reduceat(run.high, starts)
    sums = np.add.reduceat(run.weights, starts, axis=0)
    return ScoreRun(run.labels, run.low[starts], high, sums)


def rank_run_rows(
    run: ScoreRun, positive: Any, favourably: bool
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Return rows (is positive, score, weight) in the best or worst order that the run allows.

    `favourably`: the positive rows of a bin are at its upper end and the negative ones at its
    lower; else the reverse.
    """
    is_bin = run.high > run.low
    # Just beyond the ends: a tie with a score at an end would count half, and the bound would not
    # hold.
    above = np.where(is_bin, np.nextafter(run.high, np.inf), run.high)
    below = np.where(is_bin, np.nextafter(run.low, -np.inf), run.low)
    is_positive = [int(label == positive) for label in run.labels]
    scores = [above if bool(flag) == favourably else below for flag in is_positive]
    return np.repeat(is_positive, len(above)), np.concatenate(scores), run.weights.T.ravel()


def list_run_rows(run: ScoreRun) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
    """Return a row (label, score, weight) for each entry and label: they have all rows' curve.

    A bin's score is its lower end, so that a threshold includes all of its rows or none.
    """
    labels, scores = np.repeat(run.labels, len(run.low)), np.tile(run.low, len(run.labels))
    return labels, scores, run.weights.T.ravel()


# --- runs of several classes -----------------------------------------------------------------


def check_multiclass_options(
    n_columns: int | None,
    multi_class: str,
    max_fpr: float | None,
    average: AverageOption,
    weighted: bool,
) -> None:
    """Raise an error if options have no meaning for the scores of several classes."""
    if n_columns == 2:
        raise InvalidDataError(
            "y_score has 2 columns. Pass that of the positive label, for example y_score[:, 1]."
        )
    if multi_class not in ("ovr", "ovo"):
        raise InvalidParameterError(
            f"multi_class must be in ('ovo', 'ovr') for scores of several classes, and is "
            f"{multi_class!r}. Pass 'ovr' for each class against the rest, 'ovo' for all pairs."
        )
    allowed = ("macro", "weighted", "micro", None)[: 2 if multi_class == "ovo" else 4]
    if average not in allowed:
        raise InvalidParameterError(
            f"average={average!r} is none of {allowed}, which multi_class={multi_class!r} has. "
            "Pass one."
        )
    if multi_class == "ovo" and weighted:
        raise InvalidParameterError(
            "sample_weight is not supported for multiclass one-vs-one ROC AUC, 'sample_weight' "
            "must be None in this case. Leave it out, or pass multi_class='ovr'."
        )
    if max_fpr not in (None, 1):
        raise InvalidParameterError(
            "Partial AUC computation not available in multiclass setting. Leave max_fpr out."
        )


def check_class_labels(labels: Any, n_columns: int | None) -> NDArray[Any]:
    """Return given labels as an array; raise unless they are sorted, one per column of scores."""
    classes = np.asarray(labels)
    n_labels = n_columns or len(classes)
    if not np.array_equal(find_unique_labels(classes)[0], classes) or len(classes) != n_labels:
        raise InvalidParameterError(
            f"labels={classes.tolist()} should be sorted and unique, one for each of the "
            f"{n_columns} columns of y_score. Pass np.unique(labels)."
        )
    return classes


def make_class_runs(rows: ScoredRows, classes: NDArray[Any], limit: int | None) -> list[ScoreRun]:
    """Return the run of each class against the rest, in a block of class probabilities."""
    _check_class_probabilities(rows, classes)
    return _make_column_runs(rows.y_true[:, np.newaxis] == classes, rows, limit)


def make_pair_runs(rows: ScoredRows, classes: NDArray[Any], limit: int | None) -> list[ScoreRun]:
    """Return the run of each ordered pair of classes, over the rows of either class.

    The first class of a pair is the positive one, and its probabilities are the scores. The two
    orders of a pair are adjacent.
    """
    _check_class_probabilities(rows, classes)
    runs = []
    unordered = combinations(range(len(classes)), 2)
    for first, second in (pair for a, b in unordered for pair in ((a, b), (b, a))):
        is_first = rows.y_true == classes[first]
        in_pair = is_first | (rows.y_true == classes[second])
        weight = in_pair.astype(np.float64)
        # A run has at least one entry: for a block without rows of the pair, one of weight 0.
        in_pair[:1] = True
        pair_rows = is_first[in_pair], rows.y_pred[in_pair, first], weight[in_pair]
        runs.append(make_score_run(*pair_rows, limit))
    return runs


def _check_class_probabilities(rows: ScoredRows, classes: NDArray[Any]) -> None:
    """Raise `InvalidDataError` for unknown labels, or rows that are no class probabilities."""
    check_weights_nonnegative(rows.weights)
    check_label_kinds(rows.y_true, classes)
    unknown = np.setdiff1d(rows.y_true, classes)
    if len(unknown):
        raise InvalidDataError(
            f"y_true contains values {unknown[:10].tolist()} not in the parameter labels. Add "
            "them, with a column of y_score each."
        )
    if rows.y_pred.shape[1:] != classes.shape or not np.allclose(1, rows.y_pred.sum(axis=1)):
        raise InvalidDataError(
            f"y_score should have a probability of each of the {len(classes)} classes, which sum "
            "up to 1.0 in each row. Pass the result of predict_proba()."
        )


def _make_column_runs(
    indicators: NDArray[np.bool_], rows: ScoredRows, limit: int | None
) -> list[ScoreRun]:
    """Return the run of each column of indicators, with the scores of the same column."""
    columns = zip(indicators.T, rows.y_pred.T, strict=True)
    return [make_score_run(is_there, scores, rows.weights, limit) for is_there, scores in columns]


def merge_runs_by_class(block_runs: list[list[ScoreRun]], limit: int | None) -> list[ScoreRun]:
    """Return the run of each class, given the runs of all classes of each block."""
    return [merge_score_runs(list(runs), limit) for runs in zip(*block_runs, strict=True)]


def average_class_scores(
    runs: list[ScoreRun], average: AverageOption, score: Callable[[ScoreRun], tuple[float, float]]
) -> tuple[Any, Any]:
    """Return the averaged scores of the classes, and the averaged bounds of their errors."""
    # Each class's run holds all rows.
    check_weight_total(runs[0].weights.sum())
    # Micro: every (row, class) pair is a row of one binary problem.
    if average == "micro":
        return score(merge_score_runs(runs, None))
    scores, bounds = np.array([score(run) for run in runs]).T
    if average is None:
        return scores, bounds
    weights = np.ones(len(runs))
    if average == "weighted":
        weights = np.array([_sum_positive_weight(run) for run in runs])
        # A class without rows has the score NaN, and NaN times its weight of 0 is still NaN.
        scores = np.where(weights > 0, scores, 0.0)
        bounds = np.where(weights > 0, bounds, 0.0)
    return float(np.average(scores, weights=weights)), float(np.average(bounds, weights=weights))


def average_pair_scores(
    runs: list[ScoreRun], average: AverageOption, score: Callable[[ScoreRun], tuple[float, float]]
) -> tuple[float, float]:
    """Return the averaged scores of all pairs of classes, and the averaged bounds.

    Source: Hand and Till (2001), "A simple generalisation of the area under the ROC curve for
    multiple class classification problems", Machine Learning 45.
    """
    # Only pairs whose classes both have rows; True marks the first class.
    pairs = [
        (forward, backward)
        for forward, backward in zip(runs[::2], runs[1::2], strict=True)
        if all(forward.weights[:, forward.labels == side].sum() > 0 for side in (True, False))
    ]
    if not pairs:
        return float("nan"), float("nan")
    # Mean of both directions: A(i, j) in the paper.
    pair_scores = np.array([[score(run) for run in pair] for pair in pairs]).mean(axis=1)
    # Weighted by the rows of either class of the pair; both directions have the same rows.
    weights = [forward.weights.sum() if average == "weighted" else 1.0 for forward, _ in pairs]
    scores, bounds = np.average(pair_scores, axis=0, weights=weights)
    return float(scores), float(bounds)


# --- runs of the labels of indicators --------------------------------------------------------


def score_ranked_labels(
    metric: Callable[..., Any],
    average: Any,
    limit: int | None,
    score: Callable[[ScoreRun], tuple[float, float]],
    y_true: Any,
    y_score: Any,
    sample_weight: Any,
    *,
    columns: ScoredColumns = INDICATED_SCORES,
    **options: Any,
) -> tuple[Any, Any]:
    """Return a ranking metric of label indicators, and the bound of its error.

    `metric` is scikit-learn's function, which checks the `options`; `score` is the metric and its
    bound of one label's run. `columns` read the indicators.
    """
    made_up = np.eye(2, dtype=np.int64)
    scored = partial(metric, average=average, **options)
    # Made-up rows: scikit-learn raises for bad options before any block is read.
    call_sklearn_metric(scored, made_up, made_up)
    if average == "samples":
        # The labels of each row are ranked separately, so a mean of blocks' means is exact.
        means = average_block_means(scored, columns, y_true, y_score, sample_weight)
        return float(means[0]), 0.0
    collection = columns.align(y_true, y_score, sample_weight)
    summarise = partial(_make_label_runs, limit=limit)
    merge = partial(merge_runs_by_class, limit=limit)
    runs = columns.reduce(summarise, merge, collection)
    if average == "weighted" and not any(_sum_positive_weight(run) for run in runs):
        return 0.0, 0.0  # scikit-learn's value for labels that no row has
    return average_class_scores(runs, average, score)


def _make_label_runs(rows: ScoredRows, limit: int | None) -> list[ScoreRun]:
    check_weights_nonnegative(rows.weights)
    return _make_column_runs(rows.y_true, rows, limit)


def _sum_positive_weight(run: ScoreRun) -> float:
    # The labels are booleans, and so select the column of True.
    return float(run.weights[:, run.labels].sum())
