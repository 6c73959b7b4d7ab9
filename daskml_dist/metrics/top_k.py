"""Share of the rows whose label is among those of the best scores."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.metrics._by_column import ByColumn, by_column, join_columns, total, unique_classes
from daskml_dist.metrics._columns import ScoredRows, called, check_total
from daskml_dist.metrics._faces import face
from daskml_dist.metrics.ranking import COLUMNS

__all__ = ["top_k_accuracy_score"]


class _Hits(NamedTuple):
    found: ByColumn  # of one column of scores: with a threshold of 0, then with one of 0.5
    of_one: bool
    probabilities: bool


def _warn_of(k: int, n_classes: int) -> None:
    """Warn of so many best classes that each row has its own among them."""
    if k >= n_classes:
        warnings.warn(
            f"'k' ({k}) greater than or equal to 'n_classes' ({n_classes}) will result in a "
            "perfect score and is therefore meaningless.",
            UndefinedMetricWarning,
            stacklevel=user_stack_level(),
        )


def _top_k(
    y_true: Any,
    y_score: Any,
    sample_weight: Any,
    *,
    k: int = 2,
    normalize: bool = True,
    labels: Any = None,
) -> float:
    three = np.eye(3)
    called(theirs.top_k_accuracy_score, [0, 1, 2], three, k=min(k, 2))  # tells of a bad k
    classes = None if labels is None else _ordered(labels)
    collection = COLUMNS.align(y_true, y_score, sample_weight)
    hits = COLUMNS.reduce(partial(_hits, k=k, classes=classes), _join, collection)
    found = hits.found
    if hits.of_one:
        start = 2 if hits.probabilities else 0
        found = found._replace(sums=found.sums[:, start : start + 2])
        if len(found.labels) > 2:
            raise InvalidDataError(
                "`y_score` needs to be of shape `(n_samples, n_classes)`, since `y_true` contains "
                "multiple classes. Pass a column of each."
            )
    _warn_of(k, found.sums.shape[1])
    summed = total(found, classes)
    if not normalize:
        return summed
    check_total(found.weight)
    return summed / found.weight


def _ordered(labels: Any) -> NDArray[Any]:
    """Labels in the order of the columns, which is theirs."""
    classes = unique_classes(labels)
    if classes.tolist() != np.asarray(labels).tolist():
        raise InvalidParameterError(
            "Parameter 'labels' must be ordered, each label once, and the columns of y_score in "
            "that order. Sort both."
        )
    return classes


def _hits(rows: ScoredRows, k: int, classes: NDArray[Any] | None) -> _Hits:
    scores = rows.y_pred
    if scores.ndim == 2:
        return _Hits(by_column(rows, scores, partial(_among, k=k), classes), False, False)
    if k > 1:
        table = np.ones((len(scores), 4))
    else:
        table = np.column_stack([scores <= 0, scores > 0, scores <= 0.5, scores > 0.5])
    found = by_column(rows, table.astype(np.float64), np.asarray, classes)
    return _Hits(found, True, bool(scores.min() >= 0 and scores.max() <= 1))


def _among(scores: NDArray[Any], k: int) -> NDArray[np.float64]:
    # Of equal scores the later column is the better one, as scikit-learn has it.
    best = np.argsort(scores, axis=1, kind="stable")[:, ::-1][:, :k]
    found = np.zeros(scores.shape)
    np.put_along_axis(found, best, 1.0, axis=1)
    return found


def _join(parts: list[_Hits]) -> _Hits:
    found, of_one, probabilities = zip(*parts, strict=True)
    return _Hits(join_columns(list(found)), all(of_one), all(probabilities))


top_k_accuracy_score = face(
    theirs.top_k_accuracy_score,
    _top_k,
    COLUMNS,
    "Share of the rows whose label is among those of the k best scores.",
    of="Labels, of shape (n_rows,), and scores of each, of shape (n_rows, n_classes), in the order "
    "of the sorted labels; or, of two, of the larger alone.",
    module=__name__,
)
