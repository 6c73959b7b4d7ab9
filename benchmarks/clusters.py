"""Time of k-means on two worker processes, beside scikit-learn, dask-ml and faiss."""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from distributed import wait
from sklearn.cluster import KMeans as Peer

from benchmarks._common import markdown, persisted, processes
from daskml_dist.cluster import KMeans

#: Rows, features, clusters; the first shape is that of the default fits too.
SHAPES = [(2_000_000, 28, 20), (500_000, 100, 100)]
TINY = [(4_000, 5, 4)]
STEPS, BLOCKS = 20, 8
#: Repeats of what takes less than a second.
REPEATS = 3
#: Where growth is measured from, and by how much each grows.
BASE, GROWTH = (500_000, 20, 20), (1, 2, 4)

Fit = Callable[[], Any]


def run(tiny: bool = False) -> str:
    """Three tables: beside the peers, first centres, how time grows."""
    shapes = TINY if tiny else SHAPES
    tables = [_beside_peers(*shape) for shape in shapes]
    tables.append(_growth(TINY[0], (1,)) if tiny else _growth(BASE, GROWTH))
    return "\n\n".join(tables)


def blobs(n: int, d: int, k: int) -> tuple[Any, Any]:
    """Rows about k centres that overlap a little, float32, and some of them to start from."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((k, d), dtype=np.float32)
    X = 1.5 * rng.standard_normal((n, d), dtype=np.float32)
    X += centres[rng.integers(0, k, n)]
    return X, X[:k].copy()


def seconds(fit: Fit) -> tuple[float, Any]:
    """Median time of a fit after one that warms up, and the last model; slow ones run once."""
    since = time.perf_counter()
    model = fit()
    first, taken = time.perf_counter() - since, []
    for _ in range(REPEATS if first < 4 else 1):
        since = time.perf_counter()
        model = fit()
        taken.append(time.perf_counter() - since)
    return statistics.median(taken), model


def _beside_peers(n: int, d: int, k: int) -> str:
    X, init = blobs(n, d, k)
    given = {"max_iter": STEPS, "tol": 0.0}
    # Before the cluster, whose scheduler lives in this process.
    fits: dict[str, tuple[float, Any]] = {
        "same start, scikit-learn": seconds(
            lambda: Peer(k, init=init, n_init=1, algorithm="lloyd", **given).fit(X)
        ),
        "default, scikit-learn": seconds(lambda: Peer(k, random_state=0).fit(X)),
    }
    if importlib.util.find_spec("faiss"):
        fits["same start, faiss"] = seconds(lambda: _faiss(X, init))
    with processes(2):
        lazy = persisted(X, BLOCKS)
        wait(lazy)
        fits["same start"] = seconds(lambda: KMeans(k, init=init, **given).fit(lazy))
        fits["default"] = seconds(lambda: KMeans(k, random_state=0).fit(lazy))
        fits["first centres and one step"] = seconds(
            lambda: KMeans(k, random_state=0, max_iter=1).fit(lazy)
        )
        fits["one step"] = seconds(lambda: KMeans(k, init=init, max_iter=1).fit(lazy))
        if importlib.util.find_spec("dask_ml"):
            fits |= _dask_ml(lazy, init)
    table = [
        [what, f"{taken:.2f}", str(getattr(model, "n_iter_", STEPS)), f"{_inertia(model, X):.4g}"]
        for what, (taken, model) in fits.items()
    ]
    title = f"k-means of {n:,} x {d} float32, k={k}, persisted, 2 worker processes"
    return markdown(title, ["", "seconds of a fit", "steps", "inertia of 20,000 rows"], table)


def _dask_ml(lazy: Any, init: Any) -> dict[str, tuple[float, Any]]:
    from dask_ml.cluster import KMeans as OnDask

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = {"max_iter": STEPS, "tol": 0.0}
        same = seconds(lambda: OnDask(len(init), init=init, **given).fit(lazy))
        default = seconds(lambda: OnDask(len(init), random_state=0).fit(lazy))
    return {"same start, dask-ml": same, "default, dask-ml": default}


class _Centres:
    """What faiss found, as the others have it."""

    def __init__(self, centres: Any) -> None:
        self.cluster_centers_ = centres


def _faiss(X: Any, init: Any) -> _Centres:
    import faiss

    found = faiss.Kmeans(X.shape[1], len(init), niter=STEPS, max_points_per_centroid=len(X))
    found.train(X, init_centroids=init)
    return _Centres(found.centroids)


def _inertia(model: Any, X: Any) -> float:
    centres, some = np.asarray(model.cluster_centers_, np.float64), X[:20_000]
    squares = (some**2).sum(axis=1)[:, None] - 2 * some @ centres.T + (centres**2).sum(axis=1)
    return float(squares.min(axis=1).sum())


def _growth(base: tuple[int, int, int], by: tuple[int, ...]) -> str:
    """Seconds of 20 steps from rows drawn as the data is, without the reading of them."""
    table = []
    for number, what in enumerate(("rows", "features", "clusters")):
        for factor in by:
            n, d, k = (size * (factor if i == number else 1) for i, size in enumerate(base))
            X, init = blobs(n, d, k)
            taken = []
            for workers in (1, 2):
                with processes(workers):
                    lazy = persisted(X, BLOCKS)
                    wait(lazy)
                    fit = KMeans(k, init=init, max_iter=STEPS, tol=0.0).fit
                    taken.append(seconds(lambda fit=fit, lazy=lazy: fit(lazy))[0])
            table.append([what, f"{n:,}", str(d), str(k), *(f"{each:.2f}" for each in taken)])
    head = ["", "rows", "features", "clusters", "1 worker", "2 workers"]
    return markdown(f"{STEPS} steps, as the sizes grow, seconds", head, table)


def streamed(rows: int, features: int, clusters: int, blocks: int) -> Any:
    """Rows that are made when they are read, more than fit in memory."""

    def made(block: Any, block_info: Any = None) -> Any:
        (number, _), size = block_info[0]["chunk-location"], block.shape[0]
        rng = np.random.default_rng(number)
        near = rng.integers(0, clusters, size)
        X = rng.standard_normal((size, features), dtype=np.float32)
        return (
            X
            + 6
            * np.sin(np.arange(clusters * features, dtype=np.float32)).reshape(clusters, features)[
                near
            ]
        )

    empty = da.zeros((rows, features), chunks=(rows // blocks, -1), dtype=np.float32)
    return empty.map_blocks(made, dtype=np.float32)
