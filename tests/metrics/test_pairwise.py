"""Distances and kernels of blocks of rows are scikit-learn's, of all rows."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics.pairwise as truth

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import pairwise

RNG = np.random.default_rng(0)
X, Y = RNG.random((30, 4)), RNG.random((11, 4))


def lazy(rows):
    n = len(rows)
    return da.from_array(rows, chunks=((5, 0, n - 6, 1), (3, 1)))


def unknown(rows):
    return lazy(rows)[da.ones(len(rows), chunks=(lazy(rows).chunks[0],)) > 0]


def frame(rows):
    return dd.from_pandas(pd.DataFrame(rows, columns=list("abcd")), npartitions=3)


CALLS = {
    "euclidean": ("pairwise_distances", {}),
    "manhattan": ("pairwise_distances", {"metric": "manhattan"}),
    "minkowski": ("pairwise_distances", {"metric": "minkowski", "p": 3}),
    "cosine": ("pairwise_distances", {"metric": "cosine"}),
    "scaled": ("pairwise_distances", {"metric": "seuclidean", "V": X.var(axis=0)}),
    "squared": ("euclidean_distances", {"squared": True}),
    "city blocks": ("manhattan_distances", {}),
    "angle": ("cosine_distances", {}),
    "cosine of the angle": ("cosine_similarity", {}),
    "dot products": ("linear_kernel", {}),
    "Gaussian": ("rbf_kernel", {"gamma": 0.3}),
    "Gaussian by width": ("rbf_kernel", {}),
    "linear": ("pairwise_kernels", {}),
    "rbf": ("pairwise_kernels", {"metric": "rbf"}),
    "polynomial": ("pairwise_kernels", {"metric": "polynomial", "degree": 2}),
    "sigmoid": ("pairwise_kernels", {"metric": "sigmoid", "gamma": 0.1, "filter_params": True}),
}


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.parametrize(
    ("call", "make"),
    [
        *((call, make) for call in CALLS for make in (np.asarray, lazy)),
        *((call, make) for call in ("euclidean", "rbf") for make in (unknown, frame)),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_values_are_those_of_scikit_learn(call, make):
    name, options = CALLS[call]
    function = getattr(pairwise, name)
    pairs = [(Y, Y), (lazy(Y), Y)]
    if make is not np.asarray:
        pairs.append((None, None))
    for second, other in pairs:
        found = function(make(X), second, **options)
        expected = getattr(truth, name)(X, other, **options)
        assert found.dtype == expected.dtype
        # The square root of a rounded zero.
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-9, atol=1e-7)
        if second is None and "distances" in name and call != "cosine":
            assert (np.diag(np.asarray(found)) == 0).all()


def test_missing_values_of_nullable_columns():
    rows = np.where(X > 0.9, np.nan, X)
    expected = truth.nan_euclidean_distances(rows, Y)
    nullable = pd.DataFrame(rows).convert_dtypes()
    for given in (nullable, dd.from_pandas(nullable, npartitions=2)):
        found = pairwise.pairwise_distances(given, Y, metric="nan_euclidean")
        np.testing.assert_allclose(np.asarray(found), expected)


def test_rows_that_are_read_only_or_lists():
    expected = truth.pairwise_kernels(X, Y, metric="chi2")
    read_only = X.copy()
    read_only.flags.writeable = False
    for given in (read_only, frame(X), X.tolist()):
        found = pairwise.pairwise_kernels(given, Y, metric="chi2")
        np.testing.assert_allclose(np.asarray(found), expected)
    bools = [[True, False], [True, True]]
    np.testing.assert_array_equal(
        pairwise.pairwise_distances(bools, metric="jaccard"), [[0, 0.5], [0.5, 0]]
    )


def test_known_chunks_stay_known():
    found = pairwise.pairwise_distances(lazy(X), lazy(Y))
    assert found.chunks == (lazy(X).chunks[0], lazy(Y).chunks[0])
    assert pairwise.pairwise_distances(lazy(X.astype("float32")), Y).dtype == np.float64


@pytest.mark.parametrize("make", [np.asarray, lazy, unknown, frame], ids=lambda f: f.__name__)
@pytest.mark.parametrize("options", [{}, {"metric": "manhattan"}], ids=str)
def test_nearest_rows(make, options):
    found = pairwise.pairwise_distances_argmin_min(make(X), Y, **options)
    for ours, theirs in zip(
        found, truth.pairwise_distances_argmin_min(X, Y, **options), strict=True
    ):
        np.testing.assert_allclose(np.asarray(ours), theirs)
    assert found[0].dtype == np.int64
    nearest = pairwise.pairwise_distances_argmin(make(X), Y, **options)
    np.testing.assert_array_equal(np.asarray(nearest), np.asarray(found[0]))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: pairwise.pairwise_distances(lazy(X), metric="near"),
            InvalidParameterError,
            "near",
        ),
        (lambda: pairwise.pairwise_kernels(X, metric="near"), InvalidParameterError, "near"),
        (
            lambda: pairwise.pairwise_distances(lazy(X), metric="mahalanobis"),
            InvalidParameterError,
            "pass VI=",
        ),
        (lambda: pairwise.pairwise_distances(lazy(X), Y[:, :2]), InvalidDataError, "4 while"),
        (lambda: pairwise.euclidean_distances(lazy(X)[:, 0]), InvalidDataError, "2D"),
        (
            lambda: pairwise.pairwise_distances(lazy(X * np.nan)).compute(),
            InvalidDataError,
            r"Block \d of X, block \d of Y",
        ),
        (
            lambda: pairwise.pairwise_distances_argmin_min(lazy(X), lazy(Y)),
            InvalidParameterError,
            "compute",
        ),
        (
            lambda: pairwise.pairwise_distances_argmin_min(lazy(X), Y, axis=0),
            InvalidParameterError,
            "axis",
        ),
    ],
)
def test_refusals(call, error, match):
    with pytest.raises(error, match=match):
        call()
