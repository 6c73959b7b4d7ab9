"""Mixtures beside scikit-learn's, from the same start; first components; what users hand them."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import is_dask_collection
from distributed import Client
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Peer

from daskml_dist import Run
from daskml_dist.backends import mixture as rows_of_mixtures
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.mixture import GaussianMixture

N, D, K = 1500, 4, 3
RNG = np.random.default_rng(0)
MEANS = RNG.normal(size=(K, D)) * 3
X = np.concatenate([m + RNG.normal(size=(N // K, D)) @ RNG.normal(size=(D, D)) for m in MEANS])
RNG.shuffle(X)
LAZY = da.from_array(X, chunks=(250, -1))
CALM = Run(n_lanes=3, deterministic=True)
PRECISIONS = {
    "full": np.stack([np.eye(D)] * K), "tied": np.eye(D), "diag": np.ones((K, D)),
    "spherical": np.ones(K),
}  # fmt: skip
NAMES = ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_")


def start(kind: str = "full", **more: Any) -> dict[str, Any]:
    """Parameters that leave nothing to draw."""
    params = {"weights_init": [0.2, 0.3, 0.5], "means_init": X[:K], "tol": 1e-9, "max_iter": 500}
    return {
        "n_components": K, "covariance_type": kind, "precisions_init": PRECISIONS[kind],
    } | params | more  # fmt: skip


def assert_alike(ours: Any, peer: Any, rtol: float) -> None:
    for name in NAMES:
        found, wanted = getattr(ours, name), getattr(peer, name)
        np.testing.assert_allclose(found, wanted, rtol, atol=rtol * abs(wanted).max(), err_msg=name)
    assert ours.lower_bound_ == pytest.approx(peer.lower_bound_, rel=rtol)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", PRECISIONS)
def test_the_same_start_ends_as_scikit_learns(
    kind: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        monkeypatch.setattr(rows_of_mixtures, "_MIN_COMPILED_PRODUCTS", 0)
    peer, ours = Peer(**start(kind)).fit(X), GaussianMixture(**start(kind)).fit(X)
    assert ours.n_iter_ == peer.n_iter_
    assert ours.converged_
    assert_alike(ours, peer, 1e-8)
    np.testing.assert_allclose(ours.lower_bounds_, peer.lower_bounds_)
    single = GaussianMixture(**start(kind, tol=1e-6)).fit(X.astype(np.float32))
    assert_alike(single, Peer(**start(kind, tol=1e-6)).fit(X), 1e-3)
    np.testing.assert_array_equal(ours.predict(X), peer.predict(X))
    np.testing.assert_allclose(ours.predict_proba(X), peer.predict_proba(X), atol=1e-8)
    np.testing.assert_allclose(ours.score_samples(X), peer.score_samples(X), rtol=1e-8)
    for name in ("score", "bic", "aic"):
        assert getattr(ours, name)(LAZY) == pytest.approx(getattr(peer, name)(X), rel=1e-8)


def test_rows_beyond_float32() -> None:
    size = 2.0**300
    unscaled = GaussianMixture(K, reg_covar=0.0, random_state=0).fit(X)
    scaled = GaussianMixture(K, reg_covar=0.0, random_state=0).fit(X * size)
    np.testing.assert_allclose(scaled.means_ / size, unscaled.means_, rtol=1e-6)
    np.testing.assert_array_equal(scaled.predict(X * size), unscaled.predict(X))


def test_far_from_the_origin() -> None:
    """In float32, where squares lose all precision."""
    rows = np.round(X * 64) / 64
    options = {"means_init": rows[:K], "max_iter": 20, "tol": 1e-3}
    unshifted = GaussianMixture(**start(**options)).fit(rows)
    options["means_init"] = rows[:K] + 2.0**16
    shifted = GaussianMixture(**start(**options)).fit((rows + 2.0**16).astype(np.float32))
    np.testing.assert_allclose(shifted.means_ - 2.0**16, unshifted.means_, atol=1e-3)
    np.testing.assert_allclose(shifted.covariances_, unshifted.covariances_, rtol=1e-3, atol=1e-3)


def test_sparse_rows_are_made_dense_some_at_a_time() -> None:
    rows = np.where(X > 1, X, 0.0)
    for init in ("kmeans", "random"):
        params = {"init_params": init, "random_state": 0, "reg_covar": 1e-2}
        dense = GaussianMixture(2, **params).fit(rows)
        ours = GaussianMixture(2, **params).fit(sparse.csr_matrix(rows))
        assert_alike(ours, dense, 1e-8)
        np.testing.assert_array_equal(ours.predict(sparse.csr_matrix(rows)), dense.predict(rows))


@pytest.mark.parametrize("init", ["kmeans", "k-means++", "random", "random_from_data"])
def test_first_components_are_good(init: str) -> None:
    best = Peer(K, n_init=5, random_state=0, tol=1e-5, max_iter=300).fit(X).lower_bound_
    params = {"init_params": init, "n_init": 4, "random_state": 0}
    ours = GaussianMixture(K, **params).fit(X)
    assert ours.lower_bound_ == pytest.approx(best, abs=0.01)
    assert len(ours.lower_bounds_) == ours.n_iter_
    np.testing.assert_array_equal(GaussianMixture(K, **params).fit(X).means_, ours.means_)


def test_parts_of_a_start_are_taken() -> None:
    ours = GaussianMixture(K, means_init=MEANS, random_state=0).fit(X)
    peer = Peer(K, means_init=MEANS, random_state=0).fit(X)
    assert ours.lower_bound_ == pytest.approx(peer.lower_bound_, abs=1e-3)


def test_workers_and_weights_change_nothing(client: Client) -> None:
    params = start(tol=0.02)
    alone = GaussianMixture(**params, run=CALM).fit(X)
    on_cluster = GaussianMixture(**params, run=CALM).fit(LAZY)
    assert_alike(on_cluster, alone, 1e-9)
    assert_alike(GaussianMixture(**params, run=Run(n_lanes=2)).fit(LAZY), on_cluster, 1e-9)
    refitted = GaussianMixture(**params, run=CALM).fit(LAZY)
    np.testing.assert_array_equal(refitted.covariances_, on_cluster.covariances_)
    few = Run(n_lanes=3, deterministic=True, memory_budget=X.nbytes // 4)
    streamed = GaussianMixture(**params, run=few).fit(LAZY)
    assert streamed.history_.extra["streamed"]
    np.testing.assert_array_equal(streamed.covariances_, on_cluster.covariances_)
    times = RNG.integers(0, 4, N)
    weighted = GaussianMixture(**params).fit(LAZY, sample_weight=da.from_array(times, chunks=250))
    repeated = np.repeat(X, times, axis=0)
    plain = GaussianMixture(**params).fit(repeated)
    assert_alike(weighted, plain, 1e-8)
    assert weighted.bic(X, sample_weight=times) == pytest.approx(plain.bic(repeated), rel=1e-10)
    # Random draws depend on row positions, not on workers.
    drawn = [
        GaussianMixture(K, init_params="random", random_state=0, tol=0.02, run=Run(n_lanes=n)).fit(
            LAZY
        )
        for n in (1, 2)
    ]
    assert_alike(*drawn, 1e-8)


def test_a_warm_start_continues() -> None:
    whole = GaussianMixture(**start(tol=1e-5)).fit(X)
    parts = GaussianMixture(**start(tol=1e-5, max_iter=1, warm_start=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(whole.n_iter_):
            parts.fit(X)
    assert parts.converged_
    assert_alike(parts, whole, 1e-10)
    with pytest.raises(InvalidParameterError, match="continues with 3 components"):
        parts.set_params(n_components=2).fit(X)


def test_lazy_input_gives_lazy_output() -> None:
    ours = GaussianMixture(K, random_state=0).fit(LAZY)
    for name in ("predict", "predict_proba", "score_samples"):
        found = getattr(ours, name)(LAZY)
        assert is_dask_collection(found)
        assert found.chunks[0] == LAZY.chunks[0]
        np.testing.assert_allclose(found, getattr(ours, name)(X))
    assert is_dask_collection(ours.fit_predict(LAZY))
    frame = pd.DataFrame(X, columns=list("abcd"))
    named = GaussianMixture(K, random_state=0).fit(dd.from_pandas(frame, npartitions=3))
    assert list(named.feature_names_in_) == list("abcd")


@pytest.mark.parametrize("kind", PRECISIONS)
def test_samples_are_of_the_mixture(kind: str) -> None:
    ours = GaussianMixture(K, covariance_type=kind, random_state=0).fit(X)
    rows, labels = ours.sample(60_000)
    assert rows.shape == (60_000, D)
    np.testing.assert_allclose(np.bincount(labels) / 60_000, ours.weights_, atol=0.01)
    for c in range(K):
        np.testing.assert_allclose(rows[labels == c].mean(axis=0), ours.means_[c], atol=0.1)


def test_missing_convergence_warns() -> None:
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        GaussianMixture(**start(max_iter=2, tol=0)).fit(X)


BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "no components": ({"n_components": 0}, X, InvalidParameterError, "n_components=0"),
    "more than rows": ({"n_components": 9}, X[:4], InvalidDataError, "n_samples >= n_components"),
    "one row": ({}, X[:1], InvalidDataError, "n_samples=1"),
    "kind": ({"covariance_type": "round"}, X, InvalidParameterError, "spherical"),
    "init": ({"init_params": "best"}, X, InvalidParameterError, "k-means"),
    "NaN": ({"n_components": 2}, np.where(X > 5, np.nan, X), InvalidDataError, "NaN"),
    "weights": ({"n_components": 2, "weights_init": [0.2, 0.2]}, X, InvalidParameterError, "norm"),
    "means": ({"n_components": 2, "means_init": X[:3]}, X, InvalidParameterError, "shape of"),
    "precisions": (
        {"n_components": 1, "precisions_init": -np.eye(D)[None]}, X, InvalidParameterError,
        "symmetric, positive-definite",
    ),
    "a subspace": (
        {"n_components": 2, "reg_covar": 0.0, "random_state": 0},
        np.column_stack([X, X[:, 0]]), DivergedError, r"increase reg_covar.* component \d",
    ),
    "a point": (
        {"n_components": 2, "reg_covar": 0.0, "covariance_type": "diag", "random_state": 0},
        np.vstack([X[:30], np.full((30, D), 1e3)]), DivergedError, r"of component \d",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    params, rows, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        GaussianMixture(**params).fit(rows)


@pytest.mark.parametrize("kind", PRECISIONS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_nothing_fitted_is_not_finite(kind: str) -> None:
    """Of one distinct row, and of constant columns."""
    constant = X.copy()
    constant[:, 1] = 3.0
    for rows in (np.repeat(X[:1], 20, axis=0), constant):
        ours = GaussianMixture(2, covariance_type=kind, random_state=0).fit(rows)
        assert all(np.isfinite(getattr(ours, name)).all() for name in NAMES)
        assert np.isfinite(ours.lower_bound_)
