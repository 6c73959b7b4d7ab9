"""Time of LinearRegression and Ridge on two worker processes, compared with scikit-learn's."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import linear_model as peers

from benchmarks._common import markdown, persisted, processes
from daskml_dist import linear_model

ROWS, FEATURES, REPEATS = 2_000_000, 100, 5
NAMES = ("LinearRegression", "Ridge")
#: Number of rows in a piece of the Gram matrix of the lower bound.
PIECE = 2048


def run(tiny: bool = False) -> str:
    """Return three tables: against scikit-learn, by rows, by features."""
    rows, features = (4_000, 20) if tiny else (ROWS, FEATURES)
    repeats = 1 if tiny else REPEATS
    # Before the cluster: scikit-learn's solver holds the interpreter for seconds, and this process
    # runs the scheduler too.
    measured = _peers(rows, features, repeats)
    with processes(2):
        tables = [
            _beside_peers(rows, features, repeats, *measured),
            _by_size(
                [(rows // k, features) for k in ((1,) if tiny else (16, 4, 1))], "rows", repeats
            ),
            _by_size(
                [(rows // 10, features * k) for k in ((1,) if tiny else (1, 2, 5))],
                "features",
                repeats,
            ),
        ]
    return "\n\n".join(tables)


def _rows(n_rows: int, n_features: int, offset: float = 0.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    y = X @ rng.standard_normal(n_features, dtype=np.float32)
    y += rng.standard_normal(n_rows, dtype=np.float32)
    X += np.float32(offset)
    return X, y


def _seconds(function: Callable[[], Any], repeats: int) -> float:
    """Return the median of the repeats; the first call warms up."""
    function()
    taken = []
    for _ in range(repeats):
        since = time.perf_counter()
        function()
        taken.append(time.perf_counter() - since)
    return statistics.median(taken)


def _gram(X: Any) -> Any:
    """Compute the lower bound: the symmetric product alone, with all BLAS threads."""
    out = np.zeros((X.shape[1],) * 2)
    for start in range(0, len(X), PIECE):
        piece = X[start : start + PIECE]
        out += piece.T @ piece
    return out


def _peers(n_rows: int, n_features: int, repeats: int) -> tuple[float, dict[str, Any]]:
    """Return the seconds of the bound, and the seconds and model of each scikit-learn class."""
    X, y = _rows(n_rows, n_features)
    found = {}
    for name in NAMES:
        model = getattr(peers, name)()
        found[name] = _seconds(lambda model=model: model.fit(X, y), repeats), model
    return _seconds(lambda: _gram(X), repeats), found


def _beside_peers(
    n_rows: int, n_features: int, repeats: int, floor: float, theirs_of: dict[str, Any]
) -> str:
    table = []
    X, y = _rows(n_rows, n_features)
    lazy = [persisted(part, 8) for part in (X, y)]
    for name in NAMES:
        (peer, theirs), ours = theirs_of[name], getattr(linear_model, name)()
        mine = _seconds(lambda ours=ours: ours.fit(*lazy), repeats)
        error = float(np.abs(ours.coef_ - theirs.coef_).max() / np.abs(theirs.coef_).max())
        looks = sum(record["seconds"] for record in ours.history_.records)
        times = f"{mine:.3f}", f"{looks:.3f}", f"{peer:.3f}"
        table.append([name, *times, f"{peer / mine:.1f}", f"{error:.1e}"])
    del lazy
    gc.collect()
    X, y = _rows(n_rows, n_features, offset=1e3)
    lazy = [persisted(part, 8) for part in (X, y)]
    ours = linear_model.LinearRegression()
    seconds = _seconds(lambda: ours.fit(*lazy), repeats)
    looks = len(ours.history_.records)
    table.append(
        [
            f"LinearRegression, means of 1,000 ({looks} passes over the rows)",
            f"{seconds:.3f}",
            "",
            "",
            "",
            "",
        ]
    )
    table.append(["blocked Gram matrix, one process", f"{floor:.3f}", "", "", "", ""])
    title = f"Least squares of {n_rows:,} x {n_features} float32, persisted, 2 worker processes"
    head = [
        "",
        "fit, s",
        "passes over the rows, s",
        "scikit-learn, s",
        "ratio",
        "difference of coef_",
    ]
    return markdown(title, head, table)


def _by_size(sizes: list[tuple[int, int]], what: str, repeats: int) -> str:
    table = []
    for n_rows, n_features in sizes:
        X, y = (persisted(part, 8) for part in _rows(n_rows, n_features))
        row = [f"{n_rows:,}", f"{n_features:,}"]
        for name in NAMES:
            model = getattr(linear_model, name)()
            seconds = _seconds(lambda model=model, X=X, y=y: model.fit(X, y), repeats)
            row.append(f"{seconds:.3f}")
        table.append(row)
        del X, y
        gc.collect()
    return markdown(f"By {what}", ["rows", "features", "LinearRegression, s", "Ridge, s"], table)
