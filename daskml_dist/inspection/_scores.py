"""Scores that come from sums over rows, by scikit-learn's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError

__all__ = ["SCORES", "Score", "Target", "score_of"]

Sums = NDArray[np.float64]
Array = NDArray[Any]


@dataclass(frozen=True)
class Target:
    """Facts of all targets that scores need.

    Parameters
    ----------
    centre : float
        Mean of targets that are numbers.
    classes : ndarray, or None
    """

    centre: float
    classes: Array | None


@dataclass(frozen=True)
class Score:
    """Score of rows; larger is better.

    Parameters
    ----------
    method : str
        Of the estimator, that is called.
    sums : callable
        From targets, answers, weights and the `Target` to sums, of which the first is that of the
        weights.
    score : callable
        From the sums of all rows to the score.
    """

    method: str
    sums: Callable[[Array, Array, Array, Target], list[Any]]
    score: Callable[[Sums], float]

    def of(self, sums: Sums) -> float:
        """Score of the sums of all rows."""
        if sums[0] == 0:
            raise InvalidDataError(
                "The sample weights of the rows sum to zero, so there is no score. Give some rows "
                "a positive weight, or raise max_samples."
            )
        return float(self.score(sums))


def _hits(y: Array, found: Array, w: Array, target: Target) -> list[Any]:
    return [w.sum(), w @ (y == found)]


def _squares(y: Array, found: Array, w: Array, target: Target) -> list[Any]:
    return [w.sum(), w @ (y - found) ** 2]


def _absolutes(y: Array, found: Array, w: Array, target: Target) -> list[Any]:
    return [w.sum(), w @ np.abs(y - found)]


def _squares_and_variance(y: Array, found: Array, w: Array, target: Target) -> list[Any]:
    apart = y - target.centre
    return [w.sum(), w @ (y - found) ** 2, w @ apart, w @ apart**2]


def _logs(y: Array, found: Array, w: Array, target: Target) -> list[Any]:
    assert target.classes is not None
    at = np.searchsorted(target.classes, y)
    at = np.minimum(at, len(target.classes) - 1)
    if not np.array_equal(target.classes[at], y):
        raise InvalidDataError("y holds labels that the estimator does not know. Drop such rows.")
    shares = np.asarray(found, np.float64)
    own = np.take_along_axis(shares, at[:, None], axis=1)[:, 0] / shares.sum(axis=1)
    eps = np.finfo(found.dtype).eps
    return [w.sum(), w @ -np.log(np.clip(own, eps, 1 - eps))]


def _determination(sums: Sums) -> float:
    weight, residual, apart, squares = sums
    total = squares - apart**2 / weight
    return 1 - residual / total if total > 0 else float(residual == 0)


def _mean(sums: Sums) -> float:
    return float(sums[1] / sums[0])


def _minus_mean(sums: Sums) -> float:
    return -_mean(sums)


def _minus_root(sums: Sums) -> float:
    return -float(np.sqrt(_mean(sums)))


#: Scores by scikit-learn's names of them.
SCORES: dict[str, Score] = {
    "accuracy": Score("predict", _hits, _mean),
    "neg_log_loss": Score("predict_proba", _logs, _minus_mean),
    "neg_mean_absolute_error": Score("predict", _absolutes, _minus_mean),
    "neg_mean_squared_error": Score("predict", _squares, _minus_mean),
    "neg_root_mean_squared_error": Score("predict", _squares, _minus_root),
    "r2": Score("predict", _squares_and_variance, _determination),
}


def score_of(estimator: Any, scoring: Any) -> Score | None:
    """The score of a name, or the estimator's own; None for a function."""
    from sklearn.base import is_classifier, is_regressor

    names = f"Use one of {sorted(SCORES)}"
    if scoring is None:
        if not (is_classifier(estimator) or is_regressor(estimator)):
            raise InvalidParameterError(
                f"{type(estimator).__name__} is neither a classifier nor a regressor, so it has no "
                f"score by default. {names} as `scoring`."
            )
        scoring = "accuracy" if is_classifier(estimator) else "r2"
    if callable(scoring):
        return None
    if not isinstance(scoring, str) or scoring not in SCORES:
        raise InvalidParameterError(
            f"scoring={scoring!r} does not come from sums over rows. {names}; of rows in memory "
            "also a function of (estimator, X, y)."
        )
    found = SCORES[scoring]
    if not hasattr(estimator, found.method):
        raise InvalidParameterError(
            f"scoring={scoring!r} needs {found.method}, which this {type(estimator).__name__} does "
            f"not have. {names}."
        )
    return found
