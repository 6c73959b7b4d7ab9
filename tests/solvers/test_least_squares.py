"""LinearRegression, Ridge, Lasso and ElasticNet against scikit-learn's, and against float64 QR."""

from __future__ import annotations

import doctest
import pickle
import sys
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import linalg, sparse
from sklearn import linear_model as peers
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import Run, linear_model
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import ElasticNet, Lasso, LinearRegression, Ridge

N, D = 600, 8

#: Estimators by name, with parameters that both libraries take.
CASES = {
    "ols": ("LinearRegression", {}),
    "ols without intercept": ("LinearRegression", {"fit_intercept": False}),
    "ols positive": ("LinearRegression", {"positive": True}),
    "ridge": ("Ridge", {"alpha": 3.0}),
    "ridge svd": ("Ridge", {"alpha": 3.0, "solver": "svd"}),
    "ridge cholesky": ("Ridge", {"solver": "cholesky", "fit_intercept": False}),
    "lasso": ("Lasso", {"alpha": 0.1, "tol": 1e-9}),
    "lasso positive": ("Lasso", {"alpha": 0.1, "tol": 1e-9, "positive": True}),
    "elastic net": ("ElasticNet", {"alpha": 0.1, "l1_ratio": 0.3, "tol": 1e-9}),
    "elastic net random": (
        "ElasticNet",
        {"alpha": 0.1, "tol": 1e-9, "selection": "random", "fit_intercept": False},
    ),
}


def _data(dtype: str = "float64", n_targets: int | None = None) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) * np.linspace(0.5, 3, D) + np.linspace(-2, 2, D)
    coef = rng.normal(size=(D, n_targets or 1))
    y = X @ coef + 1.5 + 0.3 * rng.normal(size=(N, n_targets or 1))
    return X.astype(dtype), (y if n_targets else y[:, 0]).astype(dtype)


def _pair(case: str) -> tuple[Any, Any]:
    name, params = CASES[case]
    return getattr(linear_model, name)(**params), getattr(peers, name)(**params)


def _differ(found: Any, expected: Any) -> float:
    """Return the largest difference relative to the largest value."""
    assert np.shape(found) == np.shape(expected)
    size = max(float(np.abs(expected).max()), 1e-300)
    return float(np.abs(np.asarray(found, np.float64) - expected).max()) / size


def _lazy(*arrays: Any, rows: int = 170) -> list[Any]:
    return [da.from_array(a, chunks=(rows, -1)[: a.ndim]) for a in arrays]


# --- against scikit-learn ----------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_dense_rows(case: str, dtype: str, weighted: bool) -> None:
    ours, theirs = _pair(case)
    X, y = _data(dtype)
    weight = np.random.default_rng(1).integers(0, 4, N) if weighted else None
    ours.fit(X, y, weight)
    theirs.fit(X.astype(np.float64), y.astype(np.float64), weight)
    bound = 1e-6 if dtype == "float64" else 5e-5
    assert ours.coef_.dtype == dtype
    assert _differ(ours.coef_, theirs.coef_) < bound
    assert _differ(ours.intercept_, theirs.intercept_) < bound
    assert _differ(ours.predict(X), theirs.predict(X)) < bound
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-5)
    for name in ("rank_", "singular_"):
        assert hasattr(ours, name) == hasattr(theirs, name)
        if hasattr(ours, name):
            assert _differ(getattr(ours, name), getattr(theirs, name)) < bound
    assert len(ours.history_.records) == 1 or dtype == "float32"


@pytest.mark.parametrize("case", [case for case in CASES if case != "ols positive"])
def test_sparse_rows(case: str) -> None:
    ours, theirs = _pair(case)
    if case == "ridge svd" or case == "ridge cholesky":
        theirs.set_params(solver="auto")  # the other scikit-learn estimators refuse sparse rows
    X, y = _data()
    X[np.random.default_rng(1).random(X.shape) < 0.6] = 0.0
    ours.fit(sparse.csr_array(X), y)
    # scikit-learn's solver for sparse rows is iterative; for dense ones it is exact.
    theirs.fit(X, y)
    assert _differ(ours.coef_, theirs.coef_) < 1e-7
    assert _differ(ours.intercept_, theirs.intercept_) < 1e-7
    assert not hasattr(ours, "rank_")


@pytest.mark.parametrize("n_targets", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_targets_of_several_columns(case: str, n_targets: int) -> None:
    ours, theirs = _pair(case)
    X, y = _data(n_targets=n_targets)
    ours.fit(X, y)
    theirs.fit(X, y)
    assert _differ(ours.coef_, theirs.coef_) < 1e-6
    assert _differ(ours.intercept_, theirs.intercept_) < 1e-6
    assert _differ(ours.predict(X), theirs.predict(X)) < 1e-6
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y))


def test_ridge_takes_a_penalty_for_each_target() -> None:
    X, y = _data(n_targets=3)
    alpha = np.array([0.1, 10.0, 1e3])
    for solver in ("cholesky", "svd"):
        ours = Ridge(alpha, solver=solver).fit(X, y)
        assert _differ(ours.coef_, peers.Ridge(alpha).fit(X, y).coef_) < 1e-10
        assert ours.solver_ == solver
    with pytest.raises(InvalidParameterError, match="one for each target"):
        Ridge(alpha[:2]).fit(X, y)


def test_positive_ridge_is_at_its_optimum() -> None:
    X, y = _data()
    ours = Ridge(alpha=5.0, positive=True).fit(X, y)
    w, centred = ours.coef_, X - X.mean(axis=0)
    gradient = centred.T @ (centred @ w - (y - y.mean())) + 5.0 * w
    assert (w >= 0).all()
    assert np.abs(gradient[w > 0]).max() < 1e-8
    assert gradient[w == 0].min() > 0
    theirs = peers.Ridge(alpha=5.0, positive=True, tol=1e-10).fit(X, y)
    assert _differ(w, theirs.coef_) < 1e-5


def test_dual_gap_and_cycles_are_scikit_learns() -> None:
    X, y = _data()
    params = {"alpha": 0.05, "tol": 1e-6}
    ours, theirs = Lasso(**params).fit(X, y), peers.Lasso(**params, precompute=True).fit(X, y)
    assert ours.n_iter_ == theirs.n_iter_
    assert ours.dual_gap_ == pytest.approx(theirs.dual_gap_, rel=1e-6, abs=1e-12)
    assert ours.dual_gap_ <= 1e-6 * np.var(y)
    assert ours.sparse_coef_.toarray() == pytest.approx(ours.coef_[None])


def test_warm_start_begins_where_the_last_fit_ended() -> None:
    X, y = _data()
    net = ElasticNet(alpha=0.01, tol=1e-10, warm_start=True).fit(X, y)
    cycles, coef = net.n_iter_, net.coef_
    net.fit(X, y)
    assert net.n_iter_ < cycles
    assert _differ(net.coef_, coef) < 1e-6


def test_lasso_warns_when_it_does_not_converge() -> None:
    X, y = _data()
    with pytest.warns(ConvergenceWarning, match=r"The duality gap .* iterations, max_iter"):
        Lasso(alpha=1e-3, tol=1e-14, max_iter=2).fit(X, y)
    with pytest.warns(UserWarning, match="use the LinearRegression"):
        ElasticNet(alpha=0).fit(X, y)


@pytest.mark.parametrize("model", [LinearRegression, Ridge, Lasso, ElasticNet])
def test_examples_of_the_docstrings(model: Any) -> None:
    done = doctest.testmod(sys.modules[model.__module__])
    assert done.attempted
    assert done.failed == 0


# --- precision -----------------------------------------------------------------------------------


def _truth(X: Any, y: Any, tol: float = 1e-6) -> tuple[Any, int]:
    """Return the minimum-norm least squares solution by an orthogonal factorisation in float64."""
    X, y = X.astype(np.float64), y.astype(np.float64)
    coef, _, rank, _ = linalg.lstsq(X - X.mean(axis=0), y - y.mean(), cond=tol)
    return coef, rank


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_ill_conditioned_rows_keep_their_precision(dtype: str, condition: float) -> None:
    X, y = _data("float64")
    X[:, 3] = X[:, 2] + np.random.default_rng(1).normal(size=N) / condition
    y += X[:, 3] * 5  # a coefficient that only these digits determine
    X, y = X.astype(dtype), y.astype(dtype)
    ours = LinearRegression(tol=1e-9).fit(X, y)
    expected, rank = _truth(X, y, 1e-9)
    assert ours.rank_ == rank == D
    assert _differ(ours.coef_, expected) < 1e-6
    looks = 1 + (dtype == "float32") + (condition == 1e5)
    assert len(ours.history_.records) == looks


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("offset", [1e2, 1e4, 1e6])
def test_means_far_from_zero_keep_precision(dtype: str, offset: float) -> None:
    X, y = _data("float64")
    X, y = (X + offset).astype(dtype), (y - offset).astype(dtype)
    expected, rank = _truth(X, y)
    for model in (LinearRegression(), Ridge(alpha=1e-8), Lasso(alpha=1e-8, tol=1e-12)):
        model.fit(X, y)
        assert _differ(model.coef_, expected) < 1e-6
        residual = y.astype(np.float64) - X.astype(np.float64) @ model.coef_.astype(np.float64)
        eps = np.finfo(dtype).eps * offset * np.abs(model.coef_).sum()
        assert abs(np.mean(residual) - model.intercept_) < 10 * eps + 1e-6
    assert LinearRegression().fit(X, y).rank_ == rank


@pytest.mark.parametrize("model", [LinearRegression(), Ridge(alpha=1e-6)])
def test_many_float32_features_are_read_again_only_if_needed(model: Any) -> None:
    """Condition numbers decide, whose usual bounds grow with the number of features."""
    rng = np.random.default_rng(0)
    X = rng.random((2_000, 300)).astype(np.float32)
    y = X @ rng.normal(size=300) + rng.normal(size=len(X))
    for offset, n_passes, bound in ((0.25, 1, 1e-4), (0.72, 2, 1e-6)):
        rows = X + np.float32(offset)
        fitted = clone(model).fit(rows, y)
        assert len(fitted.history_) == n_passes
        expected = clone(model).fit(rows.astype(np.float64), y)
        assert _differ(fitted.coef_, expected.coef_) < bound


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("what", ["repeated", "constant", "zero", "few rows", "one row", "all"])
def test_dependent_features_get_the_minimum_norm_solution(dtype: str, what: str) -> None:
    X, y = _data(dtype)
    if what == "repeated":
        X[:, 5] = 2 * X[:, 1]
    elif what == "few rows":
        X, y = X[: D // 2], y[: D // 2]
    elif what == "one row":
        X, y = X[:1], y[:1]
    else:
        X[:, slice(None) if what == "all" else 4] = 0.0 if what == "zero" else 7.0
    bound = 1e-6 if dtype == "float64" else 5e-5
    ours = LinearRegression().fit(X, y)
    theirs = peers.LinearRegression().fit(X.astype(np.float64), y.astype(np.float64))
    expected, rank = _truth(X, y)
    assert ours.rank_ == rank == theirs.rank_
    assert len(ours.singular_) == min(X.shape)
    assert np.abs(ours.coef_ - expected).max() < bound
    assert np.abs(ours.singular_ - theirs.singular_).max() < 1e-5 * max(theirs.singular_[0], 1e-9)
    ridge = Ridge().fit(X, y)
    expected = peers.Ridge(solver="svd").fit(X.astype(np.float64), y.astype(np.float64)).coef_
    assert np.abs(ridge.coef_ - expected).max() < bound


def test_one_hot_rows_with_an_intercept() -> None:
    codes = np.random.default_rng(0).integers(0, 5, N)
    X, y = np.eye(5)[codes], codes**2.0
    expected, _ = _truth(X, y)
    found = LinearRegression().fit(sparse.csr_array(X), y)
    assert _differ(found.coef_, expected) < 1e-8
    assert np.abs(found.predict(X) - y).max() < 1e-8


# --- many blocks and processes -------------------------------------------------------------------


def test_blocks_on_workers(client: Client) -> None:
    ours, theirs = _pair("ols")
    X, y = _data("float32", n_targets=2)
    X[:, 3] = X[:, 2] + X[:, 3] / 256  # needs a second pass
    weight = np.random.default_rng(1).uniform(0, 2, N).astype(np.float32)
    ours.fit(*_lazy(X, y, weight))
    theirs.fit(X.astype(np.float64), y.astype(np.float64), weight.astype(np.float64))
    assert _differ(ours.coef_, theirs.coef_) < 1e-4
    assert _differ(ours.intercept_, theirs.intercept_) < 1e-4
    assert _differ(ours.predict(_lazy(X)[0]).compute(), theirs.predict(X)) < 1e-4
    assert ours.score(*_lazy(X, y)) == pytest.approx(theirs.score(X, y), abs=1e-5)
    same = pickle.loads(pickle.dumps(ours)).predict(X)
    assert np.array_equal(same, ours.predict(X))


def test_lanes_only_change_rounding() -> None:
    X, y = _data()
    coefs = [LinearRegression(run=Run(n_lanes=n)).fit(X, y).coef_ for n in (1, 3, 7)]
    assert max(_differ(coef, coefs[0]) for coef in coefs) < 1e-13


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (LinearRegression(tol=-1), r"tol=-1: use a number >= 0"),
        (LinearRegression(positive=1), r"positive=1: use True or False"),
        (Ridge(alpha=-1.0), r"alpha=-1.0"),
        (Ridge(solver="qr"), r"use one of \['auto', 'svd', 'cholesky', 'lsqr'"),
        (Ridge(solver="svd", positive=True), r'Set solver to "auto" or "lbfgs"'),
        (Ridge(solver="lbfgs"), r"only when positive=True"),
        (Lasso(alpha=np.nan), r"alpha=nan"),
        (ElasticNet(l1_ratio=1.5), r"from 0 to 1"),
        (ElasticNet(selection="greedy"), r'"cyclic" or "random"'),
        (Lasso(max_iter=0), r"max_iter=0"),
    ],
)
def test_bad_parameters_are_named_with_their_remedy(model: Any, match: str) -> None:
    with pytest.raises(InvalidParameterError, match=match):
        model.fit(*_data())


def test_bad_rows_are_named_with_their_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = _data()
    with pytest.raises(InvalidDataError, match="needs dense rows"):
        LinearRegression(positive=True).fit(sparse.csr_array(X), y)
    with pytest.raises(ValueError, match="1d array"):
        linear_model.PoissonRegressor().fit(X, np.exp(np.c_[y, y]))
    with pytest.raises(ValueError, match="contains NaN"):
        Ridge().fit(X, np.c_[y, np.where(np.arange(N) == 5, np.nan, y)])
    monkeypatch.setattr("daskml_dist.dask_internals.cluster.MEMORY_LIMIT", 2**30)
    wide = sparse.csr_array((10, 2**16))
    with pytest.raises(InvalidDataError, match="SGDRegressor"):
        Lasso().fit(wide, np.arange(10.0))


def test_squares_that_overflow_are_an_error_with_its_remedy() -> None:
    X, y = _data()
    with pytest.raises(DivergedError, match="Scale the features"):
        Ridge().fit(X * 1e200, y)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_products_that_overflow_once_scaled_are_reported() -> None:
    X = (
        np.array([[1.35, 8.4, -1.48, 2.6], [5.3, 6.9, -8.9, 4.7], [-0.17, -6.0, -6.8, -2.3]])
        * 1e149
    )
    y = np.array([1.7e300, 6.4e298, 7.7e299])
    model = linear_model.ElasticNetCV(cv=2)
    with pytest.raises(DivergedError, match="overflow"):
        model.fit(X, y, sample_weight=np.array([0.0, 1.0, 0.0]))
