"""A search over more rows than workers have memory for: seconds, and the memory of each worker.

Two workers of 2 GiB; rows are generated when they are read. ``DASKML_DIST_LARGE_SEARCH`` sets the
numbers of rows, such as ``18000000,180000000``.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from benchmarks._common import markdown, processes
from benchmarks._watch import Watch
from benchmarks.large_trees import FEATURES, rows
from benchmarks.streaming import workers
from daskml_dist import Run
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.model_selection import GridSearchCV, KFold

#: 2 and 20 GB of float32.
ROWS = (18_000_000, 180_000_000)
VALUES, FOLDS, BLOCK = 4, 3, 500_000


def run(tiny: bool = False) -> str:
    """Return the table; its rows are printed as soon as they are known."""
    asked = os.environ.get("DASKML_DIST_LARGE_SEARCH")
    sizes = [int(n) for n in asked.split(",")] if asked else [4_000] if tiny else list(ROWS)
    head = ["rows", "GB", "seconds of a search", "rows/s of a fit", "streamed",
            "peak of each worker, MiB", "mean accuracy of each value"]  # fmt: skip
    title = (
        f"{VALUES} values of C, {FOLDS} folds, rows x {FEATURES} float32, made when read, 2 "
        "workers of 2 GiB"
    )
    print("\n" + markdown(title, head, []), flush=True)
    for n in sizes:
        print("| " + " | ".join(_measured(n, tiny)) + " |", flush=True)
    return ""


def _measured(n: int, tiny: bool) -> list[str]:
    grid = {"C": np.logspace(-6, 0, VALUES)}
    budget = 60 * n if tiny else "auto"
    with processes(2) if tiny else workers("2 GiB") as client:
        estimator: Any = LogisticRegression(run=Run(memory_budget=budget))
        search = GridSearchCV(estimator, grid, cv=KFold(FOLDS), refit=False)
        search.fit(*rows(2_000, 1_000))  # loads the kernels, compiled at the first time
        with Watch(client) as watch:
            since = time.perf_counter()
            search.fit(*rows(n, n // 4 if tiny else BLOCK))
            taken = time.perf_counter() - since
    fits = VALUES * FOLDS
    return [
        f"{n:,}", f"{n * FEATURES * 4 / 1e9:.1f}", f"{taken:.1f}", f"{n * fits / taken:,.0f}",
        "yes" if n * FEATURES * 4 > 4e9 else "-",
        ", ".join(f"{peak:,.0f}" for peak in watch.whole),
        ", ".join(f"{score:.4f}" for score in search.cv_results_["mean_test_score"]),
    ]  # fmt: skip
