"""SHAP values of trees compared with the package shap, for the same models: time and difference."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks._common import markdown, median_seconds
from daskml_dist import ensemble
from daskml_dist.inspection import shap_values

#: Rows and features for training, explained rows, and background rows.
ROWS, FEATURES, EXPLAINED, BACKGROUND = 50_000, 28, 2_000, 100
MODELS: dict[str, Callable[[bool], Any]] = {
    "boosting, 100 trees of 31 leaves": lambda tiny: ensemble.HistGradientBoostingRegressor(
        max_iter=5 if tiny else 100, random_state=0
    ),
    "boosting, 100 trees of 8 leaves": lambda tiny: ensemble.HistGradientBoostingRegressor(
        max_iter=5 if tiny else 100, max_leaf_nodes=8, random_state=0
    ),
    "forest, 50 trees of depth 10": lambda tiny: ensemble.RandomForestRegressor(
        3 if tiny else 50, max_depth=10, random_state=0
    ),
}


def run(tiny: bool = False) -> str:
    """Return one table: microseconds per row in one thread, ours and shap's compiled code."""
    n, explained = (500, 20) if tiny else (ROWS, EXPLAINED)
    rng = np.random.default_rng(0)
    # Rounded to float32, as scikit-learn's forests read rows.
    X = rng.normal(size=(n, FEATURES)).astype(np.float32).astype(np.float64)
    y = X[:, 0] * X[:, 1] + np.sin(X[:, 2]) + X[:, 3:8].sum(axis=1) + rng.normal(size=n)
    rows, background = X[:explained], X[:BACKGROUND]
    cells = []
    for name, make in MODELS.items():
        model = make(tiny).fit(X, y)
        for kind, given in (("path-dependent", None), ("interventional", background)):
            ours, seconds, of_one = _time_ours(model, rows, given)
            theirs, their_seconds, their_one = _time_shap(model, rows, given)
            apart = np.nan if theirs is None else np.abs(ours - theirs).max()
            cells.append(
                [
                    name, kind, f"{1e6 * seconds / explained:.0f}",
                    "-" if theirs is None else f"{1e6 * their_seconds / explained:.0f}",
                    "-" if theirs is None else f"{their_seconds / seconds:.1f}",
                    f"{1e3 * of_one:.2f}",
                    "-" if theirs is None else f"{1e3 * their_one:.2f}",
                    "-" if theirs is None else f"{apart:.0e}",
                ]
            )  # fmt: skip
    head = [
        "model",
        "values",
        "ours, us per row",
        "shap, us per row",
        "shap / ours",
        "ours, ms of one row",
        "shap, ms of one row",
        "largest difference",
    ]
    title = f"{explained:,} rows, {BACKGROUND} background rows, one thread"
    return markdown(title, head, cells)


def _time_ours(model: Any, rows: Any, background: Any) -> tuple[Any, float, float]:
    """Return our values, the seconds of the second call (the first compiles), and of one row."""
    explain = partial(shap_values, model, background=background)
    of_one = _time_one_row(explain, rows)
    begin = time.perf_counter()
    found = explain(rows).values
    return found, time.perf_counter() - begin, of_one


def _time_shap(model: Any, rows: Any, background: Any) -> tuple[Any, float, float]:
    """Return shap's values for the exported model, and its seconds; None if it is not installed."""
    try:
        import shap
    except ImportError:
        return None, np.nan, np.nan
    explainer = shap.TreeExplainer(model.to_sklearn(), background)
    explain = partial(explainer.shap_values, check_additivity=False)
    of_one = _time_one_row(explain, rows)
    begin = time.perf_counter()
    found = explain(rows)
    return found, time.perf_counter() - begin, of_one


def _time_one_row(explain: Callable[..., Any], rows: Any) -> float:
    """Return the median seconds of a call with one row; ours prepare the trees in each call."""
    return median_seconds(lambda: explain(rows[:1]))
