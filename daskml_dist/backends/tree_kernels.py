"""Compiled loops over the rows of growing trees: histograms of whole numbers, and partitions.

Importing this module loads numba, so it is imported at first use. Nothing here may be reordered
by a compiler: the same rows give the same bits on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.pointers import prefetch
from daskml_dist.backends.trees import CONSTANT, EXACT, ROUNDED

__all__ = [
    "CONSTANT",
    "EXACT",
    "ROUNDED",
    "add_to_leaf",
    "part_and_sum",
    "part_rows",
    "quantise",
    "sum_all",
    "sum_some",
]

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Rows of which the packed sums of a bin cannot overflow.
_MOST, _MOST_ROUNDED = 65_535, 8_191
#: Rows that a loop asks for before it reads them.
_AHEAD = 16
#: Rows that are added up one number at a time.
_FEW = 256
#: Numbers without a sign: a place that has one is looked at for it.
_ONE, _BYTE = np.uintp(1), np.uintp(8)


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


@_inside
def _flush(mode: int, one: Any, two: Any, out: Any, number: Any) -> None:
    """Add packed sums to a histogram of `out`, and begin anew."""
    for j in range(out.shape[0]):
        for b in range(out.shape[2]):
            if mode == CONSTANT:
                v = one[j, b]
                count = v & 0xFFFF
                out[j, number, b, 0] += (v - count) >> 16
                out[j, number, b, 1] += count
                one[j, b] = 0
            elif mode == ROUNDED:
                v = one[j, b]
                count = v & 0x1FFF
                h = (v >> 13) & 0x1FFFFFF
                out[j, number, b, 0] += (v - (h << 13) - count) >> 38
                out[j, number, b, 1] += h
                out[j, number, b, 2] += count
                one[j, b] = 0
            else:
                v = two[j, b, 1]
                count = v & 0xFFFF
                out[j, number, b, 0] += two[j, b, 0]
                out[j, number, b, 1] += (v - count) >> 16
                out[j, number, b, 2] += count
                two[j, b, 0] = 0
                two[j, b, 1] = 0


@_exact
def sum_all(mode: int, rows: Any, packed: Any, one: Any, two: Any, out: Any) -> None:
    """Add the histograms of all rows to the only ones of `out`; see :func:`sum_some`."""
    n = len(packed)
    most = _MOST_ROUNDED if mode == ROUNDED else _MOST
    for start in range(0, n, most):
        stop = min(n, start + most)
        if mode == EXACT:
            _add_pairs(rows, packed, start, stop, two)
        else:
            _add(rows, packed, start, stop, one)
        _flush(mode, one, two, out, 0)


@_inside
def _add(rows: Any, packed: Any, start: int, stop: int, one: Any) -> None:
    """Add rows to packed sums, four at once; see :func:`_add_some`."""
    d, width = np.uintp(len(one)), np.uintp(rows.shape[1])
    bins, sums = rows.reshape(-1), one.reshape(-1)
    fours = stop - (stop - start) % 4
    for i in range(start, fours, 4):
        va, vb, vc, vd = packed[i], packed[i + 1], packed[i + 2], packed[i + 3]
        a = np.uintp(i) * width
        b = a + width
        c = b + width
        e = c + width
        for j in range(d):
            k = np.uintp(j)
            first = k << _BYTE
            sums[first + np.uintp(bins[a + k])] += va
            sums[first + np.uintp(bins[b + k])] += vb
            sums[first + np.uintp(bins[c + k])] += vc
            sums[first + np.uintp(bins[e + k])] += vd
    for i in range(fours, stop):
        a, va = np.uintp(i) * width, packed[i]
        for j in range(d):
            k = np.uintp(j)
            sums[(k << _BYTE) + np.uintp(bins[a + k])] += va


@_inside
def _add_pairs(rows: Any, packed: Any, start: int, stop: int, two: Any) -> None:
    """Add rows to sums of two numbers; see :func:`_add_some_pairs`."""
    d, width = np.uintp(len(two)), np.uintp(rows.shape[1])
    bins, sums = rows.reshape(-1), two.reshape(-1)
    for i in range(start, stop, 2):
        # Of an odd number of rows nothing is added for the one behind the last.
        both = min(i + 1, stop - 1)
        there = np.int64(both - i)
        ga, gb = packed[i] >> 32, (packed[both] >> 32) * there
        ha = ((packed[i] & 0xFFFFFFFF) << 16) + 1
        hb = (((packed[both] & 0xFFFFFFFF) << 16) + 1) * there
        a, b = np.uintp(i) * width, np.uintp(both) * width
        for j in range(d):
            k = np.uintp(j)
            first = k << _BYTE
            at = (first + np.uintp(bins[a + k])) << _ONE
            of_b = (first + np.uintp(bins[b + k])) << _ONE
            sums[at] += ga
            sums[of_b] += gb
            sums[at + _ONE] += ha
            sums[of_b + _ONE] += hb


@_inside
def sum_some(
    mode: int, rows: Any, packed: Any, index: Any, one: Any, two: Any, out: Any, number: Any
) -> None:  # fmt: skip
    """Add the histograms of some rows to those of a number of `out`.

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
    out : ndarray of int64 of shape (n_features, n_asked, n_bins, 2 or 3)
        Sums of gradients, of hessians, and rows.
    number : int
    """
    n = len(index)
    if n <= _FEW:
        _sum_few(mode, rows, packed, index, out, number)
        return
    most = _MOST_ROUNDED if mode == ROUNDED else _MOST
    for start in range(0, n, most):
        stop = min(n, start + most)
        if mode == EXACT:
            _add_some_pairs(rows, packed, index, start, stop, two)
        else:
            _add_some(rows, packed, index, start, stop, one)
        _flush(mode, one, two, out, number)


@_inside
def _add_some(rows: Any, packed: Any, index: Any, start: int, stop: int, one: Any) -> None:
    """Add some rows to packed sums, four at once, feature by feature.

    A bin that several of them have is then read while it is still being written, which processors
    foresee; a row later they do not.
    """
    d, width, last = np.uintp(len(one)), np.uintp(rows.shape[1]), len(index) - _AHEAD - 4
    bins, sums = rows.reshape(-1), one.reshape(-1)
    rows_at, packed_at, line = rows.ctypes.data, packed.ctypes.data, rows.shape[1]
    fours = stop - (stop - start) % 4
    for q in range(start, fours, 4):
        if q <= last:
            for r in range(q + _AHEAD, q + _AHEAD + 4):
                soon = np.int64(index[r])
                prefetch(rows_at + soon * line)
                prefetch(packed_at + soon * 8)
        a, b = np.uintp(index[q]), np.uintp(index[q + 1])
        c, e = np.uintp(index[q + 2]), np.uintp(index[q + 3])
        va, vb, vc, vd = packed[a], packed[b], packed[c], packed[e]
        a, b, c, e = a * width, b * width, c * width, e * width
        for j in range(d):
            k = np.uintp(j)
            first = k << _BYTE
            sums[first + np.uintp(bins[a + k])] += va
            sums[first + np.uintp(bins[b + k])] += vb
            sums[first + np.uintp(bins[c + k])] += vc
            sums[first + np.uintp(bins[e + k])] += vd
    for q in range(fours, stop):
        a = np.uintp(index[q])
        va, a = packed[a], a * width
        for j in range(d):
            k = np.uintp(j)
            sums[(k << _BYTE) + np.uintp(bins[a + k])] += va


@_inside
def _add_some_pairs(rows: Any, packed: Any, index: Any, start: int, stop: int, two: Any) -> None:
    """Add some rows to sums of two numbers, two rows at once.

    Both numbers of a bin in turn would be added as one, which takes long where it is read again.
    """
    d, width, last = np.uintp(len(two)), np.uintp(rows.shape[1]), len(index) - _AHEAD - 2
    bins, sums = rows.reshape(-1), two.reshape(-1)
    rows_at, packed_at, line = rows.ctypes.data, packed.ctypes.data, rows.shape[1]
    for q in range(start, stop, 2):
        if q <= last:
            for r in range(q + _AHEAD, q + _AHEAD + 2):
                soon = np.int64(index[r])
                prefetch(rows_at + soon * line)
                prefetch(packed_at + soon * 8)
        # Of an odd number of rows nothing is added for the one behind the last.
        both = min(q + 1, stop - 1)
        there = np.int64(both - q)
        a, b = np.uintp(index[q]), np.uintp(index[both])
        ga, gb = packed[a] >> 32, (packed[b] >> 32) * there
        ha = ((packed[a] & 0xFFFFFFFF) << 16) + 1
        hb = (((packed[b] & 0xFFFFFFFF) << 16) + 1) * there
        a, b = a * width, b * width
        for j in range(d):
            k = np.uintp(j)
            first = k << _BYTE
            at = (first + np.uintp(bins[a + k])) << _ONE
            of_b = (first + np.uintp(bins[b + k])) << _ONE
            sums[at] += ga
            sums[of_b] += gb
            sums[at + _ONE] += ha
            sums[of_b + _ONE] += hb


@_inside
def _sum_few(
    mode: int, rows: Any, packed: Any, index: Any, out: Any, number: Any
) -> None:  # fmt: skip
    """Add the histograms of few rows: going through all bins would take longer."""
    last = out.shape[3] - 1
    for q in range(len(index)):
        i = np.uintp(index[q])
        v = packed[i]
        if mode == CONSTANT:
            g, h = v >> 16, np.int64(0)
        elif mode == EXACT:
            g, h = v >> 32, v & 0xFFFFFFFF
        else:
            g, h = v >> 38, (v >> 13) & 0x1FFFFFF
        for j in range(out.shape[0]):
            b = np.uintp(rows[i, j])
            out[j, number, b, 0] += g
            out[j, number, b, last] += 1
            if mode != CONSTANT:
                out[j, number, b, 1] += h


@_inside
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
def part_and_sum(
    mode: int, columns: Any, rows: Any, packed: Any, index: Any, spare: Any, tasks: Any,
    tables: Any, one: Any, two: Any, out: Any,
) -> None:  # fmt: skip
    """Part the rows of some leaves, and make the histograms that are asked for.

    Parameters
    ----------
    mode, rows, packed, one, two
        As :func:`sum_some` takes them.
    columns : ndarray of uint8 of shape (n_features, n)
    index : ndarray of int32 of shape (n,)
        Rows of all leaves, one leaf's behind another's.
    spare : ndarray of int32 of shape (n,)
    tasks : ndarray of int64 of shape (n_leaves, 4)
        Feature, first and last place in `index`, the side that is asked for (-1: none). The
        second becomes the place where the right child begins.
    tables : ndarray of uint8 of shape (n_leaves, 256)
        Of each bin, whether it goes left.
    out : ndarray of int64 of shape (n_features, n_asked, n_bins, 2 or 3)
        Its values may be anything.
    """
    number = 0
    for k in range(len(tasks)):
        feature, start, stop, side = tasks[k]
        own = index[start:stop]
        n_left = part_rows(columns[feature], tables[k], own, spare)
        tasks[k, 1] = start + n_left
        if side < 0:
            continue
        for j in range(out.shape[0]):
            for b in range(out.shape[2]):
                for c in range(out.shape[3]):
                    out[j, number, b, c] = 0
        asked = own[n_left:] if side else own[:n_left]
        sum_some(mode, rows, packed, asked, one, two, out, number)
        number += 1


@_exact
def add_to_leaf(raw: Any, index: Any, value: float) -> None:
    """Add a leaf's value to the raw predictions of its rows."""
    for q in range(len(index)):
        raw[index[q]] += value
