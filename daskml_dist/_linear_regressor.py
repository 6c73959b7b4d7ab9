"""Predictions of linear regressors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from daskml_dist._linear import BaseLinear
from daskml_dist.data.spread import Spread
from daskml_dist.inference.predict import written
from daskml_dist.losses import Loss, get_loss

__all__ = ["LinearRegressor"]


class LinearRegressor(RegressorMixin, BaseLinear):
    """Targets and R^2, of rows in memory or lazily.

    An estimator has an attribute ``loss``, or overrides :meth:`_loss`.
    """

    loss: str | Loss

    def _loss(self) -> Loss:
        return get_loss(self.loss, "regression")

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
        n_outputs = len(self.coef_) if self.coef_.ndim == 2 else None
        return self._map(written(self._loss().inverse_link), X, self.coef_.dtype, n_outputs)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 of the prediction, in one pass over the blocks.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        float
            NaN where y is constant; the mean of that of each target where there are several.
        """
        statistic = _Residuals(self._loss())
        found: _Fit = self._score_sums(statistic, X, y, sample_weight)
        errors, spread = found.errors, found.targets.squares
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.where(spread > 0, 1 - errors / spread, np.nan).mean())


@dataclass(frozen=True, eq=False)
class _Fit:
    """Sums that R^2 is made from: of targets, and of their weighted squared errors."""

    targets: Spread
    errors: NDArray[np.float64]

    def __add__(self, other: _Fit) -> _Fit:
        return _Fit(self.targets + other.targets, self.errors + other.errors)


class _Residuals:
    """Sums of some rows that R^2 is made from."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, y: NDArray[Any], raw: NDArray[Any], weight: NDArray[np.float64]) -> _Fit:
        predicted = self._loss.inverse_link(raw).reshape(y.shape)
        residual = np.subtract(y, predicted, dtype=np.float64)
        return _Fit(Spread.of(y, weight), np.atleast_1d(weight @ residual**2))
