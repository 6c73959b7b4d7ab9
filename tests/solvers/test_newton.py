"""newton-cholesky: sums compared with finite differences, solutions with scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse
from sklearn.datasets import load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as Reference

from daskml_dist.backends import get_backend
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.losses import LOSSES
from daskml_dist.models import linear as curvature
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel

X, Y = make_classification(400, 6, random_state=0)
IRIS = load_iris(return_X_y=True)
WEIGHT = np.random.default_rng(0).random(400) + 0.1
SPARSE = np.where(np.abs(X) > 0.7, X, 0.0)


def _fit(X: Any, y: Any, sample_weight: Any = None, **params: Any) -> LogisticRegression:
    clf = LogisticRegression(**{"solver": "newton-cholesky", "tol": 1e-8, **params})
    return clf.fit(X, y, sample_weight)


def _same(ours: Any, X: Any, y: Any, weight: Any = None, rtol: float = 1e-6, **params: Any) -> None:
    reference = Reference(**{"solver": "newton-cholesky", "tol": 1e-8, **params}).fit(X, y, weight)
    scale = np.abs(reference.coef_).max()
    np.testing.assert_allclose(ours.coef_, reference.coef_, rtol=0, atol=rtol * scale)
    np.testing.assert_allclose(ours.intercept_, reference.intercept_, rtol=0, atol=rtol * scale)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("name", "n_classes"), [("log_loss", 2), ("log_loss", 3), ("poisson", 0)])
def test_hessian_equals_differences_of_the_gradient(
    name: str, n_classes: int, fit_intercept: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curvature, "_CACHE_BLOCK_BYTES", 1)  # several blocks
    rng = np.random.default_rng(0)
    model = LinearModel(LOSSES[name](), 6, n_classes, fit_intercept)
    y = rng.integers(3, size=400) if n_classes == 3 else np.sign(Y - 0.5)
    y = Y.astype(float) if name == "poisson" else y
    rows: Any = CSRRows(sparse.csr_array(SPARSE), np.arange(400)) if kind == "sparse" else SPARSE
    w = rng.normal(size=model.shape) / 3

    def sums(w: Any) -> tuple[Any, Any, Any]:
        gradient, hessian = np.zeros(model.shape), np.zeros(model.shape * 2)
        backend = get_backend("cpu")
        found = curvature.add_curvature(
            model, w, BatchRows(rows, y, WEIGHT), gradient, hessian, backend
        )
        return found[0], gradient.ravel(), hessian.reshape(w.size, w.size)

    loss, gradient, hessian = sums(w)
    expected = np.zeros(model.shape)
    whole = model.add_gradient(w, BatchRows(rows, y, WEIGHT), expected, get_backend("cpu"))
    assert loss == pytest.approx(whole, rel=1e-12)
    np.testing.assert_allclose(gradient, expected.ravel(), rtol=1e-10, atol=1e-10)
    h = 1e-6
    for i in range(w.size):
        move = h * np.eye(w.size)[i].reshape(w.shape)
        slope = (sums(w + move)[1] - sums(w - move)[1]) / (2 * h)
        np.testing.assert_allclose(hessian[i], slope, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [0.1, 100.0])
def test_two_classes(C: float, fit_intercept: bool) -> None:
    params = {"C": C, "fit_intercept": fit_intercept}
    ours = _fit(da.from_array(X, chunks=(150, -1)), da.from_array(Y, chunks=150), **params)
    _same(ours, X, Y, **params)


def test_weights_and_sparse_rows() -> None:
    rows = sparse.csr_matrix(SPARSE)
    _same(_fit(rows, Y, WEIGHT), rows, Y, WEIGHT)
    for weight in (
        None,
        WEIGHT,
    ):  # balanced as in scikit-learn: a weight of 2 equals a repeated row
        balanced = _fit(rows, Y, weight, class_weight="balanced")
        _same(balanced, rows, Y, weight, class_weight="balanced")


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [1.0, np.inf])
def test_three_classes_and_unpenalised_parameters(C: float, fit_intercept: bool) -> None:
    """Intercepts, or all parameters without a penalty, are determined up to a common shift."""
    params = {"C": C, "fit_intercept": fit_intercept}
    _same(_fit(*IRIS, **params), *IRIS, **params)


def test_float32_stops_at_its_precision() -> None:
    ours = _fit(X.astype(np.float32), Y, tol=1e-6)
    assert ours.coef_.dtype == np.float32
    _same(ours, X, Y, rtol=1e-4)


def test_on_a_cluster(client: Client) -> None:
    ours = _fit(da.from_array(X, chunks=(100, -1)), da.from_array(Y, chunks=100))
    _same(ours, X, Y)
    assert len(ours.history_.records) <= ours.n_iter_[0] + 2


def test_one_pass_per_step() -> None:
    ours = _fit(X, Y, tol=1e-4)
    assert ours.n_iter_ == Reference(solver="newton-cholesky").fit(X, Y).n_iter_
    assert len(ours.history_.records) <= ours.n_iter_[0] + 2


def test_collinear_features_without_a_penalty() -> None:
    """L-BFGS continues, with a warning."""
    once = X[:, :2] + np.random.default_rng(0).normal(size=(400, 2))
    twice = np.hstack([once, once])
    with pytest.warns(ConvergenceWarning, match=r"singular Hessian.*L-BFGS.*collinear"):
        ours = _fit(twice, Y, C=np.inf, tol=1e-5)
    alone = _fit(once, Y, C=np.inf)
    found, expected = ours.decision_function(twice), alone.decision_function(once)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_separable_rows_without_a_penalty_warn() -> None:
    rows, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 0, 1, 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clf = _fit(rows, y, C=np.inf, max_iter=5, tol=1e-12)
    assert any(issubclass(w.category, ConvergenceWarning) for w in caught)
    assert np.isfinite(clf.coef_).all()
    assert clf.score(rows, y) == 1


def test_limit_of_iterations_warns_and_warm_start_continues() -> None:
    clf = LogisticRegression(solver="newton-cholesky", max_iter=1, tol=1e-8, warm_start=True)
    with pytest.warns(ConvergenceWarning, match=r"limit of 1 iterations.*max_iter"):
        clf.fit(X, Y)
    clf.set_params(max_iter=100).fit(X, Y)
    _same(clf, X, Y)
    assert clf.fit(X, Y).n_iter_ <= 2


def test_too_many_parameters_name_the_other_solver() -> None:
    wide = sparse.random(20, 20_000, density=0.001, format="csr", random_state=0)
    with pytest.raises(InvalidParameterError, match="lbfgs"):
        _fit(wide, np.arange(20) % 2)


def test_l1_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"newton-cholesky.*l1.*lbfgs"):
        _fit(X, Y, penalty="l1")
