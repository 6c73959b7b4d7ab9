"""Many fits of linear models at once: candidates times splits as columns of one matrix.

Each column's solver runs as if alone, in lock step with the others; gradients that they ask for are
one reading of the rows, and other sums are made once where several columns of a split ask for the
same. E. R. Sparks et al., "Automating model search for large scale machine learning" (TuPAQ), SoCC
2015.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.stacked import StackedLinear
from daskml_dist.solvers.base import Array, PenalisedSolver, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.lock_step import Seat, in_lock_step
from daskml_dist.solvers.newton import LossHessian
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.of_splits import OfSplits
from daskml_dist.solvers.stacked_columns import Candidate, CandidateGradients
from daskml_dist.solvers.stacked_gradient import StackedHessian, in_order_of_splits
from daskml_dist.solvers.stacked_scores import StackedScores
from daskml_dist.solvers.stacked_starts import Starts

__all__ = ["Candidate", "StackedSolver", "solution_of"]


@dataclass(frozen=True, eq=False)
class StackedSolver(Solver):
    """Solvers of many columns, in lock step.

    The solution is the columns' parameters, of shape (n_columns, n_rows, width); ``extra`` has
    their solutions without these.

    Parameters
    ----------
    columns : tuple of Column
    share : int, default=1
        With more than 1, one run of rows in so many tells where the columns begin, see
        :class:`Starts`: to the same optimum, in fewer readings of all rows. For solvers that ask
        for gradients alone.
    scored : tuple of (role, bool, bool), default=()
        Roles of the rows that are scored once all are solved, and whether of pairs of labels and
        of their places, as of :class:`StackedScores`. ``extra["scores"]`` has the sums by role.
    """

    columns: tuple[Candidate, ...]
    share: int = 1
    scored: tuple[tuple[int, bool, bool], ...] = ()

    name = "stacked"

    @property
    def max_passes(self) -> int:
        """As many as the columns' together."""
        return len(self.scored) + sum(column.solver.max_passes for column in self.columns)

    def solve(self, model: StackedLinear, sums: Sums, start: Array | None) -> Solution:
        """Solve every column."""
        gradients, every = CandidateGradients(self.columns, sums), list(range(len(self.columns)))

        def solve(
            at: list[int], starts: list[Array | None], share: int, solvers: list[Solver]
        ) -> list[Solution]:
            seats = [
                Seat(model.each, solver, start, self.columns[i].n_rows, lambda: sums.should_stop)
                for i, start, solver in zip(at, starts, solvers, strict=True)
            ]
            return in_lock_step(
                seats,
                lambda asking, asked: self._answers(
                    sums, gradients, [at[k] for k in asking], asked, share
                ),
            )

        own = [column.solver for column in self.columns]
        if self.share == 1:
            found = solve(every, [column.start for column in self.columns], 1, own)
        else:
            begin = Starts(model, self.columns, sums, gradients, self.share)
            starts, solved = begin.found(solve), begin.solutions
            left = [i for i in every if i not in solved]
            rest = solve(left, [starts[i] for i in left], 1, [own[i] for i in left])
            solved |= dict(zip(left, rest, strict=True))
            found = [_after(solved[i], own[i], int(begin.steps[i])) for i in every]
        w = np.array([solution.w for solution in found])
        return Solution(
            w,
            max(solution.n_iter for solution in found),
            extra={
                "scores": {asked[0]: self._scores(sums, w, *asked) for asked in self.scored},
                "columns": [
                    (solution.n_iter, solution.converged, solution.message, solution.extra)
                    for solution in found
                ],
            },
        )

    def _scores(self, sums: Sums, w: Array, role: int, pairs: bool, places: bool) -> Array:
        def some(w: Array, splits: NDArray[np.int64]) -> Array:
            return sums(StackedScores(w, splits, role, pairs, places))

        return in_order_of_splits(some, w, np.array([column.split for column in self.columns]))

    def _answers(
        self, sums: Sums, gradients: CandidateGradients, at: list[int], questions: list[Statistic],
        share: int,
    ) -> list[Array]:  # fmt: skip
        asked = dict(zip(at, questions, strict=True))
        points = {i: q.w for i, q in asked.items() if type(q) is LossGradient}
        answers = gradients(points, share)
        bent = [i for i, q in asked.items() if type(q) is LossHessian and q.loss is None]
        if bent and share > 1:
            w = np.stack([asked[i].w for i in bent])  # type: ignore[attr-defined]
            splits = np.array([self.columns[i].split for i in bent])
            hessians = sums(StackedHessian(w, splits, share))
            answers |= dict(zip(bent, hessians, strict=True))
        others: dict[bytes, dict[int, list[int]]] = {}
        for i, question in asked.items():
            if i not in answers:
                key = pickle.dumps(question)
                others.setdefault(key, {}).setdefault(self.columns[i].split, []).append(i)
        for of_split in others.values():
            splits_asked = tuple(sorted(of_split))
            question = asked[of_split[splits_asked[0]][0]]
            found = sums(OfSplits(question, splits_asked))
            for split, answer in zip(splits_asked, found, strict=True):
                answers.update(dict.fromkeys(of_split[split], answer))
        return [answers[i] for i in at]


def _after(solution: Solution, solver: Solver, steps: int) -> Solution:
    """A solution with the steps that were made before."""
    most = solver.max_iter if isinstance(solver, PenalisedSolver) else steps
    return replace(solution, n_iter=min(solution.n_iter + steps, max(most, solution.n_iter)))


def solution_of(stacked: Solution, k: int) -> Solution:
    """Solution of a column of a stack."""
    n_iter, converged, message, extra = stacked.extra["columns"][k]
    return Solution(stacked.w[k], n_iter, converged, message, extra)
