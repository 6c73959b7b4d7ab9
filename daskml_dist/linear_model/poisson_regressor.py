"""`PoissonRegressor`."""

from __future__ import annotations

from daskml_dist.linear_model._glm import GeneralizedLinearRegressor
from daskml_dist.losses import Poisson

__all__ = ["PoissonRegressor"]


class PoissonRegressor(GeneralizedLinearRegressor):
    """Poisson regression of counts and rates (y >= 0), to the optimum.

    The prediction is ``exp(X @ coef_ + intercept_)``. The objective is scikit-learn's.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty ``alpha / 2 * |coef|^2``, beside half the mean deviance. The
        intercept is not penalised.
    fit_intercept : bool, default=True
    solver : {"lbfgs", "newton-cholesky"}, default="lbfgs"
        ``"newton-cholesky"`` takes few passes and suits many rows and few features: its sums
        have the square of their number.
    max_iter : int, default=100
        Iterations of the solver at most.
    tol : float, default=1e-4
        Largest component of the gradient at which the solver stops.
    warm_start : bool, default=False
        Start from the last fit's coefficients.
    verbose, run, device, callbacks
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
    intercept_ : float
    n_iter_ : int
        Iterations of the solver.
    n_features_in_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Examples
    --------
    >>> from daskml_dist.linear_model import PoissonRegressor
    >>> reg = PoissonRegressor().fit([[1, 2], [2, 3], [3, 4], [4, 3]], [12, 17, 22, 21])
    >>> round(reg.score([[1, 2], [2, 3], [3, 4], [4, 3]], [12, 17, 22, 21]), 2)
    0.99
    """

    def _deviance(self) -> Poisson:
        return Poisson()
