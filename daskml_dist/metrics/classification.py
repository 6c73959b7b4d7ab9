"""Metrics of classification, of one label a row or of multilabel indicators.

One pass counts the weight of each pair of true and predicted label, the sparse confusion matrix.
scikit-learn's function is then called on one weighted row for each pair.

Multilabel scores are of two kinds. Scores by label need the weight of each label's hits, false
alarms and misses. Scores by row need three counts of each row: labels that it has, is given, and
both. From these counts few weighted rows are made ("stand-in rows"), whose scores equal those of
all rows, and scikit-learn's function is called on them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.namespace import namespace
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.metrics._columns import (
    ScoredColumns,
    ScoredRows,
    call_sklearn_metric,
    check_computed_at_once,
    check_label_kinds,
    check_weight_total,
    find_unique_labels,
    has_lazy_input,
    hold_indicators,
    merge_labels,
    read_indicators,
    read_labels,
    reduce_weighted_sums,
)
from daskml_dist.metrics._metric_functions import make_metric_function

__all__ = [
    "accuracy_score",
    "balanced_accuracy_score",
    "class_likelihood_ratios",
    "classification_report",
    "cohen_kappa_score",
    "confusion_matrix",
    "count_label_pairs",
    "f1_score",
    "fbeta_score",
    "hamming_loss",
    "jaccard_score",
    "matthews_corrcoef",
    "multilabel_confusion_matrix",
    "precision_recall_fscore_support",
    "precision_score",
    "recall_score",
    "reduce_to_label_pairs",
    "zero_one_loss",
]


LABEL_COLUMNS = ScoredColumns(read_labels, read_labels)


INDICATOR_COLUMNS = ScoredColumns(read_indicators, read_indicators, multi_output=True)


#: Sorted labels, and the sparse confusion matrix over them (true labels down), which has no more
#: entries than there are rows, however many the labels.
PairCounts = tuple[NDArray[Any], Any]


#: `y_true`, `y_pred` and `sample_weight` of few rows that have the same score as all rows.
StandInRows = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


#: Bits of each of the three counts of a row, packed into one int64: up to two million labels.
_COUNT_BITS = 21


@suggest_arguments
def accuracy_score(
    y_true: Any,
    y_pred: Any,
    *,
    normalize: bool = True,
    sample_weight: Any = None,
    compute: bool = True,
) -> Any:
    """Return the share of the rows whose label is predicted (multilabel: whose labels all are).

    Parameters
    ----------
    y_true, y_pred : dask Array, Series or DataFrame, or array-like
        Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers; or
        indicators of several labels, of shape (n_rows, n_labels).
    normalize : bool, default=True
        False gives the weight of such rows instead of their share.
    sample_weight : like `y_true`, or a float, or None
    compute : bool, default=True
        False gives a lazy score of Dask collections (a `dask.delayed.Delayed`): several that are
        computed together, by `dask.compute`, read the rows once.

    Returns
    -------
    float, or Delayed of a float without `compute`

    Raises
    ------
    InvalidParameterError
        ``compute=False`` of several labels a row.
    InvalidDataError
        The columns cannot be aligned, hold NaN or are no labels; the weights sum to zero.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import accuracy_score
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> y_pred = np.array([0, 1, 0, 0, 1])
    >>> round(float(accuracy_score(y_true, y_pred)), 4)
    0.8
    """
    rows, options = (y_true, y_pred, sample_weight), {"normalize": normalize}
    if not has_lazy_input(*rows):
        return float(LABEL_COLUMNS.score_in_memory(theirs.accuracy_score, *rows, **options))
    if hold_indicators(y_true, y_pred):
        check_computed_at_once(compute)
        return float(_score_indicators(theirs.accuracy_score, *rows, **options))
    finish = partial(_finish_accuracy, normalize)
    return reduce_weighted_sums(LABEL_COLUMNS, _compare_labels, *rows, finish, compute)


def _finish_accuracy(normalize: bool, weight: float, hits: NDArray[np.float64]) -> float:
    if normalize:
        check_weight_total(weight)
        return float(hits[0] / weight)
    return float(hits[0])


def _compare_labels(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[Any]:
    check_label_kinds(y_true, y_pred)
    is_equal: NDArray[Any] = y_true == y_pred
    return is_equal


@suggest_arguments
def confusion_matrix(
    y_true: Any,
    y_pred: Any,
    *,
    labels: Any = None,
    sample_weight: Any = None,
    normalize: str | None = None,
) -> NDArray[Any]:
    """Count the rows of each pair of true and predicted label.

    Parameters
    ----------
    y_true, y_pred : dask Array or Series, or array-like, of shape (n_rows,) or (n_rows, 1)
        Labels: strings, booleans or whole numbers.
    labels : array-like of shape (n_classes,), optional
        Labels to count, in the order of the result; all, sorted, by default.
    sample_weight : like `y_true`, or a float, or None
    normalize : {"true", "pred", "all"} or None, default=None
        Divide by the sums of the rows, of the columns, or of all.

    Returns
    -------
    ndarray of shape (n_classes, n_classes)
        True labels down, predicted ones across. int64 where weights are whole and `normalize` is
        None, else float64.

    Raises
    ------
    InvalidParameterError
        `normalize` is no such word, or `labels` is empty.
    InvalidDataError
        The columns cannot be aligned, hold NaN or are no labels; no row has one of `labels`; the
        weights are all zero.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import confusion_matrix
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> y_pred = np.array([0, 1, 0, 0, 1])
    >>> confusion_matrix(y_true, y_pred).tolist()
    [[2, 0], [1, 2]]
    """
    _check_confusion_options(labels, normalize)
    if has_lazy_input(y_true, y_pred, sample_weight):
        if hold_indicators(y_true, y_pred):
            _check_scores_indicators(theirs.confusion_matrix)
        y_true, y_pred, sample_weight, distinct = reduce_to_label_pairs(
            y_true, y_pred, sample_weight
        )
        labels = distinct if labels is None else labels
    matrix: NDArray[Any] = LABEL_COLUMNS.score_in_memory(
        theirs.confusion_matrix, y_true, y_pred, sample_weight, labels=labels, normalize=normalize
    )
    return matrix


def _check_confusion_options(labels: Any, normalize: str | None) -> None:
    if normalize not in (None, "true", "pred", "all"):
        raise InvalidParameterError(
            f"normalize={normalize!r} must be 'true', 'pred', 'all' or None."
        )
    if labels is not None and len(labels) == 0:
        raise InvalidParameterError(
            "'labels' should contain at least one label. Name one, or leave it out."
        )


# --- pairs of labels -------------------------------------------------------------------------


def reduce_to_label_pairs(
    y_true: Any, y_pred: Any, sample_weight: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return arrays (true label, predicted label, weight) of all pairs, and the sorted labels."""
    collection = LABEL_COLUMNS.align(y_true, y_pred, sample_weight)
    labels, counts = LABEL_COLUMNS.reduce(
        count_label_pairs, _merge_pair_counts, collection, on_device=True
    )
    pairs = counts.tocoo()
    return labels[pairs.row], labels[pairs.col], pairs.data, labels


def count_label_pairs(rows: ScoredRows) -> PairCounts:
    """Return the sorted labels of some rows, and the weight of each (true, predicted) pair."""
    check_label_kinds(rows.y_true, rows.y_pred)
    # Both columns at once, so that their labels get the same numbers.
    xp, n_rows = namespace(rows.y_true), len(rows.y_true)
    labels, codes = find_unique_labels(xp.concatenate([rows.y_true, rows.y_pred]))
    true_codes, predicted_codes = codes[:n_rows], codes[n_rows:]
    if xp is np:
        weight = np.ones(n_rows, np.int64) if rows.weight is None else rows.weight
        return labels, _build_pair_matrix(weight, true_codes, predicted_codes, len(labels))
    # On a GPU pairs are numbered, and summed by number. `bincount` makes floats of weights.
    pairs, pair_numbers = xp.unique_inverse(true_codes * len(labels) + predicted_codes)
    weights = None if rows.weight is None else rows.weights
    sums = copy_to_host(xp.bincount(pair_numbers, weights=weights))
    if rows.weight is not None:
        sums = sums.astype(rows.weight.dtype)
    true_codes, predicted_codes = divmod(copy_to_host(pairs), len(labels))
    return labels, _build_pair_matrix(sums, true_codes, predicted_codes, len(labels))


def _merge_pair_counts(block_counts: list[PairCounts]) -> PairCounts:
    labels = merge_labels([part_labels for part_labels, _ in block_counts])
    pairs = [counts.tocoo() for _, counts in block_counts]
    # A block may lack labels: its numbers of labels become those among all.
    codes_by_part = [np.searchsorted(labels, part_labels) for part_labels, _ in block_counts]
    true_codes = np.concatenate(
        [part_codes[coo.row] for part_codes, coo in zip(codes_by_part, pairs, strict=True)]
    )
    predicted_codes = np.concatenate(
        [part_codes[coo.col] for part_codes, coo in zip(codes_by_part, pairs, strict=True)]
    )
    weights = np.concatenate([coo.data for coo in pairs])
    return labels, _build_pair_matrix(weights, true_codes, predicted_codes, len(labels))


def _build_pair_matrix(
    weight: NDArray[Any], down: NDArray[Any], across: NDArray[Any], size: int
) -> Any:
    # Made of coordinates: a sum of two sparse matrices would drop entries of weight 0, and so
    # labels that scikit-learn reports with a support of 0.
    return sparse.coo_array((weight, (down, across)), shape=(size, size)).tocsr()


# --- counts of indicators --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _IndicatorCounts:
    """Weights of rows of indicators, by label and by the counts of each row.

    Parameters
    ----------
    labels : ndarray of shape (3, n_labels)
        Weight of the hits of each label (rows that have it and are given it), of its false alarms
        (given only) and of its misses (had only).
    kinds : ndarray of int64 of shape (n_kinds,)
        Sorted kinds of rows. A kind is three counts of labels, packed: those that a row both has
        and is given, has, and is given.
    weights : ndarray of shape (n_kinds,)
        Weight of the rows of each kind, int64 where weights are whole.
    """

    labels: NDArray[Any]
    kinds: NDArray[np.int64]
    weights: NDArray[Any]

    @property
    def weight(self) -> Any:
        """Return the weight of all rows."""
        return self.weights.sum()

    def make_label_rows(self) -> StandInRows:
        """Return rows with the scores by label: a hit, a false alarm and a miss of each label.

        A last row without labels has the weight of all rows: true negatives for every label.
        """
        identity = np.eye(self.labels.shape[1], dtype=np.int64)
        zeros = np.zeros_like(identity)
        # In the order of `labels`: hits, false alarms, misses.
        y_true = np.vstack([identity, zeros, identity])
        y_pred = np.vstack([identity, identity, zeros])
        last_row = zeros[:1]
        weight = np.append(self.labels.ravel(), self.weight)
        return np.vstack([y_true, last_row]), np.vstack([y_pred, last_row]), weight

    def make_rows_of_kinds(self) -> StandInRows:
        """Return one row of each kind, with the scores by row: they depend on the counts only."""
        mask = (1 << _COUNT_BITS) - 1
        hits, n_true, n_given = (self.kinds >> i * _COUNT_BITS & mask for i in (2, 1, 0))
        columns = np.arange(self.labels.shape[1])
        # A row has the first `n_true` labels; it is given the first `hits` of these, and then
        # labels directly behind those that it has.
        y_true = columns < n_true[:, None]
        is_hit = columns < hits[:, None]
        is_alarm = (columns >= n_true[:, None]) & (columns < (n_true + n_given - hits)[:, None])
        return y_true.astype(np.int64), (is_hit | is_alarm).astype(np.int64), self.weights


def _count_block_indicators(rows: ScoredRows, labels: NDArray[np.int64] | None) -> _IndicatorCounts:
    """Return the counts of a block's rows, of the columns `labels` (None: all)."""
    n = rows.y_true.shape[1]
    if labels is not None and not (len(labels) and 0 <= labels.min() <= labels.max() < n):
        raise InvalidParameterError(
            "All labels must be in [0, n labels) for multilabel targets. Got "
            f"labels={labels.tolist()} of {n} columns."
        )
    columns = slice(None) if labels is None else labels
    y_true, y_pred = rows.y_true[:, columns], rows.y_pred[:, columns]
    weight = np.ones(len(y_true), np.int64) if rows.weight is None else rows.weight
    hit_cells = y_true & y_pred
    # Products with the weights sum over rows, by label; the sums below are over labels, by row.
    hits, actual, predicted = (
        weight @ table.astype(weight.dtype) for table in (hit_cells, y_true, y_pred)
    )
    # Three counts in one integer, so that `unique` sorts numbers instead of rows.
    packed = np.zeros(len(y_true), np.int64)
    for table in (hit_cells, y_true, y_pred):
        packed = (packed << _COUNT_BITS) | table.sum(axis=1, dtype=np.int64)
    kinds, codes = np.unique(packed, return_inverse=True)
    by_label = np.stack([hits, predicted - hits, actual - hits])
    return _IndicatorCounts(by_label, kinds, _sum_by_kind(codes, weight, len(kinds)))


def _merge_indicator_counts(block_counts: list[_IndicatorCounts]) -> _IndicatorCounts:
    kinds, codes = np.unique(
        np.concatenate([part.kinds for part in block_counts]), return_inverse=True
    )
    weight = np.concatenate([part.weights for part in block_counts])
    labels = np.sum([part.labels for part in block_counts], axis=0)
    return _IndicatorCounts(labels, kinds, _sum_by_kind(codes, weight, len(kinds)))


def _sum_by_kind(kind_codes: NDArray[Any], weight: NDArray[Any], n: int) -> NDArray[Any]:
    # Not `np.bincount`, whose sums are floats: whole weights stay whole.
    sums = np.zeros(n, weight.dtype)
    np.add.at(sums, kind_codes, weight)
    return sums


# --- scikit-learn's scores of indicators, by the few rows that stand for all -----------------


def _score_indicators(
    source: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any, **options: Any
) -> Any:
    """Return the multilabel score of lazy indicators by scikit-learn's function `source`."""
    _check_scores_indicators(source)
    # Two made-up rows: scikit-learn raises for bad options before any block is read.
    made_up = np.eye(2, dtype=np.int64)
    general_options = {name: value for name, value in options.items() if name not in _LABEL_OPTIONS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call_sklearn_metric(source, made_up, made_up, **general_options)
    collection = INDICATOR_COLUMNS.align(y_true, y_pred, sample_weight)
    labels = options.get("labels")
    label_columns = None if labels is None else np.atleast_1d(np.asarray(labels))
    count = partial(_count_block_indicators, labels=label_columns)
    counts = INDICATOR_COLUMNS.reduce(count, _merge_indicator_counts, collection)
    check_weight_total(counts.weight)
    score = _INDICATOR_SCORES[source.__name__](source, counts, options)
    # scikit-learn sums the weights of indicators as floats, those of labels in their own dtype.
    as_float = isinstance(score, np.ndarray) and sample_weight is not None
    return score.astype(np.float64) if as_float else score


def _check_scores_indicators(source: Callable[..., Any]) -> None:
    """Raise `InvalidDataError` for a metric without a multilabel score."""
    if source.__name__ not in _INDICATOR_SCORES:
        raise InvalidDataError(
            f"multilabel-indicator is not supported by {source.__name__}: y_true should be a 1d "
            "array, and so should the predictions. Pass one column of labels, or score one label "
            "at a time: y_true[:, j] and y_pred[:, j]."
        )


#: Options whose validity depends on the number of labels, so that two made-up rows cannot tell it.
_LABEL_OPTIONS = ("labels", "target_names")


def _score_stand_in_rows(
    source: Callable[..., Any], rows: StandInRows, options: dict[str, Any]
) -> Any:
    y_true, y_pred, weight = rows
    # One column of indicators would be taken for labels: a second, empty one is appended.
    if y_true.shape[1] == 1:
        y_true, y_pred = (np.pad(table, ((0, 0), (0, 1))) for table in (y_true, y_pred))
        options = {**options, "labels": [0]}
    return call_sklearn_metric(source, y_true, y_pred, sample_weight=weight, **options)


def _score_by_rows(
    source: Callable[..., Any], counts: _IndicatorCounts, options: dict[str, Any]
) -> float:
    return float(_score_stand_in_rows(source, counts.make_rows_of_kinds(), options))


def _score_by_labels(
    source: Callable[..., Any], counts: _IndicatorCounts, options: dict[str, Any]
) -> Any:
    # The counts are of the chosen labels already.
    options = {name: value for name, value in options.items() if name != "labels"}
    by_row = options.get("average") == "samples"
    rows = counts.make_rows_of_kinds() if by_row else counts.make_label_rows()
    return _score_stand_in_rows(source, rows, options)


def _make_label_tables(
    source: Callable[..., Any], counts: _IndicatorCounts, options: dict[str, Any]
) -> Any:
    """Return the confusion matrix of each label, of shape (n_labels, 2, 2)."""
    if options.get("samplewise"):
        raise InvalidParameterError(
            "samplewise=True makes one matrix per row. For a Dask collection, pass False, or "
            "some rows in memory."
        )
    hits, alarms, misses = counts.labels
    true_negatives = counts.weight - hits - alarms - misses
    # scikit-learn's layout: [[true negatives, false alarms], [misses, hits]].
    return np.stack([true_negatives, alarms, misses, hits], axis=-1).reshape(-1, 2, 2)


def _make_indicator_report(
    source: Callable[..., Any], counts: _IndicatorCounts, options: dict[str, Any]
) -> Any:
    """Return scikit-learn's report of labels, as text or dictionary."""
    labels = options.get("labels")
    report_options = {name: value for name, value in options.items() if name != "labels"}
    if report_options.get("target_names") is None and labels is not None:
        report_options["target_names"] = [str(label) for label in labels]
    # Two reports are joined. That of the rows by label is right but for the line "samples avg",
    # that of the rows by kind is right in this line alone; likewise the warnings of each.
    with _ignore_warnings_like("in samples with"):
        by_label = _score_stand_in_rows(source, counts.make_label_rows(), report_options)
    with _ignore_warnings_like("(in labels with|due to)"):
        by_row = _score_stand_in_rows(source, counts.make_rows_of_kinds(), report_options)
    if isinstance(by_label, dict):
        support = by_label["samples avg"]["support"]
        return {**by_label, "samples avg": {**by_row["samples avg"], "support": support}}
    lines = {line.split(" avg")[0].strip(): line for line in by_row.splitlines()}
    return "".join(
        (lines["samples"] if line.strip().startswith("samples avg") else line) + "\n"
        for line in by_label.splitlines()
    )


@contextmanager
def _ignore_warnings_like(pattern: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{pattern}")
        yield


#: Multilabel scores by the names of scikit-learn's functions: by row, by label, and special cases.
_INDICATOR_SCORES: dict[str, Callable[..., Any]] = {
    "accuracy_score": _score_by_rows,
    "hamming_loss": _score_by_rows,
    "zero_one_loss": _score_by_rows,
    "multilabel_confusion_matrix": _make_label_tables,
    "classification_report": _make_indicator_report,
    "f1_score": _score_by_labels,
    "fbeta_score": _score_by_labels,
    "jaccard_score": _score_by_labels,
    "precision_recall_fscore_support": _score_by_labels,
    "precision_score": _score_by_labels,
    "recall_score": _score_by_labels,
}


# --- public functions ------------------------------------------------------------------------


def _score_label_pairs(
    source: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any, **options: Any
) -> Any:
    """Return scikit-learn's metric of lazy labels or indicators."""
    if hold_indicators(y_true, y_pred):
        return _score_indicators(source, y_true, y_pred, sample_weight, **options)
    # One weighted row for each (true, predicted) pair has the score of all rows.
    *rows, _ = reduce_to_label_pairs(y_true, y_pred, sample_weight)
    return LABEL_COLUMNS.score_in_memory(source, *rows, **options)


def _score_with_supports(
    source: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any, **options: Any
) -> Any:
    """Return a score that contains supports (rows of each label), as integers without weights."""
    score = _score_label_pairs(source, y_true, y_pred, sample_weight, **options)
    if sample_weight is not None:
        return score
    # The pairs' counts were passed as weights, with which scikit-learn's supports are floats: "5.0"
    # at the end of a line of the report becomes "5", in the same columns.
    if isinstance(score, str):
        return re.sub(r" +(\d+)\.0$", lambda match: f" {match[1]:>9}", score, flags=re.MULTILINE)
    if isinstance(score, tuple) and score[-1] is not None:
        return (*score[:-1], score[-1].astype(np.int64))
    return score


def _make_label_metric(
    source: Callable[..., Any], summary: str, lazily: Callable[..., Any] = _score_label_pairs
) -> Callable[..., Any]:
    """Return the public function of a metric of label pairs."""
    text = "Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers"
    if source.__name__ in _INDICATOR_SCORES:
        text += (
            "; or\n    indicators of several labels, 0 or 1, of shape (n_rows, n_labels), of which"
            "\n    the options mean what they mean in scikit-learn"
        )
    text += "."
    lazily = partial(lazily, source)
    return make_metric_function(
        source, lazily, LABEL_COLUMNS, summary, column_description=text, module=__name__
    )


balanced_accuracy_score = _make_label_metric(
    theirs.balanced_accuracy_score, "Return the mean recall of the labels."
)


class_likelihood_ratios = _make_label_metric(
    theirs.class_likelihood_ratios,
    "Return the positive and the negative likelihood ratio of two labels.",
)


classification_report = _make_label_metric(
    theirs.classification_report,
    "Return a table of precision, recall and F1 of each label.",
    _score_with_supports,
)


cohen_kappa_score = _make_label_metric(
    theirs.cohen_kappa_score, "Return the agreement of two columns of labels beyond chance."
)


f1_score = _make_label_metric(theirs.f1_score, "Return the harmonic mean of precision and recall.")


fbeta_score = _make_label_metric(
    theirs.fbeta_score, "Return the weighted harmonic mean of precision and recall."
)


hamming_loss = _make_label_metric(
    theirs.hamming_loss, "Return the share of the labels that are wrongly predicted."
)


jaccard_score = _make_label_metric(
    theirs.jaccard_score,
    "Return the Jaccard index: the hits of a label over the rows that have or are given it.",
)


matthews_corrcoef = _make_label_metric(
    theirs.matthews_corrcoef, "Return the correlation of true and predicted labels."
)


multilabel_confusion_matrix = _make_label_metric(
    theirs.multilabel_confusion_matrix,
    "Return the confusion matrix of each label against the rest.",
)


precision_recall_fscore_support = _make_label_metric(
    theirs.precision_recall_fscore_support,
    "Return precision, recall, F score and number of rows of each label.",
    _score_with_supports,
)


precision_score = _make_label_metric(
    theirs.precision_score, "Return the share of the rows given a label that truly have it."
)


recall_score = _make_label_metric(
    theirs.recall_score, "Return the share of the rows of a label that are given this label."
)


zero_one_loss = _make_label_metric(
    theirs.zero_one_loss,
    "Return the share of the rows whose label (multilabel: any label) is wrongly predicted.",
)
