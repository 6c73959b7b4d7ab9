"""Linear models that choose their penalty, compared with scikit-learn's: whole fits, same rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn import linear_model as theirs

from benchmarks._common import markdown, persisted, processes
from daskml_dist import linear_model as ours

#: Numbers of rows and features.
ROWS, FEATURES = 1_000_000, 28
ALPHAS = np.logspace(-3, 3, 10)
#: Class, parameters, and additional parameters for scikit-learn's class.
SUBJECTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "LogisticRegressionCV, 10 Cs x 5 folds": (
        "LogisticRegressionCV",
        {"Cs": 10, "cv": 5, "scoring": "accuracy", "l1_ratios": (0,)},
        {"n_jobs": 2, "use_legacy_attributes": True},
    ),
    "RidgeCV, 10 alphas, each row left out": ("RidgeCV", {"alphas": ALPHAS}, {}),
    "RidgeCV, 10 alphas x 5 folds": ("RidgeCV", {"alphas": ALPHAS, "cv": 5}, {}),
    "RidgeClassifierCV, 10 alphas x 5 folds": (
        "RidgeClassifierCV", {"alphas": ALPHAS, "cv": 5}, {},
    ),
    "LassoCV, 100 alphas x 5 folds": ("LassoCV", {"cv": 5}, {"n_jobs": 2}),
    "ElasticNetCV, 3 x 100 penalties x 5 folds": (
        "ElasticNetCV", {"cv": 5, "l1_ratio": [0.2, 0.5, 0.9]}, {"n_jobs": 2},
    ),
}  # fmt: skip


def run(tiny: bool = False) -> str:
    """Return the seconds of whole fits; `DASKML_DIST_CV_ESTIMATORS` selects classes."""
    n, chosen = 2_000 if tiny else ROWS, os.environ.get("DASKML_DIST_CV_ESTIMATORS", "")
    X, labels, numbers = _rows(n)
    some = {k: v for k, v in SUBJECTS.items() if not chosen or v[0] in chosen.split(",")}
    table: dict[str, list[float]] = {}
    with processes(2):
        lying = [persisted(a, 8) for a in (X, labels, numbers)]
        for name, (kind, params, _) in some.items():
            y = 1 if "Logistic" in kind or "Classifier" in kind else 2
            make = getattr(ours, kind)
            make(**params).fit(X[:2_000], (labels, numbers)[y - 1][:2_000])
            here, there = ((X, labels, numbers), lying)
            table[name] = [
                min(
                    _timed(partial(make(**params).fit, client=client), rows[0], rows[y])
                    for _ in range(2)
                )
                for rows, client in ((here, "inline"), (there, None))
            ]
    for name, (kind, params, more) in some.items():
        y = labels if "Logistic" in kind or "Classifier" in kind else numbers
        table[name].append(_timed(getattr(theirs, kind)(**params, **more).fit, X, y))
    cells = [
        [name, f"{here:.2f}", f"{there:.2f}", f"{peer:.2f}", f"{peer / here:.1f}",
         f"{peer / there:.1f}"]
        for name, (here, there, peer) in table.items()
    ]  # fmt: skip
    head = ["s", "in process", "2 workers", "scikit-learn", "ratio", "ratio, 2 workers"]
    return markdown(f"Choosing penalties, {n:,} x {FEATURES}", head, cells)


def _rows(n: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, FEATURES), dtype=np.float32)
    w = rng.standard_normal(FEATURES) * (rng.random(FEATURES) < 0.6) / 2
    raw = X @ w
    labels = (raw + rng.logistic(size=n) > 0).astype(int)
    return X, labels, (raw + rng.standard_normal(n)).astype(np.float32)


def _timed(fit: Callable[[Any, Any], Any], X: Any, y: Any) -> float:
    start = time.perf_counter()
    fit(X, y)
    return time.perf_counter() - start
