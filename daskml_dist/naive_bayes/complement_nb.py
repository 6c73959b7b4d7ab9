"""`ComplementNB`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.naive_bayes import multinomial_log_likelihood
from daskml_dist.naive_bayes._base import Array
from daskml_dist.naive_bayes._discrete import BaseCountsNB
from daskml_dist.parameters.run import Run

__all__ = ["ComplementNB"]


class ComplementNB(BaseCountsNB):
    """Naive Bayes of counts by all other classes, for classes of very different sizes.

    As scikit-learn's, fitted in one pass over dense or sparse rows: a class is told by how badly a
    text fits the counts of all others together, of which there are more.

    Parameters
    ----------
    alpha, force_alpha
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.
    fit_prior, class_prior
        As there; they matter where there is one class alone.
    norm : bool, default=False
        Divide the weights of each class by their sum, as of the second step of the paper.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_, feature_count_
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.
    feature_all_ : ndarray of float64 of shape (n_features,)
        Weighted sum of all rows.
    feature_log_prob_ : ndarray of float64 of shape (n_classes, n_features)
        Weights of the features.

    References
    ----------
    J. D. M. Rennie, L. Shih, J. Teevan and D. R. Karger, "Tackling the poor assumptions of naive
    Bayes text classifiers", ICML 2003.

    Examples
    --------
    >>> from daskml_dist.naive_bayes import ComplementNB
    >>> X = [[3, 0, 1], [2, 1, 0], [0, 4, 1]]
    >>> ComplementNB().fit(X, ["a", "a", "b"]).predict([[0, 2, 0]])
    array(['b'], dtype='<U1')
    """

    feature_all_: Array

    def __init__(
        self,
        *,
        alpha: Any = 1.0,
        force_alpha: bool = True,
        fit_prior: bool = True,
        class_prior: Any = None,
        norm: bool = False,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alpha = alpha
        self.force_alpha = force_alpha
        self.fit_prior = fit_prior
        self.class_prior = class_prior
        self.norm = norm
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _log_prob(self, alpha: Any) -> Array:
        self.feature_all_ = self.feature_count_.sum(axis=0)
        others = self.feature_all_ + alpha - self.feature_count_
        logged = np.log(others / others.sum(axis=1, keepdims=True))
        if self.norm:
            return np.asarray(logged / logged.sum(axis=1, keepdims=True))
        return np.asarray(-logged)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        prior = self.class_log_prior_ if len(self.classes_) == 1 else np.zeros(len(self.classes_))
        return partial(multinomial_log_likelihood, self.feature_log_prob_, prior)
