"""Generalised linear and Huber regressors: coefficients, D^2 and errors as in scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.linear_model as reference
from distributed import Client
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import linear_model
from daskml_dist.ensemble import HistGradientBoostingRegressor
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import (
    GammaRegressor,
    HuberRegressor,
    PoissonRegressor,
    TweedieRegressor,
)
from daskml_dist.neural_network import MLPRegressor
from daskml_dist.recommender import FactorizationMachineRegressor
from tests.quick import in_turn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5))
MEAN = np.exp(X @ RNG.normal(size=5) / 3 + 0.3)
COUNTS = RNG.poisson(MEAN).astype(float)
AMOUNTS = RNG.gamma(3, MEAN / 3)
WEIGHT = RNG.random(300) + 0.1
LINE = X @ np.arange(5.0) + RNG.normal(size=300) * 0.1
LINE[::10] += RNG.normal(size=30) * 9

# Estimator, its parameters, targets.
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("PoissonRegressor", {}, COUNTS),
    ("GammaRegressor", {}, AMOUNTS),
    ("TweedieRegressor", {}, LINE),
    ("TweedieRegressor", {"power": 1.5}, COUNTS),
    ("TweedieRegressor", {"power": 3}, AMOUNTS),
    ("TweedieRegressor", {"power": 1, "link": "log"}, COUNTS),
    ("TweedieRegressor", {"power": -1, "link": "log"}, AMOUNTS),
]
SOLVERS = pytest.mark.parametrize("solver", ["lbfgs", "newton-cholesky"])


def _pair(name: str, **params: Any) -> tuple[Any, Any]:
    return getattr(linear_model, name)(**params), getattr(reference, name)(**params)


def _assert_same(ours: Any, theirs: Any, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=rtol * abs(ours.coef_).max())
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=rtol, abs=rtol)


def _warns(reg: Any, X: Any, y: Any) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # garbage collection may run at any time
        reg.fit(X, y, WEIGHT)
    assert all(warning.category is ConvergenceWarning for warning in caught)
    return bool(caught)


@SOLVERS
@pytest.mark.parametrize(("case", "fit_intercept"), in_turn(CASES, [True, False]))
def test_coefficients_and_score(
    case: tuple[str, dict[str, Any], Any], fit_intercept: bool, solver: str
) -> None:
    name, params, y = case
    shared = {"alpha": 0.1, "tol": 1e-8, "fit_intercept": fit_intercept, "solver": solver}
    ours, theirs = _pair(name, **shared, **params)
    rows, targets = da.from_array(X, chunks=(120, -1)), da.from_array(y, chunks=120)
    # If a deviance is not convex, both continue by L-BFGS, with a warning.
    assert _warns(ours, rows, targets) == _warns(theirs, X, y)
    _assert_same(ours, theirs)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-6)
    score = ours.score(X, y, WEIGHT)
    assert score == pytest.approx(theirs.score(X, y, WEIGHT), abs=1e-9)
    assert ours.n_iter_ == theirs.n_iter_


@SOLVERS
def test_identity_link(solver: str) -> None:
    params = {"power": 1.5, "link": "identity", "alpha": 0.01, "tol": 1e-7, "solver": solver}
    ours, theirs = _pair("TweedieRegressor", **params)
    rows = np.abs(X)
    y = rows.sum(axis=1) + AMOUNTS / 10
    _assert_same(ours.fit(rows, y), theirs.fit(rows, y))


@SOLVERS
def test_sparse_and_float32_rows(solver: str) -> None:
    rows = sparse.csr_matrix(np.where(np.abs(X) > 0.7, X, 0.0))
    ours, theirs = _pair("PoissonRegressor", alpha=0.1, tol=1e-6, solver=solver)
    _assert_same(ours.fit(rows, COUNTS), theirs.fit(rows, COUNTS))
    ours.fit(X.astype(np.float32), COUNTS.astype(np.float32))
    assert ours.coef_.dtype == np.float32
    _assert_same(ours, theirs.fit(X, COUNTS), rtol=1e-4)


def test_on_a_cluster(client: Client) -> None:
    ours, theirs = _pair("GammaRegressor", alpha=0.1, tol=1e-8, solver="newton-cholesky")
    ours.fit(da.from_array(X, chunks=(100, -1)), da.from_array(AMOUNTS, chunks=100))
    _assert_same(ours, theirs.fit(X, AMOUNTS))


def test_warm_start_and_the_limit_of_iterations() -> None:
    reg = PoissonRegressor(max_iter=1, tol=1e-8, warm_start=True)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        reg.fit(X, COUNTS)
    reg.set_params(max_iter=100).fit(X, COUNTS)
    _assert_same(reg, reference.PoissonRegressor(tol=1e-8).fit(X, COUNTS))
    assert reg.fit(X, COUNTS).n_iter_ <= 1


def test_an_overflowing_step_is_reverted() -> None:
    """Rows of very different sizes: exp overflows after a long step."""
    rows = X * np.array([1, 100, 1, 1, 1])
    ours, theirs = _pair("PoissonRegressor", alpha=1e-3, max_iter=1000, solver="newton-cholesky")
    _assert_same(ours.fit(rows, COUNTS), theirs.fit(rows, COUNTS), rtol=1e-4)
    PoissonRegressor(alpha=1e-3, max_iter=1000).fit(rows * 10, COUNTS)


@pytest.mark.parametrize(
    ("reg", "y", "message"),
    [
        (PoissonRegressor(), -COUNTS, r"y >= 0.*squared_error"),
        (GammaRegressor(), COUNTS, r"y > 0"),
        (TweedieRegressor(power=1.5), -COUNTS, r"y >= 0"),
        (TweedieRegressor(power=3), COUNTS, r"y > 0"),
    ],
)
def test_targets_outside_the_domain(reg: Any, y: Any, message: str) -> None:
    with pytest.raises(InvalidDataError, match=message):
        reg.fit(X, y)
    reg.fit(X, AMOUNTS)
    with pytest.raises(InvalidDataError, match=message):
        reg.score(X, y)


@pytest.mark.parametrize(
    ("reg", "message"),
    [
        (PoissonRegressor(alpha=-1), "alpha"),
        (PoissonRegressor(tol=0), "tol"),
        (PoissonRegressor(max_iter=0), "max_iter"),
        (PoissonRegressor(solver="sag"), "newton-cholesky"),
        (TweedieRegressor(power=0.5), "<= 0 or >= 1"),
        (TweedieRegressor(link="logit"), "identity"),
        (HuberRegressor(epsilon=0.9), ">= 1"),
        (HuberRegressor(alpha=-1), "alpha"),
    ],
)
def test_wrong_parameters(reg: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        reg.fit(X, AMOUNTS)


# --- Huber -----------------------------------------------------------------------------------


def _huber_objective(reg: Any, y: Any, weight: Any) -> float:
    residual = np.abs(y - X @ reg.coef_ - reg.intercept_) / reg.scale_
    bent = np.where(residual <= 1.35, residual**2, 2 * 1.35 * residual - 1.35**2)
    total = weight @ (reg.scale_ * (1 + bent))
    return float(total + reg.alpha * reg.coef_ @ reg.coef_)


@pytest.mark.parametrize("kind", ["dense", "sparse", "dask"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_huber(kind: str, fit_intercept: bool) -> None:
    ours, theirs = _pair("HuberRegressor", fit_intercept=fit_intercept, max_iter=500, tol=1e-7)
    theirs.fit(X, LINE, WEIGHT)
    rows: Any = {"dense": X, "sparse": sparse.csr_matrix(X)}.get(kind)
    if kind == "dask":
        ours.fit(da.from_array(X, chunks=(90, -1)), da.from_array(LINE, chunks=90), WEIGHT)
        assert ours.outliers_ is None
    else:
        ours.fit(rows, LINE, WEIGHT)
        np.testing.assert_array_equal(ours.outliers_, theirs.outliers_)
    _assert_same(ours, theirs, rtol=1e-4)
    assert ours.scale_ == pytest.approx(theirs.scale_, rel=1e-4)
    best = _huber_objective(theirs, LINE, WEIGHT)
    assert _huber_objective(ours, LINE, WEIGHT) <= best * (1 + 1e-8)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("seed", range(4))
def test_huber_converges_on_float32_rows(seed: int, kind: Any) -> None:
    """Without a warning: the line search gets enough precision."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(rng.integers(20, 400), rng.integers(1, 20))).astype(np.float32)
    y = rows @ rng.normal(size=rows.shape[1]) + rng.standard_t(2, size=len(rows))
    found, expected = (
        HuberRegressor(max_iter=200).fit(kind(each), y) for each in (rows, rows.astype(float))
    )
    np.testing.assert_allclose(found.predict(rows), expected.predict(rows), atol=1e-3 * y.std())


def test_huber_warm_start_keeps_the_scale() -> None:
    reg = HuberRegressor(warm_start=True).fit(X, LINE)
    first, scale = reg.n_iter_, reg.scale_
    reg.fit(X, LINE)
    assert reg.n_iter_ < first / 2
    assert reg.scale_ == pytest.approx(scale, rel=1e-3)


def test_huber_limit_of_iterations() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        HuberRegressor(max_iter=2).fit(X, LINE)


@pytest.mark.parametrize(
    ("reg", "other"),
    [
        (TweedieRegressor(power=1), {"power": 0}),
        (linear_model.SGDRegressor("poisson"), {"loss": "squared_error"}),
        (MLPRegressor("poisson", max_iter=2, tol=None), {"loss": "squared_error"}),
        (HistGradientBoostingRegressor("poisson", max_iter=2), {"loss": "quantile"}),
        (FactorizationMachineRegressor(loss="poisson", max_iter=1), {"loss": "squared_error"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_predictions_are_by_the_loss_of_the_fit(reg: Any, other: dict[str, Any]) -> None:
    reg = clone(reg).fit(X, COUNTS)
    expected, score = reg.predict(X), reg.score(X, COUNTS)
    reg.set_params(**other)
    np.testing.assert_array_equal(reg.predict(X), expected)
    assert reg.score(X, COUNTS) == score


def test_probabilities_are_by_the_loss_of_the_fit() -> None:
    model = linear_model.SGDClassifier("log_loss", random_state=0).fit(X, LINE > 0)
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(model.set_params(loss="hinge").predict_proba(X), expected)
