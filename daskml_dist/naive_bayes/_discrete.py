"""Naive Bayes for counts and categories: Bernoulli, multinomial, complement, categorical.

One pass over the rows sums the rows of each class (`solvers/naive_bayes.py`). The fitted
parameters, computed here, are smoothed logarithms of shares of these sums; the likelihoods of rows
are functions in `models/naive_bayes.py`.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.models.naive_bayes import (
    BinaryLogLikelihood,
    CategoriesLogLikelihood,
    CountsLogLikelihood,
    RowsByClass,
)
from daskml_dist.naive_bayes._base import Array, BaseNB, check_priors
from daskml_dist.parameters.checks import check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution, Statistic
from daskml_dist.solvers.naive_bayes import (
    CategoryCountSolver,
    ClassCounts,
    LargestCategory,
    merge_category_counts,
)
from daskml_dist.training.dataset_info import DatasetInfo

#: Minimum smoothing with ``force_alpha=False``; the value of scikit-learn.
_MIN_ALPHA = 1e-10


class BaseDiscreteNB(BaseNB):
    """Base class of classifiers whose parameters are smoothed logarithms of counts."""

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
        """Return smoothed logarithms of the features' probabilities in each class."""

    def _check_params(self) -> None:
        alpha = self._convert_alpha()
        # The length of an array is checked once the rows have been seen.
        if alpha.ndim > 1 or not ((alpha >= 0) & (alpha < np.inf)).all():
            raise InvalidParameterError(
                f"alpha={self.alpha!r}: use a number >= 0, or one for each feature. All values in "
                "alpha must be greater than 0."
            )
        check_priors("class_prior", self.class_prior)

    def _check_sizes(self, n_features: int, n_classes: int) -> None:
        alpha = self._convert_alpha()
        if alpha.ndim == 1 and len(alpha) != n_features:
            raise InvalidParameterError(
                "When alpha is an array, it should contains `n_features`. Got "
                f"{len(alpha)} elements instead of {n_features}."
            )
        check_priors("class_prior", self.class_prior, n_classes)

    def _convert_alpha(self) -> Array:
        """Return `alpha` as a float64 array: a scalar, or one entry per feature."""
        try:
            return np.asarray(self.alpha, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(
                f"alpha={self.alpha!r}: use a number >= 0, or one for each feature."
            ) from error

    def _unscaled(self, total: Array, scale: float | None) -> Array:
        return total if scale is None else total / scale

    def _update(self, total: Array) -> None:
        # A row of `total` for each class: the weight of its rows, then their weighted sum.
        self.class_count_, self.feature_count_ = total[:, 0].copy(), total[:, 1:].copy()
        alpha = self._convert_alpha()
        if not self.force_alpha and alpha.min() < _MIN_ALPHA:
            warnings.warn(
                "alpha too small will result in numeric errors, setting alpha = "
                f"{_MIN_ALPHA:.1e}. Use `force_alpha=True` to keep alpha unchanged.",
                stacklevel=user_stack_level(),
            )
            alpha = np.maximum(alpha, _MIN_ALPHA)
        # Without smoothing, a feature absent from a class gets log(0), for which NumPy warns.
        with np.errstate(divide="ignore" if alpha.min() > 0 else "warn"):
            self.feature_log_prob_ = self._log_prob(alpha)
        self.class_log_prior_ = self._log_prior()

    def _log_prior(self) -> Array:
        n_classes = len(self.classes_)
        # After a `partial_fit` a class may have no rows yet: its prior is log(0) = -inf.
        with np.errstate(divide="ignore"):
            if self.class_prior is not None:
                return np.asarray(np.log(self.class_prior), dtype=np.float64)
            if self.fit_prior:
                return np.asarray(np.log(self.class_count_) - np.log(self.class_count_.sum()))
        return np.full(n_classes, -np.log(n_classes))


class BaseCountsNB(BaseDiscreteNB):
    """Base class of classifiers whose features are counts, and so not negative."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def _statistic(self) -> Statistic:
        return ClassCounts(signed=False, estimator_name=type(self).__name__)


class BernoulliNB(BaseDiscreteNB):
    """Naive Bayes of binary features.

    As in scikit-learn, fitted in one pass over dense or sparse rows.

    Parameters
    ----------
    alpha : float or array-like of shape (n_features,), default=1.0
        Laplace smoothing: added to each count, so that a feature that never occurs in a class does
        not exclude the class.
    force_alpha : bool, default=True
        False: an `alpha` below 1e-10 is raised to 1e-10, with a warning.
    binarize : float or None, default=0.0
        A feature is 1 if it is larger than this; None: X holds zeros and ones.
    fit_prior : bool, default=True
        Whether the prior probabilities of the classes are their shares of the rows; otherwise they
        are equal.
    class_prior : array-like of shape (n_classes,), optional
        Prior probabilities of the classes, if known.

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
        # Twice alpha, because a feature has two values, 0 and 1 (Manning et al., figure 13.3).
        counts = self.class_count_[:, None] + 2 * alpha
        return np.asarray(np.log(self.feature_count_ + alpha) - np.log(counts))

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return BinaryLogLikelihood(self.feature_log_prob_, self.class_log_prior_, self.binarize)


class MultinomialNB(BaseCountsNB):
    """Naive Bayes for counts, such as word counts of texts; tf-idf values work too.

    As in scikit-learn, fitted in one pass over dense or sparse rows.

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
        # Share of a word among all words of the class (Manning et al., equation 13.7).
        counts = self.feature_count_ + alpha
        return np.asarray(np.log(counts) - np.log(counts.sum(axis=1, keepdims=True)))

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return CountsLogLikelihood(self.feature_log_prob_, self.class_log_prior_)


class ComplementNB(BaseCountsNB):
    """Naive Bayes for counts, from the complement of each class, for very unequal class sizes.

    As in scikit-learn, fitted in one pass over dense or sparse rows. The predicted class is the one
    whose complement (all other classes together) fits the row worst: a complement has more rows
    than its class, so its counts are estimated better.

    Parameters
    ----------
    alpha, force_alpha
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.
    fit_prior, class_prior
        As above; used only if there is a single class.
    norm : bool, default=False
        Whether to divide the weights of each class by their sum.

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
        # Counts of the complement, smoothed (Rennie et al., section 3.1).
        complement_counts = self.feature_all_ + alpha - self.feature_count_
        logged = np.log(complement_counts / complement_counts.sum(axis=1, keepdims=True))
        if self.norm:
            # Weight normalisation (section 3.2). As in scikit-learn, the divisor is the signed sum:
            # numerator and divisor are negative, so the sign changes here too.
            return np.asarray(logged / logged.sum(axis=1, keepdims=True))
        # Change the sign: the best class is the one with the least likely complement.
        return np.asarray(-logged)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        # The paper's rule (table 4) has no prior; scikit-learn adds the prior if there is only one
        # class.
        prior = self.class_log_prior_ if len(self.classes_) == 1 else np.zeros(len(self.classes_))
        return CountsLogLikelihood(self.feature_log_prob_, prior)


class CategoricalNB(BaseDiscreteNB):
    """Naive Bayes for categorical features, encoded as integers from 0.

    As in scikit-learn, fitted in two passes: the first finds the largest category of each feature,
    the second counts the rows of each category. :class:`~daskml_dist.preprocessing.OrdinalEncoder`
    encodes names. Sparse rows are made dense, a few at a time.

    Parameters
    ----------
    alpha : float, default=1.0
        Added to each count.
    force_alpha, fit_prior, class_prior
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.
    min_categories : int or array-like of shape (n_features,), optional
        Minimum number of categories of a feature. Predicting a category that did not occur in the
        fit is an error, unless it is counted here.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.
    category_count_, feature_log_prob_ : list of ndarray of float64 of shape (n_classes, \
    n_categories)
        One array per feature: the weight of the rows of each class with each category; and the
        smoothed logarithms of their shares.
    n_categories_ : ndarray of int64 of shape (n_features,)

    Examples
    --------
    >>> from daskml_dist.naive_bayes import CategoricalNB
    >>> X = [[0, 2], [0, 1], [1, 0], [1, 0]]
    >>> CategoricalNB().fit(X, ["a", "a", "b", "b"]).predict([[1, 1]])
    array(['b'], dtype='<U1')
    """

    feature_log_prob_: Any
    n_categories_: NDArray[np.int64]

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        force_alpha: bool = True,
        fit_prior: bool = True,
        class_prior: Any = None,
        min_categories: Any = None,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alpha = alpha
        self.force_alpha = force_alpha
        self.fit_prior = fit_prior
        self.class_prior = class_prior
        self.min_categories = min_categories
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.positive_only = True
        return tags

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha)

    def _statistic(self) -> Statistic:
        return LargestCategory()

    def _problem(self, rows: DatasetInfo) -> tuple[RowsByClass, CategoryCountSolver]:  # type: ignore[override]
        model, _ = super()._problem(rows)
        min_categories = self._resolve_min_categories(model.n_features)
        return model, CategoryCountSolver(self._statistic(), min_categories)

    def _resolve_min_categories(self, n_features: int) -> tuple[int, ...]:
        """Return the minimum number of categories of each feature; 0 if none is required."""
        minimums = np.asarray(0 if self.min_categories is None else self.min_categories)
        if minimums.dtype.kind not in "iu":
            raise InvalidParameterError(
                f"'min_categories' should have integral type. Got {minimums.dtype} instead: "
                f"min_categories={self.min_categories!r}. Use an integer, or one for each feature."
            )
        if minimums.shape not in ((), (n_features,)):
            raise InvalidParameterError(
                f"'min_categories' should have shape ({n_features},) when an array-like is "
                f"provided. Got {minimums.shape} instead. Give an integer for each feature."
            )
        return tuple(np.broadcast_to(minimums, n_features).tolist())

    def _set_fitted(self, solution: Solution, model: RowsByClass, rows: DatasetInfo) -> None:
        parts = [(solution.extra["sizes"], self._unscaled(solution.w, rows.weight_scale))]
        # Rows of earlier calls of `partial_fit`, which may have had fewer categories.
        if hasattr(self, "_sums"):
            parts.append((tuple(self.n_categories_.tolist()), self._sums))
        sizes, total = merge_category_counts(parts)
        assert rows.classes is not None
        self.classes_ = rows.classes
        self.n_features_in_ = model.n_features
        self.n_categories_ = np.array(sizes, dtype=np.int64)
        self._update(total)
        self._sums = total

    def _log_prob(self, alpha: Any) -> Any:
        # The tables of all features are adjacent columns of one array. `_update` has stored it
        # under the name that the other classes use; scikit-learn's CategoricalNB has no such
        # attribute.
        counts = self.__dict__.pop("feature_count_")
        self.category_count_ = np.split(counts, np.cumsum(self.n_categories_)[:-1], axis=1)
        log_shares = []
        # Smoothed shares of each feature's categories among the rows of the class.
        for table in self.category_count_:
            smoothed = table + alpha
            log_shares.append(np.log(smoothed) - np.log(smoothed.sum(axis=1, keepdims=True)))
        return log_shares

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return CategoriesLogLikelihood(self.feature_log_prob_, self.class_log_prior_)
