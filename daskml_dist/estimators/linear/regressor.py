"""Predictions of linear regressors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from daskml_dist.estimators.linear.base import BaseLinear
from daskml_dist.estimators.regressor import BaseRegressor
from daskml_dist.estimators.supervised import as_columns
from daskml_dist.inference.predict import written
from daskml_dist.losses import Loss, get_loss

__all__ = ["LinearRegressor", "SeveralTargets"]


class LinearRegressor(BaseRegressor, BaseLinear):
    """Targets and R^2, of rows in memory or lazily.

    An estimator has an attribute ``loss``, or overrides :meth:`_loss`.
    """

    loss: str | Loss

    def _loss(self) -> Loss:
        return get_loss(self.loss, "regression")

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return self._loss().inverse_link

    def predict(self, X: Any) -> Any:
        """Predicted targets.

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
            written(self._inverse_link()), X, self.coef_.dtype, n_outputs
        )


class SeveralTargets(LinearRegressor):
    """One target, or several columns of them, each of which is fitted as if it were alone.

    A single column is one target, as if it were given flat.
    """

    _multi_output = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _prepare_inputs(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        X, y, sample_weight = super()._prepare_inputs(X, y, sample_weight)
        return X, as_columns(y), sample_weight
