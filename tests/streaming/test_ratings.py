"""Streams of ratings, in which users and items arrive over time."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.recommender import MatrixFactorization, _stream_steps
from daskml_dist.training.checkpoint import Checkpoint

_RNG = np.random.default_rng(0)
_USERS, _ITEMS = np.divmod(np.arange(24 * 10), 10)
_WHOLE = pd.DataFrame({
    "user": _USERS,
    "item": np.char.add("i", _ITEMS.astype(str)).astype(object),
    "rating": (_RNG.normal(size=(24, 2)) @ _RNG.normal(size=(2, 10))).ravel() + 3,
})  # fmt: skip


def _made(**params: Any) -> MatrixFactorization:
    return MatrixFactorization(**{"rank": 3, "random_state": 0, "shuffle": False} | params)


def _growing_calls(n_calls: int = 6) -> list[pd.DataFrame]:
    """Return calls with a growing range of users and items."""
    calls = []
    for at in range(n_calls):
        known = _WHOLE[(_USERS < 4 * (at + 1)) & (_ITEMS < 4 + at)]
        calls.append(known.sample(12, random_state=at).reset_index(drop=True))
    return calls


def _same(one: Any, other: Any) -> None:
    for name in ("user_ids_", "item_ids_", "user_factors_", "item_factors_", "mean_"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"optimizer": "adam", "learning_rate": 0.01, "biases": False},
        {"optimizer": "sgd", "learning_rate": 0.1},
    ],
)
def test_stream_equals_a_pass_over_the_same_batches(params: dict[str, Any]) -> None:
    calls = [_WHOLE.sample(frac=1, random_state=at) for at in range(3)]
    ours = _made(**params)
    with ours.stream() as stream:
        for call in calls:
            stream.learn(call)
    theirs = _made(max_iter=1, batch_size=len(_WHOLE), policy="allreduce", **params)
    theirs.fit(pd.concat(calls, ignore_index=True))
    _same(ours, theirs)
    assert stream.progressive_loss == pytest.approx(theirs.history_.records[0]["loss"])
    assert (stream.n_rows, ours.t_) == (720, 720)


def test_users_and_items_that_arrive_later_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream_steps, "_MIN_RESERVED_ROWS", 3)  # several reallocations
    model = _made(optimizer="sgd", learning_rate=0.5, reg_param=0.1, dtype="float64")
    begun: dict[Any, Any] = {}  # factors and biases by id, each initialised as by the model
    mean, total, calls = 0.0, 0.0, _growing_calls()
    numbers: tuple[dict[Any, int], dict[Any, int]] = ({}, {})
    with model.stream() as stream:
        for call in calls:
            if not begun:
                mean = call["rating"].mean()
            for side, column in enumerate(("user", "item")):
                for key in np.unique(call[column].to_numpy()):
                    numbers[side].setdefault(key, len(numbers[side]))
            loss = stream.learn(call)
            first = stream._started.fit.steps.model.init(stream._started.fit.work.seed, "f8")
            n_users = stream._started.fit.steps.model.n_users
            for side, known in enumerate(numbers):
                for key, number in known.items():
                    begun.setdefault((side, key), first[side * n_users + number].copy())
            steps: dict[Any, Any] = {}
            losses = 0.0
            for user, item, rating in call.itertuples(index=False):
                p, q = begun[0, user], begun[1, item]
                error = mean + p[:3] @ q[:3] + p[3] + q[3] - rating
                losses += error**2 / 2
                for key, vector, other in (((0, user), p, q), ((1, item), q, p)):
                    gradient = error * np.r_[other[:3], 1] + 0.1 * vector
                    steps[key] = steps.get(key, 0) + gradient
            assert loss == pytest.approx(losses / len(call))
            total += losses
            for key, gradient in steps.items():
                begun[key] = begun[key] - 0.5 * gradient / len(call)
    assert stream.progressive_loss == pytest.approx(total / 72)
    for ids, factors, biases, side in (
        (model.user_ids_, model.user_factors_, model.user_biases_, 0),
        (model.item_ids_, model.item_factors_, model.item_biases_, 1),
    ):
        assert ids.tolist() == sorted(numbers[side])
        truth = np.array([begun[side, key] for key in ids.tolist()])
        np.testing.assert_allclose(np.c_[factors, biases], truth, rtol=1e-9, atol=1e-12)
    assert len(model.recommend([20], 3, filter_seen=False)) == 3


@pytest.mark.parametrize("implicit", [False, True])
def test_a_resumed_stream_equals_an_uninterrupted_one(implicit: bool, tmp_path: Any) -> None:
    drawn = {"implicit": True, "loss": "log_loss", "negatives": 2}
    params = drawn if implicit else {}
    calls = _growing_calls()
    calls = [call.assign(rating=call["rating"].abs()) for call in calls]
    whole, first, second = (_made(**params) for _ in range(3))
    with whole.stream() as truth:
        for call in calls:
            truth.learn(call)
    found: list[Any] = []
    path = tmp_path / "s.npz"
    with first.stream(checkpoint=Checkpoint(path), publish=found.append, publish_every=1) as stream:
        for at, call in enumerate(calls[:3]):
            stream.learn(call, position=at)
    with second.stream(checkpoint=Checkpoint(path, resume=True)) as stream:
        assert stream.position == 2
        _same(second, first)
        for at, call in enumerate(calls):
            stream.learn(call, position=at)
    _same(second, whole)
    assert stream.progressive_loss == pytest.approx(truth.progressive_loss, rel=1e-12)
    assert len(found[0].user_ids_) < len(found[2].user_ids_)
    assert np.array_equal(found[2].predict(calls[0]), first.predict(calls[0]))


def test_a_stream_continues_a_fit_and_keeps_its_users_and_items() -> None:
    model = _made(max_iter=2).fit(_WHOLE[_USERS < 12])
    before = pickle.loads(pickle.dumps(model))
    later = _WHOLE[_USERS >= 20].reset_index(drop=True)
    with model.stream() as stream:
        stream.learn(later)
        copied = pickle.loads(pickle.dumps(model))
        assert model.user_ids_.tolist() == [*range(12), *range(20, 24)]
        assert np.array_equal(model.user_factors_[:12], before.user_factors_)
        assert not np.array_equal(model.item_factors_, before.item_factors_)
        stream.learn(later)
        assert not np.array_equal(model.user_factors_, copied.user_factors_)
    assert (model.mean_, model.t_) == (before.mean_, before.t_ + 80)
    model.set_params(warm_start=True).fit(_WHOLE)
    with pytest.raises(InvalidDataError, match="stream"):
        copied.recommend([20])


def test_ratings_may_be_matrices() -> None:
    cells = sparse.csr_matrix(_WHOLE["rating"].to_numpy().reshape(24, 10))
    model = _made()
    with model.stream() as stream:
        stream.learn(cells[:10])
        stream.learn(cells)
    assert (stream.n_rows, len(model.user_ids_)) == (340, 24)


def test_wrong_ratings_are_refused_before_anything_is_learned() -> None:
    model, (call, *_) = _made(), _growing_calls()
    bad = call.copy()
    bad.loc[1, "rating"] = np.nan
    with model.stream() as stream:
        with pytest.raises(InvalidDataError, match="NaN"):
            stream.learn(bad)
        stream.learn(call)
        before = model.user_factors_.copy()
        for wrong, message in (
            (bad, "NaN"),
            (call.drop(columns="item"), "no column 'item'"),
            (call.assign(user="ann"), "several types"),
        ):
            with pytest.raises(InvalidDataError, match=message):
                stream.learn(wrong)
        with pytest.raises(InvalidParameterError, match="sample_weight"):
            stream.learn(call, sample_weight=2.0)
        assert np.isnan(stream.learn(call[:0]))
        assert np.array_equal(model.user_factors_, before)
        assert stream.n_rows == 12
