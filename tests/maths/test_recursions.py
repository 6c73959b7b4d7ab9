"""Recursions of the papers, number by number: optimizers equal them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from daskml_dist.optimizers import (
    FTRL,
    NAG,
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    Optimizer,
)
from tests.maths.descent import descend


def _momentum(w: float, g: list[float], lr: float) -> float:
    v = 0.0
    for gt in g:
        v = 0.9 * v + gt
        w = w - lr * v
    return w


def _nesterov(w: float, g: list[float], lr: float) -> float:
    v = 0.0
    for gt in g:
        v = 0.9 * v + gt
        w = w - lr * (gt + 0.9 * v)
    return w


def _adagrad(w: float, g: list[float], lr: float) -> float:
    total = 0.0
    for gt in g:
        total += gt**2
        w -= lr * gt / (math.sqrt(total) + 1e-10)
    return w


def _adam(w: float, g: list[float], lr: float, decay: float = 0.0) -> float:
    m = v = 0.0
    for t, gt in enumerate(g, start=1):
        m = 0.9 * m + 0.1 * gt
        v = 0.999 * v + 0.001 * gt**2
        w = w - lr * decay * w
        w -= lr * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def _ftrl(w: float, g: list[float], lr: float, l1: float = 0.0) -> float:
    """Algorithm 1 of McMahan et al. (2013), with l1 of the mean: t * l1 after t steps."""
    n, z = 0.0, -w / (lr / 1.0)
    for t, gt in enumerate(g, start=1):
        sigma = (math.sqrt(n + gt**2) - math.sqrt(n)) / lr
        z += gt - sigma * w
        n += gt**2
        outside = abs(z) - t * l1
        w = 0.0 if outside <= 0 else -math.copysign(outside, z) * lr / (1.0 + math.sqrt(n))
    return w


REFERENCES: list[tuple[Optimizer, Callable[..., float]]] = [
    (SGD(), lambda w, g, lr: w - lr * sum(g)),
    (Momentum(), _momentum),
    (Nesterov(), _nesterov),
    (Adagrad(), _adagrad),
    (NAG(), _adagrad),  # of features of scale 1
    (Adam(), _adam),
    (AdamW(weight_decay=0.1), lambda w, g, lr: _adam(w, g, lr, 0.1)),
    (FTRL(), _ftrl),
]


@pytest.mark.parametrize(("optimizer", "reference"), REFERENCES, ids=lambda x: type(x).__name__)
def test_equals_the_recursion_of_its_paper(
    optimizer: Optimizer, reference: Callable[..., float]
) -> None:
    rng = np.random.default_rng(3)
    w, gradients = rng.normal(size=(4, 2)), rng.normal(size=(30, 4, 2))
    found = descend(optimizer, w, gradients, 0.05)
    for at in np.ndindex(w.shape):
        expected = reference(float(w[at]), [float(g[at]) for g in gradients], 0.05)
        assert found[at] == pytest.approx(expected, rel=1e-12, abs=1e-13)
    narrow = descend(optimizer, w.astype(np.float32), gradients.astype(np.float32), 0.05)
    np.testing.assert_allclose(narrow, found, rtol=1e-4, atol=1e-5)


def test_every_entry_has_a_recursion() -> None:
    assert {type(optimizer) for optimizer, _ in REFERENCES} == set(OPTIMIZERS.values())


@pytest.mark.parametrize("l1", [0.02, 0.3])
def test_ftrl_under_l1_equals_its_paper(l1: float) -> None:
    rng = np.random.default_rng(4)
    w, gradients = rng.normal(size=(5, 2)), rng.normal(size=(40, 5, 2))
    found = descend(FTRL(), w, gradients, 0.1, l1)
    for at in np.ndindex(w.shape):
        expected = _ftrl(float(w[at]), [float(g[at]) for g in gradients], 0.1, l1)
        assert found[at] == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(
    "optimizer", [SGD(), Adagrad(), Adagrad(epsilon=0.1, initial_accumulator=2.0)]
)
def test_under_l1_steps_are_the_same_without_one(optimizer: Optimizer) -> None:
    """And their state moves in the same way, whatever it is called."""
    rng = np.random.default_rng(5)
    w, gradients = rng.normal(size=(4, 2)), rng.normal(size=(30, 4, 2))
    expected = descend(optimizer, w, gradients, 0.05)
    for no_l1 in 0.0, np.zeros((4, 1)):
        found = descend(optimizer.under_l1(), w, gradients, 0.05, no_l1)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad()])
def test_under_l1_noise_leaves_the_zeros_of_the_optimum(optimizer: Optimizer) -> None:
    """Of ``mean((w - target)^2) / 2 + l1 |w|``, whose gradients are noisy."""
    rng = np.random.default_rng(6)
    target, l1 = np.array([[0.0], [0.05], [-0.05], [0.5], [-2.0]]), 0.1
    optimizer, w = optimizer.under_l1(), np.zeros((5, 1))
    opt_state = optimizer.init(w)
    for step in range(1, 4001):
        noise = rng.normal(size=w.shape)
        optimizer.update(w, w - target + noise, opt_state, 0.5 / step**0.5, step, l1)
    optimum = np.sign(target) * np.maximum(np.abs(target) - l1, 0)
    np.testing.assert_array_equal(w == 0, optimum == 0)
    np.testing.assert_allclose(w, optimum, atol=0.25)  # the noise of the last steps


def test_adagrad_starts_from_its_initial_accumulator() -> None:
    w = np.zeros((1, 1))
    optimizer = Adagrad(initial_accumulator=3.0)
    optimizer.update(w, np.ones((1, 1)), optimizer.init(w), 0.5, 1)
    assert w[0, 0] == pytest.approx(-0.25)
