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
    sample_stride : int, default=1
        With more than 1, candidates are first solved on one in `sample_stride` runs of rows, by
        :class:`WarmStarts`: the same optimum, in fewer passes over all rows. For solvers that
        request only gradients.
    scored : tuple of (role, pairs, places), default=()
        Arguments of the :class:`BatchedScores` that are summed once all candidates are solved;
        ``extra["scores"]`` has the sums by role.
    """

    candidates: tuple[Candidate, ...]
    sample_stride: int = 1
    scored: tuple[tuple[int, bool, bool], ...] = ()

    name = "stacked"

    @property
    def max_passes(self) -> int:
        """Return the passes of all candidates together, and those that score."""
        return len(self.scored) + sum(candidate.solver.max_passes for candidate in self.candidates)

    def solve(self, model: BatchedLinear, sums: Sums, start: Array | None) -> Solution:
        """Solve every candidate, then score them if requested."""
        gradients = _CachedGradients(self.candidates, sums)
        all_candidates = list(range(len(self.candidates)))

        def solve(
            candidate_indices: list[int],
            starts: list[Array | None],
            sample_stride: int,
            solvers: list[Solver],
        ) -> list[Solution]:
            solver_runs = [
                iterate_requests(
                    model.single_model,
                    solver,
                    start,
                    self.candidates[i].n_rows,
                    lambda: sums.should_stop,
                )
                for i, start, solver in zip(candidate_indices, starts, solvers, strict=True)
            ]
            return run_in_lock_step(
                solver_runs,
                lambda waiting, requests: self._answer_requests(
                    sums,
                    gradients,
                    [candidate_indices[k] for k in waiting],
                    requests,
                    sample_stride,
                ),
            )

        candidate_solvers = [candidate.solver for candidate in self.candidates]
        if self.sample_stride == 1:
            solutions = solve(
                all_candidates,
                [candidate.start for candidate in self.candidates],
                1,
                candidate_solvers,
            )
        else:
            warm_starts = WarmStarts(model, self.candidates, sums, gradients, self.sample_stride)
            starts, solved = warm_starts.find_starts(solve), warm_starts.solutions
            # Candidates that Newton's steps did not bring within their tolerance.
            unsolved = [i for i in all_candidates if i not in solved]
            late_solutions = solve(
                unsolved, [starts[i] for i in unsolved], 1, [candidate_solvers[i] for i in unsolved]
            )
            solved |= dict(zip(unsolved, late_solutions, strict=True))
            solutions = [
                _count_earlier_steps(solved[i], candidate_solvers[i], int(warm_starts.steps[i]))
                for i in all_candidates
            ]
        w = np.array([solution.w for solution in solutions])
        return Solution(
            w,
            max(solution.n_iter for solution in solutions),
            extra={
                "scores": {
                    request[0]: self._score_candidates(sums, w, *request) for request in self.scored
                },
                "candidates": [
                    (solution.n_iter, solution.converged, solution.message, solution.extra)
                    for solution in solutions
                ],
            },
        )

    def _score_candidates(
        self, sums: Sums, w: Array, role: int, pairs: bool, places: bool
    ) -> Array:
        def score(w: Array, splits: NDArray[np.int64]) -> Array:
            return sums(BatchedScores(w, splits, role, pairs, places))

        return evaluate_by_split(
            score, w, np.array([candidate.split for candidate in self.candidates])
        )

    def _answer_requests(
        self, sums: Sums, gradients: _CachedGradients, candidate_indices: list[int],
        requests: list[Statistic], sample_stride: int,
    ) -> list[Array]:  # fmt: skip
        """Return the sums that the solvers of the candidates `candidate_indices` request."""
        request_of = dict(zip(candidate_indices, requests, strict=True))
        # All gradients are one pass.
        points = {i: q.w for i, q in request_of.items() if type(q) is LossGradient}
        sums_of = gradients(points, sample_stride)
        # Hessians of the share are another; over all rows they are summed below, split by split.
        curved = [i for i, q in request_of.items() if type(q) is LossHessian and q.loss is None]
        if curved and sample_stride > 1:
            w = np.stack([request_of[i].w for i in curved])  # type: ignore[attr-defined]
            splits = np.array([self.candidates[i].split for i in curved])
            hessians = sums(BatchedHessian(w, splits, sample_stride))
            sums_of |= dict(zip(curved, hessians, strict=True))
        # Equal requests, found by their bytes, are one pass for all splits that make them.
        by_bytes: dict[bytes, dict[int, list[int]]] = {}
        for i, request in request_of.items():
            if i not in sums_of:
                key = pickle.dumps(request)
                by_bytes.setdefault(key, {}).setdefault(self.candidates[i].split, []).append(i)
        for by_split in by_bytes.values():
            request_splits = tuple(sorted(by_split))
            request = request_of[by_split[request_splits[0]][0]]
            split_sums = sums(PerSplitStatistic(request, request_splits))
            for split, total in zip(request_splits, split_sums, strict=True):
                sums_of.update(dict.fromkeys(by_split[split], total))
        return [sums_of[i] for i in candidate_indices]


def _count_earlier_steps(solution: Solution, solver: Solver, steps: int) -> Solution:
    """Return the solution with earlier steps counted in, up to the solver's `max_iter`."""
    max_iter = solver.max_iter if isinstance(solver, PenalisedSolver) else steps
    return replace(solution, n_iter=min(solution.n_iter + steps, max(max_iter, solution.n_iter)))


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

    def __call__(self, requested: Mapping[int, Array], sample_stride: int) -> dict[int, Array]:
        """Return rows ``[loss, *gradient]`` at the requested parameters, by candidate."""
        gradients: dict[int, Array] = {}
        # Sorted by split, as `BatchedGradient` needs it. Equal parameters of a split are evaluated
        # once: at first all candidates are at zero.
        points: dict[tuple[int, bytes], list[int]] = {}
        for i in sorted(requested, key=lambda i: self._candidates[i].split):
            point_key = sample_stride, requested[i].tobytes()
            last, gradient = self._last.get(i, (None, None))
            if last == point_key and gradient is not None:
                gradients[i] = gradient
            else:
                points.setdefault((self._candidates[i].split, point_key[1]), []).append(i)
        if not points:
            return gradients
        w = np.stack([requested[candidates[0]] for candidates in points.values()])
        splits = np.array([split for split, _ in points])
        # A single candidate is evaluated as in a fit alone.
        if len(w) == 1 and sample_stride == 1:
            point_gradients = self._sums(PerSplitStatistic(LossGradient(w[0]), (int(splits[0]),)))
        else:
            point_gradients = self._sums(BatchedGradient(w, splits, sample_stride))
        for ((_, point), candidates), gradient in zip(points.items(), point_gradients, strict=True):
            for i in candidates:
                gradients[i], self._last[i] = gradient, ((sample_stride, point), gradient)
        return gradients


class WarmStarts:
    """Finder of parameters near the optima of all candidates, in few passes over all rows.

    Parameters
    ----------
    model : BatchedLinear
    candidates : tuple of Candidate
    sums : Sums
    gradients : _CachedGradients
    sample_stride : int
        The share of the rows is one in `sample_stride` runs of them.

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
        sample_stride: int,
    ) -> None:
        self._model, self._candidates, self._sums = model, candidates, sums
        self._gradients, self._sample_stride = gradients, sample_stride
        self.steps = np.zeros(len(candidates), np.int64)
        self.solutions: dict[int, Solution] = {}

    def find_starts(self, solve: _SolveCandidates) -> list[Array | None]:
        """Return the parameters from which each candidate is to be solved on all rows."""
        all_candidates = list(range(len(self._candidates)))
        groups = self._group_candidates()
        # Without Hessians (other solvers, too many parameters): each by its own solver.
        if self._hessian_share(len(groups)) is None:
            solvers = [candidate.solver for candidate in self._candidates]
            solutions = solve(
                all_candidates, [None] * len(all_candidates), self._sample_stride, solvers
            )
            return [_finite_or_none(solution.w) for solution in solutions]
        # 1. On the share: the optimum of the first candidate of each group, and the inverse Hessian
        # of each leader there; one more step makes the optima accurate.
        optima = self._solve_first_candidates(list(groups), solve)
        leaders = choose_leaders(optima, self._gradients(optima, self._sample_stride))
        inverse = self._invert_hessians(groups, optima, leaders)
        self._take_newton_steps(
            optima,
            inverse,
            [i for i in optima if i in inverse],
            self._sample_stride,
            1,
            _LEADER_TOLERANCE,
        )
        # 2. On the share: the other candidates, from the optimum of their group.
        leader_of = self._map_followers(groups, leaders)
        w = self._solve_on_share(solve, groups, optima, leaders, leader_of, inverse)
        # 3. On all rows: leaders first; a follower moves as its leader does, which costs no pass.
        solvable = [i for i in all_candidates if i in inverse and _finite_or_none(w[i]) is not None]
        followers = {i: leader_of[i] for i in solvable if leader_of.get(i) in solvable}
        share_optima = dict(w)
        if followers:
            first = [i for i in solvable if i not in followers]
            self._take_newton_steps(
                w, inverse, first, 1, _MAX_LEADER_STEPS, _LEADER_TOLERANCE, check_last=False
            )
        for i, leader in followers.items():
            w[i] = w[i] + (w[leader] - share_optima[leader])
            self.steps[i] = self.steps[leader]
        # 4. On all rows: every candidate by its own gradient.
        self._take_newton_steps(w, inverse, solvable, 1, _MAX_FULL_STEPS)
        return [_finite_or_none(w[i]) for i in all_candidates]

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
        solved = self._take_newton_steps(
            w, inverse, members, self._sample_stride, _MAX_SHARE_STEPS
        ).union(optima)
        # A follower differs from the first of its group as its leader does from the first of its.
        for first, group in groups.items():
            for i in group:
                if i in leader_of and i in inverse and i not in optima and leader_of[i] in solved:
                    w[i] = w[i] + (w[leader_of[i]] - optima[leaders[first]])
                    solved.add(i)
        # If the splits' rows are of different kinds, the Newton steps of a group do not converge.
        unsolved = [i for i in sorted(w) if i not in solved]
        solvers = [self._candidates[i].solver for i in unsolved]
        solutions = solve(unsolved, [w[i] for i in unsolved], self._sample_stride, solvers)
        return w | {i: solution.w for i, solution in zip(unsolved, solutions, strict=True)}

    def _solve_first_candidates(
        self, firsts: list[int], solve: _SolveCandidates
    ) -> dict[int, Array]:
        """Solve the first candidate of each group on the share, by Newton where L-BFGS is slow."""
        short_solvers: list[Solver] = [
            replace(solver, max_iter=min(solver.max_iter, _MAX_FIRST_STEPS))
            for solver in map(self._solver_of, firsts)
        ]
        solutions = dict(
            zip(
                firsts,
                solve(firsts, [None] * len(firsts), self._sample_stride, short_solvers),
                strict=True,
            )
        )
        slow = [
            i
            for i, solution in solutions.items()
            if not solution.converged and _finite_or_none(solution.w) is not None
        ]
        newton: list[Solver] = [
            NewtonCholesky(solver.penalty, solver.max_iter, solver.tol)
            for solver in map(self._solver_of, slow)
        ]
        starts: list[Array | None] = [solutions[i].w for i in slow]
        share = self._hessian_share(len(slow)) or self._sample_stride
        solutions |= dict(zip(slow, solve(slow, starts, share, newton), strict=True))
        return {i: solution.w for i, solution in solutions.items()}

    def _group_candidates(self) -> _CandidateGroups:
        """Return groups of candidates with equal solvers and penalties."""
        by_key: dict[object, list[int]] = {}
        for i, candidate in enumerate(self._candidates):
            solver = candidate.solver
            key: object = i
            if type(solver) is LBFGS and not solver.penalty.l1:
                l2 = solver.penalty.l2
                strength = round(_STRENGTH_RESOLUTION * log(l2)) if l2 > 0 else None
                key = strength, solver.penalty.intercept_scaling, solver.max_iter, solver.tol
            by_key.setdefault(key, []).append(i)
        return {group[0]: group for group in by_key.values()}

    def _map_followers(self, groups: _CandidateGroups, leaders: dict[int, int]) -> dict[int, int]:
        """Return, for each candidate of a led group, the leading group's one of the same split."""
        leader_of: dict[int, int] = {}
        for first, group in groups.items():
            if leaders[first] != first:
                by_split = {self._candidates[j].split: j for j in groups[leaders[first]]}
                same_split = {i: by_split.get(self._candidates[i].split) for i in group}
                leader_of |= {i: j for i, j in same_split.items() if j is not None}
        return leader_of

    def _hessian_share(self, n_groups: int) -> int | None:
        """Return the share of the rows that Hessians are summed over, or None if not worthwhile."""
        model, n_candidates = self._model.single_model, len(self._candidates)
        plain = all(type(c.solver) is LBFGS and not c.solver.penalty.l1 for c in self._candidates)
        size = prod(model.shape)
        if not (plain and model.loss.has_hessian) or n_groups * size**2 > _MAX_HESSIAN_ENTRIES:
            return None
        # A row costs `size` squared for a Hessian, and `size` for a gradient: on this share all
        # Hessians cost no more than two gradients of all candidates over all rows.
        share = max(self._sample_stride, ceil(size * n_groups / (2 * n_candidates)))
        n_rows = min(candidate.n_rows for candidate in self._candidates) / share
        return share if n_rows >= _MIN_ROWS_PER_PARAMETER * size else None

    def _invert_hessians(
        self, groups: _CandidateGroups, optima: dict[int, Array], leaders: dict[int, int]
    ) -> dict[int, Array]:
        """Return the inverse Hessian of each candidate's objective, if it is well defined."""
        model, leading = self._model.single_model, [i for i in leaders if leaders[i] == i]
        share = self._hessian_share(len(leading))
        assert share is not None  # not None for all groups, so not for a subset
        size = prod(model.shape)
        w = np.nan_to_num(np.stack([optima[i] for i in leading]))
        splits = np.array([self._candidates[i].split for i in leading])
        sums = self._sums(BatchedHessian(w, splits, share))
        hessians = {
            i: total[2 + size :].reshape(size, size) / self._candidates[i].n_rows
            for i, total in zip(leading, sums, strict=True)
        }
        inverse_of: dict[int, Array] = {}
        for first, group in groups.items():
            # The leader's curvature of the losses, and the group's own penalty.
            hessian = hessians[leaders[first]].copy()
            hessian[np.diag_indices(size)] += np.repeat(self._l2_strengths(first), model.width)
            inverse = _invert_hessian(hessian)
            if inverse is not None and _finite_or_none(optima[first]) is not None:
                inverse_of |= dict.fromkeys(group, inverse)
        return inverse_of

    def _take_newton_steps(
        self, w: dict[int, Array], inverse: dict[int, Array], candidate_indices: Iterable[int],
        sample_stride: int, max_steps: int, tol_factor: float = 1.0, check_last: bool = True,
    ) -> set[int]:  # fmt: skip
        """Take up to `max_steps` steps while gradients shrink; return the candidates they helped.

        The parameters `w` are updated. Gradients are to be as small as `tol_factor` times `tol`.
        Without `check_last` the gradient after the last step is not computed.
        """
        active, slopes, last_w = list(candidate_indices), dict[int, float](), dict[int, Array]()
        helped = set[int]()
        for number in range(max_steps + check_last):
            if not active or self._sums.should_stop:
                break
            gradients = self._gradients({i: w[i] for i in active}, sample_stride)
            still_active = []
            for i in active:
                solver, n_rows = self._solver_of(i), self._candidates[i].n_rows
                gradient = gradients[i][1:].reshape(w[i].shape) / n_rows
                gradient = gradient + self._l2_strengths(i) * w[i]
                slope, last_slope = float(np.abs(gradient).max()), slopes.get(i, np.inf)
                # The step did not shrink the gradient, or it is NaN: take it back, and end.
                if not slope < last_slope:
                    w[i] = last_w.get(i, w[i])
                    continue
                if slope <= solver.tol and sample_stride == 1:
                    penalty = float((self._l2_strengths(i) * w[i] ** 2).sum()) / 2
                    value = float(gradients[i][0]) / n_rows + penalty
                    self.solutions[i] = Solution(
                        w[i], 0, True, _CONVERGED_MESSAGE, {"value": value}
                    )
                if slope <= solver.tol or (i in slopes and slope <= _SHRINK_FACTOR * last_slope):
                    helped.add(i)
                n_steps = self.steps[i] if sample_stride == 1 else number
                if (
                    number == max_steps
                    or n_steps >= solver.max_iter
                    or slope <= tol_factor * solver.tol
                    or slope > _SHRINK_FACTOR * last_slope
                ):
                    continue
                slopes[i], last_w[i] = slope, w[i]
                # Chord step: the inverse Hessian of the share, the gradient of these rows.
                w[i] = w[i] - (inverse[i] @ gradient.ravel()).reshape(w[i].shape)
                self.steps[i] += sample_stride == 1
                self.solutions.pop(i, None)
                still_active.append(i)
            active = still_active
        return helped

    def _solver_of(self, i: int) -> PenalisedSolver:
        solver = self._candidates[i].solver
        assert isinstance(solver, PenalisedSolver)
        return solver

    def _l2_strengths(self, i: int) -> Array:
        penalty = self._solver_of(i).penalty
        return penalty_row_strengths(
            self._model.single_model, penalty.l2, penalty.intercept_scaling, power=2
        )


def choose_leaders(places: Mapping[int, Array], answers: Mapping[int, Array]) -> dict[int, int]:
    """Return the leader of each optimum: the nearest one of the earlier leaders, or itself.

    `places` are the optima, and `answers` the rows ``[loss, *gradient]`` there. The squared
    distance of two optima is the product of their difference with that of their gradients, which is
    their distance in the norm of the Hessian between them: the sum over the rows of the squared
    difference of the predictions, times the curvature of the loss. It measures how much the Hessian
    changes from one to the other.
    """
    leader_of: dict[int, int] = {}
    leaders: list[int] = []
    for i, w in places.items():
        loss, gradient = float(answers[i][0]), answers[i][1:]
        nearest, smallest = i, np.inf
        for j in leaders:
            squared = float((w - places[j]).ravel() @ (gradient - answers[j][1:]))
            # A comparison with NaN is False: an optimum that is not finite leads itself.
            if squared <= _LEADER_DISTANCE * min(loss, float(answers[j][0])) and squared < smallest:
                nearest, smallest = j, squared
        leader_of[i] = nearest
        if nearest == i:
            leaders.append(i)
    return leader_of


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
    is_kept = values > _EIGENVALUE_CUTOFF * values[-1]
    vectors = vectors[:, is_kept] * scale[:, None]
    return np.asarray((vectors / values[is_kept]) @ vectors.T)
