"""Many fits of linear models at once: candidates times splits as columns of one matrix.

The solver of each candidate runs as if alone, in lock step with the others. Gradients that they
request together are one reading of the rows; other sums are made once where several candidates of
a split request the same. :class:`WarmStarts` solves on a share of the rows first, so that few
readings of all rows are left: candidates of one penalty differ only in their splits, so their
optima are near each other, and one Hessian serves Newton's steps of all of them.

References
----------
E. R. Sparks et al., "Automating model search for large scale machine learning" (TuPAQ), SoCC
2015.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, log, prod

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.batched import BatchedLinear
from daskml_dist.solvers.base import Array, PenalisedSolver, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.batched_gradients import (
    BatchedGradient,
    BatchedHessian,
    PerSplitStatistic,
    evaluate_by_split,
)
from daskml_dist.solvers.batched_scores import BatchedScores
from daskml_dist.solvers.lbfgs import LBFGS
from daskml_dist.solvers.lock_step import iterate_requests, run_solvers_in_lock_step
from daskml_dist.solvers.newton import LossHessian, NewtonCholesky
from daskml_dist.solvers.objective import LossGradient, penalty_row_strengths

#: Penalties count as equal whose strengths differ by less than about 1 / 50 = 2 %.
_STRENGTH_RESOLUTION = 50
#: Numbers of all Hessians at most (64 MiB); rows of the share for each parameter, at least, so that
#: its Hessian is near that of all rows.
_MAX_HESSIAN_ENTRIES, _MIN_ROWS_PER_PARAMETER = 1 << 23, 16
#: Newton steps at most on the share, of leaders on all rows, and of all candidates on all rows; and
#: the factor by which each step must shrink the gradient to be followed by another.
_MAX_SHARE_STEPS, _MAX_LEADER_STEPS, _MAX_FULL_STEPS, _SHRINK_FACTOR = 2, 2, 8, 0.3
#: Quasi-Newton steps on the share after which a candidate is solved by Newton's method.
_MAX_FIRST_STEPS = 15
#: SciPy's words for a gradient below `tol`.
_CONVERGED_MESSAGE = "CONVERGENCE: NORM OF PROJECTED GRADIENT <= PGTOL"
#: Leaders are solved to this share of `tol`, since their errors pass to their followers.
_LEADER_TOLERANCE = 0.1
#: Eigenvalues below this share of the largest count as zero (the Hessian has a unit diagonal).
_EIGENVALUE_CUTOFF = 1e-10
#: Solutions of some columns, of their numbers, where they begin, the share, and solvers.
SolveCandidates = Callable[[list[int], list["Array | None"], int, list[Solver]], list[Solution]]
#: Columns of one penalty, by the first of them.
CandidateGroups = dict[int, list[int]]
#: Squared distance of two optima (in the Hessian's norm), as a share of the loss, within which one
#: leads the other.
_LEADER_DISTANCE = 3e-4


@dataclass(frozen=True, eq=False)
class Candidate:
    """One of the fits: a solver, and the split whose training rows it is fitted to.

    Parameters
    ----------
    split : int
        Whose training rows it is fitted to.
    solver : Solver
    n_rows : float
        Sum of the weights of these rows.
    start : ndarray or None
    """

    split: int
    solver: Solver
    n_rows: float
    start: Array | None = None


@dataclass(frozen=True, eq=False)
class BatchedSolver(Solver):
    """Solver of many candidates in lock step.

    The solution is the columns' parameters, of shape (n_columns, n_rows, width); ``extra`` has
    their solutions without these.

    Parameters
    ----------
    columns : tuple of Column
    share : int, default=1
        With more than 1, one run of rows in so many tells where the columns begin, see
        :class:`WarmStarts`: to the same optimum, in fewer readings of all rows. For solvers that
        ask for gradients alone.
    scored : tuple of (role, bool, bool), default=()
        Roles of the rows that are scored once all are solved, and whether of pairs of labels and
        of their places, as of :class:`BatchedScores`. ``extra["scores"]`` has the sums by role.
    """

    columns: tuple[Candidate, ...]
    share: int = 1
    scored: tuple[tuple[int, bool, bool], ...] = ()

    name = "stacked"

    @property
    def max_passes(self) -> int:
        """Return the passes of all candidates together, and those that score."""
        return len(self.scored) + sum(column.solver.max_passes for column in self.columns)

    def solve(self, model: BatchedLinear, sums: Sums, start: Array | None) -> Solution:
        """Solve every column."""
        gradients, every = CachedGradients(self.columns, sums), list(range(len(self.columns)))

        def solve(
            at: list[int], starts: list[Array | None], share: int, solvers: list[Solver]
        ) -> list[Solution]:
            solver_runs = [
                iterate_requests(
                    model.each, solver, start, self.columns[i].n_rows, lambda: sums.should_stop
                )
                for i, start, solver in zip(at, starts, solvers, strict=True)
            ]
            return run_solvers_in_lock_step(
                solver_runs,
                lambda asking, asked: self._answer_requests(
                    sums, gradients, [at[k] for k in asking], asked, share
                ),
            )

        own = [column.solver for column in self.columns]
        if self.share == 1:
            found = solve(every, [column.start for column in self.columns], 1, own)
        else:
            begin = WarmStarts(model, self.columns, sums, gradients, self.share)
            starts, solved = begin.find_starts(solve), begin.solutions
            left = [i for i in every if i not in solved]
            rest = solve(left, [starts[i] for i in left], 1, [own[i] for i in left])
            solved |= dict(zip(left, rest, strict=True))
            found = [_count_earlier_steps(solved[i], own[i], int(begin.steps[i])) for i in every]
        w = np.array([solution.w for solution in found])
        return Solution(
            w,
            max(solution.n_iter for solution in found),
            extra={
                "scores": {
                    asked[0]: self._score_candidates(sums, w, *asked) for asked in self.scored
                },
                "columns": [
                    (solution.n_iter, solution.converged, solution.message, solution.extra)
                    for solution in found
                ],
            },
        )

    def _score_candidates(
        self, sums: Sums, w: Array, role: int, pairs: bool, places: bool
    ) -> Array:
        def some(w: Array, splits: NDArray[np.int64]) -> Array:
            return sums(BatchedScores(w, splits, role, pairs, places))

        return evaluate_by_split(some, w, np.array([column.split for column in self.columns]))

    def _answer_requests(
        self, sums: Sums, gradients: CachedGradients, at: list[int], requests: list[Statistic],
        share: int,
    ) -> list[Array]:  # fmt: skip
        asked = dict(zip(at, requests, strict=True))
        points = {i: q.w for i, q in asked.items() if type(q) is LossGradient}
        answers = gradients(points, share)
        bent = [i for i, q in asked.items() if type(q) is LossHessian and q.loss is None]
        if bent and share > 1:
            w = np.stack([asked[i].w for i in bent])  # type: ignore[attr-defined]
            splits = np.array([self.columns[i].split for i in bent])
            hessians = sums(BatchedHessian(w, splits, share))
            answers |= dict(zip(bent, hessians, strict=True))
        others: dict[bytes, dict[int, list[int]]] = {}
        for i, request in asked.items():
            if i not in answers:
                # Equal requests are found by their bytes.
                key = pickle.dumps(request)
                others.setdefault(key, {}).setdefault(self.columns[i].split, []).append(i)
        for of_split in others.values():
            splits_asked = tuple(sorted(of_split))
            request = asked[of_split[splits_asked[0]][0]]
            found = sums(PerSplitStatistic(request, splits_asked))
            for split, answer in zip(splits_asked, found, strict=True):
                answers.update(dict.fromkeys(of_split[split], answer))
        return [answers[i] for i in at]


def _count_earlier_steps(solution: Solution, solver: Solver, steps: int) -> Solution:
    """Return the solution with the steps counted in that were made before it."""
    most = solver.max_iter if isinstance(solver, PenalisedSolver) else steps
    return replace(solution, n_iter=min(solution.n_iter + steps, max(most, solution.n_iter)))


def candidate_solution(stacked: Solution, k: int) -> Solution:
    """Return the solution of one candidate of a batch."""
    n_iter, converged, message, extra = stacked.extra["columns"][k]
    return Solution(stacked.w[k], n_iter, converged, message, extra)


class CachedGradients:
    """Losses and gradients of candidates; the last answer of each is kept.

    Parameters
    ----------
    columns : sequence of Candidate
    sums : Sums
    """

    def __init__(self, columns: tuple[Candidate, ...], sums: Sums) -> None:
        self._columns, self._sums = columns, sums
        #: Of each column: where its last answer was asked for, and this.
        self._last: dict[int, tuple[tuple[int, bytes], Array]] = {}

    def __call__(self, asked: Mapping[int, Array], share: int) -> dict[int, Array]:
        """Return losses and gradients by the numbers of the candidates."""
        found: dict[int, Array] = {}
        # Columns of a split side by side; at first all of them ask at the same place.
        places: dict[tuple[int, bytes], list[int]] = {}
        for i in sorted(asked, key=lambda i: self._columns[i].split):
            here = share, asked[i].tobytes()
            last, answer = self._last.get(i, (None, None))
            if last == here and answer is not None:
                found[i] = answer
            else:
                places.setdefault((self._columns[i].split, here[1]), []).append(i)
        if not places:
            return found
        w = np.stack([asked[same[0]] for same in places.values()])
        splits = np.array([split for split, _ in places])
        if len(w) == 1 and share == 1:  # as the fit of one column alone
            answers = self._sums(PerSplitStatistic(LossGradient(w[0]), (int(splits[0]),)))
        else:
            answers = self._sums(BatchedGradient(w, splits, share))
        for ((_, place), same), answer in zip(places.items(), answers, strict=True):
            for i in same:
                found[i], self._last[i] = answer, ((share, place), answer)
        return found


class WarmStarts:
    """Finder of parameters near the optima of all candidates, in few readings of all rows.

    Parameters
    ----------
    model : BatchedLinear
    columns : tuple of Column
    sums : Sums
    gradients : CachedGradients
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
        model: BatchedLinear,
        columns: tuple[Candidate, ...],
        sums: Sums,
        gradients: CachedGradients,
        share: int,
    ) -> None:
        self._model, self._columns, self._sums = model, columns, sums
        self._gradients, self._share = gradients, share
        self.steps = np.zeros(len(columns), np.int64)
        self.solutions: dict[int, Solution] = {}

    def find_starts(self, solve: SolveCandidates) -> list[Array | None]:
        """Return the parameters that each candidate is to be solved from."""
        every = list(range(len(self._columns)))
        groups = self._group_candidates()
        if self._hessian_share(len(groups)) is None:
            own = [column.solver for column in self._columns]
            found = solve(every, [None] * len(every), self._share, own)
            return [_finite_or_none(one.w) for one in found]
        places = self._solve_leading(list(groups), solve)
        leading = choose_leaders(places, self._gradients(places, self._share))
        inverse = self._invert_hessians(groups, places, leading)
        self._take_newton_steps(
            places, inverse, [i for i in places if i in inverse], self._share, 1, _LEADER_TOLERANCE
        )
        led = self._map_followers(groups, leading)
        w = self._solve_on_share(solve, groups, places, leading, led, inverse)
        there = [i for i in every if i in inverse and _finite_or_none(w[i]) is not None]
        followers = {i: led[i] for i in there if led.get(i) in there}
        before = dict(w)
        if followers:
            first = [i for i in there if i not in followers]
            self._take_newton_steps(
                w, inverse, first, 1, _MAX_LEADER_STEPS, _LEADER_TOLERANCE, look=False
            )
        for i, leader in followers.items():
            w[i] = w[i] + (w[leader] - before[leader])
            self.steps[i] = self.steps[leader]
        self._take_newton_steps(w, inverse, there, 1, _MAX_FULL_STEPS)
        return [_finite_or_none(w[i]) for i in every]

    def _solve_on_share(
        self,
        solve: SolveCandidates,
        groups: CandidateGroups,
        places: dict[int, Array],
        leading: dict[int, int],
        led: dict[int, int],
        inverse: dict[int, Array],
    ) -> dict[int, Array]:
        """Return parameters of all candidates near their optima on the share of the rows."""
        w = {i: places[first] for first, group in groups.items() for i in group}
        members = [i for i in w if i in inverse and i not in places and i not in led]
        there = self._take_newton_steps(w, inverse, members, self._share, _MAX_SHARE_STEPS).union(
            places
        )
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

    def _solve_leading(self, firsts: list[int], solve: SolveCandidates) -> dict[int, Array]:
        """Solve the first candidate of each group on the share, by Newton where L-BFGS is slow."""
        few: list[Solver] = [
            replace(solver, max_iter=min(solver.max_iter, _MAX_FIRST_STEPS))
            for solver in map(self._solver_of, firsts)
        ]
        found = dict(
            zip(firsts, solve(firsts, [None] * len(firsts), self._share, few), strict=True)
        )
        slow = [
            i
            for i, one in found.items()
            if not one.converged and _finite_or_none(one.w) is not None
        ]
        newton: list[Solver] = [
            NewtonCholesky(solver.penalty, solver.max_iter, solver.tol)
            for solver in map(self._solver_of, slow)
        ]
        starts: list[Array | None] = [found[i].w for i in slow]
        share = self._hessian_share(len(slow)) or self._share
        found |= dict(zip(slow, solve(slow, starts, share, newton), strict=True))
        return {i: one.w for i, one in found.items()}

    def _group_candidates(self) -> CandidateGroups:
        """Return groups of candidates whose solvers are alike but for the weight of their rows."""
        found: dict[object, list[int]] = {}
        for i, column in enumerate(self._columns):
            solver = column.solver
            key: object = i
            if type(solver) is LBFGS and not solver.penalty.l1:
                l2 = solver.penalty.l2
                strength = round(_STRENGTH_RESOLUTION * log(l2)) if l2 > 0 else None
                key = strength, solver.penalty.intercept_scaling, solver.max_iter, solver.tol
            found.setdefault(key, []).append(i)
        return {group[0]: group for group in found.values()}

    def _map_followers(self, groups: CandidateGroups, leading: dict[int, int]) -> dict[int, int]:
        """Return the leader's candidate of the same split for each follower."""
        found: dict[int, int] = {}
        for first, group in groups.items():
            if leading[first] != first:
                of_split = {self._columns[j].split: j for j in groups[leading[first]]}
                at = {i: of_split.get(self._columns[i].split) for i in group}
                found |= {i: j for i, j in at.items() if j is not None}
        return found

    def _hessian_share(self, n_groups: int) -> int | None:
        """Return in how many runs of rows one is read for Hessians, or None where none pay."""
        each, n_columns = self._model.each, len(self._columns)
        plain = all(type(c.solver) is LBFGS and not c.solver.penalty.l1 for c in self._columns)
        size = prod(each.shape)
        if not (plain and each.loss.has_hessian) or n_groups * size**2 > _MAX_HESSIAN_ENTRIES:
            return None
        share = max(self._share, ceil(size * n_groups / (2 * n_columns)))
        n_rows = min(column.n_rows for column in self._columns) / share
        return share if n_rows >= _MIN_ROWS_PER_PARAMETER * size else None

    def _invert_hessians(
        self, groups: CandidateGroups, places: dict[int, Array], leading: dict[int, int]
    ) -> dict[int, Array]:
        """Return the inverse Hessians of the candidates' objectives that are well defined."""
        each, chosen = self._model.each, [i for i in leading if leading[i] == i]
        share = self._hessian_share(len(chosen))
        assert share is not None  # fewer than there are groups
        size = prod(each.shape)
        w = np.nan_to_num(np.stack([places[i] for i in chosen]))
        splits = np.array([self._columns[i].split for i in chosen])
        sums = self._sums(BatchedHessian(w, splits, share))
        hessians = {
            i: total[2 + size :].reshape(size, size) / self._columns[i].n_rows
            for i, total in zip(chosen, sums, strict=True)
        }
        found: dict[int, Array] = {}
        for first, group in groups.items():
            hessian = hessians[leading[first]].copy()
            hessian[np.diag_indices(size)] += np.repeat(self._l2_strengths(first), each.width)
            inverse = _invert_hessian(hessian)
            if inverse is not None and _finite_or_none(places[first]) is not None:
                found |= dict.fromkeys(group, inverse)
        return found

    def _take_newton_steps(
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
                gradient = gradient + self._l2_strengths(i) * w[i]
                slope = float(np.abs(gradient).max())
                least = slopes.get(i, np.inf)
                if not slope < least:  # NaN too
                    # The step did not shrink the gradient: take it back, and end.
                    w[i] = before.get(i, w[i])
                    continue
                if share == 1 and slope <= self._gradient_tolerance(i):
                    loss = float(answers[i][0]) / self._columns[i].n_rows
                    value = loss + float((self._l2_strengths(i) * w[i] ** 2).sum()) / 2
                    self.solutions[i] = Solution(
                        w[i], 0, True, _CONVERGED_MESSAGE, {"value": value}
                    )
                if slope <= self._gradient_tolerance(i) or slope <= _SHRINK_FACTOR * slopes.get(
                    i, np.nan
                ):
                    helped.add(i)
                made = self.steps[i] if share == 1 else number
                ends = number == most or made >= self._solver_of(i).max_iter
                if (
                    ends
                    or slope <= fine * self._gradient_tolerance(i)
                    or slope > _SHRINK_FACTOR * least
                ):
                    continue
                slopes[i], before[i] = slope, w[i]
                # Newton's step with the share's inverse Hessian and the gradient of these rows.
                w[i] = w[i] - (inverse[i] @ gradient.ravel()).reshape(w[i].shape)
                self.steps[i] += share == 1
                self.solutions.pop(i, None)
                still.append(i)
            going = still
        return helped

    def _solver_of(self, i: int) -> PenalisedSolver:
        solver = self._columns[i].solver
        assert isinstance(solver, PenalisedSolver)
        return solver

    def _gradient_tolerance(self, i: int) -> float:
        return self._solver_of(i).tol

    def _l2_strengths(self, i: int) -> Array:
        penalty = self._solver_of(i).penalty
        return penalty_row_strengths(
            self._model.each, penalty.l2, penalty.intercept_scaling, power=2
        )


def choose_leaders(places: Mapping[int, Array], answers: Mapping[int, Array]) -> dict[int, int]:
    """Return the leader of each optimum: the nearest of few, or itself.

    The squared distance is the product of the difference of two places with that of the gradients
    there: the mean over the rows of the squared difference of their predictions, times the losses'
    curvature. How much a Hessian changes on the way follows from it.
    """
    found: dict[int, int] = {}
    leading: list[int] = []
    for i, w in places.items():
        loss, gradient = float(answers[i][0]), answers[i][1:]
        nearest, best = i, np.inf
        for j in leading:
            way = (w - places[j]).ravel()
            # way' (gradient difference): the squared distance in the Hessian's norm.
            squared = float(way @ (gradient - answers[j][1:]))
            # NaN is far.
            if squared <= _LEADER_DISTANCE * min(loss, float(answers[j][0])) and squared < best:
                nearest, best = j, squared
        found[i] = nearest
        if nearest == i:
            leading.append(i)
    return found


def _finite_or_none(w: Array) -> Array | None:
    return w if np.isfinite(w).all() else None


def _invert_hessian(hessian: NDArray[np.float64]) -> Array | None:
    """Return the pseudo-inverse of a Hessian, or None where it says nothing."""
    diagonal = np.diag(hessian)
    if not np.isfinite(hessian).all() or not (diagonal > 0).all():
        return None
    # Features of very different sizes are not collinear.
    scale = 1 / np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(hessian * scale * scale[:, None])
    there = values > _EIGENVALUE_CUTOFF * values[-1]
    vectors = vectors[:, there] * scale[:, None]
    return np.asarray((vectors / values[there]) @ vectors.T)
