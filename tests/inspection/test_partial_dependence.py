"""Partial dependence of rows on workers is scikit-learn's of the same rows gathered."""

from __future__ import annotations

from functools import cache
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.inspection
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import ensemble as truth

from daskml_dist.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.inspection import partial_dependence
from daskml_dist.linear_model import LinearRegression, LogisticRegression
from daskml_dist.tree import DecisionTreeRegressor

RNG = np.random.default_rng(0)
N = 240
X = RNG.normal(size=(N, 3))
X[:, 1] = RNG.integers(0, 6, N)
Y = X[:, 0] ** 2 + X[:, 1] * X[:, 2]
LABELS = np.array(["a", "b", "c"])[np.digitize(Y, [-1, 1])]
WEIGHT = RNG.uniform(0, 2, N)
LAZY = da.from_array(X, chunks=((100, 0, 90, 50), 3))
BOOSTING: dict[str, Any] = {"max_iter": 5, "early_stopping": False}
MODELS: dict[str, tuple[Any, Any]] = {
    "linear": (LinearRegression(), np.column_stack([Y, -Y])),
    "logistic of 2": (LogisticRegression(), Y > 0),
    "logistic of 3": (LogisticRegression(), LABELS),
    "boosting": (HistGradientBoostingRegressor(**BOOSTING), Y),
    "boosting of 3": (HistGradientBoostingClassifier(**BOOSTING), LABELS),
}


@cache
def _fitted(name: str) -> Any:
    model, y = MODELS[name]
    return model.fit(X, y)


def _same(found: Any, wanted: Any, rtol: float = 1e-10) -> None:
    assert found.keys() == wanted.keys()
    for axis, peer in zip(found.grid_values, wanted.grid_values, strict=True):
        assert_array_equal(axis, peer)
    for name in found.keys() - {"grid_values"}:
        assert_allclose(np.asarray(found[name]), wanted[name], rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "options",
    [
        {"features": [0], "grid_resolution": 7},
        {"features": 1},
        {"features": [2, 1], "grid_resolution": 5, "percentiles": (0, 0.9)},
        {"features": [0, 2], "custom_values": {2: [-1.0, 0.0]}, "grid_resolution": 4},
        {"features": [1], "categorical_features": [1], "grid_resolution": 3},
    ],
    ids=str,
)
def test_values_equal_scikit_learn_on_gathered_rows(model: str, options: Any) -> None:
    estimator = _fitted(model)
    arguments = {**options, "method": "brute", "kind": "both", "sample_weight": WEIGHT}
    wanted = sklearn.inspection.partial_dependence(estimator, X, **arguments)
    arguments["sample_weight"] = da.from_array(WEIGHT, chunks=(LAZY.chunks[0],))
    found = partial_dependence(estimator, LAZY, **arguments)
    assert isinstance(found.individual, da.Array)
    _same(found, wanted)


@pytest.mark.parametrize("kind", ["average", "individual"])
def test_frames_of_unknown_lengths(kind: str) -> None:
    frame = pd.DataFrame(X, columns=["x", "k", "z"]).assign(
        k=pd.Categorical([f"k{int(k)}" for k in X[:, 1]])
    )
    model = HistGradientBoostingRegressor(**BOOSTING).fit(frame, Y)
    options = {"features": ["k", "x"], "categorical_features": ["k"], "grid_resolution": 4}
    wanted = sklearn.inspection.partial_dependence(model, frame, kind=kind, **options)
    # Trees with categories do not support the recursion method.
    found = partial_dependence(model, dd.from_pandas(frame, npartitions=3), kind=kind, **options)
    _same(found, wanted)
    with pytest.raises(InvalidParameterError, match="trees split on categories"):
        partial_dependence(model, frame, method="recursion", **options)


PEERS = [
    (HistGradientBoostingRegressor, truth.HistGradientBoostingRegressor, BOOSTING, Y),
    (HistGradientBoostingClassifier, truth.HistGradientBoostingClassifier, BOOSTING, LABELS),
]


@pytest.mark.parametrize("rows", [X, LAZY], ids=["memory", "dask"])
@pytest.mark.parametrize(
    ("kind", "peer", "params", "y"), PEERS, ids=lambda c: getattr(c, "__name__", "")
)
def test_recursion_is_scikit_learns(kind: Any, peer: Any, params: Any, y: Any, rows: Any) -> None:
    options = {"features": [0, 2], "grid_resolution": 5}
    wanted = sklearn.inspection.partial_dependence(peer(**params).fit(X, y), X, **options)
    _same(partial_dependence(kind(**params).fit(X, y), rows, **options), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "model", [RandomForestRegressor(4, random_state=0), DecisionTreeRegressor()], ids=repr
)
def test_recursion_of_forests_is_that_of_their_twins(model: Any) -> None:
    model.fit(X, Y)
    wanted = sklearn.inspection.partial_dependence(model.to_sklearn(), X, [2])
    _same(partial_dependence(model, LAZY, [2]), wanted)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (truth.HistGradientBoostingClassifier(max_iter=3), LABELS),
        (truth.GradientBoostingRegressor(n_estimators=3), Y),
        (truth.GradientBoostingRegressor(n_estimators=3, init=truth.RandomForestRegressor(2)), Y),
        (truth.RandomForestRegressor(3, random_state=0), Y),
        (truth.RandomForestClassifier(3, random_state=0), LABELS),
    ],
    ids=str,
)
def test_models_of_scikit_learn_are_asked_as_it_asks_them(model: Any, y: Any) -> None:
    model.fit(X, y)
    options = {"features": [0], "grid_resolution": 5}
    wanted = sklearn.inspection.partial_dependence(model, X, **options)
    _same(partial_dependence(model, LAZY, **options), wanted)


def test_percentiles_of_many_values_are_exact() -> None:
    """Far more than a sketch keeps, some of them heavy, and not the same in all blocks."""
    n = 60_000
    column = np.sort(RNG.normal(size=n))
    column[20_000:26_000] = column[20_000]
    rows = np.column_stack([column, np.zeros(n)])
    model = LinearRegression().fit(X[:, :2], Y)
    for ends in ((0.05, 0.95), (0.35, 0.8), (0, 1)):
        options = {"features": [0], "percentiles": ends, "grid_resolution": 3}
        wanted = sklearn.inspection.partial_dependence(model, rows, **options)
        _same(partial_dependence(model, da.from_array(rows, chunks=(7_000, 2)), **options), wanted)


def test_weights_of_the_fit_are_not_forgotten() -> None:
    model = HistGradientBoostingRegressor(**BOOSTING).fit(X, Y, WEIGHT)
    wanted = sklearn.inspection.partial_dependence(model, X, [0], method="brute")
    _same(partial_dependence(model, LAZY, [0]), wanted)
    with pytest.raises(InvalidParameterError, match="fitted with sample weights"):
        partial_dependence(model, LAZY, [0], method="recursion")


def test_a_display_draws_it() -> None:
    pytest.importorskip("matplotlib").use("agg")
    found = partial_dependence(_fitted("boosting"), LAZY, [0])
    display = sklearn.inspection.PartialDependenceDisplay(
        [found], features=[(0,)], feature_names=["x"], target_idx=0, deciles={}
    ).plot()
    assert_array_equal(display.lines_[0, 0].get_ydata(), found.average[0])


def test_scikit_learns_decision_boundaries_take_two_rows() -> None:
    """The ends of both columns are all that it reads of the rows."""
    pytest.importorskip("matplotlib").use("agg")
    rows = np.random.default_rng(5).normal(size=(300, 2))
    model = LogisticRegression().fit(rows, rows[:, 0] > rows[:, 1])
    lazy = da.from_array(rows, chunks=(100, 2))
    ends = da.stack([lazy.min(axis=0), lazy.max(axis=0)]).compute()
    draw = sklearn.inspection.DecisionBoundaryDisplay.from_estimator
    options: dict[str, Any] = {"grid_resolution": 5, "response_method": "decision_function"}
    assert_allclose(draw(model, ends, **options).response, draw(model, rows, **options).response)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"features": [3]}, InvalidParameterError, "must be in"),
        ({"features": ["x"]}, InvalidParameterError, "not a column of X"),
        ({"percentiles": (0.9, 0.1)}, InvalidParameterError, "less than"),
        ({"percentiles": 0.5}, InvalidParameterError, "two numbers"),
        ({"percentiles": (0.5, 0.5 + 1e-9)}, InvalidParameterError, "too close"),
        ({"grid_resolution": 1}, InvalidParameterError, "greater than 1"),
        ({"kind": "both", "method": "recursion"}, InvalidParameterError, "recursion"),
        ({"response_method": "decision_function"}, InvalidParameterError, "regressors"),
        ({"X": LAZY[:0]}, InvalidDataError, "0 sample"),
        ({"X": LAZY.astype(int)}, InvalidParameterError, "integer data"),
        ({"sample_weight": da.zeros(N, chunks=(LAZY.chunks[0],))}, InvalidParameterError, "zero"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused(change: Any, error: Any, words: str) -> None:
    options = {"X": LAZY, "features": [0], "method": "brute", **change}
    with pytest.raises(error, match=words):
        partial_dependence(_fitted("boosting"), options.pop("X"), **options)


def test_a_method_that_a_classifier_lacks_is_named() -> None:
    model = RandomForestClassifier(n_estimators=2, random_state=0).fit(X, Y > 0)
    for rows in (X, LAZY):
        with pytest.raises(InvalidParameterError, match='leave response_method="auto"'):
            partial_dependence(model, rows, [0], response_method="decision_function")
