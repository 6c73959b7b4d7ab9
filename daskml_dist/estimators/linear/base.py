"""Base classes of linear models: fitted coefficients, raw predictions, classifiers, regressors.

Inside the package the parameters of a linear model are one matrix of shape
(n_features + fit_intercept, width): a column for each output, the intercepts as its last row.
`BaseLinear` translates between it and scikit-learn's `coef_` and `intercept_`.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import RegressorMixin
from sklearn.utils.metaestimators import available_if

from daskml_dist.backends.base import Backend
from daskml_dist.backends.devices import get_backend
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.estimators.base import BaseOnRows
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.regressor import score_r2
from daskml_dist.inference.independent_rows import multiply_each_row
from daskml_dist.inference.row_mapping import write_in_place
from daskml_dist.losses import get_loss
from daskml_dist.losses.base import Loss
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.base import Solution
from daskml_dist.training.dataset_info import DatasetInfo


class BaseLinear(BaseOnRows):
    """Base class of linear models: fitted attributes and raw predictions."""

    _needs_target = True
    #: Whether a `coef_` with a single row has one dimension.
    _flat_coef: ClassVar[bool] = False

    coef_: Any

    @abstractmethod
    def _loss(self) -> Loss:
        """Return the loss; raise an InvalidParameterError if its parameters are not valid."""

    def _set_fitted(self, solution: Solution, model: LinearModel, rows: DatasetInfo) -> None:
        """Set the fitted attributes from the solution of a round solver."""
        # The solver's parameters are for shifted targets, in float64.
        w = model.uncentred(solution.w).astype(rows.summary.dtype)
        self._set_coef(w, model, rows.classes, "Scale the features (StandardScaler).")

    def _set_coef(
        self, w: NDArray[Any], model: LinearModel, classes: NDArray[Any] | None, remedy: str
    ) -> None:
        """Set the fitted attributes from the parameters; `remedy` ends the error for NaN."""
        if not np.isfinite(w).all():
            raise DivergedError(f"The parameters became NaN or infinite. {remedy}")
        n_features = self.n_features_in_ = model.n_features
        self._loss_of_fit = model.loss
        coef = w[:n_features].T
        intercept = w[n_features] if model.fit_intercept else np.zeros(model.width, dtype=w.dtype)
        if classes is not None:
            self.classes_ = classes
        # scikit-learn's shapes: coefficients of one target have one dimension, those of two classes
        # have one row.
        has_one_target = classes is None and model.n_targets is None
        if has_one_target or (self._flat_coef and len(coef) == 1):
            coef = coef[0]
        # Copies in C order: the transposed view would keep the solver's matrix alive.
        self.coef_, self.intercept_ = coef.copy(), intercept.copy()

    def _dense_coef(self) -> NDArray[Any]:
        """Return `coef_` as an array; ``sparsify`` may have made it sparse."""
        if not sparse.issparse(self.coef_):
            return np.asarray(self.coef_)
        # A sparse matrix has two dimensions even if `coef_` has one.
        dense: NDArray[Any] = np.asarray(self.coef_.toarray())
        return dense if self._classification or len(dense) > 1 else dense[0]

    def _join_coefficients(self) -> NDArray[Any]:
        """Return the parameters as one matrix of shape (n_features + fit_intercept, width)."""
        coef = np.atleast_2d(self._dense_coef()).T
        if not self._all_params()["fit_intercept"]:
            return coef
        return np.vstack([coef, np.reshape(self.intercept_, (1, -1))])

    def _find_warm_start(self, model: LinearModel) -> NDArray[Any] | None:
        """Return the last fit's parameters if `warm_start` is set and their shape suits."""
        if not self._all_params()["warm_start"] or not hasattr(self, "coef_"):
            return None
        w = self._join_coefficients()
        return w if w.shape == model.shape else None

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return _RawPrediction(self._dense_coef(), self.intercept_)


def _has_proba(estimator: LinearClassifier) -> bool:
    """Return whether the loss has probabilities, else raise an AttributeError with the remedy."""
    try:
        loss = estimator._prediction_loss
        if not loss.proba:
            loss.predict_proba(np.empty(0))
    except InvalidParameterError as error:
        raise AttributeError(str(error)) from error
    return True


class LinearClassifier(BaseClassifier, BaseLinear):
    """Base class of linear classifiers: raw predictions and probabilities.

    An estimator has an attribute ``loss``, or overrides :meth:`_loss`.
    """

    loss: str | Loss

    def _loss(self) -> Loss:
        return get_loss(self.loss, "classification")

    def decision_function(self, X: Any) -> Any:
        """Return the raw predictions, ``X @ coef_.T + intercept_``; lazily for a Dask collection.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,) or (n_rows, n_classes)
        """
        self._check_fitted(X)
        n_outputs = len(np.atleast_1d(self.intercept_))
        return self._map_raw_predictions(
            None, X, self.coef_.dtype, None if n_outputs == 1 else n_outputs
        )

    @available_if(_has_proba)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes; defined only for losses that have them.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_classes)

        Raises
        ------
        AttributeError
            The loss has no probabilities.
        """
        self._check_fitted(X)
        return self._map_raw_predictions(
            self._prediction_loss.write_proba, X, self.coef_.dtype, len(self.classes_)
        )

    @available_if(_has_proba)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of :meth:`predict_proba`, with the same parameters and shape."""
        return np.log(self.predict_proba(X))


class LinearRegressor(RegressorMixin, BaseLinear):
    """Base class of linear regressors: predicted targets and R^2.

    An estimator has an attribute ``loss``, or overrides :meth:`_loss`.
    """

    loss: str | Loss

    def _loss(self) -> Loss:
        return get_loss(self.loss, "regression")

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return self._prediction_loss.inverse_link

    score = score_r2

    def predict(self, X: Any) -> Any:
        """Return the predicted targets, by the inverse link of the loss.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,), or (n_rows, n_targets)
        """
        self._check_fitted(X)
        coef = self._dense_coef()
        n_outputs = len(coef) if coef.ndim == 2 else None
        return self._map_raw_predictions(
            write_in_place(self._inverse_link()), X, self.coef_.dtype, n_outputs
        )


def sparsify(self: Any) -> Any:
    """Make `coef_` a sparse matrix, which takes less memory if most of it is zero.

    Predictions do not change. A continued fit (``partial_fit``, `warm_start`) makes it dense again.

    Returns
    -------
    self
        With `coef_` of shape (1, n_features) or (n_classes, n_features), in CSR format.

    Raises
    ------
    NotFittedError
    """
    self._check_fitted()
    self.coef_ = sparse.csr_matrix(self.coef_)
    return self


def densify(self: Any) -> Any:
    """Make `coef_` an array again.

    Returns
    -------
    self

    Raises
    ------
    NotFittedError
    """
    self._check_fitted()
    self.coef_ = self._dense_coef()
    return self


@dataclass(frozen=True, eq=False)
class _RawPrediction:
    """Picklable function ``X @ coef.T + intercept`` of rows, for `map_rows`."""

    coef: NDArray[Any]
    intercept: NDArray[Any]

    #: NaN times any coefficient is NaN, and infinity times any is not finite: `map_rows` detects
    #: missing values in the results, and need not search the rows.
    shows_not_finite = True

    def __call__(self, X: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        w = self._weights
        if isinstance(X, np.ndarray):
            w = w[:, 0] if w.shape[1] == 1 else w
            if out is None:
                return self._add_intercept(self._in_dtype(X @ w))
            # `out` is reused for each block; the last block may have fewer rows.
            return self._add_intercept(np.matmul(X, w, out=out[: len(X)]))
        return self._add_intercept(self._in_dtype(get_backend("cpu").dot(X, w)))

    def for_each_row(self, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return the function of :meth:`for_dtype` for rows that are each computed alone."""
        return self.for_dtype(dtype, multiply_each_row)

    def for_dtype(
        self, dtype: np.dtype[Any], product: Callable[[Any, Any], NDArray[Any]] = operator.matmul
    ) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return the function of dense rows of one dtype, for many calls with few rows each."""
        # For single rows (serving), resolving dtypes and shapes would cost more than the product.
        w = self._weights
        raw = np.empty(0, np.result_type(dtype, w))
        out_dtype = self._in_dtype(raw).dtype
        is_single = w.shape[1] == 1
        w, shift = (w[:, 0], np.ravel(self.intercept)[0]) if is_single else (w, self.intercept)
        keeps_dtype = out_dtype == raw.dtype

        def apply(X: NDArray[Any]) -> NDArray[Any]:
            raw = product(X, w) if keeps_dtype else product(X, w).astype(out_dtype)
            raw += shift
            return raw

        return apply

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the function of rows of a dtype on a device; only the products leave it."""
        w = backend.to_device(self._weights.astype(np.result_type(self.coef, dtype)))
        return lambda X: self._add_intercept(self._in_dtype(backend.to_numpy(backend.dot(X, w))))

    @property
    def _weights(self) -> NDArray[Any]:
        """Return the coefficients as a matrix of shape (n_features, width)."""
        return np.atleast_2d(self.coef).T

    def _in_dtype(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Return products in the dtype of the predictions, float32 at least."""
        return raw.astype(np.result_type(raw, self.intercept, np.float32), copy=False)

    def _add_intercept(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Add the intercept in place; return the raw predictions."""
        raw += np.ravel(self.intercept)[0] if raw.ndim == 1 else self.intercept
        return raw
