"""Fits of embedding models with a separate policy for each part of the parameters."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist import Run
from daskml_dist.callbacks import Checkpoint
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import AllReduce, Asynchronous, PolicyByPart, get_policy
from daskml_dist.recommender import DeepFMClassifier, FactorizationMachineClassifier
from tests.quick import quick
from tests.training.recovery.strikes import Strike, make_strike

N_ROWS, N_IDS, N_LANES = 1_200, 300, 3
BY_PART = {"embeddings": "async", "dense": "allreduce"}


def _rows() -> tuple[Any, Any]:
    """Return rows of a user and an item each, labelled by both ids; every third row has no ids."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(N_IDS // 2, size=(2, N_ROWS))
    X = sparse.lil_array((N_ROWS, N_IDS))
    X[np.arange(N_ROWS), users] = 1.0
    X[np.arange(N_ROWS), N_IDS // 2 + items] = 1.0
    X = X.tocsr()
    X.data[:] = 1.0
    y = users % 2 == items % 2
    empty = np.arange(N_ROWS) % 3 == 0
    y[empty] = rng.random(empty.sum()) < 0.8
    return sparse.csr_array(sparse.diags_array((~empty).astype(float)) @ X), y


def _lazy(X: Any, y: Any, rows: int = 200) -> tuple[Any, Any]:
    parts = [da.from_array(X[at : at + rows], asarray=False) for at in range(0, N_ROWS, rows)]
    return da.concatenate(parts), da.from_array(y, chunks=rows)


def _machine(policy: Any, *callbacks: Any, **params: Any) -> FactorizationMachineClassifier:
    options = {"max_iter": 20, "batch_size": 16, "run": Run(n_lanes=N_LANES, n_servers=2)} | params
    some = [*callbacks, *(c.hold_up() for c in callbacks if isinstance(c, Strike))]
    return FactorizationMachineClassifier(
        policy=policy, random_state=0, callbacks=some, dtype="float64", **options
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("hidden", [None, (8,)])
def test_one_lane_equals_sync(optimizer: str, hidden: Any) -> None:
    X, y = _rows()

    def fit(policy: Any) -> Any:
        params: dict[str, Any] = {
            "policy": policy, "optimizer": optimizer, "random_state": 0, "max_iter": 3,
            "batch_size": 32, "run": Run(n_lanes=1),
        }  # fmt: skip
        if hidden is None:
            return FactorizationMachineClassifier(**params).fit(X, y)
        two = sparse.csr_array(np.random.default_rng(0).normal(size=(N_ROWS, 2)))
        return DeepFMClassifier(hidden_layer_sizes=hidden, **params).fit(two, y)

    found, truth = fit(BY_PART), fit("sync")
    np.testing.assert_array_equal(found.ids_, truth.ids_)
    np.testing.assert_array_equal(found.weights_, truth.weights_)
    np.testing.assert_array_equal(found.vectors_, truth.vectors_)
    assert found.intercept_ == truth.intercept_


#: Rows without ids, whose predictions are the intercept alone, and a loss that determines it;
#: full batches, so that the order of the rows does not matter.
EMPTY = sparse.csr_array((N_ROWS, N_IDS))
WHOLE: dict[str, Any] = {
    "loss": "squared_hinge", "tol": None, "batch_size": None, "optimizer": "sgd",
    "learning_rate": 0.05, "alpha": 0.0,
}  # fmt: skip


def _with_adam(rate: float) -> PolicyByPart:
    return PolicyByPart(Asynchronous(), AllReduce(), dense_optimizer="adam", dense_rate=rate)


def _follow_intercept(y: Any, passes: int, optimizer: str, rate: float = 0.05) -> float:
    """Return the intercept of a descent on rows without ids, written plainly."""
    sign = np.where(y, 1.0, -1.0)
    w = first = second = 0.0
    for t in range(1, passes + 1):
        slope = np.mean(-2 * sign * np.maximum(0, 1 - sign * w))
        if optimizer == "sgd":
            w -= rate * slope
        else:
            first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
            w -= rate * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return float(w)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_continued_fits_equal_one_fit(optimizer: str, tmp_path: Any) -> None:
    y, policy = _rows()[1], _with_adam(0.05) if optimizer == "adam" else BY_PART
    truth = _follow_intercept(y, 8, optimizer)
    once = _machine(policy, max_iter=8, **WHOLE).fit(EMPTY, y)
    assert once.intercept_ == pytest.approx(truth, rel=1e-7)
    twice = _machine(policy, max_iter=4, warm_start=True, **WHOLE).fit(EMPTY, y).fit(EMPTY, y)
    assert twice.intercept_ == pytest.approx(truth, rel=1e-7)
    checkpoint = Checkpoint(tmp_path / "fit.npz")
    saved = _machine(policy, max_iter=4, checkpoint=checkpoint, **WHOLE).fit(EMPTY, y)
    resumed = saved.set_params(max_iter=8).fit(EMPTY, y)
    assert resumed.intercept_ == pytest.approx(truth, rel=1e-7)


def test_dense_parameters_are_summed_over_all_lanes(client: Client) -> None:
    # Rows without ids, so that the order of the lanes' pushes does not matter.
    y = _rows()[1]
    found = _machine(BY_PART, max_iter=5, **WHOLE).fit(*_lazy(EMPTY, y))
    assert found.intercept_ == pytest.approx(_follow_intercept(y, 5, "sgd"), rel=1e-9)


@pytest.mark.parametrize("role", quick(["server", "trainer", "both"], "both"))
def test_a_killed_worker_neither_loses_nor_repeats_steps(crew_client: Client, role: str) -> None:
    X, y = _rows()

    def fit(*callbacks: Any, **params: Any) -> Any:
        return _machine(BY_PART, *callbacks, max_iter=20, tol=None, **params).fit(*_lazy(X, y))

    undisturbed, strike = fit(), make_strike(crew_client, role)
    struck = fit(strike)
    assert strike.struck
    np.testing.assert_array_equal(struck.ids_, undisturbed.ids_)
    assert struck.score(X, y) > 0.75
    # Each row is counted once a pass, whichever trainer made the step.
    assert all(record["rows"] == N_ROWS for record in struck.history_.records)


def test_rows_without_ids_follow_gradient_descent_through_a_kill(crew_client: Client) -> None:
    # The loss depends on the intercept alone, each of whose steps must be made once.
    y, passes, strike = _rows()[1], 400, make_strike(crew_client, "both")
    # Slow enough that the intercept has not converged at the end.
    found = _machine(_with_adam(1e-3), strike, max_iter=passes, **WHOLE).fit(*_lazy(EMPTY, y))
    assert strike.struck
    assert len(found.history_.records) == passes
    truth = _follow_intercept(y, passes, "adam", 1e-3)
    assert found.intercept_ == pytest.approx(truth, rel=1e-7)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"embeddings": "async"}, "must have the parts"),
        ({"embeddings": "sync", "dense": "allreduce"}, "pulled and pushed at each step"),
        ({"embeddings": Asynchronous(push_every=2), "dense": "allreduce"}, "at each step"),
        ({"embeddings": "async", "dense": "async"}, "sum the gradients"),
        ({"embeddings": "never", "dense": "allreduce"}, "Unknown policy"),
    ],
)
def test_unsupported_policies_of_parts_are_refused(policy: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        get_policy(policy)


def test_names_of_parts_outside_a_mapping_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="a mapping of names"):
        PolicyByPart("async", "allreduce")  # type: ignore[arg-type]


def test_models_without_embeddings_are_refused() -> None:
    X, y = _rows()
    by_part = PolicyByPart(Asynchronous(), AllReduce())
    with pytest.raises(InvalidParameterError, match="a model over ids"):
        SGDClassifier(policy=by_part).fit(X, y)
