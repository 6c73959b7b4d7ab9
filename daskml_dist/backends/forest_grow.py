"""Compiled growth of forests: a tree below a node, and the steps of level-wise growth.

The work at a node is proportional to its rows: if there are fewer rows than bins, only non-empty
bins are visited. Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.forest_cuts import (
    ANYWHERE,
    BITS,
    FEATURES,
    KIND,
    LEAST_ROWS,
    LEAST_WEIGHT,
    MAX_DEPTH,
    MIN_SPLIT,
    MISSING,
    N_FEATURES,
    OUTPUTS,
    SQUARED,
    find_best_cut,
    find_median_split,
    find_occupied_bins,
    has_missing_rows,
    judge_drawn_cut,
    judge_drawn_cut_of_lines,
    node_answer,
    node_worth,
    write_node_medians,
)
from daskml_dist.backends.forest_kernels import (
    add_any_line,
    add_lines,
    add_node_sums,
    draw_next_feature,
    hash_child_path,
    partition_lines,
    undo_feature_draw,
)
from daskml_dist.backends.intrinsics import copy_values

_exact = compiled_entry()


@_exact
def write_splittable(
    tree_settings: Any, tree: Any, sums: Any, target_ranges: Any, depth: Any, out: Any
) -> None:
    """Write for each node whether it is neither too deep, nor too small, nor pure.

    Parameters
    ----------
    tree_settings : ndarray of int64 of shape (n_trees, n_facts)
    tree, depth : ndarray of shape (n,)
    sums : ndarray of int64 of shape (n, n_sums + 2)
    target_ranges : ndarray of float64 of shape (n, 2 * n_outputs)
    out : ndarray of bool of shape (n,)
    """
    for q in range(len(tree)):
        out[q] = is_splittable(tree_settings[tree[q]], sums[q], target_ranges[q], depth[q])


@_exact
def settle_splits(
    tree_settings: Any, least: Any, tree: Any, sums: Any, best: Any, worths: Any, signs: Any,
    bounds: Any, paths: Any, gain: Any, of_children: Any, ways: Any,
) -> None:  # fmt: skip
    """Write each split's gain, and the bounds and path hashes of its children.

    Parameters
    ----------
    tree_settings, tree, sums
        As in `write_splittable`.
    least : ndarray of float64 of shape (n_trees,)
        Minimum gain of a split.
    best : ndarray of int64 of shape (n, .)
        As returned by `forests.ForestDevice.choose_best_cuts`.
    worths : ndarray of float64 of shape (n,)
        The numbers in its second column.
    signs : ndarray of int64 of shape (n_features,)
        Sign of each feature's monotonic constraint.
    bounds : ndarray of float64 of shape (n, 3)
    paths : ndarray of uint64 of shape (n,)
        Hashes of the nodes' paths from the root.
    gain : ndarray of float64 of shape (n,)
        -1 if a node is not split.
    of_children : ndarray of float64 of shape (n, 2, 3)
    ways : ndarray of uint64 of shape (n, 2)
    """
    n_sums = sums.shape[1] - 2
    work = np.zeros((2, n_sums), np.int64)
    for q in range(len(tree)):
        tree_facts, j = tree_settings[tree[q]], best[q, 0]
        gain[q] = -1.0
        if j < 0:
            continue
        # Gain: the children's worth minus the node's.
        before = node_worth(tree_facts[KIND], sums[q, :n_sums], sums[q, n_sums], tree_facts[BITS])
        # Rounding may make it slightly negative.
        gained = max(worths[q] - before, 0.0)
        if gained < least[tree[q]]:
            continue
        gain[q] = gained
        of_children[q, 0] = bounds[q]
        of_children[q, 1] = bounds[q]
        if bounds[q, 2] != 0:
            left_sums = best[q, 7:]
            bound_children(
                tree_facts, sums[q], left_sums, signs[j], bounds[q], work, of_children[q, :, :2]
            )
        for side in range(2):
            ways[q, side] = hash_child_path(paths[q], side)


@_exact
def draw_node_features(paths: Any, first: Any, last: Any, d: Any, out: Any) -> None:
    """Write the features that nodes draw, from draw `first` to `last`."""
    features, swaps = np.arange(d), np.zeros(d, np.int64)
    for q in range(len(paths)):
        # Draws before `first` are repeated, since each depends on the earlier ones.
        for k in range(last):
            j = draw_next_feature(paths[q], k, features, swaps)
            if k >= first:
                out[q, k - first] = j
        for k in range(last - 1, -1, -1):
            undo_feature_draw(features, k, swaps)


@_exact
def add_job_histograms(
    rows: Any, lines: Any, starts: Any, stops: Any, features: Any, hist: Any
) -> None:
    """Add the histograms of some features of each of some nodes."""
    for q in range(len(features)):
        for k in range(features.shape[1]):
            add_lines(rows, lines[starts[q] : stops[q]], features[q, k], hist[q, k])


@_exact
def choose_best_cuts(cuts: Any, worths: Any, features: Any, first_only: Any, out: Any) -> None:
    """Write the feature of each node's best cut (-1: none), and the facts of the cut.

    See `forests.ForestDevice.choose_best_cuts`.
    """
    width = cuts.shape[2]
    for q in range(len(cuts)):
        out[q, 0] = -1
        best, varies, best_job = -np.inf, False, -1
        for k in range(cuts.shape[1]):
            # Beyond the features that a node must draw (`one`), only the first that varies counts.
            if cuts[q, k, 2] == 0 or (first_only and varies):
                continue
            varies = True
            if worths[q, k] > best:
                best, best_job = worths[q, k], k
        if best_job >= 0:
            out[q, 0] = features[q, best_job]
            for v in range(width):
                out[q, 1 + v] = cuts[q, best_job, v]
        out[q, 3] = varies


@_exact
def find_job_cuts(
    job_settings: Any, hist: Any, sums: Any, signs: Any, bounds: Any, low: Any, high: Any,
    paths: Any, features: Any, cuts: Any,
) -> None:  # fmt: skip
    """Write the facts of the best cut of each job.

    Parameters
    ----------
    job_settings : ndarray of int64 of shape (n, n_facts)
    hist : ndarray of int64 of shape (n, 256, n_sums)
    sums : ndarray of int64 of shape (n, n_sums + 2)
    signs : ndarray of int64 of shape (n_features,)
    bounds : ndarray of float64 of shape (n, 3)
    low, high : ndarray of float64 of shape (n_features, 256)
    paths : ndarray of uint64 of shape (n,)
    features : ndarray of int64 of shape (n,)
    cuts : ndarray of int64 of shape (n, forests.N_CUT_FACTS + n_sums + 1)
    """
    n_sums = hist.shape[2]
    places, work = np.zeros(256, np.int64), np.zeros((2, n_sums), np.int64)
    best_cut = np.zeros(3, np.int64)
    left_sums = np.zeros(n_sums + 1, np.int64)
    threshold = np.zeros(1)
    float_bits = np.zeros(2)
    for q in range(len(features)):
        missing, j = job_settings[q, MISSING], features[q]
        # A feature with one bin, including missing values, cannot split the node.
        n = find_occupied_bins(hist[q], missing, places)
        has_missing = False
        for v in range(n_sums):
            has_missing = has_missing or hist[q, missing, v] != 0
        float_bits[0] = -np.inf
        if n + has_missing > 1:
            cuts[q, 2] = 1
            node_sums, total = sums[q, :n_sums], sums[q, n_sums]
            if job_settings[q, ANYWHERE]:
                float_bits[0] = judge_drawn_cut(
                    job_settings[q], hist[q], places, n, node_sums, total, signs[j], bounds[q], low,
                    high, paths[q], j, -np.inf, best_cut, left_sums, threshold, work,
                )  # fmt: skip
            else:
                threshold[0] = np.nan
                float_bits[0] = find_best_cut(
                    job_settings[q], hist[q], places, n, node_sums, total, signs[j], bounds[q],
                    -np.inf, best_cut, left_sums, work,
                )  # fmt: skip
            # Worth and threshold are stored by their bits in an array of integers.
            float_bits[1] = threshold[0]
            copy_values(cuts[q, 3:6], best_cut)
            copy_values(cuts[q, 6:], left_sums)
        copy_values(cuts[q, :2], float_bits.view(np.int64))


_inside = compiled_inside(error_model="numpy", forceinline=True)  # see `forest_cuts`

#: Below this many rows in a node, only non-empty bins are searched for a cut, found by a bit for
#: each of the 256 bins.
_MAX_SPARSE_ROWS = 192
#: Position k of the only bit of 2**k, from the highest six bits of 2**k times a De Bruijn number:
#: they differ for all 64 products (Leiserson, Prokop and Randall 1998).
_LOWEST_BIT_TABLE = np.zeros(64, np.int64)
_LOWEST_BIT_TABLE[[((0x03F79D71B4CB0A89 << k) % 2**64) >> 58 for k in range(64)]] = np.arange(64)


@_inside
def is_splittable(settings: Any, sums: Any, target_ranges: Any, depth: Any) -> Any:
    """Return whether a node may be split: not too deep, not too small, not pure."""
    bits = settings[BITS]
    total = sums[len(sums) - 2]
    n, w = total & ((np.int64(1) << bits) - 1), total >> bits
    if depth >= settings[MAX_DEPTH] or n < settings[MIN_SPLIT] or n < 2 * settings[LEAST_ROWS]:
        return False
    if w < 2 * settings[LEAST_WEIGHT] or w == 0:
        return False
    # Pure: in regression, smallest and largest target are equal; in classification, one class has
    # all weight.
    if settings[KIND] >= SQUARED:
        for k in range(settings[OUTPUTS]):
            if -target_ranges[2 * k] != target_ranges[2 * k + 1]:
                return True
        return False
    n_classes = 0
    for c in range(len(sums) - 2):
        n_classes += (sums[c] >> bits) > 0
    return n_classes > settings[OUTPUTS]


@_inside
def _add_few_rows(
    rows: Any, lines: Any, feature: Any, hist: Any, places: Any, bin_bits: Any, missing: Any
) -> Any:
    """Make a small node's histogram and list of non-empty bins at a cost of only its rows."""
    one = np.uint64(1)
    for k in range(4):
        bin_bits[k] = 0
    width = lines.shape[1]
    for q in range(len(lines)):
        packed = lines[q, 0]
        b = np.int64(rows[packed & 0xFFFFFFFF, feature])
        # Non-empty bins are marked by bits, so that empty ones of the 256 are skipped.
        bin_bits[b >> 6] |= one << np.uint64(b & 63)
        if width == 2:
            hist[b, packed >> 32] += lines[q, 1]
        elif width == 5:
            hist[b, 0] += lines[q, 1]
            hist[b, 1] += lines[q, 2]
        else:
            add_any_line(lines[q], hist[b])
    n = 0
    for k in range(4):
        word = bin_bits[k]
        while word:
            # The lowest set bit; a De Bruijn multiplication gives its position.
            low = word & (~word + one)
            b = (
                64 * k
                + _LOWEST_BIT_TABLE[
                    np.int64((low * np.uint64(0x03F79D71B4CB0A89)) >> np.uint64(58))
                ]
            )
            if b != missing:
                places[n] = b
                n += 1
            word ^= low
    return n


@_inside
def _find_split(
    settings: Any, rows: Any, lines: Any, sums: Any, path: Any, signs: Any, bounds: Any, low: Any,
    high: Any, features: Any, hist: Any, places: Any, bin_bits: Any, swaps: Any, best_cut: Any,
    best_left_sums: Any, threshold: Any, work: Any,
) -> tuple[int, float]:  # fmt: skip
    """Find the feature of a node's best split (-1: none); return it and the children's worth.

    Of equal splits, the one by the feature drawn first is chosen: nodes with few rows have many
    ties, and a fixed order would favour some features.
    """
    missing, d, m = settings[MISSING], settings[N_FEATURES], settings[FEATURES]
    node_sums, total = sums[: len(sums) - 2], sums[len(sums) - 2]
    best, best_feature, spreads, k = -np.inf, -1, False, 0
    threshold[0] = np.nan
    while k < d and (k < m or not spreads):
        j = draw_next_feature(path, k, features, swaps)
        k += 1
        if settings[ANYWHERE]:
            differ, worth = judge_drawn_cut_of_lines(
                settings, rows, lines, node_sums, total, signs[j], bounds, low, high, path, j, best,
                best_cut, best_left_sums, threshold, work,
            )  # fmt: skip
            spreads = spreads or differ
            if worth > best:
                best, best_feature = worth, j
            continue
        # The cost of a small node is proportional to its rows, that of a large one to its bins.
        if len(lines) < _MAX_SPARSE_ROWS:
            n = _add_few_rows(rows, lines, j, hist, places, bin_bits, missing)
        else:
            add_lines(rows, lines, j, hist)
            n = find_occupied_bins(hist, missing, places)
        if n + has_missing_rows(hist, missing) > 1:
            spreads = True
            worth = find_best_cut(
                settings,
                hist,
                places,
                n,
                node_sums,
                total,
                signs[j],
                bounds,
                best,
                best_cut,
                best_left_sums,
                work,
            )
            if worth > best:
                best, best_feature = worth, j
        for v in range(hist.shape[1]):
            # Only bins that were written are cleared for the next feature.
            hist[missing, v] = 0
            for q in range(n):
                hist[places[q], v] = 0
    # Restore the order of the features, so that each node's draws are independent.
    for q in range(k - 1, -1, -1):
        undo_feature_draw(features, q, swaps)
    return best_feature, best


@_exact
def grow_tree(
    settings: Any, scale: Any, least_gain: float, rows: Any, lines: Any, spare_lines: Any,
    path: Any, depth: Any, bounds: Any, signs: Any, low: Any, high: Any, feature: Any, cut: Any,
    threshold: Any, left_child: Any, depths: Any, sums: Any, gain: Any, value_bounds: Any,
    stack: Any, paths: Any, hist: Any, work: Any, features: Any, swaps: Any, places: Any,
    bin_bits: Any, best_cut: Any, best_left_sums: Any, target_ranges: Any, node_bounds: Any,
    best_threshold: Any, medians: Any,
) -> Any:  # fmt: skip
    """Grow a tree below a node; return its number of nodes.

    Parameters
    ----------
    settings : ndarray of int64
        Settings of the fit; see `forest_cuts`.
    scale : float or None
        Scale of the targets, if splits are by medians; numba compiles the median code only then.
    least_gain : float
        Minimum gain of a split, in units of worth.
    rows : ndarray of uint8 of shape (n_rows, width)
    lines, spare_lines : ndarray of int64 of shape (n, n_line)
    path : uint64
        Hash of the path to the node.
    depth : int
    bounds : ndarray of float64 of shape (3,)
    signs : ndarray of int8 of shape (n_features,)
    low, high : ndarray of float64 of shape (n_features, 256)
        Smallest and largest value of each bin (if cuts are drawn).
    feature, left_child, depths : ndarray of int32 of shape (2n - 1,)
    cut : ndarray of int64 of shape (2n - 1, 3)
    threshold, gain : ndarray of float64 of shape (2n - 1,)
    sums : ndarray of int64 of shape (2n - 1, n_sums + 2)
    value_bounds : ndarray of float64 of shape (2n - 1, 2), or (0, 2)
        Bounds of nodes' values; empty without constraints.
    stack, paths, hist, work, features, swaps, places
    bin_bits, best_cut, best_left_sums, target_ranges, node_bounds, best_threshold, medians
        Scratch arrays from `make_growth_scratch`: numba would have to compile each array made here.
    """
    # Depth first: the right child is on the stack while the left one is split.
    n_sums, bits = sums.shape[1] - 2, settings[BITS]
    # Nodes on the stack: number, first line, last line.
    _push_node(stack, paths, 0, 0, 0, len(lines), path)
    n_stack, n_nodes = 1, 1
    depths[0] = depth
    node_bounds[2] = bounds[2]
    node_bounds[0], node_bounds[1] = bounds[0], bounds[1]
    if len(value_bounds):
        value_bounds[0, 0], value_bounds[0, 1] = bounds[0], bounds[1]
    while n_stack:
        n_stack -= 1
        node, start, stop = stack[n_stack, 0], stack[n_stack, 1], stack[n_stack, 2]
        path = paths[n_stack]
        node_lines = lines[start:stop]
        for k in range(len(target_ranges)):
            target_ranges[k] = -np.inf
        for k in range(sums.shape[1]):
            sums[node, k] = 0
        add_node_sums(node_lines, sums[node], target_ranges)
        if scale is not None:
            write_node_medians(settings, scale, node_lines, sums[node])
        # A leaf, unless it is split below; a leaf is its own left child.
        feature[node], left_child[node], gain[node] = -1, node, 0.0
        if len(value_bounds):
            node_bounds[0], node_bounds[1] = value_bounds[node, 0], value_bounds[node, 1]
        if not is_splittable(settings, sums[node], target_ranges, depths[node]):
            continue
        if scale is not None:
            j, best = find_median_split(
                settings, scale, rows, node_lines, sums[node, n_sums], path, low, high, features,
                swaps, best_cut, best_threshold, signs, node_bounds, medians,
            )  # fmt: skip
            # The node's absolute error, as written by `write_node_medians`.
            before = -sums[node, n_sums + 1 :].view(np.float64)[0]
        else:
            j, best = _find_split(
                settings, rows, node_lines, sums[node], path, signs, node_bounds, low, high,
                features, hist, places, bin_bits, swaps, best_cut, best_left_sums, best_threshold,
                work,
            )  # fmt: skip
            before = node_worth(settings[KIND], sums[node, :n_sums], sums[node, n_sums], bits)
        if j < 0:
            continue
        gained = max(best - before, 0.0)
        if gained < least_gain:
            continue
        # Lines of the left child come first, in order, so that sums do not depend on the tree.
        n_left = partition_lines(
            rows, node_lines, j, best_cut[0], settings[MISSING], best_cut[2], spare_lines
        )
        feature[node], left_child[node], gain[node], threshold[node] = (
            j,
            n_nodes,
            gained,
            best_threshold[0],
        )
        cut[node, 0], cut[node, 1], cut[node, 2] = best_cut[0], best_cut[1], best_cut[2]
        depths[n_nodes] = depths[n_nodes + 1] = depths[node] + 1
        if len(value_bounds) and scale is not None:
            _write_child_bounds(
                signs[j], node_bounds, medians[0], medians[1], value_bounds[n_nodes : n_nodes + 2]
            )
        elif len(value_bounds):
            bound_children(
                settings,
                sums[node],
                best_left_sums,
                signs[j],
                node_bounds,
                work,
                value_bounds[n_nodes : n_nodes + 2],
            )
        middle_line = start + n_left
        _push_node(stack, paths, n_stack, n_nodes + 1, middle_line, stop, hash_child_path(path, 1))
        _push_node(stack, paths, n_stack + 1, n_nodes, start, middle_line, hash_child_path(path, 0))
        n_stack += 2
        n_nodes += 2
    return n_nodes


@_inside
def _push_node(
    stack: Any, paths: Any, stack_index: Any, node: Any, start: Any, stop: Any, path: Any
) -> None:
    """Push a node that is still to be split."""
    stack[stack_index, 0], stack[stack_index, 1], stack[stack_index, 2] = node, start, stop
    paths[stack_index] = path


@_inside
def bound_children(
    settings: Any, sums: Any, left_sums: Any, sign: Any, node_bounds: Any, work: Any, children: Any
) -> None:
    """Write the bounds of the values of two children."""
    n_sums = len(sums) - 2
    for v in range(n_sums):
        work[0, v] = left_sums[v]
        work[1, v] = sums[v] - left_sums[v]
    a = node_answer(settings[KIND], work[0], left_sums[n_sums], settings[BITS])
    b = node_answer(settings[KIND], work[1], sums[n_sums] - left_sums[n_sums], settings[BITS])
    _write_child_bounds(sign, node_bounds, a, b, children)


@_inside
def _write_child_bounds(sign: Any, node_bounds: Any, a: Any, b: Any, children: Any) -> None:
    """Write the bounds of two children with the values a and b."""
    for side in range(2):
        children[side, 0], children[side, 1] = node_bounds[0], node_bounds[1]
    if sign == 0:
        return
    # Monotonic constraints: no descendant of a child may pass the mean of both values.
    half = (a + b) / 2
    # For a rising feature the left child stays below, the right one above.
    children[0 if sign > 0 else 1, 1] = half
    children[1 if sign > 0 else 0, 0] = half


def make_growth_scratch(
    settings: NDArray[np.int64], n_sums: int, n_lines: int, most_levels: int
) -> tuple[NDArray[Any], ...]:
    """Return the scratch arrays that are the last arguments of `grow_tree`."""
    # At most one node per level is on the stack.
    n_waiting, d = min(n_lines, most_levels) + 2, int(settings[N_FEATURES])
    return (
        np.empty((n_waiting, 3), np.int64), np.empty(n_waiting, np.uint64),
        np.zeros((256, n_sums), np.int64), np.zeros((2, n_sums), np.int64),
        np.arange(d, dtype=np.int64), *(np.zeros(n, np.int64) for n in (d, 256)),
        np.zeros(4, np.uint64), *(np.zeros(n, np.int64) for n in (3, n_sums + 1)),
        *(np.zeros(n) for n in (2 * int(settings[OUTPUTS]), 3, 1, 2)),
    )  # fmt: skip
