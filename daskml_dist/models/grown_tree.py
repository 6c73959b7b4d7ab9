"""Trees as grown, with integer sums in each node, and their conversion to prediction trees.

Growth produces a `GrownTree`. It can be cut to a number of leaves or pruned by cost complexity;
`TreeConverter` turns the sums into values, impurities and thresholds of a `Tree`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.criteria import Criterion
from daskml_dist.models.trees import Tree

Array = NDArray[Any]


@dataclass(eq=False)
class GrownTree:
    """Nodes of a tree during and after growth; children are stored after their parents.

    The right child of a node is always stored directly after the left one, so only the left one's
    index is kept. After :meth:`compacted`, the order is that of a depth-first walk that lists both
    children of a node, then the nodes below the left one, then those below the right one.

    Parameters
    ----------
    feature, left, depth : ndarray of int32 of shape (n_nodes,)
        For a leaf, `feature` is -1 and `left` is the leaf's own index.
    cut : ndarray of int64 of shape (n_nodes, 3)
        Last bin of the node's rows that go left, first bin of those that go right (-1 if only
        missing values go right), and whether missing values go left.
    threshold : ndarray of float64 of shape (n_nodes,)
        Threshold that was drawn at random; NaN if the threshold is between the two bins of `cut`.
    sums : ndarray of int64 of shape (n_nodes, n_sums + 2)
        Sums of the criterion, then the packed total (weight and number of rows in one integer),
        then the term of the impurity. For absolute error, medians and the term are bit patterns of
        float64.
    gain : ndarray of float64 of shape (n_nodes,)
        Impurity decrease of the split in the criterion's integer units; 0 at leaves.
    bounds : ndarray of float64 of shape (n_nodes, 2) or (0, 2)
        Lower and upper bound of the node's value; empty without monotonic constraints.
    """

    feature: Array
    cut: Array
    threshold: Array
    left: Array
    depth: Array
    sums: Array
    gain: Array
    bounds: Array

    @classmethod
    def empty(cls, n: int, n_sums: int, bounded: bool) -> GrownTree:
        """Return a tree of uninitialised arrays for `n` nodes."""
        return cls(
            np.empty(n, np.int32), np.empty((n, 3), np.int64), np.empty(n), np.empty(n, np.int32),
            np.empty(n, np.int32), np.empty((n, n_sums + 2), np.int64), np.empty(n),
            np.empty((n if bounded else 0, 2)),
        )  # fmt: skip

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays in the order of the parameters."""
        return [getattr(self, f.name) for f in fields(self)]

    def first(self, n: int) -> GrownTree:
        """Return the first `n` nodes."""
        return GrownTree(*(array[:n].copy() for array in self.arrays))

    def compacted(self) -> GrownTree:
        """Return the tree of the nodes that the root still reaches, renumbered depth-first."""
        from daskml_dist.backends.tree_predict import walk_subtree

        # Siblings adjacent, then the left one's subtree.
        order: Array = walk_subtree(self.left, 0)
        # Inverse permutation: the new index of each node that is kept.
        new_index = np.empty(len(self.left), np.int32)
        new_index[order] = np.arange(len(order), dtype=np.int32)
        arrays = [array[order] if len(array) else array for array in self.arrays]
        tree = GrownTree(*arrays)
        tree.left = new_index[tree.left]
        return tree

    def _collapse_nodes(self, nodes: Array) -> GrownTree:
        """Turn nodes into leaves in place; return the tree without the nodes below them."""
        self.feature[nodes], self.gain[nodes] = -1, 0.0
        self.left[nodes] = nodes
        return self.compacted()

    def limit_leaves(self, max_leaf_nodes: int) -> GrownTree:
        """Return the tree of at most `max_leaf_nodes` leaves that best-first growth would make."""
        # Splits do not depend on the order of growth, so that it can be replayed on the full tree.
        candidates = [(-float(self.gain[0]), 0)] if self.feature[0] >= 0 else []
        n_leaves, is_split = 1, np.zeros(len(self.left), bool)
        while candidates and n_leaves < max_leaf_nodes:
            _, node = heapq.heappop(candidates)
            is_split[node] = True
            n_leaves += 1
            for child in (int(self.left[node]), int(self.left[node]) + 1):
                if self.feature[child] >= 0:
                    heapq.heappush(candidates, (-float(self.gain[child]), child))
        return self._collapse_nodes(np.flatnonzero(~is_split & (self.feature >= 0)))

    def pruned(self, ccp_alpha: float, cost: Array) -> GrownTree:
        """Return the tree after minimal cost-complexity pruning; `cost` is each node's own."""
        inner = self.feature >= 0
        left, right = np.where(inner, self.left, -1), np.where(inner, self.left + 1, -1)
        collapsed = []
        for alpha, node, _ in prune_weakest_links(left, right, cost):
            if alpha > ccp_alpha:
                break
            collapsed.append(node)
        return self._collapse_nodes(np.array(collapsed, np.int64))


def join_subtrees(top: GrownTree, subtrees: list[tuple[int, GrownTree]]) -> GrownTree:
    """Return a tree with leaves replaced by `subtrees`, each a pair of a leaf and its subtree."""
    arrays = [[array] for array in top.arrays]
    n = len(top.left)
    for node, subtree in subtrees:
        # The subtree's root takes the leaf's place, and its other nodes are appended: node i of the
        # subtree (i > 0) becomes node n - 1 + i.
        left_child = np.where(subtree.left > 0, subtree.left + n - 1, node).astype(np.int32)
        inner = subtree.feature >= 0
        # A leaf refers to itself.
        left_child[~inner] = np.arange(n - 1, n - 1 + len(left_child))[~inner]
        left_child[0] = node if not inner[0] else left_child[0]
        for pieces, array, top_array in zip(arrays, subtree.arrays, top.arrays, strict=True):
            renumbered = left_child if array is subtree.left else array
            if len(array):
                top_array[node] = renumbered[0]
                pieces.append(renumbered[1:])
        n += len(left_child) - 1
    return GrownTree(*(np.concatenate(pieces) for pieces in arrays)).compacted()


@dataclass(frozen=True)
class TreeConverter:
    """Converter of grown trees with integer sums to prediction trees in the targets' units.

    Parameters
    ----------
    criterion : Criterion
    bits : int
        Low bits of a packed integer that count rows; the bits above are the sum of weights.
    weight, target, term : float
        Integer units per unit of weight, of the target, and of the impurity's term.
    centre : float, or ndarray of float64 of shape (n_outputs,)
        Value that was subtracted from the targets.
    classes : tuple of int
        Number of classes of each output; empty in regression.
    n_outputs : int
    """

    criterion: Criterion
    bits: int
    weight: float
    target: float
    term: float
    centre: Any
    classes: tuple[int, ...] = ()
    n_outputs: int = 1

    def convert(self, grown_tree: GrownTree, low: Array, high: Array) -> tuple[Tree, Array]:
        """Return the prediction tree and each node's impurity; `low`, `high`: range of each bin."""
        total = grown_tree.sums[:, -2]
        weights = (total >> self.bits).astype(np.float64)
        means, impurity = self.means(grown_tree)
        inner = grown_tree.feature >= 0
        # From integer units to an impurity decrease as a share of all rows, averaged over outputs.
        gain_unit = self.criterion.unit(self.target) / max(weights[0], 1.0) / self.n_outputs
        values = means + self.centre
        if len(grown_tree.bounds):
            values = self._clip_to_bounds(values, grown_tree.bounds)
        last_left_bin, threshold = _choose_last_bins(grown_tree, low, high)
        tree = Tree(
            feature=grown_tree.feature,
            bin=last_left_bin,
            threshold=np.where(inner, threshold, np.inf),
            left=grown_tree.left,
            missing_left=inner & (grown_tree.cut[:, 2] > 0),
            category=np.full(len(weights), -1, np.int32),
            value=values,
            gain=np.where(inner, grown_tree.gain * gain_unit, -1.0),
            count=total & ((1 << self.bits) - 1),
            weight=weights / self.weight,
            depth=grown_tree.depth,
            bitsets=np.empty((0, 4), np.uint64),
        )
        return tree, impurity

    def means(self, grown_tree: GrownTree) -> tuple[Array, Array]:
        """Return class probabilities or means of the centred targets, and the impurity, by node."""
        total = grown_tree.sums[:, -2]
        weights = (total >> self.bits).astype(np.float64)
        divisors = np.where(weights > 0, weights, 1.0)
        if self.criterion.of_classes:
            means = (grown_tree.sums[:, :-2] >> self.bits) / divisors[:, None]
            # A tree that drew no row gives all classes the same probability.
            means[weights == 0] = np.concatenate([np.full(n, 1 / n) for n in self.classes])
            return means, self.criterion.impurity(means, weights, self.n_outputs)
        means = self.criterion.means(grown_tree.sums[:, 1:-2], divisors, self.target)
        term = self.criterion.term(grown_tree.sums[:, -1], divisors, self.term)
        return means, self.criterion.impurity(means, term, self.n_outputs)

    def _clip_to_bounds(self, values: Array, bounds: Array) -> Array:
        """Return values clipped to the bounds of the monotonic constraints."""
        if not self.criterion.of_classes:
            # Bounds of medians (absolute error) are in the targets' own units already.
            scaled = bounds if self.criterion.needs_rows else bounds / self.target + self.centre
            return np.clip(values, scaled[:, :1], scaled[:, 1:])
        # Constraints of a classifier are on the probability of the second of its two classes.
        positive = np.clip(values[:, 1:], bounds[:, :1], bounds[:, 1:])
        return np.column_stack([1 - positive, positive])


def _choose_last_bins(grown_tree: GrownTree, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the last bin on the left of each split, and thresholds consistent with these bins.

    Bins in which a node has no rows may be between its last bin on the left and its first on the
    right. Other rows can fall into them: each such bin goes to the side of its midpoint.
    """
    threshold = _compute_thresholds(grown_tree, low, high)
    last_bin = np.full(len(threshold), -1, np.int32)
    nodes = np.flatnonzero((grown_tree.feature >= 0) & (grown_tree.cut[:, 1] >= 0))
    # All splits of a feature are placed together.
    nodes = nodes[np.argsort(grown_tree.feature[nodes], kind="stable")]
    features, starts = np.unique(grown_tree.feature[nodes], return_index=True)
    for j, splits in zip(features, np.split(nodes, starts[1:]), strict=False):
        # An empty bin has low > high.
        filled = np.flatnonzero(low[j] <= high[j])
        with np.errstate(invalid="ignore"):
            middle = low[j, filled] / 2 + high[j, filled] / 2
        first_right, last_left = (
            np.searchsorted(filled, grown_tree.cut[splits, k]) for k in (0, 1)
        )
        position = np.searchsorted(middle, threshold[splits], side="right") - 1
        position = np.clip(position, first_right, last_left - 1)
        last_bin[splits] = filled[position]
        # A threshold inside a bin would send rows of one bin to both sides: it moves between two.
        below, above = high[j, filled[position]], low[j, filled[position + 1]]
        inside = (threshold[splits] < below) | (threshold[splits] >= above)
        threshold[splits[inside]] = _compute_midpoints(below[inside], above[inside])
    # Splits that send only missing values to the right: every bin goes left.
    last_bin[(grown_tree.feature >= 0) & (grown_tree.cut[:, 1] < 0)] = low.shape[1] - 1
    return last_bin, threshold


def _compute_thresholds(grown_tree: GrownTree, low: Array, high: Array) -> Array:
    """Return the largest value that goes left at each split: drawn, or between the two bins."""
    inner = grown_tree.feature >= 0
    feature = np.where(inner, grown_tree.feature, 0)
    last_left, first_right = (np.where(inner, grown_tree.cut[:, k], 0) for k in (0, 1))
    midpoint = _compute_midpoints(
        high[feature, last_left], low[feature, np.maximum(first_right, 0)]
    )
    midpoint = np.where(first_right < 0, np.inf, midpoint)
    return np.where(np.isnan(grown_tree.threshold), midpoint, grown_tree.threshold)


def _compute_midpoints(a: Array, b: Array) -> Array:
    """Return midpoints of `a` and `b`; `a` if rounding or infinities leave none in [a, b)."""
    with np.errstate(invalid="ignore", over="ignore"):
        middle = a / 2 + b / 2  # halved first: a + b could overflow
    return np.where((middle < a) | (middle >= b) | ~np.isfinite(middle), a, middle)


def prune_weakest_links(
    left: Array, right: Array, cost: Array
) -> Iterator[tuple[float, int, float]]:
    """Yield the steps of weakest-link pruning (Breiman et al. 1984, section 3.3) down to the root.

    Each step collapses the node whose subtree lowers the cost by the least per additional leaf. It
    yields that effective alpha, the node, and the cost of the leaves of the tree that remains.

    Parameters
    ----------
    left, right : ndarray of int of shape (n_nodes,)
        Children, stored after their parents; negative at leaves.
    cost : ndarray of float64 of shape (n_nodes,)
        Impurity of each node times its share of the rows.
    """
    n = len(left)
    inner = np.flatnonzero(left >= 0)
    parent = np.full(n, -1)
    parent[left[inner]] = parent[right[inner]] = inner
    # Cost and number of the leaves of each node's subtree, from the leaves upwards.
    subtree_cost, n_leaves = cost.astype(np.float64), np.ones(n, np.int64)
    for node in inner[::-1]:
        subtree_cost[node] = subtree_cost[left[node]] + subtree_cost[right[node]]
        n_leaves[node] = n_leaves[left[node]] + n_leaves[right[node]]
    is_split = left >= 0

    def effective_alpha(node: int) -> float:
        return float((cost[node] - subtree_cost[node]) / (n_leaves[node] - 1))

    # The alpha of an ancestor only grows when a node below it collapses: entries of the heap are
    # checked when they are popped, and pushed again if they are outdated.
    heap = [(effective_alpha(node), node) for node in inner.tolist()]
    heapq.heapify(heap)
    while heap:
        alpha, node = heapq.heappop(heap)
        if not is_split[node]:
            continue
        if effective_alpha(node) > alpha:
            heapq.heappush(heap, (effective_alpha(node), node))
            continue
        _mark_collapsed(is_split, left, right, node)
        cost_increase, removed_leaves = cost[node] - subtree_cost[node], n_leaves[node] - 1
        ancestor = node
        while ancestor >= 0:
            subtree_cost[ancestor] += cost_increase
            n_leaves[ancestor] -= removed_leaves
            ancestor = int(parent[ancestor])
        yield alpha, node, float(subtree_cost[0])


def _mark_collapsed(is_split: Array, left: Array, right: Array, node: int) -> None:
    """Mark a node and all nodes below it as no longer split, in place."""
    stack = [node]
    while stack:
        descendant = stack.pop()
        is_split[descendant] = False
        stack += [int(child) for child in (left[descendant], right[descendant]) if is_split[child]]
