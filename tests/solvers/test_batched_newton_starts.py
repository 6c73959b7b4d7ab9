"""Newton starts of batched columns: the same optima with fewer passes over the rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as Truth

from daskml_dist.estimators.batched_fits import solver_rounds
from daskml_dist.linear_model import LogisticRegression, LogisticRegressionCV, PoissonRegressor
from daskml_dist.model_selection import GridSearchCV, KFold
from daskml_dist.solvers import batched_gradients, batched_solver
from daskml_dist.solvers.batched_gradients import BatchedGradient
from daskml_dist.solvers.batched_solver import WarmStarts, choose_leaders
from tests.quick import quick

RNG = np.random.default_rng(0)
N, D = 6000, 4
X = RNG.normal(size=(N, D))
RAW = X @ [1.0, -2.0, 0.5, 0.0]
BINARY = (RAW + RNG.logistic(size=N) > 0).astype(int)
THREE = (RAW[:, None] * [-1, 0, 1] + RNG.gumbel(size=(N, 3))).argmax(axis=1)
BY_LABEL = np.argsort(BINARY, kind="stable")
STRENGTHS = [0.01, 1.0, 10.0]
#: Rows and labels.
CASES: dict[str, tuple[Any, Any]] = {
    "scaled": (X, BINARY),
    "other scales": (X * [1e-2, 1, 1e2, 10], BINARY),
    "far from zero": (X + 20, BINARY),
    "collinear": (np.c_[X, X[:, :1]], BINARY),
    "sparse": (sparse.csr_array(np.where(np.abs(X) > 1, X, 0)), BINARY),
    "separable": (X, (RAW > 0).astype(int)),
    "folds of other labels": (X[BY_LABEL], BINARY[BY_LABEL]),
    "three classes": (X, THREE),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few rows for starting values and Hessians."""
    monkeypatch.setattr(batched_gradients, "_SAMPLE_RUN_ROWS", 8)
    monkeypatch.setattr(batched_solver, "_MIN_ROWS_PER_PARAMETER", 4)
    monkeypatch.setattr(solver_rounds, "_MIN_ENTRIES_FOR_SHARE", 0)
    monkeypatch.setattr(solver_rounds, "_SHARE_OF_ROWS", 4)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the columns of each pass over all rows."""
    found: list[int] = []
    add = BatchedGradient._add_candidates

    def counted(self: BatchedGradient, *args: Any) -> Any:
        if self.sample_stride == 1:
            found.append(len(self.w))
        return add(self, *args)

    monkeypatch.setattr(BatchedGradient, "_add_candidates", counted)
    return found


def _search(tol: float, X: Any, y: Any) -> Any:
    estimator = LogisticRegression(tol=tol, max_iter=3_000)
    return GridSearchCV(
        estimator,
        {"C": STRENGTHS},
        cv=KFold(3),
        scoring="neg_log_loss",
        refit=False,
        error_score="raise",
    ).fit(X, y)


@pytest.mark.parametrize(
    "case", quick(CASES, "other scales", "sparse", "separable", "three classes")
)
def test_optima_equal_those_of_newtons_method_in_float64(case: str) -> None:
    rows, labels = CASES[case]
    found, dense = _search(1e-7, rows, labels).cv_results_, np.asarray(rows @ np.eye(rows.shape[1]))
    truth = Truth(solver="newton-cholesky", tol=1e-12)
    for split, (train, test) in enumerate(KFold(3).split(dense)):
        for number, C in enumerate(STRENGTHS):
            fitted = truth.set_params(C=C).fit(dense[train], labels[train])
            at = np.searchsorted(fitted.classes_, labels[test])
            likely = fitted.predict_proba(dense[test])[np.arange(len(at)), at]
            loss = -np.log(likely).mean()
            score = found[f"split{split}_test_score"][number]
            np.testing.assert_allclose(-score, loss, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "share"),
    [
        pytest.param("scaled", 0.9, marks=pytest.mark.slow),
        ("other scales", 0.5),
        pytest.param("far from zero", 0.5, marks=pytest.mark.slow),
        ("three classes", 0.9),
    ],
)
def test_all_rows_are_read_less_often(
    case: str, share: float, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _search(1e-5, *CASES[case])
    few = sum(read)
    read.clear()
    monkeypatch.setattr(WarmStarts, "_hessian_share", lambda self, n_groups: None)
    _search(1e-5, *CASES[case])
    assert 0 < few < share * sum(read)


def test_columns_started_from_others_reach_their_optima(read: list[int]) -> None:
    values = np.logspace(-2, 4, 12)
    face = LogisticRegressionCV(Cs=values, cv=KFold(3), tol=1e-7, use_legacy_attributes=False)
    paths = face.fit(X, BINARY).coefs_paths_[:, 0, :, 0]
    assert min(read) < len(values)  # some columns provide starting values
    for split, (train, _) in enumerate(KFold(3).split(X)):
        for number, C in enumerate(values):
            truth = Truth(C=C, solver="newton-cholesky", tol=1e-12).fit(X[train], BINARY[train])
            expected = np.append(truth.coef_[0], truth.intercept_)
            np.testing.assert_allclose(paths[split, number], expected, atol=2e-6)


def test_columns_start_from_the_nearest_optimum() -> None:
    """For quadratics with Hessian 1, distances equal those of the optima."""
    at = {3: 0.0, 5: 0.01, 7: 1.0, 8: 1.012, 9: 0.99, 11: np.nan}
    places = {i: np.array([[x]]) for i, x in at.items()}
    found = choose_leaders(places, {i: np.array([1.0, x]) for i, x in at.items()})
    assert found == {3: 3, 5: 3, 7: 7, 8: 7, 9: 7, 11: 11}


def test_steps_count_as_iterations_up_to_the_limit() -> None:
    counts = {}
    for max_iter in (1, 100):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            face = LogisticRegressionCV(Cs=[0.1, 1.0], cv=3, max_iter=max_iter, tol=1e-6)
            counts[max_iter] = face.fit(X, BINARY).n_iter_
    assert counts[1].max() == 1
    assert (counts[100] >= 1).all()
    assert counts[100].max() < 10


def test_other_losses_and_losses_without_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    y = RNG.poisson(np.exp(RAW / 4))
    scores = []
    for many in (0, 1 << 60):
        monkeypatch.setattr(solver_rounds, "_MIN_ENTRIES_FOR_SHARE", many)
        search = GridSearchCV(PoissonRegressor(tol=1e-8, max_iter=1_000), {"alpha": [0.1, 1.0]})
        scores.append(search.fit(X, y).cv_results_["mean_test_score"])
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-7)


def test_newton_searches_use_kernels_for_many_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Targets and weights read by a kernel are contiguous."""
    monkeypatch.undo()  # thousands of short runs of rows would take most of the time
    rows = np.tile(X, (8, 1)).astype(np.float32)
    labels = np.tile(BINARY, 8)
    scores = [
        GridSearchCV(LogisticRegression(solver=solver, tol=1e-6), {"C": [0.1, 1.0]}, cv=KFold(3))
        .fit(rows, labels)
        .cv_results_["mean_test_score"]
        for solver in ("newton-cholesky", "lbfgs")
    ]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-3)
