"""Logistic regressions of all penalties and splits, as columns of one fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_weighed
from daskml_dist.solvers import Solution
from daskml_dist.solvers.batched_scores import CANDIDATE_SCORES, CLASS_RANKINGS, RANKINGS
from daskml_dist.solvers.batched_solver import BatchedSolver, Candidate, candidate_solution

__all__ = ["LogisticPaths"]

#: Columns of one stack: each has a thread that waits.
_MOST_COLUMNS = 512
#: Log odds against a label that no row has.
_FAR = 18.0


class LogisticPaths:
    """Fits of all candidates to the training rows of all splits.

    Parameters
    ----------
    stack : BatchedModels
        Its last split trains on all rows.
    each : LinearModel
    sums : ndarray of shape (n_splits + 1, n_classes)
        Weights of the training rows of each split, by their labels.
    factors : ndarray of shape (n_classes,), or None
        Weights of classes.

    Attributes
    ----------
    w : ndarray of shape (n_splits, n_candidates, n_rows, width)
    n_iter : ndarray of int32 of shape (n_splits, n_candidates)
    solutions : list of Solution
        Split by split.
    """

    def __init__(
        self, stack: BatchedModels, each: LinearModel, sums: NDArray[np.float64],
        factors: NDArray[np.float64] | None,
    ) -> None:  # fmt: skip
        self._stack = stack
        n_classes = sums.shape[1]
        of_splits = None if factors is None else np.tile(factors, (len(sums), 1))
        self.model = stack.model(each, of_splits)
        self._lacking = sums == 0
        self._weights = sums @ (np.ones(n_classes) if factors is None else factors)
        self._n_splits = len(sums) - 1

    def fit(self, candidates: Sequence[Any], role: int | None = None) -> None:
        """Fit them all; what scores over rows of a role are made of comes with them."""
        columns = [
            self._column(candidate, split)
            for split in range(self._n_splits)
            for candidate in candidates
        ]
        self.solutions = []
        scored = () if role is None else ((role, False, False),)
        sums = []
        for start in range(0, len(columns), _MOST_COLUMNS):
            some = tuple(columns[start : start + _MOST_COLUMNS])
            found = self._stack(self.model, self._stack.solver(some, scored))
            sums += [found.extra["scores"].get(role)]
            self.solutions += [candidate_solution(found, k) for k in range(len(some))]
        self._sums = {} if role is None else {role: np.concatenate(sums)}
        w = np.array([one.w for one in self.solutions])
        self.w = w.reshape(self._n_splits, len(candidates), *w.shape[1:])
        n_iter = np.array([one.n_iter for one in self.solutions], np.int32)
        self.n_iter = n_iter.reshape(self.w.shape[:2])

    def refitted(self, candidate: Any, number: int) -> Solution:
        """Fit of a candidate to all rows, from the mean of those of the splits."""
        column = self._column(candidate, self._n_splits)
        column = replace(column, start=self.w[:, number].mean(axis=0))
        return candidate_solution(self._stack(self.model, BatchedSolver((column,))), 0)

    def scores(self, name: str, role: int) -> NDArray[np.float64]:
        """Scores over rows of the role of the fit, of shape (n_splits, n_candidates)."""
        n_splits, n_candidates = self.w.shape[:2]
        # Weights of classes are no part of scores.
        sums = self._sums[role]
        check_weighed(dict(enumerate(sums[::n_candidates, 0])))
        return CANDIDATE_SCORES["classifier"][name](sums).reshape(n_splits, n_candidates)

    def rankings(self, name: str, role: int) -> NDArray[np.float64]:
        """Ranking scores of the same shape; NaN where the rows themselves have to tell."""
        classes = self._stack.rows.classes
        names = RANKINGS if self.model.each.width == 1 else CLASS_RANKINGS
        lacks = name == "average_precision" and (classes is None or classes[-1] != 1)
        if lacks or name not in names:
            return np.full(self.w.shape[:2], np.nan)
        found = self._stack.rankings(self.model, *self._columns(), role)
        return found[:, names.index(name)].reshape(self.w.shape[:2])

    def _columns(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Parameters of the fits to all splits, and the split of each."""
        n_splits, n_candidates = self.w.shape[:2]
        w = self.w.reshape(-1, *self.w.shape[2:])
        return w, np.repeat(np.arange(n_splits), n_candidates)

    def estimator(self, candidate: Any, w: NDArray[np.float64]) -> Any:
        """A candidate that has these parameters."""
        candidate = type(candidate)(**candidate.get_params(deep=False))
        candidate._set_fitted(Solution(w), self.model.each, self._stack.rows)
        return candidate

    def _column(self, candidate: Any, split: int) -> Candidate:
        weight = float(self._weights[split])
        _, solver = candidate._problem(self._stack.of_split(weight))
        return Candidate(split, solver, weight, self._start(split))

    def _start(self, split: int) -> NDArray[np.float64] | None:
        """Parameters to start from where training rows lack a label; None: zeros.

        Its intercept has no minimum, and nothing else tells of it: from there it need not move.
        """
        each, lacking = self.model.each, self._lacking[split]
        if not each.fit_intercept or not lacking.any() or lacking.all():
            return None
        w = np.zeros(each.shape)
        if each.width > 1:
            w[-1, lacking] = -_FAR
        else:
            w[-1, 0] = _FAR if lacking[0] else -_FAR
        return w
