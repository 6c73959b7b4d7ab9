"""Number of rows from which a cluster pays off: fits here, by scikit-learn, and on two workers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn.cluster
import sklearn.decomposition
import sklearn.ensemble
import sklearn.linear_model

from benchmarks._common import logistic_rows, markdown, persisted, processes
from daskml_dist.cluster import KMeans
from daskml_dist.decomposition import PCA
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier

FEATURES = 28
#: Each fit, its peer, and the largest number of rows that it is tried with.
FITS: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
    "`SGDClassifier`, 5 passes": (
        lambda: SGDClassifier(max_iter=5, tol=None, random_state=0),
        lambda: sklearn.linear_model.SGDClassifier(
            loss="log_loss", max_iter=5, tol=None, random_state=0
        ),
        1_000_000,
    ),
    "`LogisticRegression`": (
        lambda: LogisticRegression(),
        lambda: sklearn.linear_model.LogisticRegression(),
        1_000_000,
    ),
    "`Ridge`": (lambda: Ridge(), lambda: sklearn.linear_model.Ridge(), 1_000_000),
    "`PCA(5)`": (lambda: PCA(5), lambda: sklearn.decomposition.PCA(5), 1_000_000),
    "`KMeans(20)`, 10 steps": (
        lambda: KMeans(20, max_iter=10, tol=0, n_init=1, random_state=0),
        lambda: sklearn.cluster.KMeans(20, max_iter=10, tol=0, n_init=1, random_state=0),
        1_000_000,
    ),
    "`HistGradientBoostingClassifier`, 20 trees": (
        lambda: HistGradientBoostingClassifier(max_iter=20, early_stopping=False),
        lambda: sklearn.ensemble.HistGradientBoostingClassifier(max_iter=20, early_stopping=False),
        1_000_000,
    ),
    "`RandomForestClassifier`, 10 trees of depth 8": (
        lambda: RandomForestClassifier(10, max_depth=8, random_state=0),
        lambda: sklearn.ensemble.RandomForestClassifier(10, max_depth=8, random_state=0, n_jobs=2),
        100_000,
    ),
}


def run(tiny: bool = False) -> str:
    """Return the table."""
    sizes = [500, 1_000] if tiny else [10_000, 100_000, 1_000_000]
    X, y = logistic_rows(sizes[-1], FEATURES, "float32")
    taken: dict[tuple[str, int], list[float]] = {}
    for name, (ours, theirs, most) in FITS.items():
        for n in (n for n in sizes if n <= most):
            taken[name, n] = [_seconds(make, X[:n], y[:n], n) for make in (theirs, ours)]
    with processes(2):
        for name, n in taken:
            rows, labels = persisted(X[:n], 4), persisted(y[:n], 4)
            taken[name, n].append(_seconds(FITS[name][0], rows, labels, n))
            del rows, labels
    table = []
    for (name, n), (theirs_s, here, there) in taken.items():
        cells = [f"{seconds:.3f}" for seconds in (theirs_s, here, there)]
        table.append([name, f"{n:,}", *cells, f"{min(theirs_s, here) / there:.2f}"])
    columns = ["fit", "rows", "scikit-learn, s", "here, s", "2 workers, s", "ratio"]
    title = (
        f"Fits of rows x {FEATURES} float32, in memory here or persisted on two workers; ratio: "
        "the best here to these"
    )
    return markdown(title, columns, table)


def _seconds(make: Callable[[], Any], X: Any, y: Any, n: int) -> float:
    """Return the shortest of some fits (more if rows are few); the first compiles and imports."""
    taken = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits that end early as requested warn about it
        for _ in range(2 if n > 100_000 else 3):
            start = time.perf_counter()
            make().fit(X, y)
            taken.append(time.perf_counter() - start)
    return float(np.min(taken))
