"""Single looks at all rows, before steps along batches and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.solvers.base import Array, Solution, Solver, Sums
from daskml_dist.solvers.lloyd import CentroidAssignment
from daskml_dist.solvers.seeds import Seeds

__all__ = ["Inertia", "Sample"]


@dataclass(frozen=True)
class Sample(Solver):
    """Some rows, drawn by their weights in one pass; fewer, where fewer have any.

    Parameters
    ----------
    n_rows : int
    seed : int
    """

    name = "sample"
    n_rows: int
    seed: int

    @property
    def max_passes(self) -> int:
        """One."""
        return 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """The rows, in an array of shape (n_rows, n_features)."""
        found = sums(Seeds(n_rows=self.n_rows, groups=(), shift=None, seed=self.seed, round=0))
        return Solution(found[found[:, 0] > 0, 1:])


@dataclass(frozen=True, eq=False)
class Inertia(Solver):
    """The sum of the squared distances of the rows to the nearest of given centres.

    Parameters
    ----------
    centres : ndarray of shape (k, n_features)
        Less the shift.
    shift : ndarray of shape (n_features,) or None
    """

    name = "inertia"
    centres: Array
    shift: Array | None

    @property
    def max_passes(self) -> int:
        """One."""
        return 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """The sum, alone in an array."""
        return Solution(np.array([sums(CentroidAssignment(self.centres, self.shift))[-1, 0]]))
