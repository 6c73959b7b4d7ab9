"""Batches of Dask collections: scikit-learn's results, however blocks are cut."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse
from sklearn.decomposition import IncrementalPCA as Peer

from daskml_dist.decomposition import IncrementalPCA
from daskml_dist.errors import InvalidDataError

X = np.random.default_rng(0).normal(size=(503, 6)) * [5, 4, 3, 2, 1, 0.5] + 2
NAMES = (
    "components_", "mean_", "var_", "noise_variance_", "explained_variance_",
    "explained_variance_ratio_", "singular_values_", "n_samples_seen_", "batch_size_",
)  # fmt: skip


def assert_alike(ours: Any, peer: Any) -> None:
    for name in NAMES:
        np.testing.assert_allclose(
            getattr(ours, name), getattr(peer, name), 1e-9, atol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("rows", [503, 100, 7])
@pytest.mark.parametrize(
    "params", [{}, {"n_components": 3}, {"n_components": 3, "batch_size": 50, "whiten": True}]
)
def test_batches_are_scikit_learns(rows: int, params: dict[str, Any]) -> None:
    lazy = da.from_array(X, chunks=(rows, -1))
    before = X.copy()
    peer, ours = Peer(**params).fit(X), IncrementalPCA(**params).fit(lazy)
    assert_alike(ours, peer)
    np.testing.assert_array_equal(X, before)
    np.testing.assert_allclose(ours.transform(lazy), peer.transform(X))
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(lazy)), peer.inverse_transform(peer.transform(X))
    )
    assert_alike(IncrementalPCA(**params).fit(X), peer)


def test_on_workers_with_names_sparse_and_of_unknown_sizes(client: Client) -> None:
    peer = Peer(3).fit(X)
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcdef")), npartitions=3)
    named = IncrementalPCA(3).fit(frame)
    assert_alike(named, peer)
    assert list(named.feature_names_in_) == list("abcdef")
    lazy = da.from_array(X, chunks=(100, -1))
    assert_alike(IncrementalPCA(3).fit(lazy[lazy[:, 0] > -1e9]), peer)
    assert_alike(IncrementalPCA(3).fit(lazy.map_blocks(sparse.csr_matrix)), peer)


def test_partial_fit_continues() -> None:
    peer, ours = Peer(3, batch_size=100), IncrementalPCA(3, batch_size=100)
    for at in (slice(0, 200), slice(200, 400)):
        ours.partial_fit(da.from_array(X[at], chunks=(100, -1)))
        for half in np.split(X[at], 2):
            peer.partial_fit(half)
    peer.partial_fit(X[400:])
    ours.partial_fit(X[400:])
    np.testing.assert_allclose(ours.components_, peer.components_, rtol=1e-10)
    assert ours.n_samples_seen_ == 503
    assert not hasattr(ours, "batch_size_")
    assert not hasattr(peer, "batch_size_")


@pytest.mark.parametrize("form", [np.asarray, lambda rows: da.from_array(rows, chunks=(5, -1))])
def test_equal_rows_explain_nothing(form: Any) -> None:
    ours = IncrementalPCA(2).fit(form(np.ones((20, 3))))
    assert all(np.isfinite(getattr(ours, name)).all() for name in NAMES)


def test_bad_rows() -> None:
    with pytest.raises(InvalidDataError, match=r"Block 0: Input X contains NaN \(row"):
        IncrementalPCA(2).fit(da.from_array(np.where(X > 5, np.nan, X), chunks=(100, -1)))
    with pytest.raises(InvalidDataError, match="must be less or equal to the batch"):
        IncrementalPCA(5).fit(da.from_array(X[:4], chunks=(2, -1)))
    with pytest.raises(InvalidDataError, match=r"Block 0 of X: .*overflow"):
        IncrementalPCA(2).fit(da.from_array(X * 1e200, chunks=(100, -1)))
