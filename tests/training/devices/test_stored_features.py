"""Features that a GPU stores in half precision."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.backends import devices
from daskml_dist.errors import (
    DeviceUnavailableError,
    InvalidDataError,
    InvalidParameterError,
)
from daskml_dist.linear_model import (
    LogisticRegression,
    SGDClassifier,
    SGDRegressor,
)
from tests.training.devices.fits import RNG, STEPS, TARGETS, X

STORED_FITS = [
    (SGDClassifier(**STEPS), "two"),
    (SGDClassifier(**STEPS), "three"),
    (SGDClassifier(policy="allreduce", early_stopping=True, average=100, **STEPS), "three"),
    (SGDRegressor(policy="local", **STEPS), "numbers"),
    (LogisticRegression(tol=1e-3), "two"),
    (LogisticRegression(tol=1e-3), "three"),
    (LogisticRegression(tol=1e-3, penalty="l1"), "two"),
    (LogisticRegression(tol=1e-3, solver="newton-cholesky"), "two"),
    (LogisticRegression(tol=1e-3, solver="newton-cholesky"), "three"),
    (LogisticRegression(tol=0.1, solver="boosting"), "two"),
]


@pytest.mark.parametrize(("model", "target"), STORED_FITS)
def test_features_in_half_precision(kernels: None, stored: str, model: Any, target: str) -> None:
    """Only the rows lose precision; the arithmetic is float32."""
    y = TARGETS[target]
    on_gpu = clone(model).set_params(device="gpu", run__compute_dtype=stored).fit(X, y)
    rounded_on_cpu = clone(model).set_params(device="cpu").fit(_rounded(X, stored), y)
    np.testing.assert_allclose(on_gpu.coef_, rounded_on_cpu.coef_, rtol=1e-3, atol=1e-4)
    on_cpu = clone(model).set_params(device="cpu", run__compute_dtype=stored).fit(X, y)
    whole = clone(model).set_params(device="cpu").fit(X.astype(np.float32), y)
    np.testing.assert_array_equal(on_cpu.coef_.astype(np.float32), whole.coef_)


def _rounded(rows: NDArray[Any], stored: str) -> NDArray[np.float32]:
    return rows.astype(np.float32).astype(devices.stored_dtype(stored)).astype(np.float32)


@pytest.mark.parametrize("intercept", [False, True])
def test_half_precision_rows_without_a_kernel(kernels: None, stored: str, intercept: bool) -> None:
    """Rows too wide for the kernel."""
    wide = (RNG.normal(size=(240, 2100)) / 10).astype(np.float32)  # rounded once in both fits
    model = SGDClassifier(fit_intercept=intercept, **STEPS)
    on_gpu = (
        clone(model).set_params(device="gpu", run__compute_dtype=stored).fit(wide, TARGETS["two"])
    )
    on_cpu = model.set_params(device="cpu").fit(_rounded(wide, stored), TARGETS["two"])
    np.testing.assert_allclose(on_gpu.coef_, on_cpu.coef_, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sums_over_features_may_exceed_half_precision(kernels: None, stored: str) -> None:
    """Sums over features are float32, whatever the rows are stored in."""
    large = X * (5e4 / np.abs(X).max())
    assert np.abs(large).sum(axis=1).max() > np.finfo(np.float16).max
    model = LogisticRegression(max_iter=5, solver="boosting")
    on_gpu = (
        clone(model).set_params(device="gpu", run__compute_dtype=stored).fit(large, TARGETS["two"])
    )
    on_cpu = clone(model).set_params(device="cpu").fit(_rounded(large, stored), TARGETS["two"])
    np.testing.assert_allclose(on_gpu.coef_, on_cpu.coef_, rtol=1e-3)


def test_sparse_rows_are_not_stored_in_half_precision(kernels: None, stored: str) -> None:
    rows = sparse.csr_array(np.where(np.abs(X) > 1, X, 0).astype(np.float32))
    model = SGDClassifier(**STEPS)
    on_gpu = (
        clone(model).set_params(device="gpu", run__compute_dtype=stored).fit(rows, TARGETS["two"])
    )
    on_cpu = model.set_params(device="cpu").fit(rows, TARGETS["two"])
    np.testing.assert_allclose(on_gpu.coef_, on_cpu.coef_, rtol=1e-4, atol=1e-5)


def test_features_too_large_for_half_precision_are_refused(kernels: None, stored: str) -> None:
    number = devices.stored_dtype(stored).type
    largest = float(np.nextafter(number(np.inf), number(0)))
    # Also for float32: above the largest number, nearer to the next power of two.
    rows = X / np.abs(X).max() * (largest * 1.003)
    with pytest.raises(
        InvalidDataError, match=rf"X .*{stored}.* {re.escape(f'{largest:g}')} at most"
    ):
        SGDClassifier(device="gpu", run=Run(compute_dtype=stored)).fit(rows, TARGETS["two"])


def test_other_dtypes_of_features_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"'float16', 'bfloat16'"):
        SGDClassifier(run=Run(compute_dtype="int8")).fit(X, TARGETS["two"])


def test_bfloat16_needs_a_package(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    model = SGDClassifier(run=Run(compute_dtype="bfloat16"), **STEPS)
    with pytest.raises(DeviceUnavailableError, match=r"ml_dtypes .*pip install .*float16"):
        clone(model).set_params(device="gpu").fit(X, TARGETS["two"])
    # A CPU stores float32.
    model.set_params(device="cpu").fit(X, TARGETS["two"])
