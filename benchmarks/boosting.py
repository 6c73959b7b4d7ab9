"""Time of gradient boosting on two worker processes, beside LightGBM, xgboost and scikit-learn.

LightGBM and xgboost are measured in one process of two threads and through their Dask interfaces,
ours in this process and on two workers. All grow the leaf with the largest gain first, up to 31
leaves with at most 255 bins, without a penalty on leaves. With ``DASKML_DIST_BOOSTING=scores``,
scores on real data (`DASKML_DIST_DATA`) are printed instead.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from distributed import wait
from sklearn.ensemble import HistGradientBoostingClassifier as Peer
from sklearn.metrics import roc_auc_score

from benchmarks._common import markdown, persisted, processes
from daskml_dist.ensemble import HistGradientBoostingClassifier

#: Numbers of rows to fit and to test, features, iterations.
SHAPE, TINY = (1_000_000, 200_000, 28, 100), (4_000, 1_000, 5, 3)
BLOCKS = 8
GIVEN: dict[str, Any] = {"learning_rate": 0.1, "max_leaf_nodes": 31, "max_bins": 255}
#: The same parameters for LightGBM, and for xgboost, which by default grows by level to depth 6.
OF_LIGHTGBM: dict[str, Any] = {
    "num_leaves": 31, "learning_rate": 0.1, "max_bin": 255, "verbose": -1,
}  # fmt: skip
OF_XGBOOST: dict[str, Any] = {
    "grow_policy": "lossguide", "max_leaves": 31, "max_depth": 0, "learning_rate": 0.1,
    "tree_method": "hist", "max_bin": 255, "reg_lambda": 0.0,
}  # fmt: skip
#: Threads of a peer in one process: equal to the number of worker processes.
THREADS = 2

Fit = Callable[[], Any]


def run(tiny: bool = False) -> str:
    """Return fits compared with the peers', and predictions."""
    if os.environ.get("DASKML_DIST_BOOSTING") == "scores":
        from benchmarks._boosting_scores import tables

        return tables()
    n, n_test, d, rounds = TINY if tiny else SHAPE
    X, y = rows(n + n_test, d)
    X_test, y_test = X[n:], y[n:]
    X, y = X[:n].copy(), y[:n].copy()
    given = {**GIVEN, "max_iter": rounds, "early_stopping": False}
    # Before the cluster, whose scheduler runs in this process.
    fits = {"scikit-learn, one process": _once(lambda: Peer(**given).fit(X, y))}
    for name, kind, fit in (
        ("LightGBM, one process", "lightgbm", _lightgbm_here),
        ("XGBoost, one process", "xgboost", _xgboost_here),
    ):
        if find_spec(kind):
            import_module(kind)  # importing is not part of a fit
            fits[name] = _once(lambda fit=fit: fit(X, y, rounds))
    # Load the kernels first, which compiles them at the first time.
    short = {**given, "max_iter": 2}
    HistGradientBoostingClassifier(**short).fit(X, y)
    fits["daskml_dist, one process"] = _once(
        lambda: HistGradientBoostingClassifier(**given).fit(X, y)
    )
    with processes(2) as client:
        lazy, target = persisted(X, BLOCKS), persisted(y, BLOCKS)
        wait([lazy, target])
        HistGradientBoostingClassifier(**short).fit(lazy, target)
        fits["daskml_dist"] = _once(
            lambda: HistGradientBoostingClassifier(**given).fit(lazy, target)
        )
        if find_spec("lightgbm"):
            fits["lightgbm.dask"] = _once(lambda: _lightgbm(client, lazy, target, rounds))
        if find_spec("xgboost"):
            fits["xgboost.dask"] = _once(lambda: _xgboost(client, lazy, target, rounds))
    table = [
        [name, f"{taken:.2f}", f"{roc_auc_score(y_test, _shares(model, X_test)):.4f}"]
        for name, (taken, model) in fits.items()
    ]
    table += [
        [kind, "not installed", ""] for kind in ("lightgbm", "xgboost") if not find_spec(kind)
    ]
    title = f"Boosting of {n:,} x {d} float32, {rounds} iterations, 31 leaves, 255 bins"
    title += ", one process of 2 threads, or persisted on 2 worker processes of 1 thread"
    found = markdown(title, ["", "fit, s", "AUC"], table)
    return f"{found}\n\n{_predictions(fits, X_test)}"


def rows(n: int, d: int) -> tuple[Any, Any]:
    """Return rows of two classes, float32, in which some features are correlated."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=np.float32)
    raw = X @ rng.normal(size=d) * 0.3 + np.sin(X[:, 0] * 2) * X[:, 1]
    raw += X[:, 2] * X[:, 3] * (X[:, 4] > 0)
    return X, (raw + rng.logistic(size=n) > 0).astype(np.int32)


def _once(fit: Fit) -> tuple[float, Any]:
    """Return the seconds of a call, also printed to stderr, and its result."""
    since = time.perf_counter()
    model = fit()
    taken = time.perf_counter() - since
    print(f"{type(model).__module__}.{type(model).__name__}: {taken:.2f} s", file=sys.stderr)
    return taken, model


def _lightgbm_here(X: Any, y: Any, rounds: int) -> Any:
    import lightgbm

    return lightgbm.LGBMClassifier(n_estimators=rounds, n_jobs=THREADS, **OF_LIGHTGBM).fit(X, y)


def _lightgbm(client: Any, X: Any, y: Any, rounds: int) -> Any:
    import lightgbm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = lightgbm.DaskLGBMClassifier(client=client, n_estimators=rounds, **OF_LIGHTGBM)
        return model.fit(X, y).to_local()


def _xgboost_here(X: Any, y: Any, rounds: int) -> Any:
    import xgboost

    model = xgboost.XGBClassifier(n_estimators=rounds, n_jobs=THREADS, **OF_XGBOOST)
    return model.fit(X, y).get_booster()


def _xgboost(client: Any, X: Any, y: Any, rounds: int) -> Any:
    from xgboost import dask as xgboost

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = xgboost.DaskXGBClassifier(n_estimators=rounds, **OF_XGBOOST)
        model.client = client
        return model.fit(X, y).get_booster()


def _shares(model: Any, X: Any) -> Any:
    """Return the probability of the second class."""
    if hasattr(model, "predict_proba"):
        return model.predict_proba(X)[:, 1]
    import xgboost

    return model.predict(xgboost.DMatrix(X))


def _predictions(fits: dict[str, tuple[float, Any]], X: Any) -> str:
    table = []
    for name in ("scikit-learn, one process", "daskml_dist"):
        model = fits[name][1]
        model.predict_proba(X[:100])
        taken, _ = _once(lambda model=model: model.predict_proba(X))
        table.append([name, f"{1e9 * taken / len(X):.0f}"])
    title = f"Predicting probabilities of {len(X):,} rows in memory, all trees"
    return markdown(title, ["", "ns per row"], table)
