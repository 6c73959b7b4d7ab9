"""Scores of early stopping: scikit-learn's scorers on the raw predictions of a fit under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer, get_scorer_names

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.nearest import nearest
from daskml_dist.solvers.boosting_scores import Scorer

__all__ = ["check_scoring", "scorer_of", "shares"]

Array = NDArray[Any]


def check_scoring(scoring: Any) -> None:
    """Check the parameter `scoring`."""
    if scoring is None or callable(scoring) or scoring == "loss":
        return
    if not isinstance(scoring, str) or scoring not in get_scorer_names():
        raise InvalidParameterError(
            f'scoring={scoring!r}: use "loss", None for the score of the estimator, a name of '
            "sklearn.metrics.get_scorer_names(), or a function of (estimator, X, y)."
            f"{nearest(scoring, ['loss', *get_scorer_names()])}"
        )


def scorer_of(scoring: Any, classes: Array | None, link: Callable[[Array], Array]) -> Scorer | None:
    """The scorer of a parameter that is checked; None for the loss."""
    if isinstance(scoring, str) and scoring == "loss":
        return None
    return _Scores(scoring, classes, link)


def shares(raw: Array) -> Array:
    """Probabilities of the classes, of raw predictions."""
    if raw.ndim == 1:
        found = np.empty((len(raw), 2))
        expit(raw, out=found[:, 1])
        np.subtract(1, found[:, 1], out=found[:, 0])
        return found
    return np.asarray(softmax(raw, axis=1))


@dataclass(frozen=True, eq=False)
class _Scores:
    """Score of some rows by their raw predictions.

    Parameters
    ----------
    scoring : str, callable or None
    classes : ndarray or None
    link : callable
        From raw predictions to targets, without classes.
    """

    scoring: Any
    classes: Array | None
    link: Callable[[Array], Array]

    def __call__(self, raw: Array, y: Array, weight: Array | None) -> float:
        raw = raw[:, 0] if raw.shape[1] == 1 else raw
        estimator: Any = _Regressor(self.link(raw))
        if self.classes is not None:
            estimator, y = _Classifier(raw, self.classes), self.classes[y.astype(np.intp)]
        # Rows of X are places, so that a function may leave some out.
        given = (estimator, np.arange(len(y))[:, None], y)
        more = {} if weight is None else {"sample_weight": weight}
        if isinstance(self.scoring, str):
            try:
                return float(get_scorer(self.scoring)(*given, **more))
            except (AttributeError, TypeError, ValueError) as error:
                raise InvalidDataError(
                    f"scoring={self.scoring!r} cannot score the rows: {error}. Use a scorer of "
                    'such targets and predictions, or "loss".'
                ) from error
        found = (self.scoring or _own_score)(*given, **more)
        try:
            return float(found)
        except (TypeError, ValueError) as error:
            raise InvalidDataError(
                f"scoring={self.scoring!r} answered {type(found).__name__}. Return one number."
            ) from error


def _own_score(estimator: Any, X: Array, y: Array, sample_weight: Array | None = None) -> Any:
    return estimator.score(X, y, sample_weight)


class _Regressor(RegressorMixin, BaseEstimator):
    """Regressor that answers what is known of places of rows."""

    def __init__(self, answers: Array) -> None:
        self.answers = answers

    def predict(self, X: Array) -> Array:
        return np.asarray(self.answers[np.asarray(X)[:, 0]])


class _Classifier(ClassifierMixin, BaseEstimator):
    """Classifier that answers by the raw predictions of places of rows."""

    def __init__(self, raw: Array, classes: Array) -> None:
        self.raw, self.classes = raw, classes
        self.classes_ = classes

    def decision_function(self, X: Array) -> Array:
        return np.asarray(self.raw[np.asarray(X)[:, 0]])

    def predict_proba(self, X: Array) -> Array:
        return shares(self.decision_function(X))

    def predict(self, X: Array) -> Array:
        raw = self.decision_function(X)
        return np.asarray(self.classes_[(raw > 0).astype(int) if raw.ndim == 1 else raw.argmax(1)])
