"""Rows on a GPU are passed to PyTorch in place and in their dtype; NumPy cannot read the stand-ins.

On a machine with a GPU the same tests run on CuPy and CUDA too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from daskml_dist import Run
from daskml_dist.errors import DeviceUnavailableError, InvalidDataError
from daskml_dist.inference import row_mapping
from daskml_dist.neural_network import TorchClassifier, TorchRegressor
from tests.fake_cupy import DeviceArray, ToDevice

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4)).astype(np.float32)
IMAGES = RNG.integers(0, 256, (N, 5, 5, 3)).astype(np.uint8)
TOKENS = RNG.integers(0, 9, (N, 4))
LABELS = np.array(["few", "many", "most"])[RNG.integers(0, 3, N)]


@pytest.fixture(autouse=True)
def _in_process() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def _linear() -> Any:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def _convolution() -> Any:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3))


def _lookup() -> Any:
    return nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 3))


#: Modules, and rows for them in several dtypes, orders and containers.
NETS: dict[str, tuple[Any, list[Any], dict[str, Any]]] = {
    "linear": (
        _linear,
        [
            X,
            X.astype("f8"),
            np.asfortranarray(X),
            np.ascontiguousarray(X[:, ::-1])[:, ::-1],
            sparse.csr_array(X * (X > 0)),
            X[:1],
        ],
        {"layer": "1"},
    ),
    "images": (_convolution, [IMAGES], {"images": "channels_last", "layer": "1"}),
    "tokens": (_lookup, [TOKENS, TOKENS.astype("u2"), TOKENS.astype("i2")], {}),
}


@cache
def _fit(name: str) -> Any:
    module, (rows, *_), options = NETS[name]
    params = {"max_iter": 2, "batch_size": 20, "random_state": 0, "device": "cpu"} | options
    return TorchClassifier(module, run=Run(deterministic=True), **params).fit(rows, LABELS)


@pytest.mark.parametrize("pieces", ["whole", "few rows"])
@pytest.mark.parametrize("name", NETS)
def test_rows_are_passed_to_torch_in_place(
    name: str, pieces: str, to_device: ToDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pieces == "few rows":
        monkeypatch.setattr(row_mapping, "MAX_DEVICE_ROWS", 7)
    model = _fit(name)
    for rows in NETS[name][1]:
        for method in ("predict", "predict_proba", "transform"):
            expected, device_rows = getattr(model, method)(rows), to_device(rows)
            found = getattr(model, method)(device_rows)
            assert isinstance(found, np.ndarray) == (method != "transform")
            found = found.get() if method == "transform" else found
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            if method == "predict":
                assert_array_equal(found, expected)
            else:
                assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_no_row_is_copied_to_the_host(to_device: ToDevice) -> None:
    model = _fit("linear")
    lazy = da.from_array(np.arange(N), chunks=((20, 0, 40),)).map_blocks(
        lambda at: to_device(X[at]), chunks=((20, 0, 40), (4,)), new_axis=[1],
        meta=np.empty((0, 0), X.dtype),
    )  # fmt: skip
    assert_array_equal(model.predict(lazy).compute(), model.predict(X))
    blocks = [block.compute() for block in model.transform(lazy).to_delayed().ravel()]
    assert DeviceArray.copied == 0
    assert_allclose(np.concatenate([b.get() for b in blocks]), model.transform(X), atol=1e-5)


def test_outputs_of_one_column(to_device: ToDevice) -> None:
    model = TorchRegressor(nn.Linear, module__in_features=4, module__out_features=1, max_iter=1)
    model.set_params(device="cpu", random_state=0).fit(X, X[:, 0])
    assert_allclose(model.predict(to_device(X)), model.predict(X), atol=1e-5)
    assert_allclose(model.transform(to_device(X)).get(), model.transform(X), atol=1e-5)


def test_rows_that_are_not_finite_are_named(to_device: ToDevice) -> None:
    """Although a ReLU or a maximum over outputs may hide them."""
    rows = X.copy()
    rows[33, 2] = np.nan
    with pytest.raises(InvalidDataError, match=r"^Input X contains NaN \(row 33 of"):
        _fit("linear").predict(to_device(rows))


def test_a_pytorch_without_gpu_support_raises(
    to_device: ToDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("no CUDA here")

    model = _fit("linear")
    monkeypatch.setattr(torch, "from_dlpack", refuse)
    with pytest.raises(DeviceUnavailableError, match=r"cannot read .*no CUDA here.*for CUDA"):
        model.predict(to_device(X))
