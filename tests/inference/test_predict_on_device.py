"""CuPy rows are predicted on their device, with the results of NumPy rows on the host.

Stand-ins for CuPy's arrays, which NumPy cannot read, count copied bytes; on a machine with a GPU
the same tests run on CuPy too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from daskml_dist.errors import DeviceMemoryError, DeviceUnavailableError, InvalidDataError
from daskml_dist.inference import row_mapping
from daskml_dist.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
)
from tests import fake_cupy
from tests.fake_cupy import DeviceArray, FakeCupy, ToDevice, make_blocks, plug_in

N, D = 90, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.7)
SIGNAL = X @ np.array([1.0, -2.0, 0.5, 0.3])
Y = {
    "two": np.where(SIGNAL > 0, "yes", "no"),
    "three": np.digitize(SIGNAL, [-1, 1]),
    "number": SIGNAL + RNG.normal(size=N),
    "columns": np.stack([SIGNAL, -SIGNAL], axis=1) + 1,
    "count": RNG.poisson(np.exp(SIGNAL / 4)).astype(float),
}
WEIGHT = RNG.uniform(0.5, 2, size=N)
MODELS = {
    "two": LogisticRegression(tol=1e-3, device="cpu"),
    "three": LogisticRegression(tol=1e-3, device="cpu"),
    "number": Ridge(device="cpu"),
    "columns": LinearRegression(device="cpu"),
    "count": PoissonRegressor(tol=1e-3, device="cpu"),
}
METHODS = ["predict", "predict_proba", "predict_log_proba", "decision_function"]
#: Every summation path of inner products.
TOLERANCE = {"float32": 1e-5, "float64": 1e-11}
CHUNKS = (20, 0, 45, 25)


@pytest.fixture(autouse=True)
def _in_process() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def _lazy(values: Any, to_device: ToDevice) -> da.Array:
    """Return blocks made in tasks, one of them empty."""
    return make_blocks(values, CHUNKS, to_device)


@pytest.mark.parametrize("pieces", ["whole", "few rows"])
@pytest.mark.parametrize("container", [np.asarray, np.asfortranarray, sparse.csr_array])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", list(Y))
def test_predictions_equal_those_of_the_host(
    to_device: ToDevice,
    target: str,
    dtype: str,
    container: Any,
    pieces: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if pieces == "few rows":
        monkeypatch.setattr(row_mapping, "MAX_DEVICE_ROWS", 7)
    model = MODELS[target].fit(X.astype(dtype), Y[target])
    rows = container(X.astype(dtype))
    for method in METHODS:
        if not hasattr(model, method):
            continue
        expected = getattr(model, method)(rows)
        found = getattr(model, method)(to_device(rows))
        lazy = getattr(model, method)(_lazy(rows, to_device))
        assert isinstance(lazy, da.Array)
        assert isinstance(lazy._meta, np.ndarray)
        for result in (found, lazy.compute()):
            assert isinstance(result, np.ndarray)
            assert result.dtype == expected.dtype
            if expected.dtype.kind == "f":
                assert_allclose(result, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
            else:
                assert_array_equal(result, expected)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("target", list(Y))
def test_scores_equal_those_of_the_host(to_device: ToDevice, target: str, container: Any) -> None:
    model, rows, y = MODELS[target].fit(X, Y[target]), container(X), Y[target]
    expected = model.score(rows, y, sample_weight=WEIGHT)
    device_y = y if y.dtype.kind == "U" else to_device(y)  # CuPy has no strings
    assert model.score(to_device(rows), device_y, sample_weight=to_device(WEIGHT)) == pytest.approx(
        expected, rel=1e-9
    )
    lazy = [_lazy(rows, to_device), _lazy(y, np.asarray), _lazy(WEIGHT, to_device)]
    assert model.score(*lazy) == pytest.approx(expected, rel=1e-9)
    mixed = to_device(rows), _lazy(y, np.asarray), WEIGHT
    assert model.score(*mixed) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("coef", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "bool"])
def test_dtype_rules_equal_those_of_the_host(to_device: ToDevice, dtype: str, coef: str) -> None:
    """Also for integers; targets of a score remain float64."""
    model = Ridge(device="cpu").fit(X.astype(coef), Y["number"])
    rows = (3 * X).astype(dtype)
    expected = model.predict(rows)
    found = model.predict(to_device(rows))
    assert found.dtype == expected.dtype
    assert_allclose(found, expected, rtol=1e-5)
    score = model.score(to_device(rows), Y["number"])
    assert score == pytest.approx(model.score(rows, Y["number"]), rel=1e-5)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_only_raw_predictions_leave_the_device(
    container: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(FakeCupy, monkeypatch)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    model = MODELS["two"].fit(X, Y["two"])
    rows = _lazy(container(X), fake_cupy.to_device)
    lazy = model.predict_proba(rows)
    assert DeviceArray.copied == 0
    lazy.compute()
    assert DeviceArray.copied == N
    model.score(rows, _lazy(Y["two"], np.asarray))
    assert DeviceArray.copied == 2 * N


def test_all_workers_predict(to_device: ToDevice) -> None:
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"):
        model = MODELS["three"].fit(X, Y["three"])
        rows, y = _lazy(X, to_device), _lazy(Y["three"], to_device)
        assert_array_equal(model.predict(rows).compute(scheduler="distributed"), model.predict(X))
        with dask.config.set(scheduler=None):
            assert model.score(rows, y) == pytest.approx(model.score(X, Y["three"]))


def test_a_matrix_with_duplicate_entries_is_not_changed(to_device: ToDevice) -> None:
    parts = np.ones(4), np.array([2, 0, 2, 1]), np.array([0, 3, 4])
    rows = to_device(sparse.csr_matrix(parts, shape=(2, D)))
    model = Ridge(device="cpu").fit(X, Y["number"])
    expected = model.predict(np.array([[1.0, 0, 2, 0], [0, 1, 0, 0]]))
    assert_allclose(model.predict(rows), expected, rtol=1e-12)
    assert rows.data.shape == (4,)


def test_device_arrays_are_fitted(to_device: ToDevice) -> None:
    for target in ("three", "number", "columns"):
        model = MODELS[target].fit(X, Y[target])
        expected = model.coef_
        model.fit(to_device(X), to_device(Y[target]), sample_weight=to_device(np.ones(N)))
        assert_allclose(model.coef_, expected, rtol=1e-6)


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named(
    to_device: ToDevice, wrong: float, dtype: str, container: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in columns without effect, and after the first piece of rows."""
    monkeypatch.setattr(row_mapping, "MAX_DEVICE_ROWS", 7)
    model = SGDClassifier()
    model.classes_ = np.array([0, 1])
    model.coef_, model.intercept_, model.n_features_in_ = np.zeros((1, D), dtype), np.zeros(1), D
    values = np.ones((N, D), dtype)
    assert not model.decision_function(to_device(container(values))).any()
    values[50, 2] = wrong
    rows = to_device(container(values))
    with pytest.raises(InvalidDataError, match=r"^Input X contains .* \(row 50 of"):
        model.predict(rows)
    lazy, y = _lazy(container(values), to_device), _lazy(np.arange(N) % 2, np.asarray)
    found = model.predict(lazy)
    with pytest.raises(InvalidDataError, match=r"Block 2: Input X contains .* \(row 30 of"):
        found.compute()
    with pytest.raises(InvalidDataError, match=r"Block 2: Input X contains .* \(row 30 of"):
        model.score(lazy, y)


def test_finite_rows_may_have_infinite_predictions(to_device: ToDevice) -> None:
    model = SGDClassifier()
    model.coef_, model.intercept_ = np.full((1, 2), 3e38, "f4"), np.zeros(1)
    model.n_features_in_ = 2
    rows = to_device(np.array([[1e38, 1e38], [-1e38, -1e38], [0, 0]], dtype="f4"))
    assert_array_equal(model.decision_function(rows), [np.inf, -np.inf, 0])


def test_rows_must_be_numbers_in_two_dimensions(to_device: ToDevice) -> None:
    model = Ridge(device="cpu").fit(X, Y["number"])
    for rows in (X[0], X.astype(complex), X[:, :2]):
        with pytest.raises(InvalidDataError):
            model.predict(to_device(rows))


class _Missing(FakeCupy):
    @classmethod
    def problem(cls) -> str | None:
        return "nothing was plugged in. Plug something in."


class _Full(FakeCupy):
    def dot(self, X: Any, w: Any) -> Any:
        raise MemoryError("out of memory allocating 8 bytes")


@pytest.mark.parametrize(
    ("backend", "error", "message"),
    [
        (_Missing, DeviceUnavailableError, r"Block \d: X holds CuPy.*Plug something in.*NumPy"),
        (_Full, DeviceMemoryError, r"Block \d: .* did not fit .*out of memory.*dtype of the fit"),
    ],
)
def test_an_unusable_device_raises(
    backend: Any, error: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["three"].fit(X, Y["three"])
    plug_in(backend, monkeypatch)
    found = model.predict(_lazy(X, fake_cupy.to_device))
    with pytest.raises(error, match=message):
        found.compute()
    with pytest.raises(error, match=message):
        model.score(_lazy(X, fake_cupy.to_device), _lazy(Y["three"], np.asarray))
