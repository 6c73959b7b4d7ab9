"""Bisecting k-means beside scikit-learn's on groups far apart; its tree; what users hand it."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.base import is_dask_collection
from distributed import Client
from scipy import sparse
from sklearn.cluster import BisectingKMeans as Peer
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import Run
from daskml_dist.cluster import BisectingKMeans, KMeans
from daskml_dist.errors import InvalidDataError, InvalidParameterError

N, D, K = 600, 5, 5
X, _ = make_blobs(N, D, centers=K, random_state=0)
LAZY = da.from_array(X, chunks=(100, -1))
#: Rows without clusters, so that the data do not determine a split.
HEAP = da.from_array(np.random.default_rng(1).normal(size=(N, D)), chunks=(100, -1))
WEIGHT = np.random.default_rng(0).integers(0, 3, N).astype(float)
CALM = Run(n_lanes=3, deterministic=True)

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "float64": (X, None, {}),
    "float32": (X.astype(np.float32), None, {}),
    "far away": ((X + 1e4).astype(np.float32), None, {}),
    "weights": (X, WEIGHT, {}),
    "sparse": (sparse.csr_matrix(X), None, {}),
    "largest": (X, None, {"bisecting_strategy": "largest_cluster"}),
    "k-means++": (X, None, {"init": "k-means++", "n_init": 3}),
    "random": (X, None, {"init": "random", "n_init": 5}),
    "one": (X, None, {"n_clusters": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_groups_are_found_as_by_scikit_learn(case: str) -> None:
    rows, weight, params = CASES[case]
    k = params.get("n_clusters", K)
    strategy = params.get("bisecting_strategy", "biggest_inertia")
    peer = Peer(k, n_init=6, random_state=0, bisecting_strategy=strategy)
    peer.fit(rows, sample_weight=weight)
    ours = BisectingKMeans(**{"n_clusters": K, "random_state": 0} | params)
    ours.fit(rows, sample_weight=weight)
    assert ours.inertia_ == pytest.approx(peer.inertia_, rel=1e-4)
    assert ours.inertia_ == pytest.approx(_inertia(ours, rows, weight), rel=1e-4)
    assert ours.score(rows, sample_weight=weight) >= -ours.inertia_ * (1 + 1e-4)
    assert ours.transform(rows[:9]).shape == (9, k)


def _inertia(model: Any, rows: Any, weight: Any) -> float:
    dense = rows.toarray() if sparse.issparse(rows) else rows.astype(float)
    apart = ((dense - model.cluster_centers_[model.labels_]) ** 2).sum(axis=1)
    return float(apart @ (np.ones(len(dense)) if weight is None else weight))


def test_leaves_are_the_means_of_their_rows() -> None:
    """Rows go down the tree in each later split, and in predict, as in the split itself."""
    rows = HEAP.compute()
    model = BisectingKMeans(9, random_state=0, tol=0.0).fit(rows)
    means = [rows[model.labels_ == label].mean(axis=0) for label in range(9)]
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    # Not the nearest centre of all: a tree's borders are not.
    nearest = model.transform(rows).argmin(axis=1)
    assert 0 < (nearest != model.labels_).sum() < N / 4
    best = Peer(9, n_init=3, random_state=0).fit(rows).inertia_
    assert model.inertia_ < 1.05 * best


def test_one_split_is_two_means() -> None:
    split = BisectingKMeans(2, random_state=0, n_init=3, tol=0.0).fit(X)
    whole = KMeans(2, random_state=0, n_init=3, tol=0.0).fit(X)
    assert split.inertia_ == pytest.approx(whole.inertia_, rel=1e-9)


def test_a_weight_is_a_repeated_row() -> None:
    params = {"n_clusters": 3, "n_init": 5, "random_state": 0, "tol": 0.0}
    weighted = BisectingKMeans(**params).fit(X, sample_weight=WEIGHT)
    repeated = BisectingKMeans(**params).fit(np.repeat(X, WEIGHT.astype(int), axis=0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-9)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-9)
    with_outliers = np.vstack([X, np.full((5, D), 1e6)])
    none = BisectingKMeans(K, random_state=0).fit(
        with_outliers, sample_weight=np.r_[np.ones(N), np.zeros(5)]
    )
    assert abs(none.cluster_centers_).max() < 100


@pytest.fixture(scope="module")
def alone() -> BisectingKMeans:
    """Fitted in this process."""
    return BisectingKMeans(6, random_state=0, run=CALM).fit(HEAP)


def _same(ours: BisectingKMeans, theirs: BisectingKMeans) -> None:
    np.testing.assert_array_equal(ours.cluster_centers_, theirs.cluster_centers_)
    assert ours.inertia_ == theirs.inertia_


def test_workers_change_nothing(alone: BisectingKMeans, client: Client) -> None:
    on_cluster = BisectingKMeans(6, random_state=0, run=CALM).fit(HEAP, client=client)
    _same(on_cluster, alone)
    np.testing.assert_array_equal(on_cluster.labels_, alone.labels_)


def test_streamed_rows(alone: BisectingKMeans) -> None:
    little = Run(n_lanes=3, deterministic=True, memory_budget=HEAP.nbytes // 4)
    streamed = BisectingKMeans(6, random_state=0, run=little).fit(HEAP)
    assert streamed.history_.extra["streamed"]
    _same(streamed, alone)


def test_few_distinct_rows() -> None:
    for kind in (np.asarray, sparse.csr_matrix):
        rows = kind(np.repeat([[0.1, 1.0], [2.3, 3.0], [2.3, 9.0]], 10, axis=0))
        with pytest.warns(ConvergenceWarning, match=r"clusters \(3\) found smaller than"):
            ours = BisectingKMeans(6, random_state=0).fit(rows)
        assert ours.inertia_ == pytest.approx(0, abs=1e-12)
        assert ours.cluster_centers_.shape == (3, 2)
        assert np.isfinite(ours.cluster_centers_).all()
        np.testing.assert_array_equal(np.bincount(ours.labels_), [10, 10, 10])


def test_lazy_input_gives_lazy_output() -> None:
    unknown = LAZY[LAZY[:, 0] > -1e9]
    ours = BisectingKMeans(K, random_state=0).fit(unknown)
    for result in (ours.labels_, ours.predict(LAZY), ours.transform(LAZY)):
        assert is_dask_collection(result)
    np.testing.assert_array_equal(ours.labels_, ours.predict(X))
    unpickled = pickle.loads(pickle.dumps(ours))
    assert not hasattr(unpickled, "labels_")  # they hold the graph of all rows
    np.testing.assert_array_equal(unpickled.predict(X), ours.labels_)
    assert list(ours.get_feature_names_out()[:2]) == ["bisectingkmeans0", "bisectingkmeans1"]


BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "no clusters": ({"n_clusters": 0}, X, InvalidParameterError, "n_clusters=0"),
    "more than rows": ({"n_clusters": 9}, X[:4], InvalidDataError, "n_samples=4 should be >= n_cl"),
    "init": ({"init": "best"}, X, InvalidParameterError, r"k-means\|\|"),
    "array": ({"init": X[:2]}, X, InvalidParameterError, "init"),
    "strategy": ({"bisecting_strategy": "any"}, X, InvalidParameterError, "largest_cluster"),
    "NaN": ({}, np.where(X > 9, np.nan, X), InvalidDataError, "NaN"),
    "n_init": ({"n_init": "auto"}, X, InvalidParameterError, "n_init"),
    "tol": ({"tol": -1.0}, X, InvalidParameterError, "tol"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    params, rows, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        BisectingKMeans(**params).fit(rows)
