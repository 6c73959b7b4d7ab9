"""Unaligned rows, such as those received over a network, give the same bits as aligned ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.backends import get_backend
from daskml_dist.losses import Hinge, LogLoss, Loss, SquaredError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.least_squares import SecondMoments
from daskml_dist.solvers.newton import LossHessian
from daskml_dist.solvers.objective import LossGradient

N, D = 6_000, 11
W = np.linspace(-0.5, 0.5, D + 1)[:, None]


def _moved(X: NDArray[Any]) -> NDArray[Any]:
    """Return the same rows at an odd address."""
    data = np.empty(X.nbytes + 1, np.uint8)[1:]
    data[:] = X.reshape(-1).view(np.uint8)
    moved = np.frombuffer(data.data, X.dtype).reshape(X.shape)
    assert not moved.flags.aligned
    return moved


def _problem(
    loss: Loss, dtype: str, weighted: bool
) -> tuple[LinearModel, NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)).astype(dtype)
    y = np.where(rng.random(N) < 0.5, -1, 1).astype(dtype)
    model = LinearModel(loss, D, 0 if loss.kind == "regression" else 2, fit_intercept=True)
    return model, X, y, rng.random(N).astype(dtype) if weighted else None


def _sums(statistic: Any, model: LinearModel, rows: BatchRows) -> NDArray[np.float64]:
    out = np.zeros(statistic.shape(model))
    with np.errstate(invalid="ignore", over="ignore"):
        statistic.add(model, rows, out, get_backend("cpu"))
    return out


SUMS = [
    (LossGradient(W), LogLoss()),
    (LossGradient(W), Hinge()),
    (LossHessian(W), LogLoss()),
    (LossHessian(W), SquaredError()),
    (SecondMoments(np.zeros(1)), SquaredError()),
    (SecondMoments(np.zeros(1), np.ones(D)), SquaredError()),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("statistic", "loss"), SUMS)
def test_sums_of_unaligned_rows_have_the_same_bits(statistic, loss, weighted, dtype):
    model, X, y, weight = _problem(loss, dtype, weighted)
    assert statistic.in_parts
    expected = _sums(statistic, model, BatchRows(X, y, weight))
    np.testing.assert_array_equal(
        _sums(statistic, model, BatchRows(_moved(X), y, weight)), expected
    )


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 3e-6), ("float64", 1e-12)])
def test_curvature_kernel_equals_gradient_and_hessian(dtype, rtol, intercept, weighted):
    _, X, y, weight = _problem(LogLoss(), dtype, weighted)
    model = LinearModel(LogLoss(), D, 2, intercept)
    w = (8 * W[: D + intercept]).astype(dtype)
    gradient, hessian = np.ones(w.shape), np.ones((len(w), len(w)))
    found = get_backend("cpu").add_curved("log_loss", w, X, y, weight, gradient, hessian)
    rows = np.column_stack([X, np.ones(N)])[:, : len(w)].astype(float)
    raw = model.raw_prediction(w.astype(float), X.astype(float), get_backend("cpu"))
    values, g, h = LogLoss().value_gradient_hessian(y.astype(float), raw)
    of_rows = np.ones(N) if weight is None else weight.astype(float)
    assert found == pytest.approx(((values * of_rows).sum(), 0.0), rel=rtol)
    for sums, truth in (
        (gradient[:, 0] - 1, rows.T @ (g * of_rows)),
        (hessian - 1, (rows * (h * of_rows)[:, None]).T @ rows),
    ):
        np.testing.assert_allclose(sums, truth, atol=rtol * np.abs(truth).max())


def test_rows_without_curvature_are_reported() -> None:
    X = np.ones((N, D), "float32")
    X[::3] *= 1e4
    y, w = np.ones(N, "float32"), np.ones((D, 1), "float32")
    sums = np.zeros((D, 1)), np.zeros((D, D))
    found = get_backend("cpu").add_curved("log_loss", w, X, y, None, *sums)
    assert found is not None
    assert found[1] == N / 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, D - 1])
@pytest.mark.parametrize(
    "statistic", [LossGradient(0 * W), LossHessian(0 * W), SecondMoments(np.zeros(1))]
)
def test_sums_show_non_finite_rows(statistic, column, value):
    loss = SquaredError() if isinstance(statistic, SecondMoments) else LogLoss()
    model, X, y, _ = _problem(loss, "float32", False)
    assert statistic.shows_not_finite
    assert np.isfinite(_sums(statistic, model, BatchRows(X, y))).all()
    X[N // 2, column] = value
    assert not np.isfinite(_sums(statistic, model, BatchRows(X, y))).all()


def test_sums_at_nonzero_weights_may_hide_non_finite_rows() -> None:
    assert not LossGradient(W).shows_not_finite
    assert not LossHessian(W).shows_not_finite
