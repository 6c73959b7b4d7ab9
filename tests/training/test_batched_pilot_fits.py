"""Pilot fits batched as columns of one matrix equal separate pilot fits."""

from __future__ import annotations

import numpy as np

from daskml_dist.losses import LOSSES
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import Adagrad
from daskml_dist.penalties import Penalty
from daskml_dist.training.pilot import Pilot, StackedPilot


def test_batched_pilots_equal_separate_pilots() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 6)) * [1, 10, 1, 1e-2, 1, 1] + 3
    y = np.where(X[:, 0] + X[:, 1] / 10 + rng.logistic(size=800) > 3.5, 1.0, -1.0)
    weight = rng.random(800) * (rng.random(800) < 0.8)
    model = LinearModel(LOSSES["log_loss"](), 6, 2, True)
    l2, begin = [1e-5, 1e-2, 1.0], np.zeros((7, 1))
    pilots = [Pilot(model, X, y, weight, Penalty(0.0, a), 0) for a in l2]
    assert StackedPilot.serves(pilots[0], len(l2))
    stacked = StackedPilot(pilots[0], l2)
    half, whole = stacked.find_minima(begin, 200, False)
    w, tried = np.concatenate(whole, axis=1), np.concatenate(half, axis=1)
    batched_state = stacked.warm_optimizer(Adagrad(), w, {"accumulator": np.zeros_like(w)}, 16)
    rates = stacked.rates(Adagrad(), tried, batched_state, [0.05] * 3, 16)
    for k, pilot in enumerate(pilots):
        at = w[:, k : k + 1]
        alone, _ = pilot.minimise_all_rows(begin, 200)
        assert abs(pilot.value(at) - pilot.value(alone)) < 1e-6
        np.testing.assert_allclose(stacked.values(w)[k], pilot.value(at), rtol=1e-12)
        opt_state = pilot.warm_optimizer(Adagrad(), at, {"accumulator": np.zeros_like(at)}, 16)
        np.testing.assert_allclose(
            batched_state["accumulator"][:, k], opt_state["accumulator"][:, 0], rtol=1e-9
        )
        assert rates[k] == pilot.find_best_rate(Adagrad(), tried[:, k : k + 1], opt_state, 0.05, 16)
