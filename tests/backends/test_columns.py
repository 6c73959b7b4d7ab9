"""Batches renumbered to the columns that they touch."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from daskml_dist.backends import Backend
from daskml_dist.backends.cupy_backend import CupyRows
from daskml_dist.errors import InvalidDataError
from tests.backends.batches import N, P, draw_floats, make_rows
from tests.cuda_emulation import EmulatedCupy


def test_batches_may_be_prepared_before_they_are_used(backend: Backend) -> None:
    """Two batches of blocks with different widths are prepared in advance and used in turn."""
    blocks = [make_rows(), np.c_[make_rows(), make_rows()]]
    batches = []
    for X in blocks:
        piece = backend.rows(backend.to_device(sparse.csr_array(X)), np.array([1, 2, 3]))
        batches.append((X, piece, backend.columns([piece])))
    for X, piece, columns in batches * 2 + batches[::-1]:
        w = draw_floats(X.shape[1], 2)
        raw = backend.to_numpy(backend.dot(piece, backend.to_device(w[columns])))
        np.testing.assert_allclose(raw, X[1:4] @ w, rtol=1e-12, atol=1e-12)


def test_wider_block_after_use_of_a_narrow_one(backend: Backend) -> None:
    X = make_rows()
    piece = backend.rows(backend.to_device(sparse.csr_array(X)), np.array([1, 2, 3]))
    columns = backend.columns([piece])
    w = draw_floats(P, 2)
    device_w = backend.to_device(w[columns])
    backend.dot(piece, device_w)
    wide = backend.to_device(sparse.csr_array(([1.0], ([0], [900_000])), shape=(1, 1_000_000)))
    np.testing.assert_array_equal(backend.columns([backend.rows(wide, slice(0, 1))]), [900_000])
    raw = backend.to_numpy(backend.dot(piece, device_w))
    np.testing.assert_allclose(raw, X[1:4] @ w, rtol=1e-12, atol=1e-12)


def test_columns_of_the_same_rows_are_reused(backend: Backend) -> None:
    block = backend.to_device(sparse.csr_array(make_rows()))
    for _ in range(3):
        columns = backend.columns([backend.rows(block, np.array([1, 2, 3]))])
        np.testing.assert_array_equal(
            columns, np.flatnonzero(np.any(make_rows()[1:4] != 0, axis=0))
        )


def test_columns_of_rows_without_entries(backend: Backend) -> None:
    piece = backend.rows(backend.to_device(sparse.csr_array(make_rows())), np.array([4, 7]))
    assert len(backend.columns([piece])) == 0
    raw = backend.to_numpy(backend.dot(piece, backend.to_device(np.empty((0, 1)))))
    np.testing.assert_array_equal(raw, [0, 0])


def test_columns_beyond_32_bits_are_refused() -> None:
    X = sparse.csr_array(([1.0], ([0], [2**31])), shape=(1, 2**31 + 1))
    with pytest.raises(InvalidDataError, match=r"2,147,483,649 columns.*hash.*device=\"cpu\""):
        EmulatedCupy().to_device(X)
    X = sparse.csr_array(([1.0], ([0], [2**31 - 2])), shape=(1, 2**31 - 1))
    assert EmulatedCupy().to_device(X).indices.tolist() == [2**31 - 2]


def test_new_entries_at_the_same_positions_are_not_checked_again() -> None:
    """Checking whether rows are canonical waits for the device, and the result is known."""
    backend = EmulatedCupy()
    for known in (True, False):
        X = sparse.csr_matrix(make_rows())
        X.has_canonical_format = known  # a check would find True
        rows = CupyRows(X)
        doubled = rows.with_values(2 * rows.values)
        np.testing.assert_array_equal(doubled.toarray(), 2 * make_rows())
        weighted = backend._scale_csr_rows(X, np.arange(N))
        np.testing.assert_array_equal(weighted.toarray(), np.arange(N)[:, None] * make_rows())
        columns = backend.columns([rows])
        np.testing.assert_array_equal(rows.toarray(), make_rows()[:, columns])
        found = [each.has_canonical_format for each in (doubled.X, weighted, rows.X)]
        assert found == [known] * 3
        np.testing.assert_array_equal(X.toarray(), make_rows())
