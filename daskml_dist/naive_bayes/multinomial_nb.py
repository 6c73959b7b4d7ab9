"""`MultinomialNB`."""

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

__all__ = ["MultinomialNB"]


class MultinomialNB(BaseCountsNB):
    """Naive Bayes of counts, such as those of words in texts; tf-idf values do too.

    As scikit-learn's, fitted in one pass over dense or sparse rows.

    Parameters
    ----------
    alpha, force_alpha, fit_prior, class_prior
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_, feature_count_, feature_log_prob_
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.

    References
    ----------
    C. D. Manning, P. Raghavan and H. Schuetze, "Introduction to Information Retrieval", chapter 13,
    Cambridge University Press, 2008.

    Examples
    --------
    >>> from daskml_dist.naive_bayes import MultinomialNB
    >>> X = [[3, 0, 1], [2, 1, 0], [0, 4, 1]]
    >>> MultinomialNB().fit(X, ["a", "a", "b"]).predict([[0, 2, 0]])
    array(['b'], dtype='<U1')
    """

    def __init__(
        self,
        *,
        alpha: Any = 1.0,
        force_alpha: bool = True,
        fit_prior: bool = True,
        class_prior: Any = None,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alpha = alpha
        self.force_alpha = force_alpha
        self.fit_prior = fit_prior
        self.class_prior = class_prior
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _log_prob(self, alpha: Any) -> Array:
        counts = self.feature_count_ + alpha
        return np.asarray(np.log(counts) - np.log(counts.sum(axis=1, keepdims=True)))

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return partial(multinomial_log_likelihood, self.feature_log_prob_, self.class_log_prior_)
