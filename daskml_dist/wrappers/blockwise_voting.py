"""Votes of estimators of which each has learned one block: `BlockwiseVotingClassifier`."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.utils.metaestimators import available_if

from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import check_unique_names, convert_missing_to_nan
from daskml_dist.data.feature_names import remember_dtypes
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.lazy_labels import labels_of
from daskml_dist.meta_estimators.members import check_given, check_weighable
from daskml_dist.parameters.checks import check_one_of, taking_client
from daskml_dist.wrappers._blocks import teach_block

__all__ = ["BlockwiseVotingClassifier", "BlockwiseVotingRegressor"]


class _BlockVotes(MetaEstimatorMixin, BaseEstimator):
    """Base class: a clone of an estimator is fitted to each block, all side by side."""

    estimator: Any
    estimators_: list[Any]

    @taking_client
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit a clone of the estimator to each block that has rows.

        Parameters
        ----------
        X : array-like, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features). Rows in memory are one block.
        y : array-like, dask Array or dask Series of shape (n_rows,), or the name of a column of X
        sample_weight : like `y`, optional
        client : distributed.Client, optional
            That everything is computed by; by default the current one.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            The collections cannot be aligned or read, or the estimator refuses a block, which is
            named.
        """
        check_given(y)
        check_unique_names(X)
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        params = {} if sample_weight is None else {"sample_weight": sample_weight}
        check_weighable([("estimator", self.estimator)], params)
        self._check(y)
        rows = as_collection(X, y, sample_weight, numeric=False, multi_output=True)
        with reading(type(self).__name__):
            found = reduce_parts(rows, partial(_fit_block, clone(self.estimator)), _chained)
        if not found:
            raise InvalidDataError(
                "X holds 0 sample(s) in all its blocks, while a minimum of 1 is required. Check "
                "the filter or the path that made the collection."
            )
        self.estimators_ = found
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(found[0], name):
                setattr(self, name, getattr(found[0], name))
        remember_dtypes(self, X)
        return self

    def _check(self, y: Any) -> None:
        """Check the parameters, and learn what is to be known of all targets."""

    def _answers(self, method: str, X: Any) -> list[NDArray[Any]]:
        """Return what each of the estimators says of rows in memory."""
        rows = convert_missing_to_nan(X)
        return [np.asarray(getattr(one, method)(rows)) for one in self.estimators_]


def _is_soft(voting: Any) -> bool:
    if voting.voting != "soft":
        raise AttributeError("predict_proba is not available when voting='hard'")
    return True


class _ClassifierVotes(ClassifierMixin, _BlockVotes):
    """Votes of classifiers about rows in memory."""

    voting: str
    classes: Any
    classes_: NDArray[Any]

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the labels with the most votes; of as many, the first in order."""
        if self.voting == "soft":
            return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])
        votes = [np.searchsorted(self.classes_, one) for one in self._answers("predict", X)]
        counts = np.zeros((len(votes[0]), len(self.classes_)), np.int64)
        for vote in votes:
            counts[np.arange(len(vote)), vote] += 1
        return np.asarray(self.classes_[counts.argmax(axis=1)])

    @available_if(_is_soft)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the means of the probabilities; 0 where a block had no row of a class."""
        answers = self._answers("predict_proba", X)
        total = np.zeros((len(answers[0]), len(self.classes_)))
        for one, proba in zip(self.estimators_, answers, strict=True):
            total[:, np.searchsorted(self.classes_, one.classes_)] += proba
        return total / len(answers)

    def _check(self, y: Any) -> None:
        check_one_of("voting", self.voting, ("hard", "soft"))
        if self.voting == "soft" and not hasattr(self.estimator, "predict_proba"):
            raise InvalidParameterError(
                f"voting='soft' needs predict_proba, which {type(self.estimator).__name__} has "
                "not. Use voting='hard'."
            )
        self.classes_ = labels_of(y) if self.classes is None else np.sort(np.asarray(self.classes))


class BlockwiseVotingClassifier(OnBlocks, _ClassifierVotes):
    """Vote of classifiers of any package, of which each has learned one block.

    Blocks are learned side by side in one pass, where they lie, and nothing is gathered but the
    classifiers. Each knows its own block alone, so that rows should be mixed: of sorted labels a
    block has one class. Where the package has the model (linear ones, forests, boosting), a fit to
    all rows is more exact.

    Parameters
    ----------
    estimator : estimator
        Cloned for each block.
    voting : {"hard", "soft"}, default="hard"
        Majority of the labels, or mean of the probabilities.
    classes : array-like of shape (n_classes,), default=None
        All labels; None: they are found in a pass over y.

    Attributes
    ----------
    estimators_ : list of estimator
        One a block that has rows.
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Notes
    -----
    Names and meaning are those of ``dask_ml.ensemble.BlockwiseVotingClassifier``. A label that the
    members know, and `classes` does not hold, is an error where rows are answered.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from daskml_dist.datasets import make_classification
    >>> from daskml_dist.wrappers import BlockwiseVotingClassifier
    >>> X, y = make_classification(3000, random_state=0, chunks=1000)
    >>> clf = BlockwiseVotingClassifier(DecisionTreeClassifier(random_state=0)).fit(X, y)
    >>> len(clf.estimators_), bool(clf.score(X, y) > 0.9)
    (3, True)
    """

    def __init__(self, estimator: Any, *, voting: str = "hard", classes: Any = None) -> None:
        self.estimator = estimator
        self.voting = voting
        self.classes = classes


class _RegressorVotes(RegressorMixin, _BlockVotes):
    """Means of regressors about rows in memory."""

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the means of the predictions."""
        return np.asarray(np.mean(self._answers("predict", X), axis=0))


class BlockwiseVotingRegressor(OnBlocks, _RegressorVotes):
    """Mean of regressors of any package, of which each has learned one block.

    As :class:`BlockwiseVotingClassifier`, which tells the attributes and when to use it.

    Parameters
    ----------
    estimator : estimator
        Cloned for each block.

    Attributes
    ----------
    estimators_ : list of estimator
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> from sklearn.linear_model import LinearRegression
    >>> from daskml_dist.datasets import make_regression
    >>> from daskml_dist.wrappers import BlockwiseVotingRegressor
    >>> X, y = make_regression(3000, 20, random_state=0, chunks=1000)
    >>> round(BlockwiseVotingRegressor(LinearRegression()).fit(X, y).score(X, y), 6)
    1.0
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator


def _fit_block(estimator: Any, index: int, X: Any, y: Any, weight: Any) -> list[Any]:
    """Return a clone that is fitted to the rows of a block, if it has any."""
    if not X.shape[0]:
        return []
    fitted = clone(estimator)
    teach_block(fitted.fit, {}, index, X, y, weight)
    return [fitted]


def _chained(parts: list[list[Any]]) -> list[Any]:
    return [one for part in parts for one in part]
