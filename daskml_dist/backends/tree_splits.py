"""Compiled search for the best split of a leaf, in histograms of whole numbers.

Importing this module loads numba, so it is imported at first use. Nothing here may be reordered
by a compiler: the same sums give the same split on every machine.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from daskml_dist.backends.compiled import compiled_entry, compiled_inside, compiled_with

__all__ = ["best_split", "compiled_search"]

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Channels of a histogram whose hessians are all 1: gradients and rows; else hessians between.
_CONSTANT = 2


@_inside
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


#: Placeholder for the function that `compiled_search` puts in: `_best_categories` or none.
_categories: Any = None


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
    constant = hist.shape[2] == _CONSTANT
    rows_at = hist.shape[2] - 1
    best = -1.0
    for m in range(hist.shape[0]):
        j = first + m
        if not allowed[j]:
            continue
        if categorical[j]:
            best = _categories(
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


@cache
def compiled_search(has_categories: bool) -> Any:
    """Return `best_split`, compiled for arrays of any layout, writable or not.

    One signature takes them all: else each layout of histograms would be compiled for again.
    """
    part = _best_categories if has_categories else _no_categories
    search = compiled_with(best_split, exact=True, _categories=part)
    read = {
        kind: types.Array(kind, 1, "C", readonly=True)
        for kind in (types.int8, types.uint8, types.int32, types.int64, types.float64)
    }
    search.compile(
        types.float64(
            types.Array(types.int64, 3, "A", readonly=True), types.int64, read[types.int32],
            read[types.uint8], read[types.uint8], read[types.int8], read[types.uint8],
            read[types.int64], read[types.float64], read[types.float64], types.int64[::1],
            types.uint64[::1],
        )
    )  # fmt: skip
    search.disable_compile()
    return search


@_exact
def _no_categories(
    hist: Any, j: int, count: int, missing: int, sign: int, totals: Any, scales: Any, facts: Any,
    best: float, found: Any, bits: Any,
) -> float:  # fmt: skip
    """Stand for `_best_categories` where no feature is one, so that it need not be compiled."""
    return best


@_inside
def _sort_by_value(numbers: Any, values: Any, n: int) -> None:
    """Sort the first numbers and their values by the values; equal ones keep their order.

    By insertion, of 256 at most: numba's argsort takes a second to compile.
    """
    for i in range(1, n):
        value, number = values[i], numbers[i]
        k = i
        while k > 0 and values[k - 1] > value:
            values[k], numbers[k] = values[k - 1], numbers[k - 1]
            k -= 1
        values[k], numbers[k] = value, number


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
    constant = hist.shape[1] == _CONSTANT
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
    _sort_by_value(numbers, values, n)
    for direction in (1, -1):
        gl, hl, nl = np.int64(0), np.int64(0), np.int64(0)
        for i in range((n + 1) // 2 if direction == 1 else (n + 1) // 2 - 1):
            b = numbers[i if direction == 1 else n - 1 - i]
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
                    c = numbers[k if direction == 1 else n - 1 - k]
                    if missing and c == hist.shape[0] - 1:
                        found[2] = 1
                    else:
                        bits[c >> 6] |= np.uint64(1) << np.uint64(c & 63)
    return best
