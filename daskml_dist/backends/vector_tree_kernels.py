"""Compiled loops for trees whose leaves are vectors: one value for each of several outputs.

These are the loops of `tree_kernels` with one more axis: the sums of a bin are the gradients of all
outputs, their hessians (unless all are 1), and the number of rows. They are contiguous, so that a
row is added to a feature's bin in a few vector additions. Nothing is packed: 32-bit integers are
summed in 64 bits, in any order.

Importing this module loads numba, so it is imported at first use; code that grows trees with one
output never imports it.

References
----------
Z. Zhang and C. Jung, "GBDT-MO: Gradient-boosted decision trees for multiple outputs", IEEE
Transactions on Neural Networks and Learning Systems 32, 2021.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from daskml_dist.backends.compiled import (
    compile_once,
    compiled_entry,
    compiled_inside,
    compiled_with,
)
from daskml_dist.backends.intrinsics import emitted, prefetch
from daskml_dist.backends.tree_kernels import partition_rows, sort_by_value
from daskml_dist.backends.trees import VECTOR_CHANNELS

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Rows that the histogram loop prefetches ahead.
_ROWS_AHEAD = 8
#: Minimum rows of a category for its rank to be used, which also smooths it, as in
#: `tree_kernels._find_best_categories`.
_CATEGORY_ROWS = 10


@emitted(lambda sums, numbers: types.void(types.int64, types.int64))
def add_numbers(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Add the int32 numbers at an address to as many int64 sums at another; one vector register."""
    # numba leaves vectorising to loops, and these would be too short.
    sums_type, numbers_type = (
        ir.VectorType(ir.IntType(bits), VECTOR_CHANNELS) for bits in (64, 32)
    )
    sums = builder.inttoptr(arguments[0], sums_type.as_pointer())
    numbers = builder.load(builder.inttoptr(arguments[1], numbers_type.as_pointer()), align=4)
    total = builder.add(builder.load(sums, align=8), builder.sext(numbers, sums_type))
    builder.store(total, sums, align=8)
    return context.get_dummy_value()


@_exact
def round_gradients(g: Any, h: Any, g_scales: Any, h_scales: Any, out: Any) -> None:
    """Write gradients and hessians as integers, row by row, each with a 1 that counts the row.

    Parameters
    ----------
    g : ndarray of float32 of shape (n_outputs, n)
    h : ndarray of float32 of shape (n_outputs, n), or (0, n) where hessians are 1
    g_scales, h_scales : ndarray of float64 of shape (n_outputs,)
        Powers of two that scale the numbers to at most ``2**30``.
    out : ndarray of int32 of shape (n, n_channels)
        Gradients, hessians, 1; the channels after them stay zeros.
    """
    k, n_hessians = len(g), len(h)
    for i in range(len(out)):
        for c in range(k):
            out[i, c] = np.int32(np.rint(np.float64(g[c, i]) * g_scales[c]))
        for c in range(n_hessians):
            out[i, k + c] = np.int32(np.rint(np.float64(h[c, i]) * h_scales[c]))
        out[i, k + n_hessians] = 1


@_exact
def partition_and_sum_vectors(
    columns: Any, rows: Any, vectors: Any, index: Any, spare_index: Any, tasks: Any, tables: Any,
    out: Any,
) -> None:  # fmt: skip
    """Partition the rows of some leaves, and compute the requested histograms.

    Parameters
    ----------
    columns : ndarray of uint8 of shape (n_features, n)
    rows : ndarray of uint8 of shape (n, at least n_features)
    vectors : ndarray of int32 of shape (n, n_channels)
        From :func:`round_gradients`; a multiple of four channels.
    index, spare_index, tasks, tables
        As in :func:`daskml_dist.backends.tree_kernels.partition_and_sum`.
    out : ndarray of int64 of shape (n_features, n_asked, n_bins, n_channels)
        Need not be initialised.
    """
    number = 0
    for k in range(len(tasks)):
        feature, start, stop, side = tasks[k]
        leaf_rows = index[start:stop]
        n_left = partition_rows(columns[feature], tables[k], leaf_rows, spare_index)
        tasks[k, 1] = start + n_left
        if side < 0:
            continue
        for j in range(out.shape[0]):
            for b in range(out.shape[2]):
                for c in range(out.shape[3]):
                    out[j, number, b, c] = 0
        requested_rows = leaf_rows[n_left:] if side else leaf_rows[:n_left]
        _add_vectors(rows, vectors, requested_rows, out, number)
        number += 1


@_inside
def _add_vectors(rows: Any, vectors: Any, index: Any, out: Any, hist_index: Any) -> None:
    """Add the vectors of some rows to the bins of their features."""
    d, n_asked, n_bins, width = out.shape
    last, line = len(index) - _ROWS_AHEAD - 1, rows.shape[1]
    rows_at, vectors_at = rows.ctypes.data, vectors.ctypes.data
    # Addresses of 4-byte and 8-byte numbers.
    first = out.ctypes.data + 8 * hist_index * n_bins * width
    of_bin, of_feature = 8 * width, 8 * n_asked * n_bins * width
    for q in range(len(index)):
        if q <= last:
            # Rows of a leaf are scattered: the processor cannot predict their addresses.
            next_row = np.int64(index[q + _ROWS_AHEAD])
            prefetch(rows_at + next_row * line)
            prefetch(vectors_at + next_row * 4 * width)
        i = np.uintp(index[q])
        vector_address, sums = vectors_at + np.int64(i) * 4 * width, first
        for j in range(d):
            bin_address = sums + np.int64(rows[i, np.uintp(j)]) * of_bin
            for c in range(0, width, VECTOR_CHANNELS):
                add_numbers(bin_address + 8 * c, vector_address + 4 * c)
            sums += of_feature


@_inside
def _vector_gain(
    left_sums: Any, totals: Any, scales: Any, value: Any, l2: float, least_h: float
) -> float:
    """Return the gain of a split, summed over outputs; -1 if a side has too few hessians.

    An output whose sum of hessians on a side is below the minimum keeps its value there, and gains
    nothing from that side.
    """
    k = len(value)
    gain, h_left, h_right = 0.0, 0.0, 0.0
    for c in range(k):
        gl, hl = left_sums[c] * scales[0, c], left_sums[k + c] * scales[1, c]
        gr = (totals[c] - left_sums[c]) * scales[0, c]
        hr = (totals[k + c] - left_sums[k + c]) * scales[1, c]
        gain += totals[c] * scales[0, c] * value[c]
        # The drop of the loss's second-order model (Chen and Guestrin 2016, equation 7).
        if hl >= least_h:
            gain += gl * gl / (hl + l2 + 1e-15)
        if hr >= least_h:
            gain += gr * gr / (hr + l2 + 1e-15)
        h_left += hl
        h_right += hr
    return gain if h_left >= least_h and h_right >= least_h else -1.0


@_inside
def _add_bin(sums: Any, of_bin: Any, k: int, constant: bool) -> None:
    """Add a bin of a histogram to sums of gradients, hessians and rows."""
    n = of_bin[k] if constant else of_bin[2 * k]
    for c in range(k):
        sums[c] += of_bin[c]
        # If all hessians are 1, their sum is the number of rows.
        sums[k + c] += n if constant else of_bin[k + c]
    sums[2 * k] += n


@_inside
def _note_split(
    best_split: Any, feature: Any, last: Any, missing_left: int, left_sums: Any, is_categories: int
) -> None:
    """Write the best split so far, in the form of `find_best_vector_split`."""
    best_split[0], best_split[1], best_split[2] = feature, last, missing_left
    for c in range(len(left_sums)):
        best_split[3 + c] = left_sums[c]
    best_split[3 + len(left_sums)] = is_categories


#: Placeholder for the function inserted by `compiled_vector_search`: `_find_best_vector_categories`
#: or none.
_search_categories: Any = None


def find_best_vector_split(
    hist: Any,
    first: int,
    counts: Any,
    missing: Any,
    categorical: Any,
    allowed: Any,
    totals: Any,
    scales: Any,
    value: Any,
    limits: Any,
    best_split: Any,
    bits: Any,
) -> float:
    """Find the best split of a leaf with several outputs; return its gain, -1 if there is none.

    Parameters
    ----------
    hist : ndarray of int64 of shape (m, n_bins + 1, n_channels)
        Histograms of features ``first`` to ``first + m``. The last bin is not used.
    first, counts, missing, categorical, allowed, bits
        As in :func:`daskml_dist.backends.tree_kernels.find_best_split`.
    totals : ndarray of int64 of shape (2 * n_outputs + 1,)
        Sums of gradients, hessians and rows of the node.
    scales : ndarray of float64 of shape (2, n_outputs)
        Units of gradients and of hessians.
    value : ndarray of float64 of shape (n_outputs,)
        Value of the node.
    limits : ndarray of float64 of shape (3,)
        l2, minimum hessian, minimum rows.
    best_split : ndarray of int64 of shape (2 * n_outputs + 5,)
        Feature, last bin that goes left, whether missing values go left, sums of the left child as
        in `totals`, whether the split is by categories.
    """
    k, l2, least_h, least_n = len(value), limits[0], limits[1], np.int64(limits[2])
    # Hessians that are all 1 are left out, which halves the channels.
    constant = hist.shape[2] < 2 * k + 1
    n_at = k if constant else 2 * k
    n_all, end = totals[2 * k], 2 * k + 1
    side, left_sums = np.empty(end, np.int64), np.empty(end, np.int64)
    best = -1.0
    for m in range(hist.shape[0]):
        j = first + m
        if not allowed[j]:
            continue
        if categorical[j]:
            best = _search_categories(
                hist[m],
                j,
                counts[j],
                missing[j],
                totals,
                scales,
                value,
                limits,
                best,
                best_split,
                bits,
            )
            continue
        # From the left, with missing values on the right: cut after each bin in turn.
        side[:] = 0
        for b in range(counts[j] - 1 + missing[j]):
            if hist[m, b, n_at] == 0:
                continue  # the same split as the previous one
            _add_bin(side, hist[m, b], k, constant)
            if side[2 * k] < least_n:
                continue
            # The number of rows on the right only decreases from here on.
            if n_all - side[2 * k] < least_n:
                break
            gain = _vector_gain(side, totals, scales, value, l2, least_h)
            if gain > best and gain > 0:
                best = gain
                _note_split(best_split, j, b, 0, side, 0)
        if not missing[j]:
            continue
        # From the right, so that missing values, which are in no bin here, go left.
        side[:] = 0
        for b in range(counts[j] - 2, -1, -1):
            if hist[m, b + 1, n_at] == 0:
                continue
            _add_bin(side, hist[m, b + 1], k, constant)
            if side[2 * k] < least_n:
                continue
            if n_all - side[2 * k] < least_n:
                break
            for c in range(end):
                left_sums[c] = totals[c] - side[c]
            gain = _vector_gain(left_sums, totals, scales, value, l2, least_h)
            if gain > best and gain > 0:
                best = gain
                _note_split(best_split, j, b, 1, left_sums, 0)
    return best


@cache
def compiled_vector_search(has_categories: bool) -> Any:
    """Return `find_best_vector_split`, compiled for arrays of any layout, writable or not."""
    part = _find_best_vector_categories if has_categories else _skip_categories
    search = compiled_with(find_best_vector_split, exact=True, _search_categories=part)
    read = {
        kind: types.Array(kind, 1, "C", readonly=True)
        for kind in (types.uint8, types.int32, types.int64, types.float64)
    }
    compile_once(
        search,
        types.float64(
            types.Array(types.int64, 3, "A", readonly=True), types.int64, read[types.int32],
            read[types.uint8], read[types.uint8], read[types.uint8], read[types.int64],
            types.Array(types.float64, 2, "C", readonly=True), read[types.float64],
            read[types.float64], types.int64[::1], types.uint64[::1],
        ),
    )  # fmt: skip
    return search


@_exact
def _skip_categories(
    hist: Any, j: int, count: int, missing: int, totals: Any, scales: Any, value: Any, limits: Any,
    best: float, best_split: Any, bits: Any,
) -> float:  # fmt: skip
    """Replace `_find_best_vector_categories`, to compile less if no feature is categorical."""
    return best


@_exact
def _find_best_vector_categories(
    hist: Any, j: int, count: int, missing: int, totals: Any, scales: Any, value: Any, limits: Any,
    best: float, best_split: Any, bits: Any,
) -> float:  # fmt: skip
    """Find a leaf's best split by categories, sorted by the gradient of each output in turn.

    For one output, sorted by gradient, the best partition is a prefix (Fisher 1958). For several
    outputs there is no such order: the best prefix of any output's order is used.
    """
    k, l2, least_h, least_n = len(value), limits[0], limits[1], np.int64(limits[2])
    constant = hist.shape[1] < 2 * k + 1
    n_at = k if constant else 2 * k
    n_all, end, missing_bin = totals[2 * k], 2 * k + 1, hist.shape[0] - 2
    side = np.empty(end, np.int64)
    numbers, keys = np.empty(256, np.int64), np.empty(256)
    for output in range(k):
        n = 0
        for b in range(count + missing):
            # Missing values count as an additional category.
            b = b if b < count else missing_bin
            # Categories with few rows are not used, and stay on the right.
            if hist[b, n_at] >= _CATEGORY_ROWS:
                h = (hist[b, k] if constant else hist[b, k + output]) * scales[1, output]
                numbers[n] = b
                keys[n] = hist[b, output] * scales[0, output] / (h + _CATEGORY_ROWS)
                n += 1
        if n <= 1:
            return best
        sort_by_value(numbers, keys, n)
        # Up to the middle from both ends, so that the bits describe the smaller set.
        for direction in (1, -1):
            side[:] = 0
            for i in range((n + 1) // 2 if direction == 1 else (n + 1) // 2 - 1):
                _add_bin(side, hist[numbers[i if direction == 1 else n - 1 - i]], k, constant)
                if side[2 * k] < least_n:
                    continue
                if n_all - side[2 * k] < least_n:
                    break
                gain = _vector_gain(side, totals, scales, value, l2, least_h)
                if gain > best and gain > 0:
                    best = gain
                    _note_split(best_split, j, 0, 0, side, 1)
                    # Bit c of word c / 64 is set if category c goes left.
                    bits[:] = 0
                    for q in range(i + 1):
                        c = numbers[q if direction == 1 else n - 1 - q]
                        if missing and c == missing_bin:
                            best_split[2] = 1
                        else:
                            bits[c >> 6] |= np.uint64(1) << np.uint64(c & 63)
    return best


#: Rows that go through a tree together, so that its nodes stay in the cache.
_TREE_ROWS = 256


@_exact
def add_vector_values(
    X: Any, roots: Any, first: int, last: int, feature: Any, threshold: Any, left_child: Any,
    missing_left: Any, category: Any, bitsets: Any, value: Any, out: Any,
) -> None:  # fmt: skip
    """Add the values of trees `first` to `last` to raw predictions.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
        Categories by number; NaN if missing or unknown.
    roots : ndarray of int64 of shape (n_trees + 1,)
    first, last : int
    feature, threshold, left_child, missing_left, category, bitsets : ndarray
        Arrays of `models.trees.Trees`.
    value : ndarray of float64 of shape (n_nodes, n_outputs)
    out : ndarray of float64 of shape (n, n_outputs)
    """
    for start in range(0, len(X), _TREE_ROWS):
        stop = min(len(X), start + _TREE_ROWS)
        for t in range(first, last):
            for i in range(start, stop):
                k = roots[t]
                while feature[k] >= 0:
                    x = np.float64(X[i, feature[k]])
                    if x != x:
                        goes = missing_left[k]
                    elif category[k] >= 0:
                        # Bit c of the category's words is set if it goes left.
                        c = np.uint64(x)
                        goes = (bitsets[category[k], c >> 6] >> (c & 63)) & 1 == 1
                    else:
                        goes = x <= threshold[k]
                    k = left_child[k] + 1 - goes
                for output in range(value.shape[1]):
                    out[i, output] += value[k, output]
