"""Products of dense, CSR and renumbered CSR batches equal those of SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend
from daskml_dist.backends.devices import stored_dtype
from tests.backends.batches import (
    CONTAINERS,
    DTYPES,
    ROWS,
    WIDTH,
    N,
    P,
    draw_floats,
    make_rows,
    rounding,
)


@DTYPES
@WIDTH
@pytest.mark.parametrize("rows", list(ROWS))
@CONTAINERS
def test_products(backend: Backend, container: Any, rows: str, width: int, dtype: Any) -> None:
    X = make_rows(dtype)
    batch = backend.rows(backend.to_device(container(X)), ROWS[rows])
    dense = X[ROWS[rows]]
    assert batch.shape == dense.shape
    w = draw_floats(P, width, dtype=dtype)
    raw = backend.to_numpy(backend.dot(batch, backend.to_device(w)))
    expected = dense @ w
    assert raw.dtype == dtype
    assert raw.shape == (expected[:, 0] if width == 1 else expected).shape
    tolerance = {"rtol": rounding(dtype), "atol": rounding(dtype)}
    np.testing.assert_allclose(raw.reshape(-1, width), expected, **tolerance)

    g, start = draw_floats(len(dense), width, dtype=dtype), draw_floats(P, width, dtype=dtype)
    out = backend.to_device(start.copy())
    backend.add_tdot(batch, backend.to_device(g[:, 0] if width == 1 else g), out)
    found = backend.to_numpy(out)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, start + dense.T @ g, **tolerance)


@DTYPES
@WIDTH
@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csr_matrix])
def test_products_at_touched_columns(
    backend: Backend, container: Any, width: int, dtype: Any
) -> None:
    """Pieces renumbered to the union of their columns, as a batch of coordinates."""
    X = make_rows(dtype)
    block = backend.to_device(container(X))
    chosen = [np.array([5, 0, 29]), np.array([4]), np.array([12, 13, 5])]
    pieces = [backend.rows(block, rows) for rows in chosen]
    columns = backend.columns(pieces)
    union = np.flatnonzero(np.any(X[np.concatenate(chosen)] != 0, axis=0))
    np.testing.assert_array_equal(columns, union)
    assert columns.dtype == np.int64
    w, total, expected = draw_floats(P, width, dtype=dtype), 0, np.zeros((P, width))
    out = backend.to_device(np.zeros((len(columns), width), dtype))
    for piece, rows in zip(pieces, chosen, strict=True):
        raw = backend.to_numpy(backend.dot(piece, backend.to_device(w[columns])))
        total += len(raw)
        np.testing.assert_allclose(
            raw.reshape(-1, width), X[rows] @ w, rtol=rounding(dtype), atol=rounding(dtype)
        )
        g = draw_floats(len(rows), width, dtype=dtype)
        backend.add_tdot(piece, backend.to_device(g[:, 0] if width == 1 else g), out)
        expected += X[rows].T @ g
    assert total == 7
    np.testing.assert_allclose(
        backend.to_numpy(out), expected[columns], rtol=rounding(dtype), atol=rounding(dtype)
    )


@pytest.mark.parametrize("chosen", ROWS)
@WIDTH
def test_rows_stored_in_half_precision(
    backend: Backend, stored: str, width: int, chosen: str
) -> None:
    """They are copied and gathered in the stored dtype, and computed in float32."""
    if backend.device == "cpu":
        pytest.skip("stores float32")
    rng, at = np.random.default_rng(0), ROWS[chosen]
    X = rng.normal(size=(N, 3)).astype(stored_dtype(stored))
    w, g = (rng.normal(size=(n, width)).astype(np.float32) for n in (3, len(X[at])))
    g = g[:, 0] if width == 1 else g
    weight = np.abs(rng.normal(size=len(g))).astype(np.float32)
    rows, exact = backend.rows(backend.to_device(X), at), X[at].astype(np.float64)
    assert rows.dtype == X.dtype
    device_arrays = [
        backend.to_device(a) for a in (w, g, weight, np.zeros((3, width)), np.zeros((3, 3)))
    ]
    backend.add_tdot(rows, device_arrays[1], device_arrays[3])
    backend.add_gram(rows, device_arrays[2], device_arrays[4])
    found = [backend.to_numpy(a) for a in (backend.dot(rows, device_arrays[0]), *device_arrays[3:])]
    expected = [exact @ w, exact.T @ g, exact.T * weight @ exact]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b.reshape(a.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_indices_of_both_widths(backend: Backend, index_dtype: Any) -> None:
    X = sparse.csr_array(make_rows())
    X.indices, X.indptr = X.indices.astype(index_dtype), X.indptr.astype(index_dtype)
    batch = backend.rows(backend.to_device(X), np.array([1, 9]))
    raw = backend.to_numpy(backend.dot(batch, backend.to_device(draw_floats(P, 1))))
    np.testing.assert_allclose(
        raw, (make_rows()[[1, 9]] @ draw_floats(P, 1))[:, 0], rtol=1e-12, atol=1e-15
    )


def _unaligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy at an odd address, as data received over a network may have."""
    buffer = np.empty(array.nbytes + 1, np.uint8)[1:]
    shifted = buffer.view(array.dtype).reshape(array.shape)
    shifted[...] = array
    return shifted


def test_unaligned_blocks(backend: Backend) -> None:
    X = make_rows()
    dense = _unaligned(X)
    assert not dense.flags.aligned
    np.testing.assert_array_equal(backend.to_numpy(backend.to_device(dense)), X)
    csr = sparse.csr_array(X)
    parts = (_unaligned(csr.data), _unaligned(csr.indices), _unaligned(csr.indptr))
    batch = backend.rows(
        backend.to_device(sparse.csr_array(parts, shape=csr.shape)), ROWS["gathered"]
    )
    raw = backend.to_numpy(backend.dot(batch, backend.to_device(draw_floats(P, 1))))
    expected = (X[ROWS["gathered"]] @ draw_floats(P, 1))[:, 0]
    np.testing.assert_allclose(raw, expected, rtol=1e-12, atol=1e-15)
