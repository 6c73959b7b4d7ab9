"""Indicators of several labels a row, and the few rows that have the same scores as all of them.

Scores of each label need the weight of its hits, false alarms and misses; scores of each row need
how many labels it has, how many it is given, and how many are both. Rows made of these counts are
scikit-learn's affair.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import as_column, convert_to_numbers, describe_block
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics._columns import Columns, ScoredRows, called, check_total
from daskml_dist.metrics._readers import check_finite

__all__ = [
    "Hits",
    "are_indicators",
    "check_scored",
    "count_hits",
    "has_score",
    "of_hits",
    "read_indicators",
]

Rows = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]

#: Bits of each of the three counts of a row, in one number.
_BITS = 21


def are_indicators(*columns: Any) -> bool:
    """Return whether all arguments have several columns."""
    return all(_width(values) > 1 for values in columns)


def _width(values: Any) -> float:
    shape = getattr(values, "shape", None)
    shape = np.shape(values) if shape is None else shape
    # Where Dask does not know, blocks tell.
    return float(shape[1]) if len(shape) == 2 and not math.isnan(float(shape[1])) else 1.0


def read_indicators(values: Any, name: str, index: int | None) -> NDArray[np.bool_]:
    """Read columns of 0 and 1, one a label."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    table = convert_to_numbers(
        as_column(values, name=name, index=index, several=True), "float64", name, index
    )
    check_finite(table, name, index)
    found: NDArray[np.bool_] = table != 0
    if table.ndim != 2 or (found != table).any():
        raise InvalidDataError(
            f"{describe_block(index)}{name} is of several columns that are no indicators of "
            "labels, of "
            "which each is 0 or 1. Pass one column of labels, or one of 0 and 1 for each label."
        )
    return found


COLUMNS = Columns(read_indicators, read_indicators, several=True)


@dataclass(frozen=True, eq=False)
class Hits:
    """Weights of rows, by label and by the counts of each row.

    Parameters
    ----------
    labels : ndarray of shape (3, n_labels)
        Weight of the rows that have and are given a label; are given it alone; have it alone.
    kinds : ndarray of int64 of shape (n_kinds,)
        Kinds of rows: numbers of labels that a row both has and is given, has, and is given.
    weights : ndarray of shape (n_kinds,)
        Weight of the rows of each kind, int64 where weights are whole.
    n_rows : int
    """

    labels: NDArray[Any]
    kinds: NDArray[np.int64]
    weights: NDArray[Any]
    n_rows: int

    @property
    def weight(self) -> Any:
        """Weight of all rows."""
        return self.weights.sum()

    def rows_of_labels(self) -> Rows:
        """Three rows a label and one without labels, which have the scores of each label."""
        here = np.eye(self.labels.shape[1], dtype=np.int64)
        none = np.zeros_like(here)
        y_true, y_pred = np.vstack([here, none, here]), np.vstack([here, here, none])
        empty = none[:1]
        weight = np.append(self.labels.ravel(), self.weight)
        return np.vstack([y_true, empty]), np.vstack([y_pred, empty]), weight

    def rows_of_rows(self) -> Rows:
        """A row of each kind, which have the scores of each row."""
        both, has, given = _unpacked(self.kinds)
        at = np.arange(self.labels.shape[1])
        y_true = at < has[:, None]
        first = at < both[:, None]
        more = (at >= has[:, None]) & (at < (has + given - both)[:, None])
        return y_true.astype(np.int64), (first | more).astype(np.int64), self.weights

    def tables(self) -> NDArray[Any]:
        """Confusion matrix of each label, of shape (n_labels, 2, 2)."""
        hits, alarms, misses = self.labels
        rest = self.weight - hits - alarms - misses
        return np.stack([rest, alarms, misses, hits], axis=-1).reshape(-1, 2, 2)


def count_hits(y_true: Any, y_pred: Any, sample_weight: Any, labels: Any = None) -> Hits:
    """Count the hits of all rows, in one pass."""
    collection = COLUMNS.align(y_true, y_pred, sample_weight)
    chosen = None if labels is None else np.atleast_1d(np.asarray(labels))
    return COLUMNS.reduce(partial(_hits, labels=chosen), _joined, collection)


def _hits(rows: ScoredRows, labels: NDArray[np.int64] | None) -> Hits:
    n = rows.y_true.shape[1]
    if labels is not None and not (len(labels) and 0 <= labels.min() <= labels.max() < n):
        raise InvalidParameterError(
            "All labels must be in [0, n labels) for multilabel targets. Got "
            f"labels={labels.tolist()} of {n} columns."
        )
    at = slice(None) if labels is None else labels
    y_true, y_pred = rows.y_true[:, at], rows.y_pred[:, at]
    weight = np.ones(len(y_true), np.int64) if rows.weight is None else rows.weight
    both = y_true & y_pred
    hits, has, given = (weight @ of.astype(weight.dtype) for of in (both, y_true, y_pred))
    counts = (of.sum(axis=1, dtype=np.int64) for of in (both, y_true, y_pred))
    kinds, found = np.unique(_packed(*counts), return_inverse=True)
    return Hits(
        np.stack([hits, given - hits, has - hits]), kinds, _sums(found, weight, len(kinds)),
        len(weight),
    )  # fmt: skip


def _joined(parts: list[Hits]) -> Hits:
    kinds, at = np.unique(np.concatenate([part.kinds for part in parts]), return_inverse=True)
    weight = np.concatenate([part.weights for part in parts])
    labels = np.sum([part.labels for part in parts], axis=0)
    return Hits(labels, kinds, _sums(at, weight, len(kinds)), sum(part.n_rows for part in parts))


def _sums(at: NDArray[Any], weight: NDArray[Any], n: int) -> NDArray[Any]:
    sums = np.zeros(n, weight.dtype)
    np.add.at(sums, at, weight)
    return sums


def _packed(both: Any, has: Any, given: Any) -> NDArray[np.int64]:
    return np.asarray((both << 2 * _BITS) | (has << _BITS) | given)


def _unpacked(kinds: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    mask = (1 << _BITS) - 1
    return kinds >> 2 * _BITS, kinds >> _BITS & mask, kinds & mask


# --- scikit-learn's scores of the rows that stand for all ------------------------------------


def of_hits(
    source: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any, **options: Any
) -> Any:
    """Score of a metric of labels, of indicators."""
    check_scored(source)
    # What is wrong with the options, is so before there is work on the data.
    two = np.eye(2, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        called(source, two, two, **{k: v for k, v in options.items() if k not in _OF_LABELS})
    hits = count_hits(y_true, y_pred, sample_weight, options.get("labels"))
    check_total(hits.weight)
    found = _SCORES[source.__name__](source, hits, options)
    # scikit-learn weighs indicators by floats, labels by what the weights are.
    weighed = isinstance(found, np.ndarray) and sample_weight is not None
    return found.astype(np.float64) if weighed else found


def check_scored(source: Callable[..., Any]) -> None:
    """Check that a metric has a score of indicators."""
    if not has_score(source):
        raise InvalidDataError(
            f"multilabel-indicator is not supported by {source.__name__}: y_true should be a 1d "
            "array, and so should the predictions. Pass one column of labels, or score one label "
            "at a time: y_true[:, j] and y_pred[:, j]."
        )


def has_score(source: Callable[..., Any]) -> bool:
    """Return whether a metric of labels has a score of indicators."""
    return source.__name__ in _SCORES


#: Options that depend on how many labels there are.
_OF_LABELS = ("labels", "target_names")


def _call(source: Callable[..., Any], rows: Rows, options: dict[str, Any]) -> Any:
    y_true, y_pred, weight = rows
    if y_true.shape[1] == 1:  # which would be a column of labels
        y_true, y_pred = (np.pad(table, ((0, 0), (0, 1))) for table in (y_true, y_pred))
        options = {**options, "labels": [0]}
    return called(source, y_true, y_pred, sample_weight=weight, **options)


def _of_rows(source: Callable[..., Any], hits: Hits, options: dict[str, Any]) -> float:
    return float(_call(source, hits.rows_of_rows(), options))


def _of_labels(source: Callable[..., Any], hits: Hits, options: dict[str, Any]) -> Any:
    options = {name: value for name, value in options.items() if name != "labels"}
    by_row = options.get("average") == "samples"
    return _call(source, hits.rows_of_rows() if by_row else hits.rows_of_labels(), options)


def _tables(source: Callable[..., Any], hits: Hits, options: dict[str, Any]) -> Any:
    if options.get("samplewise"):
        raise InvalidParameterError(
            "samplewise=True makes a matrix for each row, which are as many as there are rows. Of "
            "a Dask collection pass False, or some rows in memory."
        )
    return hits.tables()


def _report(source: Callable[..., Any], hits: Hits, options: dict[str, Any]) -> Any:
    """A report of all labels, with the mean of the rows' scores put in."""
    labels = options.get("labels")
    named = {name: value for name, value in options.items() if name != "labels"}
    if named.get("target_names") is None and labels is not None:
        named["target_names"] = [str(label) for label in labels]
    with _without_warnings("in samples with"):
        found = _call(source, hits.rows_of_labels(), named)
    with _without_warnings("(in labels with|due to)"):
        by_row = _call(source, hits.rows_of_rows(), named)
    if isinstance(found, dict):
        support = found["samples avg"]["support"]
        return {**found, "samples avg": {**by_row["samples avg"], "support": support}}
    lines = {line.split(" avg")[0].strip(): line for line in by_row.splitlines()}
    return "".join(
        (lines["samples"] if line.strip().startswith("samples avg") else line) + "\n"
        for line in found.splitlines()
    )


@contextmanager
def _without_warnings(of: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{of}")
        yield


_SCORES: dict[str, Callable[..., Any]] = {
    "accuracy_score": _of_rows,
    "hamming_loss": _of_rows,
    "zero_one_loss": _of_rows,
    "multilabel_confusion_matrix": _tables,
    "classification_report": _report,
    "f1_score": _of_labels,
    "fbeta_score": _of_labels,
    "jaccard_score": _of_labels,
    "precision_recall_fscore_support": _of_labels,
    "precision_score": _of_labels,
    "recall_score": _of_labels,
}
