"""Largest singular values beside scikit-learn's exact ones."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse
from sklearn.decomposition import TruncatedSVD as Peer

from daskml_dist import Run
from daskml_dist.decomposition import TruncatedSVD, principal_components
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.feature_extraction import HashingVectorizer
from daskml_dist.solvers import principal_components as power

S = sparse.random(600, 40, 0.2, format="csr", random_state=0) * sparse.diags_array(
    1.3 ** -np.arange(40)
)
NAMES = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_")
PEER = Peer(4, algorithm="arpack").fit(S)


def assert_alike(ours: Any, peer: Any, rtol: float) -> None:
    for name in NAMES:
        np.testing.assert_allclose(
            getattr(ours, name), getattr(peer, name), rtol, atol=rtol, err_msg=name
        )


@pytest.mark.parametrize("algorithm", ["randomized", "arpack"])
@pytest.mark.parametrize("few", [512, 4], ids=["squared", "sketched"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csr_array.toarray])
def test_values_are_scikit_learns(
    algorithm: str, few: int, dtype: Any, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(principal_components, "_MAX_FEATURES_OF_PRODUCTS", few)
    rows = form(sparse.csr_array(S)).astype(dtype)
    ours = TruncatedSVD(4, algorithm=algorithm, random_state=0).fit(rows)
    assert_alike(ours, PEER, 2e-6 if dtype == np.float32 else 1e-8)
    found = ours.transform(rows)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, PEER.transform(S), atol=1e-5)
    np.testing.assert_allclose(ours.inverse_transform(found), found @ ours.components_, atol=1e-5)


def test_hashed_rows_of_any_width(client: Client) -> None:
    """On two workers; a matrix of the features' products would take 34 GB."""
    words = np.array([f"w{i}" for i in range(300)])
    rng = np.random.default_rng(0)
    documents = [" ".join(rng.choice(words[:: 1 + i % 3], 30)) for i in range(400)]
    X = HashingVectorizer(n_features=2**16).transform(documents)
    lazy = [dask.delayed(X[i : i + 100]) for i in range(0, 400, 100)]
    rows = da.concatenate([da.from_delayed(one, (100, 2**16), X.dtype, meta=X[:0]) for one in lazy])
    peer = Peer(2, n_iter=20, random_state=0).fit(X)
    ours = TruncatedSVD(2, n_iter=20, random_state=0, run=Run(n_lanes=2)).fit(rows)
    assert_alike(ours, peer, 1e-5)
    alone = TruncatedSVD(2, n_iter=20, random_state=0, run=Run(n_lanes=2)).fit(X)
    np.testing.assert_allclose(alone.components_, ours.components_, atol=1e-9)
    projected = ours.transform(rows)
    assert projected.chunks == ((100,) * 4, (2,))
    np.testing.assert_allclose(projected, ours.transform(X))


def test_weights_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principal_components, "_MAX_FEATURES_OF_PRODUCTS", 4)
    times = np.random.default_rng(0).integers(0, 3, S.shape[0])
    weighted = TruncatedSVD(3, random_state=0).fit(S, sample_weight=times)
    repeated = TruncatedSVD(3, random_state=0).fit(S[np.repeat(np.arange(len(times)), times)])
    assert_alike(weighted, repeated, 1e-9)


BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "too many": ({"n_components": 41}, S, InvalidParameterError, r"must be <= n_features\(40\)"),
    "arpack": (
        {"n_components": 40, "algorithm": "arpack"}, S, InvalidParameterError, "must be < n_feat"
    ),
    "one column": ({}, S[:, :1], InvalidDataError, "minimum of 2"),
    "algorithm": ({"algorithm": "qr"}, S, InvalidParameterError, "arpack"),
    "NaN": ({}, np.full((5, 3), np.nan), InvalidDataError, "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    params, rows, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        TruncatedSVD(**params).fit(rows)


def test_vectors_of_all_passes_are_more_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    """If they need too much memory, those of the last pass suffice, with more passes."""
    rng = np.random.default_rng(0)
    X = sparse.random(400, 700, 0.05, format="csr", random_state=rng)
    truth = Peer(5, algorithm="arpack").fit(X).singular_values_
    ours = TruncatedSVD(5, random_state=0).fit(X)
    error, n_passes = np.abs(ours.singular_values_ / truth - 1).max(), len(ours.history_)
    peer = Peer(5, random_state=0).fit(X).singular_values_
    assert error < np.abs(peer / truth - 1).max()
    monkeypatch.setattr(power, "_MAX_KEPT_NUMBERS", 1)
    alone = TruncatedSVD(5, random_state=0).fit(X)
    assert len(alone.history_) > n_passes
    assert error < np.abs(alone.singular_values_ / truth - 1).max() < 0.1


def test_rows_of_low_rank_end_early_and_exactly() -> None:
    """What is left beside the first vectors is rounding."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 600))
    ours = TruncatedSVD(5, random_state=0).fit(X)
    truth = np.linalg.svd(X, compute_uv=False)
    np.testing.assert_allclose(ours.singular_values_[:3], truth[:3], rtol=1e-10)
    np.testing.assert_allclose(ours.singular_values_[3:], 0, atol=1e-5 * truth[0])
    inner = ours.components_[:3] @ ours.components_[:3].T
    np.testing.assert_allclose(inner, np.eye(3), atol=1e-8)


def test_equal_rows_explain_nothing() -> None:
    ours = TruncatedSVD(2).fit(np.ones((10, 3)))
    np.testing.assert_allclose(ours.singular_values_, [30**0.5, 0.0], atol=1e-7)
    assert np.isfinite(ours.explained_variance_ratio_).all()


def test_variances_keep_their_digits_beside_a_large_mean() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 5)) * [5, 3, 2, 1, 0.5] + 1e6
    ours = TruncatedSVD(2, random_state=0).fit(rows)
    projected = (rows - 1e6) @ ours.components_.T
    np.testing.assert_allclose(ours.explained_variance_, projected.var(axis=0), rtol=1e-9)
