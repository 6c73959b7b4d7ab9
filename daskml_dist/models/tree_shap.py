"""SHAP values of ensembles of trees, exact: functions of rows, prepared once for many rows.

The contribution of a feature i is its Shapley value in the game whose players are the features, and
whose worth for a subset S is the prediction that S determines. With `PathShap` the other features
are averaged over the training rows at each node (path-dependent); with `InterventionalShap` over
rows of a background.

For a leaf of value v whose path has the features j, with z_j the share of training rows that go
along by j's conditions and o_j whether the row does, that value is

    ``v (o_i - z_i) * integral from 0 to 1 of prod over j != i of (z_j (1 - t) + o_j t) dt``,

since ``k! (d - 1 - k)! / d!``, the weight of a subset of k others, is the integral of
``t^k (1 - t)^(d - 1 - k)``. The integrand is a polynomial, so Gauss and Legendre's quadrature of
``ceil(d / 2)`` points is exact; at each point the products are shared by all leaves below a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.row_slices import row_slices, run_over_threads
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.trees import RawForest, RawTrees, Trees, iterate_dense, number_categories

Floats = NDArray[np.float64]

#: Rows that go through all trees together.
_ROWS_AT_ONCE = 512
#: Rows that are worth a thread.
_ROWS_A_THREAD = 64
#: Features of a path that a pattern of 64 bits holds.
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
    def of(cls, raw: RawTrees | RawForest) -> ExplainedTrees:
        """Return what the raw predictions of boosting or of a forest are made of."""
        trees = raw.trees
        if isinstance(raw, RawTrees):
            value = np.ascontiguousarray(trees.nodes.value[:, :1])
            # Weights of boosting are Hessians: rows are counted.
            return cls(trees, value, raw.baseline, trees.nodes.count.astype(np.float64))
        value = np.ascontiguousarray(trees.nodes.value / len(trees))
        return cls(trees, value, np.zeros(value.shape[1]), trees.nodes.weight.astype(np.float64))

    @property
    def n_outputs(self) -> int:
        """Number of columns of the raw predictions."""
        return len(self.baseline)

    @property
    def n_in_turn(self) -> int:
        """Number of outputs that trees of one value go to in turn."""
        return self.n_outputs if self.value.shape[1] == 1 else 1

    @cached_property
    def parent(self) -> NDArray[np.int32]:
        """Parent of each node; a root's is itself."""
        nodes = self.trees.nodes
        found = np.arange(len(nodes.feature), dtype=np.int32)
        inner = np.flatnonzero(nodes.feature >= 0)
        found[nodes.left[inner]] = found[nodes.left[inner] + 1] = inner
        return found

    @property
    def node_arrays(self) -> tuple[Any, ...]:
        """Arrays of the nodes that tell a row's way."""
        nodes = self.trees.nodes
        return (
            nodes.feature, nodes.threshold, nodes.left, nodes.missing_left, nodes.category,
            nodes.bitsets,
        )  # fmt: skip

    def iterate_edges(self) -> Iterator[tuple[int, int, int]]:
        """Yield (node, parent, node above whose edge has the same feature or -1), parents first."""
        parent, feature = self.parent, self.trees.nodes.feature
        # Last edge of each feature on the path to a node, shared by nodes below.
        last: dict[int, dict[int, int]] = {}
        for root, end in zip(self.trees.roots[:-1], self.trees.roots[1:], strict=True):
            last = {int(root): {}}
            for k in range(int(root) + 1, int(end)):
                above = int(parent[k])
                own = int(feature[above])
                yield k, above, last[above].get(own, -1)
                last[k] = {**last[above], own: k}

    def expected_values(self) -> Floats:
        """Return the means of the raw predictions over the training rows, by cover."""
        nodes, found = self.trees.nodes, self.baseline.copy()
        leaf = np.flatnonzero(nodes.feature < 0)
        tree = np.searchsorted(self.trees.roots, leaf, side="right") - 1
        share = self.cover[leaf] / self.cover[self.trees.roots[tree]]
        if self.value.shape[1] > 1:
            return found + share @ self.value[leaf]
        np.add.at(found, tree % self.n_in_turn, share * self.value[leaf, 0])
        return found


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
        """Mean prediction, which the contributions of a row are added to."""
        return self.explained.expected_values()

    @cached_property
    def _tables(self) -> tuple[Any, ...]:
        """Tables of the edges: last edge of the same feature, factors and gains at the points."""
        of = self.explained
        n, cover = len(of.parent), of.cover
        before = np.full(n, -1, np.int32)
        # Shares of training rows that go along by the feature of an edge, on all edges of the path
        # that ask for it; of the edges of the same feature above.
        share, share_above, n_features = np.ones(n), np.ones(n), np.zeros(n, np.int64)
        for k, above, last in of.iterate_edges():
            before[k] = last
            step = cover[k] / cover[above] if cover[above] > 0 else 0.0
            share_above[k] = 1.0 if last < 0 else share[last]
            share[k] = share_above[k] * step
            n_features[k] = n_features[above] + (last < 0)
        n_points = max((int(n_features.max(initial=1)) + 1) // 2, 1)
        points, weights = np.polynomial.legendre.leggauss(n_points)
        t, weights = (points + 1) / 2, weights / 2
        z, z_above = share[:, None], share_above[:, None]
        low, high = z * (1 - t), z * (1 - t) + t
        high_above = z_above * (1 - t) + t
        factors, gains = np.zeros((2, n, 3, n_points))
        # State 0: the row has left the feature's conditions above, and only training rows go on.
        factors[:, 0] = np.divide(z, z_above, out=np.zeros_like(z), where=z_above > 0)
        factors[:, 1], factors[:, 2] = low / high_above, high / high_above
        # What the feature gains of the leaves below, less what the edge above counts for them.
        counted = (1 - z_above) / high_above
        gains[:, 1] = -1 / (1 - t) - counted
        gains[:, 2] = (1 - z) / high - counted
        return before, factors, gains, weights

    def __call__(self, X: Any) -> Floats:
        """Return the contributions of the features to the raw predictions of rows."""
        from daskml_dist.backends.tree_shap import LANES, add_path_values

        of, (before, factors, gains, weights) = self.explained, self._tables
        n_features = X.shape[1]
        out = np.empty((X.shape[0], n_features, of.n_outputs))
        for at, dense in iterate_dense(X):
            rows, found = number_categories(of.trees, dense), out[at]

            def add(part: slice, rows: Any = rows, found: Any = found) -> None:
                # Some rows at a time, whose values stay in the cache for all trees.
                for some in row_slices(len(rows[part]), _ROWS_AT_ONCE):
                    own = rows[part][some]
                    n_groups = -(-len(own) // LANES)
                    # The last group is filled up with rows of zeros.
                    grouped = np.zeros((n_groups * LANES, n_features))
                    grouped[: len(own)] = own
                    lanes = grouped.reshape(n_groups, LANES, n_features).transpose(0, 2, 1)
                    values = np.zeros((n_groups, n_features, of.n_outputs, LANES))
                    add_path_values(
                        np.ascontiguousarray(lanes), of.trees.roots, of.n_in_turn, of.node_arrays,
                        of.parent, before, factors, gains, weights, of.value, values,
                    )  # fmt: skip
                    by_row = values.transpose(0, 3, 1, 2).reshape(-1, n_features, of.n_outputs)
                    found[part][some] = by_row[: len(own)]

            run_over_threads(add, len(rows), _ROWS_A_THREAD)
        return out

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
        Rows that the other features are taken from.
    base_values : ndarray of float64 of shape (n_outputs,)
        Mean prediction of the background.
    """

    explained: ExplainedTrees
    background: NDArray[Any]
    base_values: Floats

    @cached_property
    def _places(self) -> tuple[NDArray[np.int32], list[list[int]]]:
        """Return the bit of each edge's feature on its path, and the features of paths to nodes."""
        of, feature = self.explained, self.explained.trees.nodes.feature
        slot = np.zeros(len(of.parent), np.int32)
        paths: list[list[int]] = [[] for _ in of.parent]
        for k, above, last in of.iterate_edges():
            slot[k] = len(paths[above]) if last < 0 else slot[last]
            paths[k] = [*paths[above], int(feature[above])] if last < 0 else paths[above]
            if len(paths[k]) > _MOST_FEATURES:
                raise InvalidParameterError(
                    f"A path of a tree asks for more than {_MOST_FEATURES} features. Leave the "
                    "background out, or fit trees of a smaller max_depth."
                )
        return slot, paths

    @cached_property
    def _leaf_tables(self) -> list[tuple[Any, ...]]:
        """Tables of each tree: its leaves, their features, and patterns of the background rows."""
        from daskml_dist.backends.tree_shap import write_patterns

        of, (slot, paths) = self.explained, self._places
        rows = number_categories(of.trees, np.ascontiguousarray(self.background))
        roots, tables = of.trees.roots, []
        for first, last in zip(roots[:-1].tolist(), roots[1:].tolist(), strict=True):
            patterns = np.empty((len(rows), last - first), np.uint64)
            write_patterns(rows, first, last, of.node_arrays, of.parent, slot, patterns)
            leaves = np.flatnonzero(of.trees.nodes.feature[first:last] < 0)
            own = [paths[first + leaf] for leaf in leaves]
            sizes = np.array([len(path) for path in own], np.int64)
            features = np.zeros((len(leaves), max(int(sizes.max()), 1)), np.int32)
            for row, path in zip(features, own, strict=True):
                row[: len(path)] = path
            found = [np.unique(patterns[:, leaf], return_counts=True) for leaf in leaves]
            known = np.concatenate([values for values, _ in found])
            counts = np.concatenate([n for _, n in found]) / len(rows)
            starts = np.cumsum([0, *(len(values) for values, _ in found)])
            tables.append((leaves, sizes, features, known, counts, starts))
        return tables

    def __call__(self, X: Any) -> Floats:
        """Return the contributions of the features to the raw predictions of rows."""
        from daskml_dist.backends.tree_shap import add_interventional_values, write_patterns

        of, (slot, paths) = self.explained, self._places
        of_both = _weigh_subsets(max(map(len, paths)))
        roots = of.trees.roots.tolist()
        out = np.zeros((X.shape[0], X.shape[1], of.n_outputs))
        tables = self._leaf_tables
        for at, dense in iterate_dense(X):
            rows, found = number_categories(of.trees, dense), out[at]

            def add(part: slice, rows: Any = rows, found: Any = found) -> None:
                for t, (leaves, sizes, features, known, counts, starts) in enumerate(tables):
                    first, last = roots[t], roots[t + 1]
                    patterns = np.empty((len(rows[part]), last - first), np.uint64)
                    write_patterns(
                        rows[part], first, last, of.node_arrays, of.parent, slot, patterns
                    )
                    add_interventional_values(
                        patterns, leaves, sizes, features, known, counts, starts, of_both,
                        of.value[first:last], t % of.n_in_turn, found[part],
                    )  # fmt: skip

            run_over_threads(add, len(rows), _ROWS_A_THREAD)
        return out

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached tables.
        return {name: getattr(self, name) for name in ("explained", "background", "base_values")}


def _weigh_subsets(most: int) -> Floats:
    """Return ``a! b! / (a + b + 1)!`` for all a and b up to a number."""
    logs = np.array([lgamma(i + 1) for i in range(2 * most + 3)])
    a, b = np.indices((most + 1, most + 1))
    return np.asarray(np.exp(logs[a] + logs[b] - logs[a + b + 1]))
