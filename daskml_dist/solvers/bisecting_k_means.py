"""Bisecting k-means: the leaves of a tree of centroids are split in two, one at a time.

Each split is a k-means with two centroids whose requests are restricted to the rows of one leaf
(:class:`LeafStatistic`). The tree is small and known to all trainers. Each row's leaf is a state of
the rows (:class:`LeafAssignment`); a trainer that has lost it recomputes it by sending its rows
down the tree.

References
----------
M. Steinbach, G. Karypis and V. Kumar, "A comparison of document clustering techniques", KDD
Workshop on Text Mining, 2000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend, is_sparse
from daskml_dist.backends.namespace import arithmetic_dtype, cast, namespace, scalar, total, zeros
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import (
    Array,
    NestedSums,
    RowState,
    Solution,
    Solver,
    Statistic,
    Sums,
    known_loss,
)
from daskml_dist.solvers.k_means import KMeansSolver
from daskml_dist.solvers.rows import to_rows_dtype

#: Entries of dense rows among which a leaf's rows are selected at once: 8 MiB of float64.
_CHUNK_ENTRIES = 1 << 20


@dataclass(frozen=True, eq=False)
class LeafAssignment(RowState):
    """Leaf of each row in a tree of splits.

    Node 0 is the root; split i makes the nodes 2 i + 1 and 2 i + 2.

    Parameters
    ----------
    split : ndarray of int64 of shape (n_splits,)
        Node that each split divides.
    centroids : ndarray of shape (n_splits, 2, n_features)
        Centroids of the two nodes that it makes.
    shifts : ndarray of shape (n_splits, n_features), or None
        Subtracted from the rows in a split, so that distances have more digits; None for sparse
        rows.
    """

    name = "leaves"
    split: NDArray[np.int64]
    centroids: Array
    shifts: Array | None

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return each row's leaf: all start at the root, and take the splits in order."""
        X = rows.X
        state = zeros((X.shape[0],), np.int32, like=X.values if is_sparse(X) else X)
        for number in range(len(self.split)):
            self.descend(state, rows, number, backend)
        return state

    def descend(self, state: Any, rows: BatchRows, split_index: int, backend: Backend) -> Any:
        """Move the rows at the node of a split to the child with the nearer centroid.

        Return the rows' squared distances to it, which have no meaning for rows of other nodes.
        """
        shift, centroids = None, self.centroids[split_index]
        if self.shifts is not None:
            centroids = centroids - self.shifts[split_index]
            shift = to_rows_dtype(self.shifts[split_index], rows.X, backend)
        centroids, node = to_rows_dtype(centroids, rows.X, backend), int(self.split[split_index])
        if not _supports_row_selection(rows.X):
            # Distances are computed for all rows, but used only for those at the node.
            labels, squares = backend.nearest(rows.X, shift, centroids)
            child = cast(labels + (2 * split_index + 1), state.dtype)
            state[:] = namespace(state).where(state == node, child, state)
            return squares
        squares = np.zeros(len(state), rows.X.dtype)
        for first, indices, X in _iterate_node_rows(state, node, rows.X):
            labels, squares[first + indices] = backend.nearest(X, shift, centroids)
            state[first + indices] = labels + (2 * split_index + 1)
        return squares


def _supports_row_selection(X: Any) -> bool:
    """Return whether rows can be selected at the cost of copying them: dense rows on the host."""
    return isinstance(X, np.ndarray)


def _iterate_node_rows(
    state: Any, node: int, X: Any
) -> Iterator[tuple[int, NDArray[np.intp], Any]]:
    """Yield chunks of the rows at a node: offset of the chunk, positions in it, and rows.

    The rows are in a buffer that the next chunk overwrites: to allocate a new one would cost more
    than the copy.
    """
    buffer: Any = None
    for chunk in row_slices(len(state), max(_CHUNK_ENTRIES // max(X.shape[1], 1), 1)):
        (indices,) = np.nonzero(state[chunk] == node)
        # All rows of a chunk, as at the root: a view instead of a copy.
        if len(indices) == chunk.stop - chunk.start:
            yield chunk.start, indices, X[chunk]
        elif len(indices):
            buffer = np.empty_like(X[chunk]) if buffer is None else buffer
            # In the mode "clip" NumPy writes to `out` without a buffer of its own.
            yield (
                chunk.start,
                indices,
                X[chunk].take(indices, axis=0, out=buffer[: len(indices)], mode="clip"),
            )


def _weight_node_rows(rows: BatchRows, node: int) -> Any:
    """Return the weights of the rows at a node; 0 for other rows."""
    weight = cast(rows.state == node, arithmetic_dtype(rows.X))
    return weight if rows.weight is None else weight * cast(rows.weight, weight.dtype)


@dataclass(frozen=True, eq=False)
class LeafStatistic(Statistic):
    """Inner statistic, summed over the rows of one leaf.

    Parameters
    ----------
    statistic : Statistic
        Inner statistic, to which rows of weight 0 must add nothing.
    leaves : LeafAssignment
    leaf : int
    """

    additive: ClassVar[bool] = False
    statistic: Statistic
    leaves: LeafAssignment
    leaf: int

    @property
    def state(self) -> LeafAssignment:
        """Return the leaf assignment; the inner statistic's state is made again for each sum."""
        return self.leaves

    def shape(self, model: Any) -> tuple[int, ...]:
        return self.statistic.shape(model)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss = 0.0
        for leaf_rows in self._select_leaf_rows(rows):
            # Rows have one state at a time, here their leaf. That of the inner statistic (bounds,
            # distances to candidates) is made again in each pass.
            if self.statistic.state is not None:
                leaf_rows.state = self.statistic.state.make(model, leaf_rows, backend)
            loss = loss + known_loss(self.statistic.add(model, leaf_rows, out, backend))
        return loss

    def _select_leaf_rows(self, rows: BatchRows) -> Iterator[BatchRows]:
        """Yield the leaf's rows, or if rows cannot be selected all, the others with weight 0."""
        if not _supports_row_selection(rows.X):
            weight = _weight_node_rows(rows, self.leaf)
            yield BatchRows(rows.X, None, weight, rows.key, rows.block, rows.first)
            return
        for first, indices, X in _iterate_node_rows(rows.state, self.leaf, rows.X):
            weight = None if rows.weight is None else rows.weight[first + indices]
            block_place = rows.block, rows.first + first
            # With `places`, a row draws the same random numbers as in its whole block.
            yield BatchRows(X, None, weight, rows.key, *block_place, places=indices)

    def merge(self, total: Array, part: Array) -> None:
        self.statistic.merge(total, part)


@dataclass(frozen=True, eq=False)
class LeafErrors(Statistic):
    """Weight and sum of squared distances of the rows at each of the last split's two nodes.

    It also moves the rows to these nodes.

    Parameters
    ----------
    leaves : LeafAssignment
        Tree with the last split, which the rows have not taken yet.
    """

    leaves: LeafAssignment

    @property
    def state(self) -> LeafAssignment:
        """Return the leaf assignment before the last split, as the rows' state is when it begins.

        :meth:`add` leaves the assignment after it, under the same name.
        """
        tree, all_but_last = self.leaves, slice(-1)
        shifts = None if tree.shifts is None else tree.shifts[all_but_last]
        return LeafAssignment(tree.split[all_but_last], tree.centroids[all_but_last], shifts)

    def shape(self, model: Any) -> tuple[int, ...]:
        return 2, 2

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        last = len(self.leaves.split) - 1
        squares = self.leaves.descend(rows.state, rows, last, backend)
        float64, loss = namespace(squares).float64, 0.0
        for side in range(2):
            weight = cast(_weight_node_rows(rows, 2 * last + 1 + side), float64)
            errors = total(weight * cast(squares, float64))
            out[side, 0] += total(weight)
            out[side, 1] += errors
            loss = loss + errors
        return scalar(loss)


@dataclass
class _LeafSums(NestedSums):
    """Sums over the rows of one leaf, for the k-means that splits it."""

    leaves: LeafAssignment
    leaf: int

    def __call__(self, statistic: Statistic) -> Array:
        return self.sums(LeafStatistic(statistic, self.leaves, self.leaf))


@dataclass(frozen=True, eq=False)
class BisectingSolver(Solver):
    """Solver that splits leaves until there are `k`, or none that can be split.

    Parameters
    ----------
    k : int
    two : KMeansSolver
        k-means with two centroids, for each split.
    by_weight : bool
        Whether the leaf of the largest weight is split next, instead of the one with the largest
        sum of squared distances.
    """

    name = "bisecting"
    k: int
    two: KMeansSolver
    by_weight: bool

    @property
    def max_passes(self) -> int:
        """Return the passes of the root, and of a k-means for each node, of fewer than 2 k."""
        return self._root_solver(1).max_passes + 2 * self.k * (self.two.max_passes + 1)

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Split the leaf of the largest error or weight, again and again."""
        if sums.kept is not None:
            tree = _CentroidTree.of_state(sums.kept)
        else:
            # A k-means with one centroid finds the mean, the shift and the inertia of all rows.
            root = self._root_solver(model.n_features).solve(model, NestedSums(sums), None)
            first = np.array([[sums.n_rows, root.extra["inertia"], 1.0]])
            tree = _CentroidTree.of_root(root.w[0], root.extra["shift"], first)
        while len(tree.leaves.split) < self.k - 1 and not sums.should_stop:
            leaf = tree.next_leaf(self.by_weight)
            if leaf is None:
                break
            sums.keep(tree.leaf_centroids(), tree.state, extra=tree.solution_facts())
            self._split_leaf(tree, leaf, model, sums)
        return Solution(tree.leaf_centroids(), len(tree.leaves.split), extra=tree.solution_facts())

    def _root_solver(self, n_features: int) -> KMeansSolver:
        """Return the solver of the root's only centroid, the mean."""
        origin = np.zeros((1, n_features))
        return replace(self.two, k=1, init=origin, n_init=1, max_iter=2, tol=0.0)

    def _split_leaf(self, tree: _CentroidTree, leaf: int, model: Any, sums: Sums) -> None:
        """Split a leaf, or record that all its rows are equal."""
        two_means = replace(self.two, seed=self.two.seed + leaf)
        solution = two_means.solve(model, _LeafSums(sums, tree.leaves, leaf), None)
        if solution.extra["n_found"] < 2:
            tree.node_stats[leaf, 2] = 0.0
            return
        # Sorted by feature values, so that the order of the two does not depend on the draws.
        centroids = solution.w[np.lexsort(solution.w.T[::-1])]
        shift, old_leaves = solution.extra["shift"], tree.leaves
        leaves = LeafAssignment(
            np.append(old_leaves.split, leaf),
            np.concatenate([old_leaves.centroids, [centroids]]),
            None
            if old_leaves.shifts is None or shift is None
            else np.vstack([old_leaves.shifts, shift]),
        )
        errors = sums(LeafErrors(leaves))
        tree.leaves = leaves
        tree.centroids = np.vstack([tree.centroids, centroids])
        tree.node_stats = np.vstack([tree.node_stats, np.c_[errors, np.ones(2)]])


@dataclass
class _CentroidTree:
    """Tree of centroids, in the order in which its nodes were made.

    Parameters
    ----------
    leaves : LeafAssignment
    shift : ndarray of shape (n_features,), or None
        Shift of the root's k-means.
    centroids : ndarray of shape (n_nodes, n_features)
    node_stats : ndarray of shape (n_nodes, 3)
        Weight and sum of squared distances of each node's rows, and 1 if it may be split, else 0.
    """

    leaves: LeafAssignment
    shift: Array | None
    centroids: Array = field(repr=False)
    node_stats: Array

    @classmethod
    def of_root(cls, centroid: Array, shift: Array | None, node_stats: Array) -> _CentroidTree:
        """Return a tree without splits."""
        d = len(centroid)
        shifts = None if shift is None else np.empty((0, d))
        leaves = LeafAssignment(np.empty(0, np.int64), np.empty((0, 2, d)), shifts)
        return cls(leaves, shift, centroid[None], node_stats)

    def next_leaf(self, by_weight: bool) -> int | None:
        """Return the leaf to split next, or None if no leaf has differing rows."""
        nodes = self.leaf_nodes()
        weight, error, splittable = self.node_stats[nodes].T
        score = np.where((splittable > 0) & (error > 0), weight if by_weight else error, 0.0)
        return int(nodes[np.argmax(score)]) if score.max() > 0 else None

    def leaf_nodes(self) -> NDArray[np.int64]:
        """Return the leaves' nodes from left to right; clusters are numbered in this order."""
        left_child = {int(node): 2 * number + 1 for number, node in enumerate(self.leaves.split)}
        leaves, stack = [], [0]
        while stack:
            node = stack.pop()
            if node in left_child:
                # Depth first: the left child is on top of the stack.
                stack += [left_child[node] + 1, left_child[node]]
            else:
                leaves.append(node)
        return np.array(leaves)

    def leaf_centroids(self) -> Array:
        """Return the leaves' centroids from left to right."""
        return self.centroids[self.leaf_nodes()]

    def solution_facts(self) -> dict[str, Any]:
        """Return the `extra` of the solution."""
        nodes = self.leaf_nodes()
        inertia = float(self.node_stats[nodes, 1].sum())
        return {"inertia": inertia, "leaves": self.leaves, "nodes": nodes, "shift": self.shift}

    def state(self) -> dict[str, Array]:
        """Return the tree as arrays by name, from which `of_state` restores it."""
        shifts = {"shift": self.shift, "shifts": self.leaves.shifts}
        shift_arrays = {name: array for name, array in shifts.items() if array is not None}
        split = self.leaves.split.astype(np.float64)
        return {
            "split": split,
            "centroids": self.centroids,
            "facts": self.node_stats,
            **shift_arrays,
        }

    @classmethod
    def of_state(cls, state: dict[str, Array]) -> _CentroidTree:
        """Return the tree that was stored as a state."""
        centroids, split = state["centroids"], state["split"].astype(np.int64)
        # After the root, nodes come in pairs, one for each split.
        pairs = centroids[1:].reshape(len(split), 2, -1)
        leaves = LeafAssignment(split, pairs, state.get("shifts"))
        return cls(leaves, state.get("shift"), centroids, state["facts"].copy())
