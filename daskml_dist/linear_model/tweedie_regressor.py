"""`TweedieRegressor`."""

from __future__ import annotations

from numbers import Real
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model._glm import GeneralizedLinearRegressor
from daskml_dist.losses import Tweedie
from daskml_dist.parameters.run import Run

__all__ = ["TweedieRegressor"]

_LINKS = ("auto", "identity", "log")


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
        power = float(self.power)
        return Tweedie(power, power <= 0 if self.link == "auto" else self.link == "identity")
