"""numba kernels of many linear models of the same rows.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from daskml_dist.backends.margins import ROWS, log_loss

__all__ = ["log_losses"]


@numba.njit(**ROWS)
def log_losses(raw: Any, y: Any, mask: Any, stops: Any, losses: Any) -> None:
    """Log losses of raw predictions, added up; their derivatives take the predictions' place.

    Parameters
    ----------
    raw : ndarray of shape (n, n_columns)
        Columns of the same split are neighbours.
    y : ndarray of shape (n,), -1 or +1
    mask : ndarray of shape (n, n_splits)
        Weight of each row to each split; of 0 the row is not its.
    stops : ndarray of int64 of shape (n_splits,)
        Where the columns of each split end.
    losses : ndarray of float64 of shape (n_columns,)
        Sums; added to.
    """
    part = np.empty(raw.shape[1], raw.dtype)
    part[:] = 0
    for i in range(len(raw)):
        first = 0
        for split in range(len(stops)):
            last = stops[split]
            _of_row(raw[i, first:last], y[i], mask[i, split], part[first:last])
            first = last
    for j in range(len(part)):
        losses[j] += part[j]


@numba.njit(**ROWS)
def _of_row(raw: Any, sign: Any, weight: Any, losses: Any) -> None:
    """Of a row and the columns of a split; slices, so that LLVM makes vectors of them."""
    if weight == 0:
        for j in range(len(raw)):
            raw[j] = 0
        return
    for j in range(len(raw)):
        value, slope = log_loss(sign * raw[j])
        raw[j] = weight * sign * slope
        losses[j] += weight * value
