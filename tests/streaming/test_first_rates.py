"""Learning rates of streams and of `partial_fit`, which depend on the scale of the first rows."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.training.checkpoint import Checkpoint

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((300, 6))
_RAW = _X @ _RNG.standard_normal(6)
_Y = (_RAW > 0).astype(int)
_SIZE = np.abs(_X[:100]).sum() / 100


def _streamed(model: Any, X: Any, y: Any, **how: Any) -> tuple[Any, float]:
    if y.dtype.kind == "i":
        how["classes"] = [0, 1]
    with model.stream(**how) as stream:
        for at in range(0, 300, 100):
            stream.learn(X[at : at + 100], y[at : at + 100])
    rule = stream._started.fit.steps.rule
    return stream, rule.schedule(1, 0.0) * (
        rule.only_group.rates[0] if rule.only_group.rates else 1.0
    )


@pytest.mark.parametrize("penalty", [None, "l1"])
@pytest.mark.parametrize("as_given", [np.asarray, sparse.csr_matrix])
def test_results_do_not_depend_on_the_unit_of_the_rows(as_given: Any, penalty: Any) -> None:
    params = {"fit_intercept": False, "penalty": penalty, "alpha": 0.0}
    found = []
    for unit in (10.0, 1e-2, 1e5):
        model = SGDClassifier(**params)
        stream, rate = _streamed(model, as_given(unit * _X), _Y)
        assert rate == pytest.approx(min(0.5, 4 / (unit * _SIZE)))
        found.append((stream.progressive_loss, unit * model.coef_))
    same = [found[0], found[2]]  # a unit of 0.01 reaches the maximum rate
    np.testing.assert_allclose(same[1][0], same[0][0], rtol=1e-6)
    np.testing.assert_allclose(same[1][1], same[0][1], rtol=1e-6)
    assert found[1][0] < np.log(2)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_targets_are_scaled_by_their_spread(scale: float) -> None:
    stream, rate = _streamed(SGDRegressor(), _X, scale * _RAW)
    assert rate == pytest.approx(2 * scale * _RAW[:100].std() / (1 + _SIZE), rel=1e-6)
    assert stream.progressive_loss < 0.8 * (scale * _RAW).var() / 2


def test_later_calls_and_resumed_streams_keep_the_rate_of_the_first_rows(tmp_path: Any) -> None:
    calls = [_X[:100], 100 * _X[100:200], _X[200:]]
    whole, parts = (SGDClassifier(shuffle=False, batch_size=None) for _ in range(2))
    with whole.stream(classes=[0, 1]) as stream:
        for number, X in enumerate(calls):
            stream.learn(X, _Y[100 * number :][:100])
    for number, X in enumerate(calls):
        y = _Y[100 * number :][:100]
        parts.partial_fit(X, y, classes=[0, 1], client="inline")
        resumed = SGDClassifier(shuffle=False, batch_size=None)
        resuming = Checkpoint(tmp_path / "m.npz", resume=True)
        with resumed.stream(classes=[0, 1], checkpoint=resuming) as stream:
            stream.learn(X, y)
    assert np.array_equal(whole.coef_, parts.coef_)
    assert np.array_equal(whole.coef_, resumed.coef_)
    for model in (whole, parts, resumed):
        model.partial_fit(_X, _Y, client="inline")
    assert np.array_equal(whole.coef_, parts.coef_)
    assert np.array_equal(whole.coef_, resumed.coef_)


def test_partial_fit_on_a_cluster_measures_the_scale_of_blocks(client: Any) -> None:
    X, y = da.from_array(1e5 * _X, chunks=(100, 6)), da.from_array(_Y, chunks=100)
    model = SGDClassifier(random_state=0).partial_fit(X, y, classes=[0, 1])
    assert model._last_model.row_size == pytest.approx(1e5 * np.abs(_X).sum() / 300)
    assert model.score(X, y) > 0.9


def test_rates_of_zero_rows_and_other_optimizers_are_unchanged() -> None:
    zeros = np.zeros_like(_X)
    assert _streamed(SGDClassifier(fit_intercept=False), zeros, _Y)[1] == 0.5
    for optimizer in ("sgd", "adam", "nag"):
        model = SGDClassifier(optimizer=optimizer)
        rate = type(model._check_settings(None).optimizer).default_learning_rate
        assert _streamed(model, _X, _Y)[1] == pytest.approx(rate)
