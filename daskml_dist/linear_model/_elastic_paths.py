"""Paths of elastic nets for all splits: from moments of the rows, or where these are too large."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels
from daskml_dist.linear_model._least_squares import moments_of
from daskml_dist.models.linear import LinearModel
from daskml_dist.penalties import get_penalty
from daskml_dist.solvers import CoordinateDescent, Solution, Solver, get_solver
from daskml_dist.solvers.base import Array, Sums
from daskml_dist.solvers.batched_solver import BatchedSolver, Candidate, candidate_solution
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.penalty_paths import (
    AlphaGrid,
    ElasticNetPath,
    FoldedReduction,
    append_intercepts,
    make_alpha_grid,
)

__all__ = ["GramPaths", "PathSettings", "Paths", "WidePaths"]

#: Bytes of what the quasi-Newton steps of columns remember at once.
_REMEMBERED = 1 << 30
#: Vectors of the parameters' size that one column remembers.
_VECTORS = 24


@dataclass(frozen=True)
class PathSettings:
    """Parameters of the paths.

    Parameters
    ----------
    ratios : ndarray of shape (n_ratios,)
    grid : AlphaGrid or None
        How strengths are chosen; None: they are given.
    given : ndarray
        Strengths in falling order.
    max_iter : int
    tol : float
    positive : bool
    selection : {"cyclic", "random"}
    random_state : int, RandomState or None
    seed : int
        Of the last fit.
    """

    ratios: NDArray[np.float64]
    grid: AlphaGrid | None
    given: NDArray[np.float64]
    max_iter: int
    tol: float
    positive: bool
    selection: str
    random_state: Any
    seed: int


class Paths(ABC):
    """Elastic nets of all strengths, shares of l1 and splits.

    Attributes
    ----------
    alphas : ndarray of shape (n_ratios, n_alphas)
    w : ndarray of shape (n_splits, n_ratios * n_alphas, n_rows, 1)
    converged : bool
    """

    alphas: NDArray[np.float64]
    w: NDArray[np.float64]
    converged: bool

    @abstractmethod
    def last(self, alpha: float, ratio: float) -> Solution:
        """The fit to all rows."""


class GramPaths(Paths):
    """By coordinate descent on the Gram matrix of each split.

    Parameters
    ----------
    stack : BatchedModels
    model : LinearModel
    asked : PathSettings
    """

    def __init__(self, stack: BatchedModels, model: LinearModel, asked: PathSettings) -> None:
        self._model, self._asked, self._moments = model, asked, moments_of(stack.rows)
        least = asked.grid or float(asked.given[-1])
        found = stack(stack.model(model), FoldedReduction(l2=least, of_mean=True, **self._moments))
        *reduced, self._reduced = found.extra["reduced"]
        n_rows = found.extra["n_rows"]
        self._n_rows = n_rows[-1]
        if asked.grid is None:
            self.alphas = np.tile(asked.given, (len(asked.ratios), 1))
        else:
            self.alphas = make_alpha_grid(asked.grid, self._reduced, self._n_rows)
        path = ElasticNetPath(
            max_iter=asked.max_iter,
            tol=asked.tol,
            positive=asked.positive,
            selection=asked.selection,
            random_state=asked.random_state,
        )
        w, self.converged = [], True
        for one, n in zip(reduced, n_rows, strict=False):
            paths = [
                path(one, n, of, ratio) for of, ratio in zip(self.alphas, asked.ratios, strict=True)
            ]
            self.converged &= all(found.converged for found in paths)
            coefs = np.concatenate([found.coefs for found in paths])[:, :, None]
            w.append(append_intercepts(one, coefs) if model.fit_intercept else coefs)
        self.w = np.array(w)

    def last(self, alpha: float, ratio: float) -> Solution:
        """As in :class:`Paths`; no pass."""
        solver = CoordinateDescent(
            alpha=alpha,
            l1_ratio=ratio,
            n_rows=self._n_rows,
            max_iter=self._asked.max_iter,
            tol=self._asked.tol,
            positive=self._asked.positive,
            selection=self._asked.selection,
            seed=self._asked.seed,
            **self._moments,
        )
        return solver.of_reduced(self._model, self._reduced, self._n_rows)


class WidePaths(Paths):
    """By orthant-wise quasi-Newton steps: some strengths of all splits at once, as columns.

    A strength begins where the one before ended.

    Parameters
    ----------
    stack : BatchedModels
    model : LinearModel
    asked : PathSettings

    Raises
    ------
    InvalidParameterError
        Coefficients are to be positive.
    """

    def __init__(self, stack: BatchedModels, model: LinearModel, asked: PathSettings) -> None:
        if asked.positive:
            raise InvalidParameterError(
                f"positive=True needs the Gram matrix of {model.n_features} features, for which "
                "there is not enough memory. Leave positive=False, or select features first."
            )
        self._stack, self._model, self._asked = stack, model, asked
        self._n_rows = stack.weights(model)
        last = len(self._n_rows) - 1
        start = stack(stack.model(model), BatchedSolver((self._column(last, _AtZero()),)))
        slopes = start.w[0, : model.n_features]
        if asked.grid is None:
            self.alphas = np.tile(asked.given, (len(asked.ratios), 1))
        else:
            self.alphas = asked.grid.of(-slopes, self._n_rows[-1])
        # As a share of the largest gradient, which tells of the target's units.
        self._tol = asked.tol * float(np.abs(slopes).max() / self._n_rows[-1])
        each = [self._path(of, r) for of, r in zip(self.alphas, asked.ratios, strict=True)]
        self.converged = all(converged for _, converged in each)
        self.w = np.concatenate([w for w, _ in each], axis=1)

    def last(self, alpha: float, ratio: float) -> Solution:
        """As in :class:`Paths`; some passes."""
        last = len(self._n_rows) - 1
        column = self._column(last, self._solver(alpha, ratio))
        return candidate_solution(self._fitted([column]), 0)

    def _path(self, alphas: Array, ratio: float) -> tuple[Array, bool]:
        n_splits = len(self._n_rows) - 1
        size = 8 * _VECTORS * self._model.n_features * n_splits
        at_once = max(1, _REMEMBERED // max(size, 1))
        starts: list[Array | None] = [None] * n_splits
        w, converged = [], True
        for first in range(0, len(alphas), at_once):
            some = alphas[first : first + at_once]
            columns = [
                self._column(split, self._solver(alpha, ratio), starts[split])
                for split in range(n_splits)
                for alpha in some
            ]
            found = self._fitted(columns)
            converged &= all(column[1] for column in found.extra["columns"])
            w.append(found.w.reshape(n_splits, len(some), *found.w.shape[1:]))
            starts = list(w[-1][:, -1])
        return np.concatenate(w, axis=1), converged

    def _fitted(self, columns: list[Candidate]) -> Solution:
        return self._stack(self._stack.model(self._model), BatchedSolver(tuple(columns)))

    def _solver(self, alpha: float, ratio: float) -> Solver:
        penalty = get_penalty("elasticnet", float(alpha), float(ratio))
        return get_solver("lbfgs")(penalty, self._asked.max_iter, self._tol)

    def _column(self, split: int, solver: Solver, start: Array | None = None) -> Candidate:
        return Candidate(split, solver, float(self._n_rows[split]), start)


@dataclass(frozen=True)
class _AtZero(Solver):
    """The gradient of the losses where all parameters are zero, in the place of a solution."""

    name = "at_zero"

    @property
    def max_passes(self) -> int:
        return 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        found = sums(LossGradient(np.zeros(model.shape)))
        return Solution(np.array(found[1:]).reshape(model.shape), 1)
