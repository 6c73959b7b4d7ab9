"""SHAP values of ensembles of trees, exact: functions of rows, prepared once for many rows.

The contribution of a feature i is its Shapley value in the game whose players are the features, and
in which the value of a subset S is the prediction that S determines. With `PathShap` the other
features are averaged over the training rows at each node (path-dependent); with
`InterventionalShap` over rows of a background.

For a leaf of value v whose path has the features j, with z_j the share of training rows that meet
j's conditions and o_j whether the row meets them, the Shapley value is

    ``v (o_i - z_i) * integral from 0 to 1 of prod over j != i of (z_j (1 - t) + o_j t) dt``,

since ``k! (d - 1 - k)! / d!``, the weight of a subset of k others, is the integral of
``t^k (1 - t)^(d - 1 - k)``. The integrand is a polynomial, so Gauss and Legendre's quadrature of
``ceil(d / 2)`` points is exact; at each point the products are shared by all leaves below a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from math import lgamma
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.host_memory import allocate_aligned
from daskml_dist.backends.row_slices import row_slices, run_over_threads
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.trees import RawForest, RawTrees, Trees, iterate_dense, number_categories

Floats = NDArray[np.float64]

#: Rows that go through all trees together: their values stay in the cache.
_PATH_ROWS_AT_ONCE = 512
#: The same for interventional values, for which more rows share more patterns.
_INTERVENTIONAL_ROWS_AT_ONCE = 2048
#: Rows per thread from which another thread is worth it.
_ROWS_A_THREAD = 64
#: Maximum bytes of cached tables of edges; for larger ensembles tables are recomputed for each
#: group of rows.
_MAX_TABLE_BYTES = 2**26
#: Maximum features of a path that a 64-bit pattern can hold.
_MOST_FEATURES = 64


@dataclass(frozen=True, eq=False)
class ExplainedTrees:
    """Trees whose predictions are explained.

    Parameters
    ----------
    trees : Trees
    value : ndarray of float64 of shape (n_nodes, n_values)
        What a leaf adds to the prediction.
    baseline : ndarray of float64 of shape (n_outputs,)
        Prediction before the first tree.
    cover : ndarray of float64 of shape (n_nodes,)
        Weight of the training rows of each node.
    """

    trees: Trees
    value: Floats
    baseline: Floats
    cover: Floats

    @classmethod
    def from_raw(cls, raw: RawTrees | RawForest) -> ExplainedTrees:
        """Return the trees, values and baseline of the predictions of boosting or of a forest."""
        trees = raw.trees
        if isinstance(raw, RawTrees):
            value = np.ascontiguousarray(trees.nodes.value)
            # Covers of boosted trees are sums of Hessians: use counts of rows instead.
            return cls(trees, value, raw.baseline, trees.nodes.count.astype(np.float64))
        value = np.ascontiguousarray(trees.nodes.value / len(trees))
        return cls(trees, value, np.zeros(value.shape[1]), trees.nodes.weight.astype(np.float64))

    @property
    def n_outputs(self) -> int:
        """Number of columns of the raw predictions."""
        return len(self.baseline)

    @property
    def n_in_turn(self) -> int:
        """Number of outputs that single-valued trees belong to in turn."""
        return self.n_outputs if self.value.shape[1] == 1 else 1

    @cached_property
    def edges(self) -> Edges:
        """Data of the edge into each node."""
        from daskml_dist.backends.tree_shap import describe_edges

        nodes, n = self.trees.nodes, len(self.cover)
        order, parent, last_edge, slot, n_features = np.empty((5, n), np.int32)
        shares = np.empty((n, 2))
        describe_edges(
            self.trees.roots, nodes.left, nodes.feature, nodes.depth, self.cover, order, parent,
            last_edge, slot, n_features, shares,
        )  # fmt: skip
        return Edges(order, parent, last_edge, slot, n_features, shares)

    @property
    def deepest(self) -> int:
        """Largest number of edges of a path."""
        return int(self.trees.nodes.depth.max())

    @property
    def node_arrays(self) -> tuple[Any, ...]:
        """Arrays of the nodes that determine a row's path."""
        nodes = self.trees.nodes
        return (
            nodes.feature, nodes.threshold, nodes.left, nodes.missing_left, nodes.category,
            nodes.bitsets,
        )  # fmt: skip

    def expected_values(self) -> Floats:
        """Return the means of the raw predictions over the training rows, by cover."""
        nodes, expected = self.trees.nodes, self.baseline.copy()
        leaf = np.flatnonzero(nodes.feature < 0)
        tree = np.searchsorted(self.trees.roots, leaf, side="right") - 1
        # A tree grown on no rows (of a small sample) is one leaf.
        root_cover = self.cover[self.trees.roots[tree]]
        share = np.divide(
            self.cover[leaf], root_cover, out=np.ones(len(leaf)), where=root_cover > 0
        )
        if self.value.shape[1] > 1:
            return expected + share @ self.value[leaf]
        np.add.at(expected, tree % self.n_in_turn, share * self.value[leaf, 0])
        return expected

    def __getstate__(self) -> dict[str, Any]:
        # Without the edges, which are recomputed faster than they are sent.
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Edges(NamedTuple):
    """Arrays of :func:`daskml_dist.backends.tree_shap.describe_edges`, an entry for each node."""

    order: NDArray[np.int32]
    parent: NDArray[np.int32]
    last: NDArray[np.int32]
    slot: NDArray[np.int32]
    n_features: NDArray[np.int32]
    shares: Floats


class _PathTables(NamedTuple):
    """Trees whose polynomials need the same number of points, and their edges' numbers there."""

    trees: NDArray[np.int64]
    starts: NDArray[np.int64]
    weights: Floats
    edge_values: Floats


@dataclass(eq=False)
class PathShap:
    """Function of rows: path-dependent SHAP values, of shape (n, n_features, n_outputs).

    Parameters
    ----------
    explained : ExplainedTrees
    """

    explained: ExplainedTrees

    @property
    def base_values(self) -> Floats:
        """Mean prediction, to which the contributions of a row are added."""
        return self.explained.expected_values()

    @cached_property
    def _batches(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Return batches of trees: the number of quadrature points, and the trees' numbers."""
        from daskml_dist.backends.tree_shap import EDGE_NUMBERS

        roots = self.explained.trees.roots
        n_features = np.maximum.reduceat(self.explained.edges.n_features, roots[:-1])
        points = np.maximum((n_features + 1) // 2, 1)
        batches = []
        for n_points in np.unique(points).tolist():
            trees = np.flatnonzero(points == n_points)
            size = np.diff(roots)[trees] * n_points * EDGE_NUMBERS * 8
            # Trees up to the same multiple of the bytes form a batch.
            batch = (np.cumsum(size) - size) // _MAX_TABLE_BYTES
            batches += [
                (n_points, batch_trees)
                for batch_trees in np.split(trees, np.flatnonzero(np.diff(batch)) + 1)
            ]
        return batches

    @cached_property
    def _kept_tables(self) -> list[_PathTables] | None:
        """The tables of all trees; None if they are too large to be cached."""
        from daskml_dist.backends.tree_shap import EDGE_NUMBERS

        sizes = np.diff(self.explained.trees.roots)
        n_numbers = sum(int(sizes[trees].sum()) * n for n, trees in self._batches) * EDGE_NUMBERS
        if 8 * n_numbers > _MAX_TABLE_BYTES:
            return None
        return list(self._iterate_tables())

    def _iterate_tables(self) -> Iterator[_PathTables]:
        """Yield the tables of all trees, some trees at a time."""
        return (self._make_tables(n_points, trees) for n_points, trees in self._batches)

    def _make_tables(self, n_points: int, trees: NDArray[np.int64]) -> _PathTables:
        """Return the tables of some trees."""
        from daskml_dist.backends.tree_shap import EDGE_NUMBERS

        roots, shares = self.explained.trees.roots, self.explained.edges.shares
        ranges = [np.arange(roots[t], roots[t + 1]) for t in trees.tolist()]
        nodes = np.concatenate(ranges)
        points, weights = np.polynomial.legendre.leggauss(n_points)
        t, weights = (points + 1) / 2, weights / 2
        z, z_above = shares[nodes, :1], shares[nodes, 1:]
        high_above = z_above * (1 - t) + t
        # Factors for a row that failed the feature's conditions above (only training rows remain),
        # that fails here, and that still meets them.
        has_left = np.divide(z, z_above, out=np.zeros_like(z), where=z_above > 0)
        leaves, stays = z * (1 - t) / high_above, (z * (1 - t) + t) / high_above
        # The feature's gain from the leaves below, minus the part attributed to the edge above: for
        # a row that fails here, and for one that still meets the conditions.
        counted_above = (1 - z_above) / high_above
        loses, gains = -1 / (1 - t) - counted_above, (1 - z) / (z * (1 - t) + t) - counted_above
        numbers = np.empty((len(nodes), n_points, EDGE_NUMBERS))
        numbers[:, :, 0] = has_left
        numbers[:, :, 1], numbers[:, :, 2] = leaves - has_left, stays - leaves
        numbers[:, :, 3], numbers[:, :, 4] = loses, gains - loses
        starts = np.cumsum([0, *map(len, ranges[:-1])])
        return _PathTables(trees, starts, weights, numbers)

    def __call__(self, X: Any) -> Floats:
        """Return the contributions of the features to the raw predictions of rows."""
        explained, n_features = self.explained, X.shape[1]
        contributions = np.empty((X.shape[0], n_features, explained.n_outputs))
        # Computed here, instead of by each of several threads.
        kept_tables = self._kept_tables
        for row_slice, dense in iterate_dense(X):
            rows = number_categories(explained.trees, dense)
            row_contributions = contributions[row_slice]

            def add(
                row_slice: slice, rows: Any = rows, contributions: Any = row_contributions
            ) -> None:
                for subset in row_slices(len(rows[row_slice]), _PATH_ROWS_AT_ONCE):
                    tables = kept_tables or self._iterate_tables()
                    contributions[row_slice][subset] = self._explain(
                        rows[row_slice][subset], tables
                    )

            run_over_threads(add, len(rows), _ROWS_A_THREAD)
        return contributions

    def _explain(self, rows: NDArray[Any], tables: Iterable[_PathTables]) -> Floats:
        """Return the contributions to some rows, whose categories are numbers."""
        from daskml_dist.backends.tree_shap import GROUP_LANES, LANES, add_path_values

        explained, n_features = self.explained, rows.shape[1]
        width = min(-(-len(rows) // LANES) * LANES, GROUP_LANES)
        n_groups, n_values = -(-len(rows) // width), explained.value.shape[1]
        # The last group is padded with rows of zeros.
        padded = np.zeros((n_groups * width, n_features))
        padded[: len(rows)] = rows
        lanes = padded.reshape(n_groups, width, n_features).transpose(0, 2, 1).copy()
        values = allocate_aligned((n_groups, n_features, explained.n_outputs, width), np.float64)
        values[:] = 0
        depth = explained.trees.nodes.depth
        for table in tables:
            stacks = 3 + len(table.weights) * (1 + n_values)
            scratch = allocate_aligned(((explained.deepest + 1) * stacks, width), np.float64)
            add_path_values(
                lanes, table.trees, table.starts, explained.trees.roots, explained.n_in_turn,
                explained.node_arrays, explained.edges[:3], depth, explained.deepest,
                table.edge_values, table.weights, explained.value, scratch, values,
            )  # fmt: skip
        return values.transpose(0, 3, 1, 2).reshape(-1, n_features, explained.n_outputs)[
            : len(rows)
        ]

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached tables, which are larger than the trees.
        return {"explained": self.explained}


@dataclass(eq=False)
class InterventionalShap:
    """Function of rows: interventional SHAP values, of shape (n, n_features, n_outputs).

    Parameters
    ----------
    explained : ExplainedTrees
    background : ndarray of shape (n_background, n_features)
        Background rows, from which the other features are taken.
    base_values : ndarray of float64 of shape (n_outputs,)
        Mean prediction of the background.
    """

    explained: ExplainedTrees
    background: NDArray[Any]
    base_values: Floats

    def __post_init__(self) -> None:
        if self._most_features > _MOST_FEATURES:
            raise InvalidParameterError(
                f"A path of a tree asks for {self._most_features} features, and interventional "
                f"values take {_MOST_FEATURES} at most. Leave the background out, or fit trees of "
                "a smaller max_depth."
            )

    @property
    def _most_features(self) -> int:
        """Maximum number of features of a path."""
        return int(self.explained.edges.n_features.max())

    @cached_property
    def _columns(self) -> Floats:
        """The background rows by feature, with categories as numbers."""
        rows = number_categories(self.explained.trees, np.ascontiguousarray(self.background))
        return np.ascontiguousarray(rows.T, dtype=np.float64)

    def __call__(self, X: Any) -> Floats:
        """Return the contributions of the features to the raw predictions of rows."""
        from daskml_dist.backends.tree_shap import add_interventional_values

        explained, most_features = self.explained, self._most_features
        edges = explained.edges
        path_edges = edges.order, edges.parent, edges.slot, edges.n_features
        subset_weights = _weigh_subsets(most_features) / self._columns.shape[1]
        contributions = np.empty((X.shape[0], X.shape[1], explained.n_outputs))
        for row_slice, dense in iterate_dense(X):
            rows = number_categories(explained.trees, dense)
            row_contributions = contributions[row_slice]

            def add(
                row_slice: slice, rows: Any = rows, contributions: Any = row_contributions
            ) -> None:
                for subset in row_slices(len(rows[row_slice]), _INTERVENTIONAL_ROWS_AT_ONCE):
                    columns = np.ascontiguousarray(rows[row_slice][subset].T, dtype=np.float64)
                    values = np.zeros((len(columns), explained.n_outputs, columns.shape[1]))
                    add_interventional_values(
                        columns, self._columns, explained.trees.roots, explained.n_in_turn,
                        explained.node_arrays, path_edges, explained.trees.nodes.depth,
                        explained.deepest, most_features, subset_weights, explained.value, values,
                    )  # fmt: skip
                    contributions[row_slice][subset] = values.transpose(2, 0, 1)

            run_over_threads(add, len(rows), _ROWS_A_THREAD)
        return contributions

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached columns.
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _weigh_subsets(max_features: int) -> Floats:
    """Return ``a! b! / (a + b + 1)!`` for all a and b up to a number."""
    logs = np.array([lgamma(i + 1) for i in range(2 * max_features + 3)])
    a, b = np.indices((max_features + 1, max_features + 1))
    return np.asarray(np.exp(logs[a] + logs[b] - logs[a + b + 1]))
