"""Conformal intervals and sets: coverage and width compared with MAPIE and crepes, and memory."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from sklearn.frozen import FrozenEstimator

from benchmarks._common import markdown
from benchmarks._memory import memory_now, memory_peak
from daskml_dist.conformal import ConformalClassifier, ConformalRegressor
from daskml_dist.linear_model import LinearRegression, LogisticRegression

#: Share of intervals that may miss the target.
ALPHA = 0.1
#: Numbers of rows for training, for calibration and for testing; number of features.
TRAINED, CALIBRATED, NEW, FEATURES = 10_000, 100_000, 200_000, 5
CLASSES = 5
#: Millions of calibration rows, and number of rows of a block.
MILLIONS = (1, 10, 100)
BLOCK = 500_000

#: Intervals or sets, and the seconds of calibration and prediction.
Found = tuple[Any, float]


def run(tiny: bool = False) -> str:
    """Return two tables: comparison with peers on equal models, and generated calibration rows."""
    return f"{_compare(tiny)}\n\n{_stream(tiny)}"


def _compare(tiny: bool) -> str:
    """Return coverage, width and seconds of ours and of the peers, with the same fitted models."""
    share = 100 if tiny else 1
    sizes = [n // share for n in (TRAINED, CALIBRATED, NEW)]
    X, y, labels = _make_rows(np.random.default_rng(0), sum(sizes))
    ends = np.cumsum(sizes)[:-1]
    (X_fit, X_cal, X_new), (y_fit, y_cal, y_new) = np.split(X, ends), np.split(y, ends)
    codes_fit, codes_cal, codes_new = np.split(labels, ends)
    line = LinearRegression().fit(X_fit, y_fit).to_sklearn()
    curve = LogisticRegression().fit(X_fit, codes_fit).to_sklearn()
    regressors: dict[str, list[tuple[str, Callable[..., Found]]]] = {
        "intervals, absolute residuals": [
            ("ours", _split_intervals), ("MAPIE", _mapie_intervals), ("crepes", _crepes_intervals),
        ],
        "the same by the sign of column 0": [
            ("ours", _group_intervals), ("crepes", _crepes_groups),
        ],
    }  # fmt: skip
    rows = []
    for kind, tools in regressors.items():
        first: Any = None
        for tool, work in tools:
            found = _try_peer(work, line, X_cal, y_cal, X_new)
            if found is None:
                continue
            intervals, seconds = found
            first = intervals if first is None else first
            covered = (intervals[:, 0] <= y_new) & (y_new <= intervals[:, 1])
            rows.append(
                [
                    kind, tool, f"{covered.mean():.2%}", f"{np.diff(intervals).mean():.4f}",
                    f"{np.abs(intervals - first).max():.0e}", f"{seconds:.2f}",
                ]
            )  # fmt: skip
    for kind in ("lac", "aps", "raps"):
        for tool, work_of in (("ours", _label_sets), ("MAPIE", _mapie_sets)):
            found = _try_peer(work_of, kind, curve, X_cal, codes_cal, X_new)
            if found is None:
                continue
            sets, seconds = found
            covered = sets[np.arange(len(sets)), codes_new]
            cells = [f"{covered.mean():.2%}", f"{sets.sum(axis=1).mean():.4f}", "-"]
            rows.append([f"sets of labels, {kind}", tool, *cells, f"{seconds:.2f}"])
    columns = [
        "what is predicted", "by", "covered", "mean width, or labels", "largest difference of ends",
        "seconds",
    ]  # fmt: skip
    title = (
        f"Calibration on {sizes[1]:,} rows, prediction of {sizes[2]:,}, alpha {ALPHA}; linear "
        f"models of {FEATURES} features, {CLASSES} classes"
    )
    return markdown(title, columns, rows)


def _try_peer(work: Callable[..., Found], *given: Any) -> Found | None:
    """Return the result of a tool; None if it is not installed."""
    try:
        return work(*given)
    except ImportError:
        return None


def _make_rows(rng: Any, n: int) -> tuple[Any, Any, Any]:
    """Return rows, a target whose noise depends on the row, and labels."""
    X = rng.normal(size=(n, FEATURES))
    y = X.sum(axis=1) + rng.normal(size=n) * np.exp(X[:, 0] / 2)
    weights = np.sin(np.arange(FEATURES * CLASSES)).reshape(FEATURES, CLASSES)
    labels = (X @ weights + rng.gumbel(size=(n, CLASSES))).argmax(axis=1)
    return X, y, labels


def _split_intervals(model: Any, X: Any, y: Any, new: Any, group_by: Any = None) -> Found:
    begin = time.perf_counter()
    ours = ConformalRegressor(FrozenEstimator(model), alpha=ALPHA, group_by=group_by).fit(X, y)
    return ours.predict_interval(new), time.perf_counter() - begin


def _group_intervals(model: Any, X: Any, y: Any, new: Any) -> Found:
    return _split_intervals(model, X, y, new, group_by=_sign)


def _sign(X: Any) -> Any:
    """Return the group of each row."""
    return np.asarray(X)[:, 0] > 0


def _mapie_intervals(model: Any, X: Any, y: Any, new: Any) -> Found:
    from mapie.regression import SplitConformalRegressor

    begin = time.perf_counter()
    theirs = SplitConformalRegressor(model, confidence_level=1 - ALPHA, prefit=True)
    _, found = theirs.conformalize(X, y).predict_interval(new)
    return found[:, :, 0], time.perf_counter() - begin


def _crepes_intervals(model: Any, X: Any, y: Any, new: Any, by_sign: bool = False) -> Found:
    from crepes import ConformalRegressor as Crepes

    begin = time.perf_counter()
    groups = (_sign(X).astype(int), _sign(new).astype(int)) if by_sign else (None, None)
    theirs = Crepes().fit(y - model.predict(X), bins=groups[0])
    found = theirs.predict_int(model.predict(new), bins=groups[1], confidence=1 - ALPHA)
    return found, time.perf_counter() - begin


def _crepes_groups(model: Any, X: Any, y: Any, new: Any) -> Found:
    return _crepes_intervals(model, X, y, new, by_sign=True)


def _label_sets(kind: str, model: Any, X: Any, labels: Any, new: Any) -> Found:
    begin = time.perf_counter()
    ours = ConformalClassifier(FrozenEstimator(model), alpha=ALPHA, conformity=kind).fit(X, labels)
    return ours.predict_set(new), time.perf_counter() - begin


def _mapie_sets(kind: str, model: Any, X: Any, labels: Any, new: Any) -> Found:
    from mapie.classification import SplitConformalClassifier

    begin = time.perf_counter()
    theirs = SplitConformalClassifier(
        model, confidence_level=1 - ALPHA, prefit=True, conformity_score=kind, random_state=0
    )
    _, found = theirs.conformalize(X, labels).predict_set(new)
    return found[:, :, 0], time.perf_counter() - begin


# --- many rows ------------------------------------------------------------------------------


def _stream(tiny: bool) -> str:
    """Return seconds and memory of calibration by number of rows, each in a separate process."""
    rows = []
    context = multiprocessing.get_context("spawn")
    for millions in MILLIONS[:1] if tiny else MILLIONS:
        n = 20_000 if tiny else millions * 1_000_000
        with context.Pool(1) as pool:
            seconds, before, peak, covered = pool.apply(_calibrate, (n, min(BLOCK, n // 4)))
        rows.append(
            [
                f"{n:,}", f"{seconds:.1f}", f"{n / seconds:,.0f}", f"{before >> 20:,}",
                f"{peak >> 20:,}", f"{covered:.2%}",
            ]
        )  # fmt: skip
    columns = [
        "calibration rows", "seconds", "rows/s", "MiB before", "MiB at the peak",
        "covered, of 200,000 other rows",
    ]  # fmt: skip
    title = (
        f"Split conformal intervals, rows generated as they are read, in blocks of {BLOCK:,} x "
        f"{FEATURES}, in one process of {os.cpu_count()} threads"
    )
    return markdown(title, columns, rows)


def _calibrate(n: int, block: int) -> tuple[float, int, int, float]:
    """Return the seconds, memory before and at its peak, and the coverage of other rows."""
    rng = np.random.default_rng(0)
    X, y, _ = _make_rows(rng, 10_000)
    line = LinearRegression().fit(X, y)
    n_blocks = n // block
    seeds = da.from_array(np.arange(1, n_blocks + 1), chunks=1)
    rows = seeds.map_blocks(
        _make_block, block, chunks=((block,) * n_blocks, (FEATURES + 1,)), new_axis=1, dtype=float
    )
    before, begin = memory_now(), time.perf_counter()
    model = ConformalRegressor(FrozenEstimator(line), alpha=ALPHA)
    model.fit(rows[:, :FEATURES], rows[:, FEATURES])
    seconds = time.perf_counter() - begin
    peak = memory_peak()
    new, y_new, _ = _make_rows(rng, NEW)
    low, high = model.predict_interval(new).T
    return seconds, before, peak, float(((low <= y_new) & (y_new <= high)).mean())


def _make_block(seed: Any, size: int) -> Any:
    """Return a block of rows with their target as the last column."""
    X, y, _ = _make_rows(np.random.default_rng(int(seed[0])), size)
    return np.column_stack([X, y])
