"""`GaussianNB`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.naive_bayes import GaussianLogLikelihood, merge_moments
from daskml_dist.naive_bayes._base import Array, BaseNB, check_priors
from daskml_dist.parameters.checks import check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers import Statistic
from daskml_dist.solvers.naive_bayes import ClassMoments

__all__ = ["GaussianNB"]


class GaussianNB(BaseNB):
    """Naive Bayes with a normal distribution of each feature in each class.

    As scikit-learn's, but that the smoothing after :meth:`partial_fit` is by the variance of all
    rows so far, so that parts give what one fit of them all gives. Variances are merged from those
    of a few rows at a time (Chan, Golub and LeVeque), so a large mean costs no digits. Sparse rows
    are taken too, and worked on as dense ones, a few at a time.

    Parameters
    ----------
    priors : array-like of shape (n_classes,), optional
        Probabilities of the classes; by default their shares of the rows.
    var_smoothing : float, default=1e-9
        Share of the largest variance of a feature that is added to all variances.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    class_count_ : ndarray of float64 of shape (n_classes,)
        Weight of the rows of each class.
    class_prior_ : ndarray of float64 of shape (n_classes,)
    theta_, var_ : ndarray of float64 of shape (n_classes, n_features)
        Mean and variance of each feature in each class.
    epsilon_ : float
        What was added to the variances.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> GaussianNB().fit(X, y).score(X, y)
    0.96
    """

    theta_: Array
    var_: Array
    class_prior_: Array

    def __init__(
        self,
        *,
        priors: Any = None,
        var_smoothing: float = 1e-9,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.priors = priors
        self.var_smoothing = var_smoothing
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        check_number("var_smoothing", self.var_smoothing)
        if self.priors is not None:
            priors = check_priors("priors", self.priors)
            if not np.isclose(priors.sum(), 1.0):
                raise InvalidParameterError("The sum of the priors should be 1: divide by it.")

    def _check_sizes(self, n_features: int, n_classes: int) -> None:
        check_priors("priors", self.priors, n_classes)

    def _statistic(self) -> Statistic:
        return ClassMoments()

    def _unscaled(self, total: Array, scale: float | None) -> Array:
        if scale is None:
            # All rows together: the groups are the classes, whose weights count rows.
            for group in total[:-1]:
                merge_moments(total[-1:], group[None])
            return total
        n_features = total.shape[1] // 2
        total[:-1, 0] /= scale
        total[:-1, 1 + n_features :] /= scale
        return total

    def _update(self, total: Array) -> None:
        n_features = self.n_features_in_
        weight, squares = total[:, :1], total[:, 1 + n_features :]
        var = np.divide(squares, weight, out=np.zeros_like(squares), where=weight > 0)
        self.epsilon_ = float(self.var_smoothing * var[-1].max())
        self.class_count_ = weight[:-1, 0].copy()
        self.theta_ = total[:-1, 1 : 1 + n_features].copy()
        self.var_ = var[:-1] + self.epsilon_
        if self.priors is None:
            self.class_prior_ = self.class_count_ / self.class_count_.sum()
        else:
            self.class_prior_ = np.asarray(self.priors, dtype=np.float64)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        with np.errstate(divide="ignore"):
            log_prior = np.log(self.class_prior_)
        return GaussianLogLikelihood(self.theta_, self.var_, log_prior)
