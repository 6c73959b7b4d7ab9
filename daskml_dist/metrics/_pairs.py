"""Counts of the pairs of true and predicted label, all that a metric of labels needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.metrics._columns import Columns, ScoredRows
from daskml_dist.metrics._readers import check_one_kind, join_labels, read_labels, unique_labels

__all__ = ["COLUMNS", "Counts", "count_pairs", "paired_rows"]

COLUMNS = Columns(read_labels, read_labels)

# Labels, and a sparse matrix over them: many labels of few rows take the memory of the rows.
Counts = tuple[NDArray[Any], Any]


def paired_rows(
    y_true: Any, y_pred: Any, sample_weight: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Make one row of all rows that have the same two labels, in one pass."""
    collection = COLUMNS.align(y_true, y_pred, sample_weight)
    labels, counts = COLUMNS.reduce(count_pairs, _join_counts, collection)
    pairs = counts.tocoo()
    return labels[pairs.row], labels[pairs.col], pairs.data, labels


def count_pairs(rows: ScoredRows) -> Counts:
    """Count the pairs of some rows."""
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
