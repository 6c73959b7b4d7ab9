"""Votes of several classifiers."""

from __future__ import annotations

from sklearn import ensemble

from daskml_dist.ensemble._voting import Voting

__all__ = ["VotingClassifier"]


class VotingClassifier(Voting, ensemble.VotingClassifier):
    """Classifier by the votes of several, or by their mean probabilities.

    Rows in memory are scikit-learn's affair. On a Dask collection members that know such (those of
    this package) are fitted one after the other, each on the whole cluster; others side by side, on
    rows gathered in a worker. Labels are counted in one pass, and answers are lazy.

    Parameters
    ----------
    estimators, voting, weights, flatten_transform
        scikit-learn's. `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimators_, named_estimators_, le_, classes_, n_features_in_, feature_names_in_
        scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import VotingClassifier
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> clf = VotingClassifier([('linear', LogisticRegression()), ('bayes', GaussianNB())])
    >>> clf.fit(X, y).score(X, y) > 0.9
    True
    """
