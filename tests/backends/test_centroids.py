"""Nearest centroids and the sums of their rows on each backend, compared with the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from daskml_dist.backends import Backend, centroid_kernels, get_backend
from daskml_dist.backends.host_memory import Scratch

# The last has rows for compiled loops, and a remainder.
COMPILED = (3001, 30, 20)
SHAPES = [(50, 3, 2), (300, 5, 1), COMPILED]


def _definition(X: Any, centroids: Any, weight: Any) -> tuple[Any, Any, Any]:
    squares = ((X[:, None].astype(np.float64) - centroids) ** 2).sum(axis=2)
    labels = squares.argmin(axis=1)
    member = (labels[:, None] == np.arange(len(centroids))) * weight[:, None]
    return labels, squares.min(axis=1), np.hstack([member.sum(axis=0)[:, None], member.T @ X])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_dense(n: int, d: int, k: int, dtype: str, weighted: bool, backend: Backend) -> None:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(n, d)) + 50).astype(dtype)
    shift = X.mean(axis=0)
    centroids = X[:k] - shift
    if (n, d, k) != COMPILED:
        centroids[-1] = centroids[0]  # the first one counts; BLAS may round them differently
    scale = rng.random(n).astype(dtype) if weighted else np.ones(n, dtype)
    labels, squares, sums = _definition(X - shift, centroids, scale)
    X, shift, centroids, device_sums = (
        _put(backend, a) for a in (X, shift, centroids, np.zeros((k, 1 + d)))
    )
    weight = _put(backend, scale) if weighted else None
    inertia = backend.assign(X, shift, centroids, weight, device_sums)
    rtol = 1e-4 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(backend.to_numpy(device_sums), sums, rtol, atol=rtol * n)
    assert float(inertia) == pytest.approx(float(squares @ scale), rel=rtol)
    found, apart = (backend.to_numpy(array) for array in backend.nearest(X, shift, centroids))
    np.testing.assert_array_equal(found, labels)
    np.testing.assert_allclose(apart, squares, rtol, atol=10 * rtol)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse(dtype: str, backend: Backend) -> None:
    X = sparse.random(200, 30, 0.3, format="csr", dtype=dtype, random_state=0)
    centroids = X[:4].toarray() + np.asarray(0.1, dtype)
    labels, squares, sums = _definition(X.toarray(), centroids, np.ones(200))
    rows = backend.rows(_put(backend, X), slice(0, 200))
    device_sums = _put(backend, np.zeros((4, 31)))
    inertia = backend.assign(rows, None, _put(backend, centroids), None, device_sums)
    np.testing.assert_allclose(backend.to_numpy(device_sums), sums, 1e-4, atol=1e-5)
    assert float(inertia) == pytest.approx(squares.sum(), rel=1e-4)
    found, apart = backend.nearest(rows, None, _put(backend, centroids))
    np.testing.assert_array_equal(backend.to_numpy(found), labels)
    np.testing.assert_allclose(backend.to_numpy(apart), squares, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remembered_distance_bounds_change_no_bit(dtype: str) -> None:
    """Also after many moves, with equal centroids and centroids without rows."""
    rng = np.random.default_rng(0)
    n, d, k = 9000, 13, 12
    X = (rng.normal(size=(n, d)) + 5 * rng.normal(size=(9, d))[rng.integers(0, 9, n)]).astype(dtype)
    shift, centroids, before = np.zeros(d, dtype), X[:k].copy(), None
    centroids[5], centroids[7] = centroids[4], 100
    backend = get_backend("cpu")
    bounds = backend.row_bounds(X, shift, k)
    for _ in range(12):
        plain, known = np.zeros((k, 1 + d)), np.zeros((k, 1 + d))
        inertia = backend.assign(X, shift, centroids, None, plain)
        assert backend.assign(X, shift, centroids, None, known, bounds, before) == inertia
        np.testing.assert_array_equal(known, plain)
        labels, _, _ = _definition(X, centroids, np.ones(n))
        np.testing.assert_array_equal(bounds[:, 0], labels)
        before = centroids
        counts = plain[:, :1]
        means = plain[:, 1:] / np.maximum(counts, 1)
        centroids = np.where(counts > 0, means, centroids).astype(dtype)


def test_rows_at_any_byte_and_rows_that_are_not_finite() -> None:
    X = np.random.default_rng(0).normal(size=(500, 7))
    unaligned = np.empty(X.nbytes + 1, np.uint8)[1:].view(np.float64).reshape(X.shape)
    unaligned[...] = X
    sums = [np.zeros((3, 8)) for _ in range(3)]
    shift = np.zeros(7)
    centroid_kernels.add_to_nearest(X, shift, X[:3], None, sums[0], Scratch())
    centroid_kernels.add_to_nearest(unaligned, shift, X[:3], None, sums[1], Scratch())
    np.testing.assert_array_equal(sums[0], sums[1])
    X[77, 3] = np.nan
    inertia = centroid_kernels.add_to_nearest(X, shift, X[:3], None, sums[2], Scratch())
    assert np.isnan(inertia)
    assert np.isnan(sums[2]).any()


def _put(backend: Backend, array: Any) -> Any:
    """Return the array on the backend's device; the emulated one is on the host."""
    on_host = type(backend) is type(get_backend("cpu")) or type(backend).__name__ == "EmulatedCupy"
    return array if on_host else backend.to_device(array)
