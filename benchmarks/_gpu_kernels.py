"""Kernels of the GPU: their time compared with a copy, their results compared with float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks._gpu_device import Case, Device, Measured, largest_difference
from daskml_dist.backends.base import Step
from daskml_dist.backends.devices import stored_dtype
from daskml_dist.losses import LOSSES, LogLoss, Loss
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import OPTIMIZERS

__all__ = ["kernel_cases"]

WIDTHS = (28, 100, 512, 2048, 2049, 10_000)


def kernel_cases() -> Iterator[tuple[str, Case]]:
    """Yield the names and cases."""
    for loss in (None, "log_loss", "squared_error", "huber"):
        for d in WIDTHS:
            way = "two products" if loss is None else f"kernel {loss}"
            yield f"{way}, 1 GB of float32, d = {d:,}", partial(_kernel, loss, d, "float32")
    for stored in ("float16", "bfloat16"):
        yield (
            f"kernel log_loss, 1 GB of {stored}, d = 512",
            partial(_kernel, "log_loss", 512, stored),
        )
    for d in WIDTHS:
        yield f"softmax of 10 classes, 1 GB of float32, d = {d:,}", partial(_softmax, d)
    for d in WIDTHS[:4]:
        yield f"k-means, 64 centres, 1 GB of float32, d = {d:,}", partial(_kmeans, d)
    yield "gradient of CSR rows, 1,000,000 x 100,000, 100 entries a row", _csr
    for name in ("sgd", "adagrad", "adam"):
        yield f"a step of {name}, 50,000,000 parameters", partial(_update, name)
    for d in (100, 500):
        yield f"logistic gradient, 10,000,000 x {d}", partial(_gradient, 10_000_000, d)


def _kernel(name: str | None, d: int, stored: str, on: Device) -> Measured:
    """Measure the gradient of summed losses with one reading of X, or with two."""
    loss = LogLoss() if name is None else LOSSES[name]()
    dtype = stored_dtype(stored)
    X, y = on.rows((1 << 20 if on.tiny else 1 << 30) // dtype.itemsize // d, d)
    X, w = X.astype(dtype, copy=False), on.backend.to_device(_parameters(d + 1))

    def gradient(X: Any, y: Any, out: Any) -> Any:
        if name is not None:
            return on.backend.add_fused(loss.kernel, w, X, y, None, out, loss.parameters)
        return _two_products(on, loss, w, X, y, out)

    out = on.xp.zeros_like(w)
    if gradient(X, y, out) is None:
        return Measured(value="no kernel")
    few = max(64, 20_000_000 // d)
    out = on.xp.zeros_like(w)
    gradient(X[:few], y[:few], out)
    expected = _truth(loss, *(on.backend.to_numpy(a) for a in (X[:few], y[:few], w)))
    difference = largest_difference(on.backend.to_numpy(out)[:, 0], expected)
    taken = on.milliseconds(lambda: gradient(X, y, out))
    return Measured(taken, X.nbytes * (2 if name is None else 1), difference)


def _parameters(n: int) -> Any:
    return (np.random.default_rng(1).normal(size=(n, 1)) / np.sqrt(n)).astype("float32")


def _two_products(on: Device, loss: Loss, w: Any, X: Any, y: Any, out: Any) -> Any:
    raw = on.backend.dot(X, w[:-1])
    raw += w[-1, 0]
    values, g = loss.value_and_gradient(y, raw)
    on.backend.add_tdot(X, g, out[:-1])
    out[-1] += g.sum(axis=0)
    return values.sum()


def _truth(loss: Loss, X: Any, y: Any, w: Any) -> Any:
    X, y, w = (a.astype(np.float64) for a in (X, y, w))
    g = loss.gradient(y, X @ w[:-1, 0] + w[-1, 0])
    return np.append(X.T @ g, g.sum())


def _gradient(n: int, d: int, on: Device) -> Measured:
    """Measure a gradient as in a round of a solver."""
    X, y = on.rows(n // 1000 if on.tiny else n, d)
    model = LinearModel(LogLoss(), d, 2, fit_intercept=True)
    w = on.backend.to_device(_parameters(d + 1))
    out = on.xp.zeros(w.shape, dtype="float64")
    taken = on.milliseconds(lambda: model.add_gradient(w, BatchRows(X, y), out, on.backend))
    return Measured(taken, X.nbytes)


def _softmax(d: int, on: Device) -> Measured:
    """Measure two products with a kernel between them."""
    n = (1 << 18 if on.tiny else 1 << 28) // d
    X, _ = on.rows(n, d)
    codes = np.random.default_rng(0).integers(10, size=n).astype(np.int32)
    y, w = on.backend.to_device(codes), np.hstack([_parameters(d + 1)] * 10) * np.arange(10)
    model = LinearModel(LogLoss(), d, 10, fit_intercept=True)
    w = w.astype("float32")
    there, out = on.backend.to_device(w), on.xp.zeros(w.shape, dtype="float32")
    few = max(64, 20_000_000 // d)
    model.add_gradient(there, BatchRows(X[:few], y[:few]), out, on.backend)
    rows = on.backend.to_numpy(X[:few]).astype(np.float64)
    _, g = LogLoss().value_and_gradient(codes[:few], rows @ w[:-1] + w[-1].astype(np.float64))
    expected = np.vstack([rows.T @ g, g.sum(axis=0)])
    difference = largest_difference(on.backend.to_numpy(out), expected)
    taken = on.milliseconds(lambda: model.add_gradient(there, BatchRows(X, y), out, on.backend))
    return Measured(taken, 2 * X.nbytes, difference)


def _kmeans(d: int, on: Device) -> Measured:
    n, k = (1 << 16 if on.tiny else 1 << 28) // d, 64
    X, _ = on.rows(n, d)
    centres = np.random.default_rng(1).normal(size=(k, d)).astype("float32")
    there = on.backend.to_device(centres)
    shift, out = on.xp.zeros(d, dtype="float32"), on.xp.zeros((k, d + 1), dtype="float64")

    def assign(n: int) -> Any:
        return on.backend.assign(X[:n], shift, there, None, out)

    few = min(n, 4096)
    rows = on.backend.to_numpy(X[:few]).astype(np.float64)
    squares = (rows**2).sum(axis=1)[:, None] - 2 * rows @ centres.T + (centres**2).sum(axis=1)
    found = on.backend.to_numpy(assign(few))
    difference = largest_difference(found, squares.min(axis=1).sum())
    return Measured(on.milliseconds(lambda: assign(n)), X.nbytes, difference)


def _csr(on: Device) -> Measured:
    n, d, entries = (1_000, 1_000, 10) if on.tiny else (1_000_000, 100_000, 100)
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(d, size=(n, entries), dtype=np.int32), axis=1).ravel()
    data = rng.normal(size=n * entries).astype("float32")
    X = sparse.csr_matrix((data, columns, np.arange(0, n * entries + 1, entries)), shape=(n, d))
    y = np.where(rng.random(n) < 0.5, -1, 1).astype("float32")
    w, model = _parameters(d + 1), LinearModel(LogLoss(), d, 2, fit_intercept=True)
    there, targets = on.backend.to_device(w), on.backend.to_device(y)
    rows = on.backend.rows(on.backend.to_device(X), slice(0, n))
    out = on.xp.zeros(w.shape, dtype="float32")
    model.add_gradient(there, BatchRows(rows, targets), out, on.backend)
    found = on.backend.to_numpy(out)[:, 0]
    difference = largest_difference(found, _truth(LogLoss(), X, y, w))
    taken = on.milliseconds(
        lambda: model.add_gradient(there, BatchRows(rows, targets), out, on.backend)
    )
    return Measured(taken, n * entries * 8, difference)


def _update(name: str, on: Device) -> Measured:
    n, optimizer = (1_000 if on.tiny else 50_000_000), OPTIMIZERS[name]()
    rng = np.random.default_rng(0)
    w, grad = (rng.normal(size=(n, 1)).astype("float32") for _ in range(2))
    opt_state = optimizer.init(w)
    moved = {name: on.backend.to_device(array) for name, array in opt_state.items()}
    there = on.backend.to_device(w)
    step = Step(there, on.backend.to_device(grad), moved, 1.0, 0.01, 1, 0.0, 0.0, n)
    expected = w.astype(np.float64)
    state = {name: array.astype(np.float64) for name, array in opt_state.items()}
    optimizer.update(expected, grad.astype(np.float64), state, 0.01, 1)
    on.backend.update(optimizer, step)
    difference = largest_difference(on.backend.to_numpy(there), expected)
    taken = on.milliseconds(lambda: on.backend.update(optimizer, step))
    return Measured(taken, w.nbytes * (3 + 2 * len(opt_state)), difference)
