"""Metrics of predicted labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import sklearn.metrics
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.errors import InvalidParameterError
from daskml_dist.metrics._columns import Columns, ScoredRows, is_lazy
from daskml_dist.metrics._means import weighted_mean, weighted_sums
from daskml_dist.metrics._readers import check_one_kind, join_labels, read_labels, unique_labels

__all__ = ["accuracy_score", "confusion_matrix"]

COLUMNS = Columns(read_labels, read_labels)


def accuracy_score(
    y_true: Any, y_pred: Any, *, normalize: bool = True, sample_weight: Any = None
) -> float:
    """Share of the rows whose label is predicted.

    Parameters
    ----------
    y_true, y_pred : dask Array or Series, or array-like, of shape (n_rows,) or (n_rows, 1)
        Labels: strings, booleans or whole numbers.
    normalize : bool, default=True
        False gives the weight of such rows instead of their share.
    sample_weight : like `y_true`, or a float, or None

    Returns
    -------
    float

    Raises
    ------
    InvalidDataError
        The columns cannot be aligned, hold NaN or are no labels; the weights sum to zero.
    """
    if not is_lazy(y_true, y_pred, sample_weight):
        metric = sklearn.metrics.accuracy_score
        score = COLUMNS.in_memory(metric, y_true, y_pred, sample_weight, normalize=normalize)
        return float(score)
    if normalize:
        return weighted_mean(COLUMNS, _hits, y_true, y_pred, sample_weight)
    return weighted_sums(COLUMNS, _hits, y_true, y_pred, sample_weight)[1]


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
    """
    _check_parameters(labels, normalize)
    if is_lazy(y_true, y_pred, sample_weight):
        collection = COLUMNS.align(y_true, y_pred, sample_weight)
        found, counts = COLUMNS.reduce(_count_pairs, _join_counts, collection)
        # What is left are rows again, each of a pair of labels and its weight.
        pairs = counts.tocoo()
        y_true, y_pred, sample_weight = found[pairs.row], found[pairs.col], pairs.data
        labels = found if labels is None else labels
    matrix: NDArray[Any] = COLUMNS.in_memory(
        sklearn.metrics.confusion_matrix,
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
        raise InvalidParameterError("labels is empty. Name at least one label, or leave it out.")


def _hits(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[Any]:
    check_one_kind(y_true, y_pred)
    return np.asarray(y_true == y_pred)


# --- confusion matrix ------------------------------------------------------------------------

# Labels, and a sparse matrix over them: many labels of few rows take the memory of the rows.
Counts = tuple[NDArray[Any], Any]


def _count_pairs(rows: ScoredRows) -> Counts:
    check_one_kind(rows.y_true, rows.y_pred)
    labels, at = unique_labels(np.concatenate([rows.y_true, rows.y_pred]))
    weight = np.ones(len(rows.y_true), np.int64) if rows.weight is None else rows.weight
    return labels, _sum_pairs(weight, at[: len(weight)], at[len(weight) :], len(labels))


def _join_counts(parts: list[Counts]) -> Counts:
    labels = join_labels([own for own, _ in parts])
    pairs = [counts.tocoo() for _, counts in parts]
    places = [np.searchsorted(labels, own) for own, _ in parts]
    down = np.concatenate([at[coo.row] for at, coo in zip(places, pairs, strict=True)])
    across = np.concatenate([at[coo.col] for at, coo in zip(places, pairs, strict=True)])
    return labels, _sum_pairs(np.concatenate([p.data for p in pairs]), down, across, len(labels))


def _sum_pairs(weight: NDArray[Any], down: NDArray[Any], across: NDArray[Any], size: int) -> Any:
    # Pairs of weight zero stay, which adding two matrices would drop, and labels with them.
    return sparse.coo_array((weight, (down, across)), shape=(size, size)).tocsr()
