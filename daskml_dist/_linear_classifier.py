"""What linear classifiers predict."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from daskml_dist._base import BaseLinear
from daskml_dist.losses import Loss, get_loss

__all__ = ["LinearClassifier"]


class LinearClassifier(ClassifierMixin, BaseLinear):
    """Labels, raw predictions, probabilities and accuracy, of rows in memory or lazily.

    An estimator has an attribute ``loss``, or overrides :meth:`_loss`.
    """

    _classification = True
    loss: str | Loss
    classes_: NDArray[Any]

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
        n_outputs = None if len(self.coef_) == 1 else len(self.coef_)
        return self._map(_same, X, self.coef_.dtype, n_outputs)

    def predict(self, X: Any) -> Any:
        """Most likely labels.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,)
        """
        self._check_fitted(X)
        return self._map(partial(_labels, self.classes_), X, self.classes_.dtype, None)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes; not every loss has them.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_classes)

        Raises
        ------
        InvalidParameterError
            For another loss.
        """
        self._check_fitted(X)
        loss = self._loss()
        if not loss.proba:
            loss.predict_proba(np.empty(0))
        return self._map(loss.predict_proba, X, self.coef_.dtype, len(self.classes_))

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithm of :meth:`predict_proba`, with the same parameters and shape."""
        return np.log(self.predict_proba(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean accuracy, in one pass over the blocks.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        float
        """
        self._check_fitted()
        statistic = partial(_hits, self.classes_)
        total, hits, *_ = self._score_sums(statistic, X, y, sample_weight)
        return float(hits / total)


def _same(raw: NDArray[Any]) -> NDArray[Any]:
    return raw


def _labels(classes: NDArray[Any], raw: NDArray[Any]) -> NDArray[Any]:
    if raw.ndim == 1:
        return np.asarray(np.where(raw > 0, classes[1], classes[0]))
    return np.asarray(classes[raw.argmax(axis=1)])


def _hits(
    classes: NDArray[Any], y: NDArray[Any], raw: NDArray[Any], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.array([weight.sum(), weight @ (_labels(classes, raw) == y), 0.0, 0.0])
