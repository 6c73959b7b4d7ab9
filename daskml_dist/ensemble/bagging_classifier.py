"""Classifier of members that each draw rows of their own."""

from __future__ import annotations

from typing import Any

from sklearn import ensemble

from daskml_dist.ensemble._bagging import Bagging
from daskml_dist.tree import DecisionTreeClassifier

__all__ = ["BaggingClassifier"]


class BaggingClassifier(Bagging, ensemble.BaggingClassifier):
    """Classifier by the mean probabilities, or votes, of members that each draw rows and columns.

    Rows in memory are scikit-learn's affair. On a Dask collection a row's draws follow from the
    seed, the member and the row's number among all, so the ensemble is the same on any number of
    workers. Members that take weights are given the draws as such, and no row is copied; for others
    rows are repeated where they lie. Linear ones of a solver are one fit; others of this package
    are fitted one after the other, each on the whole cluster; any others side by side, on rows
    gathered in a worker.

    Parameters
    ----------
    estimator, n_estimators, max_samples, max_features, bootstrap, bootstrap_features, oob_score, \
warm_start, random_state
        scikit-learn's. `estimator` is this package's `DecisionTreeClassifier` by default. On a Dask
        collection `max_samples` rows are drawn on average with replacement, and exactly without.
        `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimator_, estimators_, estimators_features_, estimators_samples_, classes_, n_classes_, \
n_features_in_, feature_names_in_, oob_score_, oob_decision_function_
        scikit-learn's. After a fit to a Dask collection the samples and `oob_decision_function_`
        are lazy dask Arrays, which are not pickled.

    References
    ----------
    L. Breiman, "Bagging predictors", Machine Learning 24 (1996). N. Oza and S. Russell, "Online
    bagging and boosting", AISTATS (2001).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import BaggingClassifier
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> BaggingClassifier(GaussianNB(), n_estimators=3, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def _get_estimator(self) -> Any:
        return DecisionTreeClassifier() if self.estimator is None else self.estimator
