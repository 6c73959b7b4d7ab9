"""`CategoricalNB`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.naive_bayes import RowsByClass, categorical_log_likelihood
from daskml_dist.naive_bayes._discrete import BaseDiscreteNB
from daskml_dist.parameters.checks import check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers import Solution, Statistic
from daskml_dist.solvers.naive_bayes import (
    CategoryCountSolver,
    LargestCategory,
    merge_category_counts,
)
from daskml_dist.training.plan import DatasetInfo

__all__ = ["CategoricalNB"]


class CategoricalNB(BaseDiscreteNB):
    """Naive Bayes of features that are categories, numbered from 0 on.

    As scikit-learn's, fitted in two passes: how many categories there are, and the rows of each.
    :class:`~daskml_dist.preprocessing.OrdinalEncoder` makes numbers of names. Sparse rows are taken
    too, and worked on as dense ones, a few at a time.

    Parameters
    ----------
    alpha : float, default=1.0
        Added to each count.
    force_alpha, fit_prior, class_prior
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.
    min_categories : int or array-like of shape (n_features,), optional
        Categories that a feature has at least. One that the rows of the fit do not hold is an error
        where it comes later, unless it is counted here.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_
        As in :class:`~daskml_dist.naive_bayes.BernoulliNB`.
    category_count_, feature_log_prob_ : list of ndarray of float64 of shape (n_classes, \
    n_categories)
        One a feature: weight of the rows of each class that hold each category; smoothed
        logarithms of their shares.
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
        return model, CategoryCountSolver(self._statistic(), self._at_least(model.n_features))

    def _at_least(self, n_features: int) -> tuple[int, ...]:
        given = np.asarray(0 if self.min_categories is None else self.min_categories)
        if given.dtype.kind not in "iu":
            raise InvalidParameterError(
                f"'min_categories' should have integral type. Got {given.dtype} instead: "
                f"min_categories={self.min_categories!r}. Use an integer, or one for each feature."
            )
        if given.shape not in ((), (n_features,)):
            raise InvalidParameterError(
                f"'min_categories' should have shape ({n_features},) when an array-like is "
                f"provided. Got {given.shape} instead. Give an integer for each feature."
            )
        return tuple(np.broadcast_to(given, n_features).tolist())

    def _set_fitted(self, solution: Solution, model: RowsByClass, rows: DatasetInfo) -> None:
        parts = [(solution.extra["sizes"], self._unscaled(solution.w, rows.weight_scale))]
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
        # Counts are of categories here, of a table for each feature.
        counts = self.__dict__.pop("feature_count_")
        self.category_count_ = np.split(counts, np.cumsum(self.n_categories_)[:-1], axis=1)
        found = []
        for table in self.category_count_:
            smoothed = table + alpha
            found.append(np.log(smoothed) - np.log(smoothed.sum(axis=1, keepdims=True)))
        return found

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return partial(categorical_log_likelihood, self.feature_log_prob_, self.class_log_prior_)
