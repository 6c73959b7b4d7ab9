"""`optimizer="nag"`: results do not depend on the units of features."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist.data.blocks import make_block
from daskml_dist.data.feature_scales import compute_block_scales, merge_scales
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.optimizers import NAG
from daskml_dist.policies import POLICIES
from tests.quick import quick

UNITS = np.array([1e-6, 1.0, 1e5, 30.0])


def _rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 4))
    return X, (X @ [2.0, -1.0, 3.0, 0.5] + 0.1 * rng.normal(size=600) > 0).astype(int)


X0, Y0 = _rows()
NO_PENALTY: dict[str, Any] = {"optimizer": "nag", "penalty": None, "random_state": 0}


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_scales_of_blocks_are_merged(kind: str) -> None:
    X = X0 * (np.abs(X0) > 0.5)
    make: Any = sparse.csr_array if kind == "sparse" else np.asarray
    parts = [X[:100], X[100:100], X[100:]]
    blocks = [make_block(i, make(part), classification=False) for i, part in enumerate(parts)]
    scales = merge_scales([compute_block_scales(block) for block in blocks])
    assert scales.n_rows == 600
    np.testing.assert_allclose(scales.largest, np.abs(X).max(axis=0))
    np.testing.assert_allclose(scales.squares, (X**2).sum(axis=0))
    expected = ((X / np.abs(X).max(axis=0)) ** 2).sum(axis=1).mean()
    assert scales.norm == pytest.approx(expected)


def test_equals_the_paper_with_known_scales() -> None:
    """Algorithm 2 of Ross et al. (2013), step 2d, whose scales no row exceeds."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 3)) * [1, 100, 0.01]
    s, n_over_t = np.abs(X).max(axis=0), ((X / np.abs(X).max(axis=0)) ** 2).sum(axis=1).mean()
    gradients = [x * rng.normal() for x in X]
    w, G = np.zeros(3), np.zeros(3)
    for g in gradients:
        G += g**2
        w -= 0.5 * math.sqrt(1 / n_over_t) * g / (s * np.sqrt(G))
    optimizer, found = NAG(), np.zeros((3, 1))
    opt_state = optimizer.init_scaled(found, s, n_over_t)
    for step, g in enumerate(gradients, start=1):
        optimizer.update(found, g[:, None].copy(), opt_state, 0.5, step)
    np.testing.assert_allclose(found[:, 0], w, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_predictions_do_not_depend_on_units(dtype: str) -> None:
    plain = SGDClassifier(**NO_PENALTY).fit(X0.astype(dtype), Y0)
    other = SGDClassifier(**NO_PENALTY).fit((X0 * UNITS).astype(dtype), Y0)
    np.testing.assert_allclose(
        other.decision_function((X0 * UNITS).astype(dtype)),
        plain.decision_function(X0.astype(dtype)),
        rtol=1e-8 if dtype == "float64" else 1e-2,
        atol=1e-8 if dtype == "float64" else 1e-2,
    )
    assert plain.score(X0, Y0) > 0.95


@pytest.mark.parametrize("policy", quick(POLICIES, "hogwild"))
def test_every_policy_learns_unscaled_rows(policy: str, client: Client) -> None:
    X = da.from_array(X0 * UNITS, chunks=(150, 4))
    y = da.from_array(Y0, chunks=150)
    model = SGDClassifier(**NO_PENALTY, policy=policy).fit(X, y)
    assert model.score(X, y) > 0.95


def test_larger_values_later_shrink_the_parameters() -> None:
    model = SGDClassifier(**NO_PENALTY)
    model.partial_fit(X0 * 0.1, Y0, classes=[0, 1])
    before = model._state.opt_state["scale"].copy()
    for _ in range(5):
        model.partial_fit(X0, Y0)
    assert (model._state.opt_state["scale"][:4] > before[:4]).all()
    assert model.score(X0, Y0) > 0.95


def test_regression_of_unscaled_rows() -> None:
    y = X0 @ [2.0, -1.0, 3.0, 0.5] * 1000
    model = SGDRegressor(**NO_PENALTY, max_iter=100).fit(X0 * UNITS, y)
    assert model.score(X0 * UNITS, y) > 0.9
