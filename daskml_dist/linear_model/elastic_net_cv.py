"""Elastic nets and lassos whose penalty is chosen along regularisation paths of all folds.

Paths run from the largest strength to the smallest, and each fit starts from the solution of the
previous one (J. Friedman, T. Hastie and R. Tibshirani, "Regularization paths for generalized linear
models via coordinate descent", 2010, section 2.5). `_GramPaths` computes them from the Gram
matrices, without the rows; `_QuasiNewtonPaths` makes passes over the rows, if there are too many
features.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels
from daskml_dist.estimators.linear.base import LinearRegressor
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._cross_validated import (
    cut_into_splits,
    fit_by_splits,
    open_batched_splits,
    set_history_of_splits,
)
from daskml_dist.linear_model._least_squares import gram_fits, model_of, moments_of
from daskml_dist.losses.base import Loss
from daskml_dist.losses.residual import SquaredError
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
from daskml_dist.solvers import get_solver
from daskml_dist.solvers.base import Array, SinglePassSolver, Solution, Solver, Sums
from daskml_dist.solvers.batched_solver import BatchedSolver, Candidate, candidate_solution
from daskml_dist.solvers.least_squares import CoordinateDescent
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.penalty_paths import (
    AlphaGrid,
    FoldedReduction,
    PathErrorSums,
    append_intercepts,
    make_alpha_grid,
    solve_elastic_path,
)

#: Most bytes of quasi-Newton history of the candidates that are solved together (1 GiB): limits the
#: client's memory.
_MAX_HISTORY_BYTES = 1 << 30
#: Vectors of the parameters' size that a candidate holds: ten pairs of L-BFGS, and its own.
_VECTORS_PER_CANDIDATE = 24


@dataclass(frozen=True)
class _PathSettings:
    """Settings of the paths, as in :class:`ElasticNetCV`.

    Parameters
    ----------
    ratios : ndarray of shape (n_ratios,)
        Values of `l1_ratio`.
    grid : AlphaGrid or None
        Rule by which alphas follow from the data; None: the user gave them.
    user_alphas : ndarray of shape (n_alphas,)
        The alphas that the user gave, in decreasing order.
    max_iter : int
    tol : float
    positive : bool
    selection : {"cyclic", "random"}
    random_state : int, RandomState or None
    seed : int
        Seed of the refit on all rows.
    """

    ratios: NDArray[np.float64]
    grid: AlphaGrid | None
    user_alphas: NDArray[np.float64]
    max_iter: int
    tol: float
    positive: bool
    selection: str
    random_state: Any
    seed: int


class _ElasticPaths(ABC):
    """Elastic nets for each alpha, `l1_ratio` and training set of a split.

    Attributes
    ----------
    alphas : ndarray of shape (n_ratios, n_alphas)
        In decreasing order.
    w : ndarray of shape (n_splits, n_ratios * n_alphas, n_parameters, 1)
        Coefficients, and the intercept as the last row if one is fitted.
    converged : bool
        Whether all fits of the paths converged.
    """

    alphas: NDArray[np.float64]
    w: NDArray[np.float64]
    converged: bool

    @abstractmethod
    def refit(self, alpha: float, ratio: float) -> Solution:
        """Return the fit to all rows with the chosen penalty."""


class _GramPaths(_ElasticPaths):
    """Paths by coordinate descent on the Gram matrix of each split's training rows.

    Parameters
    ----------
    batch : BatchedModels
    model : LinearModel
    settings : _PathSettings
    """

    def __init__(self, batch: BatchedModels, model: LinearModel, settings: _PathSettings) -> None:
        self._model, self._settings, self._moments = model, settings, moments_of(batch.rows)
        # 1. One pass gives the moments of all training sets. If these are not exact enough for the
        # smallest alpha (or for the grid's), further passes refine them.
        smallest_alpha_or_grid = settings.grid or float(settings.user_alphas[-1])
        reduction = FoldedReduction(l2=smallest_alpha_or_grid, of_mean=True, **self._moments)
        solution = batch(batch.make_model(model), reduction)
        # The last problem and the last number of rows are those of all rows.
        *split_problems, self._full_problem = solution.extra["reduced"]
        n_rows = solution.extra["n_rows"]
        self._n_rows = n_rows[-1]
        # 2. The grid is computed from all rows, so that all splits have the same alphas.
        if settings.grid is None:
            self.alphas = np.tile(settings.user_alphas, (len(settings.ratios), 1))
        else:
            self.alphas = make_alpha_grid(settings.grid, self._full_problem, self._n_rows)
        path = partial(
            solve_elastic_path, max_iter=settings.max_iter, tol=settings.tol,
            positive=settings.positive, selection=settings.selection,
            random_state=settings.random_state,
        )  # fmt: skip
        # 3. Compute the paths of each split; the last number of rows is not used.
        w, self.converged = [], True
        for problem, n in zip(split_problems, n_rows, strict=False):
            paths = [
                path(problem, n, alphas, ratio)
                for alphas, ratio in zip(self.alphas, settings.ratios, strict=True)
            ]
            self.converged &= all(converged for _, converged in paths)
            coefs = np.concatenate([coefs for coefs, _ in paths])[:, :, None]
            w.append(append_intercepts(problem, coefs) if model.fit_intercept else coefs)
        self.w = np.array(w)

    def refit(self, alpha: float, ratio: float) -> Solution:
        """Return the fit to all rows from their Gram matrix, without a pass over the rows."""
        solver = CoordinateDescent(
            alpha=alpha,
            l1_ratio=ratio,
            n_rows=self._n_rows,
            max_iter=self._settings.max_iter,
            tol=self._settings.tol,
            positive=self._settings.positive,
            selection=self._settings.selection,
            seed=self._settings.seed,
            **self._moments,
        )
        return solver.of_reduced(self._model, self._full_problem, self._n_rows)


class _QuasiNewtonPaths(_ElasticPaths):
    """Paths by orthant-wise quasi-Newton steps (OWL-QN), for many features.

    Candidates (an alpha on a split) are solved together, in chunks of consecutive alphas whose
    history of steps fits in memory. All alphas of a chunk start from the solution of the last alpha
    of the previous chunk. OWL-QN is by G. Andrew and J. Gao, "Scalable training of L1-regularized
    log-linear models", 2007.

    Parameters
    ----------
    batch : BatchedModels
    model : LinearModel
    settings : _PathSettings

    Raises
    ------
    InvalidParameterError
        If ``positive=True``.
    """

    def __init__(self, batch: BatchedModels, model: LinearModel, settings: _PathSettings) -> None:
        if settings.positive:
            raise InvalidParameterError(
                f"positive=True needs the Gram matrix of {model.n_features} features, for which "
                "there is not enough memory. Leave positive=False, or select features first."
            )
        self._batch, self._model, self._settings = batch, model, settings
        self._n_rows = batch.sum_weights(model)
        # The index after those of the splits means all rows.
        self._all_rows = len(self._n_rows) - 1
        # At zero the gradient is -X'y: all coefficients are zero for the alphas above its largest
        # entry over n * l1_ratio, where the grid begins.
        candidate = self._make_candidate(self._all_rows, _GradientAtZero())
        at_zero = batch(batch.make_model(model), BatchedSolver((candidate,)))
        gradient = at_zero.w[0, : model.n_features]
        if settings.grid is None:
            self.alphas = np.tile(settings.user_alphas, (len(settings.ratios), 1))
        else:
            self.alphas = settings.grid.make_strengths(-gradient, self._n_rows[-1])
        # Relative to the largest gradient, so that `tol` does not depend on the target's units.
        self._tol = settings.tol * float(np.abs(gradient).max() / self._n_rows[-1])
        paths = [
            self._solve_path(alphas, ratio)
            for alphas, ratio in zip(self.alphas, settings.ratios, strict=True)
        ]
        self.converged = all(converged for _, converged in paths)
        self.w = np.concatenate([w for w, _ in paths], axis=1)

    def refit(self, alpha: float, ratio: float) -> Solution:
        """Return the fit to all rows, by passes over them."""
        candidate = self._make_candidate(self._all_rows, self._make_solver(alpha, ratio))
        return candidate_solution(self._solve_together([candidate]), 0)

    def _solve_path(self, alphas: Array, ratio: float) -> tuple[Array, bool]:
        """Return the parameters for each split and alpha, and whether all fits converged."""
        n_splits = len(self._n_rows) - 1
        history_bytes = 8 * _VECTORS_PER_CANDIDATE * self._model.n_features * n_splits
        chunk_size = max(1, _MAX_HISTORY_BYTES // max(history_bytes, 1))
        starts: list[Array | None] = [None] * n_splits
        w, converged = [], True
        for first in range(0, len(alphas), chunk_size):
            chunk = alphas[first : first + chunk_size]
            candidates = [
                self._make_candidate(split, self._make_solver(alpha, ratio), starts[split])
                for split in range(n_splits)
                for alpha in chunk
            ]
            solution = self._solve_together(candidates)
            converged &= all(outcome[1] for outcome in solution.extra["candidates"])
            w.append(solution.w.reshape(n_splits, len(chunk), *solution.w.shape[1:]))
            # Warm start: the next chunk begins at this chunk's last (smallest) alpha.
            starts = list(w[-1][:, -1])
        return np.concatenate(w, axis=1), converged

    def _solve_together(self, candidates: list[Candidate]) -> Solution:
        """Return the solution of several candidates, which share each pass over the rows."""
        return self._batch(self._batch.make_model(self._model), BatchedSolver(tuple(candidates)))

    def _make_solver(self, alpha: float, ratio: float) -> Solver:
        """Return the L-BFGS solver (OWL-QN with the l1 penalty) of one alpha."""
        penalty = get_penalty("elasticnet", float(alpha), float(ratio))
        return get_solver("lbfgs")(penalty, self._settings.max_iter, self._tol)

    def _make_candidate(self, split: int, solver: Solver, start: Array | None = None) -> Candidate:
        """Return the fit of a solver to the training rows of a split."""
        return Candidate(split, solver, float(self._n_rows[split]), start)


@dataclass(frozen=True)
class _GradientAtZero(Solver):
    """Solver whose "solution" is the gradient of the summed losses at zero parameters."""

    name = "at_zero"
    #: One pass gives the gradient.
    max_passes = 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the gradient in place of the parameters."""
        loss_and_gradient = sums(LossGradient(np.zeros(model.shape)))
        return Solution(np.array(loss_and_gradient[1:]).reshape(model.shape), 1)


class ElasticNetCV(LinearRegressor):
    """Elastic net whose penalty is chosen by cross-validation, in two passes over the rows.

    The first pass sums the moments of each fold, from which all paths and the last fit follow by
    coordinate descent; the second sums the errors of all fits on the rows that they were not
    trained on. Where memory is too small for the Gram matrices, fits for many strengths and all
    splits are made together by orthant-wise quasi-Newton steps, which share passes over the rows.

    Parameters
    ----------
    l1_ratio : float or list of float, default=0.5
        Shares of l1 to try.
    eps : float, default=1e-3
        Smallest strength of an automatic path, as a share of the largest.
    alphas : int or array-like of shape (n_alphas,), default=100
        Strengths to try. An int: this many, decreasing from the smallest one for which all
        coefficients are zero.
    fit_intercept : bool, default=True
    precompute, copy_X, n_jobs
        Without effect: the Gram matrix is used if it fits in memory, rows are never changed, and
        all folds are fitted at once.
    max_iter : int, default=1000
        Most cycles over the features (or quasi-Newton iterations) for each strength.
    tol : float, default=1e-4
        As in :class:`~daskml_dist.linear_model.ElasticNet`.
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: 5 folds.
    positive, random_state, selection
        As in :class:`~daskml_dist.linear_model.ElasticNet`.

    Attributes
    ----------
    alpha_, l1_ratio_ : float
        Penalty of the smallest mean squared error, averaged over the folds.
    alphas_ : ndarray of shape (n_alphas,) or (n_l1_ratios, n_alphas)
    mse_path_ : ndarray of shape (n_alphas, n_folds) or (n_l1_ratios, n_alphas, n_folds)
        Mean squared errors of the test rows, weighted if rows are.
    coef_, intercept_, dual_gap_, n_iter_
        As in :class:`~daskml_dist.linear_model.ElasticNet`, for the fit to all rows. The gap is NaN
        if the features are too many for a Gram matrix.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from daskml_dist.linear_model import ElasticNetCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ElasticNetCV(l1_ratio=[0.5, 0.9], cv=3).fit(X, y)
    >>> model.l1_ratio_, model.alphas_.shape
    (0.9, (2, 100))
    """

    #: Whether `l1_ratio` is a parameter, not fixed by the class.
    _has_ratio: ClassVar[bool] = True
    _flat_coef = True
    l1_ratio: Any

    _run_used = BaseRounds._run_used

    def __init__(
        self,
        *,
        # The candidates.
        l1_ratio: Any = 0.5,
        eps: float = 1e-3,
        alphas: Any = 100,
        # Each fit of a path, and the splits.
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
        # Beyond scikit-learn: where the fit runs, and its reports.
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

    fit = fit_by_splits

    def _fit_splits(self, X: Any, y: Any, sample_weight: Any, groups: Any, client: Any) -> None:
        """Choose the penalty on the splits of `cv`, and set the fitted attributes."""
        # One weight for all rows has no effect, as the objective is a mean: it is left out.
        weight = None if isinstance(sample_weight, Real) else sample_weight
        splits = cut_into_splits(self, X, y, weight, groups)
        with open_batched_splits(self, splits, client) as batch:
            model = model_of(batch.rows, bool(self.fit_intercept))
            solution, converged = self._choose_and_refit(batch, model)
            self._set_fitted(solution, model, batch.rows)
            self.intercept_ = self.intercept_[0]  # a number, as in scikit-learn
            self._set_n_iter(solution)
            set_history_of_splits(self, batch)
        if not (solution.converged and converged):
            warnings.warn(
                "Some fits failed to converge within max_iter cycles. Increase "
                "max_iter, scale the features (StandardScaler), or raise eps.",
                ConvergenceWarning,
                stacklevel=user_stack_level(),
            )

    def _choose_and_refit(self, batch: BatchedModels, model: LinearModel) -> tuple[Solution, bool]:
        """Choose the penalty; return the fit to all rows, and whether the paths converged."""
        ratios = np.atleast_1d(np.asarray(self.l1_ratio, np.float64))
        grid = None
        if isinstance(self.alphas, Integral):
            grid = AlphaGrid(tuple(ratios), float(self.eps), int(self.alphas), bool(self.positive))
        # Decreasing, as warm starts need: from few coefficients to many.
        alphas = np.ravel(np.asarray([0.0] if grid else self.alphas, np.float64))
        settings = _PathSettings(
            ratios=ratios,
            grid=grid,
            user_alphas=np.sort(alphas)[::-1],
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            positive=bool(self.positive),
            selection=self.selection,
            random_state=self.random_state,
            seed=seed_of(self.random_state),
        )
        has_memory = gram_fits(model.n_features, batch.roles.n_splits)
        paths = (_GramPaths if has_memory else _QuasiNewtonPaths)(batch, model, settings)
        # Weights and weighted squared errors of the test rows, for each split and candidate.
        statistic = PathErrorSums(paths.w, TEST)
        sums = batch(batch.make_model(model), SinglePassSolver(statistic)).w[..., 0, :]
        check_weighed(dict(enumerate(sums[:, 0, 0])))
        errors = (sums[..., 1] / sums[..., 0]).reshape(len(paths.w), len(ratios), -1)
        # Choose by the mean over the splits; the path is (n_ratios, n_alphas, n_splits).
        path = errors.transpose(1, 2, 0)
        mean = path.mean(axis=2)
        best_ratio, best_alpha = np.unravel_index(int(mean.argmin()), mean.shape)
        self.mse_path_ = np.squeeze(path)
        self.alpha_, ratio = float(paths.alphas[best_ratio, best_alpha]), float(ratios[best_ratio])
        # The alphas of a grid differ between ratios; those that the user gave do not.
        self.alphas_ = paths.alphas if grid is not None and len(ratios) > 1 else paths.alphas[0]
        if self._has_ratio:
            self.l1_ratio_ = ratio
        return paths.refit(self.alpha_, ratio), paths.converged

    def _loss(self) -> Loss:
        return SquaredError()

    def _set_n_iter(self, solution: Solution) -> None:
        """Set `dual_gap_` and `n_iter_` of the fit to all rows."""
        if "dual_gap" in solution.extra:
            gaps, n_iter = solution.extra["dual_gap"], solution.extra["n_iter"]
            self.dual_gap_, self.n_iter_ = gaps[0], n_iter[0]
        else:  # quasi-Newton steps compute no duality gap
            self.dual_gap_, self.n_iter_ = np.nan, solution.n_iter

    def _check_params(self) -> None:
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("positive", self.positive)
        check_number("tol", self.tol)
        check_number("eps", self.eps, lambda v: v > 0, "> 0")
        check_count("max_iter", self.max_iter)
        for ratio in np.ravel(np.asarray(self.l1_ratio, dtype=object)):
            check_number("l1_ratio", ratio, lambda v: 0 <= v <= 1, "from 0 to 1")
            # Without l1 no alpha makes all coefficients zero: a grid has no start.
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

    An :class:`~daskml_dist.linear_model.ElasticNetCV` with ``l1_ratio=1``.

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
    # A class attribute instead of a parameter, which the inherited methods read.
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
        # Beyond scikit-learn, as in `ElasticNetCV`.
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
