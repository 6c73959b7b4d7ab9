"""Compiled loops over the rows of growing trees: histograms of whole numbers, and partitions.

Importing this module loads numba, so it is imported at first use. Nothing here may be reordered
by a compiler: the same rows give the same bits on every machine.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from daskml_dist.backends.pointers import prefetch
from daskml_dist.backends.trees import CONSTANT, EXACT, ROUNDED

__all__ = [
    "CONSTANT",
    "EXACT",
    "ROUNDED",
    "add_to_leaf",
    "part_rows",
    "quantise",
    "sum_all",
    "sum_some",
]

_exact = numba.njit(nogil=True, cache=True, error_model="numpy")

#: Rows of which the packed sums of a bin cannot overflow.
_MOST, _MOST_ROUNDED = 65_535, 8_191
#: Rows that a loop asks for before it reads them.
_AHEAD = 16


@_exact
def quantise(
    g: Any, h: Any, g_scale: float, h_scale: float, mode: int, salt: Any, key: Any, out: Any
) -> Any:
    """Gradients and hessians as whole numbers, packed into 64 bits.

    Parameters
    ----------
    g, h : ndarray of float32 of shape (n,)
        `h` is empty where all hessians are 1.
    g_scale, h_scale : float
        Powers of two that bring them below ``2**30`` and ``2**24``; below ``2**12`` to be rounded.
    mode : {CONSTANT, EXACT, ROUNDED}
        What becomes of them; see :func:`sum_some`.
    salt : ndarray of uint32 of shape (n,)
        A hash of each row's number, by which numbers are rounded up or down.
    key : uint32
        Of the tree.
    out : ndarray of int64 of shape (n,)

    Returns
    -------
    int, int
        Sums of the squares of the rounded gradients and of the rounded hessians, else 0.
    """
    squares, sums = np.int64(0), np.int64(0)
    if mode == CONSTANT:
        for i in range(len(g)):
            out[i] = (np.int64(np.rint(np.float64(g[i]) * g_scale)) << 16) + 1
    elif mode == EXACT:
        for i in range(len(g)):
            of_g = np.int64(np.rint(np.float64(g[i]) * g_scale))
            out[i] = (of_g << 32) + np.int64(np.rint(np.float64(h[i]) * h_scale))
    else:
        for i in range(len(g)):
            x = np.uint32((salt[i] ^ key) * np.uint32(0x9E3779B1))
            x = np.uint32((x ^ (x >> 15)) * np.uint32(0x85EBCA77))
            x = np.uint32(x ^ (x >> 13))
            up = np.float64(x & 0xFFFF) * (1 / 65536)
            of_g = np.int64(np.floor(np.float64(g[i]) * g_scale + up))
            up = np.float64(x >> 16) * (1 / 65536)
            of_h = np.int64(np.floor(np.float64(h[i]) * h_scale + up))
            squares += of_g * of_g
            sums += of_h
            out[i] = (of_g << 38) + (of_h << 13) + 1
    return squares, sums


@_exact
def _flush(mode: int, one: Any, two: Any, out: Any) -> None:
    """Add packed sums to `out`, and begin anew."""
    for j in range(out.shape[0]):
        for b in range(out.shape[1]):
            if mode == CONSTANT:
                v = one[j, b]
                count = v & 0xFFFF
                out[j, b, 0] += (v - count) >> 16
                out[j, b, 1] += count
                one[j, b] = 0
            elif mode == ROUNDED:
                v = one[j, b]
                count = v & 0x1FFF
                h = (v >> 13) & 0x1FFFFFF
                out[j, b, 0] += (v - (h << 13) - count) >> 38
                out[j, b, 1] += h
                out[j, b, 2] += count
                one[j, b] = 0
            else:
                v = two[j, b, 1]
                count = v & 0xFFFF
                out[j, b, 0] += two[j, b, 0]
                out[j, b, 1] += (v - count) >> 16
                out[j, b, 2] += count
                two[j, b, 0] = 0
                two[j, b, 1] = 0


@_exact
def sum_all(mode: int, rows: Any, packed: Any, one: Any, two: Any, out: Any) -> None:
    """Add the histograms of all rows to `out`; see :func:`sum_some`."""
    n, d = len(packed), out.shape[0]
    most = _MOST_ROUNDED if mode == ROUNDED else _MOST
    for start in range(0, n, most):
        stop = min(n, start + most)
        if mode != EXACT:
            for i in range(start, stop):
                v = packed[i]
                for j in range(d):
                    one[j, rows[i, j]] += v
        else:
            for i in range(start, stop):
                g = packed[i] >> 32
                v = ((packed[i] & 0xFFFFFFFF) << 16) + 1
                for j in range(d):
                    b = rows[i, j]
                    two[j, b, 0] += g
                    two[j, b, 1] += v
        _flush(mode, one, two, out)


@_exact
def sum_some(mode: int, rows: Any, packed: Any, index: Any, one: Any, two: Any, out: Any) -> None:
    """Add the histograms of some rows to `out`.

    Parameters
    ----------
    mode : {CONSTANT, EXACT, ROUNDED}
        How gradients and hessians are packed, by :func:`quantise`. CONSTANT: hessians are 1, and
        `out` has no sums of them.
    rows : ndarray of uint8 of shape (n, width)
        The bins of each row.
    packed : ndarray of int64 of shape (n,)
    index : ndarray of int32 of shape (m,)
        Which rows.
    one, two : ndarray of int64 of shape (n_features, 256), and (n_features, 256, 2) for EXACT
        Room for packed sums, of zeros; left as zeros.
    out : ndarray of int64 of shape (n_features, n_bins, 2 or 3)
        Sums of gradients, of hessians, and rows.
    """
    n, d, width = len(index), out.shape[0], rows.shape[1]
    rows_at, packed_at = rows.ctypes.data, packed.ctypes.data
    most = _MOST_ROUNDED if mode == ROUNDED else _MOST
    for start in range(0, n, most):
        stop = min(n, start + most)
        for q in range(start, stop):
            if q + _AHEAD < n:
                soon = np.int64(index[q + _AHEAD])
                prefetch(rows_at + soon * width)
                prefetch(packed_at + soon * 8)
            i = index[q]
            v = packed[i]
            if mode != EXACT:
                for j in range(d):
                    one[j, rows[i, j]] += v
            else:
                g = v >> 32
                h = ((v & 0xFFFFFFFF) << 16) + 1
                for j in range(d):
                    b = rows[i, j]
                    two[j, b, 0] += g
                    two[j, b, 1] += h
        _flush(mode, one, two, out)


@_exact
def part_rows(column: Any, table: Any, index: Any, spare: Any) -> Any:
    """Bring the rows that go left before the others, in place and in their order; how many do.

    Parameters
    ----------
    column : ndarray of uint8 of shape (n,)
        Bins of a feature.
    table : ndarray of uint8 of shape (256,)
        Of each bin, whether it goes left.
    index : ndarray of int32 of shape (m,)
        Rows of a node.
    spare : ndarray of int32 of shape (at least m,)
    """
    left, right = np.int64(0), np.int64(0)
    for q in range(len(index)):
        i = index[q]
        goes = np.int64(table[column[i]])
        index[left] = i
        spare[right] = i
        left += goes
        right += 1 - goes
    for q in range(right):
        index[left + q] = spare[q]
    return left


@_exact
def add_to_leaf(raw: Any, index: Any, value: float) -> None:
    """Add a leaf's value to the raw predictions of its rows."""
    for q in range(len(index)):
        raw[index[q]] += value
