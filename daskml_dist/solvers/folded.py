"""Least-squares problems of the training rows of each split, reduced with few readings of the rows.

What a fold adds to the sums is added once, and the problem of a split is the sum of its folds'.
Every penalty is then a matter of matrices of the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.models.stacked import StackedLinear
from daskml_dist.solvers.base import Array, Solution, Solver, State, Statistic, Sums
from daskml_dist.solvers.moments import Moments
from daskml_dist.solvers.of_splits import OfSplits
from daskml_dist.solvers.reduction import MAX_LOOKS, Reduced, reduce_rows
from daskml_dist.solvers.stacked import Candidate, StackedSolver

__all__ = ["FoldedReduction", "Grid", "grid_of"]

#: Singular values below this share of the largest are rounding.
_NO_VALUE = 1e-12
#: The least strength, as scikit-learn has it, where no feature tells of the target.
_LEAST = float(np.finfo(np.float64).resolution)


@dataclass(frozen=True)
class Grid:
    """Strengths of an l1 penalty, from the one that leaves no coefficient down.

    Parameters
    ----------
    l1_ratios : tuple of float
    eps : float
        The last strength as a share of the first.
    n : int
        Strengths.
    positive : bool
    """

    l1_ratios: tuple[float, ...]
    eps: float
    n: int
    positive: bool

    def of(self, xy: Array, n_rows: float) -> Array:
        """Strengths of shape (n_l1_ratios, n), of products of centred features and target."""
        largest = max(0.0, xy.max()) if self.positive else np.abs(xy).max()
        found = []
        for ratio in self.l1_ratios:
            first = largest / (n_rows * ratio)
            found.append(
                np.full(self.n, _LEAST)
                if first <= _LEAST
                else np.geomspace(first, first * self.eps, num=self.n)
            )
        return np.array(found)


def grid_of(grid: Grid, reduced: Reduced, n_rows: float) -> Array:
    """Strengths for a reduced problem of so many rows."""
    return grid.of((reduced.R.T @ reduced.z)[:, 0], n_rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class FoldedReduction(Solver):
    """The reduced problem of each split.

    The solution has no parameters; ``extra["reduced"]`` has a :class:`Reduced` for each split and
    ``extra["n_rows"]`` the weights of their rows.

    Parameters
    ----------
    eps : float
        Relative precision of the products of rows.
    sparse : bool
        Whether there are sparse rows.
    l2 : float or Grid
        The least penalty of the sum over rows that will be tried. Of a grid: its last strength,
        which is one of the mean.
    of_mean : bool
        Whether `l2` is a penalty of the mean over rows.
    """

    eps: float
    sparse: bool
    l2: float | Grid
    of_mean: bool

    name = "folded"

    @property
    def max_passes(self) -> int:
        """The first is shared, others are of a split each."""
        return MAX_LOOKS * 100

    def solve(self, model: StackedLinear, sums: Sums, start: Array | None) -> Solution:
        """Reduce the rows of all splits."""
        d, n_splits = model.n_features, model.roles.n_splits
        first = sums(OfSplits(Moments(np.zeros(model.each.width)), tuple(range(n_splits))))
        n_rows = first[:, d, d]
        columns = []
        for split, weight in enumerate(n_rows):
            l2 = self._least(first[split], d, model.each.fit_intercept)
            solver = _Reduction(self.eps, self.sparse, l2 * weight if self.of_mean else l2)
            columns.append(Candidate(split, solver, float(weight)))
        found = StackedSolver(tuple(columns)).solve(model, _Known(sums, first), None)
        reduced = [extra["reduced"] for *_, extra in found.extra["columns"]]
        return Solution(np.zeros(0), extra={"reduced": reduced, "n_rows": np.array(n_rows)})

    def _least(self, moments: Array, d: int, fit_intercept: bool) -> float:
        if not isinstance(self.l2, Grid):
            return self.l2
        n, xy = moments[d, d], moments[:d, d + 1]
        if fit_intercept:
            xy = xy - moments[:d, d] * moments[d, d + 1] / n
        return float(self.l2.of(xy, n).min())


@dataclass(frozen=True)
class _Reduction(Solver):
    """One of the problems."""

    eps: float
    sparse: bool
    l2: float

    @property
    def max_passes(self) -> int:
        return MAX_LOOKS

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        cut = 0.0 if self.l2 else _NO_VALUE
        reduced = reduce_rows(model, sums, eps=self.eps, l2=self.l2, cut=cut, dear=self.sparse)
        return Solution(np.zeros(0), reduced.n_looks, extra={"reduced": reduced})


class _Known:
    """Sums of which the first look at each split is known."""

    def __init__(self, sums: Sums, first: Array) -> None:
        self._sums, self._first = sums, first
        self.n_rows, self.kept = sums.n_rows, None

    @property
    def should_stop(self) -> bool:
        return self._sums.should_stop

    def keep(self, w: Array, state: State | None = None, again: int = 0, extra: Any = None) -> None:
        pass

    def __call__(self, statistic: Statistic) -> Array:
        each = statistic.each if isinstance(statistic, OfSplits) else None
        if isinstance(statistic, OfSplits) and isinstance(each, Moments) and each.x_shift is None:
            return self._first[list(statistic.splits)]
        return self._sums(statistic)
