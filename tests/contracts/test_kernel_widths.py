"""Fits whose compiled loops work in vectors of a fixed width, at sizes around that width.

Where a loop begins, ends or pads a vector wrongly, only some sizes show it: those just below, at
and above a multiple of the width. The truth is scikit-learn's, from the same start, in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.cluster
import sklearn.decomposition
import sklearn.linear_model
import sklearn.mixture
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.cluster import KMeans
from daskml_dist.decomposition import PCA, TruncatedSVD
from daskml_dist.linear_model import LogisticRegression, PoissonRegressor, Ridge
from daskml_dist.mixture import GaussianMixture

#: Sizes around 8 and 16, the numbers of float64 and of float32 in 64 bytes, and their multiples.
SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 33)
#: Sizes of the default run.
FEW = (9, 17)
DTYPES = ("float64", "float32")
#: Enough rows for the loops to be compiled ones at every size.
N_ROWS = 20_000

pytestmark = [pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]
sizes = pytest.mark.parametrize(
    "size", [pytest.param(n, marks=[] if n in FEW else [pytest.mark.slow]) for n in SIZES]
)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def _tolerance(dtype: str) -> float:
    return 1e-7 if dtype == "float64" else 2e-3


def _rows(size: int, dtype: str, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=(N_ROWS, size)).astype(dtype)


def _labels(X: NDArray[Any], n_classes: int) -> NDArray[np.int64]:
    draw = np.random.default_rng(1)
    scores = X[:, :3] @ draw.normal(size=(min(3, X.shape[1]), n_classes))
    return np.asarray((scores + draw.gumbel(size=scores.shape)).argmax(axis=1))


@sizes
@dtypes
@pytest.mark.parametrize("varied", ["features", "clusters"])
def test_k_means(size: int, dtype: str, varied: str) -> None:
    X = _rows(size if varied == "features" else 5, dtype)
    start = X[: 6 if varied == "features" else size].copy()
    params: dict[str, Any] = {"n_clusters": len(start), "init": start, "max_iter": 3, "tol": 0}
    ours = KMeans(**params).fit(X)
    theirs = sklearn.cluster.KMeans(**{**params, "init": start.astype(float)}, n_init=1)
    theirs.fit(X.astype(float))
    tolerance = _tolerance(dtype)
    np.testing.assert_allclose(
        ours.cluster_centers_, theirs.cluster_centers_, rtol=tolerance, atol=tolerance
    )
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=tolerance)


@sizes
@dtypes
@pytest.mark.parametrize("kind", ["full", "diag"])
@pytest.mark.slow
def test_mixtures(size: int, dtype: str, kind: str) -> None:
    X = _rows(size, dtype)
    params: dict[str, Any] = {
        "n_components": 3, "covariance_type": kind, "max_iter": 2, "tol": 0, "random_state": 0,
        "weights_init": np.full(3, 1 / 3), "means_init": X[:3].astype(float),
        "precisions_init": np.ones((3, size)) if kind == "diag" else np.array([np.eye(size)] * 3),
    }  # fmt: skip
    ours, theirs = GaussianMixture(**params), sklearn.mixture.GaussianMixture(**params)
    ours.fit(X)
    theirs.fit(X.astype(float))
    tolerance = _tolerance(dtype)
    np.testing.assert_allclose(ours.means_, theirs.means_, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        ours.covariances_, theirs.covariances_, rtol=tolerance, atol=tolerance
    )


@sizes
@dtypes
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_logistic_regression(size: int, dtype: str, layout: str) -> None:
    X = _rows(size, dtype)
    if layout == "sparse":
        X[np.random.default_rng(2).random(X.shape) < 0.5] = 0
    y = _labels(X, 2)
    params: dict[str, Any] = {"C": 0.1, "max_iter": 200, "tol": 1e-8}
    ours = LogisticRegression(**params).fit(sparse.csr_matrix(X) if layout == "sparse" else X, y)
    theirs = sklearn.linear_model.LogisticRegression(**params).fit(X.astype(float), y)
    atol = 1e-4 if dtype == "float64" else 2e-3
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=atol)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=atol)


@sizes
@dtypes
@pytest.mark.slow
def test_classes(size: int, dtype: str) -> None:
    X = _rows(6, dtype)
    y = _labels(X, max(size, 3))
    params: dict[str, Any] = {"C": 0.01, "max_iter": 300, "tol": 1e-8}
    ours = LogisticRegression(**params).fit(X, y)
    theirs = sklearn.linear_model.LogisticRegression(**params).fit(X.astype(float), y)
    atol = 2e-4 if dtype == "float64" else 4e-3
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=atol)


@sizes
@dtypes
@pytest.mark.slow
def test_sums_of_all_rows(size: int, dtype: str) -> None:
    X = _rows(size, dtype)
    X[:, 0] *= 3
    y = X[:, 0] + np.random.default_rng(3).normal(size=N_ROWS)
    tolerance, exact = _tolerance(dtype), X.astype(float)
    ridge = Ridge().fit(X, y).coef_, sklearn.linear_model.Ridge().fit(exact, y).coef_
    np.testing.assert_allclose(*ridge, rtol=tolerance, atol=tolerance)
    pca = PCA().fit(X).explained_variance_, sklearn.decomposition.PCA().fit(exact)
    np.testing.assert_allclose(pca[0], pca[1].explained_variance_, rtol=tolerance)
    counts = np.random.default_rng(4).poisson(np.exp(np.clip(0.1 * exact[:, 0], -1, 1)))
    poisson = PoissonRegressor(max_iter=300, tol=1e-8).fit(X, counts)
    theirs = sklearn.linear_model.PoissonRegressor(max_iter=300, tol=1e-8).fit(exact, counts)
    np.testing.assert_allclose(poisson.coef_, theirs.coef_, atol=1e-4 + tolerance)
    if size > 1:
        rows = sparse.csr_matrix(np.where(np.abs(X) < 0.7, 0, X))
        values = TruncatedSVD(min(size - 1, 3), algorithm="arpack").fit(rows).singular_values_
        largest = np.linalg.svd(rows.toarray().astype(float), compute_uv=False)
        np.testing.assert_allclose(values, largest[: len(values)], rtol=max(tolerance, 1e-5))
