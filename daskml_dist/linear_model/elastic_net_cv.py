"""`ElasticNetCV` and `LassoCV`: the penalty is chosen along paths of all folds."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.data.computing import use_client
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels
from daskml_dist.estimators.linear.base import LinearRegressor
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._cross_validated import (
    cut_into_splits,
    open_batched_splits,
    set_history_of_splits,
)
from daskml_dist.linear_model._least_squares import gram_fits, model_of, moments_of
from daskml_dist.losses import Loss, SquaredError
from daskml_dist.models.batched import TEST
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import (
    check_count,
    check_flag,
    check_number,
    check_weighed,
    seed_of,
)
from daskml_dist.parameters.run import Run
from daskml_dist.penalties import get_penalty
from daskml_dist.solvers import CoordinateDescent, Solution, Solver, get_solver
from daskml_dist.solvers.base import Array, SinglePassSolver, Sums
from daskml_dist.solvers.batched_solver import BatchedSolver, Candidate, candidate_solution
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.penalty_paths import (
    AlphaGrid,
    ElasticNetPath,
    FoldedReduction,
    PathErrorSums,
    append_intercepts,
    make_alpha_grid,
)

__all__ = ["ElasticNetCV", "LassoCV"]

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


class ElasticNetCV(LinearRegressor):
    """Elastic net whose penalty is chosen by cross-validation, in two passes over the rows.

    The first pass makes the moments of each fold, of which all paths and the last fit follow by
    coordinate descent; the second has the errors of all fits on the rows that they were not
    trained on. Where the features are too many for these matrices, all strengths and splits are
    columns of one fit by orthant-wise quasi-Newton steps.

    Parameters
    ----------
    l1_ratio : float or list of float, default=0.5
        Shares of l1 to be tried.
    eps : float, default=1e-3
        Least strength of an automatic path, as a share of the largest.
    alphas : int or array-like of shape (n_alphas,), default=100
        Strengths to be tried; a number of them: from the one that leaves no coefficient down.
    fit_intercept : bool, default=True
    precompute, copy_X, n_jobs
        Without effect: the Gram matrix is always made, rows are never changed, and all folds are
        fitted at once.
    max_iter : int, default=1000
        Cycles over the features at most, for each strength.
    tol : float, default=1e-4
        As in :class:`~daskml_dist.linear_model.ElasticNet`.
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: 5 folds.
    positive, random_state, selection
        As in :class:`~daskml_dist.linear_model.ElasticNet`.

    Attributes
    ----------
    alpha_, l1_ratio_ : float
        Chosen: of the least mean squared error, which is the mean of those of the folds.
    alphas_ : ndarray of shape (n_alphas,) or (n_l1_ratios, n_alphas)
    mse_path_ : ndarray of shape (n_alphas, n_folds) or (n_l1_ratios, n_alphas, n_folds)
        Mean squared errors of the test rows, weighted where rows are.
    coef_, intercept_, dual_gap_, n_iter_
        As in :class:`~daskml_dist.linear_model.ElasticNet`, of the fit to all rows. The gap is NaN
        where the features are too many for a Gram matrix.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from daskml_dist.linear_model import ElasticNetCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ElasticNetCV(l1_ratio=[0.5, 0.9], cv=3).fit(X, y)
    >>> model.l1_ratio_, model.alphas_.shape
    (0.9, (2, 100))
    """

    #: Whether there is a parameter `l1_ratio`.
    _has_ratio: ClassVar[bool] = True
    l1_ratio: Any

    _run_used = BaseRounds._run_used

    def __init__(
        self,
        *,
        l1_ratio: Any = 0.5,
        eps: float = 1e-3,
        alphas: Any = 100,
        fit_intercept: bool = True,
        precompute: Any = "auto",
        max_iter: int = 1000,
        tol: float = 1e-4,
        cv: Any = None,
        copy_X: bool = True,
        verbose: int = 0,
        n_jobs: int | None = None,
        positive: bool = False,
        random_state: Any = None,
        selection: str = "cyclic",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.l1_ratio = l1_ratio
        self.eps = eps
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.precompute = precompute
        self.max_iter = max_iter
        self.tol = tol
        self.cv = cv
        self.copy_X = copy_X
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        client: Any = None,
    ) -> Self:
        """Choose the penalty, and fit all rows with it.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`.
        groups : like `y`, optional
            For splitters that need them.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        TrainingError
            When the fit cannot go on.
        """
        self._check_params()
        with use_client(client):
            self._fit_splits(X, y, sample_weight, groups, client)
        return self

    def _fit_splits(self, X: Any, y: Any, sample_weight: Any, groups: Any, client: Any) -> None:
        weight = None if isinstance(sample_weight, Real) else sample_weight
        splits = cut_into_splits(self, X, y, weight, groups)
        with open_batched_splits(self, splits, client) as stack:
            model = model_of(stack.rows, bool(self.fit_intercept))
            solution, converged = self._chosen(stack, model)
            self._set_fitted(solution, model, stack.rows)
            self._set_n_iter(solution)
            set_history_of_splits(self, stack)
        if not (solution.converged and converged):
            warnings.warn(
                "Some fits failed to converge within max_iter cycles. Increase "
                "max_iter, scale the features (StandardScaler), or raise eps.",
                ConvergenceWarning,
                stacklevel=user_stack_level(),
            )

    def _chosen(self, stack: BatchedModels, model: LinearModel) -> tuple[Solution, bool]:
        """Choose the penalty; the fit to all rows, and whether those of the paths converged."""
        ratios = np.atleast_1d(np.asarray(self.l1_ratio, np.float64))
        grid = None
        if isinstance(self.alphas, Integral):
            grid = AlphaGrid(tuple(ratios), float(self.eps), int(self.alphas), bool(self.positive))
        given = np.ravel(np.asarray([0.0] if grid else self.alphas, np.float64))
        asked = PathSettings(
            ratios=ratios,
            grid=grid,
            given=np.sort(given)[::-1],
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            positive=bool(self.positive),
            selection=self.selection,
            random_state=self.random_state,
            seed=seed_of(self.random_state),
        )
        fits = gram_fits(model.n_features, stack.roles.n_splits)
        paths = (GramPaths if fits else WidePaths)(stack, model, asked)
        sums = stack(stack.model(model), SinglePassSolver(PathErrorSums(paths.w, TEST))).w[
            ..., 0, :
        ]
        check_weighed(dict(enumerate(sums[:, 0, 0])))
        errors = (sums[..., 1] / sums[..., 0]).reshape(len(paths.w), len(ratios), -1)
        self._choose(errors.transpose(1, 2, 0), paths.alphas, ratios, grid is not None)
        return paths.last(self.alpha_, self._ratio), paths.converged

    def _loss(self) -> Loss:
        return SquaredError()

    def _choose(
        self, errors: NDArray[np.float64], alphas: NDArray[np.float64],
        ratios: NDArray[np.float64], many: bool,
    ) -> None:  # fmt: skip
        mean = errors.mean(axis=2)
        ratio, at = np.unravel_index(int(mean.argmin()), mean.shape)
        self.mse_path_ = np.squeeze(errors)
        self.alpha_, self._ratio = float(alphas[ratio, at]), float(ratios[ratio])
        self.alphas_ = alphas if many and len(ratios) > 1 else alphas[0]
        if self._has_ratio:
            self.l1_ratio_ = self._ratio

    def _set_n_iter(self, solution: Solution) -> None:
        if "dual_gap" in solution.extra:
            gaps, n_iter = solution.extra["dual_gap"], solution.extra["n_iter"]
            self.dual_gap_, self.n_iter_ = gaps[0], n_iter[0]
        else:  # steps by gradients know of none
            self.dual_gap_, self.n_iter_ = np.nan, solution.n_iter

    def _check_params(self) -> None:
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("positive", self.positive)
        check_number("tol", self.tol)
        check_number("eps", self.eps, lambda v: v > 0, "> 0")
        check_count("max_iter", self.max_iter)
        for ratio in np.ravel(np.asarray(self.l1_ratio, dtype=object)):
            check_number("l1_ratio", ratio, lambda v: 0 <= v <= 1, "from 0 to 1")
            if ratio == 0 and isinstance(self.alphas, Integral):
                raise InvalidParameterError(
                    "Automatic alpha grid generation is not supported for l1_ratio=0. Please "
                    "supply a grid by providing your estimator with the appropriate `alphas=` "
                    "argument."
                )
        if isinstance(self.alphas, Integral):
            check_count("alphas", self.alphas)
        else:
            for i, alpha in enumerate(np.ravel(np.asarray(self.alphas, dtype=object))):
                check_number(f"alphas[{i}]", alpha)
        if self.selection not in ("cyclic", "random"):
            raise InvalidParameterError(f'selection={self.selection!r}: use "cyclic" or "random".')


class LassoCV(ElasticNetCV):
    """Lasso whose penalty is chosen by cross-validation, in two passes over the rows.

    An :class:`~daskml_dist.linear_model.ElasticNetCV` of which all is l1.

    Attributes
    ----------
    alpha_, alphas_, mse_path_, coef_, intercept_, dual_gap_, n_iter_
        As in :class:`~daskml_dist.linear_model.ElasticNetCV`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from daskml_dist.linear_model import LassoCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> LassoCV().fit(X, y).mse_path_.shape
    (100, 5)
    """

    _has_ratio = False
    l1_ratio = 1.0

    def __init__(
        self,
        *,
        eps: float = 1e-3,
        alphas: Any = 100,
        fit_intercept: bool = True,
        precompute: Any = "auto",
        max_iter: int = 1000,
        tol: float = 1e-4,
        copy_X: bool = True,
        cv: Any = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        positive: bool = False,
        random_state: Any = None,
        selection: str = "cyclic",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.eps = eps
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.precompute = precompute
        self.max_iter = max_iter
        self.tol = tol
        self.copy_X = copy_X
        self.cv = cv
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.run = run
        self.device = device
        self.callbacks = callbacks
