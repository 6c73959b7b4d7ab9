"""Time of ALS on two worker processes, compared with `implicit` (two threads) if installed.

``python -m benchmarks.recommender --growth``: how the time grows with ratings, rank and workers.
``python -m benchmarks.recommender --memory 1GiB``: 19 million ratings and factors of rank 64 on
workers with this much memory each, and the largest amount that they used (``--workers``,
``--users``).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
import warnings
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, wait
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks._common import markdown, processes
from benchmarks._memory import memory_peak
from daskml_dist.recommender import ALS

#: Numbers of ratings, users, items.
SIZE, TINY = (800_000, 6_000, 4_000), (2_000, 60, 40)
RANKS, SWEEPS, REPEATS = (10, 64), 10, 3
#: Growth: ratings (in thousands), ranks, workers, each doubled from its first value.
GROWTH = {"ratings": (500, 1000, 2000, 4000), "rank": (8, 16, 32, 64, 128), "workers": (1, 2)}


def run(tiny: bool = False) -> str:
    """Return a table: whole fits, and a sweep."""
    users, items, values, shape = ratings(*(TINY if tiny else SIZE))
    frame = pd.DataFrame({"user": users, "item": items, "rating": values})
    matrix = sparse.csr_matrix((values, (users, items)), shape=shape)
    repeats, ranks = (1, (4,)) if tiny else (REPEATS, RANKS)
    table = []
    with processes(2):
        lazy = _lazy(frame, 4)
        for rank in ranks:
            for solver in ("cholesky", "cg"):
                peer = _peer(matrix, rank, solver, repeats)
                for implicit in (True, False):
                    model = ALS(
                        rank, implicit=implicit, solver=solver, max_iter=SWEEPS, random_state=0
                    )
                    fit, sweep = _ours(model, lazy, repeats)
                    theirs = peer if implicit else (float("nan"),) * 2
                    kind = "implicit" if implicit else "explicit"
                    numbers = fit, theirs[0], theirs[0] / fit, sweep, theirs[1], theirs[1] / sweep
                    cells = ["" if np.isnan(n) else f"{n:.3g}" for n in numbers]
                    table.append([f"{kind}, rank {rank}, {solver}", *cells])
    head = ["", "fit, s", "implicit, s", "ratio", "sweep, s", "implicit, s", "ratio"]
    title = f"ALS of {len(values):,} ratings, {SWEEPS} sweeps, 2 processes ('implicit': 2 threads)"
    return markdown(title, head, table)


def growth() -> str:
    """Return a table: seconds of a fit and of a sweep, by ratings, rank and workers."""
    table = []
    for name, values in GROWTH.items():
        for value in values:
            facts = {"ratings": 1000, "rank": 16, "workers": 2} | {name: value}
            thousands = facts["ratings"]
            users, items, given, _ = ratings(1000 * thousands, 8 * thousands, 4 * thousands)
            frame = pd.DataFrame({"user": users, "item": items, "rating": given})
            with processes(facts["workers"]):
                fit, sweep = _ours(ALS(facts["rank"], random_state=0), _lazy(frame, 4), 2)
            n = len(given)
            table.append(
                [f"{name} {value}", f"{fit:.2f}", f"{sweep:.4f}", f"{1e9 * sweep / n:.1f}"]
            )
    head = ["1 M ratings, rank 16, 2 workers, but", "fit, s", "sweep, s", "ns per rating"]
    return markdown("ALS as the sizes grow (ratings in thousands)", head, table)


def memory(limit: str, workers: int, n_users: int) -> str:
    """Return a table: the peak memory of each worker, with factors and ratings spread over all."""
    users, items, given, shape = ratings(19_000_000, n_users, 27_000)
    frame = pd.DataFrame({"user": users, "item": items, "rating": given})
    del users, items, given
    cluster = LocalCluster(
        n_workers=workers, threads_per_worker=1, memory_limit=limit, host="127.0.0.1",
        dashboard_address=":0",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, cluster, Client(cluster) as client:
        # As for users: ratings inside a graph would stay in the workers' memory with it.
        for i, rows in enumerate(np.array_split(np.arange(len(frame)), 40)):
            frame.iloc[rows[0] : rows[-1] + 1].to_pickle(f"{folder}/{i}")
        lazy = dd.from_map(pd.read_pickle, [f"{folder}/{i}" for i in range(40)]).persist()
        wait(lazy)
        del frame
        since = time.perf_counter()
        model = ALS(64, implicit=True, max_iter=2, random_state=0).fit(lazy)
        taken = time.perf_counter() - since
        peaks = client.run(memory_peak).values()
    nbytes = model.user_factors_.nbytes + model.item_factors_.nbytes
    rows = [[f"{nbytes / 2**20:.0f}", f"{peak / 2**20:.0f}", f"{taken:.1f}"] for peak in peaks]
    title = f"ALS of 19 M ratings, {shape[0]:,} users, rank 64, 2 sweeps, workers of {limit}"
    return markdown(title, ["factors, MiB", "peak memory of a worker, MiB", "fit, s"], rows)


def _lazy(frame: pd.DataFrame, n: int) -> Any:
    """Return the ratings in the workers' memory."""
    with warnings.catch_warnings():
        # Ratings generated here are sent to the workers once, inside a large graph; this is
        # intended.
        warnings.filterwarnings("ignore", "Sending large graph")
        return dd.from_pandas(frame, npartitions=n, sort=False).persist()


def ratings(
    n: int, n_users: int, n_items: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], tuple[int, int]]:
    """Return pairs of users and items, some with many ratings, and the ratings."""
    rng = np.random.default_rng(0)
    of_user = rng.lognormal(0, 1.2, n_users)
    of_item = rng.permutation(1 / np.arange(1, n_items + 1) ** 0.9)
    users, items = (rng.choice(len(p), n + n // 4, p=p / p.sum()) for p in (of_user, of_item))
    pairs = rng.permutation(np.unique(users * n_items + items))[:n]
    values = (rng.integers(1, 11, len(pairs)) / 2).astype(np.float32)
    return pairs // n_items, pairs % n_items, values, (n_users, n_items)


def _ours(model: ALS, lazy: Any, repeats: int) -> tuple[float, float]:
    """Return the seconds of a fit and of a sweep; the first fit warms up."""
    model.fit(lazy)
    taken, sweeps = [], []
    for _ in range(repeats):
        since = time.perf_counter()
        model.fit(lazy)
        taken.append(time.perf_counter() - since)
        sweeps += [record["seconds"] for record in model.history_[1:]]
    return statistics.median(taken), statistics.median(sweeps)


def _peer(matrix: Any, rank: int, solver: str, repeats: int) -> tuple[float, float]:
    """Return the seconds of a fit of `implicit`, and of a sweep; NaN if it is not installed."""
    if importlib.util.find_spec("implicit") is None:
        return float("nan"), float("nan")
    from implicit.als import AlternatingLeastSquares

    taken: dict[int, list[float]] = {1: [], SWEEPS: []}
    with threadpool_limits(1, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeats):
            for sweeps, found in taken.items():
                model = AlternatingLeastSquares(
                    factors=rank, regularization=0.1, iterations=sweeps, num_threads=2,
                    use_cg=solver == "cg", calculate_training_loss=False, random_state=0,
                )  # fmt: skip
                since = time.perf_counter()
                model.fit(matrix, show_progress=False)
                found.append(time.perf_counter() - since)
    whole, one = (statistics.median(taken[sweeps]) for sweeps in (SWEEPS, 1))
    return whole, (whole - one) / (SWEEPS - 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--memory", metavar="LIMIT")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--users", type=float, default=2e6)
    chosen = parser.parse_args()
    if chosen.memory:
        print(memory(chosen.memory, chosen.workers, int(chosen.users)))
    else:
        print(growth() if chosen.growth else run())
