"""Ensembles of any estimators compared with scikit-learn's: whole fits of the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import calibration as their_calibration
from sklearn import ensemble as their_ensemble
from sklearn import linear_model as their_linear
from sklearn import tree as their_tree

from benchmarks._common import markdown, persisted, processes
from daskml_dist import calibration, ensemble, linear_model, tree

#: Numbers of rows and features.
ROWS, FEATURES = 200_000, 28
OURS = (calibration, ensemble, linear_model, tree)
THEIRS = (their_calibration, their_ensemble, their_linear, their_tree)
FOLDS = 3


def _voting(_: Any, ensembles: Any, linear: Any, trees: Any) -> Any:
    return ensembles.VotingClassifier(_pair(linear, trees), voting="soft")


def _stacking(_: Any, ensembles: Any, linear: Any, trees: Any) -> Any:
    final = linear.LogisticRegression()
    return ensembles.StackingClassifier(_pair(linear, trees), final, cv=FOLDS)


def _calibrated(calibrations: Any, _: Any, linear: Any, __: Any) -> Any:
    return calibrations.CalibratedClassifierCV(linear.LogisticRegression(), cv=FOLDS)


def _bagged_lines(_: Any, ensembles: Any, linear: Any, __: Any) -> Any:
    return ensembles.BaggingClassifier(linear.LogisticRegression(), random_state=0)


def _bagged_trees(_: Any, ensembles: Any, __: Any, trees: Any) -> Any:
    member = trees.DecisionTreeClassifier(max_depth=6)
    return ensembles.BaggingClassifier(member, random_state=0)


def _pair(linear: Any, trees: Any) -> list[tuple[str, Any]]:
    return [
        ("line", linear.LogisticRegression()),
        ("tree", trees.DecisionTreeClassifier(max_depth=6, random_state=0)),
    ]


SUBJECTS: dict[str, Callable[..., Any]] = {
    "VotingClassifier, line and tree": _voting,
    f"StackingClassifier, line and tree, {FOLDS} folds": _stacking,
    f"CalibratedClassifierCV, line, {FOLDS} folds": _calibrated,
    "BaggingClassifier, 10 lines": _bagged_lines,
    "BaggingClassifier, 10 trees": _bagged_trees,
}


def run(tiny: bool = False) -> str:
    """Return one table: seconds of whole fits, and accuracy on unseen rows."""
    n = 2_000 if tiny else ROWS
    X, y = _rows(n + n // 4)
    (X, unseen), (y, truth) = ((a[:n], a[n:]) for a in (X, y))
    found: dict[str, list[float]] = {}
    with processes(2):
        rows = [persisted(a, 8) for a in (X, y)]
        for name, make in SUBJECTS.items():
            make(*OURS).fit(*(a[:1_000].persist() for a in rows))  # compiles numba loops
            model, seconds = _timed(make(*OURS), *rows)
            found[name] = [seconds, model.score(unseen, truth)]
    for name, make in SUBJECTS.items():
        model, seconds = _timed(make(*THEIRS), X, y)
        found[name] += [seconds, model.score(unseen, truth)]
    cells = [
        [name, f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.1f}", f"{one:.4f}", f"{other:.4f}"]
        for name, (ours, one, theirs, other) in found.items()
    ]
    head = [
        "s", "2 workers", "scikit-learn, in memory", "times", "accuracy", "scikit-learn's",
    ]  # fmt: skip
    return markdown(f"Ensembles of any estimators, {n:,} x {FEATURES}", head, cells)


def _rows(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, FEATURES), dtype=np.float32)
    w = rng.standard_normal(FEATURES) * (rng.random(FEATURES) < 0.6) / 2
    return X, (X @ w + X[:, 0] * X[:, 1] + rng.logistic(size=n) > 0).astype(int)


def _timed(model: Any, X: Any, y: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    model.fit(X, y)
    return model, time.perf_counter() - start
