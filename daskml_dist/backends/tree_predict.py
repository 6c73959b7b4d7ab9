"""Compiled loops of rows through trees: bins of values, predictions of boosted trees and forests.

Importing this module loads numba, so it is imported at first use.

References
----------
C. Lucchese et al., "QuickScorer: a fast algorithm to rank documents with additive ensembles of
regression trees", SIGIR 2015: `add_by_masks`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.intrinsics import copy_values

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")
#: Number of zeros below the lowest set bit.
_zeros_below: Any = trailing_zeros

#: Rows that go through a tree together, so that the tree's data stays in the L1 cache.
_MASK_ROWS = 512


@_exact
def add_by_masks(
    columns: Any, roots: Any, first: int, last: int, n_outputs: int, nodes: Any, value: Any,
    missing: int, tables: Any, out: Any,
) -> None:  # fmt: skip
    """Add the values of trees `first` to `last` to raw predictions.

    Parameters
    ----------
    columns : ndarray of uint8 of shape (n_features, n)
        Bins of rows.
    roots : ndarray of int64 of shape (n_trees + 1,)
    first, last, n_outputs : int
    nodes : tuple
        Arrays of `models.trees.Trees`: feature, bin, left, missing_left, category, bitsets.
    value : ndarray of float64 of shape (n_nodes,)
    missing : int
        Bin of missing values.
    tables : ndarray of uint32 or uint64 of shape (n_features + 3, 256)
        Scratch. A tree with more leaves than an entry has bits takes several rounds.
    out : ndarray of float64 of shape (n, n_outputs)
    """
    # QuickScorer (Lucchese et al., SIGIR 2015): a leaf is a bit, and each node that a row fails
    # clears the leaves it cannot reach. The lowest remaining bit is the row's leaf. With bins, a
    # node's test is a table: bin -> mask.
    n, bits = len(out), 8 * tables.itemsize
    alive = np.empty(_MASK_ROWS, tables.dtype)
    values = np.empty(bits)
    used = np.empty(len(tables), np.int64)
    for t in range(first, last):
        output = (t - first) % n_outputs
        # A binary tree of n nodes has (n + 1) / 2 leaves.
        n_leaves = (roots[t + 1] - roots[t] + 1) // 2
        n_words = (n_leaves + bits - 1) // bits
        # Leaves `low` to `low + bits` in each round.
        for low in range(0, n_words * bits, bits):
            n_used = _fill_mask_tables(
                roots[t],
                roots[t + 1],
                low,
                n_words > 1,
                nodes,
                value,
                missing,
                tables,
                used,
                values,
            )
            for start in range(0, n, _MASK_ROWS):
                m = min(n - start, _MASK_ROWS)
                leaf_masks = alive[:m]
                leaf_masks[:] = _bit_range(0, n_leaves - low, tables)
                _rule_out_leaves(columns[:, start:], tables, used, n_used, leaf_masks)
                # A row whose leaf is in another round's word has no bit left.
                if n_words == 1:
                    for i in range(m):
                        out[start + i, output] += values[_zeros_below(leaf_masks[i])]
                else:
                    for i in range(m):
                        if leaf_masks[i] != 0:
                            out[start + i, output] += values[_zeros_below(leaf_masks[i])]


@_inside
def _rule_out_leaves(
    columns: Any, tables: Any, used_features: Any, n_used: int, leaf_masks: Any
) -> None:
    """Clear the bits of the leaves that rows cannot reach."""
    # Four tables at a time, so that a row's mask is read and written once per four features.
    for s in range(0, n_used, 4):
        a, b = columns[used_features[s]], columns[used_features[s + 1]]
        c, d = columns[used_features[s + 2]], columns[used_features[s + 3]]
        of_a, of_b, of_c, of_d = tables[s], tables[s + 1], tables[s + 2], tables[s + 3]
        for i in range(len(leaf_masks)):
            leaf_masks[i] &= of_a[a[i]] & of_b[b[i]] & of_c[c[i]] & of_d[d[i]]


@_inside
def _bit_range(first: int, end: int, tables: Any) -> Any:
    """Return a word in which bits `first` to `end` are set, as far as it has them."""
    word, n = tables.dtype.type, 8 * tables.itemsize
    first, end = max(first, 0), min(end, n)
    if end <= first:
        return word(0)
    return word(word(word(~word(0)) >> word(n - end + first)) << word(first))


@_inside
def _fill_mask_tables(
    root: int, end: int, low: int, both_sides: bool, nodes: Any, value: Any, missing: int,
    tables: Any, used_features: Any, values: Any,
) -> int:  # fmt: skip
    """Make tables of the features a tree uses; return their number, padded to a multiple of 4."""
    feature, bins, left_child, missing_left, category, bitsets = nodes
    size, first_leaf = np.ones(end - root, np.int64), np.zeros(end - root, np.int64)
    slots = np.full(len(tables), -1)
    # Leaves under each node, from the last node up: children come after their parent.
    for k in range(end - 1, root - 1, -1):
        if feature[k] >= 0:
            child = left_child[k] - root
            size[k - root] = size[child] + size[child + 1]
    n_used = 0
    for k in range(root, end):
        # The node's leaves are numbered from `first_leaf` on, the left child's first.
        leaf = first_leaf[k - root]
        if feature[k] < 0:
            if 0 <= leaf - low < len(values):
                values[leaf - low] = value[k]
            continue
        child = left_child[k] - root
        middle = first_leaf[child + 1] = leaf + size[child]
        first_leaf[child] = leaf
        # Going right excludes the left child's leaves, and going left the right child's.
        stay = ~_bit_range(leaf - low, middle - low, tables)
        leave = ~_bit_range(middle - low, leaf + size[k - root] - low if both_sides else 0, tables)
        if stay == leave:  # the word has no leaf below this node
            continue
        slot = slots[feature[k]]
        if slot < 0:
            slot = slots[feature[k]] = n_used
            used_features[slot] = feature[k]
            tables[slot] = ~tables.dtype.type(0)
            n_used += 1
        table = tables[slot]
        # The masks of a bin are combined over all nodes of the tree that test the feature.
        if category[k] >= 0:
            for b in range(missing):
                goes = (bitsets[category[k], b >> 6] >> np.uint64(b & 63)) & np.uint64(1) == 1
                table[b] &= leave if goes else stay
        else:
            _mask_entries(table[bins[k] + 1 : missing], stay)
            if both_sides:
                _mask_entries(table[: min(bins[k] + 1, missing)], leave)
        table[missing] &= leave if missing_left[k] else stay
    while n_used % 4:
        # Pad with the first feature: applying a mask twice changes nothing.
        used_features[n_used] = used_features[0]
        copy_values(tables[n_used], tables[0])
        n_used += 1
    return n_used


@_inside
def _mask_entries(row: Any, word: Any) -> None:
    """Clear the bits of all entries that are not set in a word."""
    for b in range(len(row)):
        row[b] &= word


#: Rows that go through all trees together, and rows that descend one tree in parallel.
_FOREST_ROWS, _ROWS_SIDE_BY_SIDE = 512, 8


@_inside
def _next_node(X: Any, i: Any, k: Any, threshold: Any, node_table: Any) -> Any:
    """Return the node that a row goes to from another one; a leaf is its own successor."""
    x = X[i, node_table[k, 0]]
    left_child = node_table[k, 1]
    # NaN is missing.
    if x != x:
        return left_child + 1 - node_table[k, 2]
    # A comparison instead of a branch. For leaves `left_child` is the leaf itself, and the
    # threshold is infinite.
    return left_child + np.int32(x > threshold[k])


@_exact
def add_forest_answers(
    X: Any, roots: Any, threshold: Any, node_table: Any, depths: Any, values: Any, out: Any
) -> None:
    """Add the values of all trees, in order.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
    roots : ndarray of int64 of shape (n_trees + 1,)
    threshold : ndarray of shape (n_nodes,)
        In the dtype of the rows.
    node_table : ndarray of int32 of shape (n_nodes, 3)
        Feature, left child, whether missing values go left.
    depths : ndarray of int64 of shape (n_trees,)
    values : ndarray of float64 of shape (n_nodes, n_values)
    out : ndarray of float64 of shape (n, n_values)
    """
    n, n_values = len(X), values.shape[1]
    row_nodes = np.empty(_FOREST_ROWS, np.int32)
    for start in range(0, n, _FOREST_ROWS):
        stop = min(n, start + _FOREST_ROWS)
        for t in range(len(roots) - 1):
            _descend_rows(X, start, stop, roots[t], depths[t], threshold, node_table, row_nodes)
            for i in range(start, stop):
                k = row_nodes[i - start]
                for v in range(n_values):
                    out[i, v] += values[k, v]


@_inside
def _descend_rows(
    X: Any,
    start: Any,
    stop: Any,
    root: Any,
    depth: Any,
    threshold: Any,
    node_table: Any,
    row_nodes: Any,
) -> None:
    """Write the leaves that rows reach."""
    i = start
    while i + _ROWS_SIDE_BY_SIDE <= stop:
        # Eight rows descend in parallel: none waits for the node that another one loads.
        a: Any = np.int64(root)
        b = c = d = e = f = g = h = a
        for _ in range(depth):
            a1 = _next_node(X, i, a, threshold, node_table)
            b1 = _next_node(X, i + 1, b, threshold, node_table)
            c1 = _next_node(X, i + 2, c, threshold, node_table)
            d1 = _next_node(X, i + 3, d, threshold, node_table)
            e1 = _next_node(X, i + 4, e, threshold, node_table)
            f1 = _next_node(X, i + 5, f, threshold, node_table)
            g1 = _next_node(X, i + 6, g, threshold, node_table)
            h1 = _next_node(X, i + 7, h, threshold, node_table)
            # All eight rows are in leaves when no node changes.
            changed_bits = (a1 ^ a) | (b1 ^ b) | (c1 ^ c) | (d1 ^ d)
            changed_bits |= (e1 ^ e) | (f1 ^ f) | (g1 ^ g) | (h1 ^ h)
            a, b, c, d, e, f, g, h = a1, b1, c1, d1, e1, f1, g1, h1
            if changed_bits == 0:
                break
        k = i - start
        row_nodes[k], row_nodes[k + 1], row_nodes[k + 2], row_nodes[k + 3] = a, b, c, d
        row_nodes[k + 4], row_nodes[k + 5], row_nodes[k + 6], row_nodes[k + 7] = e, f, g, h
        i += _ROWS_SIDE_BY_SIDE
    while i < stop:
        last: Any = np.int64(root)
        for _ in range(depth):
            last = _next_node(X, i, last, threshold, node_table)
        row_nodes[i - start] = last
        i += 1


@_exact
def find_leaves(
    X: Any, roots: Any, threshold: Any, node_table: Any, node_numbers: Any, out: Any
) -> None:
    """Write, for each tree, the leaf that rows reach, by its number in the tree."""
    for i in range(len(X)):
        for t in range(len(roots) - 1):
            k: Any = np.int64(roots[t])
            while True:
                after = _next_node(X, i, k, threshold, node_table)
                if after == k:
                    break
                k = after
            out[i, t] = node_numbers[k]


@_exact
def depth_first(left_child: Any) -> Any:
    """Return each node's number in its tree in depth-first order, as scikit-learn numbers them.

    Parameters
    ----------
    left_child : ndarray of int32 of shape (n_nodes,)
        Left children, stored after their parents; a leaf's is itself.
    """
    n = len(left_child)
    size, number = np.ones(n, np.int64), np.zeros(n, np.int64)
    # Sizes of subtrees, from the last node up.
    for k in range(n - 1, -1, -1):
        if left_child[k] != k:
            size[k] += size[left_child[k]] + size[left_child[k] + 1]
    for k in range(n):
        if left_child[k] != k:
            # The right child follows the whole left subtree.
            number[left_child[k]] = number[k] + 1
            number[left_child[k] + 1] = number[k] + 1 + size[left_child[k]]
    return number


@_exact
def walk_subtree(left_child: Any, root: int) -> Any:
    """Return the nodes below a root: children of a node adjacent, the left subtree first."""
    order = np.empty(len(left_child), np.int64)
    stack = np.empty(len(left_child), np.int64)
    order[0], stack[0], n, n_stack = root, root, 1, 1
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        child = left_child[node]
        if child != node:
            order[n], order[n + 1] = child, child + 1
            # The left child is popped first.
            stack[n_stack], stack[n_stack + 1] = child + 1, child
            n, n_stack = n + 2, n_stack + 2
    return order[:n]


#: Cells of a feature's grid, which gives an approximate bin of a value.
_GRID_CELLS = 1024


def write_bins(
    X: Any, table: Any, n_edges: Any, categorical: Any, missing: int, rows: Any, columns: Any,
    has_missing: Any,
) -> None:  # fmt: skip
    """Write the bins of some rows.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
    table, n_edges, categorical
        Arrays of `models.bins.Bins`.
    missing : int
        Bin of missing values.
    rows : ndarray of uint8 of shape (n, at least n_features)
    columns : ndarray of uint8 of shape (n_features, n)
        Outputs, in both orders.
    has_missing : ndarray of uint8 of shape (n_features,)
        Set to 1 if a feature has missing values.
    """
    d = X.shape[1]
    # Allocated here, since numba would compile each allocation in the loop.
    starts, lows, scales = np.zeros((d, _GRID_CELLS + 2), np.int32), np.zeros(d), np.zeros(d)
    _write_bins(
        X, table, n_edges, categorical, missing, rows, columns, has_missing, starts, lows, scales
    )


@_exact
def _write_bins(
    X: Any, table: Any, n_edges: Any, categorical: Any, missing: int, rows: Any, columns: Any,
    has_missing: Any, starts: Any, lows: Any, scales: Any,
) -> None:  # fmt: skip
    """Write the bins of some rows; the last three arrays are zero-filled scratch."""
    # An even grid over a feature's edges gives a value's approximate bin; a short binary search
    # among the edges of its cell completes the search.
    n, d = X.shape
    for j in range(d):
        m = n_edges[j]
        low, high = (table[j, 0], table[j, m - 1]) if m else (0.0, 0.0)
        scale = _GRID_CELLS / (high - low)
        if not (scale > 0 and scale < 1e300):
            scale = 0.0
        lows[j], scales[j] = low, scale
        for e in range(m):
            # Counting sort of the edges by cell: `starts[j, c]` edges are in cells below c.
            starts[j, _grid_cell(table[j, e], low, scale) + 1] += 1
        for c in range(_GRID_CELLS + 1):
            starts[j, c + 1] += starts[j, c]
    # 256 rows at a time, so that they are still cached when the next feature is read.
    for start in range(0, n, 256):
        stop = start + 256 if start + 256 < n else n
        for j in range(d):
            edges, cell_starts, low, scale = table[j], starts[j], lows[j], scales[j]
            for i in range(start, stop):
                value = np.float64(X[i, j])
                b = missing
                if value == value:
                    # Edges of lower cells are smaller than the value, those of higher cells are
                    # not.
                    c = _grid_cell(value, low, scale)
                    b, end = cell_starts[c], cell_starts[c + 1]
                    while end - b > 2:
                        middle = (b + end) >> 1
                        if edges[middle] < value:
                            b = middle + 1
                        else:
                            end = middle
                    # Without a branch: edges beyond the end, or infinite ones, are not smaller.
                    b += edges[b] < value
                    b += edges[b] < value
                    # For categories only exact matches count; unknown ones are missing.
                    if categorical[j] and (b >= n_edges[j] or edges[b] != value):
                        b = missing
                if b == missing:
                    has_missing[j] = 1
                rows[i, j] = b
                columns[j, i] = b


@_inside
def _grid_cell(value: Any, low: Any, scale: Any) -> Any:
    """Return the cell of a value in an even grid; it is monotonic in the value."""
    cell = (value - low) * scale
    if cell >= _GRID_CELLS:
        return _GRID_CELLS
    return np.int64(cell) if cell > 0 else 0


#: Rows that go through all trees together.
_TREE_ROWS = 256


@_exact
def add_binned_values(
    rows: Any, feature: Any, left_child: Any, tables: Any, value: Any, out: Any
) -> None:
    """Add a tree's values of binned rows to `out`; `tables` has, per node, which bins go left."""
    for i in range(len(out)):
        k = 0
        while feature[k] >= 0:
            k = left_child[k] + 1 - tables[k, rows[i, feature[k]]]
        out[i] += value[k]


@_exact
def add_tree_values(
    X: Any, roots: Any, first: int, last: int, n_outputs: int, feature: Any, threshold: Any,
    left_child: Any, missing_left: Any, category: Any, bitsets: Any, value: Any, out: Any,
) -> None:  # fmt: skip
    """Add the values of trees `first` to `last` to raw predictions.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
        Categories by number; NaN if missing or unknown.
    roots : ndarray of int64 of shape (n_trees + 1,)
    first, last, n_outputs : int
    feature, threshold, left_child, missing_left, category, bitsets, value : ndarray
        Arrays of `models.trees.Trees`.
    out : ndarray of float64 of shape (n, n_outputs)
    """
    for start in range(0, len(X), _TREE_ROWS):
        stop = min(len(X), start + _TREE_ROWS)
        for t in range(first, last):
            root, output = roots[t], (t - first) % n_outputs
            for i in range(start, stop):
                k = root
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
                out[i, output] += value[k]
