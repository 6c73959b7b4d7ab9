"""Forests and decision trees on a GPU equal those of the CPU, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.backends import cupy_forests
from daskml_dist.backends import kernels as of_cuda
from daskml_dist.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from daskml_dist.errors import DeviceMemoryError, InvalidParameterError
from daskml_dist.solvers import binning, forest_joint_growth
from daskml_dist.solvers.forest import _ForestRun
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.fake_cupy import DeviceArray
from tests.quick import in_turn

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 6))
X[:, 3] = np.round(X[:, 3], 1)
X[:, 4] = rng.integers(0, 5, len(X))
X[:, 5] = 7
Y = 2 * X[:, 0] + X[:, 1] * X[:, 2] + 2 * (X[:, 4] == 3) + 0.1 * rng.normal(size=len(X))
X[rng.random(X.shape) < 0.05] = np.nan
THREE = np.digitize(Y, [-1, 1])
WEIGHT = rng.integers(0, 4, len(X)).astype(float)
FEW: dict[str, Any] = {"n_estimators": 3, "max_depth": 5, "random_state": 0}


def arrays(model: Any) -> dict[str, bytes]:
    """Return all fitted arrays, for bitwise comparison."""
    found = {**model._trees.packed(), "impurity": model._impurity}
    return {name: array.tobytes() for name, array in found.items()}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Record the names of launched forest kernels."""
    names: set[str] = set()
    launch = cupy_forests.ForestCalls._forest

    def spy(self: Any, source: str, function: str, *rest: Any) -> None:
        names.add(function)
        launch(self, source, function, *rest)

    monkeypatch.setattr(cupy_forests.ForestCalls, "_forest", spy)
    return names


CASES: dict[str, tuple[type, Any, dict[str, Any]]] = {
    "gini": (RandomForestClassifier, THREE, {**FEW, "weighted": True}),
    "entropy": (RandomForestClassifier, THREE, {**FEW, "criterion": "entropy", "max_features": 1}),
    "balanced": (
        RandomForestClassifier,
        THREE,
        {**FEW, "class_weight": "balanced_subsample", "min_samples_leaf": 5},
    ),
    "squares": (RandomForestRegressor, Y, {**FEW, "max_leaf_nodes": 12}),
    "poisson": (
        RandomForestRegressor,
        np.abs(Y),
        {**FEW, "criterion": "poisson", "monotonic_cst": [1, 0, 0, -1, 0, 0], "weighted": True},
    ),
    "outputs": (RandomForestRegressor, np.column_stack([Y, X[:, 1] ** 2 > 1]), FEW),
    "classes of outputs": (ExtraTreesClassifier, np.column_stack([THREE, Y > 0, THREE > 1]), FEW),
    "drawn cuts": (ExtraTreesRegressor, Y, {**FEW, "bootstrap": True, "max_depth": None}),
    "drawn cuts of classes": (
        ExtraTreesClassifier,
        THREE > 0,
        {**FEW, "monotonic_cst": [1, 0, 0, -1, 0, 0], "max_depth": 3},
    ),
    "tree": (DecisionTreeClassifier, THREE, {"random_state": 0, "ccp_alpha": 0.01}),
    "tree of targets": (
        DecisionTreeRegressor,
        Y,
        {"random_state": 0, "min_impurity_decrease": 0.1},
    ),
    "lanes": (RandomForestClassifier, THREE, {**FEW, "run": Run(n_lanes=3)}),
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("case", CASES)
def test_trees_equal_those_of_the_cpu(case: str, launched: set[str]) -> None:
    make, y, params = CASES[case]
    params = dict(params)
    features = np.where(np.isnan(X), 0.0, X) if "poisson" in case else X
    weight = WEIGHT if params.pop("weighted", False) else None
    if "monotonic_cst" in params:
        features = np.where(np.isnan(X), 0.0, X)
    gpu, cpu = (make(device=on, **params).fit(features, y, weight) for on in ("gpu", "cpu"))
    assert arrays(gpu) == arrays(cpu)
    names = "forest_lines", "forest_splits"
    assert launched == {function for name in names for function in of_cuda.FUNCTIONS[name]}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("case", ["balanced", "squares", "lanes", "drawn cuts"])
def test_trees_of_several_trainers_equal_those_of_the_cpu(
    case: str, launched: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some nodes are split by all trainers, a few histograms at a time, and small ones together.
    monkeypatch.setattr(forest_joint_growth, "SMALL_NODE_ROWS", 60)
    monkeypatch.setattr(forest_joint_growth, "_MESSAGE_BYTES", 2**15)
    monkeypatch.setattr(forest_joint_growth, "_HISTOGRAM_BYTES", 2**15)
    make, y, params = CASES[case]
    gpu, cpu = (
        make(device=on, decomposition=how, **params).fit(X, y)
        for on, how in (("gpu", "data"), ("cpu", "functional"))
    )
    assert arrays(gpu) == arrays(cpu)
    assert "forest_histograms" in launched


@pytest.mark.parametrize(
    ("case", "dtype", "how"),
    in_turn(
        ["balanced", "poisson", "drawn cuts", "lanes", "tree"],
        ["float32", "float64"],
        ["functional", "data"],
    ),
)
def test_rows_on_a_gpu_are_binned_there(
    case: str, dtype: str, how: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binning, "SAMPLE_ROWS", 60)
    make, y, params = CASES[case]
    params = {"decomposition": how, **params}
    weight = WEIGHT if params.pop("weighted", False) else None
    rows = X.astype(dtype)
    if "monotonic_cst" in params:
        rows = np.nan_to_num(rows)
    # Zeros of both signs are one value.
    rows[::3, 5] = np.where(WEIGHT[::3] > 1, 0.0, -0.0)
    cpu = make(device="cpu", **params).fit(rows, y, weight)
    on_gpu = make(**params).fit(kernels(rows), y, weight)
    assert arrays(on_gpu) == arrays(cpu)
    assert DeviceArray.copied < 2 * 60 * X.shape[1]


def test_rows_on_a_gpu_with_trees_grown_on_the_cpu(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binning, "SAMPLE_ROWS", 60)
    params = {**FEW, "n_estimators": 25, "criterion": "absolute_error", "oob_score": True}
    on_gpu = RandomForestRegressor(**params).fit(kernels(X), Y)
    cpu = RandomForestRegressor(device="cpu", **params).fit(X, Y)
    assert arrays(on_gpu) == arrays(cpu)
    np.testing.assert_array_equal(on_gpu.oob_prediction_, cpu.oob_prediction_)
    assert DeviceArray.copied < 2 * 60 * X.shape[1]


@pytest.mark.usefixtures("kernels")
def test_nodes_try_further_features_until_one_varies(launched: set[str]) -> None:
    # Of 40 features two vary, and a node draws one.
    few = np.zeros((200, 40))
    few[:, 7], few[:, 33] = X[:200, 3], X[:200, 4]
    few = np.nan_to_num(few)
    gpu, cpu = (
        RandomForestClassifier(device=on, max_features=1, **FEW).fit(few, THREE[:200])
        for on in ("gpu", "cpu")
    )
    assert arrays(gpu) == arrays(cpu)
    assert gpu._trees.nodes.feature.max() == 33
    assert "forest_features" in launched


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("call", ["rows", "histograms"])
def test_exhausted_gpu_memory_raises_with_a_remedy(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError("no more")

    where = cupy_forests.CupyLane if call == "rows" else cupy_forests.ForestCalls
    monkeypatch.setattr(where, "__init__" if call == "rows" else call, full)
    with pytest.raises(DeviceMemoryError, match=r"grow of on 400 rows did not fit.*decomposition"):
        RandomForestRegressor(device="gpu", **FEW).fit(X, Y)


@pytest.mark.usefixtures("kernels")
def test_rows_that_exceed_gpu_memory_stay_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how: list[str] = []
    for name in ("_make_apart_grower", "_make_joint_grower"):
        grow = getattr(_ForestRun, name)
        monkeypatch.setattr(
            _ForestRun, name, lambda self, name=name, grow=grow: (how.append(name), grow(self))[1]
        )
    for free in (1e9, 1e4):
        monkeypatch.setattr(cupy_forests.CupyForests, "budget", free)
        RandomForestRegressor(device="gpu", **FEW).fit(X, Y)
    RandomForestRegressor(device="gpu", decomposition="functional", **FEW).fit(X, Y)
    assert how == ["_make_apart_grower", "_make_joint_grower", "_make_apart_grower"]


def test_medians_equal_those_of_the_cpu() -> None:
    with pytest.raises(InvalidParameterError, match=r"absolute_error.*only the CPU.*device="):
        RandomForestRegressor(criterion="absolute_error", device="gpu").fit(X, Y)


@pytest.mark.usefixtures("kernels")
def test_medians_are_computed_by_the_cpu_with_device_auto() -> None:
    params = {**FEW, "criterion": "absolute_error"}
    models = [RandomForestRegressor(device=on, **params).fit(X, Y) for on in ("auto", "cpu")]
    assert arrays(models[0]) == arrays(models[1])


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("decomposition", ["functional", "data"])
def test_workers_grow_the_same_trees(
    decomposition: str, launched: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask.array as da

    monkeypatch.setattr(forest_joint_growth, "SMALL_NODE_ROWS", 60)
    monkeypatch.setattr(forest_joint_growth, "_MESSAGE_BYTES", 2**15)
    cpu = ExtraTreesClassifier(device="cpu", **FEW).fit(X, THREE)
    # In this process, since the GPU is emulated.
    with LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster):
            rows = da.from_array(X, chunks=(100, 6)), da.from_array(THREE, chunks=100)
            gpu = ExtraTreesClassifier(device="gpu", decomposition=decomposition, **FEW)
            gpu.fit(*rows)
    assert arrays(gpu) == arrays(cpu)
    assert "forest_cuts" in launched
