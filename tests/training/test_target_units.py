"""Automatic rates in units of the targets: those of the first rows, whatever a later call holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskml_dist.callbacks import Checkpoint
from daskml_dist.linear_model import SGDRegressor
from daskml_dist.recommender import FactorizationMachineRegressor, MatrixFactorization

_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(400, 4))
_Y = _X @ [1.0, 2.0, -1.0, 0.0] + _RNG.normal(size=400) + 3.0
_UNITS = pytest.mark.parametrize("unit", [1e-4, 1.0, 1e4])


def _taught(model: Any, X: Any, y: Any, n_rows: int = 50) -> Any:
    """Return the model after one call of `partial_fit` for each `n_rows` rows."""
    for at in range(0, len(y), n_rows):
        model.partial_fit(X[at : at + n_rows], y[at : at + n_rows])
    return model


@_UNITS
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_a_call_of_one_row_keeps_the_unit(unit: float, optimizer: str, loss: str) -> None:
    scores = []
    for one in (1.0, unit):
        model = SGDRegressor(
            loss, epsilon=1.35 * one, alpha=0.0, optimizer=optimizer, random_state=0
        )
        _taught(model, _X, one * _Y).partial_fit(_X[:1], one * _Y[:1])
        scores.append(model.score(_X, one * _Y))
    assert scores[1] == pytest.approx(scores[0], abs=0.01)


@_UNITS
def test_the_unit_is_measured_in_the_first_call_whose_targets_differ(unit: float) -> None:
    model = SGDRegressor(random_state=0).partial_fit(_X[:1], unit * _Y[:1])
    assert model._last_model.target_units == ()
    assert _taught(model, _X, unit * _Y).score(_X, unit * _Y) > 0.7
    assert model._last_model.target_units == pytest.approx((np.std(unit * _Y[:50]),))


def test_calls_of_one_row_learn_targets_in_a_large_unit() -> None:
    model = _taught(SGDRegressor(random_state=0), _X, 1e4 * _Y, n_rows=1)
    assert model.score(_X, 1e4 * _Y) > 0.6


def test_each_target_keeps_its_unit() -> None:
    Y = np.column_stack([1e-4 * _Y, 1e4 * _Y])
    model = _taught(SGDRegressor(random_state=0), _X, Y)
    alone = [_taught(SGDRegressor(random_state=0), _X, y) for y in Y.T]
    model.partial_fit(_X[:1], Y[:1])
    for number, each in enumerate(alone):
        each.partial_fit(_X[:1], Y[:1, number])
        assert model.coef_[number] == pytest.approx(each.coef_)


@_UNITS
def test_a_stream_equals_calls_of_partial_fit(unit: float, tmp_path: Any) -> None:
    params: dict[str, Any] = {"shuffle": False, "batch_size": None, "random_state": 0}
    parts = _taught(SGDRegressor(**params), _X, unit * _Y)
    whole = SGDRegressor(**params)
    with whole.stream() as stream:
        for at in range(0, 400, 50):
            stream.learn(_X[at : at + 50], unit * _Y[at : at + 50])
    for at in range(0, 400, 50):
        resumed = SGDRegressor(**params)
        with resumed.stream(checkpoint=Checkpoint(tmp_path / "m.npz", resume=True)) as stream:
            stream.learn(_X[at : at + 50], unit * _Y[at : at + 50])
    for model in (whole, resumed):
        assert np.array_equal(model.coef_, parts.coef_)
    # The unit is kept in the file, for calls after the stream.
    for model in (parts, whole, resumed):
        model.partial_fit(_X[:7], unit * _Y[:7])
    for model in (whole, resumed):
        assert np.array_equal(model.coef_, parts.coef_)


_N = 2_000
_IDS = pd.DataFrame({"user": _RNG.integers(0, 20, _N), "item": _RNG.integers(0, 30, _N)})
_RATINGS = (_RNG.normal(size=20)[_IDS["user"]] + _RNG.normal(size=30)[_IDS["item"]] + 3.0).astype(
    np.float64
)


@_UNITS
def test_factorisation_machines_keep_the_unit(unit: float) -> None:
    y = unit * _RATINGS
    model = _taught(FactorizationMachineRegressor(random_state=0), _IDS, y, n_rows=500)
    before, rate = model.score(_IDS, y), model._last_model.target_unit
    model.partial_fit(_IDS[:1], y[:1])
    assert model._last_model.target_unit == rate == pytest.approx(np.std(y[:500]))
    assert model.score(_IDS, y) == pytest.approx(before, abs=0.02)


@_UNITS
def test_matrix_factorisation_keeps_the_unit(unit: float) -> None:
    table = _IDS.assign(rating=unit * _RATINGS)
    model = MatrixFactorization(3, reg_param=0.1 * unit, biases=False, random_state=0)
    with model.stream() as stream:
        for at in range(0, _N, 500):
            stream.learn(table[at : at + 500])
    before = model.predict(table)
    with model.stream() as stream:
        stream.learn(table[:1])
    assert model._last_model.target_unit == pytest.approx(np.std(table["rating"][:500]))
    assert np.std(model.predict(table) - before) < 0.2 * unit


@_UNITS
def test_factors_are_learned_in_any_unit(unit: float) -> None:
    """The first factors and the steps of biases were those of ratings whose unit is about 1."""
    table = _IDS.assign(rating=unit * _RATINGS)
    for biases in (True, False):
        params: dict[str, Any] = {"rank": 3, "biases": biases, "max_iter": 5, "random_state": 0}
        model = MatrixFactorization(reg_param=0.01 * unit, **params).fit(table)
        assert -model.score(table) < 0.35 * unit
        error = model.history_[-1]["loss"] * 2
        assert error == pytest.approx(model.score(table) ** 2, rel=0.5)
    machine = FactorizationMachineRegressor(alpha=0.01 * unit, max_iter=10, random_state=0)
    assert machine.fit(_IDS, table["rating"]).score(_IDS, table["rating"]) > 0.9
    assert machine.intercept_ == pytest.approx(np.mean(table["rating"]), rel=0.5)
