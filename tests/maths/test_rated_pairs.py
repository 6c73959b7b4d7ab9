"""`RatedPairs`: gradients by finite differences, few rows and all, and steps as plain NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskml_dist.backends import Backend, get_backend
from daskml_dist.data.batches import LaneRows, LaneSpec, Segment
from daskml_dist.losses import LOSSES, Huber, Loss
from daskml_dist.models import BatchRows, distinct
from daskml_dist.models.rated_pairs import RatedPairs
from daskml_dist.parameters.checks import seed_of
from daskml_dist.recommender import MatrixFactorization
from tests.quick import quick

N_USERS, N_ITEMS, RANK, N_ROWS = 30, 20, 3, 200


def pairs_of(rng: Any, loss: Loss, weighted: bool) -> BatchRows:
    X = np.stack([rng.integers(0, 12, N_ROWS), N_USERS + rng.integers(0, 9, N_ROWS)], axis=1)
    y = rng.integers(1, 6, N_ROWS).astype(float)
    if loss.kind == "classification":
        y = np.where(y > 2, 1.0, -1.0)
    return BatchRows(X, y, rng.random(N_ROWS) if weighted else None)


class _Plain(Huber):
    """A loss that numba is not given."""

    evaluate_row = None


EVERY: dict[str, Loss] = {**{name: kind() for name, kind in LOSSES.items()}, "plain": _Plain()}


@pytest.mark.parametrize("kind", quick(["weighted", "plain rows", "factors alone"], "weighted"))
@pytest.mark.parametrize("loss", quick(EVERY, "squared_error", "plain"))
def test_gradient_is_that_of_finite_differences(loss: str, kind: str) -> None:
    check_gradient(EVERY[loss], kind == "weighted", kind != "factors alone")


def check_gradient(loss: Loss, weighted: bool, biased: bool) -> None:
    rng, backend, h = np.random.default_rng(0), get_backend("cpu"), 1e-6
    model = RatedPairs(N_USERS, N_ITEMS, RANK, loss, 0.3, biased, 0.2)
    rows = pairs_of(rng, loss, weighted)
    w = rng.normal(size=model.parameters.shape)
    out = np.zeros_like(w)
    found = model.add_gradient(w, rows, out, backend)

    def objective(w: Any) -> float:
        u, v = w[rows.X[:, 0]], w[rows.X[:, 1]]
        raw = 0.2 + (u[:, :RANK] * v[:, :RANK]).sum(axis=1)
        raw += u[:, RANK:].sum(axis=1) + v[:, RANK:].sum(axis=1)
        weight = np.ones(N_ROWS) if rows.weight is None else rows.weight
        penalty = 0.15 * ((u**2).sum(axis=1) + (v**2).sum(axis=1))
        return float(weight @ (loss.value(rows.y, raw) + penalty))

    without = RatedPairs(N_USERS, N_ITEMS, RANK, loss, 0.0, biased, 0.2)
    assert found == pytest.approx(without.add_gradient(w, rows, np.zeros_like(w), backend))
    for at in rng.choice(w.size, 20, replace=False):
        step = np.zeros(w.size)
        step[at] = h
        step = step.reshape(w.shape)
        slope = (objective(w + step) - objective(w - step)) / (2 * h)
        assert out.flat[at] == pytest.approx(slope, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("pairwise", [True, False])
def test_gradient_with_drawn_items(pairwise: bool) -> None:
    rng, backend, h, loss = np.random.default_rng(0), get_backend("cpu"), 1e-6, LOSSES["log_loss"]()
    model = RatedPairs(N_USERS, N_ITEMS, RANK, loss, 0.3, True, 0.0, 2, pairwise)
    rows = pairs_of(rng, loss, weighted=True)
    rows.y, pairs = np.ones(N_ROWS), rows.X
    w = rng.normal(size=model.parameters.shape)
    out = np.zeros_like(w)
    found = model.add_gradient(w, rows, out, backend)
    drawn = rows.draw().integers(N_ITEMS, size=(N_ROWS, 2)) + N_USERS

    def objective(w: Any) -> float:
        u, v = w[pairs[:, 0]], w[pairs[:, 1]]

        def raw(v: Any) -> Any:
            return (u[:, :RANK] * v[:, :RANK]).sum(axis=1) + u[:, RANK] + v[:, RANK]

        total, one = np.zeros(N_ROWS), np.ones(N_ROWS)
        squares = [(rows_**2).sum(axis=1) for rows_ in (u, v)]
        if not pairwise:
            total += loss.value(one, raw(v)) + 0.15 * sum(squares)
        for other in drawn.T:
            o = w[other]
            square = 0.15 * (o**2).sum(axis=1)
            if pairwise:
                total += loss.value(one, raw(v) - raw(o)) + 0.15 * sum(squares) + square
            else:
                total += loss.value(-one, raw(o)) + 0.15 * squares[0] + square
        return float(rows.weight @ total)

    for at in rng.choice(w.size, 20, replace=False):
        step = np.zeros(w.size)
        step[at] = h
        step = step.reshape(w.shape)
        slope = (objective(w + step) - objective(w - step)) / (2 * h)
        assert out.flat[at] == pytest.approx(slope, rel=1e-5, abs=1e-5)
    # Of few rows alone, the same are drawn.
    index = model.touched([rows], backend)
    few = np.zeros((len(index), RANK + 1))
    assert model.add_gradient(w[index], rows, few, backend) == pytest.approx(found)
    np.testing.assert_allclose(few, out[index], rtol=1e-12)
    assert set(index) == set(pairs.ravel()) | set(drawn.ravel())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", ["squared_error", "plain"])
def test_few_rows_are_a_part_of_all(backend: Backend, loss: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    model = RatedPairs(N_USERS, N_ITEMS, RANK, EVERY[loss], 0.3)
    w = rng.normal(size=model.parameters.shape).astype(dtype)
    all_pairs = pairs_of(rng, model.loss, weighted=True)
    pieces, at = [], 0
    for n in (150, 0, 50):
        X, y, weight = (a[at : at + n] for a in (all_pairs.X, all_pairs.y, all_pairs.weight))
        put = backend.to_device
        pieces.append(BatchRows(put(X), put(y.astype(dtype)), put(weight.astype(dtype))))
        at += n
    whole = backend.to_device(np.zeros_like(w))
    losses = [float(model.add_gradient(backend.to_device(w), p, whole, backend)) for p in pieces]
    index = model.touched(pieces, backend)
    np.testing.assert_array_equal(index, np.unique(all_pairs.X))
    few = backend.to_device(np.zeros((len(index), w.shape[1]), dtype))
    some = backend.to_device(w[index])
    again = [float(model.add_gradient(some, p, few, backend)) for p in pieces]
    expected = np.zeros_like(w)
    expected[index] = backend.to_numpy(few)
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(backend.to_numpy(whole), expected, rtol=tolerance, atol=tolerance)
    assert again == pytest.approx(losses, rel=tolerance)


def test_distinct_numbers() -> None:
    rng = np.random.default_rng(0)
    for largest in (5, 2**20, 2**45):  # beyond what is sorted with its place
        some = [rng.integers(0, largest, shape) for shape in ((4, 3), (0, 2), (7,))]
        index, places = distinct(some)
        np.testing.assert_array_equal(index, np.unique(np.concatenate([s.ravel() for s in some])))
        assert index.dtype == np.int64
        for numbers, place in zip(some, places, strict=True):
            np.testing.assert_array_equal(index[place], numbers)
    index, (place,) = distinct([np.empty(0, np.int32)])
    assert (index.shape, place.shape) == ((0,), (0,))


def test_any_process_makes_its_own_first_factors() -> None:
    model = RatedPairs(3000, 2000, 10, LOSSES["squared_error"](), 0.1)
    w = model.init(7, np.float32)
    for at in (slice(0, 17), slice(2990, 3020), slice(3500, None)):
        np.testing.assert_array_equal(model.init_rows(at, 7, np.float32), w[at])
    factors = w[:, :10]
    assert factors.std() == pytest.approx(0.1 / np.sqrt(10), rel=0.02)
    assert abs(factors.mean()) < 0.001 > abs(np.mean(factors[:2000] * factors[3000:]))
    assert len(np.unique(factors)) > 0.99 * factors.size
    assert not w[:, 10].any()
    assert (model.init(8, np.float32) != w).mean() > 0.9
    # An item keeps its first factors where there are more users.
    more = RatedPairs(3001, 2000, 10, LOSSES["squared_error"](), 0.1)
    np.testing.assert_array_equal(more.init(7, np.float32)[3001:], w[3000:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_lane_makes_the_steps_of_plain_numpy(dtype: str) -> None:
    rng = np.random.default_rng(0)
    n, n_users, n_items, batch, passes = 4000, 3000, 800, 64, 2
    frame = pd.DataFrame(
        {"user": rng.integers(0, n_users, n), "item": rng.integers(0, n_items, n), "rating": 0.0}
    )
    frame["rating"] = rng.integers(1, 6, n).astype(float)
    model = MatrixFactorization(
        4, reg_param=0.1, learning_rate=0.1, max_iter=passes, batch_size=batch, dtype=dtype,
        random_state=3,
    ).fit(frame)  # fmt: skip
    users, u = np.unique(frame["user"], return_inverse=True)
    items, i = np.unique(frame["item"], return_inverse=True)
    i = i + len(users)
    assert len(users) + len(items) > 2048  # few of many are touched
    seed = seed_of(3)
    w = RatedPairs(len(users), len(items), 4, LOSSES["squared_error"](), 0.1).init(seed, dtype)
    w, squares = w.astype(np.float64), np.zeros(w.shape)
    y, mean = frame["rating"].to_numpy(), frame["rating"].mean()
    n_steps = -(-n // batch)
    drawn = LaneRows(LaneSpec(0, (Segment(0, 0, n),)), n_steps, seed, True)
    for number in range(1, passes + 1):
        for ((_, at),) in drawn.batches(number):
            p, q = w[u[at]], w[i[at]]
            error = mean + (p[:, :4] * q[:, :4]).sum(1) + p[:, 4] + q[:, 4] - y[at]
            of_p, of_q = q.copy(), p.copy()
            of_p[:, 4] = of_q[:, 4] = 1
            gradient = np.zeros_like(w)
            np.add.at(gradient, u[at], error[:, None] * of_p + 0.1 * p)
            np.add.at(gradient, i[at], error[:, None] * of_q + 0.1 * q)
            gradient /= len(at)
            squares += gradient**2
            w -= 0.1 * gradient / (np.sqrt(squares) + 1e-10)
    found = np.hstack([model.user_factors_, model.user_biases_[:, None]])
    others = np.hstack([model.item_factors_, model.item_biases_[:, None]])
    # Adagrad's first step is the gradient's sign.
    tolerance = 1e-10 if dtype == "float64" else 2e-4
    np.testing.assert_allclose(np.vstack([found, others]), w, rtol=tolerance, atol=tolerance)
