"""`ElasticNetCV`."""

from __future__ import annotations

import warnings
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
from daskml_dist.linear_model._elastic_paths import GramPaths, PathSettings, WidePaths
from daskml_dist.linear_model._least_squares import gram_fits, model_of
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
from daskml_dist.solvers import Solution
from daskml_dist.solvers.base import SinglePassSolver
from daskml_dist.solvers.penalty_paths import AlphaGrid, PathErrorSums

__all__ = ["ElasticNetCV"]


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
