"""Mean of several regressors."""

from __future__ import annotations

from sklearn import ensemble

from daskml_dist.ensemble._voting import Voting

__all__ = ["VotingRegressor"]


class VotingRegressor(Voting, ensemble.VotingRegressor):
    """Regressor by the mean of what several predict.

    Rows in memory are scikit-learn's affair; Dask collections as in :class:`VotingClassifier`.

    Parameters
    ----------
    estimators, weights
        scikit-learn's. `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimators_, named_estimators_, n_features_in_, feature_names_in_
        scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import VotingRegressor
    >>> from daskml_dist.linear_model import LinearRegression, Ridge
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = X @ np.array([1.0, 2.0])
    >>> model = VotingRegressor([('ridge', Ridge()), ('squares', LinearRegression())]).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """
