"""Principal components beside scikit-learn's; what users hand to them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import is_dask_collection
from distributed import Client
from scipy import sparse
from sklearn.decomposition import PCA as Peer

from daskml_dist import Run
from daskml_dist.decomposition import PCA, TruncatedSVD, principal_components
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError

N, D = 1200, 9
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)) * 2.0 ** -np.arange(D) @ np.linalg.qr(RNG.normal(size=(D, D)))[0] + 3
LAZY = da.from_array(X, chunks=(200, -1))
SPARSE = sparse.random(300, 20, 0.2, format="csr", random_state=0) * sparse.diags_array(
    1.5 ** -np.arange(20)
)
CALM = Run(n_lanes=3, deterministic=True)
FITTED = (
    "components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_",
    "noise_variance_",
)  # fmt: skip


def assert_alike(ours: Any, peer: Any, rtol: float, names: tuple[str, ...] = FITTED) -> None:
    for name in names:
        found, wanted = np.asarray(getattr(ours, name)), np.asarray(getattr(peer, name))
        assert found.shape == wanted.shape, name
        atol = rtol * abs(wanted).max(initial=1)
        np.testing.assert_allclose(found, wanted, rtol, atol, err_msg=name)


#: Products of float32 rows know the covariance to a rounding of its largest eigenvalue, and so a
#: direction to that over the distance of its eigenvalue from the next (Davis and Kahan, 1970).
VARIANCES = np.linalg.eigvalsh(np.cov(X.T))[::-1]
SINGLE = float(np.finfo(np.float32).eps * VARIANCES[0] / (VARIANCES[3] - VARIANCES[4]))
CASES: dict[str, tuple[dict[str, Any], Any, float]] = {
    "all": ({}, X, 1e-10),
    "some": ({"n_components": 4}, X, 1e-10),
    "share": ({"n_components": 0.9}, X, 1e-10),
    "mle": ({"n_components": "mle"}, X, 1e-10),
    "none": ({"n_components": 0}, X, 1e-10),
    "full": ({"n_components": 4, "svd_solver": "full"}, X, 1e-10),
    "float32": ({"n_components": 4, "svd_solver": "covariance_eigh"}, X.astype(np.float32), SINGLE),
    # Offsets that float32 holds, as large as the rows are wide a million times.
    "far away": ({"n_components": 4}, np.round(X * 64) / 64 + 1e6, 1e-6),
    "few rows": ({"n_components": 4}, X[:6], 1e-9),
    "sparse": ({"n_components": 4, "svd_solver": "covariance_eigh"}, SPARSE, 1e-9),
}


@pytest.mark.parametrize("case", CASES)
def test_components_are_scikit_learns(case: str) -> None:
    params, rows, rtol = CASES[case]
    doubles = rows.astype(np.float64)
    exact = {} if sparse.issparse(rows) else {"svd_solver": "full"}
    peer, ours = Peer(**params | exact).fit(doubles), PCA(**params).fit(rows)
    assert ours.n_components_ == peer.n_components_
    assert_alike(ours, peer, rtol)
    if not ours.n_components_:
        return
    some = rows[:50]
    found = ours.transform(some)
    assert found.dtype == rows.dtype
    scale = abs(doubles[:50] - peer.mean_).max()
    np.testing.assert_allclose(found, peer.transform(doubles[:50]), atol=rtol * scale * 10)
    np.testing.assert_allclose(
        ours.inverse_transform(found), peer.inverse_transform(peer.transform(doubles[:50])),
        rtol=1e-5,
    )  # fmt: skip
    assert ours.n_samples_ == N or len(doubles.shape) == 2


def test_probabilities_are_scikit_learns() -> None:
    peer, ours = Peer(4).fit(X), PCA(4).fit(X)
    np.testing.assert_allclose(ours.score_samples(X), peer.score_samples(X), rtol=1e-8)
    assert ours.score(LAZY) == pytest.approx(peer.score(X), rel=1e-10)
    np.testing.assert_allclose(ours.get_covariance(), peer.get_covariance(), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(ours.get_precision(), peer.get_precision(), rtol=1e-7)
    white = PCA(4, whiten=True).fit(X)
    np.testing.assert_allclose(white.transform(X).var(axis=0, ddof=1), 1.0)
    # Whitening is of the projections; the model is the same.
    np.testing.assert_allclose(white.get_covariance(), ours.get_covariance())
    every = PCA().fit(X)
    np.testing.assert_allclose(every.get_covariance(), np.cov(X.T), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("solver", ["randomized", "arpack"])
@pytest.mark.parametrize("rows", [X, SPARSE], ids=["dense", "sparse"])
def test_wide_rows_are_not_squared(solver: str, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principal_components, "_MAX_FEATURES_EXACT", 4)
    ours = PCA(3, svd_solver=solver, random_state=0).fit(rows)
    assert len(ours.history_) > 2
    peer = Peer(3, svd_solver="covariance_eigh").fit(rows)
    assert_alike(ours, peer, 1e-5 if solver == "randomized" else 1e-8)


def test_workers_and_weights_change_nothing(client: Client) -> None:
    alone, on_cluster = PCA(4, run=CALM).fit(X), PCA(4, run=CALM).fit(LAZY)
    assert_alike(on_cluster, alone, 1e-10)
    assert_alike(PCA(4, run=Run(n_lanes=2)).fit(LAZY), on_cluster, 1e-12)
    refitted = PCA(4, run=CALM).fit(LAZY)
    np.testing.assert_array_equal(refitted.components_, on_cluster.components_)
    streamed = PCA(4, run=Run(n_lanes=3, deterministic=True, memory_budget=X.nbytes // 4)).fit(LAZY)
    assert streamed.history_.extra["streamed"]
    np.testing.assert_array_equal(streamed.components_, on_cluster.components_)
    times = RNG.integers(0, 4, N)
    weighted = PCA(4).fit(LAZY, sample_weight=da.from_array(times, chunks=200))
    repeated = PCA(4).fit(np.repeat(X, times, axis=0))
    assert_alike(weighted, repeated, 1e-10)
    assert weighted.n_samples_ == repeated.n_samples_


def test_lazy_input_gives_lazy_output() -> None:
    ours = PCA(3).fit(LAZY)
    for result in (ours.transform(LAZY), ours.score_samples(LAZY)):
        assert is_dask_collection(result)
        assert result.chunks[0] == LAZY.chunks[0]
    np.testing.assert_allclose(ours.transform(LAZY), ours.transform(X))
    back = ours.inverse_transform(ours.transform(LAZY))
    assert is_dask_collection(back)
    np.testing.assert_allclose(back, ours.inverse_transform(ours.transform(X)))
    assert list(ours.get_feature_names_out()) == ["pca0", "pca1", "pca2"]
    assert ours.transform(LAZY.astype(np.float32)).dtype == np.float32


def test_frames_and_chunks_of_unknown_sizes() -> None:
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(D)])
    ours = PCA(3).fit(dd.from_pandas(frame, npartitions=3))
    assert list(ours.feature_names_in_) == list(frame.columns)
    theirs = PCA(3).fit(LAZY[LAZY[:, 0] > -1e9])
    assert_alike(ours, theirs, 1e-10)


BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "too many": ({"n_components": 10}, X, InvalidParameterError, "n_components=10 must be between"),
    "more than rows": ({"n_components": 4}, X[:3], InvalidParameterError, r"n_features\)=3"),
    "negative": ({"n_components": -1}, X, InvalidParameterError, "n_components=-1"),
    "word": ({"n_components": "best"}, X, InvalidParameterError, '"mle"'),
    "mle": ({"n_components": "mle"}, X[:5], InvalidDataError, "n_samples >= n_features"),
    "one row": ({}, X[:1], InvalidDataError, "n_samples=1"),
    "equal rows": ({}, np.repeat(X[:1], 5, axis=0), InvalidDataError, "no variance"),
    "NaN": ({}, np.where(X > 3.5, np.nan, X), InvalidDataError, "NaN"),
    "solver": ({"svd_solver": "qr"}, X, InvalidParameterError, "covariance_eigh"),
    "share by products": (
        {"n_components": 0.5, "svd_solver": "randomized"}, X, InvalidParameterError, "all variances"
    ),
    "mle by products": (
        {"n_components": "mle", "svd_solver": "arpack"}, X, InvalidParameterError, "all variances"
    ),
    "covariance of all": (
        {"n_components": 0.5}, sparse.csr_matrix((30, 20_000)), InvalidParameterError,
        "whole covariance matrix of 20,000 features",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    params, rows, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        PCA(**params).fit(rows)


def test_constant_columns_are_no_components() -> None:
    rows = X.copy()
    rows[:, 2] = 7.0
    ours = PCA(whiten=True).fit(rows)
    assert ours.explained_variance_[-1] == pytest.approx(0.0, abs=1e-12)
    assert all(np.isfinite(getattr(ours, name)).all() for name in FITTED)
    assert np.isfinite(ours.transform(rows)).all()


@pytest.mark.data
def test_fifty_components_of_mnist(data_dir: Path) -> None:
    with gzip.open(data_dir / "mnist" / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    ours = PCA(50).fit(images.astype(np.float32))
    assert ours.explained_variance_ratio_.sum() == pytest.approx(0.8246, abs=5e-5)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", [PCA, TruncatedSVD])
def test_squares_that_vanish(kind: Any, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exact:
        monkeypatch.setattr(principal_components, "_MAX_FEATURES_EXACT", 2)
    solver = {"svd_solver": "randomized"} if kind is PCA else {"algorithm": "randomized"}
    for size in (1e-160, 1e-300):
        with pytest.raises(DivergedError, match="Scale the features"):
            kind(2, **solver).fit(X * size)
    unscaled, scaled = kind(2, **solver).fit(X), kind(2, **solver).fit(X * 2.0**-500)
    np.testing.assert_allclose(scaled.components_, unscaled.components_, rtol=1e-9)


@pytest.mark.parametrize("make", [np.asarray, da.from_array])
def test_likelihood_under_a_singular_covariance_is_refused(make: Any) -> None:
    rows = np.array([[100.0, -100.0], [-100.0, 100.0]])
    model = PCA().fit(make(rows))
    with pytest.raises(InvalidDataError, match="covariance of the model is singular"):
        model.score_samples(make(rows))
