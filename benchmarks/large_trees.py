"""Trees of more rows than workers have memory for: seconds, and the memory of each worker.

Two workers of 2 GiB; rows are generated when they are read. ``DASKML_DIST_LARGE_TREES`` sets the
models and numbers of rows, such as ``boosting:5000000,forest:20000000``.
"""

from __future__ import annotations

import os
import time
from typing import Any

import dask.array as da
import numpy as np

from benchmarks._common import markdown, processes
from benchmarks._watch import Watch
from benchmarks.streaming import workers
from daskml_dist import Run
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

FEATURES, BLOCK = 28, 250_000
ROWS = (5_000_000, 20_000_000)
ROUNDS, TREES, DEPTH = 20, 8, 12


def run(tiny: bool = False) -> str:
    """Return the table; its rows are printed as soon as they are known."""
    asked = os.environ.get("DASKML_DIST_LARGE_TREES")
    sizes = (4_000,) if tiny else ROWS
    cases = [f"{kind}:{n}" for kind in ("boosting", "forest") for n in sizes]
    head = ["", "rows", "fit, s", "rows/s", "streamed", "peak per worker, MiB",
            "without file pages"]  # fmt: skip
    title = f"Trees of rows x {FEATURES} float32, generated when read, 2 workers of 2 GiB"
    print("\n" + markdown(title, head, []), flush=True)
    for case in asked.split(",") if asked else cases:
        kind, n = case.split(":")
        print("| " + " | ".join(_measured(kind, int(n), tiny)) + " |", flush=True)
    return ""


def _measured(kind: str, n: int, tiny: bool) -> list[str]:
    with processes(2) if tiny else workers("2 GiB") as client:
        # Load the kernels first, which compiles them at the first time.
        _model(kind, 1, "auto").fit(*rows(2_000, 1_000))
        with Watch(client) as watch:
            since = time.perf_counter()
            model = _model(kind, 2 if tiny else 0, 60 * n if tiny else "auto")
            model.fit(*rows(n, n // 4 if tiny else BLOCK))
            taken = time.perf_counter() - since
    peaks = (", ".join(f"{of:,.0f}" for of in each) for each in (watch.whole, watch.own))
    streamed = "yes" if model.history_.extra.get("streamed") else "no"
    return [kind, f"{n:,}", f"{taken:.1f}", f"{n / taken:,.0f}", streamed, *peaks]


def _model(kind: str, n_trees: int, budget: Any) -> Any:
    run = Run(memory_budget=budget)
    if kind == "boosting":
        given: dict[str, Any] = {"early_stopping": False, "random_state": 0, "run": run}
        return HistGradientBoostingClassifier(max_iter=n_trees or ROUNDS, **given)
    decomposition = kind.partition("-")[2] or "auto"
    return RandomForestClassifier(
        n_trees or TREES, max_depth=DEPTH, random_state=0, decomposition=decomposition, run=run
    )


def rows(n: int, block: int) -> tuple[Any, Any]:
    """Return rows of two classes, generated block by block."""

    def made(empty: Any, block_info: Any = None) -> Any:
        number = 0 if block_info is None else block_info[0]["chunk-location"][0]
        rng = np.random.default_rng(number)
        return rng.standard_normal((len(empty), FEATURES), dtype=np.float32)

    def target(X: Any) -> Any:
        raw = X[:, :10].sum(axis=1) * 0.3 + np.sin(X[:, 0] * 2) * X[:, 1]
        raw += X[:, 2] * X[:, 3] * (X[:, 4] > 0)
        return (raw + 0.5 * X[:, -1] > 0).astype(np.int8)

    empty = da.zeros((n, FEATURES), chunks=(block, -1), dtype=np.float32)
    X = empty.map_blocks(made, dtype=np.float32)
    return X, X.map_blocks(target, drop_axis=1, dtype=np.int8)
