"""Values of rows by the column that their label may turn out to have.

Which column of a table of probabilities is whose, the blocks together tell: where a label is
missing in a block, columns shift. So each label's rows are summed for every column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics._columns import ScoredRows
from daskml_dist.metrics._readers import check_one_kind, join_labels, unique_labels

__all__ = [
    "ByColumn",
    "by_column",
    "check_labels",
    "check_probabilities",
    "join_columns",
    "total",
    "unique_classes",
]


class ByColumn(NamedTuple):
    """Sums of each label that is there, if its column were the first, second, ..."""

    labels: NDArray[Any]
    sums: NDArray[np.float64]  # (n_labels, n_columns)
    weight: float
    sums_to_one: bool = True


def by_column(
    rows: ScoredRows,
    table: NDArray[Any],
    values: Callable[[NDArray[Any]], NDArray[Any]],
    classes: NDArray[Any] | None,
) -> ByColumn:
    """Sum the values of a block."""
    labels, at = unique_labels(rows.y_true)
    check_labels(labels, classes, table.shape[1])
    # One row a label, which holds the weights of its rows: their sums are one product.
    places = (at, np.arange(len(at)))
    weights = sparse.csr_array((rows.weights, places), shape=(len(labels), len(at)))
    sums = weights @ values(table).astype("float64", copy=False)
    return ByColumn(labels, sums, float(rows.weights.sum()))


def check_probabilities(proba: NDArray[Any]) -> None:
    """Check that numbers are probabilities."""
    if proba.min() < 0 or proba.max() > 1:
        raise InvalidDataError(
            f"y_proba holds {proba.min()} to {proba.max()}, which are no probabilities. Pass what "
            "predict_proba() returns."
        )


def check_labels(labels: NDArray[Any], classes: NDArray[Any] | None, n_columns: int) -> None:
    """Check those of a block; too many would make its summary as large as the block."""
    if classes is None:
        if len(labels) > n_columns:
            raise _wrong_count(labels, n_columns)
        return
    check_one_kind(labels, classes)
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise InvalidDataError(
            f"y_true contains values {unknown.tolist()} not belonging to the passed labels "
            f"{classes.tolist()}. Add them to `labels`."
        )


def join_columns(parts: list[ByColumn]) -> ByColumn:
    """Join the sums of blocks."""
    labels = join_labels([part.labels for part in parts])
    sums = np.zeros((len(labels), parts[0].sums.shape[1]))
    for part in parts:
        sums[np.searchsorted(labels, part.labels)] += part.sums
    weight = sum(part.weight for part in parts)
    return ByColumn(labels, sums, weight, all(part.sums_to_one for part in parts))


def total(found: ByColumn, classes: NDArray[Any] | None) -> float:
    """Sum of all rows, each of its label's column."""
    n_columns = found.sums.shape[1]
    known = found.labels if classes is None else classes
    if classes is None and len(known) == 1:
        raise InvalidDataError(
            f"y_true contains only one label ({known[0]}). Provide the list of all expected class "
            "labels through the labels argument."
        )
    if len(known) != n_columns:
        raise _wrong_count(known, n_columns)
    column = np.searchsorted(known, found.labels)
    return float(found.sums[np.arange(len(column)), column].sum())


def _wrong_count(labels: NDArray[Any], n_columns: int) -> InvalidDataError:
    return InvalidDataError(
        f"There are {len(labels)} labels or more, {labels[:10].tolist()}, while the predictions "
        f"have {n_columns} columns. Pass one column a label, and all labels in the labels "
        "argument where y_true may lack some."
    )


def unique_classes(labels: Any) -> NDArray[Any]:
    """Sorted labels of the argument of that name."""
    classes, _ = unique_labels(np.asarray(labels))
    if len(classes) < 2:
        raise InvalidParameterError(
            f"The labels array needs to contain at least two labels, got {classes.tolist()}. Name "
            "all that the table has columns of."
        )
    return classes
