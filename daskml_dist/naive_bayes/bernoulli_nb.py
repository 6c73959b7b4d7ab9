"""`BernoulliNB`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.naive_bayes import bernoulli_log_likelihood
from daskml_dist.naive_bayes._base import Array
from daskml_dist.naive_bayes._discrete import BaseDiscreteNB
from daskml_dist.parameters.run import Run
from daskml_dist.solvers import Statistic
from daskml_dist.solvers.naive_bayes import ClassCounts

__all__ = ["BernoulliNB"]


class BernoulliNB(BaseDiscreteNB):
    """Naive Bayes of features that are there or not.

    As scikit-learn's, fitted in one pass over dense or sparse rows.

    Parameters
    ----------
    alpha : float or array-like of shape (n_features,), default=1.0
        Added to each count, so that what was never seen is not impossible.
    force_alpha : bool, default=True
        False: an `alpha` below 1e-10 is made that, with a warning.
    binarize : float or None, default=0.0
        A feature is there where it is larger than this; None: X holds zeros and ones.
    fit_prior : bool, default=True
        Whether the classes' probabilities are their shares of the rows, or all the same.
    class_prior : array-like of shape (n_classes,), optional
        The classes' probabilities, if known.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    class_count_ : ndarray of float64 of shape (n_classes,)
        Weight of the rows of each class.
    class_log_prior_ : ndarray of float64 of shape (n_classes,)
    feature_count_ : ndarray of float64 of shape (n_classes, n_features)
        Weighted sum of the rows of each class.
    feature_log_prob_ : ndarray of float64 of shape (n_classes, n_features)

    References
    ----------
    C. D. Manning, P. Raghavan and H. Schuetze, "Introduction to Information Retrieval", chapter 13,
    Cambridge University Press, 2008.

    Examples
    --------
    >>> from daskml_dist.naive_bayes import BernoulliNB
    >>> X = [[1, 0], [1, 0], [0, 1], [0, 1]]
    >>> BernoulliNB().fit(X, [0, 0, 1, 1]).predict([[0, 1]])
    array([1])
    """

    def __init__(
        self,
        *,
        alpha: Any = 1.0,
        force_alpha: bool = True,
        binarize: float | None = 0.0,
        fit_prior: bool = True,
        class_prior: Any = None,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alpha = alpha
        self.force_alpha = force_alpha
        self.binarize = binarize
        self.fit_prior = fit_prior
        self.class_prior = class_prior
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        super()._check_params()
        threshold = self.binarize
        if threshold is not None and not (isinstance(threshold, Real) and threshold >= 0):
            raise InvalidParameterError(f"binarize={threshold!r}: use a number >= 0, or None.")

    def _statistic(self) -> Statistic:
        return ClassCounts(threshold=self.binarize)

    def _log_prob(self, alpha: Any) -> Array:
        counts = self.class_count_[:, None] + 2 * alpha
        return np.asarray(np.log(self.feature_count_ + alpha) - np.log(counts))

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return partial(
            bernoulli_log_likelihood, self.feature_log_prob_, self.class_log_prior_, self.binarize
        )
