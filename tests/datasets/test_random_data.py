"""Random data sets have the documented distributions for any chunks."""

from __future__ import annotations

import inspect

import dask
import numpy as np
import pytest
import sklearn.datasets
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import PoissonRegressor

from daskml_dist import datasets
from daskml_dist.errors import InvalidParameterError

MAKERS = {
    "make_blobs": {"centers": 4},
    "make_classification": {"n_informative": 4, "n_repeated": 1, "n_features": 9},
    "make_counts": {"n_features": 6},
    "make_regression": {"n_features": 6, "n_targets": 2, "noise": 1.0},
}


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.parametrize("name", MAKERS)
def test_rows_are_the_same_on_any_chunks(name):
    make, options = getattr(datasets, name), MAKERS[name]
    n = 40_000  # of several units
    whole = dask.compute(*make(n, random_state=3, chunks=n, **options))
    for chunks in (13_000, ((14563, 0, 25437), (2, 2))):
        X, y = make(n, random_state=3, chunks=chunks, **options)
        assert X.numblocks[1] == 1
        assert X.chunks[0] == y.chunks[0]
        for lazy, rows in zip((X, y), whole, strict=True):
            assert lazy.dtype == rows.dtype
            np.testing.assert_array_equal(lazy.compute(), rows)
    other, _ = make(n, random_state=4, **options)
    assert (other[:5].compute() != whole[0][:5]).all()
    assert len(np.unique(whole[0], axis=0)) == n  # no unit repeats another


def test_every_argument_is_one_of_scikit_learn():
    for name in set(MAKERS) - {"make_counts"}:
        theirs = inspect.signature(getattr(sklearn.datasets, name)).parameters
        ours = inspect.signature(getattr(datasets, name)).parameters
        for one in set(ours) - {"chunks"}:
            assert one in theirs
            assert ours[one].default == theirs[one].default, (name, one)


def test_targets_are_linear_in_some_columns():
    X, y, coef = datasets.make_regression(
        500, 7, n_informative=3, bias=2.0, coef=True, random_state=0, chunks=100
    )
    assert np.count_nonzero(coef) == 3
    np.testing.assert_allclose(y.compute(), X.compute() @ coef + 2.0)
    X, y, coef = datasets.make_regression(
        20_000, 5, n_informative=5, n_targets=2, noise=3.0, coef=True, random_state=0
    )
    noise = y.compute() - X.compute() @ coef
    np.testing.assert_allclose(noise.std(axis=0), 3.0, rtol=0.03)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.03


def test_counts_have_the_rate_of_their_row():
    X, y = (a.compute() for a in datasets.make_counts(40_000, 4, random_state=0, scale=0.8))
    fitted = PoissonRegressor(alpha=0, tol=1e-6).fit(X, y)
    assert (np.abs(fitted.coef_) > 0.05).sum() == 2
    assert (fitted.coef_ < 0.05).all()
    rate = fitted.predict(X)
    # Of Poisson's distribution the variance is the mean.
    assert ((y - rate) ** 2 / rate).mean() == pytest.approx(1, abs=0.05)


def test_blobs_are_normal_around_their_centers():
    X, y, centers = datasets.make_blobs(
        30_000, 3, centers=3, cluster_std=[0.5, 1.0, 2.0], return_centers=True, random_state=0
    )
    X, y = dask.compute(X, y)
    for number, spread in enumerate([0.5, 1.0, 2.0]):
        rows = X[y == number]
        assert len(rows) == pytest.approx(10_000, rel=0.05)
        np.testing.assert_allclose(rows.mean(axis=0), centers[number], atol=0.07)
        np.testing.assert_allclose(rows.std(axis=0), spread, rtol=0.05)


def test_classes_are_clusters_at_corners():
    weights = [0.5, 0.2, 0.3]
    X, y = datasets.make_classification(
        20_000, 10, n_informative=4, n_redundant=2, n_repeated=1, n_classes=3, weights=weights,
        n_clusters_per_class=2, flip_y=0.0, class_sep=3.0, shift=1.0, scale=2.0, random_state=5,
    )  # fmt: skip
    X, y = dask.compute(X, y)
    np.testing.assert_allclose(np.bincount(y) / len(y), weights, atol=0.02)
    rows = X / 2.0 - 1.0
    # Seven columns are in a space of four dimensions; the others are independent noise.
    singular = np.linalg.svd(np.cov(rows.T), compute_uv=False)
    assert (singular > 1e-8).sum() == 4 + 3
    repeated = np.corrcoef(rows.T) > 1 - 1e-12
    assert repeated.sum() == 10 + 2
    # As far apart as scikit-learn's own are to one that knows clusters.
    theirs = sklearn.datasets.make_classification(
        20_000, 10, n_informative=4, n_redundant=0, n_classes=2, n_clusters_per_class=1,
        flip_y=0.1, class_sep=2.0, random_state=5,
    )  # fmt: skip
    ours = datasets.make_classification(
        20_000, 10, n_informative=4, n_redundant=0, n_classes=2, n_clusters_per_class=1,
        flip_y=0.1, class_sep=2.0, random_state=5,
    )  # fmt: skip
    found = [QuadraticDiscriminantAnalysis().fit(X, y).score(X, y) for X, y in (
        theirs, dask.compute(*ours)
    )]  # fmt: skip
    # A tenth of the labels is drawn again, half of which change their class.
    assert found == pytest.approx([0.95, 0.95], abs=0.03)


def test_many_informative_features():
    X, y = datasets.make_classification(
        50, 80, n_informative=80, n_redundant=0, n_classes=5, class_sep=100.0, flip_y=0.0,
        random_state=0,
    )  # fmt: skip
    X, y = dask.compute(X, y)
    corners = {tuple(row) for row in np.sign(X).tolist()}
    assert len(corners) == len({(*row, c) for row, c in zip(np.sign(X).tolist(), y, strict=True)})


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("make_classification", {"n_features": 3}, "n_features=3"),
        ("make_classification", {"n_classes": 5}, "Raise n_informative"),
        ("make_classification", {"weights": [0.1, 0.2, 0.3, 0.4]}, "weights"),
        ("make_classification", {"flip_y": 2}, "flip_y"),
        ("make_regression", {"noise": -1.0}, "noise"),
        ("make_blobs", {"cluster_std": [1.0, 2.0]}, "3 centers"),
        ("make_counts", {"n_samples": 0}, "n_samples"),
    ],
)
def test_refusals(name, options, match):
    with pytest.raises(InvalidParameterError, match=match):
        getattr(datasets, name)(**options)
