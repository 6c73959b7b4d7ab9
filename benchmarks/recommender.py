"""Time of ALS on two worker processes, beside `implicit` (two threads) where it is installed."""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks._common import markdown, processes
from daskml_dist.recommender import ALS

#: Ratings, users, items.
SIZE, TINY = (800_000, 6_000, 4_000), (2_000, 60, 40)
RANKS, SWEEPS, REPEATS = (10, 64), 10, 3


def run(tiny: bool = False) -> str:
    """A table: whole fits, and a sweep."""
    users, items, values, shape = ratings(*(TINY if tiny else SIZE))
    frame = pd.DataFrame({"user": users, "item": items, "rating": values})
    matrix = sparse.csr_matrix((values, (users, items)), shape=shape)
    repeats, ranks = (1, (4,)) if tiny else (REPEATS, RANKS)
    table = []
    with processes(2):
        with warnings.catch_warnings():
            # Ratings made here are sent to the workers once; that is what a large graph is for.
            warnings.filterwarnings("ignore", "Sending large graph")
            lazy = dd.from_pandas(frame, npartitions=4, sort=False).persist()
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
                    told = ["" if np.isnan(n) else f"{n:.3g}" for n in numbers]
                    table.append([f"{kind}, rank {rank}, {solver}", *told])
    head = ["", "fit, s", "implicit", "ratio", "sweep, s", "implicit", "ratio"]
    title = f"ALS of {len(values):,} ratings, {SWEEPS} sweeps, 2 processes ('implicit': 2 threads)"
    return markdown(title, head, table)


def ratings(
    n: int, n_users: int, n_items: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], tuple[int, int]]:
    """Pairs of users and items, some of which have many, and their ratings."""
    rng = np.random.default_rng(0)
    of_user = rng.lognormal(0, 1.2, n_users)
    of_item = rng.permutation(1 / np.arange(1, n_items + 1) ** 0.9)
    users, items = (rng.choice(len(p), n + n // 4, p=p / p.sum()) for p in (of_user, of_item))
    pairs = rng.permutation(np.unique(users * n_items + items))[:n]
    values = (rng.integers(1, 11, len(pairs)) / 2).astype(np.float32)
    return pairs // n_items, pairs % n_items, values, (n_users, n_items)


def _ours(model: ALS, lazy: Any, repeats: int) -> tuple[float, float]:
    """Seconds of a fit, and of a sweep; the first fit warms up."""
    model.fit(lazy)
    taken, sweeps = [], []
    for _ in range(repeats):
        since = time.perf_counter()
        model.fit(lazy)
        taken.append(time.perf_counter() - since)
        sweeps += [record["seconds"] for record in model.history_[1:]]
    return statistics.median(taken), statistics.median(sweeps)


def _peer(matrix: Any, rank: int, solver: str, repeats: int) -> tuple[float, float]:
    """Seconds of a fit of `implicit`, and of a sweep; NaN where it is not installed."""
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
