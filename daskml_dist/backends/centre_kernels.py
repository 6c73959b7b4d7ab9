"""Compiled sums of each centre's rows: one look at the products of some rows and all centres.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.row_slices import row_slices
from daskml_dist.backends.scratch import Scratch

__all__ = ["assign", "nearest"]

#: Bytes of some rows, and of their products with the centres, that a core's cache holds.
_CACHED = 1 << 18
#: Rows at a time: fewer are a slow product, more leave the cache.
_FEWEST, _MOST = 128, 4096

_fast = numba.njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"}
)


def assign(
    X: NDArray[Any],
    shift: NDArray[Any],
    centres: NDArray[Any],
    weight: NDArray[Any] | None,
    out: NDArray[np.float64],
    scratch: Scratch,
) -> float:
    """As :meth:`Backend.assign`, of dense rows."""
    inertia, none = 0.0, np.empty(0, X.dtype)
    for at, rows, labels, apart in _found(X, shift, centres, scratch):
        inertia += _add(rows, labels, apart, none if weight is None else weight[at], out)
    return inertia


def nearest(
    X: NDArray[Any], shift: NDArray[Any], centres: NDArray[Any], scratch: Scratch
) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """The nearest centre of each row, and the squared distance to it."""
    labels, apart = np.empty(len(X), np.intp), np.empty(len(X), X.dtype)
    for at, rows, some, least in _found(X, shift, centres, scratch):
        labels[at] = some
        _measure(rows, least, apart[at])
    return labels, apart


def _found(
    X: NDArray[Any], shift: NDArray[Any], centres: NDArray[Any], scratch: Scratch
) -> Iterator[tuple[slice, NDArray[Any], NDArray[np.int32], NDArray[Any]]]:
    """Some rows near the origin, their labels, and half the distances but for the rows' squares.

    Good until the next.
    """
    k, d, dtype = len(centres), X.shape[1], X.dtype
    half = (centres.astype(np.float64) ** 2).sum(axis=1).astype(dtype) / 2
    entries = _CACHED // X.itemsize // max(d + k, 1)
    for at in row_slices(len(X), min(max(entries, _FEWEST), _MOST)):
        n = at.stop - at.start
        rows = scratch.empty("near", (n, d), dtype)
        if X.flags.aligned:
            _bring(X[at], shift, rows)
        else:
            rows[...] = X[at]
            _bring(rows, shift, rows)
        # A row of products for each centre, so that vector instructions compare many rows.
        products = scratch.empty("products", (k, n), dtype)
        np.matmul(centres, rows.T, out=products)
        labels = scratch.empty("labels", (n,), np.int32)
        least = scratch.empty("least", (n,), dtype)
        _find(products, half, labels, least)
        yield at, rows, labels, least


@_fast
def _bring(X: Any, shift: Any, rows: Any) -> None:
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            rows[i, j] = X[i, j] - shift[j]


@_fast
def _find(products: Any, half: Any, labels: Any, least: Any) -> None:
    k, n = products.shape
    for i in range(n):
        least[i] = half[0] - products[0, i]
        labels[i] = 0
    for c in range(1, k):
        for i in range(n):
            apart = half[c] - products[c, i]
            nearer = apart < least[i]
            least[i] = apart if nearer else least[i]
            labels[i] = np.int32(c) if nearer else labels[i]


@_fast
def _add(rows: Any, labels: Any, least: Any, weight: Any, out: Any) -> float:
    inertia = 0.0
    for i in range(rows.shape[0]):
        label = labels[i]
        scale = weight[i] if len(weight) else rows.dtype.type(1)
        square = rows.dtype.type(0)
        out[label, 0] += scale
        for j in range(rows.shape[1]):
            square += rows[i, j] * rows[i, j]
        for j in range(rows.shape[1]):
            out[label, j + 1] += scale * rows[i, j]
        apart = square + 2 * least[i]
        # A row that is not finite is to show, so no comparison drops it.
        inertia += scale * (0 * square if apart < 0 else apart)
    return inertia


@_fast
def _measure(rows: Any, least: Any, out: Any) -> None:
    for i in range(rows.shape[0]):
        square = rows.dtype.type(0)
        for j in range(rows.shape[1]):
            square += rows[i, j] * rows[i, j]
        apart = square + 2 * least[i]
        out[i] = 0 * square if apart < 0 else apart
