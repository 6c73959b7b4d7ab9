"""`GammaRegressor`."""

from __future__ import annotations

from daskml_dist.linear_model._glm import GeneralizedLinearRegressor
from daskml_dist.losses import Gamma

__all__ = ["GammaRegressor"]


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
