"""Regressor of members that each draw rows of their own."""

from __future__ import annotations

from typing import Any

from sklearn import ensemble

from daskml_dist.ensemble._bagging import Bagging
from daskml_dist.tree import DecisionTreeRegressor

__all__ = ["BaggingRegressor"]


class BaggingRegressor(Bagging, ensemble.BaggingRegressor):
    """Regressor by the mean of what members predict that each draw rows and columns.

    Rows in memory are scikit-learn's affair; Dask collections as in :class:`BaggingClassifier`.

    Parameters
    ----------
    estimator, n_estimators, max_samples, max_features, bootstrap, bootstrap_features, oob_score, \
warm_start, random_state
        As in :class:`BaggingClassifier`; `estimator` is this package's `DecisionTreeRegressor` by
        default.

    Attributes
    ----------
    estimator_, estimators_, estimators_features_, estimators_samples_, n_features_in_, \
feature_names_in_, oob_score_, oob_prediction_
        scikit-learn's; lazy ones as in :class:`BaggingClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import BaggingRegressor
    >>> from daskml_dist.linear_model import LinearRegression, Ridge
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = X @ np.array([1.0, 2.0])
    >>> BaggingRegressor(Ridge(), n_estimators=3, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def _get_estimator(self) -> Any:
        return DecisionTreeRegressor() if self.estimator is None else self.estimator
