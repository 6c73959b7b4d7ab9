"""What all classifiers share: labels of raw predictions, and accuracy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from daskml_dist._base import BaseSupervised
from daskml_dist.errors import InvalidParameterError

__all__ = ["BaseClassifier"]


class BaseClassifier(ClassifierMixin, BaseSupervised):
    """Labels and accuracy, of rows in memory or lazily.

    A raw prediction is one number a row, positive for the second of two classes, or one a class,
    the largest for the likeliest.
    """

    _classification = True
    classes_: NDArray[Any]

    def _all_classes(self, classes: Any, first: bool) -> Any:
        """The labels that ``partial_fit`` is to know: those named first, in each call."""
        if classes is None:
            if first:
                raise InvalidParameterError(
                    "classes must be passed on the first call to partial_fit: name every label "
                    "that will come."
                )
            return self.classes_
        labels = np.unique(classes)
        if len(labels) != len(classes):
            raise InvalidParameterError(
                f"`classes={classes!r}` names a label twice. Name each once: np.unique(classes)."
            )
        if not first and not np.array_equal(labels, self.classes_):
            raise InvalidParameterError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                f"{self.classes_!r}. Leave it out, or start with a new estimator."
            )
        return labels

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
        return self._map(partial(_write_labels, self.classes_), X, self.classes_.dtype, None)

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
        total, hits = self._score_sums(statistic, X, y, sample_weight)
        return float(hits / total)


def _write_labels(classes: NDArray[Any], raw: NDArray[Any], out: NDArray[Any]) -> None:
    best = raw > 0 if raw.ndim == 1 else raw.argmax(axis=1)
    classes.take(best, out=out, mode="clip")


def _hits(
    classes: NDArray[Any], y: NDArray[Any], raw: NDArray[Any], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    if raw.ndim == 1:
        positive = raw > 0
        hits = (positive & (y == classes[1])) | (~positive & (y == classes[0]))
    else:
        hits = classes[raw.argmax(axis=1)] == y
    return np.array([weight.sum(), weight @ hits])
