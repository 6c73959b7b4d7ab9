"""`PoissonRegressor`."""

from __future__ import annotations

from daskml_dist.linear_model._glm import GeneralizedLinearRegressor
from daskml_dist.losses import Poisson

__all__ = ["PoissonRegressor"]


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
