"""Regressor of what several others predict."""

from __future__ import annotations

from typing import Any

from sklearn import ensemble

from daskml_dist.ensemble._stacking import Stacking
from daskml_dist.linear_model import RidgeCV

__all__ = ["StackingRegressor"]


class StackingRegressor(Stacking, ensemble.StackingRegressor):
    """Regressor fitted to what several predict for rows that they have not seen.

    Rows in memory are scikit-learn's affair; Dask collections as in :class:`StackingClassifier`.

    Parameters
    ----------
    estimators, final_estimator, cv, passthrough
        scikit-learn's. On a Dask collection the last estimator is this package's `RidgeCV` by
        default. `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimators_, named_estimators_, final_estimator_, stack_method_, n_features_in_, \
feature_names_in_
        scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import StackingRegressor
    >>> from daskml_dist.linear_model import LinearRegression, Ridge
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = X @ np.array([1.0, 2.0])
    >>> model = StackingRegressor([('ridge', Ridge()), ('squares', LinearRegression())]).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    stack_method = "predict"

    def _default(self) -> Any:
        return RidgeCV()
