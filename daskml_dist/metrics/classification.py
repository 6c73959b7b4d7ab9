"""Metrics of predicted labels."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import telling_arguments
from daskml_dist.metrics._columns import check_computed, is_lazy
from daskml_dist.metrics._faces import face
from daskml_dist.metrics._indicators import are_indicators, check_scored, has_score, of_hits
from daskml_dist.metrics._means import weighted_mean, weighted_sums
from daskml_dist.metrics._pairs import COLUMNS, paired_rows
from daskml_dist.metrics._readers import check_one_kind

__all__ = [
    "accuracy_score",
    "balanced_accuracy_score",
    "class_likelihood_ratios",
    "classification_report",
    "cohen_kappa_score",
    "confusion_matrix",
    "f1_score",
    "fbeta_score",
    "hamming_loss",
    "jaccard_score",
    "matthews_corrcoef",
    "multilabel_confusion_matrix",
    "precision_recall_fscore_support",
    "precision_score",
    "recall_score",
    "zero_one_loss",
]


@telling_arguments
def accuracy_score(
    y_true: Any,
    y_pred: Any,
    *,
    normalize: bool = True,
    sample_weight: Any = None,
    compute: bool = True,
) -> Any:
    """Share of the rows whose label is predicted; of several labels, whose labels all are.

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
    if not is_lazy(y_true, y_pred, sample_weight):
        metric = theirs.accuracy_score
        score = COLUMNS.in_memory(metric, y_true, y_pred, sample_weight, normalize=normalize)
        return float(score)
    if are_indicators(y_true, y_pred):
        check_computed(compute)
        options = {"normalize": normalize}
        return float(of_hits(theirs.accuracy_score, y_true, y_pred, sample_weight, **options))
    if normalize:
        return weighted_mean(COLUMNS, _hits, y_true, y_pred, sample_weight, _first, compute)
    return weighted_sums(COLUMNS, _hits, y_true, y_pred, sample_weight, _first_sum, compute)


def _first(means: NDArray[np.float64]) -> float:
    return float(means[0])


def _first_sum(weight: float, sums: NDArray[np.float64]) -> float:
    return float(sums[0])


@telling_arguments
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
    _check_parameters(labels, normalize)
    if is_lazy(y_true, y_pred, sample_weight):
        if are_indicators(y_true, y_pred):
            check_scored(theirs.confusion_matrix)
        y_true, y_pred, sample_weight, found = paired_rows(y_true, y_pred, sample_weight)
        labels = found if labels is None else labels
    matrix: NDArray[Any] = COLUMNS.in_memory(
        theirs.confusion_matrix,
        y_true,
        y_pred,
        sample_weight,
        labels=labels,
        normalize=normalize,
    )
    return matrix


def _check_parameters(labels: Any, normalize: str | None) -> None:
    if normalize not in (None, "true", "pred", "all"):
        raise InvalidParameterError(
            f"normalize={normalize!r} is none of 'true', 'pred', 'all' and None. Pass one of them."
        )
    if labels is not None and len(labels) == 0:
        raise InvalidParameterError(
            "'labels' should contain at least one label. Name one, or leave it out."
        )


def _hits(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[Any]:
    check_one_kind(y_true, y_pred)
    return np.asarray(y_true == y_pred)


# --- metrics of the pairs of labels, or of the hits of several -------------------------------


def _of_pairs(
    source: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any, **options: Any
) -> Any:
    if are_indicators(y_true, y_pred):
        return of_hits(source, y_true, y_pred, sample_weight, **options)
    *rows, _ = paired_rows(y_true, y_pred, sample_weight)
    return COLUMNS.in_memory(source, *rows, **options)


def _counted(
    source: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any, **options: Any
) -> Any:
    """A result that tells the rows of each label: a whole number where none is weighed."""
    found = _of_pairs(source, y_true, y_pred, sample_weight, **options)
    if sample_weight is not None:
        return found
    if isinstance(found, str):
        return re.sub(r" +(\d+)\.0$", lambda at: f" {at[1]:>9}", found, flags=re.MULTILINE)
    if isinstance(found, tuple) and found[-1] is not None:
        return (*found[:-1], found[-1].astype(np.int64))
    return found


def _metric(
    source: Callable[..., Any], summary: str, lazily: Callable[..., Any] = _of_pairs
) -> Callable[..., Any]:
    of = "Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers"
    if has_score(source):
        of += (
            "; or\n    indicators of several labels, 0 or 1, of shape (n_rows, n_labels), of which"
            "\n    the options mean what they mean in scikit-learn"
        )
    of += "."
    return face(source, partial(lazily, source), COLUMNS, summary, of=of, module=__name__)


balanced_accuracy_score = _metric(theirs.balanced_accuracy_score, "Mean recall of the labels.")
class_likelihood_ratios = _metric(
    theirs.class_likelihood_ratios, "Positive and negative likelihood ratio of two labels."
)
classification_report = _metric(
    theirs.classification_report, "Table of precision, recall and F1 of each label.", _counted
)
cohen_kappa_score = _metric(
    theirs.cohen_kappa_score, "Agreement of two columns of labels, beyond that of chance."
)
f1_score = _metric(theirs.f1_score, "Harmonic mean of precision and recall.")
fbeta_score = _metric(theirs.fbeta_score, "Weighted harmonic mean of precision and recall.")
hamming_loss = _metric(theirs.hamming_loss, "Share of the rows whose label is not predicted.")
jaccard_score = _metric(
    theirs.jaccard_score, "Rows that truly have and are given a label, of those that do either."
)
matthews_corrcoef = _metric(theirs.matthews_corrcoef, "Correlation of true and predicted labels.")
multilabel_confusion_matrix = _metric(
    theirs.multilabel_confusion_matrix,
    "Confusion matrix of each label against the rest; of indicators, of each label.",
)
precision_recall_fscore_support = _metric(
    theirs.precision_recall_fscore_support,
    "Precision, recall, F score and number of rows of each label.",
    _counted,
)
precision_score = _metric(
    theirs.precision_score, "Share of the rows given a label that truly have it."
)
recall_score = _metric(
    theirs.recall_score, "Share of the rows of a label that are given this label."
)
zero_one_loss = _metric(theirs.zero_one_loss, "Share of the rows whose label is not predicted.")
