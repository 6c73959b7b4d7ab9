"""Bins of features for histogram trees, by quantiles of a sample; and random numbers by hashing.

An entry of X is replaced by the number of its bin, a byte. For boosting the bins are those of
scikit-learn's ``HistGradientBoosting``, plus the edges that equal quantiles leave over
(:func:`_add_spare_edges`). For forests the edges are denser towards both tails.

Hashes replace random streams where a draw must depend only on a row or feature, not on the order
in which workers draw.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Maximum quantiles that are tried per bin of a forest: several quantiles may fall on one frequent
#: value, so more of them are needed for the same number of edges.
_MAX_LEVELS_PER_BIN = 64


Edges = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of all features.

    The bin of a value is the number of edges that are less than it. For a categorical feature the
    "edges" are its categories, the bin is the index of the value among them, and a value that is
    none of them counts as missing.

    Parameters
    ----------
    edges : tuple of ndarray of float64
        Sorted edges of each feature.
    max_bins : int
        Most bins of a feature, without the bin of missing values, which has this number.
    categorical : ndarray of bool of shape (n_features,)
    """

    edges: tuple[Edges, ...]
    max_bins: int
    categorical: NDArray[np.bool_]

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.edges)

    @property
    def n_bins(self) -> int:
        """Number of bins of a feature, with the one of missing values."""
        return self.max_bins + 1

    @cached_property
    def counts(self) -> NDArray[np.int32]:
        """Number of bins of each feature, without the one of missing values."""
        # One more than edges, but as many as categories.
        counts = [len(e) + (not c) for e, c in zip(self.edges, self.categorical, strict=True)]
        return np.array(counts, np.int32)

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """Edges of all features, of shape (n_features, 256), padded with infinity."""
        table = np.full((self.n_features, 256), np.inf)
        for row, edges in zip(table, self.edges, strict=True):
            row[: len(edges)] = edges
        return table

    @property
    def n_edges(self) -> NDArray[np.int32]:
        """Number of edges of each feature."""
        return np.array([len(edges) for edges in self.edges], np.int32)

    def threshold(self, feature: int, bin_: int) -> float:
        """Return the largest value that goes left, if `bin_` is the last bin on the left."""
        edges = self.edges[feature]
        return float(edges[bin_]) if bin_ < len(edges) else np.inf


def compute_bin_edges(
    values: NDArray[Any], weight: NDArray[np.float64] | None, max_bins: int
) -> Edges:
    """Return the edges of a feature's bins for boosting.

    For at most `max_bins` distinct values these are midpoints, else quantiles ("averaged inverted
    cdf", method 2 of Hyndman and Fan 1996). If several quantiles are equal, edges are left over,
    which are put between the others.
    """
    values, weight = drop_missing(values, weight)
    if weight is None:
        values = np.sort(values).astype(np.float64)
    else:
        order = np.argsort(values, kind="stable")
        values, weight = values[order].astype(np.float64), weight[order]
    # Position of the first of each run of equal values.
    first = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    distinct = values[first]
    if len(distinct) <= 1:
        return np.empty(0)
    if len(distinct) <= max_bins:
        with np.errstate(invalid="ignore"):
            edges = (distinct[:-1] + distinct[1:]) / 2
    else:
        # In percent and back, as scikit-learn: the same rounding.
        shares = np.linspace(0, 100, max_bins + 1)[1:-1] / 100
        if weight is None:
            edges = np.unique(_quantiles(values, shares))
        else:
            edges = np.unique(_weighted_quantiles(values, shares, weight))
        edges = np.minimum(edges, np.finfo(np.float64).max)
        rows = np.ones_like(values) if weight is None else weight
        edges = _add_spare_edges(edges, distinct, np.add.reduceat(rows, first), max_bins)
    # Never infinite: infinity pads the table of edges.
    return np.asarray(np.minimum(edges, np.finfo(np.float64).max))


def drop_missing(
    values: NDArray[Any], weight: NDArray[np.float64] | None
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Return the values that are neither missing nor of weight 0, and their weights."""
    is_used = ~np.isnan(values)
    if weight is not None:
        is_used &= weight != 0
        weight = weight[is_used]
    return values[is_used], weight


def _quantiles(values: Edges, shares: Edges) -> Edges:
    """Return quantiles of sorted values by the "averaged inverted cdf" method."""
    # At a whole number of rows the mean of two values, else the next value.
    positions = len(values) * shares - 1
    floor = np.floor(positions)
    low = np.clip(floor.astype(np.intp), 0, len(values) - 1)
    a, b = values[low], values[np.minimum(low + 1, len(values) - 1)]
    return np.where(positions == floor, b - (b - a) * 0.5, b)


def _weighted_quantiles(values: Edges, shares: Edges, weight: NDArray[np.float64]) -> Edges:
    """Return weighted quantiles of sorted values by the "averaged inverted cdf" method."""
    # As above, of cumulated weights: "equal" up to rounding.
    below = weight.cumsum()
    target_weights, last_index = shares * below[-1], len(values) - 1
    indices = np.minimum(np.searchsorted(below, target_weights), last_index)
    between = below[indices] - target_weights <= np.finfo(np.float64).eps
    after = np.minimum(indices + 1, last_index)
    return np.asarray(np.where(between, (values[indices] + values[after]) / 2, values[indices]))


def compute_forest_bin_edges(
    values: NDArray[Any], weight: NDArray[np.float64] | None, max_bins: int
) -> Edges:
    """Return the edges of a feature's bins for forests: midpoints, denser towards both tails.

    A monotone function of a feature has the same bins: which values they separate depends on the
    order of the values and on their counts (or weights) only.
    """
    values, weight = drop_missing(values, weight)
    values = values.astype(np.float64)
    if weight is None:
        distinct, mass = np.unique(values, return_counts=True)
    else:
        distinct, inverse = np.unique(values, return_inverse=True)
        mass = np.bincount(inverse, weight, minlength=len(distinct))
    if len(distinct) <= 1:
        return np.empty(0)
    # Index of the last value of each bin but the highest; of few values each has a bin.
    last_values = np.arange(len(distinct) - 1)
    if len(distinct) > max_bins:
        last_values = _choose_last_values(mass.cumsum() / mass.sum(), max_bins)
    with np.errstate(over="ignore", invalid="ignore"):
        edges = (distinct[last_values] + distinct[last_values + 1]) / 2
    edges = np.where(np.isfinite(edges), edges, distinct[last_values])
    return np.asarray(np.clip(edges, -np.finfo(np.float64).max, np.finfo(np.float64).max))


def _choose_last_values(below: Edges, max_bins: int) -> NDArray[np.intp]:
    """Return the indices of the last values of all bins but the highest.

    `below` is the share of the rows up to each value.
    """
    shares, edge_shares = _compute_tail_levels()

    def ends(n: int) -> NDArray[np.intp]:
        """Return the distinct values at which n quantiles fall, without the largest value."""
        targets = np.interp(np.arange(1, n) / n, edge_shares, shares)
        indices = np.unique(np.searchsorted(below, targets))
        return indices[indices < len(below) - 1]

    # Bisection for the largest number of quantiles with fewer than `max_bins` distinct ends.
    low, high = max_bins, _MAX_LEVELS_PER_BIN * max_bins
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(ends(middle)) < max_bins else (low, middle)
    return ends(low)


def _add_spare_edges(edges: Edges, distinct: Edges, mass: NDArray[Any], max_bins: int) -> Edges:
    """Return the edges, with further edges between them, up to ``max_bins - 1`` in total.

    Greedily the heaviest bin of more than one value is halved. Mass counts more towards both ends,
    as for forests (:func:`_compute_tail_levels`): apart from frequent values, the remaining values
    are mostly a long tail.
    """
    n, n_spare = len(distinct), max_bins - 1 - len(edges)
    if n_spare <= 0:
        return edges
    shares, edge_shares = _compute_tail_levels()
    total = mass.cumsum()
    # Share of the edges that belong below each value; bins are ranges of distinct values.
    below = np.append(0.0, np.interp(total / total[-1], shares, edge_shares))
    ends = np.unique([0, *np.searchsorted(distinct, edges, side="right"), n]).tolist()
    bins = [_make_heap_entry(below, a, b) for a, b in pairwise(ends) if b > a + 1]
    heapq.heapify(bins)
    cuts: list[int] = []
    while bins and len(cuts) < n_spare:
        _, a, b = heapq.heappop(bins)
        cut = _find_middle(below, a, b)
        cuts.append(cut)
        for part in ((a, cut), (cut, b)):
            if part[1] > part[0] + 1:
                heapq.heappush(bins, _make_heap_entry(below, *part))
    low, high = distinct[np.array(cuts, np.intp) - 1], distinct[cuts]
    with np.errstate(over="ignore", invalid="ignore"):
        between = (low + high) / 2
    # A midpoint that overflows, or rounds up to the next value, would not separate the two.
    between = np.where(np.isfinite(between) & (between < high), between, low)
    return np.sort(np.append(edges, np.maximum(between, -np.finfo(np.float64).max)))


def _make_heap_entry(below: Edges, first: int, end: int) -> tuple[float, int, int]:
    """Return a heap entry of the bin of the values `first` to `end`, heaviest bins first."""
    return float(below[first] - below[end]), first, end


def _find_middle(below: Edges, first: int, end: int) -> int:
    """Return the first value of a bin's second half; both halves have at least one value."""
    half = (below[first] + below[end]) / 2
    middle = int(np.searchsorted(below, half))
    if half - below[middle - 1] <= below[middle] - half:
        middle -= 1
    return min(max(middle, first + 1), end - 1)


def _compute_tail_levels() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a grid of shares of the rows, and the share of the edges below each.

    Half of the edges are spread evenly over the rows, half by the arcsine distribution, whose
    density rises towards both ends.
    """
    # The grid itself is denser at both ends, where the function is steep.
    shares = np.sin(np.pi * np.linspace(0, 1, 4097) / 2) ** 2
    return shares, (shares + 2 / np.pi * np.arcsin(np.sqrt(shares))) / 2


def hash_numbers(integers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each number: one step of splitmix64.

    S. Vigna, "splitmix64", 2015, after G. L. Steele, D. Lea and C. H. Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014.
    """
    integers = integers * np.uint64(0x9E3779B97F4A7C15)
    integers = (integers ^ (integers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    integers = (integers ^ (integers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return integers ^ (integers >> np.uint64(31))


def draw_by_hash(integers: Any, *seed: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each number (of a row, a feature), from a stream with a seed."""
    # Each part of the seed is hashed into the key in sequence, so that (1, 2) and (2, 1) differ.
    key = np.zeros(1, np.uint64)
    for seed_part in seed:
        key = hash_numbers(key + np.array([seed_part % 2**64], np.uint64) + np.uint64(1))
    return hash_numbers(hash_numbers(np.asarray(integers).astype(np.uint64) + np.uint64(1)) + key)
