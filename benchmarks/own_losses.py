"""Time of boosting with a custom loss, compiled or on arrays, compared with the built-in one.

The logistic loss, as a user would write it; in this process. The trees are equal up to the last
digits of exponentials, so scores hardly differ.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from benchmarks._common import markdown
from benchmarks.boosting import rows
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.losses import Loss, RowLoss

#: Numbers of rows to fit and to test, features, iterations.
SHAPE, TINY = (1_000_000, 100_000, 28, 50), (4_000, 1_000, 5, 3)
#: Number of alternating fits of each loss; the median counts.
REPEATS = 3


class Logistic(RowLoss):
    """The logistic loss, of one row."""

    name, kind = "own_logistic", "classification"

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        """Return value and derivative."""
        margin = y * raw
        e = math.exp(-abs(margin))
        slope = (e if margin > 0 else 1.0) / (1.0 + e)
        return math.log1p(e) - min(margin, 0.0), -y * slope

    @staticmethod
    def derive_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        """Return the first and the second derivative."""
        e = math.exp(-abs(raw))
        larger = 1.0 / (1.0 + e)
        return (larger if raw > 0 else e * larger) - 0.5 * (y + 1.0), e * larger * larger

    def constant(self, mean: float) -> float:
        """Return the log odds of the mean."""
        return math.log((1 + mean) / (1 - mean))


class ArrayLogistic(Loss):
    """The logistic loss, of arrays."""

    name, kind, has_hessian = "array_logistic", "classification", True

    def value_and_gradient(self, y: Any, raw: Any) -> tuple[Any, Any]:
        """Return values and gradients."""
        return np.logaddexp(0, -y * raw), expit(raw) - (y > 0)

    def value_gradient_hessian(self, y: Any, raw: Any) -> tuple[Any, Any, Any]:
        """Return values, gradients and hessians."""
        share = expit(raw)
        return np.logaddexp(0, -y * raw), share - (y > 0), share * (1 - share)

    def constant(self, mean: float) -> float:
        """Return the log odds of the mean."""
        return math.log((1 + mean) / (1 - mean))


LOSSES: dict[str, Any] = {
    "built-in": "log_loss",
    "RowLoss, compiled": Logistic(),
    "Loss of NumPy arrays": ArrayLogistic(),
}


def run(tiny: bool = False) -> str:
    """Return the fits by each loss, alternating."""
    n, n_test, d, rounds = TINY if tiny else SHAPE
    X, y = rows(n + n_test, d)
    X_test, y_test = X[n:], y[n:]
    X, y = X[:n].copy(), y[:n].copy()
    taken: dict[str, list[float]] = {name: [] for name in LOSSES}
    scores = {}
    for loss in LOSSES.values():  # loads the loops, compiled at the first time
        HistGradientBoostingClassifier(loss, max_iter=2, early_stopping=False).fit(X, y)
    for _ in range(1 if tiny else REPEATS):
        for name, loss in LOSSES.items():
            model = HistGradientBoostingClassifier(
                loss, max_iter=rounds, early_stopping=False, random_state=0
            )
            since = time.perf_counter()
            model.fit(X, y)
            taken[name].append(time.perf_counter() - since)
            scores[name] = roc_auc_score(y_test, model.decision_function(X_test))
            print(f"{name}: {taken[name][-1]:.2f} s", file=sys.stderr)
    seconds = {name: float(np.median(found)) for name, found in taken.items()}
    built_in = seconds["built-in"]
    table = [
        [name, f"{seconds[name]:.2f}", f"{seconds[name] / built_in:.2f}", f"{scores[name]:.4f}"]
        for name in LOSSES
    ]
    title = f"Boosting of {n:,} x {d} float32 with custom losses, {rounds} iterations"
    return markdown(title, ["loss", "fit, s", "relative to built-in", "AUC"], table)
