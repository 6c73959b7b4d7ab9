"""Edges to spare, spent on the values between: where many quantiles fall on one heavy value, these
are one edge, and a feature would be cut into far fewer bins than there may be.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.tail_levels import tail_levels

__all__ = ["with_spare_edges"]

Edges = NDArray[np.float64]


def with_spare_edges(edges: Edges, distinct: Edges, mass: NDArray[Any], max_bins: int) -> Edges:
    """The edges given, and others between them, until there are as many as there may be.

    The heaviest bin of more than one value is halved, again and again. Mass counts as forests' bins
    have it, more towards both ends of the values (`tail_levels`): what is left to be cut beside
    heavy values is mostly a long tail. Edges follow from the values and their mass alone.

    Parameters
    ----------
    edges : ndarray of float64
        Sorted.
    distinct : ndarray of float64 of shape (n,)
        All values, sorted.
    mass : ndarray of shape (n,)
        Rows of each, or their weights.
    max_bins : int
    """
    n, spare = len(distinct), max_bins - 1 - len(edges)
    if spare <= 0:
        return edges
    shares, of_edges = tail_levels()
    total = mass.cumsum()
    below = np.append(0.0, np.interp(total / total[-1], shares, of_edges))
    ends = np.unique([0, *np.searchsorted(distinct, edges, side="right"), n]).tolist()
    bins = [_entry(below, a, b) for a, b in pairwise(ends) if b > a + 1]
    heapq.heapify(bins)
    cuts: list[int] = []
    while bins and len(cuts) < spare:
        _, a, b = heapq.heappop(bins)
        cut = _middle(below, a, b)
        cuts.append(cut)
        for part in ((a, cut), (cut, b)):
            if part[1] > part[0] + 1:
                heapq.heappush(bins, _entry(below, *part))
    low, high = distinct[np.array(cuts, np.intp) - 1], distinct[cuts]
    with np.errstate(over="ignore", invalid="ignore"):
        between = (low + high) / 2
    # What is no number, or is rounded to the next value, would not part the two.
    between = np.where(np.isfinite(between) & (between < high), between, low)
    return np.sort(np.append(edges, np.maximum(between, -np.finfo(np.float64).max)))


def _entry(below: Edges, first: int, end: int) -> tuple[float, int, int]:
    """A bin of the values from the first to before the end; the heaviest sorts first."""
    return float(below[first] - below[end]), first, end


def _middle(below: Edges, first: int, end: int) -> int:
    """First value of a bin's second half; both halves have one."""
    half = (below[first] + below[end]) / 2
    at = int(np.searchsorted(below, half))
    if half - below[at - 1] <= below[at] - half:
        at -= 1
    return min(max(at, first + 1), end - 1)
