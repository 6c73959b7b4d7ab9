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
    """
