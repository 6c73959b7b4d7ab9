"""Growth of the time of boosting and forests with rows, features, depth and worker processes.

``DASKML_DIST_TREE_GROWTH=boosting`` makes one of the tables.
"""

from __future__ import annotations

import os
import time
from typing import Any

from distributed import wait

from benchmarks._common import markdown, persisted, processes
from benchmarks.boosting import rows
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

#: Rows, features and depth that growth begins at, by how much each grows, and worker processes.
BASE, GROWTH, WORKERS = (250_000, 14, 4), (1, 2, 4), (1, 2, 4)
TINY = (2_000, 5, 2)
BLOCKS, ROUNDS, TREES = 8, 30, 8
KINDS = ("boosting", "forest, functional", "forest, data")


def run(tiny: bool = False) -> str:
    """A table of each kind: seconds of whole fits, and what they are of the first."""
    base, growth, workers = (TINY, (1,), (1,)) if tiny else (BASE, GROWTH, WORKERS)
    asked = os.environ.get("DASKML_DIST_TREE_GROWTH", "")
    cases = [
        tuple(size * by if i == axis else size for i, size in enumerate(base))
        for axis in range(3)
        for by in growth
        if axis == 0 or by > 1
    ]
    kinds = [kind for kind in KINDS if kind.startswith(asked)]
    found = {n: _seconds(kinds, cases, n) for n in workers}
    tables = []
    for kind in kinds:
        table = [
            [f"{n:,}", d, depth, *(f"{found[w][kind, (n, d, depth)]:.2f}" for w in workers),
             " ".join(f"{_ratio(found[w], kind, cases, (n, d, depth)):.1f}" for w in workers)]
            for n, d, depth in cases
        ]  # fmt: skip
        of = f"{ROUNDS} rounds" if kind == "boosting" else f"{TREES} trees"
        head = ["rows", "features", "depth", *(f"{n} workers, s" for n in workers), "of the first"]
        tables.append(markdown(f"Growth of {kind}, {of}, persisted float32", head, table))
    return "\n\n".join(tables)


def _ratio(found: dict[Any, float], kind: str, cases: list[Any], case: Any) -> float:
    return found[kind, case] / found[kind, cases[0]]


def _seconds(kinds: list[str], cases: list[Any], workers: int) -> dict[Any, float]:
    found = {}
    with processes(workers):
        for number, (n, d, depth) in enumerate(cases):
            X, y = rows(n, d)
            lazy, target = persisted(X, BLOCKS), persisted(y, BLOCKS)
            wait([lazy, target])
            for kind in kinds:
                model = _model(kind, depth)
                if not number:  # kernels are loaded
                    model.fit(lazy, target)
                since = time.perf_counter()
                model.fit(lazy, target)
                found[kind, (n, d, depth)] = time.perf_counter() - since
            del lazy, target
    return found


def _model(kind: str, depth: int) -> Any:
    if kind == "boosting":
        # As many leaves as the depth allows: their number grows with it as in a forest.
        return HistGradientBoostingClassifier(
            max_iter=ROUNDS, max_depth=depth, max_leaf_nodes=None, early_stopping=False
        )
    decomposition = kind.rpartition(" ")[2]
    return RandomForestClassifier(
        TREES, max_depth=depth, decomposition=decomposition, random_state=0
    )
