"""Compiled loops over forests' rows: draws, histograms, sums and partitions of a node.

A drawn row is a *line* of integers: the row, its class, and its contributions to sums. The first
number packs row and class (of the first output), the second weight and count. Lines for
classification have an even width: next are the sums to which the classes of further outputs are
added (-1: none). Lines for regression have an odd width: the weighted target of each output, then
the terms of the impurity, then the bits of the targets. Importing this module loads numba, so it is
imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.intrinsics import number_at

#: Rows that go through all trees together.
_ROWS_PER_TILE = 4096


@compiled_entry()
def add_out_of_bag_answers(
    rows: Any, row_numbers: Any, keys: Any, table: Any, roots: Any, feature: Any, last: Any,
    left_child: Any, missing_left: Any, missing: Any, value: Any, sums: Any, times: Any,
) -> None:  # fmt: skip
    """Add the predictions of trees for binned rows that they did not draw, tree by tree.

    Parameters
    ----------
    rows : ndarray of uint8 of shape (n, width)
    row_numbers : ndarray of int64 of shape (n,)
    keys : ndarray of uint64 of shape (n_trees,)
    table : ndarray of uint64
        See `draw_tree_rows`.
    roots, feature, last, left_child, missing_left, value
        Arrays of the trees.
    missing : int
        Bin of missing values.
    sums : ndarray of float64 of shape (n, n_values)
    times : ndarray of int64 of shape (n,)
    """
    # Tiles of rows, which stay cached during the loop over all trees.
    for start in range(0, len(row_numbers), _ROWS_PER_TILE):
        for t in range(len(keys)):
            for i in range(start, min(start + _ROWS_PER_TILE, len(row_numbers))):
                # A row's draws depend only on its number and the tree's key, so nothing need be
                # stored.
                if count_draws(row_numbers[i], keys[t], table):
                    continue
                k = roots[t]
                while feature[k] >= 0:
                    b = rows[i, feature[k]]
                    if b == missing:
                        k = left_child[k] + 1 - missing_left[k]
                    else:
                        k = left_child[k] + (b > last[k])
                times[i] += 1
                for v in range(value.shape[1]):
                    sums[i, v] += value[k, v]


@compiled_entry()
def widen_bin_reach(X: Any, rows: Any, low: Any, high: Any) -> None:
    """Update the smallest and largest value of each bin.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
    rows : ndarray of uint8 of shape (n, at least n_features)
    low, high : ndarray of float64 of shape (n_features, 256)
    """
    # Drawn cuts (extremely randomised trees) need the range of the values in a bin.
    for j in range(X.shape[1]):
        for i in range(len(X)):
            value = np.float64(X[i, j])
            b = rows[i, j]
            if value < low[j, b]:
                low[j, b] = value
            if value > high[j, b]:
                high[j, b] = value


_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy", forceinline=True)  # see `forest_cuts`


@_inside
def hash_number(number: Any) -> Any:
    """Return a hash of 64 bits (splitmix64's finaliser); see `models.bins.hash_numbers`."""
    # Constants and shifts of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    number = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@_inside
def hash_child_path(path: Any, side: Any) -> Any:
    """Return the hash of the path to a child, from its parent's."""
    return hash_number(path + np.uint64(side + 1))


@_inside
def count_draws(row_number: Any, key: Any, table: Any) -> Any:
    """Return how many times a row is drawn: Poisson, by inversion of cumulated probabilities."""
    draw = hash_number(hash_number(np.uint64(row_number) + np.uint64(1)) + key)
    # Draws of a bootstrap sample are nearly Poisson with mean 1, independently for each row; the
    # table has the cumulated probabilities, scaled to 64 bits.
    times = 0
    while times < len(table) and draw >= table[times]:
        times += 1
    return times


@_exact
def draw_tree_rows(
    row_numbers: Any, key: Any, table: Any, weight: Any, factor: Any, slot: Any, line_columns: Any,
    bits: Any, lines: Any,
) -> Any:  # fmt: skip
    """Write the lines of the rows that a tree draws; return their number.

    Parameters
    ----------
    row_numbers : ndarray of int64 of shape (n,)
        Numbers of the rows among all rows.
    key : uint64
        Key of the tree.
    table : ndarray of uint64
        Cumulative probabilities of 0, 1, ... draws, times 2**64; empty: each row is drawn once.
    weight : ndarray of int64 of shape (n,)
    factor : ndarray of int64 of shape (n_classes,)
        Additional weight of each class; empty: none.
    slot : ndarray of int32 of shape (n,)
        Classes.
    line_columns : ndarray of int64 of shape (n, n_line - 2)
        The remaining columns of the lines, for one draw.
    bits : int
        Number of bits that count rows.
    lines : ndarray of int64 of shape (n, n_line)
    """
    # Sums of regression are multiplied by the draws; positions of classes and bits of targets are
    # not.
    m, width = 0, line_columns.shape[1]
    summed = width // 2 + 1 if width % 2 else 0
    for i in range(len(row_numbers)):
        w = weight[i]
        if w == 0:
            continue
        times = 1
        if len(table):
            times = count_draws(row_numbers[i], key, table)
            if times == 0:
                continue
        if len(factor):
            w *= factor[slot[i]]
        # Row number in the lower half, class in the upper.
        lines[m, 0] = i | (np.int64(slot[i]) << 32)
        # One row in the lowest bits, its weight above them.
        lines[m, 1] = ((w * times) << bits) + 1
        for k in range(width):
            lines[m, 2 + k] = line_columns[i, k] * times if k < summed else line_columns[i, k]
        m += 1
    return m


@_inside
def draw_next_feature(path: Any, k: Any, features: Any, swaps: Any) -> Any:
    """Return the k-th feature that a node draws, without replacement (Fisher-Yates).

    `features` is reordered; `undo_feature_draw` undoes this, last draw first, by `swaps`.
    """
    # Fisher-Yates on a shared list: the draw is hashed from the node's path, so it does not depend
    # on which nodes were split earlier.
    n_undrawn = np.uint64(len(features) - k)
    drawn = k + np.int64(
        hash_number(path + np.uint64(0x5851F42D4C957F2D) * np.uint64(k + 1)) % n_undrawn
    )
    swaps[k] = drawn
    feature = features[drawn]
    features[drawn] = features[k]
    features[k] = feature
    return feature


@_inside
def undo_feature_draw(features: Any, k: Any, swaps: Any) -> None:
    """Undo the k-th draw of `draw_next_feature`."""
    drawn = swaps[k]
    feature = features[drawn]
    features[drawn] = features[k]
    features[k] = feature


@_inside
def add_lines(rows: Any, lines: Any, feature: Any, hist: Any) -> None:
    """Add some lines to the histogram of a feature."""
    width = lines.shape[1]
    # The two most frequent layouts have separate loops: one class, one target; then all others.
    if width == 2:
        for q in range(len(lines)):
            packed = lines[q, 0]
            hist[rows[packed & 0xFFFFFFFF, feature], packed >> 32] += lines[q, 1]
    elif width == 5:
        for q in range(len(lines)):
            b = rows[lines[q, 0], feature]
            hist[b, 0] += lines[q, 1]
            hist[b, 1] += lines[q, 2]
    else:
        for q in range(len(lines)):
            add_any_line(lines[q], hist[rows[lines[q, 0] & 0xFFFFFFFF, feature]])


@_inside
def add_any_line(line: Any, sums: Any) -> None:
    """Add a line to the sums of a bin, for any outputs."""
    width = len(line)
    # Odd widths are lines for regression; see the module's docstring.
    if width % 2:
        sums[0] += line[1]
        for k in range((width - 3) // 2):
            sums[1 + k] += line[2 + k]
    else:
        sums[line[0] >> 32] += line[1]
        for k in range(2, width):
            if line[k] >= 0:
                sums[line[k]] += line[1]


@_exact
def add_node_sums(lines: Any, sums: Any, target_ranges: Any) -> None:
    """Add up the sums of a node.

    Parameters
    ----------
    lines : C-ordered ndarray of int64 of shape (n, n_line)
    sums : ndarray of int64 of shape (n_sums + 2,)
        Those of `forest_cuts.node_worth`, the packed total, and the terms of the impurity.
    target_ranges : ndarray of float64 of shape (2 * n_outputs,)
        For each output, minus the smallest and the largest target; updated.
    """
    total, width = len(sums) - 2, lines.shape[1]
    # Classes: weights by class, and in total.
    if width % 2 == 0:
        for q in range(len(lines)):
            sums[lines[q, 0] >> 32] += lines[q, 1]
            sums[total] += lines[q, 1]
            for k in range(2, width):
                if lines[q, k] >= 0:
                    sums[lines[q, k]] += lines[q, 1]
        return
    n_outputs = (width - 3) // 2
    for k in range(n_outputs):
        for q in range(len(lines)):
            sums[1 + k] += lines[q, 2 + k]
            # The bits of a target, read as a float.
            place = q * width + 3 + n_outputs + k
            target = number_at(np.int64(lines.ctypes.data), place, target_ranges.dtype)
            # Minus the smallest, so that both bounds are maxima, which trainers can merge by one
            # operation.
            if -target > target_ranges[2 * k]:
                target_ranges[2 * k] = -target
            if target > target_ranges[2 * k + 1]:
                target_ranges[2 * k + 1] = target
    for q in range(len(lines)):
        sums[0] += lines[q, 1]
        sums[total + 1] += lines[q, 2 + n_outputs]
    sums[total] = sums[0]


@_exact
def partition_lines(
    rows: Any,
    lines: Any,
    feature: Any,
    last: Any,
    missing: Any,
    missing_left: Any,
    spare_lines: Any,
) -> Any:
    """Move lines that go left before the others, in place and in order; return their number."""
    n_left: Any = 0
    n_right: Any = 0
    width = lines.shape[1]
    for q in range(len(lines)):
        b = rows[lines[q, 0] & 0xFFFFFFFF, feature]
        goes = np.int64(b <= last) if b != missing else np.int64(missing_left)
        # Without a branch on the side: the line is written to both, and one of the counts is
        # incremented.
        for k in range(width):
            v = lines[q, k]
            lines[n_left, k] = v
            spare_lines[n_right, k] = v
        n_left += goes
        n_right += 1 - goes
    for q in range(n_right):
        for k in range(width):
            lines[n_left + q, k] = spare_lines[q, k]
    return n_left
