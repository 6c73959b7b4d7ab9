"""Decision trees as flat arrays, of one tree (:class:`Tree`) and of an ensemble (:class:`Trees`).

Predictions are functions of rows: sums of leaves for boosting (:class:`RawTrees`), means of leaves
for forests (:class:`RawForest`). Boosting has two compiled loops that give the same bits: one walks
each row from node to node; the other looks up, for the row's bin of each feature, a bit mask of the
leaves that remain possible (Lucchese et al., "QuickScorer", SIGIR 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.base import Backend
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.backends.trees import check_dense_rows
from daskml_dist.models.bins import Bins

Array = NDArray[Any]


@dataclass(eq=False)
class Tree:
    """Nodes of a tree, in the order of growth; the root is the first.

    Parameters
    ----------
    feature : ndarray of int32 of shape (n_nodes,)
        Feature of a node's split; -1 at a leaf.
    bin : ndarray of int32 of shape (n_nodes,)
        Last bin that goes left.
    threshold : ndarray of float64 of shape (n_nodes,)
        Largest value that goes left.
    left : ndarray of int32 of shape (n_nodes,)
        Index of the left child; the right one is the next. A leaf refers to itself.
    missing_left : ndarray of bool of shape (n_nodes,)
        Whether missing values go left.
    category : ndarray of int32 of shape (n_nodes,)
        Index in `bitsets` of the categories that go left; -1 if the feature is not categorical.
    value : ndarray of float64 of shape (n_nodes, n_values)
        Prediction of a leaf; of other nodes, what they would predict as leaves.
    gain : ndarray of float64 of shape (n_nodes,)
    count : ndarray of int64 of shape (n_nodes,)
        Number of training rows.
    weight : ndarray of float64 of shape (n_nodes,)
        Sum of their weights (forests), or of their Hessians (boosting).
    depth : ndarray of int32 of shape (n_nodes,)
    bitsets : ndarray of uint64 of shape (n_categorical_splits, 4)
        256 bits per split: bit b is set if the category of index b goes left.
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
        """Number of leaves."""
        return int((self.feature < 0).sum())

    @property
    def max_depth(self) -> int:
        """Number of edges from the root to the deepest leaf."""
        return int(self.depth.max())

    def goes_left(self, node: int, bins: Bins) -> NDArray[np.uint8]:
        """Return a table of 256 entries: 1 for bins of the node's feature that go left, else 0."""
        return goes_left(
            int(self.bin[node]),
            bool(self.missing_left[node]),
            None if self.category[node] < 0 else self.bitsets[self.category[node]],
            bins.max_bins,
        )


def goes_left(
    last: int, missing_left: bool, bitset: NDArray[np.uint64] | None, missing: int
) -> NDArray[np.uint8]:
    """Return a table of 256 entries: 1 for bins that go left, else 0.

    `last` is the last bin that goes left, or `bitset` the categories; `missing` is the bin of
    missing values.
    """
    if bitset is None:
        table = (np.arange(256) <= last).astype(np.uint8)
    else:
        table = np.unpackbits(bitset.view(np.uint8), bitorder="little")
    table[missing] = missing_left
    return table


@dataclass(eq=False)
class Trees:
    """All trees of an ensemble, concatenated.

    Parameters
    ----------
    roots : ndarray of int64 of shape (n_trees + 1,)
        Index of the root of each tree, followed by the number of all nodes.
    nodes : Tree
        All nodes; `left` and `category` are indices in the whole ensemble.
    n_per_iteration : int
        Trees of one iteration of boosting: one for each column of the raw predictions, or one whose
        leaves have a value for each.
    bins : Bins
    """

    roots: NDArray[np.int64]
    nodes: Tree
    n_per_iteration: int
    bins: Bins

    @classmethod
    def from_trees(cls, trees: Sequence[Tree], n_per_iteration: int, bins: Bins) -> Trees:
        """Return the ensemble of some trees, whose indices are shifted."""
        roots = np.concatenate([[0], np.cumsum([len(tree.feature) for tree in trees])])
        bitsets = np.concatenate([[0], np.cumsum([len(tree.bitsets) for tree in trees])])
        arrays_by_field = {f.name: [getattr(tree, f.name) for tree in trees] for f in fields(Tree)}
        # Indices of nodes and bitsets are shifted by the numbers of those before.
        arrays_by_field["left"] = [
            a + shift for a, shift in zip(arrays_by_field["left"], roots, strict=False)
        ]
        arrays_by_field["category"] = [
            np.where(a < 0, a, a + shift)
            for a, shift in zip(arrays_by_field["category"], bitsets, strict=False)
        ]
        nodes = Tree(**{name: np.concatenate(arrays) for name, arrays in arrays_by_field.items()})
        nodes.left = nodes.left.astype(np.int32)
        nodes.category = nodes.category.astype(np.int32)
        return cls(roots.astype(np.int64), nodes, n_per_iteration, bins)

    def __len__(self) -> int:
        """Return the number of trees."""
        return len(self.roots) - 1

    @property
    def n_iter(self) -> int:
        """Number of iterations of boosting."""
        return len(self) // self.n_per_iteration

    def tree(self, tree_index: int) -> Tree:
        """Return one of the trees, with indices that count from its own root."""
        node_slice = slice(*self.roots[tree_index : tree_index + 2])
        # All fields but the last, `bitsets`, have an entry for each node.
        node_arrays = {f.name: getattr(self.nodes, f.name)[node_slice] for f in fields(Tree)[:-1]}
        # A tree's bitsets are adjacent, in the order of its nodes.
        used_categories = node_arrays["category"][node_arrays["category"] >= 0]
        node_arrays["left"] = (node_arrays["left"] - node_slice.start).astype(np.int32)
        first = int(used_categories.min()) if len(used_categories) else 0
        node_arrays["category"] = np.where(
            node_arrays["category"] < 0, -1, node_arrays["category"] - first
        )
        node_arrays["category"] = node_arrays["category"].astype(np.int32)
        return Tree(**node_arrays, bitsets=self.nodes.bitsets[first : first + len(used_categories)])

    def first(self, n_iter: int) -> Trees:
        """Return the trees of the first iterations."""
        n = n_iter * self.n_per_iteration
        return Trees.from_trees([self.tree(i) for i in range(n)], self.n_per_iteration, self.bins)

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
    """Return the depth-first index of each node in its tree, by which users know it."""
    from daskml_dist.backends.tree_predict import depth_first

    numbers: Array = depth_first(trees.nodes.left)
    return numbers


#: Bit masks need binned rows and a table for each tree, which is worth it from this many rows; and
#: the number of features that are binned in the time a row takes through one tree.
_MIN_MASKED_ROWS, _FEATURES_A_TREE = 128, 4
#: Maximum leaves of a tree for which masks (64 leaves at a time) are faster than walks.
_MAX_MASKED_LEAVES = 256
#: Rows per thread from which another thread is worth it.
_ROWS_A_THREAD = 4096
#: Walks (of a row through a tree) in a process before the loops over masks are loaded, which on a
#: new machine takes some seconds of compilation. They take about 50 ms, and give the same bits.
_MIN_WALKS_BEFORE_MASKS = 1 << 20


class _WalkCounter:
    """Counter of this process's walks that could have been evaluated by masks."""

    def __init__(self) -> None:
        self._n_walks = 0

    def add(self, n_walks: int) -> bool:
        """Count more walks; return whether there were enough to load loops over masks."""
        self._n_walks += n_walks
        return self._n_walks > _MIN_WALKS_BEFORE_MASKS


_walk_counter = _WalkCounter()


@dataclass(eq=False)
class RawTrees:
    """Function of rows: the baseline plus the sum of their leaves' values over all trees.

    Parameters
    ----------
    trees : Trees
    baseline : ndarray of float64 of shape (n_outputs,)
        Prediction before the first tree.
    """

    trees: Trees
    baseline: NDArray[np.float64]
    #: Rows may hold NaN: they are checked only if a prediction is not finite.
    shows_not_finite: ClassVar[bool] = True
    #: The prediction of a row does not depend on other rows.
    rows_apart: ClassVar[bool] = True

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return raw predictions of shape (n,), or (n, n_outputs) for several outputs."""
        check_dense_rows(X)
        # Boosting: every tree adds to the baseline (Friedman 2001, algorithm 1).
        raw = np.empty((len(X), len(self.baseline)))
        raw[:] = self.baseline
        self.add(X, 0, len(self.trees), raw)
        return raw[:, 0] if len(self.baseline) == 1 else raw

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the same function for rows on a GPU, with the same bits.

        Results are on the host.
        """
        from daskml_dist.backends.cupy_trees import CupyForest

        forest = CupyForest(backend, self.trees, self.baseline)

        def apply(X: Any) -> NDArray[Any]:
            check_dense_rows(X)
            raw = forest(X)
            return raw[:, 0] if len(self.baseline) == 1 else raw

        return apply

    def add(self, X: NDArray[Any], first: int, last: int, out: NDArray[np.float64]) -> None:
        """Add the values of the trees from `first` to `last` to `out`, in place."""
        from daskml_dist.backends.row_slices import run_over_threads

        X = np.ascontiguousarray(X)
        n, d = X.shape
        if self.trees.nodes.value.shape[1] > 1:
            run_over_threads(
                lambda at: self._add_vectors(X[at], first, last, out[at]), n, _ROWS_A_THREAD
            )
            return
        is_large = n >= _MIN_MASKED_ROWS and d <= _FEATURES_A_TREE * (last - first)
        masked = is_large and self._word is not None and _walk_counter.add(n * (last - first))
        add = self._add_masked if masked else self._add_walked
        run_over_threads(lambda at: add(X[at], first, last, out[at]), n, _ROWS_A_THREAD)

    def _add_walked(self, X: NDArray[Any], first: int, last: int, out: NDArray[np.float64]) -> None:
        from daskml_dist.backends.tree_predict import add_tree_values

        nodes = self.trees.nodes
        add_tree_values(
            _as_read_only(number_categories(self.trees, X)), self.trees.roots, first, last,
            self.trees.n_per_iteration, nodes.feature, nodes.threshold, nodes.left,
            nodes.missing_left, nodes.category, nodes.bitsets, self._values, out,
        )  # fmt: skip

    def _add_vectors(
        self, X: NDArray[Any], first: int, last: int, out: NDArray[np.float64]
    ) -> None:
        """Add the predictions of some trees, whose leaves have a value of each output, to `out`."""
        from daskml_dist.backends.vector_tree_kernels import add_vector_values

        nodes = self.trees.nodes
        add_vector_values(
            number_categories(self.trees, X), self.trees.roots, first, last, nodes.feature,
            nodes.threshold, nodes.left, nodes.missing_left, nodes.category, nodes.bitsets,
            nodes.value, out,
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
        """Type of the integers whose bits represent leaves; None if a tree has too many."""
        n_leaves = max(
            np.add.reduceat(self.trees.nodes.feature < 0, self.trees.roots[:-1], dtype=int)
        )
        return (
            np.uint32 if n_leaves <= 32 else np.uint64 if n_leaves <= _MAX_MASKED_LEAVES else None
        )

    @cached_property
    def _values(self) -> NDArray[np.float64]:
        return np.ascontiguousarray(self.trees.nodes.value[:, 0])


@dataclass(eq=False)
class TreeLeaves:
    """Function of rows: the leaf that they reach in each tree of boosting, by depth-first index.

    Parameters
    ----------
    trees : Trees
    """

    trees: Trees
    #: Rows may hold NaN; indices of leaves are always finite.
    shows_not_finite: ClassVar[bool] = True
    rows_apart: ClassVar[bool] = True

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the indices of leaves, of shape (n, n_trees)."""
        from daskml_dist.backends.tree_predict import add_tree_values

        check_dense_rows(X)
        nodes, n_trees = self.trees.nodes, len(self.trees)
        # The loop of predictions, with a column for each tree and indices in place of values.
        leaves = np.zeros((len(X), n_trees))
        add_tree_values(
            _as_read_only(number_categories(self.trees, X)), self.trees.roots, 0, n_trees, n_trees,
            nodes.feature, nodes.threshold, nodes.left, nodes.missing_left, nodes.category,
            nodes.bitsets, number_depth_first(self.trees).astype(np.float64), leaves,
        )  # fmt: skip
        return leaves.astype(np.int64)


def _as_read_only(X: NDArray[Any]) -> NDArray[Any]:
    """Return rows as a contiguous, read-only array.

    numba compiles a loop separately for writable and for read-only arrays (rows of a mapped file or
    of another process); loops that only read need only the read-only version.
    """
    view = np.ascontiguousarray(X).view()
    view.flags.writeable = False
    return view


def number_categories(trees: Trees, X: NDArray[Any]) -> NDArray[Any]:
    """Return rows with categories as indices of their bins' edges, unknown ones as NaN."""
    bins = trees.bins
    if not bins.categorical.any():
        return X
    X = np.array(X, np.float64)
    for j in np.flatnonzero(bins.categorical):
        edges = bins.edges[j]
        # Past the last category any index will do, since the comparison below fails.
        category = np.searchsorted(edges, X[:, j])
        category[category == len(edges)] = 0
        X[:, j] = np.where(edges[category] == X[:, j], category, np.nan) if len(edges) else np.nan
    return X


#: Entries of sparse rows that are made dense together: 4 MiB in float32.
_ENTRIES_AT_ONCE = 1 << 20


@dataclass(eq=False)
class RawForest:
    """Function of rows: the mean of their leaves' values over all trees.

    Parameters
    ----------
    trees : Trees
    """

    trees: Trees
    #: Rows may hold NaN, which is a missing value, and infinity.
    shows_not_finite: ClassVar[bool] = True
    #: The prediction of a row does not depend on other rows.
    rows_apart: ClassVar[bool] = True

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return shares of classes, or means of targets, of shape (n, n_values)."""
        from daskml_dist.backends.tree_predict import add_forest_answers

        values, answers = self._values, np.zeros((X.shape[0], self._values.shape[1]))
        nodes = self._nodes64 if X.dtype == np.float64 else self._nodes32
        for row_slice, rows in iterate_dense(X):
            rows = _as_read_only(rows)
            add_forest_answers(
                rows, self.trees.roots, *nodes, self._depths, values, answers[row_slice]
            )
        answers /= len(self.trees)
        return answers

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the same function for rows on a GPU, with the same bits.

        Results are on the host.
        """
        from daskml_dist.backends.cupy_trees import CupyForest

        forest = CupyForest(backend, self.trees, np.zeros(self._values.shape[1]))
        return lambda X: forest(X) / len(self.trees)

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached tables, which are as large as the trees.
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
    """Return thresholds in the dtype of the rows, and (feature, left child, missing left) by node.

    Data read together in a step of a walk is contiguous. Leaves have an infinite threshold and
    refer to themselves, so that rows in a leaf stay there and all take the same number of steps.
    """
    nodes = trees.nodes
    threshold = nodes.threshold.astype(dtype)
    if dtype == np.float32:
        # Rounded down, to the largest float32 that goes left: rounding up could send float32 rows
        # left that the exact threshold sends right.
        rounded_up = threshold > nodes.threshold
        threshold[rounded_up] = np.nextafter(threshold[rounded_up], np.float32(-np.inf))
    leaf = nodes.feature < 0
    facts = np.column_stack(
        [np.where(leaf, 0, nodes.feature), nodes.left, np.where(leaf, 1, nodes.missing_left)]
    ).astype(np.int32)
    threshold[leaf] = np.inf
    return threshold, np.ascontiguousarray(facts)


@dataclass(eq=False)
class ForestLeaves:
    """Function of rows: the leaf that they reach in each tree of a forest, by depth-first index.

    Parameters
    ----------
    trees : Trees
    """

    trees: Trees
    shows_not_finite: ClassVar[bool] = True
    rows_apart: ClassVar[bool] = True

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the indices of leaves, of shape (n, n_trees)."""
        from daskml_dist.backends.tree_predict import find_leaves

        leaves = np.empty((X.shape[0], len(self.trees)), np.int64)
        nodes, numbers = _weave_nodes(self.trees, X.dtype), number_depth_first(self.trees)
        for row_slice, rows in iterate_dense(X):
            find_leaves(_as_read_only(rows), self.trees.roots, *nodes, numbers, leaves[row_slice])
        return leaves


def iterate_dense(X: Any) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield (slice, rows): contiguous dense rows; sparse ones piece by piece, made dense."""
    if not sparse.issparse(X):
        yield slice(0, len(X)), np.ascontiguousarray(X)
        return
    n, d = X.shape
    for row_slice in row_slices(n, max(1, _ENTRIES_AT_ONCE // d)):
        yield row_slice, X[row_slice].toarray()
