"""Silhouettes: scikit-learn's of the same rows, of Dask collections."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from scipy import sparse
from sklearn.datasets import make_blobs

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import silhouette_samples, silhouette_score
from tests.metrics.rows import lazy, unknown

N = 90
CHUNKS = (20, 0, 45, 1, 24)
X, LABELS = make_blobs(N, 5, centers=4, cluster_std=4.0, random_state=2)
LABELS[3] = 7  # a cluster of one row
METRICS = ("euclidean", "sqeuclidean", "cosine", "manhattan")


def frame(values: Any) -> Any:
    table = pd.DataFrame(values) if np.ndim(values) == 2 else pd.Series(values)
    return dd.from_pandas(table, npartitions=4)


def sparse_rows(values: Any) -> Any:
    return lazy(values, CHUNKS).map_blocks(sparse.csr_array) if np.ndim(values) == 2 else lazy(
        values, CHUNKS
    )  # fmt: skip


KINDS = {
    "known": lambda values: lazy(values, CHUNKS),
    "unknown": lambda values: unknown(values, CHUNKS),
    "frame": frame,
    "sparse": sparse_rows,
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_rows(kind: str) -> None:
    make = KINDS[kind]
    for metric in METRICS:
        expected = sklearn.metrics.silhouette_samples(X, LABELS, metric=metric)
        found = silhouette_samples(make(X), make(LABELS), metric=metric)
        assert isinstance(found, da.Array)
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-7, atol=1e-9)
        score = silhouette_score(make(X), make(LABELS), metric=metric)
        assert score == pytest.approx(expected.mean(), rel=1e-9)
        assert silhouette_score(X, LABELS, metric=metric) == pytest.approx(expected.mean())


def test_sampled_rows_are_those_of_scikit_learn() -> None:
    for metric in METRICS:
        options = {"metric": metric, "sample_size": 40, "random_state": 5}
        expected = sklearn.metrics.silhouette_score(X, LABELS, **options)
        for make in (KINDS["known"], KINDS["unknown"]):
            found = silhouette_score(make(X), make(LABELS), **options)
            assert found == pytest.approx(expected, rel=1e-9)


def test_rows_against_a_sample() -> None:
    labels = np.where(LABELS == 7, 0, LABELS)
    options = {"sample_size": 60, "random_state": 1}
    rows = np.random.RandomState(1).permutation(N)[:60]
    found = silhouette_samples(KINDS["known"](X), KINDS["known"](labels), **options).compute()
    expected = sklearn.metrics.silhouette_samples(X[rows], labels[rows])
    np.testing.assert_allclose(found[rows], expected, rtol=1e-9, atol=1e-12)
    assert abs(found.mean() - sklearn.metrics.silhouette_score(X, labels)) < 0.05


def test_rows_far_from_the_origin() -> None:
    shifted = X + 1e6
    found = silhouette_score(lazy(shifted, CHUNKS), lazy(LABELS, CHUNKS), metric="sqeuclidean")
    assert found == pytest.approx(
        sklearn.metrics.silhouette_score(X, LABELS, metric="sqeuclidean"), rel=1e-7
    )


def test_inputs_without_a_silhouette_are_refused() -> None:
    rows, labels = lazy(X, CHUNKS), lazy(LABELS, CHUNKS)
    holed = lazy(np.where(X > X.max() - 1, np.nan, X), CHUNKS)
    for metric in ("euclidean", "sqeuclidean"):
        with pytest.raises(InvalidDataError, match="Number of labels is 1"):
            silhouette_score(rows, labels * 0, metric=metric)
        with pytest.raises(InvalidDataError, match=r"Block \d: Input X contains NaN"):
            silhouette_score(holed, labels, metric=metric)
    with pytest.raises(InvalidParameterError, match="precomputed"):
        silhouette_score(rows, labels, metric="precomputed")
    with pytest.raises(InvalidParameterError, match="sample_size"):
        silhouette_score(rows, labels, sample_size=0)
    with pytest.raises(InvalidDataError, match="Raise sample_size"):
        silhouette_samples(rows, labels, sample_size=20, random_state=0).compute()
