"""Time of factors by gradient steps on two worker processes, compared with ALS.

Also compared with scikit-surprise (one thread) if it is installed.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd

from benchmarks._common import markdown, processes
from benchmarks.recommender import SIZE, TINY, ratings
from daskml_dist.recommender import ALS, MatrixFactorization

#: Rank, passes, penalty.
RANK, PASSES, REG = 10, 10, 0.05
SWEEPS, REPEATS = 10, 2
POLICIES = ("sync", "allreduce", "ssp", "async", "hogwild")


def run(tiny: bool = False) -> str:
    """Return a table: whole fits under each policy, ratings per second, and test errors."""
    repeats = 1 if tiny else REPEATS
    frame = _tastes(*(TINY if tiny else SIZE))
    held, rest = frame[: len(frame) // 10], frame[len(frame) // 10 :]
    passes = 2 if tiny else PASSES
    found = []
    with processes(2):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            lazy = dd.from_pandas(rest, npartitions=4, sort=False).persist()
        als = ALS(RANK, reg_param=REG, biases=True, max_iter=SWEEPS, random_state=0)
        found.append(("ALS, 10 sweeps", *_fit(als, lazy, repeats), SWEEPS, als.score(held)))
        for policy in POLICIES:
            model = MatrixFactorization(
                RANK, reg_param=REG, max_iter=passes, policy=policy, random_state=0
            )
            found.append((policy, *_fit(model, lazy, repeats), passes, model.score(held)))
    alone = MatrixFactorization(RANK, reg_param=REG, max_iter=passes, random_state=0)
    found.append(("one process", *_fit(alone, rest, repeats), passes, alone.score(held)))
    found += _surprise(rest, held, passes)
    table = [
        [name, f"{fit:.3g}", f"{n * len(rest) / took / 1e6:.3g}", f"{-score:.4f}"]
        for name, fit, took, n, score in found
    ]
    title = f"Factors of {len(rest):,} ratings, rank {RANK}, {passes} passes, 2 processes"
    return markdown(title, ["", "fit, s", "M ratings/s", "held-out RMSE"], table)


def _tastes(n: int, n_users: int, n_items: int) -> pd.DataFrame:
    """Return ratings generated from latent tastes, in random order."""
    users, items, _, _ = ratings(n, n_users, n_items)
    rng = np.random.default_rng(1)
    taste, kind = (rng.normal(size=(m, 8)) / 8**0.25 for m in (n_users, n_items))
    values = 3.5 + (taste[users] * kind[items]).sum(axis=1) + 0.5 * rng.normal(size=len(users))
    frame = pd.DataFrame({"user": users, "item": items, "rating": values})
    return frame.sample(frac=1, random_state=0)


def _fit(model: Any, ratings: Any, repeats: int) -> tuple[float, float]:
    """Return the seconds of a fit, and of its passes alone; the first fit warms up."""
    model.fit(ratings)
    taken, passes = [], []
    for _ in range(repeats):
        since = time.perf_counter()
        model.fit(ratings)
        taken.append(time.perf_counter() - since)
        passes.append(statistics.median(r["seconds"] for r in model.history_) * len(model.history_))
    return statistics.median(taken), statistics.median(passes)


def _surprise(
    rest: pd.DataFrame, held: pd.DataFrame, passes: int
) -> list[tuple[str, float, float, int, float]]:
    """Return the same for scikit-surprise; nothing if it is not installed."""
    if importlib.util.find_spec("surprise") is None:
        return []
    from surprise import SVD, Dataset, Reader

    data = Dataset.load_from_df(rest, Reader()).build_full_trainset()
    model = SVD(n_factors=RANK, n_epochs=passes, reg_all=REG, lr_all=0.01, random_state=0)
    since = time.perf_counter()
    model.fit(data)
    took = time.perf_counter() - since
    found = [
        model.predict(u, i, clip=False).est for u, i in zip(held["user"], held["item"], strict=True)
    ]
    error = float(np.sqrt(np.mean((np.array(found) - held["rating"]) ** 2)))
    return [("scikit-surprise", took, took, passes, -error)]
