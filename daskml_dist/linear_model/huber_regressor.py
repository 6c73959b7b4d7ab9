"""`HuberRegressor`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist._checks import check_count, check_number
from daskml_dist._linear_regressor import LinearRegressor
from daskml_dist._rounds import BaseRounds
from daskml_dist._run import Run
from daskml_dist.data.collection import take_columns
from daskml_dist.data.lazy import is_dask
from daskml_dist.losses import Huber, Loss, SquaredError
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers import Solution, Solver
from daskml_dist.solvers.huber import HuberScale
from daskml_dist.training.plan import make_target_shift
from daskml_dist.training.solver_plan import Rows

__all__ = ["HuberRegressor"]


class HuberRegressor(LinearRegressor, BaseRounds):
    """Linear regression that outliers do not bend: Huber's loss, in units of a fitted scale.

    The objective is scikit-learn's: the sum over the rows of ``scale + scale * H(r / scale)`` plus
    ``alpha * |coef|^2``, with residuals r and ``H(z) = z**2`` for ``|z| <= epsilon``, a line
    beyond.

    Parameters
    ----------
    epsilon : float, default=1.35
        Residuals of more than so many scales are outliers; at least 1.
    max_iter : int, default=100
        Iterations of L-BFGS at most.
    alpha : float, default=0.0001
        Strength of the penalty; the intercept is not penalised.
    warm_start : bool, default=False
        Start from the last fit's coefficients and scale.
    fit_intercept : bool, default=True
    tol : float, default=1e-5
        Largest component of the gradient at which the solver stops.
    verbose, run, device, callbacks
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
    intercept_ : float
    scale_ : float
        What residuals are measured in.
    n_iter_ : int
        Iterations of the solver.
    outliers_ : ndarray of bool of shape (n_rows,), or None
        Rows further off than ``epsilon * scale_``. None where the rows are a Dask collection:
        ``abs(y - reg.predict(X)) > reg.epsilon * reg.scale_`` is the mask, lazily.
    n_features_in_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

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

    outliers_: NDArray[np.bool_] | None

    def __init__(
        self,
        *,
        epsilon: float = 1.35,
        max_iter: int = 100,
        alpha: float = 0.0001,
        warm_start: bool = False,
        fit_intercept: bool = True,
        tol: float = 1e-05,
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, client: Any = None) -> Self:
        X, y, sample_weight = take_columns(X, y, sample_weight)
        self._fit(X, y, sample_weight, client)
        self.outliers_ = self._outliers(X, y)
        return self

    def _set_fitted(self, solution: Solution, model: LinearModel, rows: Rows) -> None:
        super()._set_fitted(solution, model, rows)
        self.intercept_ = self.intercept_[0]
        self.scale_ = solution.extra["scale"]
        self.outliers_ = None  # `fit` tells, of rows in memory

    def _outliers(self, X: Any, y: Any) -> NDArray[np.bool_] | None:
        if is_dask(X) or is_dask(y):
            return None
        residual = np.ravel(np.asarray(y)) - self.predict(X)
        return np.asarray(np.abs(residual) > self.scale_ * self.epsilon)

    def _loss(self) -> Loss:
        return SquaredError()

    def _check_params(self) -> None:
        check_number("epsilon", self.epsilon, lambda epsilon: epsilon >= 1, ">= 1")
        check_number("alpha", self.alpha)
        check_number("tol", self.tol)
        check_count("max_iter", self.max_iter)

    def _problem(self, rows: Rows) -> tuple[LinearModel, Solver]:
        survey, fit_intercept = rows.survey, bool(self.fit_intercept)
        # Huber's loss, unlike the name of this one, begins at the median.
        shift = make_target_shift(Huber(), fit_intercept, survey)
        model = LinearModel(self._loss(), survey.n_features, 0, fit_intercept, target_shift=shift)
        warm = self._last_fit(model) is not None
        solver = HuberScale(
            float(self.epsilon),
            float(self.alpha),
            int(self.max_iter),
            float(self.tol),
            rows.weight_sum,
            float(self.scale_) if warm else 1.0,
        )
        return model, solver

    def _start(self, model: LinearModel, rows: Rows) -> NDArray[Any] | None:
        last = self._last_fit(model)
        return None if last is None else model.centred(last)
