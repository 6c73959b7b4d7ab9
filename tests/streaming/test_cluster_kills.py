"""A stream whose workers are killed learns each row exactly once."""

import os
import signal

import numpy as np
import pandas as pd
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.cluster import MiniBatchKMeans
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.recommender import MatrixFactorization
from tests.lost_workers import wait_for_three

_RNG = np.random.default_rng(0)
_BATCHES = []
for _number in range(90):
    _X = _RNG.standard_normal((40, 6))
    _BATCHES.append((_X, (_X[:, 0] + _RNG.standard_normal(40) > 0).astype(int)))


def _kill_one(client, number):
    wait_for_three(client)
    pids = client.run(os.getpid)
    os.kill(pids[sorted(pids)[number]], signal.SIGKILL)


def _learn_and_kill(client, stream, calls):
    """Return the loss of a stream of calls of 40 rows during which three workers are killed."""
    for number, rows in enumerate(calls):
        if number % 30 == 10:
            _kill_one(client, number // 30)
        stream.learn(*rows, position=number)
    assert (stream.position, stream.n_rows) == (89, 90 * 40)
    return stream.progressive_loss


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("policy", ["sync", "allreduce", "local", "average", "async", "hogwild"])
def test_no_row_is_lost_or_learned_twice_by_kills_of_workers(crew, policy, assert_clean):
    params = {"policy": policy, "random_state": 0, "optimizer": "sgd", "learning_rate": 0.1}
    # Of free-running lanes only a single one has a defined order.
    alone = policy in {"async", "hogwild"}
    run = Run(n_lanes=1 if alone else 3, n_servers=1 if policy == "allreduce" else 2)
    ours, theirs = (SGDClassifier(run=run, **params) for _ in range(2))
    with Client(crew) as client:
        with ours.stream(classes=[0, 1], client=client) as stream:
            found = _learn_and_kill(client, stream, _BATCHES)
        assert_clean(client)
        with theirs.stream(classes=[0, 1], client=client) as stream:
            for X, y in _BATCHES:
                stream.learn(X, y)
            assert stream.progressive_loss == pytest.approx(found, rel=1e-9)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("policy", ["sync", "allreduce", "local", "async"])
def test_centres_have_each_row_once_after_kills_of_workers(crew, policy, assert_clean):
    # The client checks for small clusters, and sometimes reassigns centroids.
    params = {"n_clusters": 6, "init": "random", "reassignment_ratio": 0.5, "random_state": 0}
    run = Run(n_lanes=1 if policy == "async" else 3, n_servers=2)
    ours, theirs = (MiniBatchKMeans(policy=policy, run=run, **params) for _ in range(2))
    with Client(crew) as client:
        with ours.stream(client=client) as stream:
            found = _learn_and_kill(client, stream, [(X,) for X, _ in _BATCHES])
        assert_clean(client)
        with theirs.stream(client=client) as stream:
            for X, _ in _BATCHES:
                stream.learn(X)
            assert stream.progressive_loss == pytest.approx(found, rel=1e-9)
    np.testing.assert_allclose(ours.counts_, theirs.counts_, rtol=1e-12)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("policy", ["sync", "allreduce", "async", "hogwild"])
def test_ratings_count_once_after_kills_of_workers(crew, policy, assert_clean):
    # Users and items arrive all the time, so the parameters grow twice from a capacity of 1,024.
    rng, calls = np.random.default_rng(0), []
    for number in range(90):
        users, items = rng.integers(0, 40 * (number + 1), 40), rng.integers(0, 15, 40)
        ratings = rng.integers(1, 6, 40)
        calls.append(pd.DataFrame({"user": users, "item": items, "rating": ratings}))
    alone = policy in {"async", "hogwild"}
    run = Run(n_lanes=1 if alone else 3, n_servers=1 if policy == "allreduce" else 2)
    params = {"implicit": True, "loss": "log_loss", "negatives": 2, "dtype": "float64"}
    ours, theirs = (
        MatrixFactorization(3, policy=policy, run=run, random_state=0, **params) for _ in range(2)
    )
    with Client(crew) as client:
        with ours.stream(client=client) as stream:
            found = _learn_and_kill(client, stream, [(call,) for call in calls])
        assert_clean(client)
    with theirs.stream() as stream:
        for call in calls:
            stream.learn(call)
        assert stream.progressive_loss == pytest.approx(found, rel=1e-9)
    assert np.array_equal(ours.user_ids_, theirs.user_ids_)
    np.testing.assert_allclose(ours.user_factors_, theirs.user_factors_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.item_factors_, theirs.item_factors_, rtol=1e-6, atol=1e-9)
