"""Federated averaging: sampled clients, their local steps, and the server's update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

from daskml_dist import Run
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import FederatedAveraging, get_policy
from daskml_dist.training.checkpoint import Checkpoint
from tests.quick import in_turn, quick
from tests.training.lane_fits import fit_lanes

#: Rows of each client; the last has none and is no client.
SIZES = (10, 25, 5, 40, 16, 0)
BATCH, RATE, ROUNDS = 8, 0.1, 6

_draw = np.random.default_rng(0)
X = _draw.normal(size=(sum(SIZES), 4))
Y = X @ _draw.normal(size=4) + np.repeat(_draw.normal(size=6), SIZES) * X[:, 0]
EDGES = np.cumsum((0, *SIZES))


def _blocks(y: NDArray[Any] = Y) -> tuple[Any, Any]:
    return da.from_array(X, chunks=(SIZES, -1)), da.from_array(y, chunks=(SIZES,))


def _fit(policy: Any, rows: Any = None, **params: Any) -> SGDRegressor:
    usual = {"learning_rate": RATE, "max_iter": ROUNDS, "run": Run(), "random_state": 3}
    return fit_lanes(policy, rows or _blocks(), **usual | params)


def _federated(
    reg: SGDRegressor,
    steps: Callable[[int], int],
    towards: Callable[[Any, Any], Any] = lambda w, mean: mean,
) -> NDArray[Any]:
    """Algorithm 1 of McMahan et al. (2017) with full batches, in plain NumPy."""
    w = np.zeros(4)
    for record in reg.history_:
        drawn = record["clients"]
        mean, total = np.zeros(4), sum(SIZES[k] for k in drawn)
        for k in drawn:
            rows, v = slice(EDGES[k], EDGES[k + 1]), w.copy()
            for _ in range(steps(k)):
                slope = X[rows].T @ (X[rows] @ v - Y[rows]) / SIZES[k]
                v -= RATE * (slope + reg.policy.proximal * (v - w))
            mean += SIZES[k] / total * v
        w = towards(w, mean)
    return w


_POLICIES = [
    FederatedAveraging(1.0, local_epochs=2),
    FederatedAveraging(0.4, local_epochs=3),
    FederatedAveraging(0.6, local_steps=4),
    FederatedAveraging(0.6, local_epochs=3, proximal=0.7),
]


@pytest.mark.parametrize("policy", quick(_POLICIES, *_POLICIES[2:]), ids=repr)
def test_fedavg_and_fedprox_equal_the_papers_algorithm(policy: FederatedAveraging) -> None:
    """FedAvg and FedProx; with full batches, one local epoch is one step."""
    reg = _fit(policy)
    epochs = policy.local_steps or policy.local_epochs
    np.testing.assert_allclose(reg.coef_, _federated(reg, lambda k: epochs), rtol=1e-10)
    for record in reg.history_:
        assert len(record["clients"]) == round(5 * policy.fraction)
        assert record["rows"] == epochs * sum(SIZES[k] for k in record["clients"])
    assert reg.history_.extra["policy"] == "federated"


def test_fedadam_steps_along_the_mean_update() -> None:
    policy = FederatedAveraging(0.6, local_epochs=2, outer="adam", outer_rate=0.05)
    m, v, number = np.zeros(4), np.zeros(4), 0

    def step(w: Any, mean: Any) -> Any:
        nonlocal m, v, number
        number += 1
        m, v = 0.9 * m + 0.1 * (w - mean), 0.99 * v + 0.01 * (w - mean) ** 2
        return w - 0.05 * m / (1 - 0.9**number) / (np.sqrt(v / (1 - 0.99**number)) + 1e-3)

    reg = _fit(policy)
    np.testing.assert_allclose(reg.coef_, _federated(reg, lambda k: 2, step), rtol=1e-9)


@pytest.mark.parametrize("make", [_fit, None])
def test_one_full_batch_step_of_all_clients_equals_allreduce(make: Any) -> None:
    """With full batches, the mean of the lanes' steps is the step along their mean gradient."""
    policies = FederatedAveraging(1.0, local_steps=1), "allreduce"
    if make is not None:
        one, other = (make(policy).coef_ for policy in policies)
    else:
        labels = (Y > 0).astype(int)
        params: dict[str, Any] = {
            "batch_size": X.shape[0], "solver": "sgd", "momentum": 0.0, "max_iter": ROUNDS,
            "learning_rate_init": 0.1, "random_state": 0, "tol": None,
        }  # fmt: skip
        nets = [MLPClassifier((5,), policy=p, **params) for p in policies]
        one, other = (np.vstack(net.fit(*_blocks(labels)).coefs_[:1]) for net in nets)
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_small_clients_take_fewer_steps_of_an_epoch() -> None:
    """With a fixed number of local steps they take as many as the others and repeat their rows."""
    by_epochs = _fit(FederatedAveraging(1.0, local_epochs=2), batch_size=BATCH)
    steps = [2 * -(-n // BATCH) for n in SIZES if n]
    assert by_epochs.history_[0]["rows"] == 2 * sum(SIZES)
    assert by_epochs.history_[0]["steps"] == max(steps)
    by_steps = _fit(FederatedAveraging(1.0, local_steps=6), batch_size=BATCH)
    # Batches of a pass are even: 5, 5 rows of 10; 5 rows; of 25 rows 6, 6, 6 and 7.
    assert by_steps.history_[0]["rows"] == 6 * 5 + (25 + 12) + 6 * 5 + (40 + 8) + 6 * 8
    assert np.isfinite(by_steps.coef_).all()


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.2, 1), (0.4, 2), (0.5, 2), (1, 5)])
def test_sampled_clients_have_rows_and_depend_on_seed_and_round(
    fraction: float, count: int
) -> None:
    policy = FederatedAveraging(fraction)
    draws = [policy.draw_clients(7, number, SIZES) for number in range(200)]
    assert draws == [policy.draw_clients(7, number, SIZES) for number in range(200)]
    assert (
        draws[:50] != [policy.draw_clients(8, number, SIZES) for number in range(50)] or count == 5
    )
    assert all(len(set(clients)) == count for clients in draws)
    assert {k for clients in draws for k in clients} == {0, 1, 2, 3, 4}


def test_lanes_that_are_not_sampled_compute_nothing() -> None:
    reg = _fit(FederatedAveraging(0.2), batch_size=BATCH)
    for record in reg.history_:
        (client,) = record["clients"]
        assert (record["rows"], record["steps"]) == (SIZES[client], 5)


@pytest.mark.parametrize("optimizer", quick(["sgd", "adam", "nag", "ftrl"], "adam"))
def test_the_local_optimizer_is_reset_in_each_round(optimizer: str) -> None:
    """A fit of several rounds equals fits of one round each that continue from its parameters."""
    policy = FederatedAveraging(1.0, local_epochs=2)
    params = {"optimizer": optimizer, "shuffle": False, "batch_size": BATCH}
    whole = _fit(policy, **params)
    parts = _fit(policy, max_iter=1, warm_start=True, **params)
    for _ in range(ROUNDS - 1):
        parts.fit(*_blocks())
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-9)


@pytest.mark.parametrize(("params", "outer"), in_turn([
    {"batch_size": BATCH},
    {"batch_size": BATCH, "optimizer": "adam", "penalty": "l1", "alpha": 0.1},
    {"batch_size": BATCH, "early_stopping": True, "max_iter": 4},
], [None, "adam"]))  # fmt: skip
def test_two_workers_equal_one(client: Client, outer: Any, params: dict[str, Any]) -> None:
    policy = FederatedAveraging(0.6, local_epochs=2, proximal=0.1, outer=outer)
    params = params | {"run": Run(n_lanes=4, deterministic=True)}
    blocks = da.from_array(X, chunks=(24, -1)), da.from_array(Y, chunks=24)
    two, one = _fit(policy, rows=blocks, **params), _fit(policy, rows=(X, Y), **params)
    np.testing.assert_array_equal(two.coef_, one.coef_)


def test_sparse_rows_of_many_features(client: Client) -> None:
    """Only touched coefficients are updated; pending penalties are applied after each round."""
    import scipy.sparse

    rows = scipy.sparse.random(120, 4000, 0.005, format="csr", random_state=0, dtype=np.float64)
    target = np.asarray(rows.sum(axis=1)).ravel()
    params: dict[str, Any] = {"batch_size": 8, "alpha": 0.01, "run": Run(n_lanes=4)}
    few = _fit(FederatedAveraging(0.5), rows=(rows, target), **params)
    assert np.count_nonzero(few.coef_) > 1000
    dense = _fit(FederatedAveraging(0.5), rows=(rows.toarray(), target), **params)
    np.testing.assert_allclose(few.coef_, dense.coef_, rtol=1e-2, atol=1e-4)
    pulled = _fit(FederatedAveraging(0.5, proximal=1e-9), rows=(rows, target), **params)
    np.testing.assert_allclose(pulled.coef_, dense.coef_, rtol=1e-4, atol=1e-6)


def test_networks_and_scores_of_rounds(client: Client) -> None:
    labels = (Y > np.median(Y)).astype(int)
    net = MLPClassifier((8,), policy=FederatedAveraging(0.6, local_epochs=3), batch_size=BATCH,
                        max_iter=8, tol=None, learning_rate_init=0.02, random_state=0)  # fmt: skip
    net.fit(*_blocks(labels), eval_set=(X, labels))
    assert [len(record["clients"]) for record in net.history_] == [3] * 8
    assert len(net.history_) == 8
    assert net.history_[-1]["eval_score"] > 0.7


def test_a_checkpoint_resumes_between_rounds(tmp_path: Any) -> None:
    policy = FederatedAveraging(0.6, local_epochs=2, outer="adam")
    whole = _fit(policy, batch_size=BATCH).coef_
    checkpoint = Checkpoint(tmp_path / "fit", every=2)
    _fit(policy, batch_size=BATCH, max_iter=4, checkpoint=checkpoint)
    resumed = _fit(policy, batch_size=BATCH, checkpoint=checkpoint)
    np.testing.assert_array_equal(resumed.coef_, whole)


def test_streamed_rows_equal_rows_in_memory(client: Client) -> None:
    policy = FederatedAveraging(0.6, local_epochs=2)
    rows = da.random.default_rng(0).normal(size=(960, 4), chunks=((100, 250, 50, 400, 160), -1))
    target = rows.sum(axis=1)
    params: dict[str, Any] = {"rows": (rows, target), "batch_size": 32, "shuffle": False}
    in_memory = _fit(policy, **params)
    streamed = _fit(policy, run=Run(memory_budget=17000), **params)
    assert streamed.history_.extra["streamed"]
    np.testing.assert_allclose(streamed.coef_, in_memory.coef_, rtol=1e-12)


@pytest.mark.parametrize(("bad", "message"), [
    ({"fraction": 0}, "> 0 and <= 1"), ({"fraction": 1.1}, "> 0 and <= 1"),
    ({"fraction": True}, "> 0 and <= 1"), ({"fraction": np.nan}, "> 0 and <= 1"),
    ({"proximal": -1}, "0 is FedAvg"), ({"proximal": np.inf}, "0 is FedAvg"),
    ({"local_epochs": 0}, "integer >= 1"), ({"local_steps": 0}, "integer >= 1"),
    ({"local_steps": True}, "integer >= 1"),
    ({"local_epochs": 2, "local_steps": 3}, "Leave one of them out"),
    ({"outer": "best"}, "None for the mean"),
])  # fmt: skip
def test_invalid_parameters_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"FederatedAveraging.*{message}"):
        FederatedAveraging(**bad)


@pytest.mark.parametrize(("params", "rows", "message"), [
    ({}, (X, Y), r"one block, so one client.*partition_by_class"),
    ({"run": Run(n_lanes=1)}, None, "one client"),
    ({"run": Run(n_lanes=97)}, (X, Y), r"more clients than there are rows, 96. Use n_lanes=96"),
    ({"average": True}, None, "Use average=False"),
    ({"run": Run(compression="8bit")}, None, "'federated' drawn clients send whole"),
    ({"run": Run(shard="features")}, None, 'shard="rows"'),
])  # fmt: skip
def test_too_few_clients_and_unsupported_settings_are_refused(
    params: dict[str, Any], rows: Any, message: str
) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        _fit(FederatedAveraging(0.5), rows=rows, **params)


def test_a_custom_policy_samples_clients_in_its_own_way() -> None:
    class InTurn(FederatedAveraging):
        def draw_clients(self, seed: int, number: int, rows: Any) -> list[int]:
            return [number % 5]

        def limit_client_steps(self, seed: int, number: int, client: int, n_steps: int) -> int:
            return min(n_steps, client + 1)

    reg = _fit(InTurn(local_epochs=3))
    assert [record["clients"] for record in reg.history_] == [[k % 5] for k in range(ROUNDS)]
    expected = _federated(reg, lambda k: min(k + 1, 3))
    np.testing.assert_allclose(reg.coef_, expected, rtol=1e-10)


def test_streams_without_clients_are_refused(client: Client) -> None:
    clf = SGDClassifier(policy=FederatedAveraging(0.5))
    with (
        pytest.raises(InvalidParameterError, match="which draws clients, is not supported"),
        clf.stream(classes=[0, 1], client=client) as stream,
    ):
        stream.learn(X, Y > 0)


def test_federated_averaging_cannot_be_given_as_a_string() -> None:
    with pytest.raises(InvalidParameterError, match="Unknown policy 'federated'"):
        get_policy("federated")
