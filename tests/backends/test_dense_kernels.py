"""Fused kernels and row blocks of dense gradients, compared with float64 NumPy over all rows."""

from __future__ import annotations

import numpy as np
import pytest

from daskml_dist.backends import get_backend
from daskml_dist.backends.dense_kernels import KERNELS
from daskml_dist.backends.numpy_backend import FUSED_LOSSES as KNOWN
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.losses import LOSSES, LogLoss
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.training.worker import reader

FUSED_LOSSES = sorted(name for name, loss in LOSSES.items() if loss.kernel in KERNELS)


def _problem(loss, dtype, n=3_000, d=7, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    y = np.where(rng.random(n) < 0.5, -1, 1) if loss.kind == "classification" else rng.random(n)
    w = rng.normal(size=(d + 1, 1)).astype(dtype)
    weight = rng.random(n).astype(dtype)
    X.flags.writeable = w.flags.writeable = False
    return X, y.astype(dtype), w, weight


def _truth(loss, X, y, w, weight, intercept):
    X, y, w = X.astype(float), y.astype(float), w.astype(float)
    weight = np.ones(len(y)) if weight is None else weight.astype(float)
    if intercept:
        X = np.column_stack([X, np.ones(len(X))])
    values, g = loss.value_and_gradient(y, X @ w[: X.shape[1], 0])
    return (values * weight).sum(), X.T @ (g * weight)


def _model(loss, d, intercept):
    return LinearModel(loss, d, 2 if loss.kind == "classification" else 0, intercept)


def test_the_backend_reports_which_losses_have_a_kernel() -> None:
    assert set(KNOWN) == KERNELS.keys()
    assert KERNELS.keys() <= {loss.kernel for loss in LOSSES.values()}


@pytest.mark.parametrize("name", FUSED_LOSSES)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 2e-6), ("float64", 1e-13)])
def test_fused_kernel_equals_the_gradient(name, intercept, weighted, dtype, rtol):
    loss = LOSSES[name]()
    X, y, w, weight = _problem(loss, dtype)
    w, weight = w if intercept else w[:-1], weight if weighted else None
    out = np.ones(w.shape, dtype=dtype)
    value = get_backend("cpu").add_fused(loss.kernel, w, X, y, weight, out)
    expected, gradient = _truth(loss, X, y, w, weight, intercept)
    assert value == pytest.approx(expected, rel=rtol)
    np.testing.assert_allclose(out[:, 0] - 1, gradient, atol=rtol * np.abs(gradient).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_loss_kernel_is_exact_for_each_row(dtype):
    margins = np.concatenate([np.linspace(-80, 80, 17), [-1e-30, 0, 1e-30, 5e4, -5e4]])
    values, slopes = [], []
    w, y = np.zeros((512, 1), dtype=dtype), np.ones(16, dtype=dtype)
    w[0] = 1
    for margin in margins:
        X, out = np.zeros((16, 512), dtype=dtype), np.zeros((512, 1))
        X[:, 0], X[:, 1] = margin, 1
        values.append(get_backend("cpu").add_fused("log_loss", w, X, y, None, out) / len(y))
        slopes.append(out[1, 0] / len(y))
    expected, gradient = LogLoss().value_and_gradient(np.ones(len(margins)), margins)
    rtol = 1e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(values, expected, rtol=rtol, atol=1e-37)
    np.testing.assert_allclose(slopes, gradient, rtol=rtol, atol=1e-37)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_fused_kernel_does_not_hide_overflow(bad):
    X, y, w, _ = _problem(LogLoss(), "float32")
    w = w.copy()
    w[0] = bad
    out = np.zeros(w.shape, dtype="float32")
    assert not np.isfinite(get_backend("cpu").add_fused("log_loss", w, X, y, None, out))


def test_a_subclass_has_no_kernel():
    class Doubled(LogLoss):
        def _evaluate_at_margin(self, margin):
            values, slope = super()._evaluate_at_margin(margin)
            return 2 * values, 2 * slope

    assert Doubled.kernel is None


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_float32_gradient_of_many_rows_is_accurate(name):
    """300,000 rows add no error beyond that of single rows."""
    loss = LOSSES[name]()
    X, y, w, weight = _problem(loss, "float32", n=300_000, seed=1)
    out = np.zeros(w.shape)
    value = _model(loss, 7, True).add_gradient(w, BatchRows(X, y, weight), out, get_backend("cpu"))
    expected, gradient = _truth(loss, X, y, w, weight, True)
    assert value == pytest.approx(expected, rel=1e-6)
    # Rounding of a row's float32 values: some 1e-7 of its share, plus the slope's change for as
    # much in the raw prediction (steep for exponential losses), times |X|.
    raw = (X @ w[:7, 0] + w[7, 0]).astype(float)
    slope = loss.gradient(y.astype(float), raw)
    drift = np.abs(loss.gradient(y.astype(float), raw * (1 + 1e-6)) - slope)
    atol = 3e-6 * (np.abs(slope) @ weight) + drift @ weight
    np.testing.assert_allclose(out[:, 0], gradient, atol=atol)


def test_blocks_of_many_outputs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 16)).astype("float32")
    y = rng.integers(0, 5, size=len(X)).astype(np.int32)
    w = rng.normal(size=(17, 5)).astype("float32")
    model, out = LinearModel(LogLoss(), 16, 5, True), np.zeros((17, 5))
    assert len(list(get_backend("cpu").row_blocks(X))) > 1
    value = model.add_gradient(w, BatchRows(X, y), out, get_backend("cpu"))
    X1 = np.column_stack([X, np.ones(len(X))]).astype(float)
    values, g = LogLoss().value_and_gradient(y, X1 @ w)
    assert value == pytest.approx(values.sum(), rel=1e-6)
    np.testing.assert_allclose(out, X1.T @ g, atol=1e-6 * len(X))


@pytest.mark.parametrize("weighted", [True, False])
def test_a_large_batch_in_pieces_equals_the_whole_batch(monkeypatch, weighted):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_000, 6))
    y = (X[:, 0] + rng.normal(size=len(X)) > 0).astype(int)
    weight = rng.random(len(X)) if weighted else None

    def coef():
        clf = SGDClassifier(batch_size=500, max_iter=3, tol=None, random_state=0)
        return clf.fit(X, y, sample_weight=weight).coef_

    whole = coef()
    monkeypatch.setattr(reader, "_PIECE_BYTES", 37 * X.itemsize * X.shape[1])
    np.testing.assert_allclose(coef(), whole, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 3, 7, 8, 9, 15, 16, 17, 31, 33])
def test_rows_of_any_width_and_number(d, dtype):
    """Whether or not these are multiples of 16 or 1024; memory after the last row is not read."""
    for n in (9_200, 9_201, 9_215, 9_216, 9_217):
        X, y, w, weight = _problem(LogLoss(), dtype, n, d)
        padded = np.full(X.size + 64, np.nan, dtype)
        padded[: X.size] = X.reshape(-1)
        X = padded[: X.size].reshape(X.shape)
        found = set()
        for size in (1, 100, 3_000):
            others = [np.full(size, np.nan) for _ in range(20)]  # freed memory is reused
            del others
            out = np.zeros(w.shape)
            value = get_backend("cpu").add_fused("log_loss", w, X, y, weight, out)
            found.add((value, out.tobytes()))
        assert len(found) == 1
        expected, gradient = _truth(LogLoss(), X, y, w, weight, True)
        rtol = 3e-6 if dtype == "float32" else 1e-13
        assert value == pytest.approx(expected, rel=rtol)
        np.testing.assert_allclose(out[:, 0], gradient, atol=rtol * np.abs(gradient).max())
