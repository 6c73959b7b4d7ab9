"""Trees predict CuPy rows on their device, with the CPU's results bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from daskml_dist.backends import cupy_trees
from daskml_dist.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from daskml_dist.errors import InvalidDataError
from daskml_dist.tree import DecisionTreeClassifier
from tests.backends.kernel_problems import needs_compiler
from tests.cuda_emulation import EmulatedCupy
from tests.fake_cupy import plug_in

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 5)).astype("float32")
X[:, 4] = rng.integers(0, 6, len(X))
Y = X[:, 0] + X[:, 1] * X[:, 2] + (X[:, 4] == 2)
X[rng.random(X.shape) < 0.05] = np.nan
THREE = np.digitize(Y, [-1, 1])
SMALL = {"max_iter": 5, "max_leaf_nodes": 7}
MODELS: dict[str, tuple[Any, Any]] = {
    "boosting": (HistGradientBoostingRegressor(**SMALL, categorical_features=[4]), Y),
    "boosting classes": (HistGradientBoostingClassifier(**SMALL), THREE),
    "boosting vectors": (
        HistGradientBoostingClassifier(
            **SMALL, categorical_features=[4], multi_strategy="multi_output_tree"
        ),
        THREE,
    ),
    "forest": (RandomForestClassifier(5, max_depth=4, random_state=0), THREE),
    "extra trees": (ExtraTreesRegressor(5, max_depth=4, random_state=0), Y),
    "tree": (DecisionTreeClassifier(max_depth=4), THREE),
}
ToDevice = Callable[[Any], Any]


class _Emulated(EmulatedCupy):
    """Emulated device that is always available."""

    @classmethod
    def problem(cls) -> str | None:
        return None


class _Rows(np.ndarray):
    """Rows that claim to be on a GPU."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}

    def get(self) -> Any:
        """Return the rows in host memory."""
        return np.array(self)


@pytest.fixture(params=["emulated", pytest.param("cupy", marks=pytest.mark.gpu)])
def to_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ToDevice:
    """Return a function that makes CuPy rows, or stand-ins."""
    if request.param == "cupy":
        asarray: ToDevice = import_module("cupy").asarray
        return asarray
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    plug_in(_Emulated, monkeypatch)
    return lambda rows: np.asarray(rows).view(_Rows)


@pytest.mark.parametrize("name", MODELS)
def test_predictions_equal_those_of_the_cpu(name: str, to_device: ToDevice) -> None:
    model, y = MODELS[name]
    model.set_params(device="cpu").fit(X, y)
    for rows in (X, np.asfortranarray(X), X.astype(float)[::2]):
        for method in ("predict", "predict_proba"):
            if hasattr(model, method):
                expected = getattr(model, method)(rows)
                assert_array_equal(getattr(model, method)(to_device(rows)), expected)
    lazy = da.from_array(np.arange(len(X)), chunks=150).map_blocks(
        lambda at: to_device(X[at]), chunks=((150, 150, 100), (5,)), new_axis=1,
        dtype="float32", meta=np.empty((0, 0), "float32"),
    )  # fmt: skip
    assert_array_equal(model.predict(lazy).compute(scheduler="synchronous"), model.predict(X))


@pytest.mark.parametrize("name", ["boosting", "forest"])
def test_fits_accept_rows_on_a_gpu(name: str, to_device: ToDevice) -> None:
    model, y = MODELS[name]
    expected = model.set_params(device="cpu").fit(X, y).predict(X)
    assert_array_equal(model.set_params(device="auto").fit(to_device(X), y).predict(X), expected)
    score = model.score(X, y)
    assert model.score(to_device(X), to_device(y)) == score


@needs_compiler
def test_sparse_rows_are_refused_or_made_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, (boosting, y), (forest, classes) = np.nan_to_num(X), MODELS["boosting"], MODELS["forest"]
    csr, emulated = sparse.csr_array(rows), _Emulated()
    raw = boosting.set_params(device="cpu").fit(X, y)._raw_prediction()
    for apply in (boosting.predict, raw.on_device(emulated, "float32")):
        with pytest.raises(InvalidDataError, match="trees need dense rows"):
            apply(csr)
    raw = forest.set_params(device="cpu").fit(X, classes)._raw_prediction()
    monkeypatch.setattr(cupy_trees, "_MAX_DENSE_ENTRIES", 600)  # few rows at a time
    assert_array_equal(raw.on_device(emulated, "float32")(csr), raw(rows))
