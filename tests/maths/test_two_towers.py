"""Two towers: the loss written plainly, gradients by finite differences, rows of several pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from daskml_dist.backends.devices import get_backend
from daskml_dist.backends.id_hashing import field_ids
from daskml_dist.errors import InvalidDataError
from daskml_dist.losses import get_loss
from daskml_dist.models import two_towers
from daskml_dist.models.base import N_TABLE_IDS, BatchRows, GrowingTable
from daskml_dist.models.two_towers import TwoTowerModel, compute_softmax
from tests.maths.differences import assert_is_gradient

BACKEND = get_backend("cpu")
N_ROWS, RANK, N_FIELDS = 9, 3, (2, 2)


def _model(**terms: Any) -> TwoTowerModel:
    table = GrowingTable((0.0, *[0.1] * RANK), seed=3)
    loss = get_loss("squared_error", "regression")
    return TwoTowerModel(loss, RANK, N_FIELDS, 0.0, table, temperature=0.5, **terms)


def _rows(n: int = N_ROWS) -> tuple[Any, Any, Any]:
    """Rows of a user with an age, and of an item with a price; their log Q; the items."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(4, size=n), rng.integers(4, size=n)
    zero = np.zeros(n, np.int64)
    columns = [users, zero, items, zero]
    ids = np.stack([field_ids(column, at) for at, column in enumerate(columns)], axis=1)
    data = np.stack([np.ones(n), rng.normal(size=n), np.ones(n), rng.normal(size=n)], axis=1)
    X = sparse.csr_array((data.ravel(), ids.ravel(), np.arange(n + 1) * 4), shape=(n, N_TABLE_IDS))
    return X, np.log(np.bincount(items, minlength=4)[items] / n), items


def _touch(model: TwoTowerModel, *pieces: BatchRows) -> Any:
    return model.touched(list(pieces), BACKEND)


def _densify(X: Any, index: Any) -> Any:
    """Rows as an array of the touched columns."""
    at = np.searchsorted(index, X.indices)
    return sparse.csr_array((X.data, at, X.indptr), (X.shape[0], len(index))).toarray()


TERMS: list[dict[str, Any]] = [
    {"normalize": True}, {"normalize": False}, {"hidden": (4,), "activation": "tanh"},
]  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("terms", TERMS)
def test_gradients_are_those_of_finite_differences(terms: dict[str, Any], weighted: bool) -> None:
    model, (X, log_q, _), rng = _model(**terms), _rows(), np.random.default_rng(1)
    weight = rng.uniform(0.5, 2, N_ROWS) if weighted else None
    piece = BatchRows(X, log_q, weight)
    index = _touch(model, piece)
    w = rng.normal(size=(len(index), 1 + RANK))
    out = assert_is_gradient(model, w, piece, len(w) - 1)
    assert not out[-1].any()  # the intercept, which is no part of a softmax


def test_the_loss_is_a_softmax_corrected_by_frequencies() -> None:
    """Against loops over rows: the right item, and the others over their frequencies."""
    model, (X, log_q, items) = _model(), _rows()
    piece = BatchRows(X, log_q)
    index = _touch(model, piece)
    w = np.random.default_rng(1).normal(size=(len(index), 1 + RANK))
    found = model.add_gradient(w, piece, np.zeros_like(w), BACKEND)
    dense = _densify(X, index)
    of_user = np.isin(index & 255, [0, 1])
    users, towers = dense[:, of_user] @ w[of_user, 1:], dense[:, ~of_user] @ w[~of_user, 1:]
    users, towers = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (users, towers))
    biases = dense[:, ~of_user] @ w[~of_user, 0]
    expected = 0.0
    for i in range(N_ROWS):
        others = [j for j in range(N_ROWS) if j == i or items[j] != items[i]]
        logits = np.array([users[i] @ towers[j] / 0.5 + biases[j] for j in others])
        column = others.index(i)
        shares = np.exp(log_q[others]) * (N_ROWS - 1)
        shares[column] = 1
        expected += np.log((np.exp(logits) / shares).sum()) - logits[column]
    assert found == pytest.approx(expected, rel=1e-9)


def test_rows_of_all_pieces_are_each_others_negatives() -> None:
    model, (X, log_q, _) = _model(), _rows()
    whole, weight = BatchRows(X, log_q), np.arange(1.0, N_ROWS + 1)
    parts = [BatchRows(X[at], log_q[at]) for at in (slice(4), slice(4, None))]
    np.testing.assert_array_equal(_touch(model, whole), _touch(model, *parts))
    w = np.random.default_rng(1).normal(size=(len(_touch(model, BatchRows(X, log_q))), 1 + RANK))
    outs = np.zeros((2, *w.shape))
    loss = model.add_gradient(w, whole, outs[0], BACKEND)
    assert sum(model.add_gradient(w, part, outs[1], BACKEND) for part in parts) == loss
    np.testing.assert_array_equal(outs[0], outs[1])
    weighed = [BatchRows(X[at], log_q[at], weight[at]) for at in (slice(4), slice(4, None))]
    _touch(model, *weighed)
    np.testing.assert_array_equal(weighed[0].weight, weight)


def test_large_batches_are_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_towers, "MAX_GROUP_ROWS", 4)
    model, (X, log_q, _) = _model(), _rows()
    piece = BatchRows(X, log_q)
    index = _touch(model, piece)
    w = np.random.default_rng(1).normal(size=(len(index), 1 + RANK))
    found = model.add_gradient(w, piece, np.zeros_like(w), BACKEND)
    expected = 0.0
    for at in (slice(0, 4), slice(4, 8), slice(8, 9)):
        group_rows = BatchRows(X[at], log_q[at])
        of_all = np.searchsorted(index, _touch(model, group_rows))
        expected += model.add_gradient(w[of_all], group_rows, np.zeros_like(w[of_all]), BACKEND)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_penalty_covers_only_touched_rows() -> None:
    X, log_q, _ = _rows()
    outs = []
    for alpha in (0.0, 0.5):
        model, piece = replace(_model(), alpha=alpha), BatchRows(X, log_q)
        index = _touch(model, piece)
        w = np.random.default_rng(1).normal(size=(len(index), 1 + RANK))
        w[-1] = 0
        outs.append(np.zeros_like(w))
        model.add_gradient(w, piece, outs[-1], BACKEND)
    n_touched = (_densify(X, index) != 0).sum(axis=0)[:, None]
    np.testing.assert_allclose(outs[1] - outs[0], 0.5 * n_touched * w, atol=1e-12)


def test_one_row_has_no_negatives() -> None:
    loss, slope = compute_softmax(np.array([[3.0]]), np.array([-1.0]), np.array([7]), None)
    assert loss == 0.0
    assert slope.tolist() == [[0.0]]


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([[1e4, -1e4], [1e4, 0.0]], np.float32)
    loss, slope = compute_softmax(logits, np.zeros(2), np.array([1, 2]), None)
    assert loss == 1e4
    np.testing.assert_array_equal(slope, [[0, 0], [1, -1]])


def test_fields_beyond_the_model_are_refused() -> None:
    X, log_q, _ = _rows()
    with pytest.raises(InvalidDataError, match="columns of the fit"):
        _touch(replace(_model(), n_fields=(2, 1)), BatchRows(X, log_q))
