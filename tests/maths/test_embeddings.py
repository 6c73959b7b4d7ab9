"""Models over ids: gradients by finite differences, predictions by the formulas written plainly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from daskml_dist.backends import embedding_kernels
from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.id_hashing import ID_BITS, field_ids, mix_ids
from daskml_dist.losses import get_loss
from daskml_dist.models.base import BatchRows, GrowingTable
from daskml_dist.models.embeddings import INTERCEPT_ID, MAX_FIELDS, EmbeddingModel, to_id_rows
from daskml_dist.models.field_aware import make_field_aware
from tests.maths.differences import assert_is_gradient

BACKEND = get_backend("cpu")
N_ROWS, N_FIELDS, RANK = 12, 4, 3
#: Terms of the models: a factorisation machine, wide and deep, DeepFM.
TERMS: list[dict[str, Any]] = [
    {"pairs": True},
    {"pairs": False, "hidden": (5,), "n_fields": N_FIELDS, "activation": "tanh"},
    {"pairs": True, "hidden": (5, 4), "n_fields": N_FIELDS, "activation": "tanh"},
]


def _model(**terms: Any) -> EmbeddingModel:
    table = GrowingTable((0.0, *[0.1] * RANK), seed=3)
    return EmbeddingModel(get_loss("log_loss", "classification"), RANK, 0.0, table, 0.25, **terms)


def _rows(seed: int = 0) -> tuple[Any, Any]:
    """Rows whose columns are fields, some of them empty."""
    rng = np.random.default_rng(seed)
    X = sparse.csr_array(rng.normal(size=(N_ROWS, N_FIELDS)) * (rng.random((N_ROWS, 4)) < 0.8))
    return X, np.where(rng.random(N_ROWS) < 0.5, 1.0, -1.0)


def _touch(model: EmbeddingModel, X: Any, y: Any, weight: Any = None) -> tuple[Any, BatchRows]:
    piece = BatchRows(model.prepare(X, np.float64), y, weight)
    return model.touched([piece], BACKEND), piece


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("terms", TERMS)
def test_gradients_are_those_of_finite_differences(terms: dict[str, Any], weighted: bool) -> None:
    model, (X, y), rng = _model(**terms), _rows(), np.random.default_rng(1)
    weight = rng.uniform(0.5, 2, N_ROWS) if weighted else None
    index, piece = _touch(model, X, y, weight)
    w = rng.normal(size=(len(index), 1 + RANK)) * 0.5
    assert_is_gradient(model, w, piece)


def test_pairs_are_all_products_of_two_vectors() -> None:
    model, (X, y), rng = _model(pairs=True), _rows(), np.random.default_rng(1)
    index, piece = _touch(model, X, y)
    w = rng.normal(size=(len(index), 1 + RANK))
    ids = np.concatenate([field_ids(np.zeros(1, np.int64), field) for field in range(N_FIELDS)])
    w_of_ids = w[np.searchsorted(index, ids)]
    dense, expected = X.toarray(), np.full(N_ROWS, 0.25 + w[-1, 0])
    expected += dense @ w_of_ids[:, 0]
    for i in range(N_FIELDS):
        for j in range(i):
            expected += dense[:, i] * dense[:, j] * (w_of_ids[i, 1:] @ w_of_ids[j, 1:])
    np.testing.assert_allclose(model.predict(w, piece.X, BACKEND), expected, rtol=1e-12)


def test_the_penalty_covers_only_touched_rows() -> None:
    X, y = _rows()
    plain, penalised = _model(), replace(_model(), alpha=0.5)
    index, piece = _touch(plain, X, y)
    w = np.random.default_rng(1).normal(size=(len(index), 1 + RANK))
    found = []
    for model in (plain, penalised):
        out = np.zeros_like(w)
        model.add_gradient(w, piece, out, BACKEND)
        found.append(out)
    n_touched = np.bincount(piece.X.positions, minlength=len(index))[:, None]
    np.testing.assert_allclose(found[1] - found[0], 0.5 * n_touched * w, atol=1e-12)


def test_chosen_rows_of_a_block_are_those_rows() -> None:
    model, (X, y) = _model(), _rows()
    chosen = np.array([7, 2, 2])
    index, piece = _touch(model, X[chosen], y[chosen])
    block = model.prepare(X, np.float64)
    other = BatchRows(BACKEND.rows(block, BACKEND.row_numbers(chosen)), y[chosen])
    np.testing.assert_array_equal(model.touched([other], BACKEND), index)
    for name in ("indptr", "positions", "data", "field"):
        np.testing.assert_array_equal(getattr(other.X, name), getattr(piece.X, name))


def test_no_two_ids_of_a_field_become_one() -> None:
    """The mix of ids is a permutation: of few bits it would reach each number once."""
    ids = np.r_[np.arange(200_000), (1 << ID_BITS) - 1 - np.arange(200_000)]
    mixed = mix_ids(ids)
    assert len(np.unique(mixed)) == len(ids)
    assert mixed.max() < 1 << ID_BITS
    # Spread over the servers, which hold ranges of ids.
    shares = np.bincount((field_ids(ids, 5) >> (ID_BITS + 4)).astype(int), minlength=16)
    assert abs(shares / len(ids) - 1 / 16).max() < 0.005


def test_columns_become_ids() -> None:
    few = to_id_rows(np.array([[2.0, 0.0, 3.0]]), np.float32)
    assert (few.indices & 255).tolist() == [0, 2]  # fields
    many = to_id_rows(sparse.csr_array((np.ones(2), ([0, 0], [7, 900])), (1, 1000)), np.float32)
    np.testing.assert_array_equal(many.indices, field_ids(np.array([7, 900]), 0))
    again = to_id_rows(many, np.float64)
    np.testing.assert_array_equal(again.indices, many.indices)
    assert many.indices.max() < INTERCEPT_ID
    assert MAX_FIELDS == 255


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_all_ranks_around_whole_vectors(dtype: str) -> None:
    """Predictions, gradients and pooled vectors, beside sums in float64."""
    for rank in (1, 7, 8, 9, 15, 16, 17, 31, 33):
        rng = np.random.default_rng(rank)
        lengths = rng.integers(0, 6, 9)
        indptr, n = np.r_[0, np.cumsum(lengths)], int(lengths.sum())
        place, field = rng.integers(0, 7, n), rng.integers(0, 3, n).astype(np.uint8)
        data, w = rng.normal(size=n).astype(dtype), rng.normal(size=(8, 1 + rank)).astype(dtype)
        slope, weight = rng.normal(size=(2, 9)).astype(dtype)
        raw, sums = np.empty(9, dtype), np.zeros((9, rank), dtype)
        embedding_kernels.predict_rows(indptr, place, data, w, True, raw, sums)
        out, pooled = np.zeros_like(w), np.zeros((9, 3, rank), dtype)
        embedding_kernels.add_row_gradients(
            indptr, place, data, w, True, sums, slope, weight, 0.5, 0.3, out
        )
        embedding_kernels.pool_fields(indptr, place, field, data, w, pooled)
        through = np.zeros_like(w)
        embedding_kernels.add_pooled_gradients(indptr, place, field, data, pooled, through)
        W, rows = w.astype(float), np.repeat(np.arange(9), lengths)
        parts = data[:, None] * W[place, 1:]
        total = np.zeros((9, rank))
        np.add.at(total, rows, parts)
        expected = W[-1, 0] + np.bincount(rows, data * W[place, 0], 9)
        expected += 0.5 * ((total**2).sum(axis=1) - np.bincount(rows, (parts**2).sum(axis=1), 9))
        gx, alpha = (slope[rows] * data)[:, None], np.r_[0.5, np.full(rank, 0.3)]
        each = np.c_[gx, gx * (total[rows] - parts)] + weight[rows, None] * alpha * W[place]
        by_row, by_field, back = np.zeros((8, 1 + rank)), np.zeros((9, 3, rank)), np.zeros_like(W)
        np.add.at(by_row, place, each)
        by_row[-1, 0] += slope.sum()
        np.add.at(by_field, (rows, field), parts)
        np.add.at(back[:, 1:], place, data[:, None] * by_field[rows, field])
        for found, truth in ((raw, expected), (out, by_row), (pooled, by_field), (through, back)):
            rtol = 2e-5 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(found, truth, rtol, rtol * np.abs(truth).max() + 1e-300)


# -- field-aware ---------------------------------------------------------------------------------


def _field_aware() -> EmbeddingModel:
    return make_field_aware(_model(pairs=False), N_FIELDS)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_field_aware_pairs(weighted: bool) -> None:
    model, (X, y), rng = replace(_field_aware(), alpha=0.0), _rows(), np.random.default_rng(1)
    weight = rng.uniform(0.5, 2, N_ROWS) if weighted else None
    index, piece = _touch(model, X, y, weight)
    w = rng.normal(size=(len(index), 1 + RANK * N_FIELDS)) * 0.5
    assert_is_gradient(model, w, piece)


def test_each_id_has_a_vector_for_the_others_field() -> None:
    """Against Juan et al. 2016, equation 4, written plainly."""
    model, (X, y), rng = _field_aware(), _rows(), np.random.default_rng(1)
    index, piece = _touch(model, X, y)
    w = rng.normal(size=(len(index), 1 + RANK * N_FIELDS))
    ids = np.concatenate([field_ids(np.zeros(1, np.int64), field) for field in range(N_FIELDS)])
    w_of_ids = w[np.searchsorted(index, ids)]
    vectors = w_of_ids[:, 1:].reshape(N_FIELDS, N_FIELDS, RANK)
    dense, expected = X.toarray(), np.full(N_ROWS, 0.25 + w[-1, 0])
    expected += dense @ w_of_ids[:, 0]
    for i in range(N_FIELDS):
        for j in range(i):
            expected += dense[:, i] * dense[:, j] * (vectors[i, j] @ vectors[j, i])
    np.testing.assert_allclose(model.predict(w, piece.X, BACKEND), expected, rtol=1e-12)
    penalised, outs = replace(model, alpha=0.5), np.zeros((2, *w.shape))
    for one, out in zip((model, penalised), outs, strict=True):
        one.add_gradient(w, piece, out, BACKEND)
    n_touched = np.bincount(piece.X.positions, minlength=len(index))[:, None]
    np.testing.assert_allclose(outs[1] - outs[0], 0.5 * n_touched * w, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_field_pairs_of_all_ranks_around_whole_vectors(dtype: str) -> None:
    """Predictions and gradients beside loops of NumPy in float64."""
    for rank in (1, 3, 4, 7, 8, 9, 15, 16, 17, 33):
        rng = np.random.default_rng(rank)
        lengths = rng.integers(0, 5, 9)
        indptr, n = np.r_[0, np.cumsum(lengths)], int(lengths.sum())
        place, field = rng.integers(0, 7, n), rng.integers(0, 3, n).astype(np.uint8)
        data = rng.normal(size=n).astype(dtype)
        w = rng.normal(size=(8, 1 + 3 * rank)).astype(dtype)
        slope, weight = rng.normal(size=(2, 9)).astype(dtype)
        raw, out = np.empty(9, dtype), np.zeros_like(w)
        embedding_kernels.predict_field_pairs(indptr, place, field, data, w, rank, raw)
        embedding_kernels.add_field_pair_gradients(
            indptr, place, field, data, w, rank, slope, weight, 0.5, out
        )
        W, truth, back = w.astype(float), np.full(9, float(w[-1, 0])), np.zeros(w.shape)
        V, by_vector = W[:, 1:].reshape(8, 3, rank), back[:, 1:].reshape(8, 3, rank)
        back[-1, 0] = slope.sum(dtype=float)
        for i in range(9):
            for k in range(indptr[i], indptr[i + 1]):
                truth[i] += W[place[k], 0] * data[k]
                back[place[k]] += 0.5 * weight[i] * W[place[k]]
                back[place[k], 0] += slope[i] * data[k]
                for m in range(indptr[i], k):
                    vector, other, x = (
                        V[place[k], field[m]],
                        V[place[m], field[k]],
                        data[k] * data[m],
                    )
                    truth[i] += vector @ other * x
                    by_vector[place[k], field[m]] += slope[i] * x * other
                    by_vector[place[m], field[k]] += slope[i] * x * vector
        for found, expected in ((raw, truth), (out, back)):
            rtol = 2e-5 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(
                found, expected, rtol, rtol * np.abs(expected).max() + 1e-300
            )
