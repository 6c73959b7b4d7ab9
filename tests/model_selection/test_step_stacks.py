"""Batched fits by gradient steps: each column equals its separate fit."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.model_selection import KFold

from daskml_dist import Run, model_selection
from daskml_dist.backends import wide_gather
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.schedules import Cosine
from daskml_dist.training import learning_rate_search as calibration
from daskml_dist.training.callbacks import CallbackList
from tests.quick import quick

RNG = np.random.default_rng(0)
N, FOLDS = 600, 2
X = RNG.normal(size=(N, 5))
BINARY = np.where(X[:, 0] - X[:, 1] + RNG.logistic(size=N) > 0, "yes", "no")
THREE = np.digitize(X[:, 0] + RNG.normal(size=N), [-1, 1])
NUMBERS = 3 + X @ RNG.normal(size=5) + RNG.normal(size=N)
WEIGHTS = RNG.random(N)
ALPHAS = {"alpha": [1e-4, 1e-1]}
FEW = {"max_iter": 3, "tol": None}

#: Estimator, its parameters, those of the candidates, targets, and the number of batches.
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, list[Any]], Any, int]] = {
    "each stops by itself": (SGDClassifier, {}, {"tol": [1e-3, 0.1], **ALPHAS}, BINARY, 1),
    "passes of their own": (SGDClassifier, {"tol": None}, {"max_iter": [2, 4]}, BINARY, 1),
    "classes": (SGDClassifier, FEW, ALPHAS, THREE, 1),
    "one against the rest": (SGDClassifier, {"loss": "hinge", **FEW}, ALPHAS, THREE, 1),
    "hinge": (SGDClassifier, {"loss": "hinge", **FEW}, ALPHAS, BINARY, 1),
    "rates": (
        SGDClassifier, {"optimizer": "sgd", **FEW},
        {"learning_rate": [0.1, "optimal", "invscaling", Cosine(0.1, passes=3), "auto"], **ALPHAS},
        BINARY, 2,
    ),
    "l1": (
        SGDClassifier, {"penalty": "l1", "batch_size": 16, **FEW},
        {"alpha": [1e-3, 1e-2]}, BINARY, 1,
    ),
    "optimizers": (
        SGDClassifier, {"penalty": "l1", "batch_size": 16, **FEW},
        {"optimizer": ["sgd", "adagrad", "adam"], "alpha": [1e-3, 1e-2]}, BINARY, 3,
    ),
    "elastic net": (
        SGDClassifier, {"penalty": "elasticnet", **FEW}, {"l1_ratio": [0.1, 0.9]}, BINARY, 1,
    ),
    "momentum": (SGDClassifier, {"optimizer": "nesterov", **FEW}, ALPHAS, BINARY, 1),
    "losses": (
        SGDClassifier, FEW, {"loss": ["log_loss", "modified_huber"], **ALPHAS}, BINARY, 2,
    ),
    "numbers": (SGDRegressor, FEW, ALPHAS, NUMBERS, 1),
    "medians": (SGDRegressor, {"loss": "huber", **FEW}, ALPHAS, NUMBERS, 1),
    "no intercept": (SGDRegressor, {"fit_intercept": False, **FEW}, ALPHAS, NUMBERS, 1),
}  # fmt: skip


#: Slow cases: their parts are in other cases, or they compile loops of another optimizer or loss.
ALIKE = {
    "passes of their own", "losses", "elastic net", "no intercept", "optimizers", "momentum",
    "medians",
}  # fmt: skip


def _grid(
    estimator: Any, rows: Any, y: Any, grid: dict[str, list[Any]], **params: Any
) -> model_selection.GridSearchCV:
    """Return a search that keeps its fits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return _Kept(estimator, grid, cv=KFold(FOLDS), refit=False).fit(rows, y, **params)


class _Kept(model_selection.GridSearchCV):
    """Search that keeps its fits."""

    def _fit_candidates(self, splits: Any, candidates: Any, scorers: Any) -> Any:
        self.tried = list(candidates)
        self.fits = super()._fit_candidates(splits, candidates, scorers)
        return self.fits


def _largest_difference(
    search: Any, rows: Any, y: Any, weight: Any = 1.0, folds: Any = None, scores: bool = True
) -> float:
    """Return the largest relative difference between columns and separate fits."""
    largest = 0.0
    folds = list(KFold(FOLDS).split(X)) if folds is None else folds
    for params, row in zip(search.tried, search.fits, strict=True):
        for fit, (train, test) in zip(row, folds, strict=True):
            mask = np.zeros(N)
            mask[train] = 1
            single_fit = search._make_candidate(params)
            train_weight = mask * weight
            lazy = isinstance(rows, da.Array)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                single_fit.fit(
                    rows,
                    y,
                    da.from_array(train_weight, chunks=rows.chunks[0]) if lazy else train_weight,
                )
            assert single_fit.n_iter_ == fit.estimator.n_iter_
            scale = float(np.abs(single_fit.coef_).max())
            for name in ("coef_", "intercept_"):
                truth, found = getattr(single_fit, name), getattr(fit.estimator, name)
                largest = max(largest, float(np.abs(found - truth).max()) / scale)
            if scores and not lazy:
                test_rows, labels = rows[test], np.asarray(y)[test]
                assert fit.test["score"] == pytest.approx(
                    single_fit.score(test_rows, labels), abs=1e-6
                )
    return largest


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in ALIKE else ()) for case in CASES]
)
def test_each_column_equals_its_separate_fit(case: str) -> None:
    kind, params, grid, y, n_stacks = CASES[case]
    search = _grid(kind(random_state=0, **params), X, y, grid)
    assert search.stacks_ == n_stacks
    assert _largest_difference(search, X, y) < 1e-12


def test_columns_of_a_shared_sample_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = SGDClassifier(random_state=0, max_iter=20, tol=None)
    exact = _grid(estimator, X, BINARY, ALPHAS).cv_results_["mean_test_score"]
    monkeypatch.setattr(calibration, "SHARED_ROWS", 150)
    shared = _grid(estimator, X, BINARY, ALPHAS)
    np.testing.assert_allclose(shared.cv_results_["mean_test_score"], exact, atol=0.02)
    assert 0 < _largest_difference(shared, X, BINARY, scores=False) < 0.2


@pytest.mark.parametrize("loops", ["compiled", "arrays"])
@pytest.mark.parametrize("kind", ["float32", "sparse", "weights"])
def test_rows_of_all_kinds(kind: str, loops: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if loops == "arrays":
        monkeypatch.setattr(wide_gather, "make_wide_gather", lambda *args: None)
    rows: Any = X.astype(np.float32) if kind == "float32" else X
    rows = sparse.csr_array(X * (np.abs(X) > 1)) if kind == "sparse" else rows
    weights = {"sample_weight": WEIGHTS} if kind == "weights" else {}
    search = _grid(SGDClassifier(random_state=0, batch_size=7, **FEW), rows, BINARY, ALPHAS,
                   **weights)  # fmt: skip
    assert search.stacks_ == 1
    if kind == "weights":
        search.fits = [[_unscored(fit) for fit in row] for row in search.fits]
    found = _largest_difference(search, rows, BINARY, **({"weight": WEIGHTS} if weights else {}))
    assert found < (1e-6 if kind == "float32" else 1e-12)


def _unscored(fit: Any) -> Any:
    """Return a fit without its scores, which depend on weights and are not compared."""
    fit.test = {"score": _Any()}
    return fit


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("policy", quick(["sync", "allreduce", "local", "ssp"], "allreduce", "ssp"))
def test_policies_on_a_cluster(policy: str, client: Any) -> None:
    rows, labels = da.from_array(X, chunks=(200, 5)), da.from_array(BINARY, chunks=200)
    run = Run(n_lanes=2, deterministic=policy != "ssp")
    estimator = SGDClassifier(policy=policy, random_state=0, run=run, **FEW)
    search = _grid(estimator, rows, labels, ALPHAS)
    assert search.stacks_ == 1
    # Free-running lanes have another order each time.
    bound = 0.3 if policy == "ssp" else 1e-12
    assert _largest_difference(search, rows, labels) < bound


@pytest.mark.parametrize(
    "params",
    [
        {"early_stopping": True}, {"average": True}, {"class_weight": "balanced"},
        {"policy": "hogwild"}, {"optimizer": "nag"}, {"random_state": np.random.RandomState(0)},
    ],
    ids=lambda params: next(iter(params)),
)  # fmt: skip
def test_models_that_cannot_be_batched_are_fitted_singly(params: dict[str, Any]) -> None:
    search = _grid(SGDClassifier(**{**FEW, "random_state": 0, **params}), X, BINARY, ALPHAS)
    assert not hasattr(search, "stacks_")
    assert search.cv_results_["mean_test_score"].max() > 0.6


def test_a_diverging_column_does_not_affect_others() -> None:
    estimator = SGDRegressor(optimizer="sgd", random_state=0, max_iter=5, tol=None)
    grid = {"learning_rate": [1e200, 0.01]}
    with pytest.warns(FitFailedWarning, match="infinite"), np.errstate(all="ignore"):
        with pytest.warns(UserWarning, match="non-finite"):
            search = _grid(estimator, X, NUMBERS, grid)
    assert np.isnan(search.cv_results_["mean_test_score"][0])
    alone = _grid(estimator, X, NUMBERS, {"learning_rate": [0.01]})
    for name in ("coef_", "intercept_"):
        one, other = (getattr(s.fits[-1][0].estimator, name) for s in (search, alone))
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = da.from_array(X, chunks=(150, 5)), da.from_array(BINARY, chunks=150)
    estimator = SGDClassifier(
        random_state=0, run=Run(n_lanes=4, deterministic=True), max_iter=6, tol=1e-9
    )
    expected = _grid(estimator, rows, labels, ALPHAS).cv_results_
    killed: list[int] = []

    class Killer:
        def on_pass_end(self, run: Any, record: Any) -> None:
            if not killed and record["pass"] == 3:
                victim = next(pid for pid in client.run(os.getpid).values())
                killed.append(victim)
                os.kill(victim, signal.SIGKILL)

    class Killing(CallbackList):
        def __init__(self, callbacks: Any = ()) -> None:
            super().__init__([*callbacks, Killer()])

    monkeypatch.setattr("daskml_dist.training.job.CallbackList", Killing)
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        found = _grid(estimator, rows, labels, ALPHAS).cv_results_
    assert killed
    for name in expected:
        if "test_score" in name:
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("kind", quick([SGDClassifier, SGDRegressor], SGDRegressor))
def test_columns_of_streamed_rows_equal_separate_fits(kind: Any, client: Any) -> None:
    y = BINARY if kind is SGDClassifier else NUMBERS
    rows, labels = da.from_array(X, chunks=(50, 5)), da.from_array(y, chunks=50)
    run = Run(n_lanes=2, deterministic=True, memory_budget=8_000)
    search = _grid(kind(random_state=0, run=run, **FEW), rows, labels, ALPHAS)
    assert search.stacks_ == 1
    assert _largest_difference(search, rows, labels) < 1e-12
