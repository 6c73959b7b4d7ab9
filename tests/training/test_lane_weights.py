"""Weights of rows under policies that average lanes: a row of weight 3 counts as three rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.neural_network import MLPRegressor
from daskml_dist.policies import FederatedAveraging, LocalSGD

PARAMS: dict[str, Any] = {"learning_rate": 0.1, "alpha": 0.01, "tol": None, "random_state": 0}
#: Policies whose lanes meet once, at the end of a fit of 20 full batches.
MEET_ONCE = [
    pytest.param("average", id="average"),
    pytest.param(LocalSGD(sync_every=64), id="local"),
    pytest.param(LocalSGD(sync_every=64, quorum=2), id="decoupled"),
]


def _rows(n_rows: int = 400) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 5))
    return X, X @ np.arange(5.0) + rng.logistic(size=n_rows) > 0


@pytest.mark.parametrize("weight", [3.0, 0.0])
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
@pytest.mark.parametrize("policy", MEET_ONCE)
def test_lanes_are_averaged_by_the_weights_of_their_rows(
    policy: Any, optimizer: str, weight: float
) -> None:
    """Each lane makes the steps of a fit to its own rows, whose weights are all alike."""
    X, y = _rows()
    half = len(y) // 2
    weights = np.where(np.arange(len(y)) < half, weight, 1.0)
    params = PARAMS | {"optimizer": optimizer, "batch_size": None, "max_iter": 20}
    both = SGDClassifier(policy=policy, run=Run(n_lanes=2), **params).fit(X, y, weights)
    first, second = (
        SGDClassifier(**params).fit(X[rows], y[rows]) for rows in (slice(half), slice(half, len(y)))
    )
    share = weight / (weight + 1)
    expected = share * first.coef_ + (1 - share) * second.coef_
    np.testing.assert_allclose(both.coef_, expected, rtol=1e-9)


@pytest.mark.parametrize("policy", MEET_ONCE)
def test_losses_of_passes_have_the_weights_of_all_rows(policy: Any) -> None:
    X, y = _rows()
    weights = np.where(np.arange(len(y)) < len(y) // 2, 0.2, 5.0)
    params = PARAMS | {"batch_size": None, "max_iter": 2, "loss": "squared_error"}
    params |= {"early_stopping": True, "class_weight": {False: 1.0, True: 4.0}}
    found = [
        SGDClassifier(policy=some, run=Run(n_lanes=2), **params).fit(X, y, weights).history_
        for some in (policy, "sync")
    ]
    first, second = (history.records[0]["loss"] for history in found)
    assert first == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("policy", ["local", "average", FederatedAveraging(fraction=1.0)])
def test_lanes_whose_rows_weigh_nothing_hold_no_coefficient_back(policy: Any) -> None:
    X, y = _rows(4_000)
    weights = (np.arange(len(y)) >= len(y) // 2).astype(float)

    def norm(policy: Any) -> float:
        clf = SGDClassifier(policy=policy, run=Run(n_lanes=4), max_iter=30, **PARAMS)
        return float(np.linalg.norm(clf.fit(X, y, weights).coef_))

    assert norm(policy) == pytest.approx(norm("sync"), rel=0.1)


@pytest.mark.parametrize("policy", ["local", "average"])
def test_steps_of_sparse_rows_that_weigh_nothing(policy: str) -> None:
    rng = np.random.default_rng(0)
    X = sparse.random_array((3_000, 2_048), density=0.01, rng=rng, format="csr")
    y = X @ rng.normal(size=2_048) > 0
    weights = (np.arange(len(y)) >= len(y) // 2).astype(float)

    def norm(rows: slice, n_lanes: int) -> float:
        clf = SGDClassifier(policy=policy, run=Run(n_lanes=n_lanes), max_iter=10, **PARAMS)
        return float(np.linalg.norm(clf.fit(X[rows], y[rows], weights[rows]).coef_))

    assert norm(slice(None), 2) == pytest.approx(norm(slice(1_500, None), 1), rel=0.1)


def test_networks_learn_where_some_lanes_weigh_nothing() -> None:
    X, _ = _rows(2_000)
    y = X @ np.arange(5.0)
    weights = (np.arange(len(y)) >= len(y) // 2).astype(float)
    net = MLPRegressor(
        hidden_layer_sizes=(16,), max_iter=30, learning_rate_init=0.01, policy="local",
        run=Run(n_lanes=4), random_state=0,
    )  # fmt: skip
    assert net.fit(X, y, weights).score(X, y) > 0.95
