"""First fits, each in a separate process: ``python -m benchmarks._cold_cases NAME``.

The process prints one line of JSON, which `benchmarks.cold` reads.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline

__all__ = ["CASES", "Case", "Figures"]


@dataclass(frozen=True)
class Figures:
    """Seconds of one process: wall time, and CPU time of the process and of its workers."""

    import_wall: float
    first_wall: float
    first_cpu: float
    again_wall: float


@dataclass(frozen=True)
class Case:
    """First fit of some estimators.

    Parameters
    ----------
    classes : str
        Estimators of a pipeline, each as ``subpackage.Class``.
    asked : float or None
        Limit on the seconds of wall time on two idle cores, if there is one.
    n_rows : int or None
        Number of rows of 20 generated features; None: the 569 rows of scikit-learn's breast cancer
        data.
    n_workers : int, default=0
        Number of processes of a local cluster; 0: the fit runs in this process.
    predicts : bool, default=False
        Whether the first prediction is timed together with the fit.
    """

    classes: tuple[str, ...]
    asked: float | None = None
    n_rows: int | None = None
    n_workers: int = 0
    predicts: bool = False


_PIPELINE = "preprocessing.StandardScaler", "linear_model.LogisticRegression"

#: Cases by the names shown in the table.
CASES = {
    "LogisticRegression": Case(("linear_model.LogisticRegression",), 1.0),
    "SGDClassifier": Case(("linear_model.SGDClassifier",), 2.0),
    "KMeans": Case(("cluster.KMeans",), 2.0),
    "HistGradientBoosting": Case(("ensemble.HistGradientBoostingClassifier",), 6.0, predicts=True),
    "DecisionTreeClassifier": Case(("tree.DecisionTreeClassifier",), predicts=True),
    "pipeline, 2 workers": Case(_PIPELINE, 4.0, n_workers=2),
    "LogisticRegression, 20,000 rows": Case(("linear_model.LogisticRegression",), n_rows=20_000),
    "SGDClassifier, 20,000 rows": Case(("linear_model.SGDClassifier",), n_rows=20_000),
    "KMeans, 20,000 rows": Case(("cluster.KMeans",), n_rows=20_000),
    "pipeline, 20,000 rows, 2 workers": Case(_PIPELINE, n_rows=20_000, n_workers=2),
}


def _measure(case: Case) -> Figures:
    start = time.perf_counter()
    made = []
    for name in case.classes:
        subpackage, _, kind = name.partition(".")
        made.append(getattr(import_module(f"daskml_dist.{subpackage}"), kind)())
    imported = time.perf_counter() - start
    model = made[0] if len(made) == 1 else make_pipeline(*made)
    X, y = _rows(case)
    if not case.n_workers:
        return _timed(model, X, y, case, imported, time.process_time)
    import dask.array as da

    from benchmarks._common import processes

    with processes(case.n_workers) as client:
        size = -(-len(X) // 4)
        X, y = da.from_array(X, chunks=(size, X.shape[1])), da.from_array(y, chunks=size)

        def cpu_time() -> float:
            return time.process_time() + sum(client.run(time.process_time).values())

        return _timed(model, X, y, case, imported, cpu_time)


def _timed(
    model: Any, X: Any, y: Any, case: Case, imported: float, cpu_time: Callable[[], float]
) -> Figures:
    def work() -> None:
        model.fit(X, y)
        if case.predicts:
            model.predict(X)

    cpu, start = cpu_time(), time.perf_counter()
    work()
    first, cpu_end, start_again = time.perf_counter() - start, cpu_time(), time.perf_counter()
    work()
    return Figures(imported, first, cpu_end - cpu, time.perf_counter() - start_again)


def _rows(case: Case) -> tuple[Any, Any]:
    if case.n_rows is None:
        return load_breast_cancer(return_X_y=True)  # type: ignore[no-any-return]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(case.n_rows, 20))
    return X, (X[:, :5].sum(axis=1) + rng.normal(size=case.n_rows) > 0).astype(np.int64)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # fits have too few passes to converge
    print(json.dumps(asdict(_measure(CASES[sys.argv[1]]))))
