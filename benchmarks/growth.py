"""Growth of the time of fits with rows, features, components and worker processes."""

from __future__ import annotations

import time
import warnings
from typing import Any

import dask.array as da
import numpy as np

from benchmarks._common import markdown, processes
from daskml_dist.decomposition import NMF, PCA, LatentDirichletAllocation
from daskml_dist.mixture import GaussianMixture

#: Initial numbers of rows, features and components for each kind; and the factors of growth.
BASE = {
    "PCA": (200_000, 100, 10),
    "GaussianMixture": (40_000, 16, 8),
    "LatentDirichletAllocation": (2_000, 1_000, 10),
    "NMF, cd": (20_000, 200, 10),
    "NMF, mu": (20_000, 200, 10),
}
GROWTH, BLOCKS, STEPS, REPEATS = (1, 2, 4), 8, 10, 1


def run(tiny: bool = False) -> str:
    """Return one table: seconds of each fit on two workers and on one, with equal step counts."""
    base = {name: (400, 20, 3) for name in BASE} if tiny else BASE
    growth, repeats = ((1,), 1) if tiny else (GROWTH, REPEATS)
    cases = [
        (name, *(size * by if i == axis else size for i, size in enumerate(sizes)))
        for name, sizes in base.items()
        for axis in range(3)
        for by in growth
        if axis == 0 or by > 1
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # with tol=0 no number of steps suffices
        both = _seconds(cases, 2, repeats)
        alone = _seconds(cases, 1, repeats)
    first = {case[0]: both[case] for case in reversed(cases)}
    table = [
        [
            case[0], *(f"{size:,}" for size in case[1:]), f"{both[case]:.3f}",
            f"{both[case] / first[case[0]]:.1f}", f"{alone[case]:.3f}",
            f"{alone[case] / both[case]:.1f}",
        ]
        for case in cases
    ]  # fmt: skip
    head = ["", "rows", "features", "components", "2 workers, s", "of the first", "1 worker, s", ""]
    return markdown(f"Fits of {STEPS} steps as the sizes grow", [*head[:-1], "ratio"], table)


def _seconds(cases: list[Any], workers: int, repeats: int) -> dict[Any, float]:
    found = {}
    with processes(workers):
        for case in cases:
            name, n, d, k = case
            rows, model = _rows(name, n, d), _model(name, k)
            model.fit(rows)
            found[case] = min(_timed(model, rows) for _ in range(repeats))
            del rows
    return found


def _timed(model: Any, rows: Any) -> float:
    start = time.perf_counter()
    model.fit(rows)
    return time.perf_counter() - start


def _rows(name: str, n: int, d: int) -> Any:
    rng, chunks = da.random.default_rng(0), (-(-n // BLOCKS), d)
    if name.startswith("Latent"):
        return rng.poisson(0.05, size=(n, d), chunks=chunks).persist()
    rows = rng.normal(size=(n, d), chunks=chunks).astype(np.float32)
    return (abs(rows) if name.startswith("NMF") else rows).persist()


def _model(name: str, k: int) -> Any:
    steps: dict[str, Any] = {"max_iter": STEPS, "random_state": 0}
    if name == "PCA":
        return PCA(k)
    if name == "GaussianMixture":
        return GaussianMixture(k, init_params="random_from_data", tol=0.0, **steps)
    if name.startswith("NMF"):
        return NMF(k, init="random", solver=name[-2:], tol=0.0, **steps)
    return LatentDirichletAllocation(k, **steps)
