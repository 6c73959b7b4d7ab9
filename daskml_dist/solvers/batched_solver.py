"""Many fits of linear models at once: candidates as columns of one matrix.

A candidate is a solver and a split. Each solver runs as if alone, in lock step with the others.
Gradients that they request together are one pass over the rows; other sums are made once if several
candidates of a split request the same.

:class:`WarmStarts` saves passes over all rows. Candidates of one penalty differ only in their
splits, and candidates of similar penalties have similar optima. So one of each group is solved on a
share of the rows, and its Hessian there (the "chord" of a modified Newton method) serves the Newton
steps of all of them, whose gradients are taken first on the share and then on all rows. A candidate
whose gradient does not shrink enough continues with its own solver, so every one reaches its own
optimum to its own tolerance.

References
----------
E. R. Sparks et al., "Automating model search for large scale machine learning" (TuPAQ), SoCC
2015. C. T. Kelley, "Iterative Methods for Linear and Nonlinear Equations", SIAM 1995, section 5.4.1
(the chord method).
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
from daskml_dist.solvers.lock_step import iterate_requests, run_in_lock_step
from daskml_dist.solvers.newton import LossHessian, NewtonCholesky
from daskml_dist.solvers.objective import LossGradient, penalty_row_strengths

#: Penalties count as equal if their strengths differ by less than about 1 / 50 = 2 %.
_STRENGTH_RESOLUTION = 50
#: Most numbers of all Hessians together (64 MiB); fewest rows of the share for each parameter, so
#: that its Hessian is near that of all rows.
_MAX_HESSIAN_ENTRIES, _MIN_ROWS_PER_PARAMETER = 1 << 23, 16
#: Most Newton steps on the share, of leaders on all rows, and of all candidates on all rows; and
#: the factor by which a step must shrink the gradient to be followed by another.
_MAX_SHARE_STEPS, _MAX_LEADER_STEPS, _MAX_FULL_STEPS, _SHRINK_FACTOR = 2, 2, 8, 0.3
#: Quasi-Newton steps on the share after which Newton's method takes over.
_MAX_FIRST_STEPS = 15
#: SciPy's words for a gradient below `tol`.
_CONVERGED_MESSAGE = "CONVERGENCE: NORM OF PROJECTED GRADIENT <= PGTOL"
#: Leaders are solved to this share of `tol`, since their errors pass to their followers.
_LEADER_TOLERANCE = 0.1
#: Eigenvalues below this share of the largest count as zero (the Hessian has a unit diagonal).
_EIGENVALUE_CUTOFF = 1e-10
#: Solves some candidates, given their indices, starts, the share of the rows, and solvers.
_SolveCandidates = Callable[[list[int], list["Array | None"], int, list[Solver]], list[Solution]]
#: Candidates of one penalty, by the first of them.
_CandidateGroups = dict[int, list[int]]
#: Squared distance of two optima (in the Hessian's norm), as a share of the loss, within which one
#: leads the other.
_LEADER_DISTANCE = 3e-4


@dataclass(frozen=True, eq=False)
class Candidate:
    """One of the fits: a solver, and the split whose training rows it is fitted to.

    Parameters
    ----------
    split : int
    solver : Solver
    n_rows : float
        Sum of the weights of the split's training rows.
    start : ndarray or None
        Initial parameters.
    """

    split: int
    solver: Solver
    n_rows: float
    start: Array | None = None


@dataclass(frozen=True, eq=False)
class BatchedSolver(Solver):
    """Solver of many candidates in lock step.

    The solution is the candidates' parameters, of shape (n_candidates, n_params, width);
    ``extra["candidates"]`` has the other fields of each solution (see :func:`candidate_solution`).

    Parameters
    ----------
    candidates : tuple of Candidate
    share : int, default=1
        With more than 1, candidates are first solved on one in `share` runs of rows, by
        :class:`WarmStarts`: the same optimum, in fewer passes over all rows. For solvers that
        request only gradients.
    scored : tuple of (role, pairs, places), default=()
        Arguments of the :class:`BatchedScores` that are summed once all candidates are solved;
        ``extra["scores"]`` has the sums by role.
    """

    candidates: tuple[Candidate, ...]
    share: int = 1
    scored: tuple[tuple[int, bool, bool], ...] = ()

    name = "stacked"

    @property
    def max_passes(self) -> int:
        """Return the passes of all candidates together, and those that score."""
        return len(self.scored) + sum(candidate.solver.max_passes for candidate in self.candidates)

    def solve(self, model: BatchedLinear, sums: Sums, start: Array | None) -> Solution:
        """Solve every candidate, then score them if requested."""
        gradients = _CachedGradients(self.candidates, sums)
        every = list(range(len(self.candidates)))

        def solve(
            at: list[int], starts: list[Array | None], share: int, solvers: list[Solver]
        ) -> list[Solution]:
            solver_runs = [
                iterate_requests(
                    model.each, solver, start, self.candidates[i].n_rows, lambda: sums.should_stop
                )
                for i, start, solver in zip(at, starts, solvers, strict=True)
            ]
            return run_in_lock_step(
                solver_runs,
                lambda asking, asked: self._answer_requests(
                    sums, gradients, [at[k] for k in asking], asked, share
                ),
            )

        own = [candidate.solver for candidate in self.candidates]
        if self.share == 1:
            found = solve(every, [candidate.start for candidate in self.candidates], 1, own)
        else:
            warm = WarmStarts(model, self.candidates, sums, gradients, self.share)
            starts, solved = warm.find_starts(solve), warm.solutions
            # Candidates that Newton's steps did not bring within their tolerance.
            left = [i for i in every if i not in solved]
            rest = solve(left, [starts[i] for i in left], 1, [own[i] for i in left])
            solved |= dict(zip(left, rest, strict=True))
            found = [_count_earlier_steps(solved[i], own[i], int(warm.steps[i])) for i in every]
        w = np.array([solution.w for solution in found])
        return Solution(
            w,
            max(solution.n_iter for solution in found),
            extra={
                "scores": {
                    asked[0]: self._score_candidates(sums, w, *asked) for asked in self.scored
                },
                "candidates": [
                    (solution.n_iter, solution.converged, solution.message, solution.extra)
                    for solution in found
                ],
            },
        )

    def _score_candidates(
        self, sums: Sums, w: Array, role: int, pairs: bool, places: bool
    ) -> Array:
        def score(w: Array, splits: NDArray[np.int64]) -> Array:
            return sums(BatchedScores(w, splits, role, pairs, places))

        return evaluate_by_split(score, w, np.array([one.split for one in self.candidates]))

    def _answer_requests(
        self, sums: Sums, gradients: _CachedGradients, at: list[int], requests: list[Statistic],
        share: int,
    ) -> list[Array]:  # fmt: skip
        """Return the sums that the solvers of the candidates `at` request."""
        asked = dict(zip(at, requests, strict=True))
        # All gradients are one pass.
        points = {i: q.w for i, q in asked.items() if type(q) is LossGradient}
        answers = gradients(points, share)
        # Hessians of the share are another; over all rows they are summed below, split by split.
        curved = [i for i, q in asked.items() if type(q) is LossHessian and q.loss is None]
        if curved and share > 1:
            w = np.stack([asked[i].w for i in curved])  # type: ignore[attr-defined]
            splits = np.array([self.candidates[i].split for i in curved])
            hessians = sums(BatchedHessian(w, splits, share))
            answers |= dict(zip(curved, hessians, strict=True))
        # Equal requests, found by their bytes, are one pass for all splits that make them.
        others: dict[bytes, dict[int, list[int]]] = {}
        for i, request in asked.items():
            if i not in answers:
                key = pickle.dumps(request)
                others.setdefault(key, {}).setdefault(self.candidates[i].split, []).append(i)
        for of_split in others.values():
            splits_asked = tuple(sorted(of_split))
            request = asked[of_split[splits_asked[0]][0]]
            found = sums(PerSplitStatistic(request, splits_asked))
            for split, answer in zip(splits_asked, found, strict=True):
                answers.update(dict.fromkeys(of_split[split], answer))
        return [answers[i] for i in at]


def _count_earlier_steps(solution: Solution, solver: Solver, steps: int) -> Solution:
    """Return the solution with earlier steps counted in, up to the solver's `max_iter`."""
    most = solver.max_iter if isinstance(solver, PenalisedSolver) else steps
    return replace(solution, n_iter=min(solution.n_iter + steps, max(most, solution.n_iter)))


def candidate_solution(batched: Solution, k: int) -> Solution:
    """Return the solution of one candidate of a batch."""
    n_iter, converged, message, extra = batched.extra["candidates"][k]
    return Solution(batched.w[k], n_iter, converged, message, extra)


class _CachedGradients:
    """Losses and gradients of candidates, of which the last one of each is kept.

    A solver that starts where a warm start ended requests the gradient that is known there.

    Parameters
    ----------
    candidates : sequence of Candidate
    sums : Sums
    """

    def __init__(self, candidates: tuple[Candidate, ...], sums: Sums) -> None:
        self._candidates, self._sums = candidates, sums
        #: For each candidate: share and parameters of its last gradient, and this.
        self._last: dict[int, tuple[tuple[int, bytes], Array]] = {}

    def __call__(self, asked: Mapping[int, Array], share: int) -> dict[int, Array]:
        """Return rows ``[loss, *gradient]`` at the requested parameters, by candidate."""
        found: dict[int, Array] = {}
        # Sorted by split, as `BatchedGradient` needs it. Equal parameters of a split are evaluated
        # once: at first all candidates are at zero.
        points: dict[tuple[int, bytes], list[int]] = {}
        for i in sorted(asked, key=lambda i: self._candidates[i].split):
            here = share, asked[i].tobytes()
            last, answer = self._last.get(i, (None, None))
            if last == here and answer is not None:
                found[i] = answer
            else:
                points.setdefault((self._candidates[i].split, here[1]), []).append(i)
        if not points:
            return found
        w = np.stack([asked[same[0]] for same in points.values()])
        splits = np.array([split for split, _ in points])
        # A single candidate is evaluated as in a fit alone.
        if len(w) == 1 and share == 1:
            answers = self._sums(PerSplitStatistic(LossGradient(w[0]), (int(splits[0]),)))
        else:
            answers = self._sums(BatchedGradient(w, splits, share))
        for ((_, point), same), answer in zip(points.items(), answers, strict=True):
            for i in same:
                found[i], self._last[i] = answer, ((share, point), answer)
        return found


class WarmStarts:
    """Finder of parameters near the optima of all candidates, in few passes over all rows.

    Parameters
    ----------
    model : BatchedLinear
    candidates : tuple of Candidate
    sums : Sums
    gradients : _CachedGradients
    share : int
        The share of the rows is one in `share` runs of them.

    Attributes
    ----------
    steps : ndarray of int of shape (n_candidates,)
        Newton steps made with gradients over all rows.
    solutions : dict of int to Solution
        Solutions of the candidates whose start is within their tolerance on all rows.
    """

    def __init__(
        self,
        model: BatchedLinear,
        candidates: tuple[Candidate, ...],
        sums: Sums,
        gradients: _CachedGradients,
        share: int,
    ) -> None:
        self._model, self._candidates, self._sums = model, candidates, sums
        self._gradients, self._share = gradients, share
        self.steps = np.zeros(len(candidates), np.int64)
        self.solutions: dict[int, Solution] = {}

    def find_starts(self, solve: _SolveCandidates) -> list[Array | None]:
        """Return the parameters from which each candidate is to be solved on all rows."""
        every = list(range(len(self._candidates)))
        groups = self._group_candidates()
        # Without Hessians (other solvers, too many parameters): each by its own solver.
        if self._hessian_share(len(groups)) is None:
            own = [candidate.solver for candidate in self._candidates]
            found = solve(every, [None] * len(every), self._share, own)
            return [_finite_or_none(one.w) for one in found]
        # 1. On the share: the optimum of the first candidate of each group, and the inverse Hessian
        # of each leader there; one more step makes the optima accurate.
        optima = self._solve_first_candidates(list(groups), solve)
        leaders = choose_leaders(optima, self._gradients(optima, self._share))
        inverse = self._invert_hessians(groups, optima, leaders)
        self._take_newton_steps(
            optima, inverse, [i for i in optima if i in inverse], self._share, 1, _LEADER_TOLERANCE
        )
        # 2. On the share: the other candidates, from the optimum of their group.
        leader_of = self._map_followers(groups, leaders)
        w = self._solve_on_share(solve, groups, optima, leaders, leader_of, inverse)
        # 3. On all rows: leaders first; a follower moves as its leader does, which costs no pass.
        able = [i for i in every if i in inverse and _finite_or_none(w[i]) is not None]
        followers = {i: leader_of[i] for i in able if leader_of.get(i) in able}
        before = dict(w)
        if followers:
            first = [i for i in able if i not in followers]
            self._take_newton_steps(
                w, inverse, first, 1, _MAX_LEADER_STEPS, _LEADER_TOLERANCE, check_last=False
            )
        for i, leader in followers.items():
            w[i] = w[i] + (w[leader] - before[leader])
            self.steps[i] = self.steps[leader]
        # 4. On all rows: every candidate by its own gradient.
        self._take_newton_steps(w, inverse, able, 1, _MAX_FULL_STEPS)
        return [_finite_or_none(w[i]) for i in every]

    def _solve_on_share(
        self,
        solve: _SolveCandidates,
        groups: _CandidateGroups,
        optima: dict[int, Array],
        leaders: dict[int, int],
        leader_of: dict[int, int],
        inverse: dict[int, Array],
    ) -> dict[int, Array]:
        """Return parameters of all candidates near their optima on the share of the rows."""
        w = {i: optima[first] for first, group in groups.items() for i in group}
        members = [i for i in w if i in inverse and i not in optima and i not in leader_of]
        solved = self._take_newton_steps(w, inverse, members, self._share, _MAX_SHARE_STEPS).union(
            optima
        )
        # A follower differs from the first of its group as its leader does from the first of its.
        for first, group in groups.items():
            for i in group:
                if i in leader_of and i in inverse and i not in optima and leader_of[i] in solved:
                    w[i] = w[i] + (w[leader_of[i]] - optima[leaders[first]])
                    solved.add(i)
        # If the splits' rows are of different kinds, the Newton steps of a group do not converge.
        others = [i for i in sorted(w) if i not in solved]
        own = [self._candidates[i].solver for i in others]
        alone = solve(others, [w[i] for i in others], self._share, own)
        return w | {i: one.w for i, one in zip(others, alone, strict=True)}

    def _solve_first_candidates(
        self, firsts: list[int], solve: _SolveCandidates
    ) -> dict[int, Array]:
        """Solve the first candidate of each group on the share, by Newton where L-BFGS is slow."""
        short: list[Solver] = [
            replace(solver, max_iter=min(solver.max_iter, _MAX_FIRST_STEPS))
            for solver in map(self._solver_of, firsts)
        ]
        found = dict(
            zip(firsts, solve(firsts, [None] * len(firsts), self._share, short), strict=True)
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

    def _group_candidates(self) -> _CandidateGroups:
        """Return groups of candidates with equal solvers and penalties."""
        found: dict[object, list[int]] = {}
        for i, candidate in enumerate(self._candidates):
            solver = candidate.solver
            key: object = i
            if type(solver) is LBFGS and not solver.penalty.l1:
                l2 = solver.penalty.l2
                strength = round(_STRENGTH_RESOLUTION * log(l2)) if l2 > 0 else None
                key = strength, solver.penalty.intercept_scaling, solver.max_iter, solver.tol
            found.setdefault(key, []).append(i)
        return {group[0]: group for group in found.values()}

    def _map_followers(self, groups: _CandidateGroups, leaders: dict[int, int]) -> dict[int, int]:
        """Return, for each candidate of a led group, the leading group's one of the same split."""
        found: dict[int, int] = {}
        for first, group in groups.items():
            if leaders[first] != first:
                of_split = {self._candidates[j].split: j for j in groups[leaders[first]]}
                at = {i: of_split.get(self._candidates[i].split) for i in group}
                found |= {i: j for i, j in at.items() if j is not None}
        return found

    def _hessian_share(self, n_groups: int) -> int | None:
        """Return the share of the rows that Hessians are summed over, or None if not worthwhile."""
        each, n_candidates = self._model.each, len(self._candidates)
        plain = all(type(c.solver) is LBFGS and not c.solver.penalty.l1 for c in self._candidates)
        size = prod(each.shape)
        if not (plain and each.loss.has_hessian) or n_groups * size**2 > _MAX_HESSIAN_ENTRIES:
            return None
        # A row costs `size` squared for a Hessian, and `size` for a gradient: on this share all
        # Hessians cost no more than two gradients of all candidates over all rows.
        share = max(self._share, ceil(size * n_groups / (2 * n_candidates)))
        n_rows = min(candidate.n_rows for candidate in self._candidates) / share
        return share if n_rows >= _MIN_ROWS_PER_PARAMETER * size else None

    def _invert_hessians(
        self, groups: _CandidateGroups, optima: dict[int, Array], leaders: dict[int, int]
    ) -> dict[int, Array]:
        """Return the inverse Hessian of each candidate's objective, if it is well defined."""
        each, chosen = self._model.each, [i for i in leaders if leaders[i] == i]
        share = self._hessian_share(len(chosen))
        assert share is not None  # not None for all groups, so not for a subset
        size = prod(each.shape)
        w = np.nan_to_num(np.stack([optima[i] for i in chosen]))
        splits = np.array([self._candidates[i].split for i in chosen])
        sums = self._sums(BatchedHessian(w, splits, share))
        hessians = {
            i: total[2 + size :].reshape(size, size) / self._candidates[i].n_rows
            for i, total in zip(chosen, sums, strict=True)
        }
        found: dict[int, Array] = {}
        for first, group in groups.items():
            # The leader's curvature of the losses, and the group's own penalty.
            hessian = hessians[leaders[first]].copy()
            hessian[np.diag_indices(size)] += np.repeat(self._l2_strengths(first), each.width)
            inverse = _invert_hessian(hessian)
            if inverse is not None and _finite_or_none(optima[first]) is not None:
                found |= dict.fromkeys(group, inverse)
        return found

    def _take_newton_steps(
        self, w: dict[int, Array], inverse: dict[int, Array], some: Iterable[int], share: int,
        most: int, fine: float = 1.0, check_last: bool = True,
    ) -> set[int]:  # fmt: skip
        """Take up to `most` steps while they shrink the gradients; return the candidates helped.

        The parameters `w` are updated. Gradients are to be as small as `fine` times `tol`. Without
        `check_last` the gradient after the last step is not computed.
        """
        going, slopes, before = list(some), dict[int, float](), dict[int, Array]()
        helped = set[int]()
        for number in range(most + check_last):
            if not going or self._sums.should_stop:
                break
            answers = self._gradients({i: w[i] for i in going}, share)
            still = []
            for i in going:
                solver, n_rows = self._solver_of(i), self._candidates[i].n_rows
                gradient = answers[i][1:].reshape(w[i].shape) / n_rows
                gradient = gradient + self._l2_strengths(i) * w[i]
                slope, last_slope = float(np.abs(gradient).max()), slopes.get(i, np.inf)
                # The step did not shrink the gradient, or it is NaN: take it back, and end.
                if not slope < last_slope:
                    w[i] = before.get(i, w[i])
                    continue
                if slope <= solver.tol and share == 1:
                    penalty = float((self._l2_strengths(i) * w[i] ** 2).sum()) / 2
                    value = float(answers[i][0]) / n_rows + penalty
                    self.solutions[i] = Solution(
                        w[i], 0, True, _CONVERGED_MESSAGE, {"value": value}
                    )
                if slope <= solver.tol or (i in slopes and slope <= _SHRINK_FACTOR * last_slope):
                    helped.add(i)
                n_steps = self.steps[i] if share == 1 else number
                if (
                    number == most
                    or n_steps >= solver.max_iter
                    or slope <= fine * solver.tol
                    or slope > _SHRINK_FACTOR * last_slope
                ):
                    continue
                slopes[i], before[i] = slope, w[i]
                # Chord step: the inverse Hessian of the share, the gradient of these rows.
                w[i] = w[i] - (inverse[i] @ gradient.ravel()).reshape(w[i].shape)
                self.steps[i] += share == 1
                self.solutions.pop(i, None)
                still.append(i)
            going = still
        return helped

    def _solver_of(self, i: int) -> PenalisedSolver:
        solver = self._candidates[i].solver
        assert isinstance(solver, PenalisedSolver)
        return solver

    def _l2_strengths(self, i: int) -> Array:
        penalty = self._solver_of(i).penalty
        return penalty_row_strengths(
            self._model.each, penalty.l2, penalty.intercept_scaling, power=2
        )


def choose_leaders(places: Mapping[int, Array], answers: Mapping[int, Array]) -> dict[int, int]:
    """Return the leader of each optimum: the nearest one of the earlier leaders, or itself.

    `places` are the optima, and `answers` the rows ``[loss, *gradient]`` there. The squared
    distance of two optima is the product of their difference with that of their gradients, which is
    their distance in the norm of the Hessian between them: the sum over the rows of the squared
    difference of the predictions, times the curvature of the loss. It measures how much the Hessian
    changes from one to the other.
    """
    found: dict[int, int] = {}
    leaders: list[int] = []
    for i, w in places.items():
        loss, gradient = float(answers[i][0]), answers[i][1:]
        nearest, least = i, np.inf
        for j in leaders:
            squared = float((w - places[j]).ravel() @ (gradient - answers[j][1:]))
            # A comparison with NaN is False: an optimum that is not finite leads itself.
            if squared <= _LEADER_DISTANCE * min(loss, float(answers[j][0])) and squared < least:
                nearest, least = j, squared
        found[i] = nearest
        if nearest == i:
            leaders.append(i)
    return found


def _finite_or_none(w: Array) -> Array | None:
    return w if np.isfinite(w).all() else None


def _invert_hessian(hessian: NDArray[np.float64]) -> Array | None:
    """Return the pseudo-inverse of a Hessian, or None if a diagonal entry is not positive."""
    diagonal = np.diag(hessian)
    if not np.isfinite(hessian).all() or not (diagonal > 0).all():
        return None
    # Scaled to a unit diagonal, so that features of very different sizes do not look collinear.
    scale = 1 / np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(hessian * scale * scale[:, None])
    kept = values > _EIGENVALUE_CUTOFF * values[-1]
    vectors = vectors[:, kept] * scale[:, None]
    return np.asarray((vectors / values[kept]) @ vectors.T)
