"""Time of random forests on two worker processes, compared with scikit-learn and LightGBM."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

from distributed import wait
from sklearn.ensemble import RandomForestClassifier as Peer
from sklearn.metrics import roc_auc_score

from benchmarks._common import markdown, persisted, processes
from benchmarks.boosting import rows
from daskml_dist.ensemble import RandomForestClassifier

#: Numbers of rows to fit and to test, features, trees; then those for deep trees.
SHAPE, TINY = (1_000_000, 100_000, 28, 20), (4_000, 1_000, 5, 3)
DEEP, TINY_DEEP = (100_000, 100_000, 28, 20), (2_000, 1_000, 5, 3)
BLOCKS = 8

Fit = Callable[[], Any]


def run(tiny: bool = False) -> str:
    """Return fits of depth 12 and of any depth, and predictions."""
    flat = _compared(TINY if tiny else SHAPE, 12)
    return f"{flat}\n\n{_compared(TINY_DEEP if tiny else DEEP, None)}"


def _compared(shape: tuple[int, int, int, int], depth: int | None) -> str:
    n, n_test, d, n_trees = shape
    X, y = rows(n + n_test, d)
    X_test, y_test = X[n:], y[n:]
    X, y = X[:n].copy(), y[:n].copy()
    given: dict[str, Any] = {"max_depth": depth, "random_state": 0}
    # Before the cluster, whose scheduler runs in this process.
    fits = {"scikit-learn, n_jobs=2": _once(lambda: Peer(n_trees, n_jobs=2, **given).fit(X, y))}
    if depth and importlib.util.find_spec("lightgbm"):
        fits["LightGBM rf, 2 threads"] = _once(lambda: _lightgbm(X, y, n_trees, depth))
    with processes(2):
        lazy, target = persisted(X, BLOCKS), persisted(y, BLOCKS)
        wait([lazy, target])
        for decomposition in ("functional", "data"):
            ours = RandomForestClassifier(n_trees, decomposition=decomposition, **given)
            # Load the kernels first, which compiles them at the first time.
            ours.set_params(n_estimators=2).fit(lazy, target)
            ours.set_params(n_estimators=n_trees)
            fits[decomposition] = _once(lambda ours=ours: ours.fit(lazy, target))
    table = []
    for name, (taken, model) in fits.items():
        if hasattr(model, "n_jobs"):
            model.set_params(n_jobs=1)
        model.predict_proba(X_test[:100])
        asked, found = _once(lambda model=model: model.predict_proba(X_test)[:, 1])
        score = f"{roc_auc_score(y_test, found):.4f}"
        table.append([name, f"{taken:.2f}", score, f"{1e9 * asked / n_test:.0f}"])
    bound = f"of depth {depth}" if depth else "of any depth"
    title = f"{n_trees} trees {bound} of {n:,} x {d} float32, persisted, 2 worker processes"
    return markdown(title, ["", "fit, s", "AUC", "prediction by one thread, ns per row"], table)


def _once(fit: Fit) -> tuple[float, Any]:
    since = time.perf_counter()
    model = fit()
    return time.perf_counter() - since, model


def _lightgbm(X: Any, y: Any, n_trees: int, depth: int) -> Any:
    import lightgbm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightgbm.LGBMClassifier(
            boosting_type="rf", n_estimators=n_trees, max_depth=depth, num_leaves=2**depth - 1,
            bagging_freq=1, bagging_fraction=0.632, feature_fraction_bynode=5 / X.shape[1],
            n_jobs=2, verbose=-1, min_child_samples=1, min_child_weight=0,
        ).fit(X, y)  # fmt: skip
