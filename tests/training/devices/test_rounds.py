"""Fits by round solvers on a device."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from daskml_dist import Run, cluster, model_selection, naive_bayes, svm
from daskml_dist.errors import (
    InvalidParameterError,
)
from daskml_dist.linear_model import (
    ElasticNet,
    ElasticNetCV,
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
    TweedieRegressor,
)
from tests.fake_cupy import plug_in
from tests.training.devices.fits import STEPS, TARGETS, WEIGHT, CountedMoves, X, check_device

ROUNDS = [
    (LogisticRegression(tol=1e-6), "two"),
    (LogisticRegression(tol=1e-6), "three"),
    (LogisticRegression(tol=1e-6, penalty="l1", max_iter=500), "two"),
    (LogisticRegression(solver="newton-cholesky"), "two"),
    (LogisticRegression(solver="newton-cholesky"), "three"),
    (LogisticRegression(solver="boosting", max_iter=50, tol=0.1), "two"),
    (LinearRegression(), "numbers"),
    (LinearRegression(), "columns"),
    (Ridge(), "numbers"),
    (Lasso(alpha=0.1), "numbers"),
    (ElasticNet(alpha=0.1), "numbers"),
    (PoissonRegressor(tol=1e-6), "counts"),
    (PoissonRegressor(solver="newton-cholesky"), "counts"),
    (GammaRegressor(tol=1e-6), "positive"),
    (TweedieRegressor(power=1.5, tol=1e-6), "positive"),
    (HuberRegressor(tol=1e-6, max_iter=500), "numbers"),
    (HuberRegressor(tol=1e-6, max_iter=500), "columns"),
    (svm.LinearSVC(tol=1e-6, max_iter=2000), "two"),
    (svm.LinearSVR(loss="squared_epsilon_insensitive", tol=1e-4), "numbers"),
    (naive_bayes.GaussianNB(), "three"),
    (naive_bayes.BernoulliNB(), "three"),
    (cluster.KMeans(3, init=X[:3]), "three"),
    (cluster.BisectingKMeans(3, random_state=0), "three"),
    (RidgeCV(), "numbers"),
    (RidgeCV(cv=2), "columns"),
    (RidgeClassifierCV(), "three"),
    (LassoCV(alphas=5, cv=2), "numbers"),
    (ElasticNetCV(alphas=5, cv=2), "numbers"),
    (LogisticRegressionCV(Cs=3, cv=2, tol=1e-6), "two"),
]
#: Candidates that are fitted together, by the names of a parameter and of targets.
SEARCHED = [
    (LogisticRegression(tol=1e-6), "C", "two"),
    (LogisticRegression(tol=1e-6), "C", "three"),
    (Ridge(), "alpha", "numbers"),
    (Lasso(), "alpha", "numbers"),
    (SGDClassifier(**STEPS), "alpha", "two"),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("model", "target"), ROUNDS, ids=[f"{type(m).__name__}-{i}" for i, (m, _) in enumerate(ROUNDS)]
)
def test_every_round_solver_equals_the_cpu(gpu: None, model: Any, target: str) -> None:
    check_device(model, TARGETS[target], rtol=1e-5)
    check_device(model, TARGETS[target], rtol=1e-5, sample_weight=WEIGHT)


@pytest.mark.parametrize(
    ("model", "parameter", "target"),
    SEARCHED,
    ids=[f"{type(m).__name__}-{y}" for m, _, y in SEARCHED],
)
def test_search_candidates_equal_the_cpu(
    gpu: None, model: Any, parameter: str, target: str
) -> None:
    scores = [
        model_selection.GridSearchCV(
            clone(model).set_params(device=device), {parameter: [0.1, 1]}, cv=2
        )
        .fit(X, TARGETS[target])
        .cv_results_["split1_test_score"]
        for device in ("gpu", "cpu")
    ]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)


def test_parameters_are_moved_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not moved for each of ten blocks, whose rows and targets are moved only once."""
    plug_in(CountedMoves, monkeypatch)
    CountedMoves.moved = 0
    rows, y = da.from_array(X, chunks=(24, 5)), da.from_array(TARGETS["two"], chunks=24)
    model = LogisticRegression(device="gpu", run=Run(n_lanes=1)).fit(rows, y)
    rounds = len(model.history_.records)
    assert 20 + rounds < CountedMoves.moved < 20 + 3 * (rounds + 2)


@pytest.mark.parametrize("model", [SGDClassifier(**STEPS), LogisticRegression(tol=1e-3)])
def test_sparse_rows_are_not_summed_in_order_on_a_device(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(CountedMoves, monkeypatch)
    CountedMoves.moved = 0
    rows, ends = sparse.csr_array(X), []
    for device in ("auto", "cpu"):
        model = clone(model).set_params(device=device, run__deterministic=True)
        ends.append(model.fit(rows, TARGETS["two"]).coef_)
    np.testing.assert_array_equal(ends[0], ends[1])
    assert not CountedMoves.moved
    with pytest.raises(InvalidParameterError, match=r'deterministic.* Use device="cpu", or dense'):
        model.set_params(device="gpu").fit(rows, TARGETS["two"])
