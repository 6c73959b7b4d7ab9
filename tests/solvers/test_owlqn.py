"""Orthant-wise L-BFGS: exact zeros, and the optimum of an independent solver."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.preprocessing import scale

from daskml_dist.linear_model import LogisticRegression
from daskml_dist.solvers.lbfgs import minimize_orthant_wise, pseudo_gradient
from tests.quick import in_turn

CANCER = (scale(load_breast_cancer().data), load_breast_cancer().target)
IRIS = (scale(load_iris().data), load_iris().target)


def _objective(clf: Any, X: Any, y: Any, C: float, ratio: float) -> float:
    """Return scikit-learn's objective: C times the summed loss plus the elastic net."""
    proba = clf.predict_proba(X)[np.arange(len(y)), np.searchsorted(clf.classes_, y)]
    w = clf.coef_
    return float(
        -C * np.log(proba).sum() + ratio * np.abs(w).sum() + (1 - ratio) / 2 * (w**2).sum()
    )


def _never() -> bool:
    return False


@pytest.mark.parametrize(
    ("penalty", "rows"), in_turn([(0.05, 1.0), (1.0, 1.0), (0.3, 0.5)], [IRIS, CANCER])
)
def test_optimum_of_saga(penalty: tuple[float, float], rows: Any) -> None:
    (C, ratio), (X, y) = penalty, rows
    ours = LogisticRegression("elasticnet", l1_ratio=ratio, C=C, tol=1e-7, max_iter=3000)
    ours.fit(da.from_array(X, chunks=(100, -1)), da.from_array(y, chunks=100))
    reference = Reference(solver="saga", l1_ratio=ratio, C=C, tol=1e-7, max_iter=3000)
    if C == 1.0 and rows is CANCER:
        with pytest.warns(ConvergenceWarning):  # saga is slow with correlated columns
            reference.fit(X, y)
        assert _objective(ours, X, y, C, ratio) <= _objective(reference, X, y, C, ratio) + 1e-6
        return
    reference.fit(X, y)
    found, best = (_objective(clf, X, y, C, ratio) for clf in (ours, reference))
    assert found == pytest.approx(best, rel=1e-7)
    np.testing.assert_allclose(ours.coef_, reference.coef_, atol=1e-4 * abs(ours.coef_).max())
    np.testing.assert_array_equal(ours.coef_ == 0, reference.coef_ == 0)
    assert (ours.coef_ == 0).any()


def test_sparse_rows_and_weights() -> None:
    X, y = CANCER
    weight = np.random.default_rng(0).random(len(y)) + 0.5
    X = np.where(np.abs(X) > 1, X, 0.0)
    params: dict[str, Any] = {"C": 0.1, "tol": 1e-7}
    ours = LogisticRegression("l1", max_iter=1000, **params)
    ours.fit(sparse.csr_matrix(X), y, weight)
    reference = Reference(solver="saga", l1_ratio=1, max_iter=5000, **params).fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, reference.coef_, atol=1e-4 * abs(ours.coef_).max())


def test_a_strong_penalty_does_not_affect_the_intercept() -> None:
    X, y = CANCER
    clf = LogisticRegression("l1", C=1e-4, tol=1e-8).fit(X, y)
    assert not clf.coef_.any()
    assert clf.intercept_[0] == pytest.approx(np.log(y.mean() / (1 - y.mean())), rel=1e-6)


def test_least_squares_equal_the_lasso() -> None:
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(60, 10)), rng.normal(size=60)

    def evaluate(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        residual = A @ w - b
        return float(residual @ residual) / 120, A.T @ residual / 60

    found = minimize_orthant_wise(
        evaluate, np.zeros((10, 1)), np.full(10, 0.1), max_iter=200, tol=1e-9, should_stop=_never
    )
    lasso = Lasso(alpha=0.1, fit_intercept=False, tol=1e-12).fit(A, b)
    assert found.converged
    assert found.w.shape == (10, 1)
    np.testing.assert_allclose(found.w[:, 0], lasso.coef_, atol=1e-7)
    np.testing.assert_array_equal(found.w[:, 0] == 0, lasso.coef_ == 0)
    # Near the optimum gains are too small for float64, which ends the search before 1e-9.
    again = pseudo_gradient(found.w[:, 0], evaluate(found.w[:, 0])[1], np.full(10, 0.1))
    assert np.abs(again).max() <= 1e-8


def test_pseudo_gradient_by_its_branches() -> None:
    w = np.array([1.0, -1.0, 0.0, 0.0, 0.0])
    gradient = np.array([0.3, 0.3, 2.0, -2.0, 0.5])
    np.testing.assert_allclose(pseudo_gradient(w, gradient, np.ones(5)), [1.3, -0.7, 1, -1, 0])


def test_limit_of_iterations() -> None:
    X, y = CANCER
    with pytest.warns(ConvergenceWarning, match=r"limit of 2 iterations.*max_iter"):
        clf = LogisticRegression("l1", max_iter=2).fit(X, y)
    assert clf.n_iter_ == 2
    with pytest.warns(ConvergenceWarning):
        more = LogisticRegression("l1", max_iter=4, warm_start=True).fit(X, y)
    assert _objective(more, X, y, 1, 1) < _objective(clf, X, y, 1, 1)
