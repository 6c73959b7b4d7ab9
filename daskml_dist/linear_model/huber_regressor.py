"""Huber regression, with the scale of the residuals as a parameter of the fit."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import take_named_columns
from daskml_dist.data.lazy import is_dask
from daskml_dist.estimators.linear.base import LinearRegressor
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.losses.base import Loss
from daskml_dist.losses.residual import Huber, SquaredError
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_count, check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.lbfgs import HuberScale
from daskml_dist.solvers.lock_step import combine_target_problems
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary
from daskml_dist.training.plan import make_target_shift


class HuberRegressor(LinearRegressor, BaseRounds):
    """Linear regression that is robust to outliers: Huber's loss with a fitted scale.

    The objective is scikit-learn's: the sum over the rows of ``scale + scale * H(r / scale)`` plus
    ``alpha * |coef|^2``, with residuals r and ``H(z) = z**2`` for ``|z| <= epsilon``, a line
    beyond.

    Parameters
    ----------
    epsilon : float, default=1.35
        Residuals of more than `epsilon` scales are outliers; at least 1.
    max_iter : int, default=100
        Iterations of L-BFGS at most.
    alpha : float, default=0.0001
        Strength of the penalty; the intercept is not penalised.
    warm_start : bool, default=False
        Start from the last fit's coefficients and scale.
    fit_intercept : bool, default=True
    tol : float, default=1e-5
        Largest component of the gradient at which the solver stops.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), or (n_targets, n_features) for several targets
        Each target is fitted separately.
    intercept_ : float or ndarray of shape (n_targets,)
    scale_ : float or ndarray of shape (n_targets,)
        Scale of the residuals, by which Huber's loss divides them.
    n_iter_ : int
        Iterations of the solver.
    outliers_ : ndarray of bool of shape (n_rows,) or (n_rows, n_targets), or None
        Rows with a residual beyond ``epsilon * scale_``. None if the rows are a Dask collection:
        ``abs(y - reg.predict(X)) > reg.epsilon * reg.scale_`` is the mask, lazily.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.linear_model import HuberRegressor
    >>> X = np.arange(20.0)[:, None]
    >>> y = 3 * X[:, 0] + 1
    >>> y[4] = 500
    >>> reg = HuberRegressor().fit(X, y)
    >>> reg.coef_.round(2), reg.outliers_.nonzero()[0]
    (array([3.]), array([4]))
    """

    _multi_output = True

    outliers_: NDArray[np.bool_] | None

    def __init__(
        self,
        *,
        # The objective and its minimisation, in scikit-learn's order.
        epsilon: float = 1.35,
        max_iter: int = 100,
        alpha: float = 0.0001,
        warm_start: bool = False,
        fit_intercept: bool = True,
        tol: float = 1e-05,
        # Reports of the fit, and where it runs.
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.max_iter = max_iter
        self.alpha = alpha
        self.warm_start = warm_start
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, client: Any = None) -> Self:
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        self._fit(X, y, sample_weight, client)
        # Only for rows in memory: for a Dask collection the mask of all rows would be as large as
        # y.
        if not (is_dask(X) or is_dask(y)):
            predicted = self.predict(X)
            residual = np.reshape(np.asarray(y), predicted.shape) - predicted
            self.outliers_ = np.asarray(np.abs(residual) > self.scale_ * self.epsilon)
        return self

    def _set_fitted(self, solution: Solution, model: LinearModel, rows: DatasetInfo) -> None:
        super()._set_fitted(solution, model, rows)
        # One target: numbers instead of arrays, as in scikit-learn.
        if model.n_targets is None:
            self.intercept_, self.scale_ = self.intercept_[0], solution.extra["scale"]
        else:
            self.scale_ = np.array([extra["scale"] for extra in solution.extra["targets"]])
        self.outliers_ = None  # set by `fit` for rows in memory

    def _loss(self) -> Loss:
        return SquaredError()

    def _check_params(self) -> None:
        check_number("epsilon", self.epsilon, lambda epsilon: epsilon >= 1, ">= 1")
        check_number("alpha", self.alpha)
        check_number("tol", self.tol)
        check_count("max_iter", self.max_iter)

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        summary = rows.summary
        shape = summary.n_features + bool(self.fit_intercept), summary.n_targets or 1
        # A warm start also uses the last scales, if the last coefficients have the right shape.
        goes_on = (
            self.warm_start and hasattr(self, "coef_") and self._join_coefficients().shape == shape
        )
        scales = np.atleast_1d(self.scale_) if goes_on else np.ones(shape[1])
        targets = zip(summary.of_each_target, scales, strict=True)
        problems = [self._problem_of_target(rows, target, scale) for target, scale in targets]
        return combine_target_problems(problems, summary.n_targets)

    def _problem_of_target(
        self, rows: DatasetInfo, summary: DataSummary, scale: float
    ) -> tuple[LinearModel, Solver]:
        """Return the model and the solver of one target, which start from a scale."""
        fit_intercept = bool(self.fit_intercept)
        # Targets are shifted by their median, which suits Huber's loss. The solver evaluates the
        # joint objective of coefficients and scale itself; the model's squared error is not used.
        shift = make_target_shift(Huber(), fit_intercept, summary)
        model = LinearModel(self._loss(), summary.n_features, 0, fit_intercept, target_shift=shift)
        solver = HuberScale(
            float(self.epsilon),
            float(self.alpha),
            int(self.max_iter),
            float(self.tol),
            rows.weight_sum,
            float(scale),
        )
        return model, solver

    def _starting_parameters(self, model: LinearModel, rows: DatasetInfo) -> NDArray[Any] | None:
        last = self._find_warm_start(model)
        return None if last is None else model.centred(last)
