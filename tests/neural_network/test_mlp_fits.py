"""Fits of multi-layer perceptrons: every policy, one and two workers, with and without faults."""

from __future__ import annotations

import os
import pickle
import signal
import time
from functools import cache
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from sklearn import neural_network as theirs
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score

from daskml_dist import Run
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.neural_network import MLPClassifier, MLPRegressor
from daskml_dist.policies import POLICIES, get_policy
from tests.quick import quick

EXACT = ["sync", "allreduce", "local", "average"]
ORDERED = Run(n_lanes=2, deterministic=True)
#: Settings of fits that make exactly the given number of passes.
PASSES = {"n_iter_no_change": np.inf, "random_state": 0}


@cache
def rows() -> tuple[Any, Any]:
    """The digits, as float32."""
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y


def lazy(n_blocks: int = 4) -> tuple[Any, Any]:
    X, y = rows()
    size = -(-len(X) // n_blocks)
    return da.from_array(X, chunks=(size, -1)), da.from_array(y, chunks=size)


def same(one: Any, other: Any) -> None:
    for name in ("coefs_", "intercepts_"):
        for a, b in zip(getattr(one, name), getattr(other, name), strict=True):
            np.testing.assert_array_equal(a, b)


def classifier(**params: Any) -> MLPClassifier:
    return MLPClassifier(**{"hidden_layer_sizes": (24,), "max_iter": 3, **PASSES} | params)


def test_one_lane_equals_a_plain_loop() -> None:
    X, y = rows()
    X, y = X[:200].astype(np.float64), y[:200]
    found = MLPClassifier(
        (8,), solver="sgd", batch_size=50, shuffle=False, max_iter=5, alpha=0.5, momentum=0.8,
        learning_rate_init=0.1, **PASSES,
    ).fit(X, y)  # fmt: skip
    rng = np.random.RandomState(0)
    w: list[Any] = []
    for shape in [(64, 8), (8, 10)]:
        bound = np.sqrt(6 / sum(shape))
        w += [rng.uniform(-bound, bound, shape), rng.uniform(-bound, bound, shape[1])]
    speed = [np.zeros_like(part) for part in w]
    for start in list(range(0, 200, 50)) * 5:
        x, label = X[start : start + 50], y[start : start + 50]
        hidden = np.maximum(x @ w[0] + w[1], 0)
        g = np.exp(hidden @ w[2] + w[3])
        g /= g.sum(axis=1, keepdims=True)
        g[np.arange(50), label] -= 1
        back = (g @ w[2].T) * (hidden > 0)
        gradients = [x.T @ back, back.sum(axis=0), hidden.T @ g, g.sum(axis=0)]
        for i, part in enumerate(w):
            gradient = (gradients[i] + (0.5 * part if i % 2 == 0 else 0)) / 50
            speed[i] = 0.8 * speed[i] + gradient
            part -= 0.1 * (gradient + 0.8 * speed[i])
    for i in (0, 1):
        np.testing.assert_allclose(found.coefs_[i], w[2 * i], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.intercepts_[i], w[2 * i + 1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "allreduce", "async", "local"))
def test_learns_on_workers_under_every_policy(client: Client, policy: str) -> None:
    params = {"max_iter": 8, "learning_rate_init": 0.01, "batch_size": 50}
    found = classifier(policy=policy, **params).fit(*lazy())
    # The result of racing lanes after so few steps depends on the last of them.
    assert found.score(*rows()) > (0.95 if get_policy(policy).lockstep else 0.75)
    assert found.history_.extra["policy"] == policy
    if policy == "hogwild":
        synchronous = classifier(policy="sync", **params).fit(*lazy())
        largest = [max(abs(w).max() for w in m.coefs_) for m in (found, synchronous)]
        # Races alone make them 1.7 times as large; a rate of ten times as much, 3.1 times.
        assert largest[0] < 2.5 * largest[1]


def test_workers_and_policies_give_the_same_bits(client: Client) -> None:
    two = classifier(run=ORDERED).fit(*lazy())
    same(classifier(run=ORDERED, policy="sync").fit(*lazy()), two)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as one,
        Client(one, set_as_default=False) as alone,
    ):
        same(classifier(run=ORDERED).fit(*lazy(), client=alone), two)


def test_rows_beyond_the_budget_are_read_in_each_pass(client: Client) -> None:
    found = classifier(
        run=Run(memory_budget="100 kB"), max_iter=6, learning_rate_init=0.01, batch_size=50
    ).fit(*lazy(8))
    assert found.history_.extra["streamed"]
    assert found.score(*lazy(8)) > 0.85


class _Strike:
    """Callback that ends a worker by SIGKILL once during a fit."""

    def __init__(self, client: Client) -> None:
        self.client, self.events, self.struck = client, list[Any](), False
        self.began = time.monotonic()

    def on_step_end(self, step: Any) -> None:
        time.sleep(0.003)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if not self.struck and record["pass"] > 2 and time.monotonic() - self.began > 1.5:
            self.struck = True
            (pid,) = self.client.run(os.getpid, workers=[run.trainer_addresses[-1]]).values()
            os.kill(pid, signal.SIGKILL)

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append(event)

    def __getstate__(self) -> dict[str, Any]:
        return {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        *[(policy, {}) for policy in EXACT],
        # A million parameters, of which one snapshot is kept.
        ("allreduce", {"hidden_layer_sizes": (14_000,), "batch_size": 600, "max_iter": 20}),
    ],
)
def test_a_killed_worker_changes_nothing(
    crew: LocalCluster, policy: str, changes: dict[str, Any]
) -> None:
    exact = {"max_iter": 60, "run": Run(n_lanes=3, deterministic=True)}
    params: dict[str, Any] = {"policy": policy, **exact, **changes}
    with Client(crew) as client:
        client.wait_for_workers(3)
        undisturbed = classifier(**params).fit(*lazy(6))
        strike = _Strike(client)
        struck = classifier(**params, callbacks=[strike]).fit(*lazy(6))
    assert strike.events
    same(struck, undisturbed)


@pytest.mark.parametrize("n_lanes", quick([1, 2, 8], 8))
def test_defaults_learn_the_digits_on_any_number_of_lanes(n_lanes: int) -> None:
    X, y = rows()
    params = {"random_state": 0, "max_iter": 30}
    found = MLPClassifier(**params, run=Run(n_lanes=n_lanes)).fit(X[::2], y[::2])
    with pytest.warns(ConvergenceWarning):
        their = theirs.MLPClassifier(**params).fit(X[::2], y[::2])
    assert found.score(X[1::2], y[1::2]) > their.score(X[1::2], y[1::2]) - 0.01


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_multilabel_targets(solver: str) -> None:
    X, y = make_multilabel_classification(300, n_features=8, n_classes=4, random_state=0)
    X = X / X.std(axis=0)
    params = {"tol": 0.02, "alpha": 1.0} if solver == "lbfgs" else {"max_iter": 500}
    found = MLPClassifier((32,), solver=solver, learning_rate_init=0.01, random_state=0, **params)
    found.fit(da.from_array(X, chunks=(100, -1)), da.from_array(y, chunks=(100, -1)))
    predicted, proba = found.predict(X), found.predict_proba(X)
    assert (found.out_activation_, found.n_outputs_) == ("logistic", 4)
    assert predicted.shape == proba.shape == y.shape
    np.testing.assert_array_equal(predicted, proba > 0.5)
    assert found.score(X, y) == pytest.approx(accuracy_score(y, predicted))
    assert found.score(X, y) > 0.5
    with pytest.raises(InvalidDataError, match="one column of 0 and 1"):
        found.fit(X, y + 1)


def test_multi_output_targets() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = np.stack([np.tanh(X[:, 0]) + X[:, 1], X[:, 2] ** 2], axis=1)
    found = MLPRegressor(hidden_layer_sizes=(32,), learning_rate_init=0.01, random_state=0)
    found.fit(X, y)
    assert found.predict(X).shape == y.shape
    assert found.score(X, y) == pytest.approx(r2_score(y, found.predict(X)))
    assert found.score(X, y) > 0.97
    one = MLPRegressor(hidden_layer_sizes=(4,), max_iter=2, tol=None, random_state=0)
    with pytest.warns(UserWarning, match="column-vector"):
        assert one.fit(X, y[:, :1]).predict(X).shape == (400,)


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_weights_equal_repeated_rows(solver: str) -> None:
    X, y = rows()
    X, y, weight = X[:60].astype(np.float64), y[:60], np.arange(60) % 3
    params = {"solver": solver, "batch_size": None, "alpha": 1.0, "max_iter": 8, "tol": 0.0}
    repeats = np.repeat(np.arange(60), weight)
    with pytest.warns(UserWarning, match=r"settled|converge"):
        weighted = classifier(**params).fit(X, y, weight)
    with pytest.warns(UserWarning, match=r"settled|converge"):
        repeated = classifier(**params).fit(X[repeats], y[repeats])
    for a, b in zip(weighted.coefs_, repeated.coefs_, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_fits_continue() -> None:
    X, y = rows()
    found = classifier(warm_start=True).fit(X, y)
    first = list(found.loss_curve_)
    found.fit(X, y)
    assert found.loss_curve_[:3] == first
    assert len(found.loss_curve_) == 6
    assert found.loss_ < first[-1]
    found.coefs_[0][:] = 0.0  # changes by the user are used
    assert found.set_params(max_iter=1).fit(X, y).loss_ > first[-1]
    with pytest.raises(InvalidParameterError, match="the layers of the first fit"):
        found.set_params(hidden_layer_sizes=(3,)).fit(X, y)
    steps = classifier()
    for _ in range(3):
        steps.partial_fit(X, y, classes=np.arange(10))
    assert len(steps.loss_curve_) == 3
    assert steps.t_ == 3 * len(X)
    by_rounds = classifier(solver="lbfgs", warm_start=True)
    with pytest.warns(UserWarning, match="converge"):
        losses = [by_rounds.fit(X, y).loss_ for _ in range(2)]
    assert losses[1] < losses[0]
    with pytest.raises(InvalidDataError, match="same classes"):
        by_rounds.fit(X, y % 2)


def test_an_adaptive_rate_falls_until_the_fit_ends() -> None:
    X, y = rows()
    found = MLPClassifier(
        (16,), solver="sgd", learning_rate="adaptive", learning_rate_init=0.2, tol=0.05,
        n_iter_no_change=1, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert found.n_iter_ == len(found.loss_curve_) == len(found.history_) > 8
    assert [record["pass"] for record in found.history_.records] == [*range(1, found.n_iter_ + 1)]
    assert abs(np.diff(found.loss_curve_[-2:])).max() < 1e-3


def test_held_out_rows_stop_the_fit() -> None:
    X, y = rows()
    found = MLPClassifier((16,), early_stopping=True, tol=0.5, n_iter_no_change=2, random_state=0)
    found.fit(X, y)
    assert found.n_iter_ == len(found.validation_scores_) < 10
    assert found.best_validation_score_ == max(found.validation_scores_)
    assert found.best_loss_ is None


def test_frames_lazy_predictions_and_pickles() -> None:
    X, y = rows()
    frame = pd.DataFrame(X[:, 10:30], columns=[f"p{i}" for i in range(20)]).assign(digit=y)
    found = classifier(max_iter=5).fit(dd.from_pandas(frame, npartitions=3), "digit")
    assert found.feature_names_in_[0] == "p0"
    copy = pickle.loads(pickle.dumps(found))
    lazy_rows = dd.from_pandas(frame.drop(columns="digit"), npartitions=2)
    for name in ("predict", "predict_proba", "predict_log_proba"):
        in_memory = getattr(found, name)(frame.drop(columns="digit"))
        np.testing.assert_allclose(getattr(copy, name)(lazy_rows).compute(), in_memory, rtol=1e-5)
    assert copy.score(lazy_rows, dd.from_pandas(frame["digit"], npartitions=2)) == pytest.approx(
        found.score(frame.drop(columns="digit"), y)
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hidden_layer_sizes": (8, 0)}, "hidden_layer_sizes must be > 0"),
        ({"activation": "swish"}, "activation='swish': use one of"),
        ({"solver": "newton"}, "solver='newton': use one of"),
        ({"learning_rate": "fast"}, "learning_rate='fast': use one of"),
        ({"learning_rate_init": 0}, "learning_rate_init=0: use a number > 0"),
        ({"alpha": -1.0}, "alpha=-1.0: use a number >= 0"),
        ({"solver": "lbfgs", "optimizer": "adagrad"}, "does not use optimizer='adagrad'"),
        ({"solver": "sgd", "momentum": 1.0}, "momentum=1.0"),
        ({"schedule": "slow"}, "learning_rate='slow'"),
    ],
)
def test_invalid_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        MLPClassifier(**params).fit(*rows())


def test_other_optimizers_and_schedules() -> None:
    X, y = rows()
    plain = classifier(max_iter=5).fit(X, y)
    for params in ({"optimizer": "adagrad"}, {"schedule": "cosine"}, {"schedule": 1e-2}):
        found = classifier(max_iter=5, **params).fit(X, y)
        assert found.loss_ != plain.loss_
        assert np.isfinite(found.loss_)
