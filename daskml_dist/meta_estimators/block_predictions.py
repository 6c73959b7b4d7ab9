"""Mixin that runs the prediction methods of scikit-learn's ensembles on each block of rows.

An ensemble derives from `OnBlocks` and from scikit-learn's class. Each method here looks up the
method of the next base class with ``super(OnBlocks, self)``: it exists only if that method exists,
calls it for rows in memory, and maps it over the blocks of a Dask collection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.metaestimators import available_if

from daskml_dist.data.collection import take_named_columns
from daskml_dist.data.conversion import (
    check_unique_names,
    convert_foreign,
    convert_object_values,
    copy_to_host,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.sklearn_errors import check_fitted, make_not_fitted_error
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.estimators.transformer import answer_lazily
from daskml_dist.metrics.scorers import get_scorer


class OnBlocks(EstimatorMixin):
    """Mixin that, placed before a scikit-learn ensemble in the bases, predicts Dask rows lazily.

    One task predicts a block, with all members.
    """

    #: Whether the ensemble itself reads rows (for example to select columns): then CuPy arrays are
    #: copied to host memory first. Otherwise only its members read them, possibly on the GPU.
    _reads_rows: ClassVar[bool] = False

    def _will_have(self, name: str) -> bool:
        """Return whether a method is only missing because the ensemble is not fitted yet."""
        return False

    def _as_of_fit(self) -> Any:
        """Return the ensemble with those parameters of its fit that its predictions read."""
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return mean accuracy or R^2 of a classifier or regressor; arguments as in :meth:`fit`."""
        check_fitted(self)
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        name = "accuracy" if is_classifier(self) else "r2"
        if name == "accuracy" and isinstance(y, np.ndarray) and y.ndim == 1:
            y = convert_object_values(y)
        return float(get_scorer(name)(self, X, y, sample_weight=sample_weight))


_METHOD_DOC = """{summary}

Parameters
----------
X : as in :meth:`fit`
**params
    Metadata that scikit-learn routes to the members.

Returns
-------
ndarray, or lazy dask Array where X is a Dask collection
    {shape}
"""
#: Prediction methods: summary and shape of the result, for their docstrings.
_METHODS = {
    "predict": ("Predict labels or targets of rows.", "Of shape (n_rows,)."),
    "predict_proba": ("Predict the probabilities of the classes.", "Of shape (n_rows, n_classes)."),
    "predict_log_proba": (
        "Predict the logarithms of the probabilities of the classes.",
        "Of shape (n_rows, n_classes).",
    ),
    "decision_function": (
        "Return the scores of the classes.",
        "Of shape (n_rows,) for two classes, else (n_rows, n_classes).",
    ),
    "transform": (
        "Return the predictions of the members, side by side.",
        "Of shape (n_rows, n_columns).",
    ),
}


def _make_method(name: str, summary: str, shape: str) -> Any:
    """Return the method with a name: lazy for Dask rows, otherwise the ensemble's own."""

    def get_own(self: Any) -> Callable[..., Any]:
        bound_method: Callable[..., Any] = getattr(super(OnBlocks, self), name)
        return bound_method

    def method(self: Any, X: Any, **params: Any) -> Any:
        if self._will_have(name):  # the method exists only after the fit
            raise make_not_fitted_error(self)
        if is_dask(X := convert_foreign(X)):
            return answer_lazily(self, name, X, params)
        if self._reads_rows:
            X = copy_to_host(X)
        check_unique_names(X)
        # `transform` puts the members' predictions side by side, which works for zero rows; the
        # other methods average them.
        if name != "transform":
            _check_some_rows(self, X)
        return get_own(self._as_of_fit())(X, **params)

    def check(self: Any) -> bool:
        try:
            return get_own(self) is not None
        except AttributeError as error:
            if self._will_have(name):
                return True
            # The cause is scikit-learn's error, which explains why the method is missing.
            raise (error.__cause__ or error) from None

    method.__name__ = name
    method.__qualname__ = f"OnBlocks.{name}"
    method.__doc__ = _METHOD_DOC.format(summary=summary, shape=shape)
    return available_if(check)(method)


# Methods are set here, after the class, since each calls `super(OnBlocks, self)`.
for _name, _texts in _METHODS.items():
    setattr(OnBlocks, _name, _make_method(_name, *_texts))


def _check_some_rows(estimator: Any, X: Any) -> None:
    """Raise an error if there are no rows: means and votes of an ensemble would be undefined."""
    check_fitted(estimator)
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) == 2 and not shape[0]:
        raise InvalidDataError(
            f"Found array with 0 sample(s) (shape={shape}) while a minimum of 1 is required by "
            f"{type(estimator).__name__}. Check the files or the filter that X comes from."
        )
