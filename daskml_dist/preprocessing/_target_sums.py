"""Sums of a target by the categories of each column: of one block, and merged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import preprocessing

from daskml_dist.data.column_statistics import count_whole_numbers, find_distinct_rows
from daskml_dist.data.conversion import convert_missing_to_nan

__all__ = ["TargetSums", "merge_sums", "places_in", "target_sums"]


class TargetSums:
    """Of each column and category: rows, and for each label (or once) sum and squares of y."""

    def __init__(self, categories: Any, labels: Any, tables: list[Any], total: Any) -> None:
        self.categories = categories
        self.labels = labels  # None for numbers that are no labels
        self.tables = tables  # (n_categories, n_labels) counts, or (n_categories, 3) moments
        self.total = total


def target_sums(categories: Any, target_type: str, X: Any, y: NDArray[Any]) -> TargetSums:
    """Sums of some rows."""
    encoder = preprocessing.OrdinalEncoder(
        categories=categories,
        handle_unknown="use_encoded_value",
        unknown_value=-1,
        encoded_missing_value=-2,
    )
    few, places = find_distinct_rows(X)
    codes = encoder.fit_transform(convert_missing_to_nan(few)).astype(np.int64)
    labels: NDArray[Any] | None = None
    if _is_discrete(target_type, y):
        labels, numbers = count_whole_numbers(y) or np.unique(y, return_inverse=True)
    else:
        numbers = y.astype(float)
    tables = []
    for j, own in enumerate(encoder.categories_):
        code = np.where(codes[:, j] == -2, len(own) - 1, codes[:, j])[places[j]]
        if code.min() >= 0:
            tables.append(_table(code, numbers, len(own), labels))
        else:
            known = code >= 0
            tables.append(_table(code[known], numbers[known], len(own), labels))
    total = _table(np.zeros(len(y), dtype=np.int64), numbers, 1, labels)
    return TargetSums(encoder.categories_, labels, tables, total)


def _table(code: NDArray[np.int64], y: NDArray[Any], n: int, labels: Any) -> NDArray[np.float64]:
    """Of each of n categories: rows by their labels, whose numbers are `y`, or moments of `y`."""
    if labels is None:
        return _moments(code, y, n)
    counts = np.bincount(code * len(labels) + y, minlength=n * len(labels))
    return counts.reshape(n, len(labels)).astype(np.float64)


def _is_discrete(target_type: str, y: NDArray[Any]) -> bool:
    if target_type != "auto":
        return target_type != "continuous"
    return bool(y.dtype.kind not in "fc" or not (y % 1).any())


def _moments(code: NDArray[np.int64], y: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Count, mean and sum of squared differences of each category."""
    count = np.bincount(code, minlength=n)
    mean = np.bincount(code, y, minlength=n) / np.maximum(count, 1)
    return np.column_stack([count, mean, np.bincount(code, (y - mean[code]) ** 2, minlength=n)])


def merge_sums(parts: list[TargetSums | None]) -> TargetSums | None:
    """Sums of all parts that have rows; None where none has."""
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    numbers = any(part.labels is None for part in found)
    if numbers:
        found = [_as_moments(part) for part in found]
    labels = None if numbers else np.unique(np.concatenate([part.labels for part in found]))
    categories, tables = [], []
    for j in range(len(found[0].categories)):
        union = _union([part.categories[j] for part in found])
        categories.append(union)
        tables.append(
            _join(
                [(places_in(union, p.categories[j]), p.labels, p.tables[j]) for p in found],
                len(union),
                labels,
            )
        )
    total = _join([(np.zeros(1, dtype=int), p.labels, p.total) for p in found], 1, labels)
    return TargetSums(categories, labels, tables, total)


def _as_moments(part: TargetSums) -> TargetSums:
    """Counts of whole numbers as moments: another block has shown that they are no labels."""
    if part.labels is None:
        return part

    def moments(table: NDArray[np.float64]) -> NDArray[np.float64]:
        y = part.labels.astype(float)
        count = table.sum(axis=1)
        mean = table @ y / np.maximum(count, 1)
        squares = (table * (y[None, :] - mean[:, None]) ** 2).sum(axis=1)
        return np.column_stack([count, mean, squares])

    return TargetSums(part.categories, None, [moments(t) for t in part.tables], moments(part.total))


def _join(parts: list[Any], n: int, labels: Any) -> NDArray[np.float64]:
    """Tables of the same rows, put together: counts add up, moments as of Chan et al. (1983)."""
    if labels is not None:
        whole = np.zeros((n, len(labels)))
        for at, own, table in parts:
            whole[np.ix_(at, np.searchsorted(labels, own))] += table
        return whole
    whole = np.zeros((n, 3))
    for at, _, table in parts:
        (n_a, m_a, s_a), (n_b, m_b, s_b) = whole[at].T, table.T
        count = np.maximum(n_a + n_b, 1)
        gap = m_b - m_a
        merged = [n_a + n_b, m_a + gap * n_b / count, s_a + s_b + gap**2 * n_a * n_b / count]
        whole[at] = np.column_stack(merged)
    return whole


def _union(categories: list[NDArray[Any]]) -> NDArray[Any]:
    if len({found.dtype for found in categories}) > 1:
        categories = [found.astype(object) for found in categories]
    every = np.concatenate(categories)[:, None]
    union: NDArray[Any] = preprocessing.OrdinalEncoder().fit(every).categories_[0]
    return union


def places_in(union: NDArray[Any], some: NDArray[Any]) -> NDArray[np.intp]:
    """Positions of some categories among all."""
    encoder = preprocessing.OrdinalEncoder(categories=[union], encoded_missing_value=-2)
    at = encoder.fit_transform(some.astype(union.dtype)[:, None])[:, 0].astype(np.intp)
    return np.where(at == -2, len(union) - 1, at)
