"""Rows are moved to a device once; a missing or full device raises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from daskml_dist.backends import get_backend
from daskml_dist.backends.cupy_backend import CupyBackend
from daskml_dist.backends.devices import device_memory
from daskml_dist.data.blocks import make_block
from daskml_dist.errors import (
    DeviceMemoryError,
    DeviceUnavailableError,
    InvalidDataError,
)
from daskml_dist.linear_model import LinearRegression, RidgeCV, SGDClassifier
from daskml_dist.losses import SquaredError
from daskml_dist.models.linear import LinearModel
from daskml_dist.training import dataset_info, in_process, job
from daskml_dist.training.worker.reader import prepare_block
from tests.fake_cupy import DeviceArray, FakeCupy, plug_in
from tests.strict_backend import StrictBackend
from tests.training.devices.fits import TARGETS, CountedMoves, MissingDevice, X


class _Full(StrictBackend):
    """Device without memory for a second array."""

    def to_device(self, array: Any) -> Any:
        raise MemoryError("out of memory allocating 8 bytes")


def test_auto_selects_an_available_gpu_for_many_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(CountedMoves, monkeypatch)
    CountedMoves.moved = 0
    model = SGDClassifier(max_iter=1, tol=None)
    model.fit(X, TARGETS["two"])
    LinearRegression().fit(X, TARGETS["numbers"])
    assert not CountedMoves.moved
    monkeypatch.setattr(dataset_info, "DEVICE_ENTRIES", X.size)
    for several in (model, LinearRegression()):
        CountedMoves.moved = 0
        several.fit(X, TARGETS["two" if several is model else "numbers"])
        assert CountedMoves.moved
    plug_in(MissingDevice, monkeypatch)
    assert get_backend("auto").name == "numpy"
    SGDClassifier(max_iter=1, tol=None).fit(X, TARGETS["two"])


@pytest.mark.parametrize("model", [LinearRegression(), RidgeCV(cv=2)], ids=["fit", "stack"])
def test_one_lane_uses_a_whole_gpu(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(CountedMoves, monkeypatch)
    monkeypatch.setattr(in_process, "count_cores", lambda: 4)
    monkeypatch.setattr(job, "SUM_BYTES_PER_LANE", 1)
    lanes, n_lanes_chosen = in_process.InProcessEngine.choose_lanes, []

    def spy(self: Any, *args: Any, **named: Any) -> Any:
        found = lanes(self, *args, **named)
        n_lanes_chosen.append(len(found))
        return found

    monkeypatch.setattr(in_process.InProcessEngine, "choose_lanes", spy)
    for device in ("gpu", "cpu", "auto"):
        clone(model).set_params(device=device).fit(X, TARGETS["numbers"])
    monkeypatch.setattr(dataset_info, "DEVICE_ENTRIES", X.size)
    clone(model).set_params(device="auto").fit(X, TARGETS["numbers"])
    assert n_lanes_chosen == [1, 4, 4, 1]


def test_blocks_are_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(CountedMoves, monkeypatch)
    moved = []
    for passes in (1, 20):
        CountedMoves.moved = 0
        SGDClassifier(
            device="gpu", policy="allreduce", max_iter=passes, tol=None, batch_size=240
        ).fit(X, TARGETS["two"])
        moved.append(CountedMoves.moved)
    # A step moves only its row indices, never the block or the parameters.
    assert moved[1] <= moved[0] + 19


def _fit_on_device(model: Any, dtype: str, rows_dtype: str) -> Any:
    rows = {"dtype": dtype, "rows_dtype": rows_dtype, "classes": None, "weight_scale": None}
    return SimpleNamespace(
        rows=SimpleNamespace(compute_dtype=None, weights=lambda block: None, **rows),
        work=SimpleNamespace(model=model, coordinates=False, on_host=False, privacy=None),
        run=SimpleNamespace(device="gpu"),
    )


def test_rows_on_the_device_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are also checked there; only a fit of another dtype copies them."""
    plug_in(FakeCupy, monkeypatch)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    device_rows = DeviceArray(X)
    block = make_block(3, device_rows, TARGETS["numbers"], classification=False)
    model = LinearModel(SquaredError(), 5, 0, fit_intercept=True)
    fit = _fit_on_device(model, "float64", "float64")
    assert prepare_block(block, fit).X is device_rows
    assert DeviceArray.copied == 0
    fit.rows.dtype = "float32"
    np.testing.assert_array_equal(prepare_block(block, fit).X.get(), X.astype(np.float32))
    wrong = X.copy()
    wrong[7, 2] = np.inf
    block = make_block(3, DeviceArray(wrong), TARGETS["numbers"], classification=False)
    for fit.rows.dtype in ("float64", "float32"):
        with pytest.raises(InvalidDataError, match=r"Block 3: .*infinity.*row 7 of the block"):
            prepare_block(block, fit)


class _AsTheyAre(LinearModel):
    """Model that reads rows in their original dtype."""

    def prepare(self, X: Any, dtype: Any) -> Any:
        return X


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16"])
def test_tensors_on_the_device_are_not_copied(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    plug_in(FakeCupy, monkeypatch)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    device_rows = DeviceArray(np.ones((6, 3, 4, 2), dtype))
    block = make_block(3, device_rows, tensors=True)
    assert block.on_device is device_rows
    model = _AsTheyAre(SquaredError(), 3, 0, fit_intercept=True)
    assert prepare_block(block, _fit_on_device(model, "float32", dtype)).X is device_rows
    assert DeviceArray.copied == 0
    assert make_block(3, DeviceArray(np.ones((6, 3), dtype))).on_device is None


def test_sparse_rows_of_many_features_stay_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto"; the fake device has no sparse arrays, and would raise."""
    plug_in(CountedMoves, monkeypatch)
    monkeypatch.setattr(dataset_info, "DEVICE_ENTRIES", 0)
    rows = sparse.random_array((240, 4096), density=0.002, format="csr", rng=0)
    SGDClassifier(max_iter=1, tol=None).fit(rows, TARGETS["two"])


def test_a_missing_device_raises_instead_of_using_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(MissingDevice, monkeypatch)
    with pytest.raises(DeviceUnavailableError, match="Plug something in"):
        SGDClassifier(device="gpu").fit(X, TARGETS["two"])


class _SecondGpu(CountedMoves):
    """Second device of a process."""

    def check_current_device(self) -> None:
        device = SimpleNamespace(id=1)
        CupyBackend(
            SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device)), sparse
        ).check_current_device()


@pytest.mark.parametrize(
    "model", [SGDClassifier(device="gpu"), LinearRegression(device="gpu")], ids=["steps", "rounds"]
)
def test_the_second_gpu_of_a_process_is_refused(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(_SecondGpu, monkeypatch)
    with pytest.raises(DeviceUnavailableError, match=r"GPU 1 .*CUDA_VISIBLE_DEVICES=1"):
        clone(model).fit(X, TARGETS["numbers"] > 0)


class _TorchsError(RuntimeError):
    """Torch's out-of-memory error, which is no MemoryError."""


_TorchsError.__name__ = "OutOfMemoryError"


def test_torchs_out_of_memory_error_names_the_remedy() -> None:
    with pytest.raises(DeviceMemoryError, match=r"A step did not fit .*Take less"):
        with device_memory("A step", "Take less."):
            raise _TorchsError("CUDA out of memory. Tried to allocate 20 MiB")
    with pytest.raises(DeviceMemoryError, match=r"^Block 3$"):
        with device_memory("A step", "Take less."):
            raise DeviceMemoryError("Block 3")
    with pytest.raises(RuntimeError, match=r"^another$"):
        with device_memory("A step", "Take less."):
            raise RuntimeError("another")


def test_out_of_device_memory_names_the_block_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(_Full, monkeypatch)
    with pytest.raises(DeviceMemoryError, match=r"Block 0 of .* MiB .*memory_budget"):
        SGDClassifier(device="gpu").fit(X, TARGETS["two"])
