"""The table "Which estimator computes where" of docs/gpu.md matches the code.

Rows are stand-ins for CuPy's arrays, which NumPy cannot read and which count copies to the host.
"""

from __future__ import annotations

import re
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from daskml_dist.errors import DeviceUnavailableError, InvalidParameterError
from daskml_dist.preprocessing import OneHotEncoder, OrdinalEncoder
from tests import fake_cupy
from tests.contracts.small_fits import each_base, rows_of, small_estimator, small_estimators
from tests.docs.blocks import PAGES
from tests.fake_cupy import DeviceArray, FakeCupy, plug_in
from tests.training.devices.fits import MissingDevice

# With few rows: fewer than quantiles, no convergence, fewer candidates than draws.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

_PAGE = PAGES["docs/gpu.md"].read_text()
_TABLE = _PAGE.split("## Which estimator computes where")[1].split("\n## ")[0]
#: Cells of each estimator: fit, predict, transform.
CELLS = {
    name: tuple(cell.strip() for cell in cells)
    for line in _TABLE.splitlines()
    if line.startswith("| `")
    for names, *cells in [line.strip("|").split("|")]
    for name in re.findall(r"`(\w+)`", names)
}
#: Entries of the table that need PyTorch.
TORCH = {name for name in CELLS if name.startswith("Torch")}
_NOT_MADE = TORCH - set(small_estimators())
CELLS_HERE = {name: cells for name, cells in CELLS.items() if name not in _NOT_MADE}
#: Meta-estimators, which compute where their members do.
MADE_OF_OTHERS = {
    "Blockwise", "CalibratedClassifierCV", "ColumnTransformer", "Incremental", "ParallelPostFit",
}  # fmt: skip
#: Trees, which are predicted only by kernels and tested separately.
TREES = ("HistGradient", "RandomForest", "ExtraTrees", "DecisionTree")
SEARCHES = [name for name in CELLS_HERE if name.endswith("SearchCV")]


def _is_numeric(name: str) -> bool:
    X, _ = rows_of(name)
    return isinstance(X, np.ndarray) and X.dtype.kind == "f"


NUMERIC = [name for name in CELLS_HERE if _is_numeric(name)]


def test_the_table_names_every_estimator() -> None:
    assert set(CELLS) == set(small_estimators()) - MADE_OF_OTHERS | TORCH
    for name, (fit, *methods) in CELLS_HERE.items():
        model = small_estimator(name)
        assert fit in ("GPU", "host", "none")
        for method, cell in zip(("predict", "transform"), methods, strict=True):
            assert cell in (("GPU", "host") if hasattr(model, method) else ("",)), (name, method)


def _lazy(values: Any) -> da.Array:
    """Return blocks on a device, the last of them empty."""
    chunks = (len(values) // 2, len(values) - len(values) // 2, 0)
    return da.from_array(np.arange(len(values)), chunks=(chunks,)).map_blocks(
        lambda at: fake_cupy.to_device(values[at]),
        chunks=(chunks, values.shape[1:]),
        new_axis=[1],
        meta=np.empty((0, 0)),
    )


def _gather(found: Any) -> tuple[Any, set[type]]:
    """Return the values of a lazy result, and the kinds of its blocks."""
    blocks = [block.compute() for block in found.to_delayed().ravel()]
    values = [b.values if isinstance(b, DeviceArray) else b for b in blocks]
    values = [v.toarray() if hasattr(v, "toarray") else v for v in values]
    return np.concatenate(values), {type(block) for block in blocks}


@pytest.mark.parametrize("name", each_base(n for n in CELLS_HERE if n not in SEARCHES))
def test_fits_run_where_the_table_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimators with a parameter `device` request a GPU; for others copied rows are counted."""
    X, y = rows_of(name)
    arguments = () if y is None else (y,)
    model = small_estimator(name)
    if "device" in model.get_params(deep=False):
        plug_in(MissingDevice, monkeypatch)
        is_refused = CELLS[name][0] == "host"
        error = InvalidParameterError if is_refused else DeviceUnavailableError
        with pytest.raises(error, match="on the CPU" if is_refused else "Plug something in"):
            model.set_params(device="gpu").fit(X, *arguments)
        return
    if name not in NUMERIC:
        assert CELLS[name][0] == "host"
        return
    if hasattr(model, "score_func"):  # by default the fit of a naive Bayes classifier
        assert CELLS[name][0] == CELLS["GaussianNB"][0]
        return
    plug_in(FakeCupy, monkeypatch)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    lazy = () if y is None else (da.from_array(y, chunks=((len(y) // 2, len(y) // 2, 0),)),)
    with dask.config.set(scheduler="synchronous"):
        model.fit(_lazy(X), *lazy)
        copied = DeviceArray.copied
        expected = small_estimator(name).fit(da.from_array(X, chunks=(len(X) // 2, -1)), *lazy)
    cell = "none" if not copied else "GPU" if copied < X.size else "host"
    assert cell == CELLS[name][0]
    for attribute, value in vars(expected).items():
        if attribute.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert_allclose(getattr(model, attribute), value, rtol=1e-12, atol=1e-12)


METHODS = [
    (name, method)
    for name in NUMERIC
    for method, cell in zip(("predict", "transform"), CELLS[name][1:], strict=True)
    if cell
]


@pytest.mark.parametrize("name", each_base(dict.fromkeys(name for name, _ in METHODS)))
def test_methods_run_where_the_table_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(FakeCupy, monkeypatch)
    X, y = rows_of(name)
    model = small_estimator(name)
    if "device" in model.get_params(deep=False):
        model.set_params(device="cpu")
    model.fit(X, *(() if y is None else (y,)))
    if name.startswith(TREES):
        assert CELLS[name][1] == "GPU"
        assert hasattr(model._raw_prediction(), "on_device")
        return
    for method in [method for of, method in METHODS if of == name]:
        cell = CELLS[name][1 if method == "predict" else 2]
        expected = getattr(model, method)(X)
        monkeypatch.setattr(DeviceArray, "copied", 0)
        with dask.config.set(scheduler="synchronous"):
            values, kinds = _gather(getattr(model, method)(_lazy(X)))
        assert ("GPU" if DeviceArray.copied < X.size else "host") == cell
        stays = method == "transform" and cell == "GPU"
        assert (kinds == {DeviceArray}) == stays
        whole = getattr(model, method)(fake_cupy.to_device(X))
        assert isinstance(whole, DeviceArray) == stays
        expected = expected.toarray() if hasattr(expected, "toarray") else expected
        assert values.dtype == expected.dtype
        assert_allclose(values, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_numbers_are_encoded_on_their_device(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown values are handled by the host, with its warnings and errors."""
    plug_in(FakeCupy, monkeypatch)
    X = np.random.default_rng(0).integers(0, 4, (40, 3)).astype(dtype)
    dense = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    for encoder in (dense, OrdinalEncoder(dtype=np.int32)):
        expected = clone(encoder).fit(X)
        with dask.config.set(scheduler="synchronous"):
            monkeypatch.setattr(DeviceArray, "copied", 0)
            encoder.fit(_lazy(X))
            values, kinds = _gather(encoder.transform(_lazy(X)))
            assert DeviceArray.copied < X.size
        for found, categories in zip(encoder.categories_, expected.categories_, strict=True):
            assert found.dtype == categories.dtype
            assert_array_equal(found, categories)
        assert kinds == {DeviceArray}
        assert values.dtype == expected.transform(X).dtype
        assert_array_equal(values, expected.transform(X))
    X[5, 1] = 9
    assert_array_equal(dense.transform(fake_cupy.to_device(X)), dense.transform(X))
    with pytest.raises(ValueError, match="unknown categories"):
        encoder.transform(fake_cupy.to_device(X))
