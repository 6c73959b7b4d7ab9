"""Decision trees as flat arrays, of one tree (:class:`Tree`) and of an ensemble (:class:`Trees`).

:class:`RawTrees` and :class:`RawForest` are what predicts from them: sums of leaves of boosting,
and means of the leaves of forests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.backends.trees import check_dense_rows
from daskml_dist.models.bins import Bins

Array = NDArray[Any]


@dataclass(eq=False)
class Tree:
    """Nodes of a tree, in the order in which they were made; the root is the first.

    Parameters
    ----------
    feature : ndarray of int32 of shape (n_nodes,)
        That a node asks for; -1 at a leaf.
    bin : ndarray of int32 of shape (n_nodes,)
        The last bin that goes left.
    threshold : ndarray of float64 of shape (n_nodes,)
        The largest value that goes left.
    left : ndarray of int32 of shape (n_nodes,)
        Number of the left child; the right one follows it. A leaf's is its own.
    missing_left : ndarray of bool of shape (n_nodes,)
        Whether missing values go left.
    category : ndarray of int32 of shape (n_nodes,)
        Which of `bitsets` tells the categories that go left; -1 where the feature is a number.
    value : ndarray of float64 of shape (n_nodes, n_values)
        What a leaf answers; of other nodes, what they would.
    gain : ndarray of float64 of shape (n_nodes,)
    count : ndarray of int64 of shape (n_nodes,)
        Rows of the fit.
    weight : ndarray of float64 of shape (n_nodes,)
        Sum of their weights (forests), or of their hessians (boosting).
    depth : ndarray of int32 of shape (n_nodes,)
    bitsets : ndarray of uint64 of shape (n_categorical_splits, 4)
        Bit `b`: category number `b` goes left.
    """

    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    threshold: NDArray[np.float64]
    left: NDArray[np.int32]
    missing_left: NDArray[np.bool_]
    category: NDArray[np.int32]
    value: NDArray[np.float64]
    gain: NDArray[np.float64]
    count: NDArray[np.int64]
    weight: NDArray[np.float64]
    depth: NDArray[np.int32]
    bitsets: NDArray[np.uint64]

    @property
    def n_leaves(self) -> int:
        """Leaves."""
        return int((self.feature < 0).sum())

    @property
    def max_depth(self) -> int:
        """Edges from the root to the deepest leaf."""
        return int(self.depth.max())

    def goes_left(self, node: int, bins: Bins) -> NDArray[np.uint8]:
        """Return for each of 256 bins of a node's feature 1 if its rows go left, else 0."""
        return goes_left(
            int(self.bin[node]),
            bool(self.missing_left[node]),
            None if self.category[node] < 0 else self.bitsets[self.category[node]],
            bins.max_bins,
        )


def goes_left(
    last: int, missing_left: bool, bitset: NDArray[np.uint64] | None, missing: int
) -> NDArray[np.uint8]:
    """Return for each of 256 bins 1 if its rows go left, else 0."""
    if bitset is None:
        table = (np.arange(256) <= last).astype(np.uint8)
    else:
        table = np.unpackbits(bitset.view(np.uint8), bitorder="little")
    table[missing] = missing_left
    return table


@dataclass(eq=False)
class Trees:
    """All trees of an ensemble, one behind the other.

    Parameters
    ----------
    roots : ndarray of int64 of shape (n_trees + 1,)
        Number of the first node of each tree, and of all nodes.
    nodes : Tree
        All nodes; `left` and `category` count from the ensemble's first.
    n_per_iteration : int
        Trees whose values belong to the columns of a raw prediction in turn (one a class).
    bins : Bins
    """

    roots: NDArray[np.int64]
    nodes: Tree
    n_per_iteration: int
    bins: Bins

    @classmethod
    def of(cls, trees: Sequence[Tree], n_per_iteration: int, bins: Bins) -> Trees:
        """Put trees together."""
        roots = np.concatenate([[0], np.cumsum([len(tree.feature) for tree in trees])])
        bitsets = np.concatenate([[0], np.cumsum([len(tree.bitsets) for tree in trees])])
        parts = {f.name: [getattr(tree, f.name) for tree in trees] for f in fields(Tree)}
        parts["left"] = [a + at for a, at in zip(parts["left"], roots, strict=False)]
        parts["category"] = [
            np.where(a < 0, a, a + at) for a, at in zip(parts["category"], bitsets, strict=False)
        ]
        nodes = Tree(**{name: np.concatenate(arrays) for name, arrays in parts.items()})
        nodes.left = nodes.left.astype(np.int32)
        nodes.category = nodes.category.astype(np.int32)
        return cls(roots.astype(np.int64), nodes, n_per_iteration, bins)

    def __len__(self) -> int:
        """Return the number of trees."""
        return len(self.roots) - 1

    @property
    def n_iter(self) -> int:
        """Iterations of boosting."""
        return len(self) // self.n_per_iteration

    def tree(self, number: int) -> Tree:
        """Return one of the trees, its nodes counted from its own root."""
        at = slice(*self.roots[number : number + 2])
        parts = {f.name: getattr(self.nodes, f.name)[at] for f in fields(Tree)[:-1]}
        used = parts["category"][parts["category"] >= 0]
        parts["left"] = (parts["left"] - at.start).astype(np.int32)
        first = int(used.min()) if len(used) else 0
        parts["category"] = np.where(parts["category"] < 0, -1, parts["category"] - first)
        parts["category"] = parts["category"].astype(np.int32)
        return Tree(**parts, bitsets=self.nodes.bitsets[first : first + len(used)])

    def first(self, n_iter: int) -> Trees:
        """Return the trees of the first iterations."""
        n = n_iter * self.n_per_iteration
        return Trees.of([self.tree(i) for i in range(n)], self.n_per_iteration, self.bins)

    # -- as arrays alone -----------------------------------------------------------------------

    def packed(self) -> dict[str, NDArray[Any]]:
        """Return all trees as arrays by name, for sending and saving."""
        bins = self.bins
        return {
            **{f.name: getattr(self.nodes, f.name) for f in fields(Tree)},
            "roots": self.roots,
            "edges": np.concatenate([np.empty(0), *bins.edges]),
            "n_edges": bins.n_edges,
            "categorical": bins.categorical,
            "facts": np.array([self.n_per_iteration, bins.max_bins]),
        }

    @classmethod
    def unpacked(cls, arrays: Mapping[str, NDArray[Any]]) -> Trees:
        """Return the trees of the arrays that :meth:`packed` made."""
        n_per_iteration, max_bins = arrays["facts"].tolist()
        edges = np.split(arrays["edges"], arrays["n_edges"].cumsum()[:-1])
        bins = Bins(tuple(edges), max_bins, arrays["categorical"].astype(bool))
        nodes = Tree(**{f.name: arrays[f.name] for f in fields(Tree)})
        return cls(arrays["roots"], nodes, n_per_iteration, bins)


def number_depth_first(trees: Trees) -> Array:
    """Return the number of each node in its tree in depth-first order, as users see it."""
    from daskml_dist.backends.tree_predict import depth_first

    found: Array = depth_first(trees.roots, trees.nodes.left)
    return found


#: Rows from which on it pays to put them into bins and to make tables of trees; and features that
#: are put there as fast as a row goes through a tree.
_MANY_ROWS, _FEATURES_A_TREE = 128, 4
#: Leaves of a tree up to which masks of them, 64 at a time, are faster than its nodes.
_MOST_LEAVES = 256
#: Rows that are worth a thread.
_ROWS_A_THREAD = 4096
#: Walks of a row through a tree, by a process, before loops over masks are worth loading, and on a
#: new machine some seconds of compiling: about 50 ms of walks, which give the same bits.
_FIRST_WALKS = 1 << 20


class _Walks:
    """Count of the walks of rows through trees that this process has made where masks could be."""

    def __init__(self) -> None:
        self._made = 0

    def are_many(self, more: int) -> bool:
        """Count some more; whether there are enough for loops over masks."""
        self._made += more
        return self._made > _FIRST_WALKS


_walks = _Walks()


@dataclass(eq=False)
class RawTrees:
    """Function from rows to the sum of the values of all trees.

    Parameters
    ----------
    trees : Trees
    baseline : ndarray of float64 of shape (n_outputs,)
    """

    trees: Trees
    baseline: NDArray[np.float64]
    #: Rows may hold NaN; where a prediction is not finite, they are looked at.
    shows_not_finite: ClassVar[bool] = True
    #: What a row is given depends on no other row.
    rows_apart: ClassVar[bool] = True

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return raw predictions of shape (n,), or (n, n_outputs) for several outputs."""
        check_dense_rows(X)
        found = np.empty((len(X), len(self.baseline)))
        found[:] = self.baseline
        self.add(X, 0, len(self.trees), found)
        return found[:, 0] if len(self.baseline) == 1 else found

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the same function for rows on a GPU, with the same bits.

        Results are on the host.
        """
        from daskml_dist.backends.cupy_trees import CupyForest

        forest = CupyForest(backend, self.trees, self.baseline)

        def apply(X: Any) -> NDArray[Any]:
            check_dense_rows(X)
            found = forest(X)
            return found[:, 0] if len(self.baseline) == 1 else found

        return apply

    def add(self, X: NDArray[Any], first: int, last: int, out: NDArray[np.float64]) -> None:
        """Add the values of some trees."""
        from daskml_dist.backends.row_slices import run_over_threads

        X = np.ascontiguousarray(X)
        n, d = X.shape
        many = n >= _MANY_ROWS and d <= _FEATURES_A_TREE * (last - first)
        masked = many and self._word is not None and _walks.are_many(n * (last - first))
        add = self._add_masked if masked else self._add_walked
        run_over_threads(lambda at: add(X[at], first, last, out[at]), n, _ROWS_A_THREAD)

    def _add_walked(self, X: NDArray[Any], first: int, last: int, out: NDArray[np.float64]) -> None:
        from daskml_dist.backends.tree_predict import add_tree_values

        nodes = self.trees.nodes
        add_tree_values(
            self.numbered(X), self.trees.roots, first, last, self.trees.n_per_iteration,
            nodes.feature, nodes.threshold, nodes.left, nodes.missing_left, nodes.category,
            nodes.bitsets, self._values, out,
        )  # fmt: skip

    def _add_masked(self, X: NDArray[Any], first: int, last: int, out: NDArray[np.float64]) -> None:
        """Add the predictions of some trees to `out`, by bit masks of the leaves of each tree."""
        from daskml_dist.backends.tree_predict import add_by_masks, write_bins

        (n, d), bins, nodes = X.shape, self.trees.bins, self.trees.nodes
        rows, columns = np.empty((n, d), np.uint8), np.empty((d, n), np.uint8)
        write_bins(
            X, bins.table, bins.n_edges, bins.categorical, bins.max_bins, rows, columns,
            np.empty(d, np.uint8),
        )  # fmt: skip
        add_by_masks(
            columns, self.trees.roots, first, last, self.trees.n_per_iteration,
            (nodes.feature, nodes.bin, nodes.left, nodes.missing_left, nodes.category,
             nodes.bitsets),
            self._values, bins.max_bins, np.empty((d + 3, 256), self._word), out,
        )  # fmt: skip

    @cached_property
    def _word(self) -> type[np.uint32 | np.uint64] | None:
        """Integers whose bits are leaves; None where trees are too large."""
        most = max(np.add.reduceat(self.trees.nodes.feature < 0, self.trees.roots[:-1], dtype=int))
        return np.uint32 if most <= 32 else np.uint64 if most <= _MOST_LEAVES else None

    @cached_property
    def _values(self) -> NDArray[np.float64]:
        return np.ascontiguousarray(self.trees.nodes.value[:, 0])

    def numbered(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the rows with categories as numbers, unknown ones as missing."""
        return _number_categories(self.trees, X)


@dataclass(eq=False)
class TreeLeaves:
    """Function from rows to the leaf of each tree that they end in, as its number in the tree.

    Parameters
    ----------
    trees : Trees
    """

    trees: Trees
    #: Rows may hold NaN; leaves are always finite.
    shows_not_finite: ClassVar[bool] = True
    rows_apart: ClassVar[bool] = True

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the numbers of leaves, of shape (n, n_trees)."""
        from daskml_dist.backends.tree_predict import add_tree_values

        check_dense_rows(X)
        nodes, n_trees = self.trees.nodes, len(self.trees)
        # Each tree adds to a column of its own, and what its leaves add are their numbers.
        found, numbers = (
            np.zeros((len(X), n_trees)),
            number_depth_first(self.trees).astype(np.float64),
        )
        add_tree_values(
            np.ascontiguousarray(_number_categories(self.trees, X)), self.trees.roots, 0, n_trees,
            n_trees,
            nodes.feature, nodes.threshold, nodes.left, nodes.missing_left, nodes.category,
            nodes.bitsets, numbers, found,
        )  # fmt: skip
        return found.astype(np.int64)


def _number_categories(trees: Trees, X: NDArray[Any]) -> NDArray[Any]:
    """Return rows with categories as numbers, unknown ones as missing."""
    bins = trees.bins
    if not bins.categorical.any():
        return X
    X = np.array(X, np.float64)
    for j in np.flatnonzero(bins.categorical):
        edges = bins.edges[j]
        at = np.searchsorted(edges, X[:, j])
        at[at == len(edges)] = 0
        X[:, j] = np.where(edges[at] == X[:, j], at, np.nan) if len(edges) else np.nan
    return X


#: Entries of sparse rows that are made dense at once.
_ENTRIES = 1 << 20


@dataclass(eq=False)
class RawForest:
    """Function from rows to the mean of the answers of all trees.

    Parameters
    ----------
    trees : Trees
    """

    trees: Trees
    #: Rows may hold NaN, which is a missing value, and infinity.
    shows_not_finite: ClassVar[bool] = True
    #: What a row is given depends on no other row.
    rows_apart: ClassVar[bool] = True

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return shares of classes, or means of targets, of shape (n, n_values)."""
        from daskml_dist.backends.tree_predict import add_forest_answers

        values, found = self._values, np.zeros((X.shape[0], self._values.shape[1]))
        nodes = self._nodes64 if X.dtype == np.float64 else self._nodes32
        for at, rows in _iterate_dense(X):
            add_forest_answers(rows, self.trees.roots, *nodes, self._depths, values, found[at])
        found /= len(self.trees)
        return found

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the same function for rows on a GPU, with the same bits.

        Results are on the host.
        """
        from daskml_dist.backends.cupy_trees import CupyForest

        forest = CupyForest(backend, self.trees, np.zeros(self._values.shape[1]))
        return lambda X: forest(X) / len(self.trees)

    def __getstate__(self) -> dict[str, Any]:
        # What is made of the trees is made again where it is needed.
        return {"trees": self.trees}

    @cached_property
    def _values(self) -> NDArray[np.float64]:
        return np.ascontiguousarray(self.trees.nodes.value)

    @cached_property
    def _depths(self) -> NDArray[np.int64]:
        return np.maximum.reduceat(self.trees.nodes.depth, self.trees.roots[:-1]).astype(np.int64)

    @cached_property
    def _nodes64(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return _weave_nodes(self.trees, np.float64)

    @cached_property
    def _nodes32(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return _weave_nodes(self.trees, np.float32)


def _weave_nodes(trees: Trees, dtype: Any) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return thresholds in the rows' dtype, and features, left children and missing sides together.

    A leaf leads to itself whatever a value is.
    """
    nodes = trees.nodes
    threshold = nodes.threshold.astype(dtype)
    if dtype == np.float32:
        # Rows are of float32 too: the largest such number that goes left.
        over = threshold > nodes.threshold
        threshold[over] = np.nextafter(threshold[over], np.float32(-np.inf))
    leaf = nodes.feature < 0
    facts = np.column_stack(
        [np.where(leaf, 0, nodes.feature), nodes.left, np.where(leaf, 1, nodes.missing_left)]
    ).astype(np.int32)
    threshold[leaf] = np.inf
    return threshold, np.ascontiguousarray(facts)


@dataclass(eq=False)
class ForestLeaves:
    """Function from rows to the leaf of each tree that they end in, as its number in the tree.

    Parameters
    ----------
    trees : Trees
    """

    trees: Trees
    shows_not_finite: ClassVar[bool] = True
    rows_apart: ClassVar[bool] = True

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the numbers of leaves, of shape (n, n_trees)."""
        from daskml_dist.backends.tree_predict import find_leaves

        found = np.empty((X.shape[0], len(self.trees)), np.int64)
        nodes, numbers = _weave_nodes(self.trees, X.dtype), number_depth_first(self.trees)
        for at, rows in _iterate_dense(X):
            find_leaves(rows, self.trees.roots, *nodes, numbers, found[at])
        return found


def _iterate_dense(X: Any) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield rows in one piece where they are dense; sparse ones piece by piece, made dense."""
    if not sparse.issparse(X):
        yield slice(0, len(X)), np.ascontiguousarray(X)
        return
    n, d = X.shape
    for at in row_slices(n, max(1, _ENTRIES // d)):
        yield at, X[at].toarray()
