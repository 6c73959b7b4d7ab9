"""Growth of the time of boosting and forests with rows, features, depth and worker processes.

``DASKML_DIST_TREE_GROWTH=boosting`` selects one of the tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from distributed import wait

from benchmarks._common import markdown, persisted, processes
from benchmarks.boosting import rows
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

#: Initial rows, features and depth, factors of growth, and numbers of worker processes.
BASE, GROWTH, WORKERS = (125_000, 14, 4), (1, 2, 4), (1, 2, 4)
TINY = (2_000, 5, 2)
BLOCKS, ROUNDS, TREES = 8, 20, 8
KINDS = ("boosting", "forest, functional", "forest, data")


def run(tiny: bool = False) -> str:
    """Return a table for each kind: seconds of whole fits, also relative to the first of a column.

    Rows are printed as soon as they are known.
    """
    base, growth, workers = (TINY, (1,), (1,)) if tiny else (BASE, GROWTH, WORKERS)
    asked = os.environ.get("DASKML_DIST_TREE_GROWTH", "")
    kinds = [kind for kind in KINDS if kind.startswith(asked)]
    cases = [
        tuple(size * by if i == axis else size for i, size in enumerate(base))
        for axis in range(3)
        for by in growth
        if axis == 0 or by > 1
    ]
    title = f"Fits as the sizes grow: {ROUNDS} rounds of boosting, {TREES} trees of forests"
    head = ["workers", "rows", "features", "depth", *(f"{kind}, s" for kind in kinds)]
    print("\n" + markdown(title, [*head, "relative to the first row"], []), flush=True)
    for n in workers:
        first: list[float] = []
        for case, taken in _seconds(kinds, cases, n):
            first = first or taken
            ratios = " ".join(f"{t / of:.1f}" for t, of in zip(taken, first, strict=True))
            cells = [n, f"{case[0]:,}", *case[1:], *(f"{t:.2f}" for t in taken), ratios]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return ""


def _seconds(kinds: list[str], cases: list[Any], workers: int) -> Iterator[tuple[Any, list[float]]]:
    """Yield each case, and the seconds of each kind."""
    with processes(workers):
        for number, (n, d, depth) in enumerate(cases):
            X, y = rows(n, d)
            lazy, target = persisted(X, BLOCKS), persisted(y, BLOCKS)
            wait([lazy, target])
            taken = []
            for kind in kinds:
                model = _model(kind, depth)
                if not number:  # loads the kernels
                    model.fit(lazy, target)
                since = time.perf_counter()
                model.fit(lazy, target)
                taken.append(time.perf_counter() - since)
            yield (n, d, depth), taken
            del lazy, target


def _model(kind: str, depth: int) -> Any:
    if kind == "boosting":
        # As many leaves as the depth allows, so that their number grows with it as in a forest.
        return HistGradientBoostingClassifier(
            max_iter=ROUNDS, max_depth=depth, max_leaf_nodes=None, early_stopping=False
        )
    decomposition = kind.rpartition(" ")[2]
    return RandomForestClassifier(
        TREES, max_depth=depth, decomposition=decomposition, random_state=0
    )
