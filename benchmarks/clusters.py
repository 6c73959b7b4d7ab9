"""Time of k-means on two worker processes, compared with scikit-learn, dask-ml and faiss."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from distributed import wait
from sklearn import cluster as peers
from sklearn.cluster import KMeans as Peer

from benchmarks._common import markdown, persisted, processes
from daskml_dist.cluster import BisectingKMeans, KMeans, MiniBatchKMeans

#: Numbers of rows, features, clusters; the default fits use the first shape too.
SHAPES = {"low": (2_000_000, 28, 20), "high": (500_000, 100, 100)}
TINY = (4_000, 5, 4)
#: Shape for dask-ml, which is too slow for more rows.
FEWER = (500_000, 28, 20)
#: Shape for mini-batch steps and for splits.
OTHERS = (500_000, 28, 20)
STEPS, BLOCKS = 20, 8
#: Number of repeats for calls that take less than a second.
REPEATS = 3
#: Shape from which growth is measured, and the factors by which each size grows.
BASE, GROWTH = (500_000, 20, 20), (1, 2, 4)

#: Estimators of the tables of others.
KINDS: dict[str, tuple[Any, Any]] = {
    "batches": (MiniBatchKMeans, peers.MiniBatchKMeans),
    "splits": (BisectingKMeans, peers.BisectingKMeans),
}

Fit = Callable[[], Any]


def run(tiny: bool = False) -> str:
    """Print the tables row by row; ``DASKML_DIST_CLUSTERS=low,growth`` selects tables.

    ``low`` and ``high``: k-means with few features and clusters, and with many; ``dask-ml``:
    compared with dask-ml; ``growth``: how the time grows (``growth-clusters``: only with the number
    of clusters); ``batches``: mini-batch steps; ``splits``: bisecting k-means.
    """
    shapes = dict.fromkeys(SHAPES, TINY) if tiny else SHAPES
    asked = os.environ.get("DASKML_DIST_CLUSTERS", "low,high,dask-ml,growth,batches,splits").split(
        ","
    )
    for name in asked:
        if name in shapes:
            _beside_peers(*shapes[name])
        elif name.startswith("growth"):
            of = name.partition("-")[2]
            _growth(TINY, (1,), of) if tiny else _growth(BASE, GROWTH, of)
        elif name == "dask-ml":
            _beside_dask_ml(*(TINY if tiny else FEWER))
        else:
            _others(name, *(TINY if tiny else OTHERS))
    return ""


def _head(title: str, columns: list[str]) -> None:
    print("\n" + markdown(title, columns, []), flush=True)


def _row(*cells: Any) -> None:
    """Print a row of the table as soon as it is known."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def blobs(n: int, d: int, k: int) -> tuple[Any, Any]:
    """Return float32 rows about k centres that overlap a little, and some of them as start."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((k, d), dtype=np.float32)
    X = 1.5 * rng.standard_normal((n, d), dtype=np.float32)
    X += centres[rng.integers(0, k, n)]
    return X, X[:k].copy()


def seconds(fit: Fit) -> tuple[float, Any]:
    """Return a fit's median time after one to warm up, and the last model; slow ones run once."""
    since = time.perf_counter()
    model = fit()
    first, taken = time.perf_counter() - since, []
    for _ in range(REPEATS if first < 4 else 1):
        since = time.perf_counter()
        model = fit()
        taken.append(time.perf_counter() - since)
    return statistics.median(taken), model


def _beside_peers(n: int, d: int, k: int) -> None:
    X, init = blobs(n, d, k)
    given = {"max_iter": STEPS, "tol": 0.0}
    title = f"k-means of {n:,} x {d} float32, k={k}, persisted, 2 worker processes"
    _head(title, ["", "seconds of a fit", "steps", "inertia of 20,000 rows"])

    def add_row(what: str, fit: Fit) -> None:
        taken, model = seconds(fit)
        steps = getattr(model, "n_iter_", STEPS)
        _row(what, f"{taken:.2f}", steps, f"{_inertia(model, X):.4g}")

    # Before the cluster, whose scheduler runs in this process.
    peer = {"n_init": 1, "algorithm": "lloyd", **given}
    add_row("same start, scikit-learn", lambda: Peer(k, init=init, **peer).fit(X))
    add_row("default, scikit-learn", lambda: Peer(k, random_state=0).fit(X))
    if importlib.util.find_spec("faiss"):
        add_row("same start, faiss", lambda: _faiss(X, init))
    with processes(2):
        lazy = persisted(X, BLOCKS)
        wait(lazy)
        add_row("same start", lambda: KMeans(k, init=init, **given).fit(lazy))
        add_row("default", lambda: KMeans(k, random_state=0).fit(lazy))
        once = {"random_state": 0, "max_iter": 1}
        add_row("first centres and one step", lambda: KMeans(k, **once).fit(lazy))
        add_row("one step", lambda: KMeans(k, init=init, max_iter=1).fit(lazy))


def _beside_dask_ml(n: int, d: int, k: int) -> None:
    """Compare k-means with dask-ml's, if it is installed: 20 steps, and default arguments."""
    X, init = blobs(n, d, k)
    title = f"k-means of {n:,} x {d} float32, k={k}, persisted, 2 worker processes"
    _head(title, ["", "seconds of a fit", "steps", "inertia of 20,000 rows"])
    with processes(2):
        lazy = persisted(X, BLOCKS)
        wait(lazy)
        same = {"init": init, "max_iter": STEPS, "tol": 0.0}
        for first in ({"init": init}, {"random_state": 0}):  # loads the kernels
            KMeans(k, max_iter=1, **first).fit(lazy)
        for what, given in (("same start", same), ("default", {"random_state": 0})):
            fits = {"": lambda given=given: KMeans(k, **given).fit(lazy)}
            if importlib.util.find_spec("dask_ml"):
                fits[", dask-ml"] = lambda given=given: _dask_ml(lazy, k, **given)
            for whose, fit in fits.items():
                since = time.perf_counter()
                model = fit()
                taken = time.perf_counter() - since
                _row(f"{what}{whose}", f"{taken:.2f}", model.n_iter_, f"{_inertia(model, X):.4g}")


def _others(name: str, n: int, d: int, k: int) -> None:
    """Compare mini-batch steps, or splits, with scikit-learn's."""
    ours, theirs = KINDS[name]
    X, _ = blobs(n, d, k)
    title = f"{ours.__name__} of {n:,} x {d} float32, k={k}, persisted, 2 worker processes"
    _head(title, ["", "seconds of a fit", "inertia"])
    taken, model = seconds(lambda: theirs(k, random_state=0).fit(X))
    _row("scikit-learn", f"{taken:.2f}", f"{model.inertia_:.4g}")
    with processes(2):
        lazy = persisted(X, BLOCKS)
        wait(lazy)
        policies = ("allreduce", "async") if name == "batches" else (None,)
        for policy in policies:
            given = {} if policy is None else {"policy": policy}
            taken, model = seconds(lambda g=given: ours(k, random_state=0, **g).fit(lazy))
            _row(policy or "ours", f"{taken:.2f}", f"{model.inertia_:.4g}")


def _dask_ml(lazy: Any, k: int, **given: Any) -> Any:
    from dask_ml.cluster import KMeans as OnDask

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OnDask(k, **given).fit(lazy)


class _Centres:
    """Result of faiss, with the attributes of the other models."""

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


def _growth(base: tuple[int, int, int], by: tuple[int, ...], of: str = "") -> None:
    """Print the seconds of 20 steps from random rows, without reading the data."""
    head = ["", "rows", "features", "clusters", "1 worker", "2 workers"]
    _head(f"{STEPS} steps, as the sizes grow, seconds", head)
    for number, what in enumerate(("rows", "features", "clusters")):
        if of not in ("", what):
            continue
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
            _row(what, f"{n:,}", d, k, *(f"{each:.2f}" for each in taken))


def streamed(rows: int, features: int, clusters: int, blocks: int) -> Any:
    """Return rows that are generated when they are read, more than fit in memory."""

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
