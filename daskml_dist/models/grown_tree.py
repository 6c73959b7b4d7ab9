"""A tree as it was grown, by sums of whole numbers; how it is cut back, and what it answers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.bins import Bins
from daskml_dist.models.criteria import Criterion
from daskml_dist.models.trees import Tree

__all__ = ["GrownTree", "TreeFinisher", "cut_weakest_links", "join_subtrees"]


Array = NDArray[Any]


@dataclass(eq=False)
class GrownTree:
    """Nodes of a tree, children behind their parents, in the order of a walk.

    Parameters
    ----------
    feature, left, depth : ndarray of int32 of shape (n_nodes,)
        A leaf's feature is -1, and its left child itself.
    cut : ndarray of int64 of shape (n_nodes, 3)
        Last bin on the left, first on the right, whether missing values go left.
    threshold : ndarray of float64 of shape (n_nodes,)
        Where it was drawn; NaN where it lies between these bins.
    sums : ndarray of int64 of shape (n_nodes, n_sums + 2)
        Of the criterion, the packed total, and of what impurity is made.
    gain : ndarray of float64 of shape (n_nodes,)
        In units of worth.
    between : ndarray of float64 of shape (n_nodes, 2) or (0, 2)
        Bounds of the answers.
    """

    feature: Array
    cut: Array
    threshold: Array
    left: Array
    depth: Array
    sums: Array
    gain: Array
    between: Array

    @classmethod
    def room(cls, n: int, n_sums: int, bounded: bool) -> GrownTree:
        """Return a tree of empty arrays for `n` nodes."""
        return cls(
            np.empty(n, np.int32), np.empty((n, 3), np.int64), np.empty(n), np.empty(n, np.int32),
            np.empty(n, np.int32), np.empty((n, n_sums + 2), np.int64), np.empty(n),
            np.empty((n if bounded else 0, 2)),
        )  # fmt: skip

    @property
    def arrays(self) -> list[Array]:
        """Its arrays, in the order of the parameters."""
        return [getattr(self, f.name) for f in fields(self)]

    def first(self, n: int) -> GrownTree:
        """Return the first `n` nodes."""
        return GrownTree(*(array[:n].copy() for array in self.arrays))

    def walked(self) -> GrownTree:
        """Return the nodes that can be reached from the root, in depth-first order."""
        order = _walk_depth_first(self.left)
        place = np.empty(len(self.left), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        arrays = [array[order] if len(array) else array for array in self.arrays]
        found = GrownTree(*arrays)
        found.left = place[found.left]
        return found

    def _turn_into_leaves(self, ends: Array) -> GrownTree:
        """Turn some nodes into leaves, and return the nodes that remain."""
        self.feature[ends], self.gain[ends] = -1, 0.0
        self.left[ends] = ends
        return self.walked()

    def with_leaves(self, most: int) -> GrownTree:
        """Return the tree of at most `most` leaves that best-first growth would have made."""
        open_ = [(-float(self.gain[0]), 0)] if self.feature[0] >= 0 else []
        n_leaves, split = 1, np.zeros(len(self.left), bool)
        while open_ and n_leaves < most:
            _, node = heapq.heappop(open_)
            split[node] = True
            n_leaves += 1
            for child in (int(self.left[node]), int(self.left[node]) + 1):
                if self.feature[child] >= 0:
                    heapq.heappush(open_, (-float(self.gain[child]), child))
        return self._turn_into_leaves(np.flatnonzero(~split & (self.feature >= 0)))

    def pruned(self, alpha: float, cost: Array) -> GrownTree:
        """Return the tree after minimal cost-complexity pruning."""
        inner = self.feature >= 0
        left, right = np.where(inner, self.left, -1), np.where(inner, self.left + 1, -1)
        ends = []
        for weakest, node, _ in cut_weakest_links(left, right, cost):
            if weakest > alpha:
                break
            ends.append(node)
        return self._turn_into_leaves(np.array(ends, np.int64))


def _walk_depth_first(left: Array, root: int = 0) -> Array:
    """Return the nodes below a root in depth-first order."""
    from daskml_dist.backends.tree_predict import walk_subtree

    found: Array = walk_subtree(left, root)
    return found


def join_subtrees(top: GrownTree, parts: list[tuple[int, GrownTree]]) -> GrownTree:
    """Return the tree of a top part and the subtrees that were grown from some of its leaves."""
    arrays = [[array] for array in top.arrays]
    n = len(top.left)
    for node, part in parts:
        left = np.where(part.left > 0, part.left + n - 1, node).astype(np.int32)
        inner = part.feature >= 0
        left[~inner] = np.arange(n - 1, n - 1 + len(left))[~inner]
        left[0] = node if not inner[0] else left[0]
        for into, array, of in zip(arrays, part.arrays, top.arrays, strict=True):
            of_part = left if array is part.left else array
            if len(array):
                of[node] = of_part[0]
                into.append(of_part[1:])
        n += len(left) - 1
    return GrownTree(*(np.concatenate(parts) for parts in arrays)).walked()


@dataclass(frozen=True)
class TreeFinisher:
    """Way from sums of nodes to a tree that answers.

    Parameters
    ----------
    criterion : Criterion
    bits : int
        Of a packed number that count rows.
    weight, target, term : float
        Scales.
    centre : float, or ndarray of float64 of shape (n_outputs,)
    classes : tuple of int
        Of each output; empty in regression.
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

    def of(self, grown: GrownTree, bins: Bins, low: Array, high: Array) -> tuple[Tree, Array]:
        """Return the finished tree, and the impurity of each node."""
        total = grown.sums[:, -2]
        whole = (total >> self.bits).astype(np.float64)
        means, impurity = self.means(grown)
        inner = grown.feature >= 0
        unit = self.criterion.unit(self.target) / max(whole[0], 1.0) / self.n_outputs
        values = means + self.centre
        if len(grown.between):
            values = self._clip_to_bounds(values, grown.between)
        last, threshold = _choose_last_bins(grown, low, high)
        tree = Tree(
            feature=grown.feature,
            bin=last,
            threshold=np.where(inner, threshold, np.inf),
            left=grown.left,
            missing_left=inner & (grown.cut[:, 2] > 0),
            category=np.full(len(whole), -1, np.int32),
            value=values,
            gain=np.where(inner, grown.gain * unit, -1.0),
            count=total & ((1 << self.bits) - 1),
            weight=whole / self.weight,
            depth=grown.depth,
            bitsets=np.empty((0, 4), np.uint64),
        )
        return tree, impurity

    def means(self, grown: GrownTree) -> tuple[Array, Array]:
        """Return shares of classes, or means of the centred targets, and the impurity of nodes."""
        total = grown.sums[:, -2]
        whole = (total >> self.bits).astype(np.float64)
        each = np.where(whole > 0, whole, 1.0)
        if self.criterion.of_classes:
            means = (grown.sums[:, :-2] >> self.bits) / each[:, None]
            # A tree that drew no row knows nothing.
            means[whole == 0] = np.concatenate([np.full(n, 1 / n) for n in self.classes])
            return means, self.criterion.impurity(means, whole, self.n_outputs)
        means = self.criterion.means(grown.sums[:, 1:-2], each, self.target)
        term = self.criterion.term(grown.sums[:, -1], each, self.term)
        return means, self.criterion.impurity(means, term, self.n_outputs)

    def _clip_to_bounds(self, values: Array, between: Array) -> Array:
        """Return values within the bounds of the monotonic constraints."""
        if not self.criterion.of_classes:
            # Bounds of medians are in the targets' own units.
            scaled = between if self.criterion.needs_rows else between / self.target + self.centre
            return np.clip(values, scaled[:, :1], scaled[:, 1:])
        second = np.clip(values[:, 1:], between[:, :1], between[:, 1:])
        return np.column_stack([1 - second, second])


def _choose_last_bins(grown: GrownTree, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the last bins that go left, of all rows, and thresholds that lie between two bins.

    Between the last bin that a node's own rows have on the left and the first that they have on the
    right may be bins of other rows. These go where the middle of their values lies.
    """
    threshold = _compute_thresholds(grown, low, high)
    found = np.full(len(threshold), -1, np.int32)
    cut = np.flatnonzero((grown.feature >= 0) & (grown.cut[:, 1] >= 0))
    cut = cut[np.argsort(grown.feature[cut], kind="stable")]
    features, starts = np.unique(grown.feature[cut], return_index=True)
    for j, of in zip(features, np.split(cut, starts[1:]), strict=False):
        filled = np.flatnonzero(low[j] <= high[j])
        with np.errstate(invalid="ignore"):
            middle = low[j, filled] / 2 + high[j, filled] / 2
        first, last = (np.searchsorted(filled, grown.cut[of, k]) for k in (0, 1))
        at = np.searchsorted(middle, threshold[of], side="right") - 1
        at = np.clip(at, first, last - 1)
        found[of] = filled[at]
        a, b = high[j, filled[at]], low[j, filled[at + 1]]
        cuts = (threshold[of] < a) | (threshold[of] >= b)
        threshold[of[cuts]] = _compute_midpoints(a[cuts], b[cuts])
    # All values go left, missing ones alone right.
    found[(grown.feature >= 0) & (grown.cut[:, 1] < 0)] = low.shape[1] - 1
    return found, threshold


def _compute_thresholds(grown: GrownTree, low: Array, high: Array) -> Array:
    """Return the largest values that go left."""
    inner = grown.feature >= 0
    feature = np.where(inner, grown.feature, 0)
    last, first = (np.where(inner, grown.cut[:, k], 0) for k in (0, 1))
    between = _compute_midpoints(high[feature, last], low[feature, np.maximum(first, 0)])
    between = np.where(first < 0, np.inf, between)
    return np.where(np.isnan(grown.threshold), between, grown.threshold)


def _compute_midpoints(a: Array, b: Array) -> Array:
    """Return the midpoints of `a` and `b` that are below `b`, else `a`."""
    with np.errstate(invalid="ignore", over="ignore"):
        between = a / 2 + b / 2
    return np.where((between < a) | (between >= b) | ~np.isfinite(between), a, between)


def cut_weakest_links(left: Array, right: Array, cost: Array) -> Iterator[tuple[float, int, float]]:
    """Cut the subtree that lowers the cost by the least for each of its leaves, again and again.

    Parameters
    ----------
    left, right : ndarray of int of shape (n_nodes,)
        Children, which come behind their parents; negative at leaves.
    cost : ndarray of float64 of shape (n_nodes,)
        Impurity of each node times its share of the rows.
    """
    n = len(left)
    inner = np.flatnonzero(left >= 0)
    parent = np.full(n, -1)
    parent[left[inner]] = parent[right[inner]] = inner
    below, leaves = cost.astype(np.float64), np.ones(n, np.int64)
    for node in inner[::-1]:
        below[node] = below[left[node]] + below[right[node]]
        leaves[node] = leaves[left[node]] + leaves[right[node]]
    alive = left >= 0

    def alpha_of(node: int) -> float:
        return float((cost[node] - below[node]) / (leaves[node] - 1))

    # An ancestor's alpha never falls, so that one out of date is found when its turn comes.
    heap = [(alpha_of(node), node) for node in inner.tolist()]
    heapq.heapify(heap)
    while heap:
        alpha, node = heapq.heappop(heap)
        if not alive[node]:
            continue
        if alpha_of(node) > alpha:
            heapq.heappush(heap, (alpha_of(node), node))
            continue
        _end(alive, left, right, node)
        less, fewer, above = cost[node] - below[node], leaves[node] - 1, node
        while above >= 0:
            below[above] += less
            leaves[above] -= fewer
            above = int(parent[above])
        yield alpha, node, float(below[0])


def _end(alive: Array, left: Array, right: Array, node: int) -> None:
    """Note that nothing below a node is split."""
    waiting = [node]
    while waiting:
        at = waiting.pop()
        alive[at] = False
        waiting += [int(child) for child in (left[at], right[at]) if alive[child]]
