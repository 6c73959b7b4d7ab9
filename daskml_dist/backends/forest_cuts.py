"""Compiled criteria and cuts of forests: the best split of a node by a feature.

By sums in a histogram (Gini, entropy, squared error, Poisson), or by medians, maintained in a
Fenwick tree over the sorted targets (absolute error). The CUDA kernels repeat the criteria's
operations.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_inside
from daskml_dist.backends.elementary_functions import LOG_2, logarithm
from daskml_dist.backends.forest_kernels import (
    add_any_line,
    draw_next_feature,
    hash_number,
    undo_feature_draw,
)

# Inlined by force: a call counts references of each of its arrays (atomic operations), which takes
# longer than the work at a node of few rows.
_inside = compiled_inside(error_model="numpy", forceinline=True)

#: Numbers of the criteria; from `SQUARED` on they are for regression.
GINI, ENTROPY, SQUARED, POISSON, ABSOLUTE = 0, 1, 2, 3, 4


@_inside
def node_worth(kind: Any, sums: Any, total: Any, bits: Any) -> float:
    """Return a node's weight times (a constant minus its impurity): larger is purer."""
    # Maximising the sum of these over the children minimises their weighted impurity: the constant
    # is the same for all cuts of a node.
    weight = np.float64(total >> bits)
    worth = 0.0
    if kind == SQUARED:
        for k in range(1, len(sums)):
            s = np.float64(sums[k])
            # Squared error: the sum of squares minus this is the error about the mean.
            worth += s * s / weight
        return worth
    if kind == POISSON:
        for k in range(1, len(sums)):
            s = np.float64(sums[k])
            # Half the Poisson deviance, without terms that do not depend on the cut.
            worth += s * logarithm(s / weight) if s > 0 else -np.inf
        return worth
    if kind == GINI:
        for c in range(len(sums)):
            w = np.float64(sums[c] >> bits)
            # Gini: weight * (1 - impurity).
            worth += w * w
        return worth / weight
    for c in range(len(sums)):
        w = np.float64(sums[c] >> bits)
        if w > 0:
            # Minus weight * entropy, in bits.
            worth += w * (logarithm(w / weight) / LOG_2)
    return worth


@_inside
def node_answer(kind: Any, sums: Any, total: Any, bits: Any) -> float:
    """Return the value of a node that monotonic constraints compare.

    The mean for regression, or the share of the second class.
    """
    # For classes, the share of the second one: constraints require two classes.
    s = np.float64(sums[1]) if kind >= SQUARED else np.float64(sums[1] >> bits)
    return s / np.float64(total >> bits)


@_inside
def write_node_medians(settings: Any, scale: Any, lines: Any, sums: Any) -> None:
    """Write the bits of a node's medians, and of its sum of absolute errors, into its sums.

    Parameters
    ----------
    settings : ndarray of int64
    scale : float
        Scale of the targets.
    lines : ndarray of int64 of shape (n, n_line)
    sums : ndarray of int64 of shape (n_outputs + 3,)
    """
    n, n_outputs = len(lines), len(sums) - 3
    total_error, float_bits = 0.0, np.zeros(1)
    if n == 0:
        return
    counts = np.zeros((2, n + 1), np.int64)
    orders, ranks, sorted_values = _sort_all_targets(lines, n_outputs)
    for k in range(n_outputs):
        order, rank, values = orders[k], ranks[k], sorted_values[k]
        # Rows are added to a Fenwick tree in the order of their targets, with weights and weighted
        # targets: prefix sums then give the median and the error about it.
        counts[:] = 0
        total_weight, total = np.int64(0), np.int64(0)
        for q in range(n):
            weight = lines[q, 1] >> settings[BITS]
            _add_to_fenwick_tree(counts, rank[q], weight, lines[q, 2 + k])
            total_weight += weight
            total += lines[q, 2 + k]
        median, error = _median_and_error(
            settings, scale, lines, counts, order, values, k, total_weight, total
        )
        total_error += error
        # Sums are int64; a median is stored among them by its bits.
        float_bits[0] = median
        sums[1 + k] = float_bits.view(np.int64)[0]
    float_bits[0] = total_error
    sums[n_outputs + 2] = float_bits.view(np.int64)[0]


@_inside
def find_median_split(
    settings: Any, scale: Any, rows: Any, lines: Any, total: Any, path: Any, low: Any, high: Any,
    features: Any, swaps: Any, best_cut: Any, threshold: Any, signs: Any, bounds: Any, medians: Any,
) -> tuple[int, float]:  # fmt: skip
    """Find the feature of a node's best split (-1: none); return it and minus its errors.

    See `forest_grow.grow_tree` for the parameters; `medians`, of shape (2,), is set to those of the
    children.
    """
    n, missing, d, m = len(lines), settings[MISSING], settings[N_FEATURES], settings[FEATURES]
    targets = _sort_all_targets(lines, (lines.shape[1] - 3) // 2)
    bin_counts, places = np.zeros((256, 1), np.int64), np.zeros(256, np.int64)
    ends, sequence = np.zeros(258, np.int64), np.zeros(n, np.int64)
    work = np.zeros((2, n + 1), np.int64), np.zeros((2, 2, 257)), np.zeros(257, np.int64)
    best, best_feature, spreads, tried = -np.inf, -1, False, 0
    # `m` features are tried; more if none of them varies in the node, as in scikit-learn.
    while tried < d and (tried < m or not spreads):
        j = draw_next_feature(path, tried, features, swaps)
        tried += 1
        # Number of rows in each bin.
        bin_counts[:] = 0
        for q in range(n):
            bin_counts[rows[lines[q, 0], j], 0] += 1
        n_places = find_occupied_bins(bin_counts, missing, places)
        n_missing = bin_counts[missing, 0]
        if n_places + (n_missing > 0) <= 1:
            continue
        spreads = True
        _sort_lines_by_bin(rows, lines, j, places, n_places, missing, bin_counts, ends, sequence)
        sides, first, last, cut_value = (0, 2 if n_missing else 1), 0, n_places, np.nan
        # Extremely randomised trees evaluate only the drawn cut, with missing values on a drawn
        # side.
        if settings[ANYWHERE]:
            draw = hash_feature_draw(path, j)
            first, cut_value = draw_cut(low[j], high[j], places, n_places, draw)
            missing_left = n_missing > 0 and n_places > 1 and (draw & np.uint64(1)) != 0
            sides, last = (1, 2) if missing_left else (0, 1), first + 1
        for side in range(*sides):
            _measure_both_sides(
                settings, scale, lines, targets, sequence, ends, n_places, side, work
            )
            # The right side may have only missing values.
            end = min(last, n_places if n_missing and side == 0 else n_places - 1)
            value, c = _choose_best_cut(settings, work, total, first, end, signs[j], bounds)
            if value > best:
                best, best_feature = value, j
                best_cut[0], best_cut[2] = places[c], side
                best_cut[1] = places[c + 1] if c + 1 < n_places else -1
                threshold[0] = cut_value
                medians[0], medians[1] = work[1][1, 0, c + 1], work[1][1, 1, c + 1]
    # Restore the order of the list of features, so that the next node's draws do not depend on this
    # node.
    for q in range(tried - 1, -1, -1):
        undo_feature_draw(features, q, swaps)
    return best_feature, best


@_inside
def _measure_both_sides(
    settings: Any, scale: Any, lines: Any, targets: Any, sequence: Any, bin_ends: Any,
    n_places: Any, missing_left: Any, work: Any,
) -> None:  # fmt: skip
    """Write errors and medians of both sides of each cut, and the packed sums of the left side.

    The left side of a cut has the bins up to it, and missing values if they are on that side.
    """
    orders, ranks, values = targets
    counts, (errors, medians), packed = work
    errors[:] = 0.0
    # Weight and rows left of each cut, packed as in the lines.
    packed[0] = 0
    if missing_left:
        for q in range(bin_ends[n_places], bin_ends[n_places + 1]):
            packed[0] += lines[sequence[q], 1]
    for c in range(n_places):
        packed[c + 1] = packed[c]
        for q in range(bin_ends[c], bin_ends[c + 1]):
            packed[c + 1] += lines[sequence[q], 1]
    for k in range(len(orders)):
        # Medians cannot be subtracted as sums can: each side is swept from its own end.
        for right in range(2):
            _measure_one_side(
                settings, scale, lines, orders[k], ranks[k], values[k], k, sequence, bin_ends,
                n_places, missing_left != right, right == 0, counts, errors[right], medians[right],
            )  # fmt: skip


@_inside
def _choose_best_cut(
    settings: Any, work: Any, total: Any, first: Any, end: Any, sign: Any, bounds: Any
) -> tuple[float, int]:
    """Return minus the errors of the best allowed cut of a feature, and the cut's number."""
    _, (errors, medians), packed = work
    best, chosen = -np.inf, -1
    for c in range(first, end):
        value = -(errors[0, c + 1] + errors[1, c + 1])
        if value <= best or not _children_large_enough(
            settings, packed[c + 1], total - packed[c + 1]
        ):
            continue
        # Monotonic constraints: both medians within the node's bounds, and in the feature's order.
        if bounds[2] != 0 and sign != 0:
            a, b = medians[0, c + 1], medians[1, c + 1]
            if min(a, b) < bounds[0] or max(a, b) > bounds[1] or (a - b) * sign > 0:
                continue
        best, chosen = value, c
    return best, chosen


@_inside
def _sort_all_targets(lines: Any, n_outputs: Any) -> Any:
    """Return orders, ranks and sorted targets of all outputs; see `_sort_targets`."""
    n = len(lines)
    orders, ranks = np.zeros((n_outputs, n), np.int64), np.zeros((n_outputs, n), np.int64)
    values = np.zeros((n_outputs, n))
    for k in range(n_outputs):
        _sort_targets(lines, k, n_outputs, orders[k], ranks[k], values[k])
    return orders, ranks, values


@_inside
def _sort_targets(lines: Any, k: Any, n_outputs: Any, order: Any, rank: Any, values: Any) -> None:
    """Write the order of the lines by a target, each line's rank, and the sorted targets."""
    targets = lines[:, 3 + n_outputs + k].copy().view(np.float64)
    n, width = len(targets), 1
    for q in range(n):
        order[q] = q
    # Merge sort from the bottom up, which keeps the order of equal targets. NumPy's own sort takes
    # numba several times as long to compile.
    source, target = order, rank
    while width < n:
        for start in range(0, n, 2 * width):
            middle, stop = min(start + width, n), min(start + 2 * width, n)
            first, second = start, middle
            for q in range(start, stop):
                if second >= stop or (
                    first < middle and targets[source[first]] <= targets[source[second]]
                ):
                    target[q] = source[first]
                    first += 1
                else:
                    target[q] = source[second]
                    second += 1
        source, target = target, source
        width *= 2
    for q in range(n):
        order[q] = source[q]
    for q in range(n):
        rank[order[q]] = q
        values[q] = targets[order[q]]


@_inside
def _sort_lines_by_bin(
    rows: Any, lines: Any, feature: Any, places: Any, n_places: Any, missing: Any, bin_counts: Any,
    bin_ends: Any, sequence: Any,
) -> None:  # fmt: skip
    """Write the lines sorted by bin, missing values last, and the end of each bin."""
    # Counting sort; `bin_counts` becomes the next free position of each bin.
    bin_ends[0] = 0
    for c in range(n_places):
        bin_ends[c + 1] = bin_ends[c] + bin_counts[places[c], 0]
        bin_counts[places[c], 0] = bin_ends[c]
    bin_ends[n_places + 1] = bin_ends[n_places] + bin_counts[missing, 0]
    bin_counts[missing, 0] = bin_ends[n_places]
    for q in range(len(lines)):
        b = rows[lines[q, 0], feature]
        sequence[bin_counts[b, 0]] = q
        bin_counts[b, 0] += 1


@_inside
def _children_large_enough(settings: Any, left_total: Any, right_total: Any) -> Any:
    """Return whether both children of a cut have enough rows and weight."""
    bits = settings[BITS]
    mask = (np.int64(1) << bits) - 1
    if min(left_total & mask, right_total & mask) < settings[LEAST_ROWS]:
        return False
    lighter = min(left_total >> bits, right_total >> bits)
    return lighter > 0 and lighter >= settings[LEAST_WEIGHT]


@_inside
def _measure_one_side(
    settings: Any, scale: Any, lines: Any, order: Any, rank: Any, values: Any, k: Any,
    sequence: Any, bin_ends: Any, n_places: Any, with_missing: Any, from_left: Any, counts: Any,
    errors: Any, medians: Any,
) -> None:  # fmt: skip
    """Write medians, and add absolute errors, for the rows on one side of each cut.

    Medians are overwritten, errors are added to.
    """
    counts[:] = 0
    total_weight, total = np.int64(0), np.int64(0)
    for step in range(n_places + 1):
        # Missing values come first, then the bins from this side's end.
        c = n_places if step == 0 else (step - 1 if from_left else n_places - step)
        if step or with_missing:
            for q in range(bin_ends[c], bin_ends[c + 1]):
                line = sequence[q]
                weight = lines[line, 1] >> settings[BITS]
                _add_to_fenwick_tree(counts, rank[line], weight, lines[line, 2 + k])
                total_weight += weight
                total += lines[line, 2 + k]
        cut = step if from_left else n_places - step
        if total_weight > 0:
            median, error = _median_and_error(
                settings, scale, lines, counts, order, values, k, total_weight, total
            )
            medians[cut] = median
            errors[cut] += error


@_inside
def _add_to_fenwick_tree(counts: Any, rank: Any, weight: Any, value: Any) -> None:
    """Add a row's weight and weighted target at its rank in the order of targets."""
    # Fenwick (1994): entry i holds the sum of the last `i & -i` ranks up to i.
    entry, n = rank + 1, counts.shape[1]
    while entry < n:
        counts[0, entry] += weight
        counts[1, entry] += value
        entry += entry & -entry


@_inside
def _median_and_error(
    settings: Any,
    scale: Any,
    lines: Any,
    counts: Any,
    order: Any,
    values: Any,
    k: Any,
    total_weight: Any,
    total: Any,
) -> tuple[float, float]:
    """Return the median of the rows added so far, and the sum of their absolute errors, scaled."""
    # The lower median is the first rank whose prefix sum reaches half of the weight.
    median_rank, below, value = _search_fenwick_tree(counts, (total_weight + 1) // 2 - 1)
    line = order[median_rank]
    below += lines[line, 1] >> settings[BITS]
    value += lines[line, 2 + k]
    median = values[median_rank]
    # Exactly half of the weight is below: the median is the mean of the two neighbours.
    if 2 * below == total_weight:
        after = _search_fenwick_tree(counts, below)[0]
        median = median / 2 + values[after] / 2
    scaled = median * scale
    # sum |t - m| = m (W_below - W_above) + T_above - T_below, from prefix sums only.
    below_less_above = np.float64(2 * below - total_weight)
    return median, max(scaled * below_less_above + np.float64(total - 2 * value), 0.0)


@_inside
def _search_fenwick_tree(counts: Any, max_weight: Any) -> tuple[Any, Any, Any]:
    """Return the last rank of a cumulative weight of at most `max_weight`, and its sums."""
    n = counts.shape[1] - 1
    step = 1
    # Binary descent from the largest power of two.
    while 2 * step <= n:
        step *= 2
    rank = 0
    below, value = np.int64(0), np.int64(0)
    while step:
        after = rank + step
        if after <= n and below + counts[0, after] <= max_weight:
            rank = after
            below += counts[0, after]
            value += counts[1, after]
        step //= 2
    return rank, below, value


#: Positions of a fit's settings in an array of int64: criterion, bits of counts, minimum rows and
#: weight of a child, whether cuts are drawn, bin of missing values, features; minimum features of a
#: node, depth, minimum rows of a node to split; how many of the first sums add up to the total, and
#: outputs.
KIND, BITS, LEAST_ROWS, LEAST_WEIGHT, ANYWHERE, MISSING, N_FEATURES = 0, 1, 2, 3, 4, 5, 6
FEATURES, MAX_DEPTH, MIN_SPLIT, FIRST, OUTPUTS = 7, 8, 9, 10, 11


@_inside
def draw_to_share(draw: Any) -> float:
    """Return a draw of 64 bits as a number in [0, 1)."""
    return np.float64(draw >> np.uint64(11)) * 2.0**-53


@_inside
def find_occupied_bins(hist: Any, missing: Any, places: Any) -> Any:
    """Write the non-empty bins, in order, without that of missing values; return their number."""
    n = 0
    # A bin is non-empty if any of its sums is not zero.
    for b in range(missing):
        for v in range(hist.shape[1]):
            if hist[b, v] != 0:
                places[n] = b
                n += 1
                break
    return n


@_inside
def has_missing_rows(hist: Any, missing: Any) -> Any:
    """Return whether some rows have a missing value of a feature."""
    for v in range(hist.shape[1]):
        if hist[missing, v] != 0:
            return True
    return False


@_inside
def _write_cut(
    last: Any,
    following: Any,
    missing_left: Any,
    left_sums: Any,
    left_total: Any,
    best_cut: Any,
    best_left_sums: Any,
) -> None:
    """Write the cut after a non-empty bin, with the next one, and the left child's sums."""
    best_cut[0], best_cut[1], best_cut[2] = last, following, missing_left
    for v in range(len(left_sums)):
        best_left_sums[v] = left_sums[v]
    best_left_sums[len(left_sums)] = left_total


@_inside
def _children_allowed(
    settings: Any,
    left_sums: Any,
    left_total: Any,
    right_sums: Any,
    right_total: Any,
    sign: Any,
    bounds: Any,
) -> Any:
    """Return whether both children of a cut are large enough, and their values within bounds."""
    bits = settings[BITS]
    # A packed number has the row count in its lowest bits and the weight above them.
    mask = (np.int64(1) << bits) - 1
    if (left_total & mask) < settings[LEAST_ROWS] or (right_total & mask) < settings[LEAST_ROWS]:
        return False
    if (left_total >> bits) < settings[LEAST_WEIGHT] or (right_total >> bits) < settings[
        LEAST_WEIGHT
    ]:
        return False
    if (left_total >> bits) == 0 or (right_total >> bits) == 0:
        return False
    if bounds[2] == 0 or sign == 0:
        return True
    a = node_answer(settings[KIND], left_sums, left_total, bits)
    b = node_answer(settings[KIND], right_sums, right_total, bits)
    if min(a, b) < bounds[0] or max(a, b) > bounds[1]:
        return False
    return (a - b) * sign <= 0


@_inside
def find_best_cut(
    settings: Any, hist: Any, places: Any, n: Any, sums: Any, total: Any, sign: Any, bounds: Any,
    best: float, best_cut: Any, best_left_sums: Any, work: Any,
) -> float:  # fmt: skip
    """Find a feature's best cut; return its children's worth if larger than `best`, else `best`.

    Ties go to the first cut: bins in ascending order, missing values on the right first.

    Parameters
    ----------
    settings : ndarray of int64
    hist : ndarray of int64 of shape (256, n_sums)
    places : ndarray of int64
        The non-empty bins of values.
    n : int
        Number of these.
    sums : ndarray of int64 of shape (n_sums,)
        Sums of the node.
    total : int
        Weight and number of rows of the node, packed.
    sign : int
        Sign of a monotonic constraint.
    bounds : ndarray of float64 of shape (3,)
        Bounds of the children's values; whether there are constraints at all.
    best : float
        Worth of the best cut of other features.
    best_cut : ndarray of int64 of shape (3,)
    best_left_sums : ndarray of int64 of shape (n_sums + 1,)
        Sums of the left child, and its packed total.
    work : ndarray of int64 of shape (2, n_sums)
    """
    missing, n_sums, kind, bits = settings[MISSING], len(sums), settings[KIND], settings[BITS]
    left_sums, right_sums = work[0], work[1]
    has_missing = has_missing_rows(hist, missing)
    # First with missing values on the right, then on the left.
    for side in range(2 if has_missing else 1):
        l_total = np.int64(0)
        for v in range(n_sums):
            left_sums[v] = hist[missing, v] if side == 1 else 0
        if side == 1:
            for v in range(settings[FIRST]):
                l_total += hist[missing, v]
        # With missing values on the right, the last cut has only them there.
        for k in range(n if has_missing and side == 0 else n - 1):
            b = places[k]
            for v in range(n_sums):
                left_sums[v] += hist[b, v]
                # The right child's sums are the node's minus the left child's: exact, since they
                # are integers.
                right_sums[v] = sums[v] - left_sums[v]
            for v in range(settings[FIRST]):
                l_total += hist[b, v]
            r_total = total - l_total
            if not _children_allowed(
                settings, left_sums, l_total, right_sums, r_total, sign, bounds
            ):
                continue
            value = node_worth(kind, left_sums, l_total, bits) + node_worth(
                kind, right_sums, r_total, bits
            )
            if value > best:
                best = value
                following = places[k + 1] if k + 1 < n else -1
                _write_cut(b, following, side, left_sums, l_total, best_cut, best_left_sums)
    return best


@_inside
def hash_feature_draw(path: Any, feature: Any) -> Any:
    """Return a node's draw of 64 bits for a feature.

    It depends only on the node's path, so it is the same on any trainer or device.
    """
    return hash_number(hash_number(path ^ np.uint64(0xD1B54A32D192ED03)) + np.uint64(feature))


@_inside
def draw_threshold(low: Any, high: Any, first: Any, last: Any, draw: Any) -> float:
    """Return a uniform threshold between the smallest value of one bin and the largest of another.

    These are the node's smallest and largest value, as far as bins determine them.
    """
    threshold: float = low[first] + draw_to_share(draw) * (high[last] - low[first])
    return threshold


@_inside
def lies_mostly_left(low: float, high: float, threshold: float) -> Any:
    """Return whether at least half of a bin's range is not above a threshold."""
    return high <= threshold or (low + high) / 2 <= threshold


@_inside
def draw_cut(low: Any, high: Any, places: Any, n: Any, draw: Any) -> tuple[int, float]:
    """Draw a cut between the smallest and the largest value of a feature; see `judge_drawn_cut`.

    Return the last non-empty bin that goes left, and the threshold.
    """
    cut, threshold = 0, np.nan
    if n > 1:
        threshold = draw_threshold(low, high, places[0], places[n - 1], draw)
        while cut + 1 < n - 1:
            b = places[cut + 1]
            if not lies_mostly_left(low[b], high[b], threshold):
                break
            cut += 1
        # Rows within a bin are indistinguishable: the threshold becomes the midpoint between two
        # bins.
        if not (high[places[cut]] <= threshold < low[places[cut + 1]]):
            threshold = np.nan
    return cut, threshold


@_inside
def judge_drawn_cut(
    settings: Any, hist: Any, places: Any, n: Any, sums: Any, total: Any, sign: Any, bounds: Any,
    low: Any, high: Any, path: Any, feature: Any, best: float, best_cut: Any, best_left_sums: Any,
    threshold: Any, work: Any,
) -> float:  # fmt: skip
    """Evaluate one cut drawn between a feature's smallest and largest value; see `find_best_cut`.

    A bin that contains the drawn value goes to the side on which more than half of it lies.

    Parameters
    ----------
    settings, hist, places, n, sums, total, sign, bounds, best, best_cut, best_left_sums, work
        As in `find_best_cut`.
    low, high : ndarray of float64 of shape (n_features, 256)
        Smallest and largest value of each bin.
    path : uint64
        Hash of the node's path from the root, from which the cut is drawn.
    feature : int
    threshold : ndarray of float64 of shape (1,)
        Set to the drawn value; NaN if the cut is to be between two bins.
    """
    missing, left_sums = settings[MISSING], work[0]
    draw = hash_feature_draw(path, feature)
    cut, cut_value = draw_cut(low[feature], high[feature], places, n, draw)
    # The lowest bit of the draw selects the side of missing values.
    side = np.int64(draw & np.uint64(1)) if n > 1 and has_missing_rows(hist, missing) else 0
    for v in range(len(sums)):
        left_sums[v] = hist[missing, v] * side
    for k in range(cut + 1):
        for v in range(len(sums)):
            left_sums[v] += hist[places[k], v]
    following = places[cut + 1] if cut + 1 < n else -1
    return _judge_sides(
        settings, sums, total, sign, bounds, places[cut], following, side, cut_value, best,
        best_cut, best_left_sums, threshold, work,
    )  # fmt: skip


@_inside
def _judge_sides(
    settings: Any, sums: Any, total: Any, sign: Any, bounds: Any, last: Any, following: Any,
    missing_left: Any, cut_value: float, best: float, best_cut: Any, best_left_sums: Any,
    threshold: Any, work: Any,
) -> float:  # fmt: skip
    """Evaluate a drawn cut by the sums of its left side in `work`; see `judge_drawn_cut`."""
    kind, bits, (left_sums, right_sums) = settings[KIND], settings[BITS], (work[0], work[1])
    l_total = np.int64(0)
    for v in range(len(sums)):
        right_sums[v] = sums[v] - left_sums[v]
    for v in range(settings[FIRST]):
        l_total += left_sums[v]
    r_total = total - l_total
    if not _children_allowed(settings, left_sums, l_total, right_sums, r_total, sign, bounds):
        return best
    value = node_worth(kind, left_sums, l_total, bits) + node_worth(kind, right_sums, r_total, bits)
    if value > best:
        best = value
        threshold[0] = cut_value
        _write_cut(last, following, missing_left, left_sums, l_total, best_cut, best_left_sums)
    return best


@_inside
def judge_drawn_cut_of_lines(
    settings: Any, rows: Any, lines: Any, sums: Any, total: Any, sign: Any, bounds: Any, low: Any,
    high: Any, path: Any, feature: Any, best: float, best_cut: Any, best_left_sums: Any,
    threshold: Any, work: Any,
) -> tuple[bool, float]:  # fmt: skip
    """Evaluate the cut of `judge_drawn_cut` without a histogram; return whether the rows differ.

    A drawn cut needs the sums of its left side only, so two passes over the node's lines suffice.
    """
    missing, first, last, n_missing = settings[MISSING], np.int64(256), np.int64(-1), 0
    for q in range(len(lines)):
        b = np.int64(rows[lines[q, 0] & 0xFFFFFFFF, feature])
        if b == missing:
            n_missing += 1
        else:
            first, last = min(first, b), max(last, b)
    several = first < last
    if not several and (n_missing == 0 or last < 0):
        return False, best
    draw, cut_value, side = hash_feature_draw(path, feature), np.nan, np.int64(0)
    if several:
        cut_value = draw_threshold(low[feature], high[feature], first, last, draw)
        if n_missing:
            side = np.int64(draw & np.uint64(1))
    left_sums, last_left, following = work[0], first, np.int64(256)
    for v in range(len(sums)):
        left_sums[v] = 0
    for q in range(len(lines)):
        b = np.int64(rows[lines[q, 0] & 0xFFFFFFFF, feature])
        if b == missing:
            goes = side == 1
        else:
            goes = b == first or (
                b < last and lies_mostly_left(low[feature, b], high[feature, b], cut_value)
            )
            if goes:
                last_left = max(last_left, b)
            else:
                following = min(following, b)
        if goes:
            add_any_line(lines[q], left_sums)
    if not (following < 256 and high[feature, last_left] <= cut_value < low[feature, following]):
        cut_value = np.nan
    return True, _judge_sides(
        settings, sums, total, sign, bounds, last_left, following if following < 256 else -1, side,
        cut_value, best, best_cut, best_left_sums, threshold, work,
    )  # fmt: skip
