"""Searches: batched fits compared with separate fits, one fit, and scikit-learn's searches."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import sklearn.compose
import sklearn.impute
import sklearn.linear_model
import sklearn.model_selection
import sklearn.preprocessing
from scipy.stats import loguniform
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegressionCV
from sklearn.linear_model import SGDClassifier as TheirSGDClassifier
from sklearn.model_selection import HalvingRandomSearchCV
from sklearn.pipeline import make_pipeline

import daskml_dist.compose
import daskml_dist.impute
import daskml_dist.linear_model
import daskml_dist.model_selection
import daskml_dist.preprocessing
from benchmarks._common import markdown, processes
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.model_selection import GridSearchCV, HyperbandSearchCV, KFold
from daskml_dist.preprocessing import StandardScaler

#: Rows, features, values of C, folds; number of separate fits that are timed.
ROWS, FEATURES, VALUES, FOLDS, SOME = 1_000_000, 28, 64, 5, 10
#: Rows of searches by gradient steps, and of halving searches; largest number of passes.
STEPS, HALVED, PASSES = (200_000, 1_000_000), 100_000, 27
#: Rows of searches over pipelines, and their number of values of C.
PIPED, PIPED_VALUES = 200_000, 16


def run(tiny: bool = False) -> str:
    """Return the seconds of whole searches."""
    parts = _values_of_c, _candidates, _halved, _pipelines, _prepared
    return "\n\n".join(part(tiny) for part in parts)


def _values_of_c(tiny: bool) -> str:
    """Measure a solver: seconds of a search, and of each fit in it."""
    n, values, some = (2_000, 3, 2) if tiny else (ROWS, VALUES, SOME)
    X, y = _rows(n)
    strengths = np.logspace(-4, 4, values)
    GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}).fit(X[:2_000], y[:2_000])
    search = GridSearchCV(LogisticRegression(), {"C": strengths}, cv=KFold(FOLDS), refit=False)
    seconds = {"a stack, in this process": min(_timed(search, X, y) for _ in range(2))}
    with processes(2):
        rows = [da.from_array(a, chunks=(n // 8, *a.shape[1:])).persist() for a in (X, y)]
        seconds["a stack, 2 workers"] = min(_timed(search, *rows) for _ in range(2))
    seconds["separate fits"] = _separate(X, y, strengths, some)
    peer = LogisticRegressionCV(
        Cs=strengths, cv=KFold(FOLDS), refit=False, scoring="accuracy", n_jobs=2, l1_ratios=(0,),
        use_legacy_attributes=False,
    )  # fmt: skip
    seconds["LogisticRegressionCV"] = _timed(peer, X, y)
    fits, first = values * FOLDS, seconds["a stack, in this process"]
    table = [
        [name, f"{s:.2f}", f"{s / fits * 1e3:.1f}", f"{s / first:.1f}"]
        for name, s in seconds.items()
    ]
    title = f"{values} values of C, {FOLDS} folds, {n:,} x {FEATURES}"
    return markdown(title, ["", "s", "ms per fit", "relative to the stack"], table)


def _candidates(tiny: bool) -> str:
    """Measure gradient steps: a search compared with one fit to all rows, alternating."""
    table, values = [], 3 if tiny else VALUES
    for n in (500,) if tiny else STEPS:
        X, y = _rows(n)
        held = np.arange(n * 4 // 5, n)
        one = SGDClassifier(random_state=0)
        search = GridSearchCV(
            one, {"alpha": np.logspace(-7, -1, values)}, refit=False,
            cv=[(np.arange(len(X) - len(held)), held)],
        )  # fmt: skip
        turns = [(_timed(one, X, y), _timed(search, X, y)) for _ in range(1 if tiny else 5)]
        alone, together = np.median(turns, axis=0)
        table.append([f"{n:,}", f"{alone:.3f}", f"{together:.3f}", f"{together / alone:.1f}"])
    title = f"{values} values of alpha of `SGDClassifier`, scored on a fifth, {FEATURES} features"
    columns = ["rows", "one fit, s", f"{values} candidates, s", "relative to one fit"]
    return markdown(title, columns, table)


def _halved(tiny: bool) -> str:
    """Compare Hyperband with scikit-learn's halving, with equal candidates and passes."""
    n, passes = (500, 3) if tiny else (HALVED, PASSES)
    X, y = _rows(n)
    held = np.arange(n * 17 // 20, n)
    splits: dict[str, Any] = {"one": [(np.arange(n - len(held)), held)], str(FOLDS): FOLDS}
    values = {"alpha": loguniform(1e-6, 1e-1)}
    table = []
    for name, cv in splits.items():
        for scoring in ("accuracy", "roc_auc"):
            given: Any = {"cv": cv, "scoring": scoring, "refit": False, "random_state": 0}
            own = HyperbandSearchCV(
                SGDClassifier(tol=None, random_state=0), values, max_iter=passes, **given
            )
            peer = HalvingRandomSearchCV(
                TheirSGDClassifier("log_loss", tol=None, random_state=0), values,
                n_candidates=own.metadata["n_models"], resource="max_iter", min_resources=1,
                max_resources=passes, n_jobs=2, **given,
            )  # fmt: skip
            seconds = min(_timed(own, X, y) for _ in range(1 if tiny else 3))
            theirs = _timed(peer, X, y)
            scores = f"{own.best_score_:.4f}", f"{peer.best_score_:.4f}"
            ratio = f"{theirs / seconds:.1f}"
            table.append([name, scoring, f"{seconds:.2f}", f"{theirs:.2f}", ratio, *scores])
    title = f"Hyperband over `SGDClassifier`, {passes} passes at most, {n:,} x {FEATURES}"
    columns = ["splits", "scoring", "s", "`HalvingRandomSearchCV`, 2 processes, s", "times faster"]
    return markdown(title, [*columns, "score", "its score"], table)


def _pipelines(tiny: bool) -> str:
    """Measure a pipeline: seconds of a search, batched by split, and of its fits one by one."""
    n, values, some = (500, 2, 2) if tiny else (PIPED, PIPED_VALUES, SOME)
    X, y = _rows(n)
    grid = {"logisticregression__C": np.logspace(-4, 4, values)}
    pipeline, cv = make_pipeline(StandardScaler(), LogisticRegression()), KFold(FOLDS)
    search = GridSearchCV(pipeline, grid, cv=cv, refit=False)
    seconds = {"stacks": min(_timed(search, X, y) for _ in range(1 if tiny else 3))}
    every = [(c, *split) for c in grid["logisticregression__C"] for split in cv.split(X)]
    chosen = every[:: max(1, len(every) // some)]
    start = time.perf_counter()
    for c, train, test in chosen:
        fitted = pipeline.set_params(logisticregression__C=c).fit(X[train], y[train])
        fitted.score(X[test], y[test])
    seconds["separate fits"] = (time.perf_counter() - start) * len(every) / len(chosen)
    table = [
        [name, f"{s:.2f}", f"{s / len(every) * 1e3:.1f}", f"{s / seconds['stacks']:.1f}"]
        for name, s in seconds.items()
    ]
    title = f"Pipelines, {values} values of C, {FOLDS} folds, {n:,} x {FEATURES}"
    return markdown(title, ["", "s", "ms per fit", "relative to the stacks"], table)


def _prepared(tiny: bool) -> str:
    """Measure a pipeline that imputes, scales and encodes: seconds and CPU seconds of a search."""
    n, times = (2_000, 1) if tiny else (PIPED, 3)
    frame, table = _mixed_rows(n), []
    X, y = frame.drop(columns="y"), frame["y"]

    def measure(name: str, search: Any, *rows: Any) -> None:
        runs = [_measured(lambda: search.fit(*rows)) for _ in range(times)]
        seconds, cpu = min(runs)
        table.append([name, f"{seconds:.2f}", f"{cpu:.2f}", f"{search.best_score_:.5f}"])

    measure("scikit-learn, 2 processes", _search_of_prepared(sklearn, n_jobs=2), X, y)
    measure("in memory", _search_of_prepared(daskml_dist), X, y)
    with processes(2), tempfile.TemporaryDirectory() as folder:
        parts = dd.from_pandas(frame, npartitions=8)
        parts.to_parquet(folder)
        lazy = dd.read_parquet(folder)
        measure("Parquet, 2 workers", _search_of_prepared(daskml_dist), lazy[list(X)], lazy["y"])
    title = (
        f"`ColumnTransformer` (`SimpleImputer` and `StandardScaler` of 8 columns, `OneHotEncoder` "
        f"of 3) and `LogisticRegression`, 4 values of C, {FOLDS} folds and the refit, {n:,} rows"
    )
    return markdown(title, ["", "s", "CPU s", "best score"], table)


def _search_of_prepared(package: Any, **options: Any) -> Any:
    """Return a search of scikit-learn or of this package, over the same pipeline."""
    numbers = make_pipeline(package.impute.SimpleImputer(), package.preprocessing.StandardScaler())
    encode = package.preprocessing.OneHotEncoder(handle_unknown="ignore")
    prepare = package.compose.make_column_transformer(
        (numbers, [f"x{i}" for i in range(8)]), (encode, [f"c{i}" for i in range(3)])
    )
    pipeline = make_pipeline(prepare, package.linear_model.LogisticRegression())
    grid = {"logisticregression__C": [0.01, 0.1, 1.0, 10.0]}
    return package.model_selection.GridSearchCV(pipeline, grid, cv=FOLDS, **options)


def _mixed_rows(n: int) -> pd.DataFrame:
    """Return rows of numbers, some of them missing, and words, with a target of two labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 8)) * np.arange(1, 9)
    codes = [rng.integers(0, k, n) for k in (5, 20, 50)]
    raw = x @ (rng.standard_normal(8) / np.arange(1, 9)) + codes[1] / 10 - 1
    x[rng.random((n, 8)) < 0.02] = np.nan
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(8)])
    for i, code in enumerate(codes):
        frame[f"c{i}"] = np.array([f"value {k}" for k in range(50)])[code]
    return frame.assign(y=(raw + rng.logistic(size=n) > 0).astype(int))


def _measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a call, and the CPU seconds of this process and its children."""
    start, cpu = time.perf_counter(), _cpu_seconds()
    work()
    return time.perf_counter() - start, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    this = psutil.Process()
    every = [this, *this.children(recursive=True)]
    return float(sum(sum(process.cpu_times()[:2]) for process in every))


def _rows(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, FEATURES), dtype=np.float32)
    w = rng.standard_normal(FEATURES) * (rng.random(FEATURES) < 0.6) / 2
    return X, (X @ w + rng.logistic(size=n) > 0).astype(int)


def _timed(estimator: Any, X: Any, y: Any) -> float:
    start = time.perf_counter()
    estimator.fit(X, y)
    return time.perf_counter() - start


def _separate(X: Any, y: Any, strengths: Any, some: int) -> float:
    """Return the seconds of all separate fits, folds as weights, estimated from `some` of them."""
    n, every = len(X), [(c, fold) for c in strengths for fold in range(FOLDS)]
    chosen = every[:: max(1, len(every) // some)]
    start = time.perf_counter()
    for c, fold in chosen:
        held = np.arange(n) * FOLDS // n == fold
        estimator = LogisticRegression(C=c).fit(X, y, sample_weight=(~held).astype(np.float32))
        estimator.score(X[held], y[held])
    return (time.perf_counter() - start) * len(every) / len(chosen)
