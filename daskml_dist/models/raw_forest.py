"""Predictions of a forest: means of its trees' answers."""

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
from daskml_dist.models.node_numbers import numbers_of
from daskml_dist.models.trees import Trees

__all__ = ["ForestLeaves", "RawForest"]

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
        """Shares of classes, or means of targets, of shape (n, n_values)."""
        from daskml_dist.backends.forest_predict import add_answers

        values, found = self._values, np.zeros((X.shape[0], self._values.shape[1]))
        nodes = self._nodes64 if X.dtype == np.float64 else self._nodes32
        for at, rows in _dense(X):
            add_answers(rows, self.trees.roots, *nodes, self._depths, values, found[at])
        found /= len(self.trees)
        return found

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """The same function of rows on a GPU, to the last bit; only its results leave it."""
        from daskml_dist.backends.cupy_tree_predict import CupyForest

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
        return _woven(self.trees, np.float64)

    @cached_property
    def _nodes32(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return _woven(self.trees, np.float32)


def _woven(trees: Trees, dtype: Any) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Thresholds in the dtype of rows, and features, left children and missing values' sides.

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
        """Numbers of leaves, of shape (n, n_trees)."""
        from daskml_dist.backends.forest_predict import leaves_of

        found = np.empty((X.shape[0], len(self.trees)), np.int64)
        nodes, numbers = _woven(self.trees, X.dtype), numbers_of(self.trees)
        for at, rows in _dense(X):
            leaves_of(rows, self.trees.roots, *nodes, numbers, found[at])
        return found


def _dense(X: Any) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Rows in one piece, where they are dense; else some at a time, made so."""
    if not sparse.issparse(X):
        yield slice(0, len(X)), np.ascontiguousarray(X)
        return
    n, d = X.shape
    for at in row_slices(n, max(1, _ENTRIES // d)):
        yield at, X[at].toarray()
