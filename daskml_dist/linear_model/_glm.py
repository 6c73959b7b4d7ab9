"""Generalised linear regressors: Poisson, gamma and Tweedie.

The objective is half the mean unit deviance of the distribution, which equals minus its log
likelihood up to a factor and to terms that depend only on the target, plus an l2 penalty (P.
McCullagh and J. A. Nelder, "Generalized linear models", 1989). L-BFGS and Newton steps need its
gradient and Hessian, which are sums over rows.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.total_deviance import TotalDeviance
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.linear.base import LinearRegressor
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._summary import summarize_fit
from daskml_dist.losses.base import Loss
from daskml_dist.losses.deviance import Gamma, Poisson, Tweedie
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_count, check_number, check_some_weight
from daskml_dist.parameters.run import Run
from daskml_dist.penalties import Penalty
from daskml_dist.solvers import get_solver
from daskml_dist.solvers.base import PenalisedSolver, Solution
from daskml_dist.training.dataset_info import DatasetInfo

#: Links that a user may choose.
_LINKS = ("auto", "identity", "log")


class GeneralizedLinearRegressor(LinearRegressor, BaseRounds):
    """Base class that minimises half the mean deviance plus ``alpha / 2 * |coef|^2``.

    A subclass gives the distribution and the link by :meth:`_deviance`.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty ``alpha / 2 * |coef|^2``, in addition to half the mean deviance. The
        intercept is not penalised.
    fit_intercept : bool, default=True
    solver : {"lbfgs", "newton-cholesky"}, default="lbfgs"
        ``"newton-cholesky"`` needs few passes and suits many rows and few features: its sums grow
        with the square of the number of features.
    max_iter : int, default=100
        Iterations of the solver at most.
    tol : float, default=1e-4
        Largest component of the gradient at which the solver stops.
    warm_start : bool, default=False
        Start from the last fit's coefficients.
    """

    #: Names of the solvers that a user may choose.
    _solvers: ClassVar[tuple[str, ...]] = ("lbfgs", "newton-cholesky")
    summary = summarize_fit

    def __init__(
        self,
        *,
        # The objective.
        alpha: float = 1.0,
        fit_intercept: bool = True,
        # Its minimisation.
        solver: str = "lbfgs",
        max_iter: int = 100,
        tol: float = 1e-4,
        warm_start: bool = False,
        # Reports of the fit, and where it runs.
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        # scikit-learn's checks draw negative targets unless a tag declares that they are refused.
        tags = super().__sklearn_tags__()
        try:
            self._deviance().check_target(np.array([-1.0]))
        except InvalidDataError:
            tags.target_tags.positive_only = True
        except InvalidParameterError:
            pass  # tags of an estimator with invalid parameters: `fit` raises
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return D^2, the share of the deviance that the model explains, in one pass.

        Rows, targets and weights are as in :meth:`fit`. 1 is best; NaN if y is constant.
        """
        statistic = partial(_sum_deviances, self._loss_of_fit or self._deviance())
        sums: _BlockDeviances = self._sum_over_blocks(statistic, X, y, sample_weight)
        check_some_weight(sums.total.targets.weight)
        total = sums.total.deviance
        return 1 - sums.residual / total if total > 0 else float("nan")

    @abstractmethod
    def _deviance(self) -> Any:
        """Return the loss, which has a link and computes the half deviance."""

    def _loss(self) -> Loss:
        loss: Loss = self._deviance()
        return loss

    def _set_fitted(self, solution: Solution, model: LinearModel, rows: DatasetInfo) -> None:
        super()._set_fitted(solution, model, rows)
        self.intercept_ = self.intercept_[0]  # a number, as in scikit-learn

    def _check_params(self) -> None:
        check_number("alpha", self.alpha)
        check_number("tol", self.tol, lambda tol: tol > 0, "> 0")
        check_count("max_iter", self.max_iter)
        get_solver(self.solver)
        if self.solver not in self._solvers:
            raise InvalidParameterError(
                f"solver={self.solver!r}: {type(self).__name__} has {list(self._solvers)}."
            )
        # Called only for its checks: those of Tweedie's power and link.
        self._deviance()

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, PenalisedSolver]:
        summary, loss = rows.summary, self._loss()
        # The range of each block's targets shows whether one is outside of the distribution.
        loss.check_target(summary.target_range)
        model = LinearModel(loss, summary.n_features, 0, bool(self.fit_intercept))
        penalty = Penalty(0.0, float(self.alpha))
        return model, get_solver(self.solver)(penalty, int(self.max_iter), float(self.tol))

    def _starting_parameters(self, model: LinearModel, rows: DatasetInfo) -> NDArray[Any] | None:
        """Return the last fit's parameters, or zeros with the intercept of the mean target."""
        last = self._find_warm_start(model)
        if last is not None or not self.fit_intercept:
            return last
        # The optimum for coefficients of zero: from an intercept of 0, a model with a log link
        # would first need many steps to reach the scale of the targets.
        w = np.zeros(model.shape)
        w[-1] = self._loss().constant(float(rows.summary.target_mean))
        return w


@dataclass(frozen=True)
class _BlockDeviances:
    """Deviances of some rows, from which D^2 is computed; those of parts add up.

    Parameters
    ----------
    total : TotalDeviance
        Of the targets from their own mean.
    residual : float
        Weighted sum of the deviances from the predictions.
    """

    total: TotalDeviance
    residual: float

    def __add__(self, other: _BlockDeviances) -> _BlockDeviances:
        return _BlockDeviances(self.total + other.total, self.residual + other.residual)


def _sum_deviances(
    loss: Tweedie, y: NDArray[Any], raw: NDArray[Any], weight: NDArray[np.float64]
) -> _BlockDeviances:
    """Return the deviances of a block, given its targets, raw predictions and weights."""
    loss.check_target(y)
    residuals = 2 * loss.half_deviance(y, loss.inverse_link(raw.astype(np.float64)))
    total = TotalDeviance.from_values(y, weight, loss.power)
    return _BlockDeviances(total, float(weight @ residuals))


class PoissonRegressor(GeneralizedLinearRegressor):
    """Poisson regression of counts and rates (y >= 0), to the optimum.

    The prediction is ``exp(X @ coef_ + intercept_)``. The objective is scikit-learn's.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
    intercept_ : float
    n_iter_ : int
        Iterations of the solver.

    Examples
    --------
    >>> from daskml_dist.linear_model import PoissonRegressor
    >>> reg = PoissonRegressor().fit([[1, 2], [2, 3], [3, 4], [4, 3]], [12, 17, 22, 21])
    >>> round(reg.score([[1, 2], [2, 3], [3, 4], [4, 3]], [12, 17, 22, 21]), 2)
    0.99
    """

    def _deviance(self) -> Poisson:
        return Poisson()


class GammaRegressor(GeneralizedLinearRegressor):
    """Gamma regression of positive, skewed targets (y > 0), to the optimum.

    The prediction is ``exp(X @ coef_ + intercept_)``. The objective is scikit-learn's.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.PoissonRegressor`.

    Examples
    --------
    >>> from daskml_dist.linear_model import GammaRegressor
    >>> reg = GammaRegressor().fit([[1, 2], [2, 3], [3, 4], [4, 3]], [19, 26, 33, 30])
    >>> round(reg.score([[1, 2], [2, 3], [3, 4], [4, 3]], [19, 26, 33, 30]), 2)
    0.77
    """

    def _deviance(self) -> Gamma:
        return Gamma()


class TweedieRegressor(GeneralizedLinearRegressor):
    """Regression with a distribution of the Tweedie family, to the optimum.

    The objective is scikit-learn's.

    Parameters
    ----------
    power : float, default=0.0
        The variance of a target is its mean to this power: 0 normal, 1 Poisson, between 1 and 2
        compound Poisson-gamma (y >= 0, with exact zeros), 2 gamma, 3 inverse Gaussian (y > 0). No
        distribution exists between 0 and 1, and a number there is refused.
    link : {"auto", "identity", "log"}, default="auto"
        What the linear model predicts: the mean itself or its logarithm. ``"auto"`` is
        ``"identity"`` for ``power <= 0``, else ``"log"``.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.PoissonRegressor`.

    Examples
    --------
    >>> from daskml_dist.linear_model import TweedieRegressor
    >>> reg = TweedieRegressor().fit([[1, 2], [2, 3], [3, 4], [4, 3]], [2, 3.5, 5, 5.5])
    >>> round(reg.score([[1, 2], [2, 3], [3, 4], [4, 3]], [2, 3.5, 5, 5.5]), 2)
    0.84
    """

    def __init__(
        self,
        *,
        power: float = 0.0,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        link: str = "auto",
        solver: str = "lbfgs",
        max_iter: int = 100,
        tol: float = 1e-4,
        warm_start: bool = False,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        super().__init__(
            alpha=alpha,
            fit_intercept=fit_intercept,
            solver=solver,
            max_iter=max_iter,
            tol=tol,
            warm_start=warm_start,
            verbose=verbose,
            run=run,
            device=device,
            callbacks=callbacks,
        )
        self.power = power
        self.link = link

    def _deviance(self) -> Tweedie:
        if self.link not in _LINKS:
            raise InvalidParameterError(f"link={self.link!r}: use one of {list(_LINKS)}.")
        if not isinstance(self.power, Real):
            raise InvalidParameterError(f"power={self.power!r}: use a number <= 0 or >= 1.")
        power = float(self.power)  # `Tweedie` refuses numbers between 0 and 1
        return Tweedie(power, power <= 0 if self.link == "auto" else self.link == "identity")
