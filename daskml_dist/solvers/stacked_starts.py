"""Places that columns of a stack are solved from: near their optima, for few readings of all rows.

A share of the rows tells where to begin. Columns of one penalty differ in their splits alone, so
their optima are near each other: one of them is solved on the share, and its Hessian there serves
all of them for Newton's steps along gradients of all rows. An error then shrinks in each reading
about as much as the share's Hessian differs from that of all rows. Of penalties whose optima are
near each other, one leads: its columns make such steps, and those of the others move along.
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
from daskml_dist.solvers.stacked_columns import Candidate, CandidateGradients
from daskml_dist.solvers.stacked_gradient import StackedHessian
from daskml_dist.solvers.stacked_leaders import leaders

__all__ = ["Starts"]

#: Strengths of penalties are alike whose ratio is nearer to 1 than about 1 in so many.
_ALIKE = 50
#: Numbers of all Hessians at most; rows for each parameter that a Hessian is of, at least.
_NUMBERS, _ROWS = 1 << 23, 16
#: Steps at most, on a share of the rows and on all (of leaders first); by what a gradient must
#: shrink in one.
_OF_SHARE, _OF_LEADERS, _OF_ALL, _SHRINKS = 2, 2, 8, 0.3
#: Quasi-Newton steps after which a column is solved by Newton's.
_FIRST = 15
_SOLVED = "CONVERGENCE: NORM OF PROJECTED GRADIENT <= PGTOL"
#: Share of `tol` of those that others follow.
_FINE = 0.1
#: Eigenvalues of a Hessian of unit diagonal that count as none, to the largest.
_NONE = 1e-10

#: Solutions of some columns, of their numbers, where they begin, the share, and solvers.
Solve = Callable[[list[int], list["Array | None"], int, list[Solver]], list[Solution]]
#: Columns of one penalty, by the first of them.
Groups = dict[int, list[int]]


class Starts:
    """Finder of the places.

    Parameters
    ----------
    model : StackedLinear
    columns : tuple of Column
    sums : Sums
    gradients : CandidateGradients
    share : int
        One run of rows in so many is the share.

    Attributes
    ----------
    steps : ndarray of int of shape (n_columns,)
        Newton's steps that were made with all rows.
    solutions : dict of int to Solution
        Of columns whose start is an optimum of all rows.
    """

    def __init__(
        self,
        model: StackedLinear,
        columns: tuple[Candidate, ...],
        sums: Sums,
        gradients: CandidateGradients,
        share: int,
    ) -> None:
        self._model, self._columns, self._sums = model, columns, sums
        self._gradients, self._share = gradients, share
        self.steps = np.zeros(len(columns), np.int64)
        self.solutions: dict[int, Solution] = {}

    def found(self, solve: Solve) -> list[Array | None]:
        """Starts of the columns."""
        every = list(range(len(self._columns)))
        groups = self._groups()
        if self._share_for(len(groups)) is None:
            own = [column.solver for column in self._columns]
            found = solve(every, [None] * len(every), self._share, own)
            return [_finite(one.w) for one in found]
        places = self._places(list(groups), solve)
        leading = leaders(places, self._gradients(places, self._share))
        inverse = self._inverses(groups, places, leading)
        self._stepped(places, inverse, [i for i in places if i in inverse], self._share, 1, _FINE)
        led = self._led(groups, leading)
        w = self._on_share(solve, groups, places, leading, led, inverse)
        there = [i for i in every if i in inverse and _finite(w[i]) is not None]
        followers = {i: led[i] for i in there if led.get(i) in there}
        before = dict(w)
        if followers:
            first = [i for i in there if i not in followers]
            self._stepped(w, inverse, first, 1, _OF_LEADERS, _FINE, look=False)
        for i, leader in followers.items():
            w[i] = w[i] + (w[leader] - before[leader])
            self.steps[i] = self.steps[leader]
        self._stepped(w, inverse, there, 1, _OF_ALL)
        return [_finite(w[i]) for i in every]

    def _on_share(
        self, solve: Solve, groups: Groups, places: dict[int, Array], leading: dict[int, int],
        led: dict[int, int], inverse: dict[int, Array],
    ) -> dict[int, Array]:  # fmt: skip
        """Places of all columns near their optima on the share."""
        w = {i: places[first] for first, group in groups.items() for i in group}
        members = [i for i in w if i in inverse and i not in places and i not in led]
        there = self._stepped(w, inverse, members, self._share, _OF_SHARE).union(places)
        for first, group in groups.items():
            for i in group:
                if i in led and i in inverse and i not in places and led[i] in there:
                    w[i] = w[i] + (w[led[i]] - places[leading[first]])
                    there.add(i)
        # Rows of another kind in each split: its columns are solved on their own.
        others = [i for i in sorted(w) if i not in there]
        own = [self._columns[i].solver for i in others]
        alone = solve(others, [w[i] for i in others], self._share, own)
        return w | {i: one.w for i, one in zip(others, alone, strict=True)}

    def _places(self, firsts: list[int], solve: Solve) -> dict[int, Array]:
        """Columns that are solved on the share: features of other scales call for Hessians."""
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
        share = self._share_for(len(slow)) or self._share
        found |= dict(zip(slow, solve(slow, starts, share, newton), strict=True))
        return {i: one.w for i, one in found.items()}

    def _groups(self) -> Groups:
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
        return {group[0]: group for group in found.values()}

    def _led(self, groups: Groups, leading: dict[int, int]) -> dict[int, int]:
        """Columns of penalties that another leads: its column of the same split."""
        found: dict[int, int] = {}
        for first, group in groups.items():
            if leading[first] != first:
                of_split = {self._columns[j].split: j for j in groups[leading[first]]}
                at = {i: of_split.get(self._columns[i].split) for i in group}
                found |= {i: j for i, j in at.items() if j is not None}
        return found

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

    def _inverses(
        self, groups: Groups, places: dict[int, Array], leading: dict[int, int]
    ) -> dict[int, Array]:
        """Inverse Hessians of columns' objectives, of those where one says something."""
        each, chosen = self._model.each, [i for i in leading if leading[i] == i]
        share = self._share_for(len(chosen))
        assert share is not None  # fewer than there are groups
        size = prod(each.shape)
        w = np.nan_to_num(np.stack([places[i] for i in chosen]))
        splits = np.array([self._columns[i].split for i in chosen])
        sums = self._sums(StackedHessian(w, splits, share))
        hessians = {
            i: total[2 + size :].reshape(size, size) / self._columns[i].n_rows
            for i, total in zip(chosen, sums, strict=True)
        }
        found: dict[int, Array] = {}
        for first, group in groups.items():
            hessian = hessians[leading[first]].copy()
            hessian[np.diag_indices(size)] += np.repeat(self._l2(first), each.width)
            inverse = _inverse(hessian)
            if inverse is not None and _finite(places[first]) is not None:
                found |= dict.fromkeys(group, inverse)
        return found

    def _stepped(
        self, w: dict[int, Array], inverse: dict[int, Array], some: Iterable[int], share: int,
        most: int, fine: float = 1.0, look: bool = True,
    ) -> set[int]:  # fmt: skip
        """Make steps as long as these shrink the gradients; the columns that they helped.

        Gradients are to be as small as `fine` times `tol`; without a `look` nobody knows whether
        the last of `most` steps helped.
        """
        going, slopes, before = list(some), dict[int, float](), dict[int, Array]()
        helped = set[int]()
        for number in range(most + look):
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
                if share == 1 and slope <= self._tol(i):
                    loss = float(answers[i][0]) / self._columns[i].n_rows
                    value = loss + float((self._l2(i) * w[i] ** 2).sum()) / 2
                    self.solutions[i] = Solution(w[i], 0, True, _SOLVED, {"value": value})
                if slope <= self._tol(i) or slope <= _SHRINKS * slopes.get(i, np.nan):
                    helped.add(i)
                made = self.steps[i] if share == 1 else number
                ends = number == most or made >= self._solver(i).max_iter
                if ends or slope <= fine * self._tol(i) or slope > _SHRINKS * least:
                    continue
                slopes[i], before[i] = slope, w[i]
                w[i] = w[i] - (inverse[i] @ gradient.ravel()).reshape(w[i].shape)
                self.steps[i] += share == 1
                self.solutions.pop(i, None)
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
