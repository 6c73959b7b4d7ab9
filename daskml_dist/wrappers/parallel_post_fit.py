"""Wrappers for estimators without Dask support: lazy predictions, and fits block by block.

`_EstimatorWrapper` delegates rows in memory to the wrapped estimator, and `OnBlocks`, which
precedes it in the bases, makes its methods lazy for Dask collections. `Incremental` trains with
``partial_fit``: the model is a chain of tasks, one for each block; each task copies and trains the
model of the previous task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier, is_regressor
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metaestimators import available_if

from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import check_unique_names, convert_missing_to_nan
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import fold_parts
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.inference.fitted import is_fitted
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.members import check_given, find_labels, fit_members
from daskml_dist.metrics.scorers import get_scorer
from daskml_dist.model_selection._validation import takes_dask_collections
from daskml_dist.parameters.checks import taking_client
from daskml_dist.wrappers._blocks import teach_block


def _make_predict_method(name: str) -> Any:
    """Return a method for rows in memory that calls the wrapped estimator's method `name`."""

    def method(self: Any, X: Any, **params: Any) -> Any:
        return getattr(self._fitted, name)(convert_missing_to_nan(X), **params)

    def has_method(self: Any) -> bool:
        getattr(self._fitted, name)  # its own error explains why the method is missing
        return True

    method.__name__ = name
    return available_if(has_method)(method)


class _EstimatorWrapper(MetaEstimatorMixin, BaseEstimator):
    """Base class of estimators that delegate rows in memory to a wrapped estimator."""

    estimator: Any

    # Each method exists only if the wrapped estimator has it.
    predict = _make_predict_method("predict")
    predict_proba = _make_predict_method("predict_proba")
    predict_log_proba = _make_predict_method("predict_log_proba")
    decision_function = _make_predict_method("decision_function")
    transform = _make_predict_method("transform")

    @property
    def _fitted(self) -> Any:
        """The fitted clone, or the given estimator if `fit` was never called."""
        return vars(self).get("estimator_", self.estimator)

    def _as_sklearns(self) -> Any:
        """Return the wrapped estimator, which is exported instead of the wrapper."""
        return self._fitted

    def __getattr__(self, name: str) -> Any:
        # Fitted attributes (classes_, coef_, n_features_in_) are those of the wrapped estimator.
        # Only if `estimator` is set: while a copy or a pickle is being restored it is not, and
        # looking it up would recurse without end.
        if name.endswith("_") and not name.startswith("_") and "estimator" in vars(self):
            if name != "estimator_":
                return getattr(self._fitted, name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
        )

    def _check_target(self, y: Any) -> None:
        """Check that there is a target if the wrapped estimator needs one."""
        required = get_tags(self.estimator).target_tags.required
        if required or is_classifier(self.estimator) or is_regressor(self.estimator):
            check_given(y)

    def __sklearn_is_fitted__(self) -> bool:
        return is_fitted(self._fitted)

    def __sklearn_tags__(self) -> Any:
        tags, wrapped = super().__sklearn_tags__(), get_tags(self.estimator)
        for name in ("estimator_type", "classifier_tags", "regressor_tags", "transformer_tags"):
            setattr(tags, name, getattr(wrapped, name))
        tags.input_tags, tags.target_tags = wrapped.input_tags, wrapped.target_tags
        return tags


class ParallelPostFit(OnBlocks, _EstimatorWrapper):
    """Wrapper of any estimator that predicts Dask collections lazily, block by block.

    Use it for a model that was trained on rows in memory and must predict many more. Estimators of
    this package need no such wrapper: their predictions of Dask collections are already lazy.

    Parameters
    ----------
    estimator : estimator
        An estimator with scikit-learn's interface. A fitted one predicts unchanged until `fit` is
        called.
    scoring : str or callable, default=None
        Score of :meth:`score`: a name or a scorer, as in :func:`daskml_dist.metrics.get_scorer`.
        None: accuracy for a classifier, R^2 for a regressor.

    Attributes
    ----------
    estimator_ : estimator
        The fitted clone of `estimator`, after `fit` was called. Its fitted attributes
        (``classes_``, ``coef_``, ...) are attributes of the wrapper too.

    Notes
    -----
    Parameters are named as in ``dask_ml.wrappers.ParallelPostFit``.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> from daskml_dist.wrappers import ParallelPostFit
    >>> X, y = make_classification(random_state=0)
    >>> clf = ParallelPostFit(GradientBoostingClassifier(random_state=0)).fit(X, y)
    >>> many = da.from_array(X, chunks=(30, 20))
    >>> clf.predict_proba(many).chunks
    ((30, 30, 30, 10), (2,))
    >>> clf.score(many, da.from_array(y, chunks=30))
    1.0
    """

    def __init__(self, estimator: Any, *, scoring: str | Callable[..., Any] | None = None) -> None:
        self.estimator = estimator
        self.scoring = scoring

    @taking_client
    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit a clone of the estimator.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features). The rows of a Dask collection are gathered on one worker,
            where the estimator is fitted, unless it supports Dask collections itself.
        y : array-like, dask Array or dask Series of shape (n_rows,) or (n_rows, n_targets), or None
        client : distributed.Client, optional
            Client to compute with; the current one by default.
        **params
            Arguments of the estimator's ``fit``; `sample_weight`, of shape (n_rows,), may be lazy.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            The collections cannot be aligned or read; `y` is missing.
        """
        self._check_target(y)
        if any(map(is_dask, (X, y, params.get("sample_weight")))):
            X, y, weight = take_named_columns(X, y, params.pop("sample_weight", None))
            if weight is not None:
                params["sample_weight"] = weight
            (self.estimator_,) = fit_members([(self.estimator, X, y, params)])
        else:
            check_unique_names(X)
            # The `fit` of a transformer may not accept y.
            targets = () if y is None else (y,)
            self.estimator_ = clone(self.estimator).fit(
                convert_missing_to_nan(X), *targets, **params
            )
        return self

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the score of `scoring`, in one pass over a Dask collection.

        Parameters
        ----------
        X, y
            As in :meth:`fit`.
        sample_weight : like `y`, or None

        Returns
        -------
        float

        Raises
        ------
        InvalidParameterError
            There is no `scoring`, the estimator is neither classifier nor regressor, and `X` is a
            Dask collection.
        """
        check_fitted(self)
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        if self.scoring is not None:
            X, y, _ = take_named_columns(X, y, None)
            # Score the wrapper, not the wrapped estimator: the wrapper's predictions are lazy.
            return float(get_scorer(self.scoring)(self, X, y, **weights))
        if is_classifier(self) or is_regressor(self):
            return super().score(X, y, sample_weight)
        if is_dask(X):
            raise InvalidParameterError(
                f"{type(self.estimator).__name__} is neither a classifier nor a regressor, so "
                f"its blocks have no default score. Pass {type(self).__name__}(estimator, "
                "scoring=...)."
            )
        return float(self._fitted.score(X, y, **weights))


class Incremental(ParallelPostFit):
    """Wrapper of any estimator that learns from the blocks of a Dask collection in turn.

    The model is sent to the worker that holds the next block, so one worker trains at a time, with
    a single block in its memory. Estimators of this package train on all workers concurrently:
    prefer :class:`daskml_dist.linear_model.SGDClassifier` if it has the required loss.

    Parameters
    ----------
    estimator : estimator
        An estimator with ``partial_fit``.
    scoring : str or callable, default=None
        As in :class:`ParallelPostFit`.
    shuffle_blocks : bool, default=True
        Whether blocks are used in a random order, which differs in each call.
    random_state : int, RandomState or None, default=None
        Seed of the order.

    Attributes
    ----------
    estimator_ : estimator
        The trained estimator; its fitted attributes are attributes of the wrapper too.

    See Also
    --------
    ParallelPostFit : Base class; its prediction methods are lazy.

    Notes
    -----
    Parameters are named as in ``dask_ml.wrappers.Incremental``. `classes` need not be given: they
    are found in one pass over the `y` of the first call.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from daskml_dist.wrappers import Incremental
    >>> X, y = make_classification(n_samples=400, random_state=0)
    >>> X, y = da.from_array(X, chunks=(100, 20)), da.from_array(y, chunks=100)
    >>> clf = Incremental(GaussianNB()).fit(X, y)
    >>> clf.class_count_.sum()
    np.float64(400.0)
    >>> clf.predict(X)
    dask.array<..., shape=(400,), dtype=int64, chunksize=(100,), chunktype=numpy.ndarray>
    """

    def __init__(
        self,
        estimator: Any,
        *,
        scoring: str | Callable[..., Any] | None = None,
        shuffle_blocks: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(estimator, scoring=scoring)
        self.shuffle_blocks = shuffle_blocks
        self.random_state = random_state

    @taking_client
    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Train a new clone on each block once.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features). Rows in memory are one block.
        y : array-like, dask Array or dask Series of shape (n_rows,) or (n_rows, n_targets), or None
        client : distributed.Client, optional
            Client to compute with; the current one by default.
        **params
            Arguments of each call of ``partial_fit``: `classes`; `sample_weight`, of shape
            (n_rows,), of which each call gets the weights of its block.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            The estimator has no ``partial_fit``.
        InvalidDataError
            The collections cannot be aligned or read, or the estimator refuses a block; the error
            names the block.
        """
        return self._train_on_blocks(clone(self.estimator), X, y, params)

    @taking_client
    def partial_fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Train on each block once, from the last call's model; arguments and errors as in `fit`.

        `classes` of the first call must contain the labels of later calls too.
        """
        # A copy, so that a call that fails half-way does not change the last model.
        current = copy.deepcopy(vars(self).get("estimator_")) or clone(self.estimator)
        return self._train_on_blocks(current, X, y, params)

    def _train_on_blocks(self, estimator: Any, X: Any, y: Any, params: dict[str, Any]) -> Self:
        """Train an estimator in place, and store it as `estimator_`."""
        self._check_target(y)
        if not hasattr(estimator, "partial_fit"):
            raise InvalidParameterError(
                f"{type(estimator).__name__} has no partial_fit, so it cannot learn block by block."
                " Use ParallelPostFit, or fit it to rows in memory."
            )
        X, y, weight = take_named_columns(X, y, params.pop("sample_weight", None))
        # A classifier's first partial_fit needs the labels of all blocks.
        needs_classes = "classes" in signature(estimator.partial_fit).parameters
        if needs_classes and y is not None and not hasattr(estimator, "classes_"):
            if "classes" not in params:
                params["classes"] = find_labels(y)
        if not any(map(is_dask, (X, y, weight))):
            check_unique_names(X)
            self.estimator_ = _train_on_block(params, estimator, None, X, y, weight)
        elif takes_dask_collections(estimator):
            # This package's own estimators train on all workers concurrently: blocks need no order.
            params |= {} if weight is None else {"sample_weight": weight}
            self.estimator_ = estimator.partial_fit(X, y, **params)
        else:
            # One block after the other, in this order, since each task continues the previous
            # model.
            rows = as_collection(X, y, weight, numeric=False, multi_output=True)
            order = np.arange(len(rows.parts))
            if self.shuffle_blocks:
                # Rows are often stored in the order of time or of labels, and a model that learns
                # by steps would fit the last blocks best.
                order = check_random_state(self.random_state).permutation(order)
            with report_reading(type(self).__name__):
                self.estimator_ = fold_parts(
                    rows, partial(_train_on_block, params), estimator, order.tolist()
                )
        return self


def _train_on_block(
    params: dict[str, Any], estimator: Any, index: int | None, X: Any, y: Any, weight: Any
) -> Any:
    """Return a copy of an estimator, trained on the rows of one block."""
    if index is not None and not X.shape[0]:  # a filter may leave a block without rows
        return estimator
    # If a task is run again (because its worker was lost), its input model must be unchanged.
    trained = copy.deepcopy(estimator)
    teach_block(trained.partial_fit, params, index, X, y, weight)
    return trained
