"""Raw predictions of an ensemble of trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.backends.trees import check_dense_rows
from daskml_dist.models.trees import Trees, number_depth_first

__all__ = ["ForestLeaves", "RawForest", "RawTrees", "TreeLeaves"]


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
