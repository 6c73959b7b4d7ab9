"""Predictions of linear classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.metaestimators import available_if

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.linear.base import BaseLinear
from daskml_dist.losses import Loss, get_loss

__all__ = ["LinearClassifier"]


def _has_proba(estimator: LinearClassifier) -> bool:
    """Whether the loss has probabilities; raises an AttributeError that names the remedy."""
    try:
        loss = estimator._loss()
        if not loss.proba:
            loss.predict_proba(np.empty(0))
    except InvalidParameterError as error:
        raise AttributeError(str(error)) from error
    return True


class LinearClassifier(BaseClassifier, BaseLinear):
    """Raw predictions and probabilities, of rows in memory or lazily.

    An estimator has an attribute ``loss``, or overrides :meth:`_loss`.
    """

    loss: str | Loss

    def _loss(self) -> Loss:
        return get_loss(self.loss, "classification")

    def decision_function(self, X: Any) -> Any:
        """Raw predictions.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,) or (n_rows, n_classes)
        """
        self._check_fitted(X)
        n_rows = len(np.atleast_1d(self.intercept_))
        n_outputs = None if n_rows == 1 else n_rows
        return self._map_raw_predictions(None, X, self.coef_.dtype, n_outputs)

    @available_if(_has_proba)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes; there where the loss has them.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_classes)

        Raises
        ------
        AttributeError
            The loss has none.
        """
        self._check_fitted(X)
        return self._map_raw_predictions(
            self._loss().write_proba, X, self.coef_.dtype, len(self.classes_)
        )

    @available_if(_has_proba)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Logarithm of :meth:`predict_proba`, with the same parameters and shape."""
        return np.log(self.predict_proba(X))
