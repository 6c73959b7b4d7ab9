"""`LinearSVR`."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.linear.base import LinearRegressor
from daskml_dist.losses import EpsilonInsensitive, Loss, SquaredEpsilonInsensitive
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers import PenalisedSolver, Solver, get_solver
from daskml_dist.solvers.lock_step import combine_target_problems
from daskml_dist.solvers.newton import TubeNewton
from daskml_dist.svm._liblinear import BaseLinearSVM
from daskml_dist.training.dataset_info import DataSummary
from daskml_dist.training.plan import DatasetInfo

__all__ = ["LinearSVR"]

_LOSSES: dict[Any, type[EpsilonInsensitive]] = {
    "epsilon_insensitive": EpsilonInsensitive,
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
}


class LinearSVR(LinearRegressor, BaseLinearSVM):
    """Linear support vector regression, to the optimum.

    The objective is liblinear's: ``C * sum(max(0, |raw - y| - epsilon))``, or of its square, plus
    half the squared norm of the coefficients *and* of ``intercept / intercept_scaling``. The
    squared loss is solved by L-BFGS. The other one has kinks: it is solved by Newton steps on
    rounded losses, to about 1e-5 of the targets' standard deviation, and for up to 16,384
    features; for more, take the squared loss or
    :class:`~daskml_dist.linear_model.SGDRegressor`.

    Parameters
    ----------
    epsilon : float, default=0.0
        Residuals up to this cost nothing; in the unit of the target.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}, default="epsilon_insensitive"

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), or (n_targets, n_features) for several targets
        Each target is fitted as if it were alone.
    intercept_ : ndarray of shape (1,) or (n_targets,)

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.svm import LinearSVR
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> LinearSVR(C=100).fit(X, 2 * X[:, 0] + 1).coef_.round(2)
    array([2.])
    """

    _multi_output = True

    def __init__(
        self,
        *,
        epsilon: float = 0.0,
        tol: float = 1e-4,
        C: float = 1.0,
        loss: str = "epsilon_insensitive",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        dual: bool | str = "auto",
        verbose: int = 0,
        random_state: Any = None,
        max_iter: int = 1000,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.tol = tol
        self.C = C
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.dual = dual
        self.verbose = verbose
        self.random_state = random_state
        self.max_iter = max_iter
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _loss(self) -> Loss:
        return _LOSSES[self.loss](float(self.epsilon))

    def _check_params(self) -> None:
        self._check_liblinear()
        if self.loss not in _LOSSES:
            raise InvalidParameterError(f"loss={self.loss!r}: use one of {list(_LOSSES)}.")
        check_number("epsilon", self.epsilon)

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        survey = rows.survey
        problems = [self._problem_of(rows, of_one) for of_one in survey.of_each_target]
        return combine_target_problems(problems, survey.n_targets)

    def _problem_of(
        self, rows: DatasetInfo, survey: DataSummary
    ) -> tuple[LinearModel, PenalisedSolver]:
        penalty = self._strengths(rows, "l2")
        model = LinearModel(self._loss(), survey.n_features, 0, bool(self.fit_intercept))
        limits = int(self.max_iter), float(self.tol)
        if self.loss == "epsilon_insensitive":
            return model, TubeNewton(penalty, *limits, float(self.epsilon), survey.target_spread)
        return model, get_solver("lbfgs")(penalty, *limits)
