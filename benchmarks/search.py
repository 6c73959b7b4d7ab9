"""Searches: a stack beside separate fits and scikit-learn's `LogisticRegressionCV`."""

from __future__ import annotations

import time
from typing import Any

import dask.array as da
import numpy as np
from sklearn.linear_model import LogisticRegressionCV

from benchmarks._common import markdown, processes
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.model_selection import GridSearchCV, KFold

#: Rows, features, values of C, folds; separate fits that are timed, of all.
ROWS, FEATURES, VALUES, FOLDS, SOME = 1_000_000, 28, 64, 5, 10


def run(tiny: bool = False) -> str:
    """One table: seconds of a whole search, and of each fit in it."""
    n, values, some = (2_000, 3, 2) if tiny else (ROWS, VALUES, SOME)
    X, y = _rows(n)
    strengths = np.logspace(-4, 4, values)
    GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}).fit(X[:2_000], y[:2_000])
    search = GridSearchCV(LogisticRegression(), {"C": strengths}, cv=KFold(FOLDS), refit=False)
    seconds = {"a stack, in this process": min(_timed(search, X, y) for _ in range(2))}
    with processes(2):
        rows = [da.from_array(a, chunks=(n // 8, *a.shape[1:])).persist() for a in (X, y)]
        seconds["a stack, 2 workers"] = min(_timed(search, *rows) for _ in range(2))
    seconds["separate fits"] = _separate(X, y, strengths, some)
    peer = LogisticRegressionCV(
        Cs=strengths, cv=KFold(FOLDS), refit=False, scoring="accuracy", n_jobs=2, l1_ratios=(0,),
        use_legacy_attributes=False,
    )  # fmt: skip
    seconds["LogisticRegressionCV"] = _timed(peer, X, y)
    fits, first = values * FOLDS, seconds["a stack, in this process"]
    table = [
        [name, f"{s:.2f}", f"{s / fits * 1e3:.1f}", f"{s / first:.1f}"]
        for name, s in seconds.items()
    ]
    title = f"{values} values of C, {FOLDS} folds, {n:,} x {FEATURES}"
    return markdown(title, ["", "s", "ms a fit", "of the stack"], table)


def _rows(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, FEATURES), dtype=np.float32)
    w = rng.standard_normal(FEATURES) * (rng.random(FEATURES) < 0.6) / 2
    return X, (X @ w + rng.logistic(size=n) > 0).astype(int)


def _timed(estimator: Any, X: Any, y: Any) -> float:
    start = time.perf_counter()
    estimator.fit(X, y)
    return time.perf_counter() - start


def _separate(X: Any, y: Any, strengths: Any, some: int) -> float:
    """Seconds of all fits one by one, folds as weights, of some that are spread over all."""
    n, every = len(X), [(c, fold) for c in strengths for fold in range(FOLDS)]
    chosen = every[:: max(1, len(every) // some)]
    start = time.perf_counter()
    for c, fold in chosen:
        held = np.arange(n) * FOLDS // n == fold
        estimator = LogisticRegression(C=c).fit(X, y, sample_weight=(~held).astype(np.float32))
        estimator.score(X[held], y[held])
    return (time.perf_counter() - start) * len(every) / len(chosen)
