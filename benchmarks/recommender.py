"""Time of recommenders on two worker processes, beside peers where they are installed.

ALS beside `implicit` (two threads); factors by gradient steps beside scikit-surprise (one thread).
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
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks._common import markdown, processes
from daskml_dist.recommender import ALS, MatrixFactorization

#: Ratings, users, items.
SIZE, TINY = (800_000, 6_000, 4_000), (2_000, 60, 40)
RANKS, SWEEPS, REPEATS = (10, 64), 10, 3
#: Of factors by gradient steps: rank, passes, penalty.
RANK, PASSES, REG = 10, 10, 0.05
POLICIES = ("sync", "allreduce", "ssp", "async", "hogwild")


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
    return "\n\n".join([markdown(title, head, table), _steps(tiny, repeats)])


def _steps(tiny: bool, repeats: int) -> str:
    """A table: gradient steps under each policy, and how soon they predict as well as ALS."""
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
    """Ratings by tastes, which can be found out, in random order."""
    users, items, _, _ = ratings(n, n_users, n_items)
    rng = np.random.default_rng(1)
    taste, kind = (rng.normal(size=(m, 8)) / 8**0.25 for m in (n_users, n_items))
    values = 3.5 + (taste[users] * kind[items]).sum(axis=1) + 0.5 * rng.normal(size=len(users))
    frame = pd.DataFrame({"user": users, "item": items, "rating": values})
    return frame.sample(frac=1, random_state=0)


def _fit(model: Any, ratings: Any, repeats: int) -> tuple[float, float]:
    """Seconds of a fit, and of its passes alone; the first fit warms up."""
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
    """The same of scikit-surprise; nothing where it is not installed."""
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
