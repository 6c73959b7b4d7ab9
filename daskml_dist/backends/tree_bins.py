"""Compiled loop that puts values into bins.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside

__all__ = ["to_bins"]

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Cells of a feature's grid, which tells roughly in which bin a value is.
_CELLS = 1024


def to_bins(
    X: Any, table: Any, n_edges: Any, categorical: Any, missing: int, rows: Any, columns: Any,
    seen: Any,
) -> None:  # fmt: skip
    """Write the bins of some rows.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
    table, n_edges, categorical
        Of `models.bins.Bins`.
    missing : int
        Bin of missing values.
    rows : ndarray of uint8 of shape (n, at least n_features)
    columns : ndarray of uint8 of shape (n_features, n)
        Where they go, in both orders.
    seen : ndarray of uint8 of shape (n_features,)
        Becomes 1 where a feature has missing values.
    """
    d = X.shape[1]
    # Made here, since numba would compile each array that the loop makes.
    starts, lows, scales = np.zeros((d, _CELLS + 2), np.int32), np.zeros(d), np.zeros(d)
    _to_bins(X, table, n_edges, categorical, missing, rows, columns, seen, starts, lows, scales)


@_exact
def _to_bins(
    X: Any, table: Any, n_edges: Any, categorical: Any, missing: int, rows: Any, columns: Any,
    seen: Any, starts: Any, lows: Any, scales: Any,
) -> None:  # fmt: skip
    """Write the bins of some rows; the last three arrays are zeros, and scratch."""
    n, d = X.shape
    for j in range(d):
        m = n_edges[j]
        low, high = (table[j, 0], table[j, m - 1]) if m else (0.0, 0.0)
        scale = _CELLS / (high - low)
        if not (scale > 0 and scale < 1e300):
            scale = 0.0
        lows[j], scales[j] = low, scale
        for e in range(m):
            starts[j, _cell(table[j, e], low, scale) + 1] += 1
        for c in range(_CELLS + 1):
            starts[j, c + 1] += starts[j, c]
    for start in range(0, n, 256):
        stop = start + 256 if start + 256 < n else n
        for j in range(d):
            edges, at, low, scale = table[j], starts[j], lows[j], scales[j]
            for i in range(start, stop):
                value = np.float64(X[i, j])
                b = missing
                if value == value:
                    # Edges of lower cells are smaller, those of higher ones are not.
                    c = _cell(value, low, scale)
                    b, end = at[c], at[c + 1]
                    while end - b > 2:
                        middle = (b + end) >> 1
                        if edges[middle] < value:
                            b = middle + 1
                        else:
                            end = middle
                    # Without a branch: edges from the end on, or infinity, are not smaller.
                    b += edges[b] < value
                    b += edges[b] < value
                    if categorical[j] and (b >= n_edges[j] or edges[b] != value):
                        b = missing
                if b == missing:
                    seen[j] = 1
                rows[i, j] = b
                columns[j, i] = b


@_inside
def _cell(value: Any, low: Any, scale: Any) -> Any:
    """Cell of a value in an even grid; a larger value has no lower cell."""
    at = (value - low) * scale
    if at >= _CELLS:
        return _CELLS
    return np.int64(at) if at > 0 else 0
