"""Compiled loops of growing trees: bins, histograms of whole numbers, the best split, partitions.

Importing this module loads numba, so it is imported at first use. Nothing here may be reordered
by a compiler: the same rows give the same bits on every machine.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from daskml_dist.backends.prefetch import prefetch

__all__ = [
    "CONSTANT", "CONSTANT_HESSIAN", "EXACT", "ROUNDED", "add_to_leaf", "best_split", "part_rows",
    "quantise", "sum_all", "sum_some", "to_bins",
]  # fmt: skip

_exact = numba.njit(nogil=True, cache=True, error_model="numpy")

#: How gradients and hessians are packed: hessians are all 1; in all their digits; to 12 bits, up
#: or down by a draw, so that sums of many are right.
CONSTANT, EXACT, ROUNDED = 0, 1, 2
#: Channels of a histogram whose hessians are all 1: gradients and rows; else hessians between.
CONSTANT_HESSIAN = 2
#: Rows of which the packed sums of a bin cannot overflow.
_MOST, _MOST_ROUNDED = 65_535, 8_191
#: Cells of a feature's grid, which tells roughly in which bin a value is.
_CELLS = 1024
#: Rows that a loop asks for before it reads them.
_AHEAD = 16


@_exact
def to_bins(
    X: Any, table: Any, n_edges: Any, categorical: Any, missing: int, rows: Any, columns: Any,
    seen: Any,
) -> None:  # fmt: skip
    """Bins of some rows.

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
    n, d = X.shape
    starts = np.zeros((d, _CELLS + 2), np.int32)
    lows, scales = np.zeros(d), np.zeros(d)
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
        stop = min(n, start + 256)
        for j in range(d):
            edges, at, low, scale = table[j], starts[j], lows[j], scales[j]
            for i in range(start, stop):
                value = np.float64(X[i, j])
                b = missing
                if value == value:
                    # Edges of lower cells are smaller, those of higher ones are not.
                    c = _cell(value, low, scale)
                    b, end = at[c], at[c + 1]
                    while end - b > 8:
                        middle = (b + end) >> 1
                        if edges[middle] < value:
                            b = middle + 1
                        else:
                            end = middle
                    first = b
                    for e in range(first, end):
                        b += edges[e] < value
                    if categorical[j] and (b >= n_edges[j] or edges[b] != value):
                        b = missing
                if b == missing:
                    seen[j] = 1
                rows[i, j] = b
                columns[j, i] = b


@_exact
def _cell(value: float, low: float, scale: float) -> int:
    """Cell of a value in an even grid; a larger value has no lower cell."""
    at = (value - low) * scale
    if at >= _CELLS:
        return _CELLS
    return np.int64(at) if at > 0 else 0


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
    n, d = len(index), out.shape[0]
    most = _MOST_ROUNDED if mode == ROUNDED else _MOST
    for start in range(0, n, most):
        stop = min(n, start + most)
        for q in range(start, stop):
            if q + _AHEAD < n:
                soon = np.intp(index[q + _AHEAD])
                prefetch(rows, soon)
                prefetch(packed, soon)
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
def part_rows(column: Any, table: Any, index: Any, spare: Any) -> int:
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
    left = 0
    right = 0
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


@_exact
def _value(g: float, h: float, low: float, high: float, l2: float) -> float:
    value = -g / (h + l2 + 1e-15)
    if value < low:
        return low
    if value > high:
        return high
    return value


@_exact
def _gain(
    gl: float, hl: float, gr: float, hr: float, loss: float, sign: int, low: float, high: float,
    l2: float,
) -> float:  # fmt: skip
    left, right = _value(gl, hl, low, high, l2), _value(gr, hr, low, high, l2)
    if (sign > 0 and left > right) or (sign < 0 and left < right):
        return -1.0
    gain = loss
    gain -= gl * left
    gain -= gr * right
    return gain


@_exact
def best_split(
    hist: Any,
    first: int,
    counts: Any,
    missing: Any,
    categorical: Any,
    signs: Any,
    allowed: Any,
    totals: Any,
    scales: Any,
    facts: Any,
    found: Any,
    bits: Any,
) -> float:
    """The best split of a node among some features; its gain, -1 where there is none.

    Parameters
    ----------
    hist : ndarray of int64 of shape (m, n_bins, 2 or 3)
        Of features ``first`` to ``first + m``.
    first : int
    counts : ndarray of int32 of shape (n_features,)
        Bins of each feature, without that of missing values, which is the last.
    missing, categorical, allowed : ndarray of uint8 of shape (n_features,)
        Whether a feature has missing values, is a category, may be split by.
    signs : ndarray of int8 of shape (n_features,)
        Of monotonic constraints.
    totals : ndarray of int64 of shape (3,)
        Sums of gradients, hessians and rows of the node.
    scales : ndarray of float64 of shape (2,)
        What a unit of gradients, and of hessians, is.
    facts : ndarray of float64 of shape (6,)
        Value of the node, its lower and upper bound, l2, the least hessian, the least rows.
    found : ndarray of int64 of shape (7,)
        Feature, last bin that goes left, whether missing values do, sums of gradients, hessians
        and rows of the left child, whether it is a split of categories.
    bits : ndarray of uint64 of shape (4,)
        Categories that go left.
    """
    gs, hs = scales[0], scales[1]
    value, low, high, l2 = facts[0], facts[1], facts[2], facts[3]
    least_h, least_n = facts[4], np.int64(facts[5])
    G, H, N = totals[0], totals[1], totals[2]
    g_all, h_all = G * gs, H * hs
    loss = g_all * value
    constant = hist.shape[2] == CONSTANT_HESSIAN
    rows_at = hist.shape[2] - 1
    best = -1.0
    for m in range(hist.shape[0]):
        j = first + m
        if not allowed[j]:
            continue
        if categorical[j]:
            best = _best_categories(
                hist[m], j, counts[j], missing[j], signs[j], totals, scales, facts, best, found,
                bits,
            )  # fmt: skip
            continue
        gl, hl, nl = np.int64(0), np.int64(0), np.int64(0)
        for b in range(counts[j] - 1 + missing[j]):
            gl += hist[m, b, 0]
            nl += hist[m, b, rows_at]
            hl = nl if constant else hl + hist[m, b, 1]
            if nl < least_n:
                continue
            if N - nl < least_n:
                break
            h_left = hl * hs
            h_right = h_all - h_left
            if h_left < least_h:
                continue
            if h_right < least_h:
                break
            g_left = gl * gs
            gain = _gain(g_left, h_left, g_all - g_left, h_right, loss, signs[j], low, high, l2)
            if gain > best and gain > 0:
                best = gain
                found[0], found[1], found[2] = j, b, 0
                found[3], found[4], found[5], found[6] = gl, hl, nl, 0
        if not missing[j]:
            continue
        gr, hr, nr = np.int64(0), np.int64(0), np.int64(0)
        for b in range(counts[j] - 2, -1, -1):
            gr += hist[m, b + 1, 0]
            nr += hist[m, b + 1, rows_at]
            hr = nr if constant else hr + hist[m, b + 1, 1]
            if nr < least_n:
                continue
            if N - nr < least_n:
                break
            h_right = hr * hs
            h_left = h_all - h_right
            if h_right < least_h:
                continue
            if h_left < least_h:
                break
            g_right = gr * gs
            gain = _gain(g_all - g_right, h_left, g_right, h_right, loss, signs[j], low, high, l2)
            if gain > best and gain > 0:
                best = gain
                found[0], found[1], found[2] = j, b, 1
                found[3], found[4], found[5], found[6] = G - gr, H - hr, N - nr, 0
    return best


@_exact
def _best_categories(
    hist: Any, j: int, count: int, missing: int, sign: int, totals: Any, scales: Any, facts: Any,
    best: float, found: Any, bits: Any,
) -> float:  # fmt: skip
    """The best split of a node by categories, in the order of their gradients (Fisher 1958)."""
    gs, hs = scales[0], scales[1]
    low, high, l2 = facts[1], facts[2], facts[3]
    least_h, least_n = facts[4], np.int64(facts[5])
    H, N = totals[1], totals[2]
    g_all, h_all = totals[0] * gs, H * hs
    loss = g_all * facts[0]
    constant = hist.shape[1] == CONSTANT_HESSIAN
    last = hist.shape[1] - 1
    # Categories of few rows stay on the right.
    support, least = N / h_all, 10.0
    numbers, values = np.empty(256, np.int64), np.empty(256)
    n = 0
    for b in range(count + missing):
        b = b if b < count else hist.shape[0] - 1
        h = hist[b, 1] * hs
        if h * support >= least:
            numbers[n], values[n] = b, hist[b, 0] * gs / (h + least)
            n += 1
    if n <= 1:
        return best
    order = np.argsort(values[:n], kind="mergesort")
    for direction in (1, -1):
        gl, hl, nl = np.int64(0), np.int64(0), np.int64(0)
        for i in range((n + 1) // 2 if direction == 1 else (n + 1) // 2 - 1):
            b = numbers[order[i if direction == 1 else n - 1 - i]]
            gl += hist[b, 0]
            nl += hist[b, last]
            hl = nl if constant else hl + hist[b, 1]
            h_left = hl * hs
            h_right = h_all - h_left
            if nl < least_n or h_left < least_h:
                continue
            if N - nl < least_n or h_right < least_h:
                break
            g_left = gl * gs
            gain = _gain(g_left, h_left, g_all - g_left, h_right, loss, sign, low, high, l2)
            if gain > best and gain > 0:
                best = gain
                found[0], found[1], found[2] = j, 0, 0
                found[3], found[4], found[5], found[6] = gl, hl, nl, 1
                bits[:] = 0
                for k in range(i + 1):
                    c = numbers[order[k if direction == 1 else n - 1 - k]]
                    if missing and c == hist.shape[0] - 1:
                        found[2] = 1
                    else:
                        bits[c >> 6] |= np.uint64(1) << np.uint64(c & 63)
    return best
