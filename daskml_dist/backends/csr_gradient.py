"""Gradient of sparse rows in one reading: product, slope and its scattering, row by row.

The entries of a row are in the cache when its slope is known, so they are read from memory once,
and no array of raw predictions, losses or slopes is made.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.backends.margins import AT_ROW
from daskml_dist.backends.touched_columns import TouchedColumns

__all__ = ["add"]


# `_loss` stands for the function of a loss.
def _loss(y: Any, raw: Any, parameters: Any) -> Any: ...


def _add(
    indptr: Any,
    indices: Any,
    data: Any,
    rows: Any,
    position: Any,
    y: Any,
    weight: Any,
    w: Any,
    out: Any,
    intercept: Any,
    parameters: Any,
) -> Any:
    """Add the gradient of rows to `out`; return the sum of their losses.

    Parameters
    ----------
    indptr, indices, data
        Of the block.
    rows : (n,) integers
    position : (n_features,) integers
        Place in `w` and `out` of each column that the rows touch.
    y, weight : (n,) floats
        No weights: all are 1.
    w, out : (n_touched,) floats
        The intercept's, where there is one, is the last.
    intercept : bool
    parameters : floats
        Of the loss.
    """
    number, last = data.dtype.type, len(w) - 1
    total, slopes = 0.0, 0.0
    for i in range(len(rows)):
        row = rows[i]
        first, stop = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        raw, other = number(0), number(0)
        k = first
        # Two sums: neither waits for the other.
        while k + np.uint64(1) < stop:
            raw += data[k] * w[np.uint64(position[np.uint64(indices[k])])]
            other += (
                data[k + np.uint64(1)]
                * w[np.uint64(position[np.uint64(indices[k + np.uint64(1)])])]
            )
            k += np.uint64(2)
        if k < stop:
            raw += data[k] * w[np.uint64(position[np.uint64(indices[k])])]
        raw += other
        if intercept:
            raw += w[last]
        value, slope = _loss(y[i], raw, parameters)
        if len(weight):
            value, slope = value * weight[i], slope * weight[i]
        total += value
        slopes += slope
        g = number(slope)
        k = first
        while k < stop:
            out[np.uint64(position[np.uint64(indices[k])])] += data[k] * g
            k += np.uint64(1)
    if intercept:
        out[last] += number(slopes)
    return total


def add(
    kernel: str | None,
    X: CSRRows,
    touched: TouchedColumns,
    y: NDArray[Any],
    weight: NDArray[Any] | None,
    w: NDArray[Any],
    out: NDArray[Any],
    parameters: tuple[float, ...],
) -> float | None:
    """Add the gradient of the summed loss of rows to `out`; return the summed loss.

    Parameters
    ----------
    kernel : str or None
        Name of the loss's kernel.
    X : CSRRows
    touched : TouchedColumns
        Which have found the columns that the rows touch.
    y, weight : ndarray of shape (n,)
    w, out : ndarray of shape (n_touched, width)
    parameters : tuple of float
        Of the loss.
    """
    block, columns = X.X, X.columns
    same = X.dtype == y.dtype == w.dtype == out.dtype
    if columns is None or kernel not in AT_ROW or w.shape[1] > 1 or not same:
        return None
    run = compiled_with(_add, _loss=AT_ROW[kernel])
    weight = np.empty(0, block.dtype) if weight is None else weight
    return float(
        run(
            block.indptr, block.indices, block.data, X.rows, touched.positions(columns), y, weight,
            w[:, 0], out[:, 0], len(w) > len(columns), parameters,
        )
    )  # fmt: skip
