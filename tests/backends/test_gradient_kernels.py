"""CUDA kernels that sum over rows, compiled by g++: gradients of each loss, softmax, k-means."""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest

from daskml_dist.backends import kernels
from daskml_dist.losses import LOSSES
from tests.backends.kernel_problems import (
    DTYPES,
    RTOL,
    every_version,
    make_problem,
    needs_compiler,
    stored_rows,
    true_sums,
)
from tests.cuda_emulation import build, library_of, run
from tests.quick import quick


def _check_linear_gradient(
    guarded, loss, d, dtype, *, weighted, chosen, intercept, result="float64", alignment=16, n=None
):
    loss = LOSSES[loss]()
    options = kernels.options(
        "linear_gradient", dtype, d=d, loss=loss.name, result=result, alignment=alignment
    )
    library = build("linear_gradient", options)
    teams = kernels._plan_teams(d, dtype, alignment)
    # Two blocks, more than two rounds, and rows left over.
    n = 2 * 2 * 8 * (32 // teams.lanes) * teams.rows + 5 if n is None else n
    launch = replace(kernels.launch("linear_gradient", n, d, dtype, 2, alignment=alignment), grid=2)
    X, values, y, w, weight = make_problem(loss, n, d, dtype)
    w, weight = w[: d + intercept], weight if weighted else None
    rows, addresses, count, n_given = guarded(X), None, None, n
    if chosen:  # rows in another order; their number is on the device
        order = np.random.default_rng(1).permutation(n)
        addresses = guarded((rows.ctypes.data + order * rows.strides[0]).astype(np.uint64))
        values, count, rows, n_given = values[order], guarded(np.array([float(n)])), None, 10**9
    arrays = rows, addresses, guarded(y), guarded(weight) if weighted else None, guarded(w)
    partials = guarded.unset((launch.grid, d + 2))
    numbers = n_given, d, int(intercept), (*loss.parameters, 0.0)[0]
    run(library, "linear_gradient", launch, *arrays, partials, *numbers, count)
    expected, gradient, scale = true_sums(loss, values, y, w, weight, intercept)
    rtol = RTOL[dtype] if result == "float64" else RTOL["float32"]
    summing = kernels.launch("sum_partials", launch.grid, d, dtype, 2)
    for add in (0, 1):
        out, total = guarded(np.ones(d + intercept, result)), guarded.unset(1)
        numbers = launch.grid, d, int(intercept), add
        run(library, "sum_partials", summing, partials, out, total, *numbers)
        assert total[0] == pytest.approx(expected, rel=20 * rtol)
        off = np.abs(out - add - gradient) / (rtol * (20 * scale + 1))
        assert (off <= 1).all(), off.max()


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_losses_of_rows(dtype):
    entries = "".join(
        f"void {loss}(const A *y, const A *raw, double parameter, A *values, A *slopes, int n) {{\n"
        f"    for (int i = 0; i < n; ++i) slopes[i] = "
        f"loss::{loss}(y[i], raw[i], parameter, values[i]);\n}}\n"
        for loss in kernels.LOSSES
    )
    text = kernels.source("csr_gradient") + f'namespace host {{\nextern "C" {{\n{entries}}}\n}}\n'
    library = library_of(text, kernels.options("csr_gradient", dtype))
    raws = np.concatenate([np.linspace(-20, 20, 81), [-1e-9, 1e-9, 0.1, 1.1, np.nan]])
    for name in kernels.LOSSES:
        loss = LOSSES[name]()
        targets = [-1, 1] if loss.kind == "classification" else [0.5, 1.0, 4.0]
        y, raw = (each.ravel().astype(dtype) for each in np.meshgrid(targets, raws))
        values, slopes = np.empty_like(raw), np.empty_like(raw)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (y, raw, values, slopes)]
        parameter = ctypes.c_double((*loss.parameters, 0.0)[0])
        library[name](*pointers[:2], parameter, *pointers[2:], len(raw))
        expected = loss.value_and_gradient(y, raw)
        np.testing.assert_allclose(values, expected[0], rtol=RTOL[dtype], err_msg=name)
        shown = ~np.isnan(raw)
        np.testing.assert_allclose(slopes[shown], expected[1][shown], rtol=RTOL[dtype])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("loss", kernels.LOSSES)
def test_gradient_of_each_loss(loss, guarded):
    both = {"weighted": True, "chosen": True, "intercept": True}
    _check_linear_gradient(guarded, loss, 28, "float64", **both)


@needs_compiler
@pytest.mark.parametrize("d", quick([1, 28, 100, 513, 2048], 1, 28, 2048))
def test_gradient_at_each_width(d, guarded):
    every = list(itertools.product((0, 1), repeat=3))
    for weighted, chosen, intercept in every if d == 28 else (every[0], every[-1]):
        how = {"weighted": weighted, "chosen": chosen, "intercept": intercept}
        _check_linear_gradient(guarded, "log_loss", d, "float32", **how)


@needs_compiler
@pytest.mark.parametrize(
    ("d", "dtype", "alignment"),
    [(100, "float16", 16), (48, "bfloat16", 16), (28, "float32", 4), (1024, "float64", 16)],
)
def test_gradient_of_each_dtype(d, dtype, alignment, guarded):
    chosen = {"weighted": True, "chosen": True, "intercept": True, "alignment": alignment}
    _check_linear_gradient(guarded, "squared_error", d, dtype, result="float32", **chosen)


@needs_compiler
@pytest.mark.parametrize("n", [0, 1])
def test_gradient_of_few_rows(n, guarded):
    chosen = {"weighted": True, "chosen": True, "intercept": True}
    _check_linear_gradient(guarded, "log_loss", 28, "float64", n=n, **chosen)


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_every_version(dtype, guarded):
    for d, alignment in every_version(dtype):
        chosen = {"weighted": True, "chosen": True, "intercept": True, "alignment": alignment}
        _check_linear_gradient(guarded, "log_loss", d, dtype, **chosen)


@needs_compiler
def test_a_nan_row_gives_a_nan_gradient(guarded):
    options = kernels.options("linear_gradient", "float64", d=28, loss="log_loss")
    library = build("linear_gradient", options)
    X, _, y, w, _ = make_problem(LOSSES["log_loss"](), 5, 28, "float64")
    X[3, 7] = np.nan
    launch = kernels.launch("linear_gradient", 5, 28, "float64", 1)
    partials = guarded.unset((launch.grid, 30))
    arrays = guarded(X), None, guarded(y), None, guarded(w)
    run(library, "linear_gradient", launch, *arrays, partials, 5, 28, 1, 0.0, None)
    assert np.isnan(partials[:, -1].sum())


@needs_compiler
@pytest.mark.parametrize(
    ("n", "k", "dtype"),
    [(33, 2, "float32"), (67, 10, "float64"), (0, 100, "float32"), (19, 100, "float32")],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_softmax(n, k, weighted, dtype, guarded):
    rng = np.random.default_rng(0)
    before = (3 * rng.normal(size=(n, k))).astype(dtype)
    codes = rng.integers(k, size=n).astype(np.int32)
    weight = rng.random(n).astype(dtype) if weighted else None
    library = build("softmax_gradient", kernels.options("softmax_gradient", dtype, k=k))
    raw, losses = guarded(before), guarded.unset(n, dtype)
    launch = replace(kernels.launch("softmax_gradient", n, 1, dtype, 1, k=k), grid=2)
    arrays = raw, guarded(codes), guarded(weight) if weighted else None, losses
    run(library, "softmax_gradient", launch, *arrays, n, k)
    values, gradient = LOSSES["log_loss"]().value_and_gradient(codes, before.astype(float))
    weight = np.ones(n) if weight is None else weight
    np.testing.assert_allclose(losses, values * weight, atol=10 * RTOL[dtype])
    np.testing.assert_allclose(raw, gradient * weight[:, None], atol=10 * RTOL[dtype])


@needs_compiler
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype"),
    [(0, 5, 3, "float32"), (67, 33, 40, "float32"),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in (
         (203, 70, 5, "float64"), (41, 45, 150, "float64"), (41, 300, 70, "float16")))],
)  # fmt: skip
@pytest.mark.parametrize("weighted", [True, False])
def test_kmeans(n, d, k, dtype, weighted, guarded):
    rng = np.random.default_rng(0)
    X, values = stored_rows(rng.normal(size=(n, d)), dtype)
    arithmetic = "float64" if dtype == "float64" else "float32"
    centroids = rng.normal(size=(k, d)).astype(arithmetic)
    centroids[-1] = centroids[0]  # the first of them counts
    weight = rng.random(n).astype(arithmetic) if weighted else None
    library = build("kmeans", kernels.options("kmeans", dtype, d=d, k=k))
    launch = replace(kernels.launch("kmeans", n, d, dtype, 1, k=k), grid=2)
    labels = guarded.unset(n, np.int32)
    sums, counts, inertia = (guarded(np.zeros(s)) for s in ((k, d), k, 1))
    arrays = guarded(X), guarded(centroids), guarded(weight) if weighted else None
    run(library, "kmeans", launch, *arrays, labels, sums, counts, inertia, n, d, k)
    found = labels, sums, counts, inertia
    _check_clusters(found, values, centroids, weight, RTOL[dtype])


def _check_clusters(found, values, centroids, weight, rtol):
    """Check labels and sums of k-means against their definition."""
    (labels, sums, counts, inertia), (n, k) = found, (len(values), len(centroids))
    squares = ((values[:, None] - centroids) ** 2).sum(axis=2)
    np.testing.assert_array_equal(labels, squares.argmin(axis=1))
    weight = np.ones(n) if weight is None else weight.astype(float)
    member = (labels[:, None] == np.arange(k)) * weight[:, None]
    rtol *= 20
    np.testing.assert_allclose(counts, member.sum(axis=0), rtol=rtol)
    np.testing.assert_allclose(sums, member.T @ values, rtol=rtol, atol=rtol)
    assert inertia[0] == pytest.approx((squares.min(axis=1) * weight).sum() if n else 0, rel=rtol)


@needs_compiler
@pytest.mark.parametrize(
    ("n", "d", "k"),
    [(0, 4, 1), (211, 20, 10),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in (
         (193, 100, 33), (500, 132, 8), (60, 4, 64)))],
)  # fmt: skip
@pytest.mark.parametrize("weighted", [True, False])
def test_kmeans_on_tensor_cores(n, d, k, weighted, guarded):
    """Rows far from the origin, close to the resolution of float32."""
    rng = np.random.default_rng(0)
    X, shift = (rng.normal(size=shape).astype(np.float32) + 50 for shape in ((n, d), d))
    centroids = rng.normal(size=(k, d)).astype(np.float32)
    centroids[-1] = centroids[0]  # the first of them counts
    weight = rng.random(n).astype(np.float32) if weighted else None
    assert kernels.has_kmeans_tiles(d, k, X.dtype)
    library = build("kmeans_tiles", kernels.options("kmeans_tiles", X.dtype, d=d, k=k))
    launch = replace(kernels.launch("kmeans_tiles", n, d, X.dtype, 1, k=k), grid=2)
    labels = guarded.unset(n, np.int32)
    sums, counts, inertia = (guarded(np.zeros(s)) for s in ((k, d), k, 1))
    arrays = *map(guarded, (X, shift, centroids)), guarded(weight) if weighted else None
    run(library, "kmeans_tiles", launch, *arrays, labels, sums, counts, inertia, n, d, k)
    found = labels, sums, counts, inertia
    _check_clusters(found, (X - shift).astype(float), centroids, weight, RTOL["float32"])


def test_tensor_cores_are_used_for_supported_layouts():
    assert kernels.has_kmeans_tiles(100, 64, "float32")
    for d, k, dtype, more in (
        (100, 64, "float64", {}),
        (100, 64, "float16", {}),
        (101, 64, "float32", {}),
        (100, 65, "float32", {}),
        (400, 64, "float32", {}),  # more than a block's shared memory
        (100, 64, "float32", {"alignment": 4}),
        (100, 64, "float32", {"capability": 75}),
    ):
        assert not kernels.has_kmeans_tiles(d, k, dtype, **more)


@needs_compiler
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype", "alignment"),
    [(203, 28, 3, "float32", 16), (0, 28, 3, "float32", 16),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in (
         (70, 100, 10, "float32", 16), (203, 28, 10, "float64", 16), (61, 29, 2, "bfloat16", 2),
         (90, 100, 5, "float16", 8), (37, 3, 17, "float32", 4), (70, 200, 10, "float32", 16),
         (61, 784, 10, "float32", 16), (61, 530, 5, "float64", 16), (61, 784, 10, "float16", 16)))],
)  # fmt: skip
@pytest.mark.parametrize(("weighted", "intercept"), [(True, 1), (False, 0)])
def test_softmax_of_rows(n, d, k, dtype, alignment, weighted, intercept, guarded):
    rng = np.random.default_rng(0)
    X, values = stored_rows(rng.normal(size=(n, d)), dtype)
    arithmetic = "float64" if dtype == "float64" else "float32"
    w = rng.normal(size=(d + intercept, k)).astype(arithmetic)
    codes = rng.integers(k, size=n).astype(np.int32)
    weight = rng.random(n).astype(arithmetic) if weighted else None
    chosen = {"d": d, "k": k, "alignment": alignment}
    library = build("softmax_rows", kernels.options("softmax_rows", dtype, **chosen))
    launch = kernels.launch("softmax_rows", n, d, dtype, 1, k=k, alignment=alignment)
    launch = replace(launch, grid=2)
    partials = guarded.unset((2, w.size + 2 - intercept))
    arrays = *map(guarded, (X, codes)), guarded(weight) if weighted else None, guarded(w)
    run(library, "softmax_rows", launch, *arrays, partials, n, d, intercept)
    raw = values @ w[:d].astype(float) + (w[d] if intercept else 0)
    losses, slopes = LOSSES["log_loss"]().value_and_gradient(codes, raw)
    scale = np.ones(n) if weight is None else weight.astype(float)
    slopes = slopes * scale[:, None]
    gradient = np.hstack([values, np.ones((n, intercept))]).T @ slopes
    found, atol = partials.sum(axis=0), 100 * RTOL[dtype]
    np.testing.assert_allclose(found[: w.size].reshape(w.shape), gradient, atol=atol)
    assert found[-1] == pytest.approx(float(losses @ scale), rel=10 * RTOL[dtype])


def test_softmax_of_rows_has_kernels_up_to_a_width():
    launch = functools.partial(kernels.launch, "softmax_rows", 9)
    assert launch(100, "float32", 132, k=10) is not None
    assert launch(1000, "float32", 132, k=10) is not None
    assert launch(1028, "float32", 132, k=10) is None
    assert launch(100, "float32", 132, k=1) is None
    with pytest.raises(ValueError, match="1028 features in float32 and 10 classes"):
        kernels.options("softmax_rows", "float32", d=1028, k=10)
