"""Calibrators: functions from a classifier's answers to probabilities, fitted in few passes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from dask.base import persist
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn import calibration
from sklearn.isotonic import IsotonicRegression

from daskml_dist.calibration._answers import Answers
from daskml_dist.data.collection import Collection
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidParameterError
from daskml_dist.metrics._runs import ScoreRun, make_score_run, merge_score_runs

__all__ = ["MAX_SCORES", "by_scores", "by_temperature"]

#: Distinct scores of a class that are kept, 32 bytes each.
MAX_SCORES = 2**18
#: Bounds of the logarithm of an inverse temperature.
_MOST = 10.0
_PASSES = 60


# --- sigmoid and isotonic: of distinct scores, and the weight of either label at each -----------


def by_scores(
    lots: Collection, labels: list[list[int]], method: str, limit: int = MAX_SCORES
) -> list[list[Any]]:
    """Fit one calibrator a class, each to all answers of a lot; one pass."""
    runs = reduce_parts(
        lots, partial(_runs_of, labels=labels, limit=limit), partial(_merged, limit=limit)
    )
    make = _isotonic if method == "isotonic" else _sigmoid
    return [[make(run, dtype) for run, dtype in lot] for lot in runs]


def _runs_of(
    index: int, answers: list[Answers | None], y: Any, w: Any, *, labels: Any, limit: int
) -> Any:
    found: list[list[tuple[ScoreRun, Any] | None]] = []
    for lot, columns in zip(answers, labels, strict=True):
        if lot is None:
            found.append([None] * len(columns))
            continue
        found.append(
            [
                (
                    make_score_run(
                        (lot.labels == label).astype(np.int64), scores, lot.weights, limit
                    ),
                    scores.dtype,
                )
                for label, scores in zip(columns, lot.scores.T, strict=True)
            ]
        )
    return found


def _merged(parts: list[Any], limit: int) -> Any:
    return [
        [_one_of([part[i][k] for part in parts], limit) for k in range(len(lot))]
        for i, lot in enumerate(parts[0])
    ]


def _one_of(runs: list[Any], limit: int) -> Any:
    filled = [one for one in runs if one is not None]
    if len(filled) < 2:
        return filled[0] if filled else None
    return merge_score_runs([run for run, _ in filled], limit), filled[0][1]


def _sums(run: ScoreRun, dtype: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Scores, and the weights of other labels and of the class at each."""
    weights = np.zeros((len(run.low), 2))
    weights[:, run.labels.astype(np.int64)] = run.weights
    some = weights.sum(axis=1) > 0
    return ((run.low + run.high) / 2).astype(dtype)[some], weights[some]


def _isotonic(run: ScoreRun, dtype: Any) -> Any:
    scores, weights = _sums(run, dtype)
    total = weights.sum(axis=1)
    fitted = IsotonicRegression(out_of_bounds="clip")
    return fitted.fit(scores, weights[:, 1] / total, sample_weight=total)


def _sigmoid(run: ScoreRun, dtype: Any) -> Any:
    scores, weights = _sums(run, np.float64)
    labels = np.repeat([0.0, 1.0], len(scores))
    of_labels, n_labels = weights.T.ravel(), np.tile(scores, 2)
    some = of_labels > 0
    return calibration._SigmoidCalibration().fit(n_labels[some], labels[some], of_labels[some])


# --- temperature: of all classes together -----------------------------------------------------


def by_temperature(lots: Collection, n_lots: int, are_decisions: bool) -> list[list[Any]]:
    """Fit the temperature of each lot's answers: Newton's method, all lots in the same passes."""
    kind = getattr(calibration, "_TemperatureScaling", None)
    if kind is None:
        raise InvalidParameterError(
            "method='temperature' needs scikit-learn 1.8 or newer. Update it, or use 'sigmoid'."
        )
    kept = list(persist(*[part[0] for part in lots.parts]))
    lots = Collection(**{**vars(lots), "parts": [(one, None, None) for one in kept]})
    found = []
    for one in _temperatures(lots, n_lots, are_decisions):
        fitted = kind()
        fitted.beta_ = np.exp(one)
        found.append([fitted])
    return found


def _temperatures(lots: Collection, n_lots: int, are_decisions: bool) -> NDArray[np.float64]:
    """Logarithms of the inverse temperatures, a lot each."""
    low, high = np.full(n_lots, -_MOST), np.full(n_lots, _MOST)
    at = np.zeros(n_lots)
    for _ in range(_PASSES):
        slopes, curves = reduce_parts(lots, partial(_slopes, np.exp(at), are_decisions), _added)
        low, high = np.where(slopes < 0, at, low), np.where(slopes < 0, high, at)
        with np.errstate(divide="ignore", invalid="ignore"):
            ahead = np.log(np.exp(at) - slopes / curves)
        inside = (ahead > low) & (ahead < high)
        ahead = np.where(slopes == 0, at, np.where(inside, ahead, (low + high) / 2))
        done = np.abs(ahead - at).max() < 1e-12
        at = ahead
        if done:
            break
    return at


def _slopes(
    betas: NDArray[np.float64], are_decisions: bool, index: int, answers: Any, y: Any, w: Any
) -> NDArray[np.float64]:
    """Slope and curvature of the loss of each lot, by its inverse temperature."""
    out = np.zeros((2, len(betas)))
    for i, (lot, beta) in enumerate(zip(answers, betas, strict=True)):
        if lot is None:
            continue
        logits = _logits(lot.scores.astype(np.float64), are_decisions)
        raw = beta * logits
        shares = np.exp(raw - logsumexp(raw, axis=1, keepdims=True))
        mean = (shares * logits).sum(axis=1)
        own = logits[np.arange(len(logits)), lot.labels]
        out[0, i] = lot.weights @ (mean - own)
        out[1, i] = lot.weights @ (shares * (logits - mean[:, None]) ** 2).sum(axis=1)
    return out


def _logits(scores: NDArray[np.float64], are_decisions: bool) -> NDArray[np.float64]:
    if are_decisions:
        return np.hstack([-scores, scores]) if scores.shape[1] == 1 else scores
    shares = np.hstack([1 - scores, scores]) if scores.shape[1] == 1 else scores
    logits: NDArray[np.float64] = np.log(shares + 1e-12)
    return logits


def _added(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.sum(parts, axis=0), np.float64)
