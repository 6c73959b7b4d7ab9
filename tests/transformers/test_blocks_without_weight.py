"""A block of zero-weight rows changes nothing: a fit equals that without it."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn import preprocessing
from sklearn.base import clone

from daskml_dist.errors import InvalidDataError
from daskml_dist.preprocessing import KBinsDiscretizer, StandardScaler

SCALERS = [
    StandardScaler(with_mean=with_mean, with_std=with_std)
    for with_mean in (True, False)
    for with_std in (True, False)
]


def _rows() -> Any:
    return np.random.default_rng(0).normal([0, 5, -3], size=(40, 3))


def _weighted(rows: Any, *zeros: int) -> tuple[Any, Any, Any]:
    """Lazy rows in four blocks, some of which weigh nothing; lazy weights, and the weights."""
    weights = np.linspace(0.5, 2, 40)
    for block in zeros:
        weights[10 * block : 10 * block + 10] = 0
    parts = [rows[at : at + 10] for at in range(0, 40, 10)]
    blocks = [da.from_array(part, chunks=(10, -1), asarray=False) for part in parts]
    return da.concatenate(blocks), da.from_array(weights, chunks=10), weights


@pytest.mark.parametrize("zeros", [(0,), (1, 2), (0, 1, 3)], ids=str)
@pytest.mark.parametrize("model", [*SCALERS, KBinsDiscretizer(3)], ids=str)
def test_fits_equal_those_without_the_block(model: Any, zeros: tuple[int, ...]) -> None:
    X, w, weights = _weighted(_rows(), *zeros)
    found, has_weight = clone(model).fit(X, sample_weight=w), weights > 0
    expected = clone(model).fit(_rows()[has_weight], sample_weight=weights[has_weight])
    for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
        if (value := getattr(expected, name, None)) is None:
            assert getattr(found, name, None) is None
        else:
            np.testing.assert_allclose(getattr(found, name), value, rtol=1e-12)
    for ours, theirs in zip(
        getattr(found, "bin_edges_", ()), getattr(expected, "bin_edges_", ()), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_rows_with_gaps_and_sparse_rows(kind: Any) -> None:
    rows = _rows()
    rows[::3, 1] = np.nan
    X, w, weights = _weighted(kind(rows), 0, 2)
    found = StandardScaler(with_mean=False).fit(X, sample_weight=w)
    theirs = preprocessing.StandardScaler(with_mean=False).fit(kind(rows), sample_weight=weights)
    np.testing.assert_allclose(found.scale_, theirs.scale_, rtol=1e-12)
    np.testing.assert_allclose(found.n_samples_seen_, theirs.n_samples_seen_, rtol=1e-12)


def test_later_rows_without_weight_change_nothing() -> None:
    X, w, _ = _weighted(_rows(), 0, 1, 2, 3)
    scaler = StandardScaler().fit(_rows())
    before = scaler.mean_.copy(), scaler.var_.copy()
    scaler.partial_fit(X, sample_weight=w)
    np.testing.assert_allclose(scaler.mean_, before[0])
    np.testing.assert_allclose(scaler.var_, before[1])


def test_rows_that_all_weigh_nothing_are_refused() -> None:
    X, w, _ = _weighted(_rows(), 0, 1, 2, 3)
    with pytest.raises(InvalidDataError, match=r"at least one non-zero number.*positive weight"):
        StandardScaler().fit(X, sample_weight=w)
