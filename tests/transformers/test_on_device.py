"""Transformers keep CuPy rows on the GPU, with the same values as on the host.

Stand-ins for CuPy's arrays, which NumPy may not read, tell how much was copied; on a machine with a
GPU the same tests run on CuPy too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.base import clone

from daskml_dist.decomposition import NMF
from daskml_dist.errors import DaskMLDistError
from daskml_dist.impute import SimpleImputer
from daskml_dist.inference import row_mapping
from daskml_dist.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
)
from tests import fake_cupy
from tests.fake_cupy import DeviceArray, ToDevice, make_blocks

N = 90
CHUNKS = (20, 0, 45, 25)
RNG = np.random.default_rng(0)
NUMBERS = np.round(RNG.normal(size=(N, 3)), 1)  # with repeated values
GAPS = np.where(RNG.random((N, 3)) < 0.2, np.nan, NUMBERS)
COUNTS = RNG.integers(0, 3, (N, 3))
POSITIVE = RNG.gamma(1.0, size=(N, 3))


@pytest.fixture(autouse=True)
def _in_process() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def _lazy(values: Any, to_device: ToDevice) -> da.Array:
    """Blocks made in tasks, one of them empty."""
    return make_blocks(values, CHUNKS, to_device)


ORDINAL = KBinsDiscretizer(4, encode="ordinal")
#: Transformers and rows that stay on the GPU.
STAYING = [
    (QuantileTransformer(n_quantiles=20), NUMBERS),
    (QuantileTransformer(n_quantiles=20), GAPS),
    (QuantileTransformer(n_quantiles=1), NUMBERS.astype("f4")),
    (PolynomialFeatures(), NUMBERS),
    (PolynomialFeatures((2, 4), interaction_only=True), NUMBERS.astype("f4")),
    (PolynomialFeatures((2, 3), include_bias=False), COUNTS),
    (PolynomialFeatures(0), NUMBERS),
    (ORDINAL, NUMBERS),
    (KBinsDiscretizer(3, encode="onehot-dense", strategy="uniform"), NUMBERS.astype("f4")),
    (KBinsDiscretizer(3, encode="onehot-dense", dtype=np.float32), NUMBERS),
    (SimpleImputer(), GAPS),
    (SimpleImputer(strategy="median"), GAPS.astype("f4")),
    (SimpleImputer(strategy="constant", fill_value=2.5), GAPS),
    (SimpleImputer(strategy="most_frequent"), GAPS),
    (OneHotEncoder(drop="first", sparse_output=False), COUNTS),
    (OneHotEncoder(drop="if_binary", sparse_output=False, dtype="f4"), COUNTS % [2, 3, 3]),
    (NMF(2, device="cpu", max_iter=20, random_state=0), POSITIVE),
    (NMF(2, device="cpu", max_iter=20, random_state=0, alpha_W=0.01), POSITIVE.astype("f4")),
    (NMF(2, solver="mu", beta_loss=1, device="cpu", max_iter=20, random_state=0), POSITIVE),
]
#: Some that the host transforms.
ON_HOST = [
    (QuantileTransformer(n_quantiles=20, output_distribution="normal"), NUMBERS),
    (PolynomialFeatures(order="F"), NUMBERS),
    (KBinsDiscretizer(3), NUMBERS),
    (SimpleImputer(add_indicator=True), GAPS),
    (SimpleImputer(missing_values=1), COUNTS),
    (SimpleImputer(), np.where(np.arange(3) == 1, np.nan, NUMBERS)),
    (PolynomialFeatures(), sparse.csr_array(NUMBERS)),
    (StandardScaler(), NUMBERS.astype("f2")),
]


def _to_numpy(values: Any) -> Any:
    values = values.get() if hasattr(values, "__cuda_array_interface__") else values
    return values.toarray() if sparse.issparse(values) else values


def _name(value: Any) -> str:
    return str(value) if hasattr(value, "fit") else str(value.dtype)


@pytest.mark.filterwarnings("ignore::UserWarning")  # gaps in a whole column, few bins
@pytest.mark.parametrize("stays", [True, False])
def test_values_and_dtypes_are_those_of_the_host(stays: bool, to_device: ToDevice) -> None:
    for transformer, rows in STAYING if stays else ON_HOST:
        model = clone(transformer).fit(rows)
        methods = ["transform"]
        methods += ["inverse_transform"] * isinstance(model, QuantileTransformer)
        for method in methods:
            X = rows if method == "transform" else model.transform(rows)
            expected = getattr(model, method)(X)
            found = getattr(model, method)(to_device(X))
            blocks = getattr(model, method)(_lazy(X, to_device)).to_delayed().ravel()
            parts = [block.compute() for block in blocks]
            assert (DeviceArray.copied == 0) == stays or to_device is not fake_cupy.to_device, (
                transformer
            )
            for one in (found, *parts):
                assert hasattr(one, "__cuda_array_interface__") == stays, transformer
            own, whole, *lazy = map(_to_numpy, (expected, found, *parts))
            tolerance = 1e-6 if own.dtype == np.float32 else 1e-12
            for one in (whole, np.concatenate(lazy)):
                assert one.dtype == own.dtype
                assert_allclose(one, own, rtol=tolerance, atol=tolerance, err_msg=str(transformer))
            if to_device is fake_cupy.to_device:
                DeviceArray.copied = 0


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("transformer", [ORDINAL, SimpleImputer(strategy="median")], ids=_name)
def test_fits_copy_sketches_alone(transformer: Any, to_device: ToDevice) -> None:
    for dtype in ("f4", "f8"):
        rows = (NUMBERS if transformer is ORDINAL else GAPS).astype(dtype)
        expected = clone(transformer).fit(da.from_array(rows, chunks=(30, -1)))
        found = clone(transformer).fit(_lazy(rows, to_device))
        for name in ("bin_edges_", "statistics_"):
            for values, other in zip(
                *(vars(m).get(name, ()) for m in (expected, found)), strict=True
            ):
                assert_allclose(other, values, rtol=1e-12)


@pytest.mark.parametrize("transformer", [PolynomialFeatures(), ORDINAL], ids=_name)
def test_missing_values_are_refused_as_on_the_host(transformer: Any, to_device: ToDevice) -> None:
    model = clone(transformer).fit(NUMBERS)
    with pytest.raises(ValueError, match="contains NaN"):
        model.transform(to_device(GAPS))
    with pytest.raises((DaskMLDistError, ValueError), match=r"Block \d.*contains NaN"):
        model.transform(_lazy(GAPS, to_device)).compute()
    if transformer is ORDINAL:
        with pytest.raises(DaskMLDistError, match=r"Block \d.*contains NaN"):
            clone(transformer).fit(_lazy(GAPS, to_device))


def test_weights_of_rows_in_pieces(to_device: ToDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_mapping, "MAX_DEVICE_ROWS", 7)
    model = NMF(2, device="cpu", max_iter=20, random_state=0).fit(POSITIVE)
    sparse_rows = sparse.csr_array(POSITIVE * (POSITIVE > 1))
    for rows in (POSITIVE, sparse_rows):
        found = model.transform(to_device(rows))
        assert_allclose(found.get(), model.transform(rows), rtol=1e-9, atol=1e-9)
    with pytest.raises(DaskMLDistError, match="Negative values in data passed to NMF"):
        model.transform(to_device(-POSITIVE))
    wrong = np.where(np.arange(N)[:, None] == 50, np.nan, POSITIVE)
    with pytest.raises(DaskMLDistError, match=r"contains NaN \(row 50"):
        model.transform(to_device(wrong))
