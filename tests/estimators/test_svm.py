"""Linear support vector machines: the solutions of liblinear."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.svm as reference
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from daskml_dist.errors import InvalidParameterError
from daskml_dist.svm import LinearSVC, LinearSVR

CANCER = (scale(load_breast_cancer().data), load_breast_cancer().target)
DIABETES = (scale(load_diabetes().data), load_diabetes().target)
INTERCEPTS = [
    {},
    {"C": 0.1, "intercept_scaling": 10.0},
    {"fit_intercept": False},
]


def _assert_same(ours: Any, theirs: Any, rtol: float = 1e-4) -> None:
    size = max(np.abs(theirs.coef_).max(), np.abs(theirs.intercept_).max())
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=rtol * size)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=0, atol=rtol * size)


@pytest.mark.parametrize(
    "params", [*INTERCEPTS, {"class_weight": "balanced"}, {"penalty": "l1", "C": 0.1}]
)
def test_two_classes(params: dict[str, Any]) -> None:
    X, y = CANCER
    ours = LinearSVC(tol=1e-7, **params)
    ours.fit(da.from_array(X, chunks=(200, -1)), da.from_array(y, chunks=200))
    theirs = reference.LinearSVC(tol=1e-8, max_iter=100_000, **params).fit(X, y)
    _assert_same(ours, theirs)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert not hasattr(ours, "predict_proba")


def test_three_classes_weights_and_sparse_rows() -> None:
    X, y = load_iris(return_X_y=True)
    weight = np.random.default_rng(0).random(len(y)) + 0.5
    ours = LinearSVC(tol=1e-7).fit(sparse.csr_matrix(X), y, weight)
    theirs = reference.LinearSVC(tol=1e-8, max_iter=100_000).fit(X, y, weight)
    _assert_same(ours, theirs)


@pytest.mark.parametrize("loss", ["epsilon_insensitive", "squared_epsilon_insensitive"])
@pytest.mark.parametrize("params", [*INTERCEPTS, {"epsilon": 20.0}, {"C": 10.0}])
def test_regression(params: dict[str, Any], loss: str) -> None:
    X, y = DIABETES
    X = X + 0.1  # the fit also makes sense without an intercept
    weight = np.random.default_rng(0).random(len(y)) + 0.5
    ours = LinearSVR(tol=1e-5, loss=loss, **params).fit(X, y, weight)
    theirs = reference.LinearSVR(tol=1e-7, max_iter=1_000_000, loss=loss, random_state=0, **params)
    _assert_same(ours, theirs.fit(X, y, weight))


def test_noisy_rows_take_few_newton_steps() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(20_000, 20))
    draw.random(20_000)
    y = X[:, :3].sum(axis=1) + draw.normal(size=20_000)
    assert LinearSVR().fit(X, y).n_iter_ < 50


def test_regression_on_dask_and_sparse_rows() -> None:
    X, y = DIABETES
    whole = LinearSVR(tol=1e-5).fit(X, y)
    for rows in (da.from_array(X, chunks=(100, -1)), sparse.csr_matrix(X)):
        target = da.from_array(y, chunks=100) if isinstance(rows, da.Array) else y
        _assert_same(LinearSVR(tol=1e-5).fit(rows, target), whole)


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (LinearSVC(loss="hinge"), "SGDClassifier"),
        (LinearSVC(penalty="elasticnet"), "l1"),
        (LinearSVC(multi_class="crammer_singer"), "ovr"),
        (LinearSVC(C=0), "C="),
        (LinearSVC(dual="no"), "dual"),
        (LinearSVC(intercept_scaling=0), "intercept_scaling"),
        (LinearSVR(loss="hinge"), "epsilon_insensitive"),
        (LinearSVR(epsilon=-1), "epsilon"),
    ],
)
def test_wrong_parameters(machine: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        machine.fit(*CANCER)


def test_limit_of_iterations() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        LinearSVC(max_iter=2).fit(*CANCER)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        LinearSVR(max_iter=2).fit(*DIABETES)
