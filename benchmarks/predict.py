"""Probabilities and a metric over persisted rows, compared with NumPy on the same cores."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from distributed import wait
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks._common import logistic_rows, markdown, persisted, processes
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.metrics import accuracy_score, log_loss

FEATURES, WORKERS = 28, 2


def run(tiny: bool = False) -> str:
    """Return the table."""
    X, y = logistic_rows(20_000 if tiny else 10_000_000, FEATURES)
    clf = LogisticRegression().fit(X[:20_000], y[:20_000])
    runs = 2 if tiny else 5
    peers = {"probabilities": _numpy_proba, "log loss": _numpy_loss, "accuracy": _numpy_hits}
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(WORKERS) as pool:
        numpy = {
            name: _median(lambda f=f: _peer(pool, f, clf, X, y), runs) for name, f in peers.items()
        }
    with processes(WORKERS):
        dX, dy = persisted(X, 2 * WORKERS), persisted(y, 2 * WORKERS)
        wait([dX, dy])
        ours = {
            "probabilities": _median(lambda: wait(clf.predict_proba(dX).persist()), runs),
            "log loss": _median(lambda: log_loss(dy, clf.predict_proba(dX)), runs),
            "accuracy": _median(lambda: accuracy_score(dy, clf.predict(dX)), runs),
        }
        ours["accuracy, score()"] = _median(lambda: clf.score(dX, dy), runs)
        numpy["accuracy, score()"] = numpy["accuracy"]
    rows = [
        [name, f"{1e3 * numpy[name]:.0f}", f"{1e3 * taken:.0f}", f"{taken / numpy[name]:.2f}"]
        for name, taken in ours.items()
    ]
    title = (
        f"Predicting {len(X):,} x {FEATURES} float32, {WORKERS} single-threaded worker processes"
    )
    columns = ["", f"NumPy, {WORKERS} threads, ms", "daskml_dist, ms", "daskml_dist / NumPy"]
    return markdown(title, columns, rows)


def _proba(clf: Any, X: NDArray[Any]) -> NDArray[Any]:
    positive = 1 / (1 + np.exp(-(X @ clf.coef_[0] + clf.intercept_[0])))
    return np.stack([1 - positive, positive], axis=1)


def _numpy_proba(clf: Any, X: NDArray[Any], y: NDArray[Any]) -> Any:
    return _proba(clf, X)


def _numpy_loss(clf: Any, X: NDArray[Any], y: NDArray[Any]) -> float:
    return -float(np.log(_proba(clf, X)[np.arange(len(y)), y]).sum(dtype=np.float64))


def _numpy_hits(clf: Any, X: NDArray[Any], y: NDArray[Any]) -> int:
    return int(((X @ clf.coef_[0] + clf.intercept_[0] > 0) == y).sum())


def _peer(
    pool: ThreadPoolExecutor, function: Callable[..., Any], clf: Any, X: Any, y: Any
) -> list[Any]:
    """Apply the function to one part per core."""
    cuts = np.linspace(0, len(X), WORKERS + 1).astype(int)
    parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    return list(pool.map(lambda part: function(clf, X[part], y[part]), parts))


def _median(call: Callable[[], Any], runs: int) -> float:
    call()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
