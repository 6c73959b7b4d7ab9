"""`ParallelPostFit`: lazy predictions of an estimator that knows nothing of Dask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier, is_regressor
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if

from daskml_dist.data.collection import take_named_columns
from daskml_dist.data.conversion import check_unique_names, convert_missing_to_nan
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.inference.fitted import is_fitted
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.members import check_given, fit_members
from daskml_dist.metrics.scorers import get_scorer
from daskml_dist.parameters.checks import taking_client

__all__ = ["ParallelPostFit"]


def _answer_of(name: str) -> Any:
    """Make the method of rows in memory that calls the wrapped estimator's own."""

    def method(self: Any, X: Any, **params: Any) -> Any:
        return getattr(self._fitted, name)(convert_missing_to_nan(X), **params)

    def has_method(self: Any) -> bool:
        getattr(self._fitted, name)  # its own error tells why there is none
        return True

    method.__name__ = name
    return available_if(has_method)(method)


class _Wrapped(MetaEstimatorMixin, BaseEstimator):
    """Base class of what answers rows in memory as a wrapped estimator does."""

    estimator: Any

    predict = _answer_of("predict")
    predict_proba = _answer_of("predict_proba")
    predict_log_proba = _answer_of("predict_log_proba")
    decision_function = _answer_of("decision_function")
    transform = _answer_of("transform")

    @property
    def _fitted(self) -> Any:
        """The fitted estimator; the one that was passed, where `fit` was never called."""
        return vars(self).get("estimator_", self.estimator)

    def _as_sklearns(self) -> Any:
        """Return the wrapped estimator, which an export is of."""
        return self._fitted

    def __getattr__(self, name: str) -> Any:
        # Fitted attributes (classes_, coef_, n_features_in_) are those of the wrapped estimator.
        if name.endswith("_") and not name.startswith("_") and "estimator" in vars(self):
            if name != "estimator_":
                return getattr(self._fitted, name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
        )

    def _check_target(self, y: Any) -> None:
        """Check that there is a target where the wrapped estimator needs one."""
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


class ParallelPostFit(OnBlocks, _Wrapped):
    """Estimator of any package whose answers to Dask collections are lazy, block by block.

    For a model that was trained on rows in memory and is to answer many more. Estimators of this
    package need no such wrapper: their answers are lazy anyhow.

    Parameters
    ----------
    estimator : estimator
        With scikit-learn's interface. One that is fitted already is used as it is, as long as
        `fit` is not called.
    scoring : str or callable, default=None
        Score of :meth:`score`: a name or a scorer, as :func:`daskml_dist.metrics.get_scorer` takes
        it. None: accuracy of a classifier, R^2 of a regressor.

    Attributes
    ----------
    estimator_ : estimator
        The fitted clone of `estimator`, once `fit` was called. Its fitted attributes (``classes_``,
        ``coef_``, ...) are attributes of the wrapper too.

    Notes
    -----
    Names and meaning are those of ``dask_ml.wrappers.ParallelPostFit``.

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
            Of shape (n_rows, n_features). The rows of a Dask collection are gathered on one
            worker, where the estimator is fitted, unless it takes Dask collections itself.
        y : array-like, dask Array or dask Series of shape (n_rows,) or (n_rows, n_targets), or None
        client : distributed.Client, optional
            That everything is computed by; by default the current one.
        **params
            For the estimator's ``fit``; `sample_weight`, of shape (n_rows,), may be lazy too.

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
            given = (convert_missing_to_nan(X),) if y is None else (convert_missing_to_nan(X), y)
            self.estimator_ = clone(self.estimator).fit(*given, **params)
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
            return float(get_scorer(self.scoring)(self, X, y, **weights))
        if is_classifier(self) or is_regressor(self):
            return super().score(X, y, sample_weight)
        if is_dask(X):
            raise InvalidParameterError(
                f"{type(self.estimator).__name__} is neither classifier nor regressor, so there is "
                f"no score of its blocks. Pass {type(self).__name__}(estimator, scoring=...)."
            )
        return float(self._fitted.score(X, y, **weights))
