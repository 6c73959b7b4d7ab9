"""Time and loss of boosting with a tree for each class, and with one tree for all classes.

In one process, compared with XGBoost with the same parameters (its `multi_strategy`). Rows are
generated like those of covertype: 10 numbers, 44 indicators, 7 classes. XGBoost uses twice the
second derivative of the log loss, so its steps are half as long: it gets twice the learning rate.
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from benchmarks._common import markdown
from benchmarks.boosting import OF_XGBOOST, THREADS
from daskml_dist.ensemble import HistGradientBoostingClassifier

#: Numbers of rows to fit and to test, classes, iterations.
SHAPE, TINY = (200_000, 50_000, 7, 50), (4_000, 1_000, 3, 3)
#: Number of numeric columns, and of indicators in two groups.
NUMBERS, GROUPS = 10, (4, 40)
STRATEGIES = {"a tree for each class": "one_output_per_tree", "one tree": "multi_output_tree"}
RATE = 0.1
#: Number of alternating fits of each kind; the smallest time counts.
REPEATS = 3


def make_rows(n: int, n_classes: int) -> tuple[Any, Any]:
    """Return rows and classes that depend on products, thresholds and groups."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(n, NUMBERS))
    groups = [rng.integers(0, size, n) for size in GROUPS]
    indicators = [np.eye(size)[of] for size, of in zip(GROUPS, groups, strict=True)]
    hidden = np.tanh(numbers @ rng.normal(size=(NUMBERS, 24)))
    score = hidden @ rng.normal(size=(24, n_classes)) + (numbers[:, :1] > 0.5) * rng.normal(
        size=n_classes
    )
    for size, of in zip(GROUPS, groups, strict=True):
        score += rng.normal(size=(size, n_classes))[of]
    score += rng.gumbel(size=score.shape)
    return np.hstack([numbers, *indicators]).astype(np.float32), score.argmax(axis=1)


def run(tiny: bool = False) -> str:
    """Return the fits by each library and strategy, alternating."""
    n, n_test, n_classes, rounds = TINY if tiny else SHAPE
    X, y = make_rows(n + n_test, n_classes)
    kinds = [
        (name, label, strategy)
        for name in FITS
        if find_spec(MODULES[name])
        for label, strategy in STRATEGIES.items()
    ]
    for name, _, strategy in kinds:
        FITS[name](X[:3_000], y[:3_000], strategy, 2)  # loads and compiles
    taken: dict[tuple[str, str], list[list[float]]] = {}
    models = {}
    for _ in range(1 if tiny else REPEATS):
        for name, label, strategy in kinds:
            since = time.perf_counter(), time.process_time()
            models[name, label] = FITS[name](X[:n], y[:n], strategy, rounds)
            seconds = [time.perf_counter() - since[0], time.process_time() - since[1]]
            taken.setdefault((name, label), []).append(seconds)
            print(name, label, *seconds, file=sys.stderr)
    found = []
    for (name, label), model in models.items():
        model.predict_proba(X[n:])  # compiles the loops for this number of rows
        since = time.perf_counter()
        proba = model.predict_proba(X[n:])
        each = 1e9 * (time.perf_counter() - since) / n_test
        least = np.min(taken[name, label], axis=0)
        found.append(
            [
                name, label, *(f"{value:.2f}" for value in least), f"{log_loss(y[n:], proba):.4f}",
                f"{(proba.argmax(axis=1) == y[n:]).mean():.4f}", f"{each:.0f}",
            ]
        )  # fmt: skip
    found += [[name, "not installed", *[""] * 5] for name in FITS if not find_spec(MODULES[name])]
    title = (
        f"Boosting of {n:,} x {X.shape[1]} float32, {n_classes} classes, {rounds} iterations, one "
        f"process of {THREADS} threads, least of {1 if tiny else REPEATS}"
    )
    header = [
        "", "", "seconds of a fit", "its CPU seconds", "log loss", "accuracy",
        "ns to predict a row",
    ]  # fmt: skip
    return markdown(title, header, found)


def _ours(X: Any, y: Any, strategy: str, rounds: int) -> Any:
    return HistGradientBoostingClassifier(
        learning_rate=RATE, max_iter=rounds, early_stopping=False, random_state=0,
        multi_strategy=strategy,
    ).fit(X, y)  # fmt: skip


def _xgboost(X: Any, y: Any, strategy: str, rounds: int) -> Any:
    import xgboost

    more = {"learning_rate": 2 * RATE, "n_jobs": THREADS, "multi_strategy": strategy}
    return xgboost.XGBClassifier(n_estimators=rounds, **{**OF_XGBOOST, **more}).fit(X, y)


FITS = {"daskml_dist": _ours, "XGBoost": _xgboost}
MODULES = {"daskml_dist": "daskml_dist", "XGBoost": "xgboost"}
