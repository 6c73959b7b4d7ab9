"""Bins of features: a byte for each entry, by quantiles of some rows; and random draws by hashes.

References
----------
The references of scikit-learn's ``HistGradientBoosting``: both find the same bins in the same rows,
and finer ones here where many rows have the same value (`spare_edges`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Levels of quantiles that are asked for at most, for each bin: where values are heavy, several
#: levels fall on one, and more are asked for.
_MAX_LEVELS_PER_BIN = 64


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
        """Number of features."""
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
        """Return the largest value that goes left, if `bin_` is the last bin on the left."""
        edges = self.edges[feature]
        return float(edges[bin_]) if bin_ < len(edges) else np.inf


def compute_bin_edges(
    values: NDArray[Any], weight: NDArray[np.float64] | None, max_bins: int
) -> Edges:
    """Return the edges of a feature's bins for boosting.

    Midpoints where there are few distinct values, else quantiles ("averaged inverted cdf"). Where
    quantiles fall on the same values, edges are left over: these go between the others.
    """
    values, weight = drop_missing(values, weight)
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
        edges = add_spare_edges(edges, distinct, np.add.reduceat(rows, first), max_bins)
    return np.asarray(np.minimum(edges, np.finfo(np.float64).max))


def drop_missing(
    values: NDArray[Any], weight: NDArray[np.float64] | None
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Return the values that are not missing and have a weight other than 0, and their weights."""
    there = ~np.isnan(values)
    if weight is not None:
        there &= weight != 0
        weight = weight[there]
    return values[there], weight


def _quantiles(values: Edges, shares: Edges) -> Edges:
    """Return quantiles of sorted values by the "averaged inverted cdf" method."""
    at = len(values) * shares - 1
    before = np.floor(at)
    low = np.clip(before.astype(np.intp), 0, len(values) - 1)
    a, b = values[low], values[np.minimum(low + 1, len(values) - 1)]
    return np.where(at == before, b - (b - a) * 0.5, b)


def _weighted_quantiles(values: Edges, shares: Edges, weight: NDArray[np.float64]) -> Edges:
    """Return weighted quantiles of sorted values by the "averaged inverted cdf" method."""
    below = weight.cumsum()
    asked, last = shares * below[-1], len(values) - 1
    at = np.minimum(np.searchsorted(below, asked), last)
    between = below[at] - asked <= np.finfo(np.float64).eps
    after = np.minimum(at + 1, last)
    return np.asarray(np.where(between, (values[at] + values[after]) / 2, values[at]))


def compute_forest_bin_edges(
    values: NDArray[Any], weight: NDArray[np.float64] | None, max_bins: int
) -> Edges:
    """Return the edges of a feature's bins for forests: midpoints, or denser towards both tails.

    They depend on the order of the values alone, and on their numbers (weights).
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
    last = np.arange(len(distinct) - 1)
    if len(distinct) > max_bins:
        last = _choose_last_values(mass.cumsum() / mass.sum(), max_bins)
    with np.errstate(over="ignore", invalid="ignore"):
        edges = (distinct[last] + distinct[last + 1]) / 2
    edges = np.where(np.isfinite(edges), edges, distinct[last])
    return np.asarray(np.clip(edges, -np.finfo(np.float64).max, np.finfo(np.float64).max))


def _choose_last_values(below: Edges, max_bins: int) -> NDArray[np.intp]:
    """Return the indices of the last values of all bins but the highest."""
    shares, of_edges = compute_tail_levels()

    def ends(n: int) -> NDArray[np.intp]:
        asked = np.interp(np.arange(1, n) / n, of_edges, shares)
        found = np.unique(np.searchsorted(below, asked))
        return found[found < len(below) - 1]

    low, high = max_bins, _MAX_LEVELS_PER_BIN * max_bins
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(ends(middle)) < max_bins else (low, middle)
    return ends(low)


def add_spare_edges(edges: Edges, distinct: Edges, mass: NDArray[Any], max_bins: int) -> Edges:
    """Return the edges and further ones between them, up to the number that is allowed.

    The heaviest bin of more than one value is halved, again and again. Mass counts as forests' bins
    have it, more towards both ends of the values (`compute_tail_levels`): what is left to be cut
    beside heavy values is mostly a long tail. Edges follow from the values and their mass alone.
    """
    n, spare = len(distinct), max_bins - 1 - len(edges)
    if spare <= 0:
        return edges
    shares, of_edges = compute_tail_levels()
    total = mass.cumsum()
    below = np.append(0.0, np.interp(total / total[-1], shares, of_edges))
    ends = np.unique([0, *np.searchsorted(distinct, edges, side="right"), n]).tolist()
    bins = [_make_heap_entry(below, a, b) for a, b in pairwise(ends) if b > a + 1]
    heapq.heapify(bins)
    cuts: list[int] = []
    while bins and len(cuts) < spare:
        _, a, b = heapq.heappop(bins)
        cut = _find_middle(below, a, b)
        cuts.append(cut)
        for part in ((a, cut), (cut, b)):
            if part[1] > part[0] + 1:
                heapq.heappush(bins, _make_heap_entry(below, *part))
    low, high = distinct[np.array(cuts, np.intp) - 1], distinct[cuts]
    with np.errstate(over="ignore", invalid="ignore"):
        between = (low + high) / 2
    # What is no number, or is rounded to the next value, would not part the two.
    between = np.where(np.isfinite(between) & (between < high), between, low)
    return np.sort(np.append(edges, np.maximum(between, -np.finfo(np.float64).max)))


def _make_heap_entry(below: Edges, first: int, end: int) -> tuple[float, int, int]:
    """Return a heap entry of the bin of the values `first` to `end`, heaviest bins first."""
    return float(below[first] - below[end]), first, end


def _find_middle(below: Edges, first: int, end: int) -> int:
    """Return the first value of a bin's second half; both halves have at least one value."""
    half = (below[first] + below[end]) / 2
    at = int(np.searchsorted(below, half))
    if half - below[at - 1] <= below[at] - half:
        at -= 1
    return min(max(at, first + 1), end - 1)


def compute_tail_levels() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return shares of the rows, and the share of the edges below each.

    Half of the edges are even over the rows, half follow the arcsine law, whose density rises
    towards both ends.
    """
    shares = np.sin(np.pi * np.linspace(0, 1, 4097) / 2) ** 2
    return shares, (shares + 2 / np.pi * np.arcsin(np.sqrt(shares))) / 2


def hash_numbers(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each number.

    S. Vigna, "splitmix64", 2015, after G. L. Steele, D. Lea and C. H. Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014.
    """
    number = number * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


def draw_by_hash(numbers: Any, *seed: int) -> NDArray[np.uint64]:
    """Draw of 64 bits for each number (of a row, a feature), of a stream that the seed names."""
    key = np.zeros(1, np.uint64)
    for part in seed:
        key = hash_numbers(key + np.array([part % 2**64], np.uint64) + np.uint64(1))
    return hash_numbers(hash_numbers(np.asarray(numbers).astype(np.uint64) + np.uint64(1)) + key)
