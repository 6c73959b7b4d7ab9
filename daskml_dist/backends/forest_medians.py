"""Compiled splits by absolute errors: medians of what is left and right of each cut.

A median is no sum, so a node's rows must be together. Rows come to one side bin by bin, and two
binary indexed trees over the order of the targets know the median, and the sums on both sides of
it, at any time. Sums are of whole numbers, so they depend on no order of rows. Importing this
module loads numba, so it is imported at first use.

References
----------
P. M. Fenwick, "A new data structure for cumulative frequency tables", Software: Practice and
Experience 24, 1994.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_inside
from daskml_dist.backends.forest_cuts import (
    ANYWHERE,
    BITS,
    FEATURES,
    LEAST_ROWS,
    LEAST_WEIGHT,
    MISSING,
    D,
    drawn_cut,
    occupied,
)
from daskml_dist.backends.forest_kernels import draw_feature, hash_of, swap_back

__all__ = ["median_split", "note_medians"]

_inside = compiled_inside(error_model="numpy")


@_inside
def note_medians(facts: Any, scale: Any, lines: Any, sums: Any) -> None:
    """Write the medians of a node's targets, and the sum of absolute errors, as bits to its sums.

    Parameters
    ----------
    facts : ndarray of int64
    scale : float
        Of the targets.
    lines : ndarray of int64 of shape (n, n_line)
    sums : ndarray of int64 of shape (n_outputs + 3,)
    """
    n, n_outputs = len(lines), len(sums) - 3
    found, real = 0.0, np.zeros(1)
    if n == 0:
        return
    counts = np.zeros((2, n + 1), np.int64)
    orders, ranks, sorted_values = _all_sorted(lines, n_outputs)
    for k in range(n_outputs):
        order, rank, values = orders[k], ranks[k], sorted_values[k]
        counts[:] = 0
        whole, total = np.int64(0), np.int64(0)
        for q in range(n):
            weight = lines[q, 1] >> facts[BITS]
            _add(counts, rank[q], weight, lines[q, 2 + k])
            whole += weight
            total += lines[q, 2 + k]
        median, error = _error(facts, scale, lines, counts, order, values, k, whole, total)
        found += error
        real[0] = median
        sums[1 + k] = real.view(np.int64)[0]
    real[0] = found
    sums[n_outputs + 2] = real.view(np.int64)[0]


@_inside
def median_split(
    facts: Any, scale: Any, rows: Any, lines: Any, total: Any, path: Any, low: Any, high: Any,
    features: Any, swaps: Any, found: Any, threshold: Any, signs: Any, bounds: Any, medians: Any,
) -> tuple[int, float]:  # fmt: skip
    """The feature of the best split of a node (-1: there is none), and minus the children's errors.

    See `forest_grow.grow` for the parameters; `medians`, of shape (2,), become those of the
    children.
    """
    n, missing, d, m = len(lines), facts[MISSING], facts[D], facts[FEATURES]
    targets = _all_sorted(lines, (lines.shape[1] - 3) // 2)
    seen, places = np.zeros((256, 1), np.int64), np.zeros(256, np.int64)
    ends, sequence = np.zeros(258, np.int64), np.zeros(n, np.int64)
    work = np.zeros((2, n + 1), np.int64), np.zeros((2, 2, 257)), np.zeros(257, np.int64)
    best, best_feature, spreads, tried = -np.inf, -1, False, 0
    while tried < d and (tried < m or not spreads):
        j = draw_feature(path, tried, features, swaps)
        tried += 1
        seen[:] = 0
        for q in range(n):
            seen[rows[lines[q, 0], j], 0] += 1
        n_places = occupied(seen, missing, places)
        n_missing = seen[missing, 0]
        if n_places + (n_missing > 0) <= 1:
            continue
        spreads = True
        _in_order(rows, lines, j, places, n_places, missing, seen, ends, sequence)
        sides, first, last, at = (0, 2 if n_missing else 1), 0, n_places, np.nan
        if facts[ANYWHERE]:
            draw = hash_of(hash_of(path ^ np.uint64(0xD1B54A32D192ED03)) + np.uint64(j))
            first, at = drawn_cut(low[j], high[j], places, n_places, draw)
            left = n_missing > 0 and n_places > 1 and (draw & np.uint64(1)) != 0
            sides, last = (1, 2) if left else (0, 1), first + 1
        for side in range(*sides):
            _both_sides(facts, scale, lines, targets, sequence, ends, n_places, side, work)
            # Missing values alone may be on the right.
            end = min(last, n_places if n_missing and side == 0 else n_places - 1)
            value, c = _best_of(facts, work, total, first, end, signs[j], bounds)
            if value > best:
                best, best_feature = value, j
                found[0], found[2] = places[c], side
                found[1] = places[c + 1] if c + 1 < n_places else -1
                threshold[0] = at
                medians[0], medians[1] = work[1][1, 0, c + 1], work[1][1, 1, c + 1]
    for q in range(tried - 1, -1, -1):
        swap_back(features, q, swaps)
    return best_feature, best


@_inside
def _both_sides(
    facts: Any, scale: Any, lines: Any, targets: Any, sequence: Any, ends: Any, n_places: Any,
    side: Any, work: Any,
) -> None:  # fmt: skip
    """Write errors and medians of both sides of each cut of a feature, and what lies left, packed.

    Left of a cut come the bins up to it, and missing values on their side.
    """
    orders, ranks, values = targets
    counts, (errors, medians), packed = work
    errors[:] = 0.0
    packed[0] = 0
    if side:
        for q in range(ends[n_places], ends[n_places + 1]):
            packed[0] += lines[sequence[q], 1]
    for c in range(n_places):
        packed[c + 1] = packed[c]
        for q in range(ends[c], ends[c + 1]):
            packed[c + 1] += lines[sequence[q], 1]
    for k in range(len(orders)):
        for right in range(2):
            _one_side(
                facts, scale, lines, orders[k], ranks[k], values[k], k, sequence, ends, n_places,
                side != right, right == 0, counts, errors[right], medians[right],
            )  # fmt: skip


@_inside
def _best_of(
    facts: Any, work: Any, total: Any, first: Any, end: Any, sign: Any, bounds: Any
) -> tuple[float, int]:
    """Minus the errors of the best of some cuts whose sides may be, and which it is."""
    _, (errors, medians), packed = work
    best, best_cut = -np.inf, -1
    for c in range(first, end):
        value = -(errors[0, c + 1] + errors[1, c + 1])
        if value <= best or not _large_enough(facts, packed[c + 1], total - packed[c + 1]):
            continue
        if bounds[2] != 0 and sign != 0:
            a, b = medians[0, c + 1], medians[1, c + 1]
            if min(a, b) < bounds[0] or max(a, b) > bounds[1] or (a - b) * sign > 0:
                continue
        best, best_cut = value, c
    return best, best_cut


@_inside
def _all_sorted(lines: Any, n_outputs: Any) -> Any:
    """Orders, places and sorted targets of all outputs, as `_sort` makes them of one."""
    n = len(lines)
    orders, ranks = np.zeros((n_outputs, n), np.int64), np.zeros((n_outputs, n), np.int64)
    values = np.zeros((n_outputs, n))
    for k in range(n_outputs):
        _sort(lines, k, n_outputs, orders[k], ranks[k], values[k])
    return orders, ranks, values


@_inside
def _sort(lines: Any, k: Any, n_outputs: Any, order: Any, rank: Any, values: Any) -> None:
    """Write the order of the lines by a target, the place of each in it, and sorted targets."""
    targets = lines[:, 3 + n_outputs + k].copy().view(np.float64)
    found = np.argsort(targets, kind="mergesort")
    for q in range(len(found)):
        order[q] = found[q]
        rank[found[q]] = q
        values[q] = targets[found[q]]


@_inside
def _in_order(
    rows: Any, lines: Any, feature: Any, places: Any, n_places: Any, missing: Any, seen: Any,
    ends: Any, sequence: Any,
) -> None:  # fmt: skip
    """Write the lines in the order of their bins, missing values last, and where bins end."""
    ends[0] = 0
    for c in range(n_places):
        ends[c + 1] = ends[c] + seen[places[c], 0]
        seen[places[c], 0] = ends[c]
    ends[n_places + 1] = ends[n_places] + seen[missing, 0]
    seen[missing, 0] = ends[n_places]
    for q in range(len(lines)):
        b = rows[lines[q, 0], feature]
        sequence[seen[b, 0]] = q
        seen[b, 0] += 1


@_inside
def _large_enough(facts: Any, left: Any, right: Any) -> Any:
    """Test of a cut: both children have rows and weight enough."""
    bits = facts[BITS]
    mask = (np.int64(1) << bits) - 1
    if min(left & mask, right & mask) < facts[LEAST_ROWS]:
        return False
    lighter = min(left >> bits, right >> bits)
    return lighter > 0 and lighter >= facts[LEAST_WEIGHT]


@_inside
def _one_side(
    facts: Any, scale: Any, lines: Any, order: Any, rank: Any, values: Any, k: Any, sequence: Any,
    ends: Any, n_places: Any, with_missing: Any, from_left: Any, counts: Any, errors: Any,
    medians: Any,
) -> None:  # fmt: skip
    """Add the absolute errors of what lies left (or right) of the cut behind so many bins.

    Its medians are written.
    """
    counts[:] = 0
    whole, total = np.int64(0), np.int64(0)
    for step in range(n_places + 1):
        # The missing values come first, then the bins from this side's end.
        c = n_places if step == 0 else (step - 1 if from_left else n_places - step)
        if step or with_missing:
            for q in range(ends[c], ends[c + 1]):
                line = sequence[q]
                weight = lines[line, 1] >> facts[BITS]
                _add(counts, rank[line], weight, lines[line, 2 + k])
                whole += weight
                total += lines[line, 2 + k]
        cut = step if from_left else n_places - step
        if whole > 0:
            median, error = _error(facts, scale, lines, counts, order, values, k, whole, total)
            medians[cut] = median
            errors[cut] += error


@_inside
def _add(counts: Any, rank: Any, weight: Any, value: Any) -> None:
    """Add a row's weight and weighted target at its place in the order of targets."""
    at, n = rank + 1, counts.shape[1]
    while at < n:
        counts[0, at] += weight
        counts[1, at] += value
        at += at & -at


@_inside
def _error(
    facts: Any,
    scale: Any,
    lines: Any,
    counts: Any,
    order: Any,
    values: Any,
    k: Any,
    whole: Any,
    total: Any,
) -> tuple[float, float]:
    """Median of the rows that were added, and the sum of their absolute errors, as scaled."""
    at, below, value = _place(counts, (whole + 1) // 2 - 1)
    line = order[at]
    below += lines[line, 1] >> facts[BITS]
    value += lines[line, 2 + k]
    median = values[at]
    if 2 * below == whole:
        after = _place(counts, below)[0]
        median = median / 2 + values[after] / 2
    scaled = median * scale
    below_less_above = np.float64(2 * below - whole)
    return median, max(scaled * below_less_above + np.float64(total - 2 * value), 0.0)


@_inside
def _place(counts: Any, most: Any) -> tuple[Any, Any, Any]:
    """Place up to which rows weigh no more than `most`; what they weigh, and their targets' sum."""
    n = counts.shape[1] - 1
    step = 1
    while 2 * step <= n:
        step *= 2
    at = 0
    below, value = np.int64(0), np.int64(0)
    while step:
        after = at + step
        if after <= n and below + counts[0, after] <= most:
            at = after
            below += counts[0, after]
            value += counts[1, after]
        step //= 2
    return at, below, value
