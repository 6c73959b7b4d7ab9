"""Weights of rows and classes in `partial_fit`: used as they are, as in streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.linear_model

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.neural_network import MLPRegressor

_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(200, 3))
_NUMBERS = _X @ [1.0, 2.0, -1.0] + _RNG.normal(size=200)
_LABELS = (_NUMBERS > 1.5).astype(int)
_WEIGHTS = _RNG.random(200)
_ONE_LANE: dict[str, Any] = {"shuffle": False, "batch_size": None, "random_state": 0}


@pytest.mark.parametrize("policy", ["sync", "allreduce", "async", "local", "average", "hogwild"])
def test_single_rows_have_the_weights_of_their_classes(policy: str) -> None:
    params: dict[str, Any] = {"class_weight": {0: 1.0, 1: 10.0}, "penalty": None, "random_state": 0}
    ours = SGDClassifier(optimizer="sgd", learning_rate=0.1, policy=policy, **params)
    theirs = sklearn.linear_model.SGDClassifier(
        "log_loss", learning_rate="constant", eta0=0.1, **params
    )
    for at in range(100):
        for model in (ours, theirs):
            model.partial_fit(_X[at : at + 1], _LABELS[at : at + 1], classes=[0, 1])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)


@pytest.mark.parametrize("policy", ["sync", "async", "local"])
@pytest.mark.parametrize(
    "model",
    [
        SGDRegressor(**_ONE_LANE),
        SGDRegressor(optimizer="sgd", learning_rate=0.1, **_ONE_LANE),
        MLPRegressor(hidden_layer_sizes=(4,), alpha=1.0, solver="sgd", **_ONE_LANE),
    ],
)
def test_weighted_calls_equal_a_weighted_stream(model: Any, policy: str) -> None:
    params = model.get_params() | {"policy": policy, "run": Run(n_lanes=1)}
    parts, whole = type(model)(**params), type(model)(**params)
    with whole.stream() as stream:
        for at in range(0, 200, 50):
            some = slice(at, at + 50)
            rows = _X[some], _NUMBERS[some], (1 + at) * _WEIGHTS[some]
            parts.partial_fit(*rows[:2], sample_weight=rows[2])
            loss = stream.learn(*rows)
            # The mean of a pass is over weights too, as before.
            assert parts.history_.records[-1]["loss"] == pytest.approx(loss)
    for ours, its in zip(_numbers(parts), _numbers(whole), strict=True):
        np.testing.assert_allclose(ours, its, rtol=1e-9)


def _numbers(model: Any) -> list[Any]:
    return [model.coef_, model.intercept_] if hasattr(model, "coef_") else model.coefs_


@pytest.mark.parametrize("policy", ["sync", "allreduce", "ssp", "local", "hogwild"])
def test_the_loss_of_a_call_is_a_mean_over_weights(policy: str) -> None:
    model = SGDRegressor(policy=policy, run=Run(n_lanes=2), **_ONE_LANE)
    losses = []
    for factor in (1.0, 100.0):
        model.partial_fit(_X, _NUMBERS, sample_weight=factor * _WEIGHTS)
        losses.append(model.history_.records[-1]["loss"])
    assert 0 < losses[1] < losses[0] < 10


def test_a_fit_scales_weights_to_a_mean_of_one() -> None:
    found = [
        SGDRegressor(max_iter=3, tol=None, **_ONE_LANE).fit(_X, _NUMBERS, factor * _WEIGHTS).coef_
        for factor in (1.0, 64.0)
    ]
    np.testing.assert_allclose(*found, rtol=1e-9)
