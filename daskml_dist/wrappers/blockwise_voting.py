"""Ensembles of estimators that are each fitted to one block of rows, and vote.

Blocks are fitted on the workers that hold them, in one pass without any exchange of rows; the price
is that a member only knows its own block. The estimators for rows in memory (`_ClassifierVoting`,
`_RegressorVoting`) become lazy for Dask collections through `OnBlocks`, which precedes them in the
bases.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.utils.metaestimators import available_if

from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import check_unique_names, convert_missing_to_nan
from daskml_dist.data.reduce import concatenate_lists, reduce_parts
from daskml_dist.data.row_checks import make_no_rows_error, remember_dtypes
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.members import (
    check_given,
    check_weighable,
    copy_feature_attributes,
    find_labels,
)
from daskml_dist.parameters.checks import check_one_of, taking_client
from daskml_dist.wrappers._blocks import teach_block


class _BaseBlockwiseVoting(MetaEstimatorMixin, BaseEstimator):
    """Base class that fits a clone of an estimator to each block, all blocks in parallel."""

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
            Client to compute with; the current one by default.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            The collections cannot be aligned or read, or the estimator refuses a block; the error
            names the block.
        """
        check_given(y)
        check_unique_names(X)
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        params = {} if sample_weight is None else {"sample_weight": sample_weight}
        # Check before the pass, in which every block would raise this error.
        check_weighable([("estimator", self.estimator)], params)
        self._check_parameters(y)
        rows = as_collection(X, y, sample_weight, numeric=False, multi_output=True)
        with report_reading(type(self).__name__):
            # A clone, since a fitted estimator would be sent with its whole learned state.
            members = reduce_parts(
                rows, partial(_fit_block, clone(self.estimator)), concatenate_lists
            )
        if not members:
            raise make_no_rows_error()
        self._check_members(members)
        self.estimators_ = members
        copy_feature_attributes(self, members[0])
        remember_dtypes(self, X)
        return self

    def _check_parameters(self, y: Any) -> None:
        """Check the parameters; a classifier finds `classes_` here."""

    def _check_members(self, members: list[Any]) -> None:
        """Raise if the fitted members cannot vote together."""

    def _predict_each(self, method: str, X: Any) -> list[NDArray[Any]]:
        """Return the predictions of each member for rows in memory."""
        rows = convert_missing_to_nan(X)
        return [np.asarray(getattr(member, method)(rows)) for member in self.estimators_]


def _is_soft(voting: Any) -> bool:
    """Return True, or raise the error for a method that hard voting does not have."""
    if voting.voting != "soft":
        raise AttributeError("predict_proba is not available when voting='hard'")
    return True


class _ClassifierVoting(ClassifierMixin, _BaseBlockwiseVoting):
    """Classifier by the majority or the mean probability of members, for rows in memory."""

    voting: str
    classes: Any
    classes_: NDArray[Any]

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the labels with the most votes; among ties, the first in sorted order."""
        if self.voting == "soft":
            return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])
        # Use labels, not positions: a member numbers only the classes of its own block.
        votes = [np.searchsorted(self.classes_, y) for y in self._predict_each("predict", X)]
        counts = np.zeros((len(votes[0]), len(self.classes_)), np.int64)
        for vote in votes:
            counts[np.arange(len(vote)), vote] += 1
        # argmax returns the first of several largest counts.
        return np.asarray(self.classes_[counts.argmax(axis=1)])

    @available_if(_is_soft)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return mean probabilities; a member gives 0 to a class that its block lacks."""
        probabilities = self._predict_each("predict_proba", X)
        # Columns of a member are matched to all classes by its own `classes_`.
        total = np.zeros((len(probabilities[0]), len(self.classes_)))
        for member, member_probabilities in zip(self.estimators_, probabilities, strict=True):
            total[:, np.searchsorted(self.classes_, member.classes_)] += member_probabilities
        return total / len(probabilities)

    def _check_parameters(self, y: Any) -> None:
        check_one_of("voting", self.voting, ("hard", "soft"))
        if self.voting == "soft" and not hasattr(self.estimator, "predict_proba"):
            raise InvalidParameterError(
                f"voting='soft' needs predict_proba, which {type(self.estimator).__name__} does "
                "not have. Use voting='hard'."
            )
        self.classes_ = (
            # A pass over y before the fits, since a block may lack labels.
            find_labels(y) if self.classes is None else np.sort(np.asarray(self.classes))
        )

    def _check_members(self, members: list[Any]) -> None:
        # Votes are counted by positions among `classes_`: an unknown label would be counted as a
        # vote for another label.
        labels = [getattr(member, "classes_", self.classes_) for member in members]
        unknown = np.setdiff1d(np.concatenate(labels), self.classes_)
        if len(unknown):
            raise InvalidDataError(
                f"y holds labels that classes={self.classes!r} lacks: {unknown[:5].tolist()}. "
                "Name all labels of y in classes, or leave classes=None."
            )


class BlockwiseVotingClassifier(OnBlocks, _ClassifierVoting):
    """Voting classifier whose members, from any package, are each fitted to one block.

    Blocks are fitted in parallel in one pass, each on the worker that holds it; only the
    classifiers are gathered. A member has seen only its own block, so rows should be shuffled:
    blocks of sorted labels contain a single class. If this package has the model (linear models,
    forests, boosting), its fit to all rows is more accurate.

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
        One estimator for each block that has rows.
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Notes
    -----
    Parameters are named as in ``dask_ml.ensemble.BlockwiseVotingClassifier``. `classes` must
    contain every label of y.

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


class _RegressorVoting(RegressorMixin, _BaseBlockwiseVoting):
    """Regressor by the mean prediction of members, for rows in memory."""

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the means of the predictions."""
        return np.asarray(np.mean(self._predict_each("predict", X), axis=0))


class BlockwiseVotingRegressor(OnBlocks, _RegressorVoting):
    """Averaging regressor whose members, from any package, are each fitted to one block.

    See :class:`BlockwiseVotingClassifier` for when to use it.

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
    """Return a clone fitted to the rows of a block, as a list; empty for an empty block."""
    if not X.shape[0]:
        return []
    fitted = clone(estimator)
    teach_block(fitted.fit, {}, index, X, y, weight)
    return [fitted]
