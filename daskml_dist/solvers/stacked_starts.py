"""Places that columns of a stack are solved from: near their optima, for few readings of all rows.

A share of the rows tells where to begin. Columns of one penalty differ in their splits alone, so
their optima are near each other: one of them is solved on the share, and its Hessian there serves
all of them for Newton's steps along gradients of all rows. An error then shrinks in each reading
about as much as the share's Hessian differs from that of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil, log, prod

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.stacked import StackedLinear
from daskml_dist.solvers.base import Array, PenalisedSolver, Solution, Solver, Sums
from daskml_dist.solvers.lbfgs import LBFGS
from daskml_dist.solvers.newton import NewtonCholesky
from daskml_dist.solvers.objective import row_strengths
from daskml_dist.solvers.stacked_columns import Column, Gradients
from daskml_dist.solvers.stacked_gradient import StackedHessian

__all__ = ["Starts"]

#: Strengths of penalties are alike whose ratio is nearer to 1 than about 1 in so many.
_ALIKE = 50
#: Numbers of all Hessians at most; rows for each parameter that a Hessian is of, at least.
_NUMBERS, _ROWS = 1 << 23, 16
#: Steps at most, on a share of the rows and on all; by what a gradient must shrink in one.
_OF_SHARE, _OF_ALL, _SHRINKS = 2, 8, 0.3
#: Quasi-Newton steps after which a column is solved by Newton's.
_FIRST = 15
#: Eigenvalues of a Hessian of unit diagonal that count as none, to the largest.
_NONE = 1e-10

#: Solutions of some columns, of their numbers, where they begin, the share, and solvers.
Solve = Callable[[list[int], list["Array | None"], int, list[Solver]], list[Solution]]


class Starts:
    """Finder of the places.

    Parameters
    ----------
    model : StackedLinear
    columns : tuple of Column
    sums : Sums
    gradients : Gradients
    share : int
        One run of rows in so many is the share.

    Attributes
    ----------
    steps : ndarray of int of shape (n_columns,)
        Newton's steps that were made with all rows.
    """

    def __init__(
        self, model: StackedLinear, columns: tuple[Column, ...], sums: Sums, gradients: Gradients,
        share: int,
    ) -> None:  # fmt: skip
        self._model, self._columns, self._sums = model, columns, sums
        self._gradients, self._share = gradients, share
        self.steps = np.zeros(len(columns), np.int64)

    def found(self, solve: Solve) -> list[Array | None]:
        """Where each column begins."""
        every = list(range(len(self._columns)))
        own = [column.solver for column in self._columns]
        groups = self._groups()
        of_hessians = self._share_for(len(groups))
        if of_hessians is None:
            found = solve(every, [None] * len(every), self._share, own)
            return [_finite(one.w) for one in found]
        places = self._places([group[0] for group in groups], solve, of_hessians)
        inverses = self._inverses(places, of_hessians)
        w: dict[int, Array] = {}
        inverse: dict[int, Array] = {}
        for group, of_group in zip(groups, inverses, strict=True):
            if of_group is not None and _finite(places[group[0]]) is not None:
                w |= dict.fromkeys(group, places[group[0]])
                inverse |= dict.fromkeys(group, of_group)
        members = [i for i in w if i not in places]
        helped = self._stepped(w, inverse, members, self._share, _OF_SHARE)
        # Rows of another kind in each split: its columns are solved on their own.
        others = [i for i in every if i not in places and i not in helped]
        alone = solve(others, [w.get(i) for i in others], self._share, [own[i] for i in others])
        w |= {i: one.w for i, one in zip(others, alone, strict=True)}
        w = {**places, **w}
        there = [i for i in every if i in inverse and _finite(w[i]) is not None]
        self._stepped(w, inverse, there, 1, _OF_ALL)
        return [_finite(w[i]) for i in every]

    def _places(self, firsts: list[int], solve: Solve, share: int) -> dict[int, Array]:
        """Where columns are solved on the share: features of other scales call for Hessians."""
        few: list[Solver] = [
            replace(solver, max_iter=min(solver.max_iter, _FIRST))
            for solver in map(self._solver, firsts)
        ]
        found = dict(
            zip(firsts, solve(firsts, [None] * len(firsts), self._share, few), strict=True)
        )
        slow = [i for i, one in found.items() if not one.converged and _finite(one.w) is not None]
        newton: list[Solver] = [
            NewtonCholesky(solver.penalty, solver.max_iter, solver.tol)
            for solver in map(self._solver, slow)
        ]
        starts: list[Array | None] = [found[i].w for i in slow]
        found |= dict(zip(slow, solve(slow, starts, share, newton), strict=True))
        return {i: one.w for i, one in found.items()}

    def _groups(self) -> list[list[int]]:
        """Columns whose solvers are alike, but for the weight of their rows."""
        found: dict[object, list[int]] = {}
        for i, column in enumerate(self._columns):
            solver = column.solver
            key: object = i
            if type(solver) is LBFGS and not solver.penalty.l1:
                l2 = solver.penalty.l2
                strength = round(_ALIKE * log(l2)) if l2 > 0 else None
                key = strength, solver.penalty.intercept_scaling, solver.max_iter, solver.tol
            found.setdefault(key, []).append(i)
        return list(found.values())

    def _share_for(self, n_groups: int) -> int | None:
        """One run of rows in how many Hessians are of, for the time of a reading; None: of none."""
        each, n_columns = self._model.each, len(self._columns)
        plain = all(type(c.solver) is LBFGS and not c.solver.penalty.l1 for c in self._columns)
        size = prod(each.shape)
        if not (plain and each.loss.has_hessian) or n_groups * size**2 > _NUMBERS:
            return None
        share = max(self._share, ceil(size * n_groups / (2 * n_columns)))
        n_rows = min(column.n_rows for column in self._columns) / share
        return share if n_rows >= _ROWS * size else None

    def _inverses(self, places: dict[int, Array], share: int) -> list[Array | None]:
        """Inverse Hessians of columns' objectives; None where one says nothing."""
        each = self._model.each
        size = prod(each.shape)
        w = np.nan_to_num(np.stack(list(places.values())))
        splits = np.array([self._columns[i].split for i in places])
        found: list[Array | None] = []
        for i, total in zip(places, self._sums(StackedHessian(w, splits, share)), strict=True):
            hessian = total[2 + size :].reshape(size, size) / self._columns[i].n_rows
            hessian[np.diag_indices(size)] += np.repeat(self._l2(i), each.width)
            found.append(_inverse(hessian))
        return found

    def _stepped(
        self, w: dict[int, Array], inverse: dict[int, Array], some: Iterable[int], share: int,
        most: int,
    ) -> set[int]:  # fmt: skip
        """Make steps as long as these shrink the gradients; the columns that they helped."""
        going, slopes, before = list(some), dict[int, float](), dict[int, Array]()
        helped = set[int]()
        for number in range(most + 1):
            if not going or self._sums.should_stop:
                break
            answers = self._gradients({i: w[i] for i in going}, share)
            still = []
            for i in going:
                gradient = answers[i][1:].reshape(w[i].shape) / self._columns[i].n_rows
                gradient = gradient + self._l2(i) * w[i]
                slope = float(np.abs(gradient).max())
                least = slopes.get(i, np.inf)
                if not slope < least:  # NaN too
                    w[i] = before.get(i, w[i])
                    continue
                if slope <= self._tol(i) or slope <= _SHRINKS * slopes.get(i, np.nan):
                    helped.add(i)
                ends = number == min(most, self._solver(i).max_iter)
                if ends or slope <= self._tol(i) or slope > _SHRINKS * least:
                    continue
                slopes[i], before[i] = slope, w[i]
                w[i] = w[i] - (inverse[i] @ gradient.ravel()).reshape(w[i].shape)
                self.steps[i] += share == 1
                still.append(i)
            going = still
        return helped

    def _solver(self, i: int) -> PenalisedSolver:
        solver = self._columns[i].solver
        assert isinstance(solver, PenalisedSolver)
        return solver

    def _tol(self, i: int) -> float:
        return self._solver(i).tol

    def _l2(self, i: int) -> Array:
        penalty = self._solver(i).penalty
        return row_strengths(self._model.each, penalty.l2, penalty.intercept_scaling, power=2)


def _finite(w: Array) -> Array | None:
    return w if np.isfinite(w).all() else None


def _inverse(hessian: NDArray[np.float64]) -> Array | None:
    """Inverse where a matrix has values, and zero where it has none."""
    diagonal = np.diag(hessian)
    if not np.isfinite(hessian).all() or not (diagonal > 0).all():
        return None
    # Features of very different sizes are not collinear.
    scale = 1 / np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(hessian * scale * scale[:, None])
    there = values > _NONE * values[-1]
    vectors = vectors[:, there] * scale[:, None]
    return np.asarray((vectors / values[there]) @ vectors.T)
