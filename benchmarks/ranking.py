"""Time and NDCG of rankers on two worker processes, compared with LightGBM's and XGBoost's.

Queries are generated with 5 to 35 rows, whose relevance (0 to 4) depends on interactions of
features and on noise of the query and of the row. Our rows are in blocks that split queries; peers
on Dask need whole queries in a partition, so they get partitions cut at queries. All grow the leaf
with the largest gain first, up to 31 leaves with at most 255 bins; NDCG is computed on unseen
queries.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import dask.array as da
import numpy as np
from distributed import wait

from benchmarks._common import markdown, persisted, processes
from daskml_dist.ensemble import HistGradientBoostingRanker
from daskml_dist.metrics import ndcg_score

#: Numbers of queries to fit and to test, features, iterations.
SHAPE, TINY = (50_000, 10_000, 28, 50), (200, 50, 5, 3)
BLOCKS = 8
#: Threads of a peer in one process: equal to the number of worker processes.
THREADS = 2
#: Objectives by their names in each library.
OBJECTIVES = {
    "lambdarank": ("lambdarank", "rank:ndcg"),
    "rank_xendcg": ("rank_xendcg", None),
    "pairwise": (None, "rank:pairwise"),
}
OF_LIGHTGBM: dict[str, Any] = {
    "num_leaves": 31, "learning_rate": 0.1, "max_bin": 255, "verbose": -1,
    "lambdarank_truncation_level": 30, "objective_seed": 0,
}  # fmt: skip
OF_XGBOOST: dict[str, Any] = {
    "grow_policy": "lossguide", "max_leaves": 31, "max_depth": 0, "learning_rate": 0.1,
    "tree_method": "hist", "max_bin": 255, "reg_lambda": 0.0, "min_child_weight": 1e-3,
    "lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 30,
}  # fmt: skip


def run(tiny: bool = False) -> str:
    """Return fits compared with the peers', by objective."""
    n, n_test, d, rounds = TINY if tiny else SHAPE
    X, y, qid = rows(n, d, 0)
    test = rows(n_test, d, 1)
    fits: dict[tuple[str, str], tuple[float, Any]] = {}

    def fit(name: str, objective: str, make: Callable[[], Any]) -> None:
        since = time.perf_counter()
        model = make()
        fits[name, objective] = time.perf_counter() - since, model
        print(f"{name}, {objective}: {fits[name, objective][0]:.2f} s", file=sys.stderr)

    # Before the cluster, whose scheduler runs in this process.
    for objective, (of_lightgbm, of_xgboost) in OBJECTIVES.items():
        if of_lightgbm and find_spec("lightgbm"):
            import_module("lightgbm")  # importing is not part of a fit
            fit(
                "LightGBM, one process",
                objective,
                lambda o=of_lightgbm: _lightgbm(X, y, qid, rounds, o),
            )
        if of_xgboost and find_spec("xgboost"):
            import_module("xgboost")
            fit(
                "XGBoost, one process",
                objective,
                lambda o=of_xgboost: _xgboost(X, y, qid, rounds, o),
            )
        # Load the kernels first, which compiles them at the first time.
        _ours(2, objective).fit(X, y, group=qid)
        fit(
            "daskml_dist, one process", objective,
            lambda o=objective: _ours(rounds, o).fit(X, y, group=qid),
        )  # fmt: skip
    with processes(2) as client:
        lazy = [persisted(a, BLOCKS) for a in (X, y, qid)]
        whole = [_cut_at_queries(a, qid) for a in (X, y, qid)]
        wait([*lazy, *whole])
        _ours(2, "lambdarank").fit(*lazy[:2], group=lazy[2])
        for objective in OBJECTIVES:
            fit(
                "daskml_dist", objective,
                lambda o=objective: _ours(rounds, o).fit(*lazy[:2], group=lazy[2]),
            )  # fmt: skip
        if find_spec("lightgbm"):
            fit("lightgbm.dask", "lambdarank", lambda: _lightgbm_dask(client, whole, qid, rounds))
        if find_spec("xgboost"):
            fit("xgboost.dask", "lambdarank", lambda: _xgboost_dask(client, whole, rounds))
    names = list(dict.fromkeys(name for name, _ in fits))
    table = [
        [objective, name, f"{taken:.2f}", f"{_score(model, test):.4f}"]
        for objective in OBJECTIVES
        for name in names
        if (name, objective) in fits
        for taken, model in [fits[name, objective]]
    ]
    table += [
        ["", kind, "not installed", ""] for kind in ("lightgbm", "xgboost") if not find_spec(kind)
    ]
    title = f"Ranking of {n:,} queries, {len(X):,} x {d} float32, {rounds} iterations, 31 leaves"
    title += ", 255 bins, one process of 2 threads, or persisted on 2 worker processes of 1 thread"
    return markdown(title, ["objective", "", "fit, s", "NDCG@10"], table)


def rows(n: int, d: int, seed: int) -> tuple[Any, Any, Any]:
    """Return rows, relevance and query numbers of some queries."""
    rng = np.random.default_rng(seed)
    qid = np.repeat(np.arange(n), rng.integers(5, 36, n))
    X = rng.standard_normal((len(qid), d), dtype=np.float32)
    # The last feature belongs to the query: within a query it is not informative.
    X[:, -1] = rng.standard_normal(n, dtype=np.float32)[qid]
    raw = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3] * (X[:, 4] > 0)
    raw += 0.5 * X[:, -1] + rng.normal(size=len(qid))
    return X, np.digitize(raw, [0.8, 1.6, 2.4, 3.4]).astype(np.int32), qid


def _ours(rounds: int, objective: str) -> HistGradientBoostingRanker:
    return HistGradientBoostingRanker(
        objective, max_iter=rounds, early_stopping=False, random_state=0
    )


def _score(model: Any, test: tuple[Any, Any, Any]) -> float:
    """Return NDCG@10 on queries that were not in the fit, with gains 2**label - 1."""
    X, y, qid = test
    if type(model).__name__ == "Booster":
        import xgboost

        scores = model.predict(xgboost.DMatrix(X))
    else:
        scores = model.predict(X)
    return ndcg_score(y, scores, group=qid, k=10, gain="exponential")


def _sizes(qid: Any) -> Any:
    return np.bincount(qid - qid[0])


def _cut_at_queries(values: Any, qid: Any) -> Any:
    """Return a persisted Dask Array whose chunks end where queries end."""
    ends = np.flatnonzero(np.diff(qid, append=-1)) + 1
    cuts = ends[np.searchsorted(ends, np.linspace(0, len(qid), BLOCKS + 1)[1:])]
    chunks = tuple(np.diff([0, *cuts]).tolist())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        return da.from_array(values, chunks=(chunks, *values.shape[1:])).persist()


def _lightgbm(X: Any, y: Any, qid: Any, rounds: int, objective: str) -> Any:
    import lightgbm

    model = lightgbm.LGBMRanker(
        objective=objective, n_estimators=rounds, n_jobs=THREADS, **OF_LIGHTGBM
    )
    return model.fit(X, y, group=_sizes(qid))


def _lightgbm_dask(client: Any, whole: list[Any], qid: Any, rounds: int) -> Any:
    import lightgbm

    X, y, ids = whole
    # Sizes of queries in chunks that match those of the rows.
    ends = np.cumsum(ids.chunks[0])
    parts = np.split(qid, ends[:-1])
    sizes = np.concatenate([_sizes(part) for part in parts])
    group = da.from_array(sizes, chunks=(tuple(len(_sizes(part)) for part in parts),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = lightgbm.DaskLGBMRanker(client=client, n_estimators=rounds, **OF_LIGHTGBM)
        return model.fit(X, y, group=group).to_local()


def _xgboost(X: Any, y: Any, qid: Any, rounds: int, objective: str) -> Any:
    import xgboost

    model = xgboost.XGBRanker(
        objective=objective, n_estimators=rounds, n_jobs=THREADS, **OF_XGBOOST
    )
    return model.fit(X, y, qid=qid).get_booster()


def _xgboost_dask(client: Any, whole: list[Any], rounds: int) -> Any:
    from xgboost import dask as xgboost

    X, y, qid = whole
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = xgboost.DaskXGBRanker(
            objective="rank:ndcg", n_estimators=rounds, allow_group_split=True, **OF_XGBOOST
        )
        model.client = client
        return model.fit(X, y, qid=qid).get_booster()
