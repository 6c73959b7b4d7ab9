"""Base class of the naive Bayes classifiers of counted features: smoothing and priors."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.naive_bayes._base import Array, BaseNB, check_priors
from daskml_dist.solvers import Statistic
from daskml_dist.solvers.naive_bayes import ClassCounts

__all__ = ["BaseCountsNB", "BaseDiscreteNB"]

#: Smoothing that still gives finite logarithms, as in scikit-learn.
_SMALLEST = 1e-10


class BaseDiscreteNB(BaseNB):
    """Smoothed logarithms of counts."""

    alpha: Any
    force_alpha: bool
    fit_prior: bool
    class_prior: Any
    class_log_prior_: Array
    feature_log_prob_: Array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    @abstractmethod
    def _log_prob(self, alpha: Any) -> Array:
        """Smoothed logarithms of the features' probabilities in each class."""

    def _check_params(self) -> None:
        alpha = self._alpha()
        if alpha.ndim > 1 or not ((alpha >= 0) & (alpha < np.inf)).all():
            raise InvalidParameterError(
                f"alpha={self.alpha!r}: use a number >= 0, or one for each feature. All values in "
                "alpha must be greater than 0."
            )
        check_priors("class_prior", self.class_prior)

    def _check_sizes(self, n_features: int, n_classes: int) -> None:
        alpha = self._alpha()
        if alpha.ndim == 1 and len(alpha) != n_features:
            raise InvalidParameterError(
                "When alpha is an array, it should contains `n_features`. Got "
                f"{len(alpha)} elements instead of {n_features}."
            )
        check_priors("class_prior", self.class_prior, n_classes)

    def _alpha(self) -> Array:
        try:
            return np.asarray(self.alpha, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(
                f"alpha={self.alpha!r}: use a number >= 0, or one for each feature."
            ) from error

    def _unscaled(self, total: Array, scale: float | None) -> Array:
        return total if scale is None else total / scale

    def _update(self, total: Array) -> None:
        self.class_count_, self.feature_count_ = total[:, 0].copy(), total[:, 1:].copy()
        alpha = self._alpha()
        if not self.force_alpha and alpha.min() < _SMALLEST:
            warnings.warn(
                "alpha too small will result in numeric errors, setting alpha = "
                f"{_SMALLEST:.1e}. Use `force_alpha=True` to keep alpha unchanged.",
                stacklevel=user_stack_level(),
            )
            alpha = np.maximum(alpha, _SMALLEST)
        with np.errstate(divide="ignore" if alpha.min() > 0 else "warn"):
            self.feature_log_prob_ = self._log_prob(alpha)
        self.class_log_prior_ = self._log_prior()

    def _log_prior(self) -> Array:
        n_classes = len(self.classes_)
        # A class may not have come yet.
        with np.errstate(divide="ignore"):
            if self.class_prior is not None:
                return np.asarray(np.log(self.class_prior), dtype=np.float64)
            if self.fit_prior:
                return np.asarray(np.log(self.class_count_) - np.log(self.class_count_.sum()))
        return np.full(n_classes, -np.log(n_classes))


class BaseCountsNB(BaseDiscreteNB):
    """Sums of features that count something, and so are not negative."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def _statistic(self) -> Statistic:
        return ClassCounts(signed=False, of=type(self).__name__)
