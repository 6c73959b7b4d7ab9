"""CUDA kernels that update parameters, compiled by g++: optimizers, and Adagrad on CSR rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from daskml_dist.backends import kernels
from daskml_dist.losses import LOSSES
from daskml_dist.optimizers import OPTIMIZERS
from tests.backends.kernel_problems import RTOL, csr_parts, make_problem, needs_compiler, true_sums
from tests.cuda_emulation import build, run
from tests.quick import quick


@needs_compiler
@pytest.mark.parametrize("name", quick(OPTIMIZERS, "sgd", "adam", "ftrl"))
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_optimizers_equal_numpy_bit_for_bit(name, dtype, guarded):
    optimizer, n, rows, l2 = OPTIMIZERS[name](), 300, 7.0, 0.01
    options = kernels.options("optimizer_updates", dtype, optimizer=name, result=dtype)
    library = build("optimizer_updates", options)
    launch = replace(kernels.launch("optimizer_update", n, 1, dtype, 1), grid=1)
    rng = np.random.default_rng(0)
    for l1, penalised in ((0.0, n), (0.05, n), (0.0, n - 1)):
        w = rng.normal(size=n).astype(dtype)
        opt_state = optimizer.init(w)
        if name == "nag":
            opt_state["scale"] = rng.uniform(0.5, 2, n).astype(dtype)
        ours, state = guarded(w), [guarded(array) for array in opt_state.values()]
        state += [None] * (3 - len(state))
        for step in (1, 2, 3):
            sums = rng.normal(size=n).astype(dtype)
            numbers = kernels.optimizer_numbers(optimizer, rows, 0.1, step)
            on_device = None
            if step == 2:
                on_device, numbers = guarded(np.array(numbers)), (np.nan,) * len(numbers)
            run(
                library, "optimizer_update", launch, ours, guarded(sums), *state,
                n, penalised, l1, l2, *numbers, on_device,
            )  # fmt: skip
            grad = sums / rows
            grad[:penalised] += l2 * w[:penalised]
            optimizer.update(w, grad, opt_state, 0.1, step, l1)
        np.testing.assert_array_equal(ours, w)
        for mine, array in zip(state, opt_state.values(), strict=False):
            np.testing.assert_array_equal(mine, array)
        assert not l1 or name == "adamw" or (w == 0).any()


@needs_compiler
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_l1_is_not_applied_to_unpenalised_rows(name, guarded):
    optimizer, n = OPTIMIZERS[name](), 40
    options = kernels.options("optimizer_updates", "float32", optimizer=name, result="float32")
    library = build("optimizer_updates", options)
    launch = kernels.launch("optimizer_update", n, 1, "float32", 1)
    rng = np.random.default_rng(0)
    w = rng.normal(size=n).astype("float32")
    l1 = np.where(np.arange(n) < 30, 0.3, 0.0).astype("float32")
    opt_state = optimizer.init(w)
    ours, state = guarded(w), [guarded(array) for array in opt_state.values()]
    state += [None] * (3 - len(state))
    for step in (1, 2):
        grad = rng.normal(size=n).astype("float32")
        arrays = ours, guarded(grad), *state
        for rows in (1.0, 0.0):  # a step of no rows changes nothing
            numbers = kernels.optimizer_numbers(optimizer, rows, 0.1, step)
            run(library, "optimizer_update", launch, *arrays, n, 30, 0.3, 0.0, *numbers, None)
        optimizer.update(w, grad, opt_state, 0.1, step, l1)
    np.testing.assert_allclose(ours, w, rtol=1e-6, atol=1e-8)
    assert (w[30:] != 0).all()


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "index", "chosen"),
    [("float32", "int32", True), ("float64", "int64", True), ("float32", "int32", False)],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_csr_gradient_and_adagrad(dtype, index, chosen, weighted, guarded):
    n, d, loss = 41, 90, LOSSES["log_loss"]()
    rng = np.random.default_rng(0)
    csr = sparse.random_array((n, d), density=0.5, format="csr", rng=rng, dtype=dtype)
    csr.data[csr.indptr[4] : csr.indptr[5]] = 0
    order = rng.integers(n, size=n) if chosen else np.arange(n)
    _, _, y, w, weight = make_problem(loss, n, d, dtype)
    parts, rows, count, n_given = csr_parts(guarded, csr, index), None, None, n
    if chosen:  # listed individually; their number is on the device
        data, indices, _ = (part.ctypes.data for part in parts)
        first, sizes = csr.indptr[:-1].astype(np.uint64), np.diff(csr.indptr).astype(np.uint64)
        table = data + first * csr.data.itemsize, indices + first * np.dtype(index).itemsize, sizes
        rows, n_given = guarded(np.stack(table, axis=1).astype(np.uint64)[order]), 10**9
        count, parts = guarded(np.array([float(n)])), (None, None, None)
    options = kernels.options("csr_gradient", dtype, loss="log_loss", result=dtype, index=index)
    library = build("csr_gradient", options)
    launch = replace(kernels.launch("csr_gradient", n, d, dtype, 1), grid=2)
    ours, gradient, total = guarded(w), guarded.unset(d + 1, dtype), guarded(np.zeros(1))
    clear = replace(kernels.launch("csr_clear", d + 1, 1, dtype, 1), grid=1)
    run(library, "csr_clear", clear, gradient, d + 1)
    run(
        library, "csr_gradient", launch, *parts, rows, guarded(y),
        guarded(weight) if weighted else None, ours, gradient, total, n_given, d, 1, 0.0, count,
    )  # fmt: skip
    values = csr.toarray()[order]
    expected, truth, scale = true_sums(loss, values, y, w, weight if weighted else None, True)
    assert total[0] == pytest.approx(expected, rel=20 * RTOL[dtype])
    assert (np.abs(gradient - truth) <= 20 * RTOL[dtype] * (scale + 1e-3)).all()
    if chosen:
        _check_adagrad(guarded, dtype, index, rows, ours, gradient)


def _check_adagrad(guarded, dtype, index, rows, w, gradient):
    """Check a step on rows with entries, then one without rows."""
    optimizer, n, d = OPTIMIZERS["adagrad"](), len(rows), len(w) - 1
    mean, expected = gradient / n, w.copy()
    accumulator = guarded(np.full(d + 1, 0.5, dtype))
    opt_state = {"accumulator": accumulator.copy()}
    optimizer.update(expected, mean, opt_state, 0.1, 1)
    options = kernels.options("csr_adagrad", dtype, result=dtype, index=index)
    library = build("csr_adagrad", options)
    launch = replace(kernels.launch("csr_adagrad", n, d, dtype, 1), grid=2)
    for count in (n, 0):
        numbers = guarded(np.array(kernels.optimizer_numbers(optimizer, count, 0.1, 1)))
        arrays = rows, w, accumulator, gradient
        run(library, "csr_adagrad", launch, *arrays, d, 1, numbers)
    assert (gradient == 0).all()
    np.testing.assert_allclose(w, expected, rtol=10 * RTOL[dtype], atol=RTOL[dtype])
    np.testing.assert_allclose(accumulator, opt_state["accumulator"], rtol=10 * RTOL[dtype])
