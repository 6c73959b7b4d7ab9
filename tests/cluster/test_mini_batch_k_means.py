"""k-means by steps, beside scikit-learn's on the same batches; policies; what users hand it."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.base import is_dask_collection
from distributed import Client
from scipy import sparse
from sklearn.cluster import MiniBatchKMeans as Peer
from sklearn.datasets import make_blobs

from daskml_dist import Run
from daskml_dist.cluster import KMeans, MiniBatchKMeans
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.policies import POLICIES, LocalSGD

N, D, K = 3000, 9, 7
X, _ = make_blobs(N, D, centers=K, cluster_std=4.0, random_state=0)
LAZY = da.from_array(X, chunks=(500, -1))
WEIGHT = np.random.default_rng(0).random(N)
CALM = Run(n_lanes=3, deterministic=True)
#: What a good fit finds.
BEST = 430_228.0

BATCHES: dict[str, tuple[Any, Any, float]] = {
    "float64": (X, None, 1e-12),
    "float32": (X.astype(np.float32), None, 1e-5),
    "weights": (X, WEIGHT, 1e-12),
    "sparse": (sparse.csr_matrix(np.where(abs(X) > 5, X, 0)), None, 1e-12),
    "far away": (X + 1e4, None, 1e-12),
}


@pytest.mark.parametrize("case", BATCHES)
def test_the_same_batches_give_scikit_learns_numbers(case: str) -> None:
    rows, weight, rtol = BATCHES[case]
    init = rows[:K].toarray() if sparse.issparse(rows) else rows[:K]
    peer = Peer(K, init=init, n_init=1, reassignment_ratio=0)
    ours = MiniBatchKMeans(K, init=init, reassignment_ratio=0)
    rng = np.random.default_rng(0)
    for _ in range(10):
        at = rng.integers(0, N, rng.integers(50, 200))
        of_batch = None if weight is None else weight[at]
        for model in (peer, ours):
            model.partial_fit(rows[at], sample_weight=of_batch)
    np.testing.assert_allclose(ours.cluster_centers_, peer.cluster_centers_, rtol, atol=rtol)
    np.testing.assert_allclose(ours.counts_, peer._counts, rtol)
    np.testing.assert_array_equal(ours.labels_, peer.labels_)
    assert ours.inertia_ == pytest.approx(peer.inertia_, rel=1e-5)
    assert ours.n_steps_ == peer.n_steps_


def test_a_fit_is_steps_along_its_batches() -> None:
    """Rows in their order, on one lane."""
    ours = MiniBatchKMeans(
        K, init=X[:K], batch_size=100, max_iter=1, reassignment_ratio=0, max_no_improvement=None
    )
    ours._defaults = ours._defaults | {"shuffle": False}
    peer = Peer(K, init=X[:K], n_init=1, reassignment_ratio=0)
    ours.fit(X)
    for start in range(0, N, 100):
        peer.partial_fit(X[start : start + 100])
    np.testing.assert_allclose(ours.cluster_centers_, peer.cluster_centers_, rtol=1e-10)
    np.testing.assert_array_equal(ours.counts_, peer._counts)
    assert (ours.n_iter_, ours.n_steps_) == (1, 30)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_counts_every_row(policy: str) -> None:
    """Lanes have unequal sizes; their sum does not depend on when and where they are added."""
    rows = da.from_array(X, chunks=((1500, 1000, 500), (D,)))
    ours = MiniBatchKMeans(
        K, batch_size=100, random_state=0, policy=policy, run=Run(n_lanes=3), max_iter=3,
        reassignment_ratio=0, max_no_improvement=None,
    ).fit(rows)  # fmt: skip
    assert ours.counts_.sum() == pytest.approx(3 * N, rel=1e-9)
    mean = ours.counts_ @ ours.cluster_centers_ / ours.counts_.sum()
    np.testing.assert_allclose(mean, X.mean(axis=0), rtol=1e-9)
    assert ours.inertia_ < (1.2 if policy == "average" else 1.03) * BEST
    assert ours.history_.extra["policy"] == policy


def test_workers_change_nothing(client: Client) -> None:
    alone = MiniBatchKMeans(K, batch_size=100, random_state=0, run=CALM).fit(LAZY)
    on_cluster = MiniBatchKMeans(K, batch_size=100, random_state=0, run=CALM).fit(
        LAZY, client=client
    )
    np.testing.assert_array_equal(on_cluster.cluster_centers_, alone.cluster_centers_)
    assert (on_cluster.inertia_, on_cluster.n_steps_) == (alone.inertia_, alone.n_steps_)
    assert on_cluster.inertia_ < 1.01 * BEST
    little = Run(n_lanes=3, deterministic=True, memory_budget=X.nbytes // 4)
    streamed = MiniBatchKMeans(K, batch_size=100, random_state=0, run=little)
    streamed.fit(LAZY, client=client)
    assert streamed.history_.extra["streamed"]
    assert streamed.inertia_ < 1.01 * BEST


def test_centroids_with_few_rows_are_reassigned() -> None:
    """Three centroids start away from all rows."""
    init = np.vstack([X[: K - 3], X[:3] + 1e3])
    lost = MiniBatchKMeans(K, init=init, batch_size=100, reassignment_ratio=0).fit(X)
    assert (lost.counts_ == 0).sum() == 3
    for run in (Run(n_lanes=1), Run(n_lanes=3)):
        found = MiniBatchKMeans(K, init=init, batch_size=100, random_state=0, run=run).fit(X)
        assert (found.counts_ > 0).all()
        assert found.inertia_ < 0.9 * lost.inertia_
    bit_by_bit = MiniBatchKMeans(K, init=init, random_state=0)
    for start in range(0, N, 100):
        bit_by_bit.partial_fit(X[start : start + 100])
    assert (bit_by_bit.counts_ > 0).all()
    assert bit_by_bit.inertia_ < 0.9 * lost.inertia_


@pytest.mark.parametrize("policy", ["local", "average", "allreduce"])
def test_lanes_that_hardly_have_a_cluster_leave_its_centroid(policy: str) -> None:
    """A lane counts only its own rows between averages; each row counts once in each pass."""
    rng = np.random.default_rng(0)
    centres = 6 * rng.normal(size=(5, 6))
    labels = rng.choice(5, p=[0.8, 0.1, 0.05, 0.03, 0.02], size=2_100)
    rows = centres[labels] + rng.normal(size=(len(labels), 6))
    for seed in range(3):
        found = MiniBatchKMeans(
            5, policy=policy, random_state=seed, run=Run(n_lanes=4),
            max_no_improvement=None, max_iter=5,
        ).fit(rows)  # fmt: skip
        assert found.counts_.sum() == pytest.approx(5 * len(rows))
        assert found.inertia_ < 6.2 * len(rows)


@pytest.mark.parametrize("policy", [LocalSGD(sync_every=4), LocalSGD(sync_every=4, quorum=2)])
def test_lanes_reassign_lost_centroids_right_after_an_average(policy: LocalSGD) -> None:
    init = X[:K].copy()
    init[0] = 1e3  # far from all rows
    found = MiniBatchKMeans(
        K, init=init, batch_size=100, policy=policy, run=Run(n_lanes=2), random_state=0,
        max_no_improvement=None, max_iter=20,
    ).fit(X)  # fmt: skip
    assert np.abs(found.cluster_centers_).max() < 100


@pytest.mark.parametrize("init", ["k-means||", "k-means++", "random"])
def test_ends(init: str) -> None:
    ours = MiniBatchKMeans(K, init=init, n_init=30, batch_size=100, random_state=1).fit(X)
    assert ours.n_iter_ < 20
    assert ours.inertia_ < 1.02 * BEST
    assert ours.inertia_ == pytest.approx(-ours.score(X), rel=1e-9)
    settled = MiniBatchKMeans(
        K, init=init, n_init=1, random_state=1, tol=1e-2, max_no_improvement=None
    ).fit(X)
    assert settled.n_iter_ < 100
    assert len(settled.history_.records) == settled.n_iter_


def test_lazy_input_gives_lazy_output() -> None:
    unknown = LAZY[LAZY[:, 0] > -1e9]
    ours = MiniBatchKMeans(K, random_state=0).fit(unknown)
    for result in (ours.labels_, ours.predict(LAZY), ours.transform(LAZY)):
        assert is_dask_collection(result)
    np.testing.assert_array_equal(ours.labels_, ours.predict(X))
    unpickled = pickle.loads(pickle.dumps(ours))
    assert not hasattr(unpickled, "labels_")  # they hold the graph of all rows
    np.testing.assert_array_equal(unpickled.predict(X), ours.labels_)
    unpickled.partial_fit(LAZY)
    assert unpickled.n_steps_ == ours.n_steps_ + 1
    assert list(ours.get_feature_names_out()[:2]) == ["minibatchkmeans0", "minibatchkmeans1"]
    bare = MiniBatchKMeans(K, compute_labels=False, random_state=0).fit(X)
    assert not hasattr(bare, "labels_")
    assert bare.inertia_ == pytest.approx(ours.inertia_, rel=0.1)


def test_few_distinct_rows() -> None:
    rows = np.repeat([[0.0, 1.0], [2.0, 3.0]], 10, axis=0)
    for kind in (np.asarray, sparse.csr_matrix, da.asarray):
        ours = MiniBatchKMeans(4, random_state=0).fit(kind(rows))
        assert ours.inertia_ == pytest.approx(0, abs=1e-12)
        assert np.isfinite(ours.cluster_centers_).all()
    weight = np.r_[np.ones(10), np.zeros(10)]
    one = MiniBatchKMeans(2, random_state=0).fit(rows, sample_weight=weight)
    np.testing.assert_allclose(one.cluster_centers_, [[0.0, 1.0]] * 2, atol=1e-12)


BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "no clusters": ({"n_clusters": 0}, X, InvalidParameterError, "n_clusters=0"),
    "more than rows": ({"n_clusters": 9}, X[:4], InvalidDataError, "n_samples=4 should be >= n_cl"),
    "init": ({"init": "best"}, X, InvalidParameterError, r"k-means\|\|"),
    "shape of init": ({"init": X[:3]}, X, InvalidParameterError, r"array of shape \(8, 9\)"),
    "NaN": ({}, np.where(X > 9, np.nan, X), InvalidDataError, "NaN"),
    "overflow": ({}, X * 1e200, DivergedError, "StandardScaler"),
    "batches": ({"batch_size": 0}, X, InvalidParameterError, "batch_size=0"),
    "no improvement": ({"max_no_improvement": -1}, X, InvalidParameterError, "max_no_improvement"),
    "ratio": ({"reassignment_ratio": -1.0}, X, InvalidParameterError, "reassignment_ratio"),
    "tol": ({"tol": -1.0}, X, InvalidParameterError, "tol"),
    "policy": ({"policy": "best"}, X, InvalidParameterError, "Unknown policy"),
    "outer": ({"policy": LocalSGD(outer_rate=0.7)}, X, InvalidParameterError, "outer_rate"),
    "compressed": ({"run": Run(compression="topk")}, X, InvalidParameterError, "compression"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    params, rows, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        MiniBatchKMeans(**params).fit(rows)


def test_partial_fit_needs_the_same_number_of_clusters() -> None:
    model = MiniBatchKMeans(3, random_state=0).partial_fit(X)
    with pytest.raises(InvalidParameterError, match="that is continued has 3"):
        model.set_params(n_clusters=4).partial_fit(X)
    with pytest.warns(RuntimeWarning, match="init_size=2 should be larger"):
        MiniBatchKMeans(K, init_size=2, random_state=0).fit(X)


def test_one_init_is_one_start() -> None:
    with pytest.warns(RuntimeWarning, match="performing only one init"):
        MiniBatchKMeans(K, init=X[:K], n_init=3).fit(X)


def test_inertia_is_near_that_of_full_batches() -> None:
    """On rows without clusters."""
    heap = np.random.default_rng(1).normal(size=(20_000, 5))
    whole = KMeans(K, random_state=0).fit(heap).inertia_
    assert MiniBatchKMeans(K, random_state=0).fit(heap).inertia_ < 1.02 * whole
