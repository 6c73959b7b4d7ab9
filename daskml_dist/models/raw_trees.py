"""Raw predictions of an ensemble of trees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.trees import Trees

__all__ = ["RawTrees"]


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

    def __call__(self, X: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Raw predictions of shape (n,), or (n, n_outputs) where there are several."""
        found = np.empty((len(X), len(self.baseline)))
        found[:] = self.baseline
        self.add(X, 0, len(self.trees), found)
        return found[:, 0] if len(self.baseline) == 1 else found

    def add(self, X: NDArray[Any], first: int, last: int, out: NDArray[np.float64]) -> None:
        """Add the values of some trees."""
        from daskml_dist.backends.tree_predict import add_trees

        nodes = self.trees.nodes
        add_trees(
            np.ascontiguousarray(self.numbered(X)), self.trees.roots, first, last,
            self.trees.n_per_iteration, nodes.feature, nodes.threshold, nodes.left,
            nodes.missing_left, nodes.category, nodes.bitsets, self._values, out,
        )  # fmt: skip

    @cached_property
    def _values(self) -> NDArray[np.float64]:
        return np.ascontiguousarray(self.trees.nodes.value[:, 0])

    def numbered(self, X: NDArray[Any]) -> NDArray[Any]:
        """The rows with categories by their numbers, unknown ones missing."""
        bins = self.trees.bins
        if not bins.categorical.any():
            return X
        X = np.array(X, np.float64)
        for j in np.flatnonzero(bins.categorical):
            edges = bins.edges[j]
            at = np.searchsorted(edges, X[:, j])
            at[at == len(edges)] = 0
            X[:, j] = np.where(edges[at] == X[:, j], at, np.nan) if len(edges) else np.nan
        return X
