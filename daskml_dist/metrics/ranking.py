"""Ranking metrics (ROC AUC, average precision), and curves over the thresholds of a score.

One pass reduces all rows to a score run (`_runs.py`): the weight of each label at each distinct
score. scikit-learn's functions are then called on the entries of the run, as if they were rows.
If a run was binned to limit its size, the order within bins is lost; the score is computed for
the best and the worst order, which bound it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, Literal

import numpy as np
import sklearn.calibration
import sklearn.metrics as theirs
from numpy.typing import NDArray

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.data.collection import Collection
from daskml_dist.data.column_statistics import ColumnSketch
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.metrics._columns import (
    ScoredColumns,
    ScoredRows,
    call_sklearn_metric,
    check_weight_total,
    check_weights_nonnegative,
    find_all_labels,
    find_unique_labels,
    has_lazy_input,
    hold_indicators,
    merge_labels,
    read_labels,
    read_scores,
)
from daskml_dist.metrics._metric_functions import make_metric_function
from daskml_dist.metrics._runs import (
    INDICATED_SCORES,
    AverageOption,
    ScoreRun,
    average_class_scores,
    average_pair_scores,
    check_class_labels,
    check_multiclass_options,
    list_run_rows,
    make_class_runs,
    make_pair_runs,
    make_score_run,
    merge_runs_by_class,
    merge_score_runs,
    rank_run_rows,
    score_ranked_labels,
)
from daskml_dist.metrics.queries import average_precision_by_query

#: Labels, and scores that rank the rows; `y_score` may have a column for each class or label.
SCORE_COLUMNS = ScoredColumns(read_labels, read_scores, "y_score")


#: Distinct scores that a run keeps by default; with 32 bytes each (low, high, two weights), 8 MiB.
MAX_THRESHOLDS = 2**18


@suggest_arguments
def roc_auc_score(
    y_true: Any,
    y_score: Any,
    *,
    average: AverageOption = "macro",
    sample_weight: Any = None,
    max_fpr: float | None = None,
    multi_class: str = "raise",
    labels: Any = None,
    max_thresholds: int | None = MAX_THRESHOLDS,
    return_bound: bool = False,
) -> Any:
    """Return the area under the ROC curve: how often a positive row is ranked above a negative one.

    Source: Fawcett (2006), "An introduction to ROC analysis"; for several classes his one against
    the rest.

    Parameters
    ----------
    y_true : dask Array, Series or DataFrame, or array-like
        Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers. The larger
        of two is the positive one. Or indicators of several labels, of shape (n_rows, n_labels).
    y_score : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,), higher for the positive label; or probabilities of shape (n_rows,
        n_classes) for three classes or more, in the order of the sorted labels; or of shape
        (n_rows, n_labels) for indicators, each higher for rows with the label.
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
        for which a Dask collection keeps two runs of scores for each pair.
    labels : array-like of shape (n_classes,), optional
        Sorted labels of the columns. Default: the labels of `y_true`; for several classes in a Dask
        collection they need one more pass over it.
    max_thresholds : int or None, default=2**18
        Distinct scores (of each class) that are kept of a Dask collection. With no more than
        that the result is exact; None always keeps all, in the memory of one worker and of the
        client. See Notes.
    return_bound : bool, default=False
        Return the bound of the error, too.

    Returns
    -------
    score : float, or ndarray of shape (n_classes,) for ``average=None``
        NaN, with scikit-learn's warning, if only one label is present.
    bound : like `score`
        With `return_bound`: the exact value lies in ``[score - bound, score + bound]``, up to
        rounding. 0.0 if it is exact.

    Raises
    ------
    InvalidParameterError
        An argument is invalid, or has no meaning for such labels.
    InvalidDataError
        The columns cannot be aligned, hold NaN, or have more labels than columns; the weights are
        negative or sum to zero.

    Notes
    -----
    Each block is reduced to its sorted distinct scores with the weight of both labels at each, a
    run, and runs are merged. With more than `max_thresholds` scores, neighbours are summed into
    bins of about equal shares p of the positive and n of the negative weight. The order within a
    bin is lost, so one such step may have an error of half the sum of p * n over the bins. Bins of
    several blocks overlap, and rows in overlapping bins may be out of order as well. The bound
    includes all of this: it is half the difference between the score with every positive row at the
    upper end of its bin and every negative one at the lower, and the score with the ends exchanged.
    Since a bin has about ``1 / max_thresholds`` of each label, the bound is about ``levels /
    max_thresholds``, where levels is the number of times that runs were merged (up to 16 at a
    time).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import roc_auc_score
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> round(float(roc_auc_score(y_true, scores)), 4)
    0.8333
    """
    check_max_thresholds(max_thresholds)
    metric, rows = theirs.roc_auc_score, (y_true, y_score, sample_weight)
    if not has_lazy_input(*rows):
        score = SCORE_COLUMNS.score_in_memory(
            metric, *rows, average=average, max_fpr=max_fpr, multi_class=multi_class, labels=labels
        )
        return _return_with_bound((score, np.zeros_like(score)[()]), return_bound)
    # For indicators and for two labels scikit-learn ignores `multi_class`, but checks it.
    _check_sklearn_options(metric, average=average, multi_class=multi_class)
    score_run = partial(_bound_metric, partial(_score_roc_auc, max_fpr=max_fpr), positive=True)
    if hold_indicators(y_true, y_score):
        averaged = score_ranked_labels(
            metric, average, max_thresholds, score_run, *rows, max_fpr=max_fpr
        )
        return _return_with_bound(averaged, return_bound)
    collection = SCORE_COLUMNS.align(*rows)
    n_columns = collection.n_features
    # A collection of unknown width and without `labels` is assumed to be one column of scores.
    if n_columns == 1 or (n_columns is None and labels is None):
        run = reduce_to_run(collection, max_thresholds)
        return _return_with_bound(score_run(run, positive=run.labels[-1]), return_bound)
    check_multiclass_options(n_columns, multi_class, max_fpr, average, sample_weight is not None)
    classes = _find_column_labels(y_true, n_columns) if labels is None else np.asarray(labels)
    classes = check_class_labels(classes, n_columns)
    # One run for each class against the rest, or for each ordered pair of classes.
    summarise: Callable[..., list[ScoreRun]] = make_class_runs
    average_runs: Callable[..., tuple[Any, Any]] = average_class_scores
    if multi_class == "ovo":
        summarise, average_runs = make_pair_runs, average_pair_scores
    runs = SCORE_COLUMNS.reduce(
        partial(summarise, classes=classes, limit=max_thresholds),
        partial(merge_runs_by_class, limit=max_thresholds),
        collection,
    )
    scored = average_runs(runs, average, partial(_bound_metric, _score_roc_auc, positive=True))
    return _return_with_bound(scored, return_bound)


@suggest_arguments
def average_precision_score(
    y_true: Any,
    y_score: Any,
    *,
    average: AverageOption | Literal["samples"] = "macro",
    pos_label: Any = 1,
    sample_weight: Any = None,
    group: Any = None,
    max_thresholds: int | None = MAX_THRESHOLDS,
    return_bound: bool = False,
) -> Any:
    """Return the mean, over the positive rows, of the precision at each one's score.

    Source: Davis and Goadrich (2006), "The relationship between precision-recall and ROC curves".

    Parameters
    ----------
    y_true : dask Array, Series or DataFrame, or array-like
        Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers. Or indicators
        of several labels, of shape (n_rows, n_labels).
    y_score : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,), higher for the positive of two labels; or of shape (n_rows, n_labels),
        for three labels or more (in their sorted order) or indicators, each higher for rows with
        the label. Of a Dask collection the labels then need one more pass over `y_true`.
    average : {"macro", "weighted", "micro", "samples"} or None, default="macro"
        For several columns, as in :func:`roc_auc_score`.
    pos_label : label, default=1
        The positive one of two labels; for several columns it is 1.
    sample_weight, max_thresholds, return_bound
        As in :func:`roc_auc_score`.
    group : of one value a row, or sizes of queries, optional
        Query of each row, as of :func:`ndcg_score`: the score is the mean over queries (MAP), 0 of
        one without a positive row; weights are of queries.

    Returns
    -------
    score : float, or ndarray of shape (n_labels,) for several columns with ``average=None``
        0.0, with scikit-learn's warning, if no row is positive.
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
    Computed from the runs of :func:`roc_auc_score`. The bound is half the difference between the
    most and the least favourable order within bins, plus half of the largest increase of the score
    due to counting the positive rows of a bin together: at most the sum over bins of p * p / P,
    where p is the share of the positive weight in the bin, and P that in the bin and above.
    Altogether it is about ``20 / max_thresholds``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import average_precision_score
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> round(float(average_precision_score(y_true, scores)), 4)
    0.9167
    """
    check_max_thresholds(max_thresholds)
    if group is not None:
        mean = average_precision_by_query(y_true, y_score, group, pos_label, sample_weight)
        return _return_with_bound((mean, 0.0), return_bound)
    metric, rows = theirs.average_precision_score, (y_true, y_score, sample_weight)
    if not has_lazy_input(*rows):
        options = {"average": average, "pos_label": pos_label}
        score = SCORE_COLUMNS.score_in_memory(metric, *rows, **options)
        return _return_with_bound((score, 0.0), return_bound)
    _check_sklearn_options(metric, average=average)
    columns = None
    if hold_indicators(y_true, y_score):
        columns = INDICATED_SCORES
    elif hold_indicators(y_score) and len(classes := find_all_labels(y_true)) != 2:
        # Three labels or more: scored as indicators of each.
        call_sklearn_metric(metric, [0, 1, 2], np.eye(3), pos_label=pos_label)
        columns = replace(INDICATED_SCORES, read_true=partial(_read_class_indicators, classes))
    if columns is not None:
        score_run = partial(_bound_average_precision, positive=True)
        averaged = score_ranked_labels(
            metric, average, max_thresholds, score_run, *rows, columns=columns, pos_label=pos_label
        )
        return _return_with_bound(averaged, return_bound)
    run = reduce_to_run(SCORE_COLUMNS.align(*rows), max_thresholds)
    if len(run.labels) == 2 and pos_label not in run.labels.tolist():
        raise InvalidDataError(
            f"pos_label={pos_label!r} is not a valid label. It should be one of "
            f"{run.labels.tolist()}."
        )
    return _return_with_bound(_bound_average_precision(run, positive=pos_label), return_bound)


def _return_with_bound(score_and_bound: tuple[Any, Any], return_bound: bool) -> Any:
    """Return the score, with its bound if that is requested."""
    return score_and_bound if return_bound else score_and_bound[0]


def check_max_thresholds(limit: int | None) -> None:
    """Raise `InvalidParameterError` for a limit that is no number, or keeps no score."""
    is_count = isinstance(limit, Integral) and not isinstance(limit, bool)
    if limit is not None and not (is_count and limit >= 1):
        raise InvalidParameterError(
            f"max_thresholds={limit!r} keeps nothing. Pass a positive integer, or None to keep all."
        )


def _check_sklearn_options(metric: Callable[..., Any], **options: Any) -> None:
    """Raise scikit-learn's error for bad options, by a call on two made-up rows."""
    call_sklearn_metric(metric, [0, 1], [0.0, 1.0], **options)


# --- runs of two labels ----------------------------------------------------------------------


def reduce_to_run(collection: Collection, limit: int | None, pos_label: Any = None) -> ScoreRun:
    """Return the run of all rows, of at most two labels; raise if their weights sum to 0.

    With `pos_label` there may be any labels, and those of the run are booleans: True for that one.
    """
    summarise = partial(_make_block_run, limit=limit, pos_label=pos_label)
    merge = partial(merge_score_runs, limit=limit)
    run: ScoreRun = SCORE_COLUMNS.reduce(summarise, merge, collection)
    check_weight_total(run.weights.sum())
    return run


def _make_block_run(rows: ScoredRows, limit: int | None, pos_label: Any) -> ScoreRun:
    _check_one_column(rows.y_pred, "y_score")
    check_weights_nonnegative(rows.weights)
    labels = rows.y_true
    if pos_label is not None:
        names, codes = find_unique_labels(labels)
        # As Python's values: NumPy compares strings and numbers in other ways in some versions.
        labels = np.array([name == pos_label for name in names.tolist()])[codes]
    return make_score_run(labels, rows.y_pred, rows.weights, limit)


def _read_class_indicators(
    classes: NDArray[Any], values: Any, name: str, index: int | None
) -> NDArray[np.bool_]:
    """Return a column of labels of a block as indicators, a column for each of the classes."""
    indicators: NDArray[np.bool_] = read_labels(values, name, index)[:, np.newaxis] == classes
    return indicators


def _check_one_column(scores: NDArray[Any], name: str) -> None:
    """Raise `InvalidDataError` for scores in several columns."""
    if scores.ndim != 1:
        raise InvalidDataError(
            f"{name} has {scores.shape[1]} columns. Pass that of the positive label, for example "
            f"{name}[:, 1]."
        )


def _find_column_labels(y_true: Any, n_columns: int | None) -> NDArray[Any]:
    """Return the sorted labels of all rows, from a separate pass over `y_true`."""
    labels = find_all_labels(y_true)
    if n_columns is not None and len(labels) != n_columns:
        raise InvalidDataError(
            f"Number of classes in y_true ({len(labels)}) not equal to the number of columns in "
            f"'y_score' ({n_columns}). Pass labels, for example the classes_ of the classifier."
        )
    return labels


# --- from a run to its score -----------------------------------------------------------------


def _bound_metric(
    metric: Callable[..., float], run: ScoreRun, *, positive: Any
) -> tuple[float, float]:
    """Return a ranking metric of a run, and the bound of its error.

    The metric is the middle of its values in the best and in the worst order of rows within bins,
    and the bound half their difference.
    """
    highest = metric(*rank_run_rows(run, positive, favourably=True))
    if not run.has_bins():
        return highest, 0.0
    lowest = metric(*rank_run_rows(run, positive, favourably=False))
    return (highest + lowest) / 2, (highest - lowest) / 2


def _score_roc_auc(y_true: Any, y_score: Any, weight: Any, max_fpr: float | None = None) -> float:
    metric = theirs.roc_auc_score
    return float(SCORE_COLUMNS.score_in_memory(metric, y_true, y_score, weight, max_fpr=max_fpr))


def _bound_average_precision(run: ScoreRun, positive: Any) -> tuple[float, float]:
    """Return the average precision of a run, and the bound of its error."""
    metric = partial(SCORE_COLUMNS.score_in_memory, theirs.average_precision_score)
    score, bound = map(float, _bound_metric(metric, run, positive=positive))
    # Average precision is a step sum: the positive rows of a bin, all at one score, count with the
    # precision after the last of them. Separately, the earlier ones have a lower precision: with p
    # the positive weight of the bin and P the positive weight in and above it, the sum falls by at
    # most p * p / P.
    weight = run.weights[:, run.labels == positive].sum(axis=1)
    above = np.cumsum(weight[::-1])[::-1]
    is_binned = (run.high > run.low) & (weight > 0)
    # 1e-300: without positive weight both sums are 0, and so is the gain.
    gain = float((weight[is_binned] ** 2 / above[is_binned]).sum() / max(weight.sum(), 1e-300))
    # The exact value lies in [lowest - gain, highest], whose middle is half the gain lower.
    return score - gain / 2, bound + gain / 2


# --- curves ----------------------------------------------------------------------------------


_CURVE_COLUMNS = (
    "Labels, strings, booleans or whole numbers, and scores, higher for the positive label; of "
    "shape (n_rows,) or (n_rows, 1)."
)


_THRESHOLDS_OPTION = (
    inspect.Parameter("max_thresholds", inspect.Parameter.KEYWORD_ONLY, default=MAX_THRESHOLDS),
    "Distinct scores that are kept of a Dask collection, or None for all: see Notes.",
)


_CURVE_NOTES = """
Notes
-----
One pass computes the runs of :func:`daskml_dist.metrics.roc_auc_score`. Up to `max_thresholds`
distinct scores the curve is exact. Of more, neighbours are summed into bins, each a threshold: a
point's share of either label is then wrong by at most ``2 * levels / max_thresholds``, where levels
is the number of times that runs were binned: once, plus once for each merge of up to 16 runs.
"""


def _reduce_curve(
    source: Callable[..., Any],
    y_true: Any,
    y_score: Any,
    sample_weight: Any,
    *,
    max_thresholds: int | None = MAX_THRESHOLDS,
    **options: Any,
) -> Any:
    check_max_thresholds(max_thresholds)
    # scikit-learn counts all other labels as negative, except in `det_curve`, for two labels only.
    pos_label = None if source is theirs.det_curve else options.get("pos_label")
    rows = SCORE_COLUMNS.align(y_true, y_score, sample_weight)
    run = reduce_to_run(rows, max_thresholds, pos_label)
    if pos_label is not None:
        options["pos_label"] = True
    # scikit-learn computes the curve of the run's entries, as weighted rows.
    return SCORE_COLUMNS.score_in_memory(source, *list_run_rows(run), **options)


def _make_curve_metric(source: Callable[..., Any], summary: str) -> Callable[..., Any]:
    """Return the public function of a curve."""
    return make_metric_function(
        source,
        partial(_reduce_curve, source),
        SCORE_COLUMNS,
        summary,
        column_description=_CURVE_COLUMNS,
        module=__name__,
        extra_option=_THRESHOLDS_OPTION,
        notes=_CURVE_NOTES,
    )


det_curve = _make_curve_metric(
    theirs.det_curve, "Return false positive and false negative rates by threshold."
)


precision_recall_curve = _make_curve_metric(
    theirs.precision_recall_curve, "Return precision and recall by threshold."
)


roc_curve = _make_curve_metric(
    theirs.roc_curve, "Return false and true positive rates by threshold."
)


# --- calibration curve -----------------------------------------------------------------------


_CALIBRATION_COLUMNS = ScoredColumns(read_labels, read_scores, "y_prob")


#: Labels, and an array of shape (n_labels, n_bins, 2): for each label and bin the number of rows
#: and the sum of their probabilities (scikit-learn's curve has no weights).
_LabelBins = tuple[NDArray[Any], NDArray[np.float64]]


def _reduce_calibration_curve(
    y_true: Any,
    y_prob: Any,
    sample_weight: Any,
    *,
    pos_label: Any = None,
    n_bins: int = 5,
    strategy: str = "uniform",
    max_thresholds: int | None = MAX_THRESHOLDS,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of positive rows, and the mean probability, of each bin that has rows."""
    check_max_thresholds(max_thresholds)
    if strategy not in ("uniform", "quantile"):
        raise InvalidParameterError(f"strategy={strategy!r} must be 'uniform' or 'quantile'.")
    if n_bins < 1:
        raise InvalidParameterError(f"n_bins={n_bins} must be a positive number.")
    collection = _CALIBRATION_COLUMNS.align(y_true, y_prob, sample_weight)
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    if strategy == "quantile":
        # The edges are quantiles of all rows' probabilities: still one pass, since the run of all
        # scores can be binned after it. The middle of a run's bin represents its scores.
        run = reduce_to_run(collection, max_thresholds)
        scores = (run.low + run.high) / 2
        _check_unit_interval(scores)
        edges = ColumnSketch(scores, run.weights.sum(axis=1)).quantile(edges)
        labels, sums = run.labels, _sum_run_bins(run, scores, edges)
    else:
        summarise = partial(_sum_block_bins, edges=edges)
        labels, sums = _CALIBRATION_COLUMNS.reduce(
            summarise, _merge_bins, collection, on_device=True
        )
    positive = labels == _find_positive_label(labels, pos_label)
    rows, probabilities = sums.sum(axis=0).T
    # Empty bins have no point on the curve.
    valid = rows != 0
    return sums[positive, :, 0].sum(axis=0)[valid] / rows[valid], probabilities[valid] / rows[valid]


def _sum_block_bins(rows: ScoredRows, edges: NDArray[np.float64]) -> _LabelBins:
    _check_one_column(rows.y_pred, "y_prob")
    _check_unit_interval(rows.y_pred)
    labels, codes = find_unique_labels(rows.y_true)
    _check_two_labels(labels)
    n_bins = len(edges) - 1
    # (label, bin) as one number, so that one `bincount` sums both dimensions. Only the inner edges
    # are used, as in scikit-learn: 0 and 1 are then in the first and last bin.
    xp, proba = namespace(rows.y_pred), cast(rows.y_pred, np.dtype(np.float64))
    cells = codes * n_bins + xp.searchsorted(xp.asarray(edges[1:-1]), proba)
    size = len(labels) * n_bins
    sums = [copy_to_host(xp.bincount(cells, weights, size)) for weights in (None, proba)]
    return labels, np.stack(sums, axis=-1).reshape(len(labels), n_bins, 2).astype(np.float64)


def _merge_bins(block_bins: list[_LabelBins]) -> _LabelBins:
    labels = merge_labels([part_labels for part_labels, _ in block_bins])
    _check_two_labels(labels)
    total = np.zeros((len(labels), *block_bins[0][1].shape[1:]))
    for part_labels, sums in block_bins:  # a block may lack one of the labels
        total[np.searchsorted(labels, part_labels)] += sums
    return labels, total


def _sum_run_bins(
    run: ScoreRun, scores: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the sums of a run by label and bin, as in `_LabelBins`."""
    bins, n_bins = np.searchsorted(edges[1:-1], scores), len(edges) - 1
    # Columns of the run's weights are labels, and its entries represent rows.
    sums = [
        [np.bincount(bins, weight, n_bins), np.bincount(bins, weight * scores, n_bins)]
        for weight in run.weights.T
    ]
    return np.swapaxes(np.array(sums), 1, 2)


def _find_positive_label(labels: NDArray[Any], pos_label: Any) -> Any:
    """Return the given positive label, or 1 if the labels are of -1, 0 and 1."""
    if pos_label is not None:
        return pos_label
    # As in scikit-learn: a 1 among other labels, or in strings, need not be the positive one.
    if labels.dtype.kind not in "biuf" or not set(labels.tolist()) <= {-1, 0, 1}:
        raise InvalidDataError(
            f"y_true takes value in {labels.tolist()} and pos_label is not specified: either make "
            "y_true take value in {0, 1} or {-1, 1} or pass pos_label explicitly."
        )
    return 1


def _check_two_labels(labels: NDArray[Any]) -> None:
    if len(labels) > 2:
        raise InvalidDataError(
            f"Only binary classification is supported. Provided labels {labels[:10].tolist()}. "
            "Take one label at a time, with y_true == label."
        )


def _check_unit_interval(values: NDArray[Any]) -> None:
    xp = namespace(values)
    if xp.min(values) < 0 or xp.max(values) > 1:
        raise InvalidDataError(
            "y_prob has values outside [0, 1]. Pass the result of predict_proba()."
        )


calibration_curve = make_metric_function(
    sklearn.calibration.calibration_curve,
    _reduce_calibration_curve,
    _CALIBRATION_COLUMNS,
    "Return the share of positive rows and the mean probability, in bins of the probability.",
    column_description=_CURVE_COLUMNS.replace("scores, higher for", "probabilities of"),
    module=__name__,
    extra_option=(
        _THRESHOLDS_OPTION[0],
        'As in :func:`roc_curve`; for `strategy` "quantile" alone.',
    ),
)
