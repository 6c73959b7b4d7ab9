"""Logistic regression to the optimum on two worker processes, compared with its peers."""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression as Single

from benchmarks._common import logistic_rows, markdown, persisted, processes
from daskml_dist import Run
from daskml_dist.linear_model import LogisticRegression

#: Tolerance for the same objective: scikit-learn's own mean loss plus this.
SLACK = 1e-6


def run(tiny: bool = False) -> str:
    """Return three tables: compared with peers, by size, and a pass compared with its bound."""
    n_rows = 20_000 if tiny else 2_000_000
    X, y = logistic_rows(n_rows, 28)
    return "\n\n".join([_beside_peers(X, y, tiny), _by_size(tiny), _passes(X, y, tiny)])


def _beside_peers(X: Any, y: Any, tiny: bool) -> str:
    best = {}
    rows = []
    for solver in ("lbfgs", "newton-cholesky"):
        seconds, fitted = _median(lambda s=solver: Single(solver=s).fit(X, y), tiny)
        best[solver] = seconds, _loss(X, y, fitted.coef_[0], fitted.intercept_[0])
        rows.append([f"scikit-learn {solver}", f"{seconds:.3f}", "1.0", "yes"])
    aim = best["lbfgs"][1] + SLACK

    def add(name: str, seconds: float, coef: Any, intercept: float, beside: str) -> None:
        reached = "yes" if _loss(X, y, coef, intercept) <= aim else "no"
        rows.append([name, f"{seconds:.3f}", f"{best[beside][0] / seconds:.2f}", reached])

    with processes(2):
        X_dask, y_dask = persisted(X, 4), persisted(y, 4)
        for solver in ("lbfgs", "newton-cholesky"):
            fit = lambda s=solver: LogisticRegression(solver=s).fit(X_dask, y_dask)  # noqa: E731
            seconds, fitted = _median(fit, tiny)
            add(f"daskml_dist {solver}", seconds, fitted.coef_[0], fitted.intercept_[0], solver)
        if importlib.util.find_spec("dask_ml") is None:
            rows.append(["dask-ml", "not installed", "", ""])
        else:
            for solver in ("lbfgs",) if tiny else ("lbfgs", "newton", "admm"):
                name = f"dask-ml {solver}"
                with contextlib.suppress(_FailedError):
                    found = _dask_ml(solver, X_dask, y_dask)
                    add(name, *found, "lbfgs")
                    continue
                rows.append([name, "fails", "", ""])
    if tiny or importlib.util.find_spec("pyspark") is None:
        rows.append(["Spark MLlib", "not run" if tiny else "not installed", "", ""])
    else:
        add("Spark MLlib, local[2]", *_spark(X, y), "lbfgs")
    title = f"Time of a fit to scikit-learn's objective, {len(X):,} x 28 float32, 2 processes"
    columns = ["", "seconds", "speed relative to scikit-learn", f"objective within {SLACK}"]
    return markdown(title, columns, rows)


def _by_size(tiny: bool) -> str:
    rows = []
    sizes = [(1, 5_000, 28)] if tiny else [
        (1, 2_000_000, 28), (2, 500_000, 28), (2, 1_000_000, 28), (2, 2_000_000, 28),
        (2, 500_000, 112),
    ]  # fmt: skip
    for workers, n_rows, n_features in sizes:
        with processes(workers):
            X, y = logistic_rows(n_rows, n_features)
            X, y = persisted(X, 4), persisted(y, 4)
            for solver in ("lbfgs", "newton-cholesky"):
                fit = lambda s=solver: LogisticRegression(solver=s).fit(X, y)  # noqa: E731, B023
                seconds, fitted = _median(fit, tiny)
                records = fitted.history_.records
                one = statistics.median(r["seconds"] for r in records[1:]) * 1e3
                size = workers, f"{n_rows:,}", n_features, solver
                rows.append([*size, f"{seconds:.3f}", len(records), f"{one:.1f}"])
    columns = ["workers", "rows", "features", "solver", "seconds", "passes", "ms per pass"]
    return markdown("By workers, rows and features, float32", columns, rows)


def _passes(X: Any, y: Any, tiny: bool) -> str:
    """Return the time of one pass without a cluster, compared with reading X once."""
    rows = []
    floor = _median(lambda: float(X.max()), tiny)[0]
    rows.append(["read X once (max)", f"{floor * 1e3:.1f}", "1.0"])
    for solver in ("lbfgs", "newton-cholesky"):
        fitted = LogisticRegression(solver=solver, run=Run(n_lanes=1)).fit(X, y)
        one = statistics.median(r["seconds"] for r in fitted.history_.records[1:])
        rows.append([f"pass of {solver}", f"{one * 1e3:.1f}", f"{one / floor:.1f}"])
    return markdown(
        f"A pass on one thread, {len(X):,} x 28 float32", ["", "ms", "relative to reading X"], rows
    )


def _median(fit: Callable[[], Any], tiny: bool) -> tuple[float, Any]:
    """Return the median of 5 fits after one to warm up."""
    times = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2 if tiny else 6):
            start = time.perf_counter()
            fitted = fit()
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), fitted


def _loss(X: Any, y: Any, coef: Any, intercept: float) -> float:
    """Return scikit-learn's objective at C=1, per row."""
    raw = (X @ coef + intercept).astype(np.float64) * (2 * y - 1)
    coef = np.asarray(coef, dtype=np.float64)
    return float(np.logaddexp(0, -raw).mean() + coef @ coef / 2 / len(X))


class _FailedError(Exception):
    """Error of a peer that cannot solve the problem."""


def _dask_ml(solver: str, X: Any, y: Any) -> tuple[float, Any, float]:
    """Run one fit, warmed up on a small part, since a fit takes minutes."""
    from dask_ml.linear_model import LogisticRegression as Peer

    X, y = X.rechunk((X.chunks[0], -1)), y
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Peer(solver=solver, max_iter=2).fit(X[:10_000], y[:10_000])
            start = time.perf_counter()
            fitted = Peer(solver=solver, C=1.0).fit(X, y)
            seconds = time.perf_counter() - start
    except Exception as error:
        raise _FailedError from error
    return seconds, np.ravel(fitted.coef_), float(np.ravel(fitted.intercept_)[0])


@contextlib.contextmanager
def open_spark() -> Iterator[Any]:
    """Open a Spark session on two threads of this machine."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _spark(X: Any, y: Any) -> tuple[float, Any, float]:
    """Fit to rows cached in the JVM; return the median of 3 fits after one to warm up."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.ml.classification import LogisticRegression as Peer
    from pyspark.ml.feature import VectorAssembler

    names = [f"x{j}" for j in range(X.shape[1])]
    with tempfile.TemporaryDirectory() as folder, open_spark() as session:
        path = Path(folder) / "rows.parquet"
        columns = {name: X[:, j] for j, name in enumerate(names)}
        pq.write_table(pa.table({**columns, "label": y.astype(np.float64)}), path)
        frame = session.read.parquet(str(path)).repartition(2)
        frame = VectorAssembler(inputCols=names, outputCol="features").transform(frame)
        frame = frame.select("features", "label").cache()
        frame.count()
        peer = Peer(regParam=1.0 / len(X), standardization=False, tol=1e-6, maxIter=100)
        times = []
        for _ in range(4):
            start = time.perf_counter()
            fitted = peer.fit(frame)
            times.append(time.perf_counter() - start)
        return statistics.median(times[1:]), fitted.coefficients.toArray(), fitted.intercept
