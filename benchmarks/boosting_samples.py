"""Time and AUC of boosting on samples of rows and features, and with dropped trees.

In one process, compared with LightGBM and XGBoost with the same parameters. All grow up to 31
leaves with at most 255 bins, without a penalty on leaves; random draws differ. With
``DASKML_DIST_SAMPLES=real``, scores on a9a (`DASKML_DIST_DATA`) with several seeds are printed
instead.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks._common import markdown, read_a9a
from benchmarks.boosting import OF_LIGHTGBM, OF_XGBOOST, THREADS, rows
from daskml_dist.ensemble import HistGradientBoostingClassifier

#: Numbers of rows to fit and to test, features, iterations.
SHAPE, TINY = (1_000_000, 100_000, 28, 50), (4_000, 1_000, 5, 3)
#: Parameters of each kind: ours, LightGBM's, XGBoost's (None: not supported).
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    "all rows": ({}, {}, {}),
    "half of the rows": (
        {"subsample": 0.5},
        {"bagging_fraction": 0.5, "bagging_freq": 1},
        {"subsample": 0.5},
    ),
    "GOSS, 0.2 and 0.1": (
        {"sampling_method": "goss", "top_rate": 0.2, "other_rate": 0.1},
        {"data_sample_strategy": "goss", "top_rate": 0.2, "other_rate": 0.1},
        None,
    ),
    "half of the features per tree": (
        {"colsample_bytree": 0.5},
        {"feature_fraction": 0.5},
        {"colsample_bytree": 0.5},
    ),
    "level by level, to a depth of 5": (
        {"grow_policy": "depthwise", "max_depth": 5, "max_leaf_nodes": None},
        {"max_depth": 5, "num_leaves": 32},
        {"grow_policy": "depthwise", "max_depth": 5, "max_leaves": 0},
    ),
    "a tenth of the trees dropped": (
        {"drop_rate": 0.1},
        {"boosting": "dart", "drop_rate": 0.1, "skip_drop": 0.0, "max_drop": 50},
        {"booster": "dart", "rate_drop": 0.1},
    ),
}
SEEDS = 3


def run(tiny: bool = False) -> str:
    """Return the fits by each library."""
    n, n_test, d, rounds = TINY if tiny else SHAPE
    if os.environ.get("DASKML_DIST_SAMPLES") == "real" and not tiny:
        X, y, X_test, y_test = read_a9a()
        X, X_test, title = X.toarray(), X_test.toarray(), "a9a"
        return _table(X, y > 0, X_test, y_test > 0, 100, SEEDS, title)
    X, y = rows(n + n_test, d)
    return _table(X[:n].copy(), y[:n].copy(), X[n:], y[n:], rounds, 1, f"{n:,} x {d} float32")


def _table(
    X: Any, y: Any, X_test: Any, y_test: Any, rounds: int, seeds: int, title: str
) -> str:  # fmt: skip
    """Return the table of all kinds."""
    found = []
    for kind, of_libraries in KINDS.items():
        for (name, fit), given in zip(FITS.items(), of_libraries, strict=True):
            if given is None:
                continue
            if find_spec(MODULES[name]) is None:
                found.append([kind, name, "not installed", ""])
                continue
            fit(X[:3_000], y[:3_000], {**given}, 2, 0)  # loads and compiles
            taken, scores = [], []
            for seed in range(seeds):
                since = time.perf_counter()
                model = fit(X, y, {**given}, rounds, seed)
                taken.append(time.perf_counter() - since)
                scores.append(roc_auc_score(y_test, _scores(model, X_test)))
            found.append([kind, name, f"{np.median(taken):.2f}", f"{np.mean(scores):.4f}"])
            print(found[-1], file=sys.stderr)
    title = f"Boosting of {title} on samples, {rounds} iterations, one process of 2 threads"
    title += f", {seeds} seeds" if seeds > 1 else ""
    return markdown(title, ["", "", "fit, s", "AUC"], found)


def _scores(model: Any, X: Any) -> Any:
    """Return a number per row, larger for the second class."""
    if type(model).__module__.startswith("xgboost"):
        import xgboost

        return model.predict(xgboost.DMatrix(X))
    return model.predict(X, raw_score=True) if _is_booster(model) else model.decision_function(X)


def _is_booster(model: Any) -> bool:
    return type(model).__module__.startswith("lightgbm")


def _ours(X: Any, y: Any, given: dict[str, Any], rounds: int, seed: int) -> Any:
    return HistGradientBoostingClassifier(
        max_iter=rounds, early_stopping=False, random_state=seed, **given
    ).fit(X, y)


def _lightgbm(X: Any, y: Any, given: dict[str, Any], rounds: int, seed: int) -> Any:
    import lightgbm

    more = {"objective": "binary", "num_threads": THREADS, "seed": seed, "min_data_in_leaf": 20}
    data = lightgbm.Dataset(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightgbm.train({**OF_LIGHTGBM, **more, **given}, data, rounds)


def _xgboost(X: Any, y: Any, given: dict[str, Any], rounds: int, seed: int) -> Any:
    import xgboost

    more = {"objective": "binary:logistic", "nthread": THREADS, "seed": seed}
    data = xgboost.QuantileDMatrix(X, y, max_bin=OF_XGBOOST["max_bin"])
    return xgboost.train({**OF_XGBOOST, **more, **given}, data, rounds)


FITS = {"daskml_dist": _ours, "LightGBM": _lightgbm, "XGBoost": _xgboost}
MODULES = {"daskml_dist": "daskml_dist", "LightGBM": "lightgbm", "XGBoost": "xgboost"}
