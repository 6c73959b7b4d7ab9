"""Compiled loops of SHAP values of trees: contributions of features to predictions of rows.

Importing this module loads numba, so it is imported at first use.

References
----------
S. Lundberg et al., "From local explanations to global understanding with explainable AI for trees",
Nature Machine Intelligence 2, 2020: path-dependent and interventional values. P. Yu et al., "Linear
TreeShap", NeurIPS 2022: sums over subsets as products of polynomials that are shared along paths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Rows that path-dependent values take side by side: vectors of eight numbers.
LANES = 8

#: Patterns of a leaf whose contributions are remembered; a power of two.
_REMEMBERED = 64


@_inside
def _passes_left(
    x: Any, k: Any, threshold: Any, missing_left: Any, category: Any, bitsets: Any
) -> Any:
    """Return whether a value goes to the left child of a node."""
    if x != x:
        return missing_left[k]
    if category[k] >= 0:
        c = np.uint64(x)
        return (bitsets[category[k], c >> np.uint64(6)] >> (c & np.uint64(63))) & np.uint64(1) == 1
    return x <= threshold[k]


@_inside
def _write_ways(rows: Any, i: Any, root: Any, end: Any, nodes: Any, out: Any) -> None:
    """Write 1 where a row goes left at an inner node of a tree, else 0, for a group of rows."""
    feature, threshold, _left, missing_left, category, bitsets = nodes
    for k in range(root, end):
        if feature[k] < 0:
            continue
        f, at, limit = feature[k], k - root, threshold[k]
        missing = 1.0 if missing_left[k] else 0.0
        if category[k] >= 0:
            for r in range(LANES):
                passes = _passes_left(rows[i, f, r], k, threshold, missing_left, category, bitsets)
                out[at, r] = 1.0 if passes else 0.0
        else:
            for r in range(LANES):
                x = rows[i, f, r]
                way = 1.0 if x <= limit else 0.0
                out[at, r] = way if x == x else missing


@_exact
def add_path_values(
    rows: Any, roots: Any, n_outputs: int, nodes: Any, parent: Any, before: Any, factors: Any,
    gains: Any, weights: Any, value: Any, out: Any,
) -> None:  # fmt: skip
    """Add the path-dependent values of all trees to the contributions of rows.

    Parameters
    ----------
    rows : ndarray of float64 of shape (n_groups, n_features, LANES)
        `LANES` rows side by side, for vectors of the processor. Categories by their numbers, NaN
        where they are missing or unknown.
    roots : ndarray of int64 of shape (n_trees + 1,)
    n_outputs : int
        Trees go to the outputs in turn, where `value` has one column; else 1.
    nodes : tuple
        Of `models.trees.Trees`: feature, threshold, left, missing_left, category, bitsets.
    parent : ndarray of int32 of shape (n_nodes,)
    before : ndarray of int32 of shape (n_nodes,)
        Node above whose edge asked for the feature of this node's edge last; -1: none did.
    factors, gains : ndarray of float64 of shape (n_nodes, 3, n_points)
        At each point of the quadrature, by the state of the edge into a node: the factor of the
        products along the path, and what the feature gains of the sum below.
        States: 0, the row left the feature's conditions above; 1, it leaves here; 2, it stays.
    weights : ndarray of float64 of shape (n_points,)
        Of the quadrature.
    value : ndarray of float64 of shape (n_nodes, n_values)
    out : ndarray of float64 of shape (n_groups, n_features, n_outputs or n_values, LANES)
    """
    feature, left = nodes[0], nodes[2]
    n_points, n_values = len(weights), value.shape[1]
    largest = 0
    for t in range(len(roots) - 1):
        largest = max(largest, roots[t + 1] - roots[t])
    # By node: whether a row goes left; whether it has kept to the edge's feature above, and still
    # does; products over the features of the path; sums over the leaves below.
    ways, held, kept = np.empty((3, largest, LANES))
    products, sums = np.empty((2, largest, n_points, LANES))
    # A tree's tables stay in the cache while it explains many rows.
    for t in range(len(roots) - 1):
        root, end = roots[t], roots[t + 1]
        for i in range(len(rows)):
            _write_ways(rows, i, root, end, nodes, ways)
            for q in range(n_points):
                for r in range(LANES):
                    products[0, q, r] = weights[q]
            # Down: children lie behind their parent, so that the order of nodes will do.
            for k in range(root + 1, end):
                at, above, last = k - root, parent[k] - root, before[k] - root
                is_left, has_last = left[parent[k]] == k, before[k] >= 0
                for r in range(LANES):
                    way = ways[above, r]
                    stays = way if is_left else 1.0 - way
                    holds = kept[last, r] if has_last else 1.0
                    held[at, r], kept[at, r] = holds, holds * stays
                _multiply_lanes(products, above, at, held, kept, factors, k)
            # Up: each node's sums go to its parent, and its edge's feature has a part of them.
            for v in range(n_values):
                column = t % n_outputs if n_values == 1 else v
                for k in range(end - 1, root, -1):
                    at, above = k - root, parent[k] - root
                    if feature[k] < 0:
                        worth = value[k, v]
                        for q in range(n_points):
                            for r in range(LANES):
                                sums[at, q, r] = worth * products[at, q, r]
                    # The right child comes first, and begins the sums of its parent.
                    is_first, f = left[parent[k]] != k, feature[parent[k]]
                    _add_gains(sums, at, above, held, kept, gains, k, is_first, out, i, f, column)


# The parts of a step take whole arrays and places: a view would be counted, which takes longer than
# the arithmetic. They read four rows before they write any, as the compiler cannot tell that two
# places are apart, and would not make vectors of rows that are written one by one.


@_inside
def _multiply_lanes(
    products: Any, above: Any, at: Any, held: Any, kept: Any, factors: Any, k: Any
) -> None:
    """Write a node's products: its parent's, times the factor of each row's state."""
    for r in range(0, LANES, 4):
        ha, hb, hc, hd = held[at, r], held[at, r + 1], held[at, r + 2], held[at, r + 3]
        ka, kb, kc, kd = kept[at, r], kept[at, r + 1], kept[at, r + 2], kept[at, r + 3]
        for q in range(products.shape[1]):
            left_above, leaves, stays = factors[k, 0, q], factors[k, 1, q], factors[k, 2, q]
            a, b = products[above, q, r], products[above, q, r + 1]
            c, d = products[above, q, r + 2], products[above, q, r + 3]
            fa = stays if ka > 0 else (leaves if ha > 0 else left_above)
            fb = stays if kb > 0 else (leaves if hb > 0 else left_above)
            fc = stays if kc > 0 else (leaves if hc > 0 else left_above)
            fd = stays if kd > 0 else (leaves if hd > 0 else left_above)
            a, b, c, d = a * fa, b * fb, c * fc, d * fd
            products[at, q, r], products[at, q, r + 1] = a, b
            products[at, q, r + 2], products[at, q, r + 3] = c, d


@_inside
def _add_gains(
    sums: Any, at: Any, above: Any, held: Any, kept: Any, gains: Any, k: Any, is_first: Any,
    out: Any, i: Any, f: Any, column: Any,
) -> None:  # fmt: skip
    """Add a node's sums to its parent's, and to `out` what its edge's feature gains of them."""
    for r in range(0, LANES, 4):
        ka, kb = kept[at, r] > 0, kept[at, r + 1] > 0
        kc, kd = kept[at, r + 2] > 0, kept[at, r + 3] > 0
        wa = wb = wc = wd = 0.0
        for q in range(sums.shape[1]):
            a, b, c, d = sums[at, q, r], sums[at, q, r + 1], sums[at, q, r + 2], sums[at, q, r + 3]
            leaves, stays = gains[k, 1, q], gains[k, 2, q]
            wa += a * (stays if ka else leaves)
            wb += b * (stays if kb else leaves)
            wc += c * (stays if kc else leaves)
            wd += d * (stays if kd else leaves)
            if not is_first:
                a, b = a + sums[above, q, r], b + sums[above, q, r + 1]
                c, d = c + sums[above, q, r + 2], d + sums[above, q, r + 3]
            sums[above, q, r], sums[above, q, r + 1] = a, b
            sums[above, q, r + 2], sums[above, q, r + 3] = c, d
        # Of a row that left the feature above nothing is gained here.
        out[i, f, column, r] += wa * held[at, r]
        out[i, f, column, r + 1] += wb * held[at, r + 1]
        out[i, f, column, r + 2] += wc * held[at, r + 2]
        out[i, f, column, r + 3] += wd * held[at, r + 3]


@_exact
def write_patterns(
    X: Any, first: int, last: int, nodes: Any, parent: Any, slot: Any, out: Any
) -> None:
    """Write for each row and leaf which features of the leaf's path have all conditions met.

    Parameters
    ----------
    first, last : int
        Nodes of a tree.
    slot : ndarray of int32 of shape (n_nodes,)
        Place of the feature of the edge into a node among those of its path: its bit.
    out : ndarray of uint64 of shape (n, last - first)
        Of leaves and inner nodes; a bit is set where the row leaves the path by the feature.
    """
    feature, threshold, left, missing_left, category, bitsets = nodes
    for i in range(len(X)):
        out[i, 0] = 0
        for k in range(first + 1, last):
            above = parent[k]
            goes_left = _passes_left(
                np.float64(X[i, feature[above]]), above, threshold, missing_left, category, bitsets
            )
            left_by = np.uint64(goes_left != (left[above] == k))
            out[i, k - first] = out[i, above - first] | (left_by << np.uint64(slot[k]))


@_exact
def add_interventional_values(
    patterns: Any, leaves: Any, sizes: Any, features: Any, known: Any, counts: Any, starts: Any,
    of_both: Any, value: Any, output: int, out: Any,
) -> None:  # fmt: skip
    """Add the interventional values of a tree to the contributions of rows.

    A leaf pays a feature by which the row stays on the path and a background row leaves it, and
    charges one by which the background row alone stays, as long as one of both stays by each other
    feature (Lundberg et al. 2020, algorithm 3).

    Parameters
    ----------
    patterns : ndarray of uint64 of shape (n, n_nodes)
        Of :func:`write_patterns`, of the rows.
    leaves : ndarray of int64 of shape (n_leaves,)
    sizes : ndarray of int64 of shape (n_leaves,)
        Number of features of each leaf's path.
    features : ndarray of int32 of shape (n_leaves, most features)
    known : ndarray of uint64
        Patterns of the background rows at each leaf, distinct, one leaf behind the other.
    counts : ndarray of float64
        Shares of the background rows that have these.
    starts : ndarray of int64 of shape (n_leaves + 1,)
    of_both : ndarray of float64 of shape (most + 1, most + 1)
        ``a! b! / (a + b + 1)!``.
    value : ndarray of float64 of shape (n_nodes, n_values)
    output : int
        Column of trees of one value.
    out : ndarray of float64 of shape (n, n_features, n_columns)
    """
    n_values, most = value.shape[1], features.shape[1]
    remembered = np.empty((len(leaves), _REMEMBERED), np.uint64)
    is_known = np.zeros((len(leaves), _REMEMBERED), np.bool_)
    # Contributions of each feature of a leaf of value 1, of the last patterns of rows.
    shares = np.empty((len(leaves), _REMEMBERED, most))
    for i in range(len(patterns)):
        for j in range(len(leaves)):
            size, own = sizes[j], patterns[i, leaves[j]]
            place = (own ^ (own >> np.uint64(6)) ^ (own >> np.uint64(12))) & np.uint64(
                _REMEMBERED - 1
            )
            if not is_known[j, place] or remembered[j, place] != own:
                is_known[j, place], remembered[j, place] = True, own
                _share_leaf(
                    own, size, known, counts, starts[j], starts[j + 1], of_both, shares[j, place]
                )
            for f in range(size):
                share = shares[j, place, f]
                if share != 0:
                    for v in range(n_values):
                        column = output if n_values == 1 else v
                        out[i, features[j, f], column] += share * value[leaves[j], v]


@_inside
def _share_leaf(
    own: Any, size: Any, known: Any, counts: Any, start: Any, stop: Any, of_both: Any, out: Any
) -> None:
    """Write the contributions to a leaf of value 1, given the row's pattern."""
    for f in range(size):
        out[f] = 0.0
    for b in range(start, stop):
        other = known[b]
        # Nobody reaches the leaf where both leave the path by one feature.
        if own & other:
            continue
        n_pays, n_charges = 0, 0
        for f in range(size):
            bit = np.uint64(1) << np.uint64(f)
            n_pays += (other & bit) != 0
            n_charges += (own & bit) != 0
        pays = counts[b] * of_both[n_pays - 1, n_charges] if n_pays else 0.0
        charges = counts[b] * of_both[n_pays, n_charges - 1] if n_charges else 0.0
        for f in range(size):
            bit = np.uint64(1) << np.uint64(f)
            if other & bit:
                out[f] += pays
            elif own & bit:
                out[f] -= charges
