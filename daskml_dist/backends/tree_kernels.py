"""Compiled loops for growing trees: gradients, integer histograms, splits, partitions.

Gradients and hessians are rounded to integers and packed into 64 bits, so that a row costs one
addition per feature and sums do not depend on the order of rows. The compiler must not reorder
anything here: the same rows give the same bits on every machine, and the CUDA kernels repeat the
operations.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from daskml_dist.backends.compiled import (
    compile_once,
    compiled_entry,
    compiled_inside,
    compiled_with,
)
from daskml_dist.backends.elementary_functions import exponentiate_in_place
from daskml_dist.backends.intrinsics import prefetch
from daskml_dist.backends.trees import CONSTANT, EXACT, ROUNDED

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Channels of a histogram if all hessians are 1: gradients and rows; otherwise with hessians in
#: between.
_CONSTANT_CHANNELS = 2


@_inside
def _leaf_value(g: float, h: float, low: float, high: float, l2: float) -> float:
    """Return the value of a leaf with sums g and h of gradients and hessians."""
    # Newton's step of the leaf, clipped to the bounds of monotonic constraints.
    value = -g / (h + l2 + 1e-15)
    if value < low:
        return low
    if value > high:
        return high
    return value


@_exact
def _split_gain(
    gl: float, hl: float, gr: float, hr: float, loss: float, sign: int, low: float, high: float,
    l2: float,
) -> float:  # fmt: skip
    """Return the gain of a split into two leaves; -1 if their order is not allowed."""
    left_value, right_value = _leaf_value(gl, hl, low, high, l2), _leaf_value(gr, hr, low, high, l2)
    # Monotonic constraints forbid a split whose children's values are in the wrong order.
    if (sign > 0 and left_value > right_value) or (sign < 0 and left_value < right_value):
        return -1.0
    # The drop of the loss's second-order model, as in XGBoost (Chen and Guestrin 2016, equation 7).
    gain = loss
    gain -= gl * left_value
    gain -= gr * right_value
    return gain


#: Placeholder for the function inserted by `compiled_search`: `_find_best_categories` or none.
_search_categories: Any = None


def find_best_split(
    hist: Any,
    first: int,
    counts: Any,
    missing: Any,
    categorical: Any,
    signs: Any,
    allowed: Any,
    totals: Any,
    scales: Any,
    leaf_settings: Any,
    best_split: Any,
    bits: Any,
) -> float:
    """Find a leaf's best split among some features; return its gain, -1 if there is none.

    Parameters
    ----------
    hist : ndarray of int64 of shape (m, n_bins, 2 or 3)
        Histograms of features ``first`` to ``first + m``.
    first : int
    counts : ndarray of int32 of shape (n_features,)
        Bins of each feature, without the bin of missing values, which is the last.
    missing, categorical, allowed : ndarray of uint8 of shape (n_features,)
        Whether a feature has missing values, is categorical, may be used.
    signs : ndarray of int8 of shape (n_features,)
        Signs of monotonic constraints.
    totals : ndarray of int64 of shape (3,)
        Sums of gradients, hessians and rows of the node.
    scales : ndarray of float64 of shape (2,)
        Units of gradients and of hessians.
    leaf_settings : ndarray of float64 of shape (6,)
        Value of the node, its lower and upper bound, l2, minimum hessian, minimum rows.
    best_split : ndarray of int64 of shape (7,)
        Feature, last bin that goes left, whether missing values go left, sums of gradients,
        hessians and rows of the left child, whether the split is by categories.
    bits : ndarray of uint64 of shape (4,)
        Categories that go left.
    """
    # Histograms hold integers; a scale converts them to gradients and hessians. They are summed as
    # integers and scaled once, so the order of sums does not matter.
    gs, hs = scales[0], scales[1]
    value, low, high, l2 = leaf_settings[0], leaf_settings[1], leaf_settings[2], leaf_settings[3]
    least_h, least_n = leaf_settings[4], np.int64(leaf_settings[5])
    G, H, N = totals[0], totals[1], totals[2]
    g_all, h_all = G * gs, H * hs
    loss = g_all * value
    constant = hist.shape[2] == _CONSTANT_CHANNELS
    rows_at = hist.shape[2] - 1
    best = -1.0
    for m in range(hist.shape[0]):
        j = first + m
        if not allowed[j]:
            continue
        # Categories have no natural order, and need a separate search.
        if categorical[j]:
            best = _search_categories(
                hist[m], j, counts[j], missing[j], signs[j], totals, scales, leaf_settings, best,
                best_split, bits,
            )  # fmt: skip
            continue
        # From the left, with missing values on the right: cut after each bin in turn.
        gl, hl, nl = np.int64(0), np.int64(0), np.int64(0)
        for b in range(counts[j] - 1 + missing[j]):
            gl += hist[m, b, 0]
            nl += hist[m, b, rows_at]
            # If all hessians are 1, their sum is the number of rows.
            hl = nl if constant else hl + hist[m, b, 1]
            if nl < least_n:
                continue
            # The number of rows on the right only decreases from here on.
            if N - nl < least_n:
                break
            h_left = hl * hs
            h_right = h_all - h_left
            if h_left < least_h:
                continue
            if h_right < least_h:
                break
            g_left = gl * gs
            gain = _split_gain(
                g_left, h_left, g_all - g_left, h_right, loss, signs[j], low, high, l2
            )
            if gain > best and gain > 0:
                best = gain
                best_split[0], best_split[1], best_split[2] = j, b, 0
                best_split[3], best_split[4], best_split[5], best_split[6] = gl, hl, nl, 0
        if not missing[j]:
            continue
        # From the right, so that missing values, which are in no bin here, go left.
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
            gain = _split_gain(
                g_all - g_right, h_left, g_right, h_right, loss, signs[j], low, high, l2
            )
            if gain > best and gain > 0:
                best = gain
                best_split[0], best_split[1], best_split[2] = j, b, 1
                best_split[3], best_split[4], best_split[5], best_split[6] = (
                    G - gr,
                    H - hr,
                    N - nr,
                    0,
                )
    return best


@cache
def compiled_search(has_categories: bool) -> Any:
    """Return `find_best_split`, compiled for arrays of any layout, writable or not.

    One signature covers them all; otherwise each layout of histograms would be compiled separately.
    """
    part = _find_best_categories if has_categories else _skip_categories
    search = compiled_with(find_best_split, exact=True, _search_categories=part)
    read = {
        kind: types.Array(kind, 1, "C", readonly=True)
        for kind in (types.int8, types.uint8, types.int32, types.int64, types.float64)
    }
    # Arrays may be read-only and strided ("A"): arrays from messages, or views of a histogram.
    compile_once(
        search,
        types.float64(
            types.Array(types.int64, 3, "A", readonly=True), types.int64, read[types.int32],
            read[types.uint8], read[types.uint8], read[types.int8], read[types.uint8],
            read[types.int64], read[types.float64], read[types.float64], types.int64[::1],
            types.uint64[::1],
        ),
    )  # fmt: skip
    return search


@_exact
def _skip_categories(
    hist: Any, j: int, count: int, missing: int, sign: int, totals: Any, scales: Any,
    leaf_settings: Any, best: float, best_split: Any, bits: Any,
) -> float:  # fmt: skip
    """Replace `_find_best_categories`, to compile less if no feature is categorical."""
    return best


@_inside
def sort_by_value(item_numbers: Any, values: Any, n: int) -> None:
    """Sort the first numbers and their values by the values; ties keep their order.

    By insertion, for at most 256: numba's argsort takes a second to compile.
    """
    for i in range(1, n):
        value, number = values[i], item_numbers[i]
        k = i
        # A strict comparison keeps ties in order, so the result is the same on each device.
        while k > 0 and values[k - 1] > value:
            values[k], item_numbers[k] = values[k - 1], item_numbers[k - 1]
            k -= 1
        values[k], item_numbers[k] = value, number


@_exact
def _find_best_categories(
    hist: Any, j: int, count: int, missing: int, sign: int, totals: Any, scales: Any,
    leaf_settings: Any, best: float, best_split: Any, bits: Any,
) -> float:  # fmt: skip
    """Find a leaf's best split by categories, sorted by gradient (Fisher 1958); return its gain."""
    gs, hs = scales[0], scales[1]
    low, high, l2 = leaf_settings[1], leaf_settings[2], leaf_settings[3]
    least_h, least_n = leaf_settings[4], np.int64(leaf_settings[5])
    H, N = totals[1], totals[2]
    g_all, h_all = totals[0] * gs, H * hs
    loss = g_all * leaf_settings[0]
    constant = hist.shape[1] == _CONSTANT_CHANNELS
    last = hist.shape[1] - 1
    # Categories of few rows stay on the right. As in scikit-learn and LightGBM, categories with
    # fewer than ten (weighted) rows are not used, and ten smooths the order of the others.
    support, least = N / h_all, 10.0
    numbers, values = np.empty(256, np.int64), np.empty(256)
    n = 0
    for b in range(count + missing):
        # Missing values count as an additional category.
        b = b if b < count else hist.shape[0] - 1
        h = hist[b, 1] * hs
        if h * support >= least:
            numbers[n], values[n] = b, hist[b, 0] * gs / (h + least)
            n += 1
    if n <= 1:
        return best
    sort_by_value(numbers, values, n)
    # Sorted by gradient, the best partition is a prefix (Fisher 1958); up to the middle from both
    # ends, so that the bits describe the smaller set.
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
            gain = _split_gain(g_left, h_left, g_all - g_left, h_right, loss, sign, low, high, l2)
            if gain > best and gain > 0:
                best = gain
                best_split[0], best_split[1], best_split[2] = j, 0, 0
                best_split[3], best_split[4], best_split[5], best_split[6] = gl, hl, nl, 1
                # Bit c of word c / 64 is set if category c goes left.
                bits[:] = 0
                for k in range(i + 1):
                    c = numbers[k if direction == 1 else n - 1 - k]
                    if missing and c == hist.shape[0] - 1:
                        best_split[2] = 1
                    else:
                        bits[c >> 6] |= np.uint64(1) << np.uint64(c & 63)
    return best


#: Rows whose exponentials are computed together, and stay in the L1 cache.
_GRADIENT_TILE_ROWS = 1024
#: Mask of all bits of a float32 except the sign. Among non-negative floats, the larger has the
#: larger bits.
_ABSOLUTE_BITS = np.int32(0x7FFFFFFF)


@_inside
def _largest_bits(x: Any) -> Any:
    """Return the bits of the largest absolute value; NaN counts as larger than any number."""
    bits, largest = x.view(np.int32), np.int32(0)
    # Non-negative floats sort like their bits: an integer maximum, which LLVM vectorises and in
    # which NaN is largest.
    for i in range(len(bits)):
        largest = max(largest, bits[i] & _ABSOLUTE_BITS)
    return largest


@_exact
def write_binomial_gradients(y: Any, raw: Any, weight: Any, g: Any, h: Any, largest: Any) -> None:
    """Write gradients and hessians of the log loss of two classes.

    Parameters
    ----------
    y, raw, weight : ndarray of float64 of shape (n,)
        `weight` is empty without weights.
    g, h : ndarray of float32 of shape (n,)
    largest : ndarray of float32 of shape (2,)
        Initially zeros. Set to the largest absolute values of both.
    """
    small, largest_bits = np.empty(_GRADIENT_TILE_ROWS), largest.view(np.int32)
    for start in range(0, len(y), _GRADIENT_TILE_ROWS):
        n = min(_GRADIENT_TILE_ROWS, len(y) - start)
        part = small[:n]
        for i in range(n):
            # The exponential of minus the absolute value cannot overflow.
            part[i] = -abs(raw[start + i])
        exponentiate_in_place(part)
        for i in range(n):
            k = start + i
            # The probability of the likelier class; `less` is the other's.
            larger = 1 / (1 + part[i])
            less = part[i] * larger
            of_g = (larger if raw[k] >= 0 else less) - y[k]
            of_h = larger * less
            if len(weight):
                of_g *= weight[k]
                of_h *= weight[k]
            g[k], h[k] = of_g, of_h
        largest_bits[0] = max(largest_bits[0], _largest_bits(g[start : start + n]))
        largest_bits[1] = max(largest_bits[1], _largest_bits(h[start : start + n]))


#: Loops by the name of the loss's kernel.
GRADIENT_LOOPS: dict[str, Any] = {"binomial": write_binomial_gradients}


#: Maximum rows for which the packed sums of a bin cannot overflow, for exact and for rounded
#: gradients.
_MAX_PACKED_ROWS, _MAX_ROUNDED_ROWS = 65_535, 8_191
#: Rows that a loop prefetches ahead.
_ROWS_AHEAD = 16
#: Unsigned indices: for signed ones, numba adds a test for negative values.
_ONE = np.uintp(1)


@_exact
def pack_gradients(
    g: Any, h: Any, g_scale: float, h_scale: float, mode: int, salt: Any, key: Any, out: Any
) -> Any:
    """Round gradients and hessians to integers, packed into 64 bits.

    Parameters
    ----------
    g, h : ndarray of float32 of shape (n,)
        `h` is empty if all hessians are 1.
    g_scale, h_scale : float
        Powers of two that scale them below ``2**30`` and ``2**24``; below ``2**12`` if rounded.
    mode : {CONSTANT, EXACT, ROUNDED}
        How they are packed; see :func:`sum_chosen_rows`.
    salt : ndarray of uint32 of shape (n,)
        A hash of each row's number, which decides between rounding up and down.
    key : uint32
        Key of the tree.
    out : ndarray of int64 of shape (n,)
    """
    squares, sums = np.int64(0), np.int64(0)
    # Gradient in the upper 48 bits, a one below: their sums also count rows.
    if mode == CONSTANT:
        for i in range(len(g)):
            out[i] = (np.int64(np.rint(np.float64(g[i]) * g_scale)) << 16) + 1
    elif mode == EXACT:
        # 32 bits each; rows are counted together with the hessians when they are summed.
        for i in range(len(g)):
            of_g = np.int64(np.rint(np.float64(g[i]) * g_scale))
            out[i] = (of_g << 32) + np.int64(np.rint(np.float64(h[i]) * h_scale))
    else:
        for i in range(len(g)):
            # Stochastic rounding: 16 bits of a hash each round gradient and hessian up or down, so
            # that sums of many rows are unbiased. The hash depends on the row and the tree, and is
            # the same on any device.
            x = np.uint32((salt[i] ^ key) * np.uint32(0x9E3779B1))
            x = np.uint32((x ^ (x >> 15)) * np.uint32(0x85EBCA77))
            x = np.uint32(x ^ (x >> 13))
            up = np.float64(x & 0xFFFF) * (1 / 65536)
            of_g = np.int64(np.floor(np.float64(g[i]) * g_scale + up))
            up = np.float64(x >> 16) * (1 / 65536)
            of_h = np.int64(np.floor(np.float64(h[i]) * h_scale + up))
            # The caller decides whether rounding adds too much variance.
            squares += of_g * of_g
            sums += of_h
            # 26 bits of gradient, 25 of hessian, 13 that count rows.
            out[i] = (of_g << 38) + (of_h << 13) + 1
    return squares, sums


@_exact
def count_digits(keys: Any, shift: Any, counts: Any) -> None:
    """Count the digits of keys, which have `shift` lower bits after them.

    Parameters
    ----------
    keys : ndarray of uint64 of shape (n,)
    shift : uint64
    counts : ndarray of int64, as many as a digit has values, a power of two
    """
    mask = np.uint64(len(counts) - 1)
    for i in range(len(keys)):
        counts[(keys[i] >> shift) & mask] += 1


@_inside
def _unpack_sums(
    mode: int, counts: Any, packed_sums: Any, packed_pairs: Any, out: Any, hist_index: Any
) -> None:
    """Add packed sums to a histogram of `out`, and reset them to zero."""
    last = out.shape[2] - 1
    for j in range(out.shape[0]):
        # An indicator uses two of the 256 bins, and the bin of missing values.
        for start, stop in ((0, np.int64(counts[j])), (last, last + 1)):
            for number_of_bin in range(start, stop):
                b = np.uintp(number_of_bin)
                if mode == CONSTANT:
                    # Fields from the lowest up; lower ones are subtracted before a shift, which is
                    # exact for negative sums of gradients too.
                    v = packed_sums[j, b]
                    count = v & 0xFFFF
                    out[j, hist_index, b, 0] += (v - count) >> 16
                    out[j, hist_index, b, 1] += count
                    packed_sums[j, b] = 0
                elif mode == ROUNDED:
                    v = packed_sums[j, b]
                    count = v & 0x1FFF
                    h = (v >> 13) & 0x1FFFFFF
                    out[j, hist_index, b, 0] += (v - (h << 13) - count) >> 38
                    out[j, hist_index, b, 1] += h
                    out[j, hist_index, b, 2] += count
                    packed_sums[j, b] = 0
                else:
                    # The second number has hessians above 16 bits of rows; the first is only the
                    # gradient.
                    v = packed_pairs[j, b, 1]
                    count = v & 0xFFFF
                    out[j, hist_index, b, 0] += packed_pairs[j, b, 0]
                    out[j, hist_index, b, 1] += (v - count) >> 16
                    out[j, hist_index, b, 2] += count
                    packed_pairs[j, b, 0] = 0
                    packed_pairs[j, b, 1] = 0


@_exact
def sum_all_rows(
    mode: int, rows: Any, packed: Any, counts: Any, packed_sums: Any, packed_pairs: Any, out: Any
) -> None:  # fmt: skip
    """Add the histograms of all rows to the only ones of `out`; see :func:`sum_chosen_rows`."""
    n = len(packed)
    # After this many rows the lowest field could overflow into the next one.
    most = _MAX_ROUNDED_ROWS if mode == ROUNDED else _MAX_PACKED_ROWS
    for start in range(0, n, most):
        stop = min(n, start + most)
        if mode == EXACT:
            _add_row_pairs(rows, packed, start, stop, packed_pairs)
        else:
            _add_packed_rows(rows, packed, start, stop, packed_sums)
        _unpack_sums(mode, counts, packed_sums, packed_pairs, out, 0)


@_inside
def _add_packed_rows(rows: Any, packed: Any, start: int, stop: int, packed_sums: Any) -> None:
    """Add rows to packed sums, four at a time; see :func:`_add_chosen_rows`."""
    # Four rows per iteration: their loads overlap, and a feature's bins stay in the cache for all
    # four.
    d, width = np.uintp(len(packed_sums)), np.uintp(rows.shape[1])
    bins, sums, stride = rows.reshape(-1), packed_sums.reshape(-1), np.uintp(packed_sums.shape[1])
    fours = stop - (stop - start) % 4
    for i in range(start, fours, 4):
        va, vb, vc, vd = packed[i], packed[i + 1], packed[i + 2], packed[i + 3]
        a = np.uintp(i) * width
        b = a + width
        c = b + width
        e = c + width
        for j in range(d):
            k = np.uintp(j)
            first = k * stride
            sums[first + np.uintp(bins[a + k])] += va
            sums[first + np.uintp(bins[b + k])] += vb
            sums[first + np.uintp(bins[c + k])] += vc
            sums[first + np.uintp(bins[e + k])] += vd
    for i in range(fours, stop):
        a, va = np.uintp(i) * width, packed[i]
        for j in range(d):
            k = np.uintp(j)
            sums[k * stride + np.uintp(bins[a + k])] += va


@_inside
def _add_row_pairs(rows: Any, packed: Any, start: int, stop: int, packed_pairs: Any) -> None:
    """Add rows to sums of two numbers; see :func:`_add_chosen_pairs`."""
    d, width = np.uintp(len(packed_pairs)), np.uintp(rows.shape[1])
    bins, sums, stride = rows.reshape(-1), packed_pairs.reshape(-1), np.uintp(packed_pairs.shape[1])
    for i in range(start, stop, 2):
        # For an odd number of rows, nothing is added for the row after the last. Two rows per
        # iteration, with two numbers each.
        both = min(i + 1, stop - 1)
        has_second = np.int64(both - i)
        ga, gb = packed[i] >> 32, (packed[both] >> 32) * has_second
        ha = ((packed[i] & 0xFFFFFFFF) << 16) + 1
        hb = (((packed[both] & 0xFFFFFFFF) << 16) + 1) * has_second
        a, b = np.uintp(i) * width, np.uintp(both) * width
        for j in range(d):
            k = np.uintp(j)
            first = k * stride
            of_a = (first + np.uintp(bins[a + k])) << _ONE
            of_b = (first + np.uintp(bins[b + k])) << _ONE
            sums[of_a] += ga
            sums[of_b] += gb
            sums[of_a + _ONE] += ha
            sums[of_b + _ONE] += hb


@_inside
def sum_chosen_rows(
    mode: int, rows: Any, packed: Any, index: Any, counts: Any, packed_sums: Any, packed_pairs: Any,
    out: Any, hist_index: Any,
) -> None:  # fmt: skip
    """Add the histograms of some rows to histogram `hist_index` of `out`.

    Parameters
    ----------
    mode : {CONSTANT, EXACT, ROUNDED}
        How gradients and hessians are packed by :func:`pack_gradients`. CONSTANT: hessians are 1,
        and `out` has no sums of them.
    rows : ndarray of uint8 of shape (n, width)
        The bins of each row.
    packed : ndarray of int64 of shape (n,)
    index : ndarray of int32 of shape (m,)
        Numbers of the rows.
    counts : ndarray of int32 of shape (n_features,)
        Bins of each feature, without the bin of missing values, which is the last.
    packed_sums, packed_pairs : ndarray of int64
        Scratch of shape (n_features, at least 256), and (..., 2) for EXACT: zeros before and after.
    out : ndarray of int64 of shape (n_features, n_asked, n_bins, 2 or 3)
        Sums of gradients, of hessians, and number of rows.
    hist_index : int
    """
    n = len(index)
    # Small leaves write to the histogram directly: unpacking reads all bins.
    if n * len(counts) <= counts.sum():
        _sum_few_rows(mode, rows, packed, index, out, hist_index)
        return
    most = _MAX_ROUNDED_ROWS if mode == ROUNDED else _MAX_PACKED_ROWS
    for start in range(0, n, most):
        stop = min(n, start + most)
        if mode == EXACT:
            _add_chosen_pairs(rows, packed, index, start, stop, packed_pairs)
        else:
            _add_chosen_rows(rows, packed, index, start, stop, packed_sums)
        _unpack_sums(mode, counts, packed_sums, packed_pairs, out, hist_index)


@_inside
def _add_chosen_rows(
    rows: Any, packed: Any, index: Any, start: int, stop: int, packed_sums: Any
) -> None:
    """Add some rows to packed sums, four at a time, feature by feature.

    If several of them share a bin, it is read while its write is still pending, which processors
    predict for neighbouring rows, but not for a later row.
    """
    d, width, last = (
        np.uintp(len(packed_sums)),
        np.uintp(rows.shape[1]),
        len(index) - _ROWS_AHEAD - 4,
    )
    bins, sums, stride = rows.reshape(-1), packed_sums.reshape(-1), np.uintp(packed_sums.shape[1])
    rows_at, packed_at, line = rows.ctypes.data, packed.ctypes.data, rows.shape[1]
    fours = stop - (stop - start) % 4
    for q in range(start, fours, 4):
        if q <= last:
            for r in range(q + _ROWS_AHEAD, q + _ROWS_AHEAD + 4):
                # Rows of a leaf are scattered: the processor cannot predict their addresses.
                next_row = np.int64(index[r])
                prefetch(rows_at + next_row * line)
                prefetch(packed_at + next_row * 8)
        a, b = np.uintp(index[q]), np.uintp(index[q + 1])
        c, e = np.uintp(index[q + 2]), np.uintp(index[q + 3])
        va, vb, vc, vd = packed[a], packed[b], packed[c], packed[e]
        a, b, c, e = a * width, b * width, c * width, e * width
        for j in range(d):
            k = np.uintp(j)
            first = k * stride
            sums[first + np.uintp(bins[a + k])] += va
            sums[first + np.uintp(bins[b + k])] += vb
            sums[first + np.uintp(bins[c + k])] += vc
            sums[first + np.uintp(bins[e + k])] += vd
    for q in range(fours, stop):
        a = np.uintp(index[q])
        va, a = packed[a], a * width
        for j in range(d):
            k = np.uintp(j)
            sums[k * stride + np.uintp(bins[a + k])] += va


@_inside
def _add_chosen_pairs(
    rows: Any, packed: Any, index: Any, start: int, stop: int, packed_pairs: Any
) -> None:
    """Add some rows to sums of two numbers, two rows at a time.

    Otherwise both numbers of a bin would be added as one vector, and reading it again would be
    slow.
    """
    d, width, last = (
        np.uintp(len(packed_pairs)),
        np.uintp(rows.shape[1]),
        len(index) - _ROWS_AHEAD - 2,
    )
    bins, sums, stride = rows.reshape(-1), packed_pairs.reshape(-1), np.uintp(packed_pairs.shape[1])
    rows_at, packed_at, line = rows.ctypes.data, packed.ctypes.data, rows.shape[1]
    for q in range(start, stop, 2):
        if q <= last:
            for r in range(q + _ROWS_AHEAD, q + _ROWS_AHEAD + 2):
                next_row = np.int64(index[r])
                prefetch(rows_at + next_row * line)
                prefetch(packed_at + next_row * 8)
        # For an odd number of rows, nothing is added for the row after the last.
        both = min(q + 1, stop - 1)
        has_second = np.int64(both - q)
        a, b = np.uintp(index[q]), np.uintp(index[both])
        ga, gb = packed[a] >> 32, (packed[b] >> 32) * has_second
        ha = ((packed[a] & 0xFFFFFFFF) << 16) + 1
        hb = (((packed[b] & 0xFFFFFFFF) << 16) + 1) * has_second
        a, b = a * width, b * width
        for j in range(d):
            k = np.uintp(j)
            first = k * stride
            of_a = (first + np.uintp(bins[a + k])) << _ONE
            of_b = (first + np.uintp(bins[b + k])) << _ONE
            sums[of_a] += ga
            sums[of_b] += gb
            sums[of_a + _ONE] += ha
            sums[of_b + _ONE] += hb


@_inside
def _sum_few_rows(
    mode: int, rows: Any, packed: Any, index: Any, out: Any, hist_index: Any
) -> None:  # fmt: skip
    """Add the histograms of few rows, for which reading all bins would take longer."""
    last = out.shape[3] - 1
    # Feature by feature, whose bins then stay in the cache: the same bins of all features are at
    # multiples of 2 KiB.
    for j in range(out.shape[0]):
        for q in range(len(index)):
            i = np.uintp(index[q])
            v, b = packed[i], np.uintp(rows[i, j])
            if mode == CONSTANT:
                g, h = v >> 16, np.int64(0)
            elif mode == EXACT:
                g, h = v >> 32, v & 0xFFFFFFFF
            else:
                g, h = v >> 38, (v >> 13) & 0x1FFFFFF
            out[j, hist_index, b, 0] += g
            out[j, hist_index, b, last] += 1
            if mode != CONSTANT:
                out[j, hist_index, b, 1] += h


@_inside
def partition_rows(column: Any, table: Any, index: Any, spare_index: Any) -> Any:
    """Move rows that go left before the others, in place and in order; return their number.

    Parameters
    ----------
    column : ndarray of uint8 of shape (n,)
        Bins of a feature.
    table : ndarray of uint8 of shape (256,)
        For each bin, whether it goes left.
    index : ndarray of int32 of shape (m,)
        Rows of a node.
    spare_index : ndarray of int32 of shape (at least m,)
    """
    left_end, right_end = np.uintp(0), np.uintp(0)
    for q in range(len(index)):
        i = index[q]
        goes = np.uintp(table[column[np.uintp(i)]])
        # Without a branch: each row is written to both sides, and one of the counts is incremented.
        index[left_end] = i
        spare_index[right_end] = i
        left_end += goes
        right_end += _ONE - goes
    n_left = np.int64(left_end)
    for q in range(np.int64(right_end)):
        index[n_left + q] = spare_index[q]
    return n_left


@_exact
def partition_and_sum(
    mode: int, columns: Any, rows: Any, packed: Any, index: Any, spare_index: Any, tasks: Any,
    tables: Any, counts: Any, packed_sums: Any, packed_pairs: Any, out: Any,
) -> None:  # fmt: skip
    """Partition the rows of some leaves, and compute the requested histograms.

    Parameters
    ----------
    mode, rows, packed, counts, packed_sums, packed_pairs
        As in :func:`sum_chosen_rows`.
    columns : ndarray of uint8 of shape (n_features, n)
    index : ndarray of int32 of shape (n,)
        Rows of all leaves, contiguous for each leaf.
    spare_index : ndarray of int32 of shape (n,)
    tasks : ndarray of int64 of shape (n_leaves, 4)
        Feature, first and last position in `index`, the requested side (-1: none). The second
        becomes the position at which the right child begins.
    tables : ndarray of uint8 of shape (n_leaves, 256)
        For each bin, whether it goes left.
    out : ndarray of int64 of shape (n_features, n_asked, n_bins, 2 or 3)
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
        # Only the smaller child's rows are read; the sibling's histogram is the parent's minus this
        # one.
        requested_rows = leaf_rows[n_left:] if side else leaf_rows[:n_left]
        sum_chosen_rows(
            mode, rows, packed, requested_rows, counts, packed_sums, packed_pairs, out, number
        )
        number += 1


@_exact
def add_to_leaf(raw: Any, index: Any, value: float) -> None:
    """Add a leaf's value to the raw predictions of its rows."""
    for q in range(len(index)):
        raw[np.uintp(index[q])] += value
