"""Gradient boosting on a GPU grows the same trees as on the CPU, bit for bit."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.backends import cupy_bins, cupy_trees
from daskml_dist.backends import kernels as of_cuda
from daskml_dist.backends.cupy_trees import CupyTreeRows, CupyTrees
from daskml_dist.backends.host_trees import HostTrees
from daskml_dist.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRanker,
    HistGradientBoostingRegressor,
)
from daskml_dist.errors import DeviceMemoryError
from daskml_dist.losses import SquaredError
from daskml_dist.models.bins import Bins
from daskml_dist.solvers import binning, gradient_boosting
from daskml_dist.solvers.binning import BinnedRows
from daskml_dist.solvers.boosting_scores import RowBoostLoss
from daskml_dist.solvers.gradient_boosting import _BoostingRun
from tests.fake_cupy import DeviceArray
from tests.quick import in_turn

rng = np.random.default_rng(0)
X = rng.normal(size=(500, 6))
X[:, 3] = np.round(X[:, 3], 1)
X[:, 4] = rng.integers(0, 5, len(X))
Y = 2 * X[:, 0] + X[:, 1] * X[:, 2] + 2 * (X[:, 4] == 3) + 0.1 * rng.normal(size=len(X))
X[rng.random(X.shape) < 0.05] = np.nan
THREE = np.digitize(Y, [-1, 1])
WEIGHT = rng.integers(1, 4, len(X)).astype(float)
SMALL: dict[str, Any] = {"max_iter": 3, "max_leaf_nodes": 8, "early_stopping": False}


def arrays(model: Any) -> dict[str, bytes]:
    """Return all fitted arrays, for bitwise comparison."""
    scores = {"train": model.train_score_, "held": model.validation_score_}
    found = {**model._trees.packed(), **scores, "baseline": model._baseline}
    return {name: array.tobytes() for name, array in found.items()}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Record the names of launched tree kernels."""
    names: set[str] = set()
    launch = cupy_trees.TreeCalls._tree

    def spy(self: Any, source: str, function: str, *rest: Any, **named: Any) -> None:
        names.add(function)
        launch(self, source, function, *rest, **named)

    monkeypatch.setattr(cupy_trees.TreeCalls, "_tree", spy)
    return names


CASES: dict[str, tuple[type, Any, dict[str, Any]]] = {
    "squares": (HistGradientBoostingRegressor, Y, {}),
    "medians": (
        HistGradientBoostingRegressor,
        Y,
        {"loss": "absolute_error", "weighted": True, "run": Run(n_lanes=3)},
    ),
    "categories": (
        HistGradientBoostingClassifier,
        THREE > 0,
        {"categorical_features": [4], "monotonic_cst": [1, 0, 0, -1, 0, 0], "weighted": True},
    ),
    "classes": (HistGradientBoostingClassifier, THREE, {"max_features": 0.5, "max_depth": 2}),
    "held out": (
        HistGradientBoostingClassifier,
        THREE > 0,
        {"early_stopping": True, "interaction_cst": [[0, 1, 2], [3, 4, 5]]},
    ),
    "lanes": (HistGradientBoostingClassifier, THREE > 0, {"run": Run(n_lanes=3)}),
    "rounded": (HistGradientBoostingClassifier, THREE > 0, {"rounded": True}),
    "samples of classes": (
        HistGradientBoostingClassifier, THREE, {"subsample": 0.5, "run": Run(n_lanes=3)}
    ),
    "samples of medians": (
        HistGradientBoostingRegressor, Y, {"loss": "absolute_error", "subsample": 0.5}
    ),
    "large gradients": (
        HistGradientBoostingClassifier, THREE,
        {"sampling_method": "goss", "grow_policy": "depthwise", "run": Run(n_lanes=3)},
    ),
    "large residuals": (HistGradientBoostingRegressor, Y, {"sampling_method": "goss"}),
    "dropped trees": (
        HistGradientBoostingClassifier, THREE,
        {"drop_rate": 0.7, "early_stopping": True, "subsample": 0.6},
    ),
}  # fmt: skip


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("case", CASES)
def test_trees_equal_those_of_the_cpu(
    case: str, launched: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, y, params = CASES[case]
    params = {**SMALL, "random_state": 0, **params}
    weight = WEIGHT if params.pop("weighted", False) else None
    if params.pop("rounded", False):
        for name in ("SAMPLE_ROWS", "_MIN_MEAN_SQUARE", "_MIN_MEAN_HESSIAN"):
            monkeypatch.setattr(gradient_boosting, name, 0)
    gpu, cpu = (make(device=device, **params).fit(X, y, weight) for device in ("gpu", "cpu"))
    assert arrays(gpu) == arrays(cpu)
    names = "tree_gradients", "tree_histograms", "tree_partition", "tree_splits"
    assert launched == {function for name in names for function in of_cuda.FUNCTIONS[name]}


@pytest.mark.parametrize(
    ("case", "dtype"),
    in_turn(
        ["medians", "categories", "held out", "lanes", "dropped trees"], ["float32", "float64"]
    ),
)
def test_rows_on_a_gpu_are_binned_there(
    case: str, dtype: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binning, "SAMPLE_ROWS", 60)
    make, y, params = CASES[case]
    params = {**SMALL, "random_state": 0, **params}
    weight = WEIGHT if params.pop("weighted", False) else None
    rows = X.astype(dtype)
    cpu = make(device="cpu", **params).fit(rows, y, weight)
    assert not DeviceArray.copied
    on_gpu = make(**params).fit(kernels(rows), y, weight)
    assert arrays(on_gpu) == arrays(cpu)
    # The sample, drawn with a few rows to spare, and values of categories.
    assert DeviceArray.copied < 2 * 60 * X.shape[1]
    # Bins from which CPUs continue.
    on_gpu.set_params(warm_start=True, max_iter=5).fit(kernels(rows), y, weight)
    cpu.set_params(warm_start=True, max_iter=5).fit(rows, y, weight)
    assert arrays(on_gpu) == arrays(cpu)


@pytest.mark.parametrize(
    "labels", [THREE > 0, THREE, 1.0 * THREE], ids=["bools", "whole", "floats"]
)
def test_labels_beside_rows_on_a_gpu(
    labels: Any, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binning, "SAMPLE_ROWS", 60)
    make = partial(HistGradientBoostingClassifier, random_state=0, **SMALL)
    cpu = make(device="cpu").fit(X, labels)
    on_gpu = make().fit(kernels(X), kernels(labels))
    assert arrays(on_gpu) == arrays(cpu)
    np.testing.assert_array_equal(on_gpu.classes_, cpu.classes_)
    # One byte for each label, in addition to the sample.
    assert DeviceArray.copied < 2 * 60 * X.shape[1] + len(X)


def test_rows_on_a_gpu_with_trees_grown_on_the_cpu(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binning, "SAMPLE_ROWS", 60)
    y = np.column_stack([Y, X[:, 0] > 0])
    make = partial(HistGradientBoostingRegressor, multi_strategy="multi_output_tree", **SMALL)
    found = [
        make(device=device, random_state=0).fit(rows, y)
        for device, rows in (("auto", kernels(X)), ("cpu", X))
    ]
    assert arrays(found[0]) == arrays(found[1])
    assert DeviceArray.copied < 2 * 60 * X.shape[1]


def test_a_lane_may_hold_blocks_of_gpu_and_host(kernels: Any) -> None:
    """For instance, rows on a GPU that are not in C order are binned on the host."""
    bins = Bins(tuple(np.sort(rng.normal(size=(6, 20)))), 255, np.zeros(6, bool))
    numbers, found = np.arange(len(X)), []
    for blocks in ([X], [X[:200], kernels(X[200:])], [kernels(X[:200]), X[200:]]):
        lane, start = BinnedRows(len(X), bins, np.zeros), 0
        for block in blocks:
            at = slice(start, start + len(block))
            lane.add(block, Y[at], None, numbers[at])
            start = at.stop
        assert lane.device_bins is None or len(lane.device_bins.chunks) == 2
        found.append((lane.rows, lane.columns, lane.missing))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(other, one)


def test_bins_that_exceed_gpu_memory_raise_with_a_remedy(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(cupy_bins._BinCalls, "put", full)
    with pytest.raises(DeviceMemoryError, match=r"The bins of 500 rows did not fit.*device="):
        HistGradientBoostingRegressor(**SMALL).fit(kernels(X), Y)
    HistGradientBoostingRegressor(device="cpu", **SMALL).fit(kernels(X), Y)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("n_lanes", [1, 3])
def test_ranking_trees_equal_those_of_the_cpu(n_lanes: int) -> None:
    params = {**SMALL, "random_state": 0, "early_stopping": True, "run": Run(n_lanes=n_lanes)}
    gpu, cpu = (
        HistGradientBoostingRanker(device=device, **params).fit(X, THREE, group=np.arange(500) // 9)
        for device in ("gpu", "cpu")
    )
    assert arrays(gpu) == arrays(cpu)


@pytest.mark.usefixtures("kernels")
def test_lanes_of_a_trainer_share_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[list[str]] = []
    launch = cupy_trees.TreeCalls._tree

    def spy(self: Any, source: str, function: str, *rest: Any, **named: Any) -> None:
        launches[-1].append(function)
        launch(self, source, function, *rest, **named)

    monkeypatch.setattr(cupy_trees.TreeCalls, "_tree", spy)
    for n_lanes in (1, 3):
        launches.append([])
        HistGradientBoostingRegressor(device="gpu", run=Run(n_lanes=n_lanes), **SMALL).fit(X, Y)
    assert launches[0] == launches[1]


@pytest.mark.usefixtures("kernels")
def test_a_fit_continues_on_another_device() -> None:
    models = [
        HistGradientBoostingRegressor(device=first, warm_start=True, **SMALL)
        .fit(X, Y)
        .set_params(max_iter=5, device=then)
        .fit(X, Y)
        for first, then in (("gpu", "cpu"), ("cpu", "gpu"), ("cpu", "cpu"))
    ]
    found = [arrays(model) for model in models]
    assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("kernels")
def test_raw_predictions_are_recomputed_after_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_rows: list[Any] = []

    def make_spy(where: type) -> Any:
        open_rows = where.open_rows
        return lambda self, binned_rows, shape: (
            all_rows.extend(binned_rows),
            open_rows(self, binned_rows, shape),
        )[1]

    for where in (CupyTrees, HostTrees):
        monkeypatch.setattr(where, "open_rows", make_spy(where))
    for device in ("gpu", "cpu"):
        model = HistGradientBoostingRegressor(device=device, **SMALL).fit(X, Y)
    left, expected = (each.extra for each in all_rows)
    assert "raw" not in left
    after = object.__new__(_BoostingRun)
    after._solver, after._outputs = SimpleNamespace(vector_leaves=False), [range(1)]
    after._loss, after._baseline = RowBoostLoss(SquaredError()), model._baseline
    after._trees = [model._trees.tree(i) for i in range(len(model._trees))]
    after._update_predictions(all_rows[0])
    np.testing.assert_array_equal(left["raw"], expected["raw"])


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("call", ["rows", "histograms"])
def test_exhausted_gpu_memory_raises_with_a_remedy(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError("no more")

    where = CupyTreeRows if call == "rows" else cupy_trees.TreeCalls
    monkeypatch.setattr(where, "__init__" if call == "rows" else call, full)
    with pytest.raises(DeviceMemoryError, match=r"500 rows of a worker did not fit"):
        HistGradientBoostingRegressor(device="gpu", **SMALL).fit(X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["auto", "14 KiB"], ids=["kept", "streamed"])
def test_blocks_on_gpus_of_workers_are_binned_there(
    budget: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask.array as da

    monkeypatch.setattr(binning, "SAMPLE_ROWS", 60)
    params = {**SMALL, "random_state": 0}
    cpu = HistGradientBoostingClassifier(device="cpu", **params).fit(X, THREE)
    numbers = da.arange(len(X), chunks=125)
    rows = numbers.map_blocks(
        lambda at: kernels(X[at]), chunks=(numbers.chunks[0], (6,)), new_axis=[1],
        meta=np.empty((0, 0)),
    )  # fmt: skip
    # In this process, since the GPU is emulated.
    with LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster):
            model = HistGradientBoostingClassifier(run=Run(memory_budget=budget), **params)
            model.set_params(device="gpu").fit(rows, da.from_array(THREE, chunks=125))
    assert arrays(model) == arrays(cpu)
    assert DeviceArray.copied < 2 * 60 * X.shape[1]


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_workers_sum_the_histograms_of_their_gpus(launched: set[str]) -> None:
    import dask.array as da

    cpu = HistGradientBoostingClassifier(device="cpu", **SMALL).fit(X, THREE)
    # In this process, since the GPU is emulated.
    with LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster):
            rows = da.from_array(X, chunks=(125, 6)), da.from_array(THREE, chunks=125)
            gpu = HistGradientBoostingClassifier(device="gpu", **SMALL).fit(*rows)
    assert arrays(gpu) == arrays(cpu)
    assert "tree_histograms" in launched
    assert "tree_splits" not in launched
