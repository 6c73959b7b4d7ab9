"""Bins of features: a byte for each entry, by quantiles of some rows.

References
----------
Those of scikit-learn's ``HistGradientBoosting``, so that both find the same bins in the same rows,
and finer ones here where many rows have the same value (`spare_edges`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.spare_edges import with_spare_edges

__all__ = ["Bins", "edges_of", "values_there"]

Edges = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of all features.

    A value is in the bin of as many edges as it is larger than. Of a categorical feature the
    "edges" are its categories: a value is in the bin of its own, and any other value is missing.

    Parameters
    ----------
    edges : tuple of ndarray of float64
        Of each feature, sorted.
    max_bins : int
        Of values that are there; the bin of this number is that of missing ones.
    categorical : ndarray of bool of shape (n_features,)
    """

    edges: tuple[Edges, ...]
    max_bins: int
    categorical: NDArray[np.bool_]

    @property
    def n_features(self) -> int:
        """Features."""
        return len(self.edges)

    @property
    def n_bins(self) -> int:
        """Bins of a feature, with that of missing values."""
        return self.max_bins + 1

    @cached_property
    def counts(self) -> NDArray[np.int32]:
        """Bins of each feature, without that of missing values."""
        found = [len(e) + (not c) for e, c in zip(self.edges, self.categorical, strict=True)]
        return np.array(found, np.int32)

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """The edges of each feature in a row of 256, with infinity behind them."""
        table = np.full((self.n_features, 256), np.inf)
        for row, edges in zip(table, self.edges, strict=True):
            row[: len(edges)] = edges
        return table

    @property
    def n_edges(self) -> NDArray[np.int32]:
        """Edges of each feature."""
        return np.array([len(edges) for edges in self.edges], np.int32)

    def threshold(self, feature: int, bin_: int) -> float:
        """Largest value that goes left where this bin is the last to do so."""
        edges = self.edges[feature]
        return float(edges[bin_]) if bin_ < len(edges) else np.inf


def edges_of(values: NDArray[Any], weight: NDArray[np.float64] | None, max_bins: int) -> Edges:
    """Edges of a feature's bins.

    Midpoints where there are few distinct values, else quantiles ("averaged inverted cdf"). Where
    quantiles fall on the same values, edges are left over: these go between the others.

    Parameters
    ----------
    values : ndarray of shape (n,)
        May hold NaN.
    weight : ndarray of shape (n,) or None
    max_bins : int
    """
    values, weight = values_there(values, weight)
    if weight is None:
        values = np.sort(values).astype(np.float64)
    else:
        order = np.argsort(values, kind="stable")
        values, weight = values[order].astype(np.float64), weight[order]
    first = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    distinct = values[first]
    if len(distinct) <= 1:
        return np.empty(0)
    if len(distinct) <= max_bins:
        with np.errstate(invalid="ignore"):
            edges = (distinct[:-1] + distinct[1:]) / 2
    else:
        shares = np.linspace(0, 100, max_bins + 1)[1:-1] / 100
        if weight is None:
            edges = np.unique(_quantiles(values, shares))
        else:
            edges = np.unique(_weighted_quantiles(values, shares, weight))
        edges = np.minimum(edges, np.finfo(np.float64).max)
        rows = np.ones_like(values) if weight is None else weight
        edges = with_spare_edges(edges, distinct, np.add.reduceat(rows, first), max_bins)
    return np.asarray(np.minimum(edges, np.finfo(np.float64).max))


def values_there(
    values: NDArray[Any], weight: NDArray[np.float64] | None
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Values that are there and weigh something, and their weights."""
    there = ~np.isnan(values)
    if weight is not None:
        there &= weight != 0
        weight = weight[there]
    return values[there], weight


def _quantiles(values: Edges, shares: Edges) -> Edges:
    at = len(values) * shares - 1
    before = np.floor(at)
    low = np.clip(before.astype(np.intp), 0, len(values) - 1)
    a, b = values[low], values[np.minimum(low + 1, len(values) - 1)]
    return np.where(at == before, b - (b - a) * 0.5, b)


def _weighted_quantiles(values: Edges, shares: Edges, weight: NDArray[np.float64]) -> Edges:
    below = weight.cumsum()
    asked, last = shares * below[-1], len(values) - 1
    at = np.minimum(np.searchsorted(below, asked), last)
    between = below[at] - asked <= np.finfo(np.float64).eps
    after = np.minimum(at + 1, last)
    return np.asarray(np.where(between, (values[at] + values[after]) / 2, values[at]))
