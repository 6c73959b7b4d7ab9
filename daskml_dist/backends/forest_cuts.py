"""Compiled loops of cuts: where a node is best split by the histogram of a feature.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_inside
from daskml_dist.backends.forest_criteria import middle, worth

__all__ = [
    "ANYWHERE",
    "BITS",
    "FEATURES",
    "FIRST",
    "FOUND",
    "KIND",
    "LEAST_ROWS",
    "LEAST_WEIGHT",
    "MAX_DEPTH",
    "MIN_SPLIT",
    "MISSING",
    "OUTPUTS",
    "D",
    "any_missing",
    "best_cut",
    "drawn_cut",
    "occupied",
    "random_cut",
    "share_of",
]  # fmt: skip

_inside = compiled_inside(error_model="numpy")

#: Where the facts of a fit are, in an array of int64: criterion, bits of counts, least rows and
#: weight of a child, whether cuts are drawn, bin of missing values, features; features of a node at
#: least, depth, rows of a node that is split; how many of the first sums add up to the rows, and
#: outputs.
KIND, BITS, LEAST_ROWS, LEAST_WEIGHT, ANYWHERE, MISSING, D = 0, 1, 2, 3, 4, 5, 6
FEATURES, MAX_DEPTH, MIN_SPLIT, FIRST, OUTPUTS = 7, 8, 9, 10, 11
#: Numbers that tell of a cut: last bin on the left, first on the right (-1: missing values alone),
#: whether missing values go left.
FOUND = 3


@_inside
def share_of(draw: Any) -> float:
    """A draw of 64 bits as a number of [0, 1)."""
    return np.float64(draw >> np.uint64(11)) * 2.0**-53


@_inside
def occupied(hist: Any, missing: Any, places: Any) -> Any:
    """Bins of values that hold rows, in their order; how many they are."""
    n = 0
    for b in range(missing):
        for v in range(hist.shape[1]):
            if hist[b, v] != 0:
                places[n] = b
                n += 1
                break
    return n


@_inside
def any_missing(hist: Any, missing: Any) -> Any:
    """Test of a feature: some rows miss its value."""
    for v in range(hist.shape[1]):
        if hist[missing, v] != 0:
            return True
    return False


@_inside
def _note(
    places: Any, k: Any, n: Any, side: Any, left: Any, l_total: Any, found: Any, left_found: Any
) -> None:
    """Write the cut behind the k-th bin that holds rows."""
    found[0] = places[k]
    found[1] = places[k + 1] if k + 1 < n else -1
    found[2] = side
    for v in range(len(left)):
        left_found[v] = left[v]
    left_found[len(left)] = l_total


@_inside
def _fits(
    facts: Any, left: Any, l_total: Any, right: Any, r_total: Any, sign: Any, bounds: Any
) -> Any:
    """Test of a cut: both children may be."""
    bits = facts[BITS]
    mask = (np.int64(1) << bits) - 1
    if (l_total & mask) < facts[LEAST_ROWS] or (r_total & mask) < facts[LEAST_ROWS]:
        return False
    if (l_total >> bits) < facts[LEAST_WEIGHT] or (r_total >> bits) < facts[LEAST_WEIGHT]:
        return False
    if (l_total >> bits) == 0 or (r_total >> bits) == 0:
        return False
    if bounds[2] == 0 or sign == 0:
        return True
    a = middle(facts[KIND], left, l_total, bits)
    b = middle(facts[KIND], right, r_total, bits)
    if min(a, b) < bounds[0] or max(a, b) > bounds[1]:
        return False
    return (a - b) * sign <= 0


@_inside
def best_cut(
    facts: Any, hist: Any, places: Any, n: Any, sums: Any, total: Any, sign: Any, bounds: Any,
    best: float, found: Any, left_found: Any, work: Any,
) -> float:  # fmt: skip
    """The best cut of a feature; the worth of its children if larger than `best`, else `best`.

    Of equal ones the first counts: bins from below, missing values on the right first.

    Parameters
    ----------
    facts : ndarray of int64
    hist : ndarray of int64 of shape (256, n_sums)
    places : ndarray of int64
        The bins of values that hold rows, `n` of them.
    sums : ndarray of int64 of shape (n_sums,)
        Of the node; `total` is its weight and rows, packed.
    sign : int
        Of a monotonic constraint.
    bounds : ndarray of float64 of shape (3,)
        Of what children may answer; whether there are constraints at all.
    found : ndarray of int64 of shape (3,)
    left_found : ndarray of int64 of shape (n_sums + 1,)
        Sums of the left child, and its packed total.
    work : ndarray of int64 of shape (2, n_sums)
    """
    missing, n_sums, kind, bits = facts[MISSING], len(sums), facts[KIND], facts[BITS]
    left, right = work[0], work[1]
    there = any_missing(hist, missing)
    for side in range(2 if there else 1):
        l_total = np.int64(0)
        for v in range(n_sums):
            left[v] = hist[missing, v] if side == 1 else 0
        if side == 1:
            for v in range(facts[FIRST]):
                l_total += hist[missing, v]
        for k in range(n if there and side == 0 else n - 1):
            b = places[k]
            for v in range(n_sums):
                left[v] += hist[b, v]
                right[v] = sums[v] - left[v]
            for v in range(facts[FIRST]):
                l_total += hist[b, v]
            r_total = total - l_total
            if not _fits(facts, left, l_total, right, r_total, sign, bounds):
                continue
            value = worth(kind, left, l_total, bits) + worth(kind, right, r_total, bits)
            if value > best:
                best = value
                _note(places, k, n, side, left, l_total, found, left_found)
    return best


@_inside
def drawn_cut(low: Any, high: Any, places: Any, n: Any, draw: Any) -> tuple[int, float]:
    """A cut drawn between the smallest and the largest value of a feature; see `random_cut`.

    The last of the bins that hold rows that goes left, and the threshold.
    """
    cut, at = 0, np.nan
    if n > 1:
        at = low[places[0]] + share_of(draw) * (high[places[n - 1]] - low[places[0]])
        while cut + 1 < n - 1:
            b = places[cut + 1]
            if high[b] > at and not (low[b] + high[b]) / 2 <= at:
                break
            cut += 1
        if not (high[places[cut]] <= at < low[places[cut + 1]]):
            at = np.nan
    return cut, at


@_inside
def random_cut(
    facts: Any, hist: Any, places: Any, n: Any, sums: Any, total: Any, sign: Any, bounds: Any,
    low: Any, high: Any, draw: Any, best: float, found: Any, left_found: Any, threshold: Any,
    work: Any,
) -> float:  # fmt: skip
    """As `best_cut`, of a cut drawn between the smallest and the largest value of a feature.

    A bin in which the drawn value falls goes where more than half of it lies.

    Parameters
    ----------
    low, high : ndarray of float64 of shape (256,)
        Smallest and largest value of each bin.
    draw : uint64
    threshold : ndarray of float64 of shape (1,)
        Where the drawn value goes; NaN where the cut is to lie between two bins.
    """
    missing, n_sums, kind, bits = facts[MISSING], len(sums), facts[KIND], facts[BITS]
    left, right = work[0], work[1]
    there = any_missing(hist, missing)
    cut, at = drawn_cut(low, high, places, n, draw)
    side = np.int64(draw & np.uint64(1)) if there and n > 1 else 0
    for v in range(n_sums):
        left[v] = hist[missing, v] * side
    for k in range(cut + 1):
        for v in range(n_sums):
            left[v] += hist[places[k], v]
    l_total = np.int64(0)
    for v in range(n_sums):
        right[v] = sums[v] - left[v]
    for v in range(facts[FIRST]):
        l_total += left[v]
    r_total = total - l_total
    if not _fits(facts, left, l_total, right, r_total, sign, bounds):
        return best
    value = worth(kind, left, l_total, bits) + worth(kind, right, r_total, bits)
    if value > best:
        best = value
        threshold[0] = at
        _note(places, cut, n, side, left, l_total, found, left_found)
    return best
