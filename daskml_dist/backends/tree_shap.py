"""Compiled loops of SHAP values of trees: contributions of features to predictions of rows.

Importing this module loads numba, so it is imported at first use. Both kinds of values walk a tree
depth-first, with all rows of a call at each node, so that the state of a path is a stack as deep as
the tree, which stays in the L1 cache.

References
----------
S. Lundberg et al., "From local explanations to global understanding with explainable AI for trees",
Nature Machine Intelligence 2, 2020: path-dependent and interventional values. P. Yu et al., "Linear
TreeShap", NeurIPS 2022: sums over subsets as products of polynomials that are shared along paths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.intrinsics import (
    VECTOR_BYTES,
    add_vectors,
    broadcast_number,
    load_vector,
    multiply_add,
    number_at,
    store_vector,
    zero_vector,
)

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")
#: Number of zeros below the lowest set bit.
_zeros_below: Any = trailing_zeros

#: Rows that path-dependent values process in parallel: the float64 numbers of a vector, and of
#: several vectors, so that there is work while one of them waits for its last sum.
LANES = VECTOR_BYTES // 8
GROUP_LANES = 4 * LANES
#: Numbers per edge at each point of the quadrature, for `add_path_values`.
EDGE_NUMBERS = 5
#: Up to this many rows, interventional values search for the background rows that matter for a
#: leaf.
_FEW_ROWS = 16
#: Bytes of these numbers at one point, as float64.
_EDGE_BYTES = 8 * EDGE_NUMBERS


@_exact
def describe_edges(
    roots: Any, left_child: Any, feature: Any, depth: Any, cover: Any, order: Any, parent: Any,
    last: Any, slot: Any, n_features: Any, shares: Any,
) -> None:  # fmt: skip
    """Describe the edge into each node of all trees.

    Parameters
    ----------
    roots : ndarray of int64 of shape (n_trees + 1,)
    left_child, feature, depth : ndarray of int32 of shape (n_nodes,)
        Arrays of `models.trees.Trees`.
    cover : ndarray of float64 of shape (n_nodes,)
        Weight of the training rows at each node.
    order, parent : ndarray of int32 of shape (n_nodes,)
        Set to the nodes of each tree in depth-first order, left children first; and to the parent
        of each node (a root is its own).
    last : ndarray of int32 of shape (n_nodes,)
        Set to the depth of the node above whose edge has the same feature; -1: none.
    slot : ndarray of int32 of shape (n_nodes,)
        Set to the position of an edge's feature among those of the path.
    n_features : ndarray of int32 of shape (n_nodes,)
        Set to the number of features on the path to a node.
    shares : ndarray of float64 of shape (n_nodes, 2)
        Set to the share of training rows that follow the path by the edge's feature: on all edges
        of the path with this feature, and on those above this one.
    """
    largest = 0
    for t in range(len(roots) - 1):
        largest = max(largest, roots[t + 1] - roots[t])
    waiting = np.empty(largest + 1, np.int64)
    for t in range(len(roots) - 1):
        root = roots[t]
        parent[root], last[root], slot[root], n_features[root] = root, -1, 0, 0
        shares[root, 0] = shares[root, 1] = 1.0
        waiting[0], n, position = root, 1, root
        while n:
            n -= 1
            k = waiting[n]
            order[position] = k
            position += 1
            if k != root:
                above = parent[k]
                # Climb to the edge above with the same feature.
                same = above
                while same != root and feature[parent[same]] != feature[above]:
                    same = parent[same]
                last[k] = depth[same] if same != root else -1
                slot[k] = slot[same] if same != root else n_features[above]
                n_features[k] = n_features[above] + (same == root)
                shares[k, 1] = shares[same, 0]
                step = cover[k] / cover[above] if cover[above] > 0 else 0.0
                shares[k, 0] = shares[k, 1] * step
            if feature[k] >= 0:
                parent[left_child[k]] = parent[left_child[k] + 1] = k
                waiting[n], waiting[n + 1] = left_child[k] + 1, left_child[k]
                n += 2


@_inside
def _passes_left(
    x: Any, k: Any, threshold: Any, missing_left: Any, category: Any, bitsets: Any
) -> Any:
    """Return whether a value goes to the left child of a node."""
    return _goes_left(x, threshold[k], missing_left[k], category[k], bitsets)


@_inside
def _goes_left(x: Any, limit: Any, missing_left: Any, set_index: Any, bitsets: Any) -> Any:
    """Return whether a value goes left: by a limit, or by a set of categories (-1: none)."""
    if x != x:
        return missing_left != 0
    if set_index >= 0:
        c = np.uint64(x)
        return (bitsets[set_index, c >> np.uint64(6)] >> (c & np.uint64(63))) & np.uint64(1) == 1
    return x <= limit


# --- path-dependent values ----------------------------------------------------------------------


@_inside
def _write_ways(rows: Any, i: Any, k: Any, nodes: Any, out: Any, out_row: Any) -> None:
    """Write 1 if a row goes left at a node, else 0, for a group of rows."""
    feature, threshold, _left, missing_left, category, bitsets = nodes
    f, limit = feature[k], threshold[k]
    missing = 1.0 if missing_left[k] else 0.0
    if category[k] >= 0:
        for r in range(rows.shape[2]):
            passes = _passes_left(rows[i, f, r], k, threshold, missing_left, category, bitsets)
            out[out_row, r] = 1.0 if passes else 0.0
    else:
        for r in range(rows.shape[2]):
            x = rows[i, f, r]
            way = 1.0 if x <= limit else 0.0
            out[out_row, r] = way if x == x else missing


@_exact
def add_path_values(
    rows: Any, trees: Any, starts: Any, roots: Any, n_outputs: int, nodes: Any, edges: Any,
    depth: Any, deepest: int, tables: Any, weights: Any, value: Any, scratch: Any, out: Any,
) -> None:  # fmt: skip
    """Add the path-dependent values of some trees to the contributions of rows.

    At each point of the quadrature, a node has the product of the factors of the edges above it,
    and the sum of its leaves' values times their products. Both are kept on stacks as deep as the
    tree.

    Parameters
    ----------
    rows : ndarray of float64 of shape (n_groups, n_features, width)
        Rows in parallel, a multiple of `LANES`: some vectors of the processor. Categories by
        number; NaN if missing or unknown.
    trees, starts : ndarray of int64
        Numbers of the trees, and the position in `tables` of the first node of each.
    roots : ndarray of int64 of shape (n_all_trees + 1,)
    n_outputs : int
        If `value` has one column, trees belong to the outputs in turn; else 1.
    nodes : tuple
        Arrays of `models.trees.Trees`: feature, threshold, left, missing_left, category, bitsets.
    edges : tuple
        From :func:`describe_edges`: order, parent, last.
    depth : ndarray of int32 of shape (n_nodes,)
    deepest : int
        Largest depth of all trees.
    tables : ndarray of float64 of shape (n_nodes of these trees, n_points, EDGE_NUMBERS)
        At each point, for the edge into a node: the factor of a row that failed the feature's
        conditions above, the amount added to it if the row met them above, and the amount added if
        it still meets them here; the factor by which the feature gains from the sum below if the
        row met them above, and the amount added to that if it still does.
    weights : ndarray of float64 of shape (n_points,)
        Weights of the quadrature.
    value : ndarray of float64 of shape (n_nodes, n_values)
    scratch : ndarray of float64 of shape ((deepest + 1) * (3 + n_points * (1 + n_values)), width)
        Scratch, aligned to a cache line.
    out : ndarray of float64 of shape (n_groups, n_features, n_outputs or n_values, width)
    """
    feature, left = nodes[0], nodes[2]
    order, parent, last = edges
    dtype = weights.dtype
    n_points, n_values = len(weights), value.shape[1]
    n_all, n_columns, width = out.shape[1:]
    # Vectors are read and written by address: a view would be reference-counted, which takes longer
    # than the arithmetic. Stacks by depth: whether a row goes left at the node above, whether it
    # has met the conditions of the edge's feature above, and whether it still does; products, and
    # sums of the node.
    line = 8 * width
    node_bytes, sum_bytes = n_points * line, n_values * n_points * line
    level = (deepest + 1) * line
    ways_at = np.int64(scratch.ctypes.data)
    held_at, kept_at, products_at = ways_at + level, ways_at + 2 * level, ways_at + 3 * level
    sums_at, out_at = products_at + n_points * level, np.int64(out.ctypes.data)
    zero, one = zero_vector(dtype), broadcast_number(dtype.type(1))
    minus_one = broadcast_number(dtype.type(-1))
    for q in range(n_points):
        for g in range(0, line, VECTOR_BYTES):
            store_vector(products_at + q * line + g, broadcast_number(weights[q]))
    # A tree's tables stay in the cache while it explains many rows.
    for number in range(len(trees)):
        t = trees[number]
        root, end = roots[t], roots[t + 1]
        tables_at = np.int64(tables.ctypes.data) + starts[number] * n_points * _EDGE_BYTES
        for i in range(len(rows)):
            for p in range(root + 1, end):
                k: Any = np.int64(order[p])
                d, above = depth[k], parent[k]
                is_left, has_last = left[above] == k, last[k] >= 0
                # Down: the state of the rows at the edge, and their products.
                if is_left:
                    _write_ways(rows, i, above, nodes, scratch, d)
                edge = tables_at + (k - root) * n_points * _EDGE_BYTES
                for g in range(d * line, (d + 1) * line, VECTOR_BYTES):
                    way = load_vector(ways_at + g, dtype)
                    if not is_left:
                        # The left sibling's result, inverted.
                        way = multiply_add(way, minus_one, one)
                    holds = one
                    if has_last:
                        holds = load_vector(kept_at + g + (last[k] - d) * line, dtype)
                    keeps = multiply_add(holds, way, zero)
                    store_vector(held_at + g, holds)
                    store_vector(kept_at + g, keeps)
                    address = products_at + d * node_bytes + g - d * line
                    for q in range(n_points):
                        numbers = edge + q * _EDGE_BYTES
                        factor = broadcast_number(number_at(numbers, 0, dtype))
                        coefficient = broadcast_number(number_at(numbers, 1, dtype))
                        factor = multiply_add(holds, coefficient, factor)
                        coefficient = broadcast_number(number_at(numbers, 2, dtype))
                        factor = multiply_add(keeps, coefficient, factor)
                        product = load_vector(address - node_bytes + q * line, dtype)
                        store_vector(address + q * line, multiply_add(product, factor, zero))
                if feature[k] >= 0:
                    continue
                for v in range(n_values):
                    worth = broadcast_number(value[k, v])
                    address = products_at + d * node_bytes
                    sum_address = sums_at + d * sum_bytes + v * node_bytes
                    for g in range(0, node_bytes, VECTOR_BYTES):
                        product = load_vector(address + g, dtype)
                        store_vector(sum_address + g, multiply_add(product, worth, zero))
                # Up, while both children of a node are done: each node's sums are added to its
                # parent, and its edge's feature gains from them.
                while True:
                    above = parent[k]
                    is_left = left[above] == k
                    edge = tables_at + (k - root) * n_points * _EDGE_BYTES
                    for v in range(n_values):
                        column = t % n_outputs if n_values == 1 else v
                        place = (i * n_all + feature[above]) * n_columns + column
                        below = sums_at + d * sum_bytes + v * node_bytes
                        for g in range(0, line, VECTOR_BYTES):
                            gain, coefficient = zero, zero
                            for q in range(n_points):
                                numbers = edge + q * _EDGE_BYTES
                                address = below + q * line + g
                                child_sum = load_vector(address, dtype)
                                factor = broadcast_number(number_at(numbers, 3, dtype))
                                gain = multiply_add(child_sum, factor, gain)
                                factor = broadcast_number(number_at(numbers, 4, dtype))
                                coefficient = multiply_add(child_sum, factor, coefficient)
                                # The left child comes first, and initialises the sums of its
                                # parent.
                                if not is_left:
                                    child_sum = add_vectors(
                                        child_sum, load_vector(address - sum_bytes, dtype)
                                    )
                                store_vector(address - sum_bytes, child_sum)
                            holds = load_vector(held_at + d * line + g, dtype)
                            keeps = load_vector(kept_at + d * line + g, dtype)
                            address = out_at + place * line + g
                            contribution = multiply_add(holds, gain, load_vector(address, dtype))
                            store_vector(address, multiply_add(keeps, coefficient, contribution))
                    k, d = above, d - 1
                    if is_left or k == root:
                        break


# --- interventional values ------------------------------------------------------------------------


@_inside
def _count_bits(word: Any) -> Any:
    """Return the number of set bits."""
    n = 0
    while word != np.uint64(0):
        word &= word - np.uint64(1)
        n += 1
    return n


@_inside
def _mark_leavers(
    columns: Any, k: Any, is_left: Any, nodes: Any, patterns: Any, d: Any, feature_bit: Any
) -> None:
    """Write the patterns at a child of node k: those above, plus the bit if a row leaves the path.

    `patterns` holds those of rows by depth; `d` is the child's depth.
    """
    feature, threshold, _left, missing_left, category, bitsets = nodes
    column, above, child_patterns = columns[feature[k]], patterns[d - 1], patterns[d]
    limit, missing, nothing = threshold[k], missing_left[k], np.uint64(0)
    if category[k] >= 0:
        for r in range(len(column)):
            passes = _passes_left(column[r], k, threshold, missing_left, category, bitsets)
            child_patterns[r] = above[r] | (nothing if passes == is_left else feature_bit)
    else:
        for r in range(len(column)):
            x = column[r]
            passes = x <= limit if x == x else missing
            child_patterns[r] = above[r] | (nothing if passes == is_left else feature_bit)


@_inside
def _find_place(pattern: Any, known_patterns: Any, marks: Any, mark: Any) -> Any:
    """Return the position of a pattern in a hash table, or the free entry for it.

    The length of the table is a power of two; entries with the current mark are used.
    """
    last = np.uint64(len(known_patterns) - 1)
    place = ((pattern * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & last
    while marks[place] == mark and known_patterns[place] != pattern:
        place = (place + np.uint64(1)) & last
    return place


@_exact
def add_interventional_values(
    columns: Any, background: Any, roots: Any, n_outputs: int, nodes: Any, edges: Any, depth: Any,
    max_depth: int, max_features: int, of_both: Any, value: Any, out: Any,
) -> None:  # fmt: skip
    """Add the interventional values of all trees to the contributions of rows.

    A leaf adds to a feature by which the row stays on the path and a background row leaves it, and
    subtracts from one by which only the background row stays, if for each other feature at least
    one of them stays (Lundberg et al. 2020, algorithm 3). The contribution depends on the features
    by which the row leaves, a pattern of bits, and is computed once for all rows of the same
    pattern.

    Parameters
    ----------
    columns : ndarray of float64 of shape (n_features, n)
        Categories by number; NaN if missing or unknown.
    background : ndarray of float64 of shape (n_features, n_background)
    roots : ndarray of int64 of shape (n_trees + 1,)
    n_outputs : int
        If `value` has one column, trees belong to the outputs in turn; else 1.
    nodes : tuple
        Arrays of `models.trees.Trees`: feature, threshold, left, missing_left, category, bitsets.
    edges : tuple
        From :func:`describe_edges`: order, parent, slot, n_features.
    depth : ndarray of int32 of shape (n_nodes,)
    max_depth, max_features : int
        Largest depth, and maximum features of a path.
    of_both : ndarray of float64 of shape (most + 1, most + 1)
        ``a! b! / (a + b + 1)!``, divided by the number of background rows.
    value : ndarray of float64 of shape (n_nodes, n_values)
    out : ndarray of float64 of shape (n_features, n_outputs or n_values, n)
    """
    feature, threshold, left, missing_left, category, bitsets = nodes
    nothing = np.uint64(0)
    order, parent, slot, n_features = edges
    n, n_background, n_values = columns.shape[1], background.shape[1], value.shape[1]
    # Patterns by depth: a bit is set if a row leaves the path by the feature of the slot.
    row_patterns = np.zeros((max_depth + 1, n), np.uint64)
    other_patterns = np.zeros((max_depth + 1, n_background), np.uint64)
    # For few rows, few background rows matter at most nodes; for many rows nearly all do.
    few_rows = n <= _FEW_ROWS
    kept_rows = np.empty((max_depth + 1, n_background if few_rows else 1), np.int64)
    n_kept = np.full(max_depth + 1, n_background)
    if few_rows:
        kept_rows[0] = np.arange(n_background)
    path = np.empty(max_features + 1, np.int64)
    # Distinct patterns of the background at a leaf, their sizes and numbers of rows; and, as bits,
    # which of them stay on the path by each feature.
    n_words = (n_background + 63) // 64
    other, sizes = np.empty(n_background, np.uint64), np.empty(n_background, np.int64)
    counts = np.empty(n_background)
    stays = np.empty((max_features + 1, n_words), np.uint64)
    size = 64
    while size < 2 * max(n, n_background):
        size *= 2
    known_patterns, numbers = np.empty(size, np.uint64), np.empty(size, np.int64)
    marks, mark = np.zeros(size, np.int64), 0
    # Contributions of a leaf of value 1, by feature and pattern of rows; the rows that have any,
    # and the numbers of their patterns.
    shares = np.empty((max_features + 1, n))
    active, which = np.empty(n, np.int64), np.empty(n, np.int64)
    for t in range(len(roots) - 1):
        root, end = roots[t], roots[t + 1]
        for p in range(root + 1, end):
            k = order[p]
            d, above = depth[k], parent[k]
            bit = np.uint64(1) << np.uint64(slot[k])
            path[slot[k]] = feature[above]
            if n_kept[d - 1] == 0:
                n_kept[d] = 0
                continue
            is_left = left[above] == k
            if few_rows:
                # If a row and a background row leave the path by the same feature, no leaf below
                # matters for the two. The node's data is read here: a call with all the arrays
                # would count references to each.
                column, node_category = feature[above], category[above]
                limit, missing = threshold[above], missing_left[above]
                for r in range(n):
                    passes = _goes_left(columns[column, r], limit, missing, node_category, bitsets)
                    row_patterns[d, r] = row_patterns[d - 1, r] | (
                        nothing if passes == is_left else bit
                    )
                n_left = 0
                for i in range(n_kept[d - 1]):
                    b, pattern = kept_rows[d - 1, i], other_patterns[d - 1, i]
                    passes = _goes_left(
                        background[column, b], limit, missing, node_category, bitsets
                    )
                    if passes != is_left:
                        pattern |= bit
                    is_needed = False
                    for r in range(n):
                        is_needed |= row_patterns[d, r] & pattern == nothing
                    kept_rows[d, n_left], other_patterns[d, n_left] = b, pattern
                    n_left += is_needed
                n_kept[d] = n_left
            else:
                _mark_leavers(columns, above, is_left, nodes, row_patterns, d, bit)
                _mark_leavers(background, above, is_left, nodes, other_patterns, d, bit)
            if feature[k] >= 0 or n_kept[d] == 0:
                continue
            n_slots = n_features[k]
            mark += 1
            n_other = 0
            for b in range(n_kept[d]):
                pattern = other_patterns[d, b]
                place = _find_place(pattern, known_patterns, marks, mark)
                if marks[place] != mark:
                    marks[place], known_patterns[place], numbers[place] = mark, pattern, n_other
                    other[n_other], counts[n_other] = pattern, 0.0
                    sizes[n_other] = _count_bits(pattern)
                    n_other += 1
                counts[numbers[place]] += 1.0
            for s in range(n_slots + 1):
                for w in range(n_words):
                    stays[s, w] = np.uint64(0)
            for b in range(n_other):
                word, place_bit = b >> 6, np.uint64(1) << np.uint64(b & 63)
                # After the features: all patterns.
                stays[n_slots, word] |= place_bit
                for s in range(n_slots):
                    if (other[b] >> np.uint64(s)) & np.uint64(1) == np.uint64(0):
                        stays[s, word] |= place_bit
            mark += 1
            n_known, n_active = 0, 0
            for r in range(n):
                pattern = row_patterns[d, r]
                place = _find_place(pattern, known_patterns, marks, mark)
                if marks[place] != mark:
                    pays = _share_leaf(
                        pattern, n_slots, other, sizes, counts, stays, of_both, shares, n_known
                    )
                    marks[place], known_patterns[place] = mark, pattern
                    numbers[place] = n_known if pays else -1
                    n_known += pays
                if numbers[place] >= 0:
                    active[n_active], which[n_active] = r, numbers[place]
                    n_active += 1
            for v in range(n_values):
                worth = value[k, v]
                if worth == 0:
                    continue
                column = t % n_outputs if n_values == 1 else v
                for s in range(n_slots):
                    for a in range(n_active):
                        out[path[s], column, active[a]] += worth * shares[s, which[a]]


@_inside
def _share_leaf(
    row_pattern: Any, n_slots: Any, other_patterns: Any, sizes: Any, counts: Any, stays: Any,
    of_both: Any, out: Any, column: Any,
) -> Any:  # fmt: skip
    """Write the contributions to a leaf of value 1, given the row's pattern; return whether any."""
    for s in range(n_slots):
        out[s, column] = 0.0
    n_own, charged, pays_any = _count_bits(row_pattern), 0.0, False
    for w in range(stays.shape[1]):
        # Only background rows that stay wherever the row leaves: otherwise neither reaches the
        # leaf.
        reach, remaining = stays[n_slots, w], row_pattern
        while remaining != np.uint64(0) and reach != np.uint64(0):
            reach &= stays[_zeros_below(remaining), w]
            remaining &= remaining - np.uint64(1)
        while reach != np.uint64(0):
            b = 64 * w + np.int64(_zeros_below(reach))
            reach &= reach - np.uint64(1)
            n_other = sizes[b]
            if n_own:
                charged += counts[b] * of_both[n_other, n_own - 1]
            if n_other:
                paid = counts[b] * of_both[n_other - 1, n_own]
                remaining = other_patterns[b]
                while remaining != np.uint64(0):
                    out[_zeros_below(remaining), column] += paid
                    remaining &= remaining - np.uint64(1)
            pays_any = pays_any or n_own + n_other > 0
    remaining = row_pattern
    while remaining != np.uint64(0):
        out[_zeros_below(remaining), column] -= charged
        remaining &= remaining - np.uint64(1)
    return pays_any
