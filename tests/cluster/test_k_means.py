"""k-means beside scikit-learn's, from the same first centres; its draws; what users hand it."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import is_dask_collection
from distributed import Client
from scipy import sparse
from sklearn.cluster import KMeans as Peer
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import Run
from daskml_dist.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError

N, D, K = 3000, 9, 7
X, TRUTH = make_blobs(N, D, centers=K, cluster_std=4.0, random_state=0)
LAZY = da.from_array(X, chunks=(500, -1))
WEIGHT = np.random.default_rng(0).integers(0, 3, N).astype(float)
SPARSE = sparse.random(2000, 40, 0.1, format="csr", random_state=0)
CALM = Run(n_lanes=3, deterministic=True)

CASES = {
    "float64": (X, X[:K], None, 1e-10),
    "float32": (X.astype(np.float32), X[:K], None, 1e-5),
    "weights": (X, X[:K], WEIGHT, 1e-10),
    "far away": ((X + 1e4).astype(np.float32), X[:K] + 1e4, None, 1e-5),
    "sparse": (SPARSE, SPARSE[:5].toarray(), None, 1e-10),
    # Two centroids have no rows: they move to the rows farthest from their centroids.
    "empty": (X, np.vstack([X[:3], X[:3] + 1e3]), None, 1e-10),
    "one": (X, X[:1], None, 1e-10),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_start_ends_as_scikit_learns(case: str) -> None:
    rows, init, weight, rtol = CASES[case]
    k = len(init)
    peer = Peer(k, init=init, n_init=1, algorithm="lloyd").fit(rows, sample_weight=weight)
    ours = KMeans(k, init=init).fit(rows, sample_weight=weight)
    assert ours.n_iter_ == peer.n_iter_
    np.testing.assert_allclose(ours.cluster_centers_, peer.cluster_centers_, rtol, atol=rtol)
    assert ours.inertia_ == pytest.approx(peer.inertia_, rel=1e-5)
    assert ours.score(rows, sample_weight=weight) == pytest.approx(-ours.inertia_, rel=1e-5)
    np.testing.assert_array_equal(ours.labels_, peer.labels_)
    some = rows[:50]
    np.testing.assert_allclose(ours.transform(some), peer.transform(some), rtol=1e-3)


@pytest.mark.parametrize("size", [2.0**127, 2.0**400, 2.0**-400])
@pytest.mark.parametrize("kind", [KMeans, MiniBatchKMeans, BisectingKMeans])
def test_rows_beyond_float32(kind: Any, size: float) -> None:
    unscaled = kind(K, random_state=0).fit(X)
    scaled = kind(K, random_state=0).fit(X * size)
    np.testing.assert_allclose(scaled.cluster_centers_ / size, unscaled.cluster_centers_, rtol=1e-5)
    np.testing.assert_array_equal(scaled.predict(X * size), unscaled.predict(X))


def test_workers_change_nothing(client: Client) -> None:
    alone = KMeans(K, random_state=0, run=CALM).fit(LAZY.compute())
    on_cluster = KMeans(K, random_state=0, run=CALM).fit(LAZY)
    # The same chunks on other lanes: random draws depend on rows only.
    other = KMeans(K, random_state=0, run=Run(n_lanes=2)).fit(LAZY)
    np.testing.assert_allclose(other.cluster_centers_, on_cluster.cluster_centers_, rtol=1e-10)
    assert alone.inertia_ == pytest.approx(
        on_cluster.inertia_, rel=0.05
    )  # in memory it is one chunk
    start = [KMeans(K, init=X[:K], run=CALM).fit(rows).cluster_centers_ for rows in (LAZY, LAZY)]
    np.testing.assert_array_equal(*start)


@pytest.mark.parametrize("init", ["k-means||", "k-means++", "random"])
def test_first_centres_are_good(init: str) -> None:
    best = Peer(K, n_init=10, random_state=0).fit(X).inertia_
    assert KMeans(K, init=init, n_init=4, random_state=0).fit(X).inertia_ < 1.01 * best


def test_weights_of_zero_are_no_rows() -> None:
    """However far away."""
    with_outliers = np.vstack([X, np.full((5, D), 1e6)])
    weight = np.r_[np.ones(N), np.zeros(5)]
    ours = KMeans(K, random_state=0).fit(with_outliers, sample_weight=weight)
    assert abs(ours.cluster_centers_).max() < 100


def test_few_distinct_rows() -> None:
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(2\) found smaller than"):
        ours = KMeans(4, random_state=0).fit(np.repeat([[0.0, 1.0], [2.0, 3.0]], 10, axis=0))
    assert ours.inertia_ == 0
    assert np.isfinite(ours.cluster_centers_).all()
    assert len(np.unique(ours.labels_)) == 2


def test_lazy_input_gives_lazy_output() -> None:
    ours = KMeans(K, random_state=0).fit(LAZY)
    for result in (ours.labels_, ours.predict(LAZY), ours.transform(LAZY)):
        assert is_dask_collection(result)
        assert result.chunks[0] == LAZY.chunks[0]
    np.testing.assert_array_equal(ours.labels_, ours.predict(X))
    unpickled = pickle.loads(pickle.dumps(ours))
    assert not hasattr(unpickled, "labels_")  # they hold the graph of all rows
    np.testing.assert_array_equal(unpickled.predict(X), ours.labels_)
    assert list(ours.get_feature_names_out()[:2]) == ["kmeans0", "kmeans1"]


def test_frames_and_chunks_of_unknown_sizes() -> None:
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(D)])
    ours = KMeans(K, init=X[:K]).fit(dd.from_pandas(frame, npartitions=3))
    assert list(ours.feature_names_in_) == list(frame.columns)
    unknown = LAZY[LAZY[:, 0] > -1e9]
    theirs = KMeans(K, init=X[:K]).fit(unknown)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-12)
    assert len(theirs.labels_.compute()) == N


def test_streamed_rows() -> None:
    in_memory = KMeans(K, random_state=0, run=CALM).fit(LAZY)
    streamed = KMeans(
        K, random_state=0, run=Run(n_lanes=3, deterministic=True, memory_budget=X.nbytes // 4)
    ).fit(LAZY)
    assert streamed.history_.extra["streamed"]
    np.testing.assert_array_equal(streamed.cluster_centers_, in_memory.cluster_centers_)


BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "no clusters": ({"n_clusters": 0}, X, InvalidParameterError, "n_clusters=0"),
    "more than rows": ({"n_clusters": 9}, X[:4], InvalidDataError, "n_samples=4 should be >= n_cl"),
    "init": ({"init": "best"}, X, InvalidParameterError, r"k-means\|\|"),
    "shape of init": ({"init": X[:3]}, X, InvalidParameterError, r"array of shape \(8, 9\)"),
    "NaN in init": ({"init": np.full((8, 9), np.nan)}, X, InvalidParameterError, "finite"),
    "function": ({"init": lambda *a: X[:8]}, LAZY, InvalidParameterError, "is a function"),
    "NaN": ({}, np.where(X > 9, np.nan, X), InvalidDataError, "NaN"),
    "overflow": ({}, X * 1e200, DivergedError, "StandardScaler"),
    "n_init": ({"n_init": "many"}, X, InvalidParameterError, "n_init"),
    "tol": ({"tol": -1.0}, X, InvalidParameterError, "tol"),
    "algorithm": ({"algorithm": "auto"}, X, InvalidParameterError, "lloyd"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    params, rows, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        KMeans(**params).fit(rows)


@pytest.mark.parametrize("kind", [KMeans, MiniBatchKMeans])
def test_a_function_gives_the_first_centres(kind: Any) -> None:
    def first(rows: Any, n: int, random_state: Any) -> Any:
        assert isinstance(random_state, np.random.RandomState)
        return rows[:n]

    params: dict[str, Any] = {"n_clusters": K, "random_state": 0}
    found = kind(init=first, **params).fit(X).cluster_centers_
    np.testing.assert_array_equal(found, kind(init=X[:K], **params).fit(X).cluster_centers_)
    with pytest.raises(InvalidParameterError, match="shape of the initial centers"):
        kind(init=lambda rows, n, random_state: rows[:2, :2], **params).fit(X)
    if kind is MiniBatchKMeans:
        model = kind(init=first, **params).partial_fit(X).partial_fit(X)
        np.testing.assert_array_equal(
            model.cluster_centers_,
            kind(init=X[:K], **params).partial_fit(X).partial_fit(X).cluster_centers_,
        )


def test_either_algorithm_makes_the_same_steps() -> None:
    both = [KMeans(K, random_state=0, algorithm=name).fit(X) for name in ("lloyd", "elkan")]
    np.testing.assert_array_equal(both[0].cluster_centers_, both[1].cluster_centers_)


def test_weights_below_zero_are_refused() -> None:
    with pytest.raises(InvalidDataError, match="weight"):
        KMeans(K).fit(X, sample_weight=-np.ones(N))


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(InvalidDataError, match="weight"):
        KMeans(K).fit(X, sample_weight=np.zeros(N))


def test_one_init_is_one_run() -> None:
    with pytest.warns(RuntimeWarning, match="performing only one init"):
        KMeans(K, init=X[:K], n_init=3).fit(X)
