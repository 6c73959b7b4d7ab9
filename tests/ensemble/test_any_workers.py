"""Trees have the same bits on 1, 2 and 8 worker processes, under both decompositions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from daskml_dist.losses import AFT, Cox
from daskml_dist.solvers import forest_joint_growth

rng = np.random.default_rng(0)
X = rng.normal(size=(4_000, 6))
X[:, 4] = rng.integers(0, 9, len(X))
SIGNAL = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + X[:, 3] + (X[:, 4] == 3)
Y = SIGNAL + 0.3 * rng.normal(size=len(X))
CLASS = np.digitize(Y, [-0.5, 0.5])
X[rng.random(X.shape) < 0.03] = np.nan
WEIGHT = 3 * rng.random(len(X))
X[::3, 5] = 0.0  # a frequent value, which leaves spare edges
#: Times until an event, negative if censored; many are equal, on several workers.
TIME = np.where(rng.random(len(X)) < 0.7, 1, -1) * np.ceil(4 * np.exp(SIGNAL / 2)) / 4

BOOSTING: dict[str, Any] = {"max_iter": 8, "max_features": 0.7, "random_state": 0}
FOREST: dict[str, Any] = {"n_estimators": 7, "random_state": 0}
#: Models, targets and weights.
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "boosting": (
        HistGradientBoostingRegressor(early_stopping=True, categorical_features=[4], **BOOSTING),
        Y, WEIGHT,
    ),
    "boosting, 3 classes": (
        HistGradientBoostingClassifier(early_stopping=True, class_weight="balanced", **BOOSTING),
        CLASS, None,
    ),
    "boosting, vectors of classes": (
        HistGradientBoostingClassifier(
            early_stopping=True, categorical_features=[4], multi_strategy="multi_output_tree",
            **BOOSTING
        ),
        CLASS, WEIGHT,
    ),
    "boosting, vectors of targets": (
        HistGradientBoostingRegressor(
            early_stopping=True, subsample=0.6, multi_strategy="multi_output_tree", **BOOSTING
        ),
        np.column_stack([Y, SIGNAL**2, -Y]), None,
    ),
    "boosting, median": (HistGradientBoostingRegressor(loss="absolute_error", **BOOSTING), Y, None),
    "boosting, samples": (
        HistGradientBoostingClassifier(sampling_method="goss", colsample_bytree=0.8, **BOOSTING),
        CLASS, None,
    ),
    "boosting, dropout": (
        HistGradientBoostingRegressor(
            subsample=0.6, drop_rate=0.5, grow_policy="depthwise", early_stopping=True, **BOOSTING
        ),
        Y, WEIGHT,
    ),
    "boosting, failure times": (
        HistGradientBoostingRegressor(
            AFT("logistic", 0.5), subsample=0.6, colsample_bytree=0.8, drop_rate=0.3,
            early_stopping=True, **BOOSTING
        ),
        TIME, WEIGHT,
    ),
    "boosting, hazards": (
        HistGradientBoostingRegressor(
            Cox(), sampling_method="goss", colsample_bylevel=0.8, early_stopping=True, **BOOSTING
        ),
        TIME, None,
    ),
    "boosting, hazards, dropout": (
        HistGradientBoostingRegressor(
            Cox(), subsample=0.6, drop_rate=0.5, early_stopping=True, **BOOSTING
        ),
        TIME, WEIGHT,
    ),
    "forest, classes": (
        RandomForestClassifier(class_weight="balanced_subsample", **FOREST),
        CLASS, WEIGHT,
    ),
    "forest": (RandomForestRegressor(max_leaf_nodes=60, **FOREST), Y, None),
    "extra trees, classes": (ExtraTreesClassifier(**FOREST), CLASS, None),
    "extra trees": (ExtraTreesRegressor(bootstrap=True, max_samples=0.5, **FOREST), Y, WEIGHT),
}  # fmt: skip


def bits(model: Any) -> list[bytes]:
    """Return all fitted arrays, for bitwise comparison."""
    nodes = model._trees.nodes
    found = [getattr(nodes, f.name).tobytes() for f in fields(nodes)]
    names = ("train_score_", "validation_score_", "_baseline", "_impurity")
    return found + [getattr(model, n).tobytes() for n in names if hasattr(model, n)]


@pytest.fixture(scope="module", params=[1, 2, 8])
def workers(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Provide worker processes that let single ones finish small nodes."""

    def lower(small: int) -> None:
        from daskml_dist.solvers import forest_joint_growth as module

        module.SMALL_NODE_ROWS = small

    with (
        LocalCluster(
            n_workers=request.param, threads_per_worker=1, processes=True, host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        client.run(lower, 300)
        yield client


@pytest.fixture(scope="module")
def alone() -> dict[str, list[bytes]]:
    """Return fits of one lane in one process."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("decomposition", ["functional", "data", "data, streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_trees_of_any_number_of_workers(
    kind: str,
    decomposition: str,
    workers: Client,
    alone: dict[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, y, weight = KINDS[kind]
    if kind not in alone:
        monkeypatch.setattr(forest_joint_growth, "SMALL_NODE_ROWS", 300)
        alone[kind] = bits(_fit(model, "functional", Run(n_lanes=1), [X, y, weight], None))
    n, streamed = len(X) // 16, "streamed" in decomposition

    def lazy(array: Any) -> Any:
        empty = da.zeros(array.shape, chunks=(n, *array.shape[1:]), dtype=array.dtype)

        def make_block(block: Any, block_info: Any = None) -> Any:  # pickled by value
            start = block_info[0]["array-location"][0][0]
            return array[start : start + len(block)]

        return empty.map_blocks(make_block, dtype=array.dtype)

    rows = [None if a is None else lazy(a) for a in (X, y, weight)]
    run = Run(memory_budget="40 kB") if streamed else Run()
    found = _fit(model, decomposition.partition(",")[0], run, rows, workers)
    assert bool(found.history_.extra["streamed"]) == streamed
    assert bits(found) == alone[kind]


def _fit(model: Any, decomposition: str, run: Run, rows: list[Any], client: Client | None) -> Any:
    model.set_params(run=run)
    if "decomposition" in model.get_params():
        model.set_params(decomposition=decomposition)
    return model.fit(*rows, client=client)
