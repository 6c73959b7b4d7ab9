"""Compiled loop of the smallest and largest values of bins.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry

__all__ = ["reach_of"]


@compiled_entry()
def reach_of(X: Any, rows: Any, low: Any, high: Any) -> None:
    """Lower and raise the smallest and largest value of each bin.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
    rows : ndarray of uint8 of shape (n, at least n_features)
    low, high : ndarray of float64 of shape (n_features, 256)
    """
    for j in range(X.shape[1]):
        for i in range(len(X)):
            value = np.float64(X[i, j])
            b = rows[i, j]
            if value < low[j, b]:
                low[j, b] = value
            if value > high[j, b]:
                high[j, b] = value
