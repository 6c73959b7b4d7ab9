"""Compiled selection among sorted arrays, each shifted and scaled separately for every row.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")


@_exact
def select_shifted(
    centers: Any, units: Any, values: Any, reached: Any, starts: Any, target_weight: float, out: Any
) -> None:
    """Write the smallest of a row's elements whose cumulative weight reaches the requested weight.

    The elements of a row are ``centers[i, k] + units[i, k] * v`` for the values v of each array k.

    Parameters
    ----------
    centers, units : ndarray of float64 of shape (n, n_arrays)
        Units are positive.
    values : ndarray of float64 of shape (n_values,)
        Sorted arrays, concatenated.
    reached : ndarray of float64 of shape (n_values,)
        Cumulative weight of each value within its array.
    starts : ndarray of int64 of shape (n_arrays + 1,)
        First value of each array, and the end.
    target_weight : float
    out : ndarray of float64 of shape (n,)
        Infinity if the total weight is smaller.
    """
    n_arrays = len(starts) - 1
    low, high = np.empty(n_arrays, np.int64), np.empty(n_arrays, np.int64)
    middle = np.empty(n_arrays, np.int64)
    for i in range(len(out)):
        # Elements before `low` are below the answer; elements from `high` on are not better than
        # the best so far. The middle of the widest range halves it in each iteration.
        for k in range(n_arrays):
            low[k], high[k] = starts[k], starts[k + 1]
        best = np.inf
        while True:
            widest, width = 0, np.int64(0)
            for k in range(n_arrays):
                if high[k] - low[k] > width:
                    widest, width = k, high[k] - low[k]
            if width == 0:
                break
            pivot_position = (low[widest] + high[widest]) >> 1
            pivot = centers[i, widest] + units[i, widest] * values[pivot_position]
            weight = 0.0
            for k in range(n_arrays):
                middle[k] = _count_up_to(values, low[k], high[k], centers[i, k], units[i, k], pivot)
                if middle[k] > starts[k]:
                    weight += reached[middle[k] - 1]
            if weight >= target_weight:
                best = pivot
                for k in range(n_arrays):
                    high[k] = middle[k]
                high[widest] = pivot_position
            else:
                for k in range(n_arrays):
                    low[k] = middle[k]
        out[i] = best


@_inside
def _count_up_to(values: Any, low: Any, high: Any, center: Any, unit: Any, pivot: Any) -> Any:
    """Return the end of a range's elements that are at most the pivot."""
    while low < high:
        middle = (low + high) >> 1
        if center + unit * values[middle] <= pivot:
            low = middle + 1
        else:
            high = middle
    return low
