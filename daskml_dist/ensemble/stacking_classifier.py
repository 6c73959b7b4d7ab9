"""Classifier of what several others say."""

from __future__ import annotations

from typing import Any

from sklearn import ensemble

from daskml_dist.ensemble._stacking import Stacking
from daskml_dist.linear_model import LogisticRegression

__all__ = ["StackingClassifier"]


class StackingClassifier(Stacking, ensemble.StackingClassifier):
    """Classifier fitted to the answers of several estimators to rows that these have not seen.

    Rows in memory are scikit-learn's affair. On a Dask collection every member is fitted to all
    rows and to those of each split (linear ones of a solver to all splits in one fit); the last
    estimator's rows are made of their answers block by block, where these lie.

    Parameters
    ----------
    estimators, final_estimator, cv, stack_method, passthrough
        scikit-learn's. On a Dask collection the last estimator is this package's
        `LogisticRegression` by default. `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimators_, named_estimators_, final_estimator_, stack_method_, classes_, n_features_in_, \
feature_names_in_
        scikit-learn's.

    References
    ----------
    D. H. Wolpert, "Stacked generalization", Neural Networks 5 (1992).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import StackingClassifier
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> clf = StackingClassifier([('linear', LogisticRegression()), ('bayes', GaussianNB())])
    >>> clf.fit(X, y).score(X, y) > 0.9
    True
    """

    def _default(self) -> Any:
        return LogisticRegression()
