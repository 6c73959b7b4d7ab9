"""Metrics of the order that scores put rows in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import sklearn.metrics
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import telling_arguments
from daskml_dist.metrics._columns import (
    Columns,
    ScoredRows,
    all_labels,
    called,
    check_total,
    is_lazy,
)
from daskml_dist.metrics._indicators import are_indicators
from daskml_dist.metrics._labels_ranked import IndicatorScores
from daskml_dist.metrics._ovr import (
    Average,
    average_pairs,
    average_scores,
    check_class_labels,
    check_classes,
    class_runs,
    merge_each,
    pair_runs,
)
from daskml_dist.metrics._readers import (
    check_not_negative,
    read_labels,
    read_scores,
)
from daskml_dist.metrics._runs import ScoreRun, make_run, merge_runs, ranked_rows

__all__ = [
    "COLUMNS",
    "MAX_THRESHOLDS",
    "average_precision_score",
    "check_limit",
    "one_run",
    "roc_auc_score",
]

COLUMNS = Columns(read_labels, read_scores, "y_score")

#: Distinct scores that are kept, 32 bytes each.
MAX_THRESHOLDS = 2**18


@telling_arguments
def roc_auc_score(
    y_true: Any,
    y_score: Any,
    *,
    average: Average = "macro",
    sample_weight: Any = None,
    max_fpr: float | None = None,
    multi_class: str = "raise",
    labels: Any = None,
    max_thresholds: int | None = MAX_THRESHOLDS,
    return_bound: bool = False,
) -> Any:
    """Area under the receiver operating characteristic: how often a positive row is ranked higher.

    Source: Fawcett (2006), "An introduction to ROC analysis"; for several classes his one against
    the rest.

    Parameters
    ----------
    y_true : dask Array, Series or DataFrame, or array-like
        Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers. The larger
        of two is the positive one. Or indicators of several labels, of shape (n_rows, n_labels).
    y_score : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,), higher for the positive label; or probabilities of shape
        (n_rows, n_classes) for three classes or more, in the order of the sorted labels; or of
        shape (n_rows, n_labels) for indicators, each higher where the label is there.
    average : {"macro", "weighted", "micro", "samples"} or None, default="macro"
        For several classes or labels: the mean of their scores, the mean by the weight of their
        rows, the score of all together, or each; of indicators "samples" is the mean of the rows'
        scores.
    sample_weight : like `y_true`, or a float, or None
        Not negative for a Dask collection.
    max_fpr : float in (0, 1], optional
        Standardised area up to this false positive rate, of two labels only.
    multi_class : {"raise", "ovr", "ovo"}, default="raise"
        For several classes: each against the rest, or all pairs of classes (Hand and Till, 2001),
        of which a Dask collection keeps twice as many scores as there are pairs.
    labels : array-like of shape (n_classes,), optional
        Sorted labels of the columns. By default the labels of `y_true`, which of several classes
        in a Dask collection takes one more pass over it.
    max_thresholds : int or None, default=2**18
        Distinct scores (of each class) that are kept of a Dask collection. With no more than
        that the result is exact; None always keeps all, in the memory of one worker and of the
        client. See Notes.
    return_bound : bool, default=False
        Return the bound of the error, too.

    Returns
    -------
    score : float, or ndarray of shape (n_classes,) for ``average=None``
        NaN, with scikit-learn's warning, where only one label is present.
    bound : like `score`
        With `return_bound`: the exact value lies in ``[score - bound, score + bound]``, up to
        rounding. 0.0 where it is exact.

    Raises
    ------
    InvalidParameterError
        An argument has no meaning here.
    InvalidDataError
        The columns cannot be aligned, hold NaN, or have more labels than columns; the weights are
        negative or sum to zero.

    Notes
    -----
    Each block becomes its distinct scores, sorted, with the weight of either label at each, and
    those are merged. Beyond `max_thresholds` neighbours are summed into bins, each with a nearly
    equal share p of the positive and n of the negative weight. Within a bin either order is
    possible, so half the sum of p * n over the bins is the error that one such step may make. Bins
    of several blocks overlap, and rows that lie in overlapping bins may be out of order as well.
    The bound holds all that: it is half the difference between the scores with every positive row
    at the upper end of its bin and every negative one at the lower, and the other way round. As a
    bin has about ``1 / max_thresholds`` of either label, it is about
    ``levels / max_thresholds``, levels being how often runs were merged (each time up to 16).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import roc_auc_score
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> round(float(roc_auc_score(y_true, scores)), 4)
    0.8333
    """
    check_limit(max_thresholds)
    if not is_lazy(y_true, y_score, sample_weight):
        score = COLUMNS.in_memory(
            sklearn.metrics.roc_auc_score,
            y_true,
            y_score,
            sample_weight,
            average=average,
            max_fpr=max_fpr,
            multi_class=multi_class,
            labels=labels,
        )
        return _answer(score, np.zeros_like(score)[()], return_bound)
    _check_options(sklearn.metrics.roc_auc_score, average=average, multi_class=multi_class)
    if are_indicators(y_true, y_score):
        several = IndicatorScores(sklearn.metrics.roc_auc_score, average, max_thresholds)
        of_one = partial(_between, partial(_roc_auc, max_fpr=max_fpr), positive=True)
        more = {"max_fpr": max_fpr}
        return _answer(*several.score(of_one, y_true, y_score, sample_weight, more), return_bound)
    collection = COLUMNS.align(y_true, y_score, sample_weight)
    n_columns = collection.n_features
    if n_columns == 1 or (n_columns is None and labels is None):
        return _answer(*_two_labels(collection, max_fpr, max_thresholds), return_bound)
    check_classes(n_columns, multi_class, max_fpr, average, sample_weight is not None)
    classes = _labels_of(y_true, n_columns) if labels is None else np.asarray(labels)
    classes = check_class_labels(classes, n_columns)
    summarise: Callable[..., list[ScoreRun]] = pair_runs if multi_class == "ovo" else class_runs
    runs = COLUMNS.reduce(
        partial(summarise, classes=classes, limit=max_thresholds),
        partial(merge_each, limit=max_thresholds),
        collection,
    )
    average_runs: Callable[..., tuple[Any, Any]] = (
        average_pairs if multi_class == "ovo" else average_scores
    )
    scored = average_runs(runs, average, partial(_between, _roc_auc, positive=True))
    return _answer(*scored, return_bound)


@telling_arguments
def average_precision_score(
    y_true: Any,
    y_score: Any,
    *,
    average: Average | Literal["samples"] = "macro",
    pos_label: Any = 1,
    sample_weight: Any = None,
    max_thresholds: int | None = MAX_THRESHOLDS,
    return_bound: bool = False,
) -> Any:
    """Mean precision over the positive rows, each at its score.

    Source: Davis and Goadrich (2006), "The relationship between precision-recall and ROC curves".

    Parameters
    ----------
    y_true : dask Array, Series or DataFrame, or array-like
        One or two labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers.
        Or indicators of several labels, of shape (n_rows, n_labels).
    y_score : dask Array, Series or DataFrame, or array-like
        Of the shape of `y_true`, higher for the positive label.
    average : {"macro", "weighted", "micro", "samples"} or None, default="macro"
        Of indicators, as in :func:`roc_auc_score`. Of three labels or more in one column, which
        are for rows in memory, as in scikit-learn.
    pos_label : label, default=1
        The positive one; of indicators it is 1.
    sample_weight, max_thresholds, return_bound
        As in :func:`roc_auc_score`.

    Returns
    -------
    score : float, or ndarray of shape (n_labels,) for indicators with ``average=None``
        0.0, with scikit-learn's warning, where no row is positive.
    bound : like `score`
        With `return_bound`, as in :func:`roc_auc_score`.

    Raises
    ------
    InvalidParameterError
        `max_thresholds` is not positive.
    InvalidDataError
        As in :func:`roc_auc_score`; `y_true` has two labels and none is `pos_label`.

    Notes
    -----
    Made from the runs of :func:`roc_auc_score`. The bound is half the difference between the most
    and the least favourable order within bins. To it comes what positive rows of one bin may gain
    from being counted together: at most the sum over bins of p * p / P, where p is the share of
    the positive weight in the bin and P that in the bin and above. All in all it is about
    ``20 / max_thresholds``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import average_precision_score
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> round(float(average_precision_score(y_true, scores)), 4)
    0.9167
    """
    check_limit(max_thresholds)
    if not is_lazy(y_true, y_score, sample_weight):
        metric = sklearn.metrics.average_precision_score
        options = {"average": average, "pos_label": pos_label}
        score = COLUMNS.in_memory(metric, y_true, y_score, sample_weight, **options)
        return _answer(score, 0.0, return_bound)
    _check_options(sklearn.metrics.average_precision_score, average=average)
    if are_indicators(y_true, y_score):
        several = IndicatorScores(sklearn.metrics.average_precision_score, average, max_thresholds)
        of_one, more = partial(_precision, positive=True), {"pos_label": pos_label}
        return _answer(*several.score(of_one, y_true, y_score, sample_weight, more), return_bound)
    run = one_run(COLUMNS.align(y_true, y_score, sample_weight), max_thresholds)
    if len(run.labels) == 2 and pos_label not in run.labels.tolist():
        raise InvalidDataError(
            f"pos_label={pos_label!r} is not a valid label. It should be one of "
            f"{run.labels.tolist()}."
        )
    return _answer(*_precision(run, positive=pos_label), return_bound)


def _answer(score: Any, bound: Any, return_bound: bool) -> Any:
    return (score, bound) if return_bound else score


def check_limit(limit: int | None) -> None:
    """Check how many distinct scores are to be kept."""
    if limit is not None and limit < 1:
        raise InvalidParameterError(
            f"max_thresholds={limit} keeps nothing. Pass a positive number, or None to keep all."
        )


# --- runs of two labels ----------------------------------------------------------------------


def _check_options(metric: Callable[..., Any], **options: Any) -> None:
    """Check options that rows of two labels make no use of, as scikit-learn does."""
    called(metric, [0, 1], [0.0, 1.0], **options)


def one_run(collection: Collection, limit: int | None) -> ScoreRun:
    """Run of all rows, of at most two labels and of some weight."""
    summarise, merge = partial(_run, limit=limit), partial(merge_runs, limit=limit)
    run: ScoreRun = COLUMNS.reduce(summarise, merge, collection)
    check_total(run.weights.sum())
    return run


def _run(rows: ScoredRows, limit: int | None) -> ScoreRun:
    if rows.y_pred.ndim != 1:
        raise InvalidDataError(
            f"y_score has {rows.y_pred.shape[1]} columns. Pass that of the positive label, for "
            "example y_score[:, 1]."
        )
    check_not_negative(rows.weights)
    return make_run(rows.y_true, rows.y_pred, rows.weights, limit)


def _labels_of(y_true: Any, n_columns: int | None) -> NDArray[Any]:
    """Return the sorted labels of all rows, in a pass of their own over `y_true`."""
    labels = all_labels(y_true)
    if n_columns is not None and len(labels) != n_columns:
        raise InvalidDataError(
            f"Number of classes in y_true ({len(labels)}) not equal to the number of columns in "
            f"'y_score' ({n_columns}). Pass labels, for example the classes_ of the classifier."
        )
    return labels


def _two_labels(
    collection: Collection, max_fpr: float | None, limit: int | None
) -> tuple[float, float]:
    run = one_run(collection, limit)
    return _between(partial(_roc_auc, max_fpr=max_fpr), run, positive=run.labels[-1])


# --- from a run to its score -----------------------------------------------------------------


def _between(metric: Callable[..., float], run: ScoreRun, *, positive: Any) -> tuple[float, float]:
    """Middle of what the metric may be, and half the difference."""
    highest = metric(*ranked_rows(run, positive, favourably=True))
    if not (run.high > run.low).any():
        return highest, 0.0
    lowest = metric(*ranked_rows(run, positive, favourably=False))
    return (highest + lowest) / 2, (highest - lowest) / 2


def _roc_auc(y_true: Any, y_score: Any, weight: Any, max_fpr: float | None = None) -> float:
    metric = sklearn.metrics.roc_auc_score
    return float(COLUMNS.in_memory(metric, y_true, y_score, weight, max_fpr=max_fpr))


def _precision(run: ScoreRun, positive: Any) -> tuple[float, float]:
    """Average precision of a run, and the bound of its error."""
    score, bound = _between(_average_precision, run, positive=positive)
    slack = _slack(run, positive) / 2
    return score - slack, bound + slack


def _average_precision(y_true: Any, y_score: Any, weight: Any) -> float:
    metric = sklearn.metrics.average_precision_score
    return float(COLUMNS.in_memory(metric, y_true, y_score, weight))


def _slack(run: ScoreRun, positive: Any) -> float:
    """Most that counting the positive rows of a bin together may add to average precision."""
    weight = run.weights[:, run.labels == positive].sum(axis=1)
    above = np.cumsum(weight[::-1])[::-1]
    grouped = (run.high > run.low) & (weight > 0)
    return float((weight[grouped] ** 2 / above[grouped]).sum() / max(weight.sum(), 1e-300))
