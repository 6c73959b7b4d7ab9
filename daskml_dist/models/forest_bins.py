"""Bins of forests' features: all of them used, and finer towards the ends of the values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.bins import values_there
from daskml_dist.models.tail_levels import tail_levels

__all__ = ["forest_edges_of"]

Edges = NDArray[np.float64]

#: Levels of quantiles that are asked for at most, for each bin: where values are heavy, several
#: levels fall on one, and more are asked for.
_MOST = 64


def forest_edges_of(
    values: NDArray[Any], weight: NDArray[np.float64] | None, max_bins: int
) -> Edges:
    """Edges of a feature's bins: midpoints, between all distinct values where these are few.

    They depend on the order of the values alone, and on their numbers (weights).

    Parameters
    ----------
    values : ndarray of shape (n,)
        May hold NaN.
    weight : ndarray of shape (n,) or None
    max_bins : int
    """
    values, weight = values_there(values, weight)
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
        last = _chosen(mass.cumsum() / mass.sum(), max_bins)
    with np.errstate(over="ignore", invalid="ignore"):
        edges = (distinct[last] + distinct[last + 1]) / 2
    edges = np.where(np.isfinite(edges), edges, distinct[last])
    return np.asarray(np.clip(edges, -np.finfo(np.float64).max, np.finfo(np.float64).max))


def _chosen(below: Edges, max_bins: int) -> NDArray[np.intp]:
    """Last values of all bins but the highest: as many as there may be."""
    shares, of_edges = tail_levels()

    def ends(n: int) -> NDArray[np.intp]:
        asked = np.interp(np.arange(1, n) / n, of_edges, shares)
        found = np.unique(np.searchsorted(below, asked))
        return found[found < len(below) - 1]

    low, high = max_bins, _MOST * max_bins
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(ends(middle)) < max_bins else (low, middle)
    return ends(low)
