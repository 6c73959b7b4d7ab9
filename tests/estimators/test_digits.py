"""Precision is kept with large means, tiny and huge values, and weak penalties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.linear_model as peers
from distributed import Client
from scipy import optimize, sparse
from sklearn.metrics import d2_tweedie_score, r2_score

from daskml_dist import Run, linear_model, metrics
from daskml_dist.errors import CheckpointError, DivergedError
from daskml_dist.linear_model import LinearRegression, Ridge, SGDClassifier, SGDRegressor
from daskml_dist.losses import LOSSES, Loss, SquaredError
from daskml_dist.optimizers import OPTIMIZERS
from daskml_dist.policies import POLICIES
from daskml_dist.svm import LinearSVC, LinearSVR
from daskml_dist.training.checkpoint import Checkpoint
from tests.quick import in_turn

N, D = 600, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
Y = X @ np.arange(1.0, D + 1) + 0.3 * RNG.normal(size=N)
CENTRED = sorted(name for name, loss in LOSSES.items() if loss.center)
#: Means of the targets, in standard deviations of about 5.
FAR = [1e3, 1e6, 1.7e9]


def _sgd(**params: Any) -> SGDRegressor:
    return SGDRegressor(random_state=0, run=Run(n_lanes=2), max_iter=20, tol=None, **params)


# --- targets far from zero ---------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "offset"), in_turn(CENTRED, FAR))
def test_targets_far_from_zero(loss: str, offset: float) -> None:
    """Shifting the targets only shifts the intercept."""
    plain, shifted = _sgd(loss=loss).fit(X, Y), _sgd(loss=loss).fit(X, Y + offset)
    np.testing.assert_allclose(shifted.coef_, plain.coef_, rtol=1e-5)
    assert shifted.intercept_[0] - offset == pytest.approx(plain.intercept_[0], abs=1e-5)
    truth = peers.LinearRegression().fit(X, Y + offset)
    score = r2_score(Y + offset, shifted.predict(X))
    assert score > r2_score(Y + offset, truth.predict(X)) - 0.01
    assert shifted.score(X, Y + offset) == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_starts_near_the_targets(optimizer: str) -> None:
    score = _sgd(optimizer=optimizer).fit(X, Y).score(X, Y)
    assert _sgd(optimizer=optimizer).fit(X, Y + 1e5).score(X, Y + 1e5) == pytest.approx(score)


@pytest.mark.parametrize(("policy", "lazy"), in_turn(sorted(POLICIES), [False, True]))
def test_every_policy_starts_near_the_targets(policy: str, lazy: bool) -> None:
    reg = _sgd(policy=policy)
    if lazy:
        rows = da.from_array(X, chunks=(150, D)), da.from_array(Y + 1e5, chunks=150)
        reg.fit(*rows, client=None)
    else:
        reg.fit(X, Y + 1e5)
    assert reg.score(X, Y + 1e5) > 0.97


def test_targets_far_from_zero_on_a_cluster(client: Client) -> None:
    rows = da.from_array(X, chunks=(150, D)), da.from_array(Y + 1e5, chunks=150)
    reg = _sgd(early_stopping=True).fit(*rows)
    assert reg.score(*rows) > 0.97
    assert reg.history_[-1]["val_score"] > 0.97


def test_no_shift_without_an_intercept() -> None:
    """Least squares through the origin, without an intercept to absorb the shift."""
    X_far = np.full((N, 1), 30.0) + X[:, :1]
    reg = SGDRegressor(
        random_state=0, fit_intercept=False, max_iter=200, tol=None, penalty=None
    ).fit(X_far, 2 * X_far[:, 0])
    assert reg.coef_ == pytest.approx([2.0], rel=1e-2)
    assert reg.intercept_ == 0


def test_continued_fits_keep_full_precision(tmp_path: Path) -> None:
    """By warm starts, by single passes, and from a checkpoint."""
    y, full = Y + 1e6, {"shuffle": False, "batch_size": None, "learning_rate": 0.05}
    whole = _sgd(**full).fit(X, y)
    half = _sgd(warm_start=True, **full).set_params(max_iter=10)
    twice = half.fit(X, y).fit(X, y)
    saved = Checkpoint(tmp_path / "fit.npz")
    _sgd(checkpoint=saved, **full).set_params(max_iter=10).fit(X, y)
    resumed = _sgd(checkpoint=Checkpoint(tmp_path / "fit.npz", resume=True), **full).fit(X, y)
    passes = _sgd(**full)
    for _ in range(20):
        passes.partial_fit(X, y)
    for reg in (twice, resumed, passes):
        np.testing.assert_array_equal(reg.coef_, whole.coef_)
        np.testing.assert_array_equal(reg.intercept_, whole.intercept_)


@pytest.mark.parametrize("shift", [None, [1.0, 2.0], ["1"], [float("nan")], 3])
def test_a_damaged_shift_is_refused(tmp_path: Path, shift: Any) -> None:
    saved = Checkpoint(tmp_path / "fit.npz")
    _sgd(checkpoint=saved).set_params(max_iter=1).fit(X, Y)
    state, facts = saved.load()
    saved.save(state, {**facts, "origin": shift})
    with pytest.raises(CheckpointError, match="origin"):
        _sgd(checkpoint=Checkpoint(tmp_path / "fit.npz", resume=True)).fit(X, Y)


def test_continued_fits_with_other_rows() -> None:
    """The shift of the first rows is kept; parameters refer to the unshifted targets."""
    reg = _sgd(warm_start=True, learning_rate=1.0).fit(X, Y + 1e3)
    reg.fit(X, Y + 1e3 + 5)
    assert reg.score(X, Y + 1e3 + 5) > 0.97
    reg.coef_, reg.intercept_ = np.arange(1.0, D + 1), np.array([1e3])
    reg.set_params(max_iter=1, learning_rate=1e-9).fit(X, Y + 1e3)
    assert reg.coef_ == pytest.approx(np.arange(1.0, D + 1), abs=1e-6)


@pytest.mark.parametrize("loss", ["huber", "epsilon_insensitive", "quantile"])
def test_outliers_move_neither_start_nor_steps(loss: str) -> None:
    y = Y + 100
    y[::30] += 1e7
    assert _sgd(loss=loss).fit(X, y).score(X, Y + 100) > 0.97


@pytest.mark.parametrize("loss", ["poisson", "gamma", "tweedie"])
def test_a_log_link_starts_at_the_mean(loss: str) -> None:
    y = 1e6 * np.exp(0.2 * X[:, 0]) * RNG.gamma(100, 0.01, N)
    assert d2_tweedie_score(y, _sgd(loss=loss).fit(X, y).predict(X), power=1) > 0.7


def test_a_custom_loss_is_not_centred() -> None:
    """The loss of a subclass may not be a function of the residual."""

    class Relative(SquaredError):
        def value_and_gradient(self, y: Any, raw: Any) -> tuple[Any, Any]:
            residual = (raw - y) / y
            return residual**2 / 2, residual / y

    assert SquaredError.center == "mean"
    assert Relative.center is None
    assert Loss.center is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_targets_keep_their_precision_with_float32_rows(dtype: str) -> None:
    rows, y = X.astype(dtype), 2.0**30 + Y
    for reg in (LinearRegression(), linear_model.HuberRegressor(tol=1e-3), _sgd()):
        coef = reg.fit(rows, y).coef_
        np.testing.assert_allclose(coef, np.arange(1.0, D + 1), rtol=0.05)


# --- scores -----------------------------------------------------------------------------------


def _noisy(offset: float) -> tuple[Any, Any]:
    z = RNG.normal(size=(N, 1))
    return z, offset + 60 * z[:, 0] + 13 * RNG.normal(size=N)


@pytest.mark.parametrize("offset", [0.0, *FAR])
@pytest.mark.parametrize("chunks", [N, 70])
def test_scores_keep_their_precision(offset: float, chunks: int) -> None:
    z, y = _noisy(offset)
    weight = RNG.random(N)
    rows = [da.from_array(a, chunks=(chunks, *a.shape[1:])) for a in (z, y, weight)]
    reg = LinearRegression().fit(z, y)
    truth = r2_score(y, reg.predict(z), sample_weight=weight)
    assert reg.score(*rows) == pytest.approx(truth, abs=1e-9)
    found = metrics.r2_score(rows[1], reg.predict(rows[0]), sample_weight=rows[2])
    assert found == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize("power", [0, 1, 1.5, 2, 3])
def test_deviance_scores_keep_their_precision(power: float) -> None:
    z = RNG.normal(size=(N, 1))
    y = 1e5 + 60 * z[:, 0] + 13 * RNG.normal(size=N)
    reg = linear_model.TweedieRegressor(power=power, alpha=0, tol=1e-10, solver="newton-cholesky")
    rows = da.from_array(z, chunks=(70, 1)), da.from_array(y, chunks=70)
    reg.fit(z, y)
    truth = d2_tweedie_score(y, reg.predict(z), power=power)
    assert reg.score(*rows) == pytest.approx(truth, abs=1e-5)


# --- least squares ----------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6, 1e8])
@pytest.mark.parametrize(
    ("name", "params"),
    [("LinearRegression", {}), ("Ridge", {}), ("Lasso", {"alpha": 0.01}),
     ("ElasticNet", {"alpha": 0.01})],
)  # fmt: skip
def test_sparse_features_far_from_zero(name: str, params: dict[str, Any], mean: float) -> None:
    """For one or all features, coefficients equal those of centred rows in scikit-learn."""
    for shift in (mean, np.array([mean, 0, 0, 0])):
        shifted = X + shift
        truth = getattr(peers, name)(**params).fit(shifted - shifted.mean(axis=0), Y)
        found = getattr(linear_model, name)(**params).fit(sparse.csr_array(shifted), Y)
        np.testing.assert_allclose(found.coef_, truth.coef_, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 1e-16, 1e-12, 1e-8, 1e-4])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_ridge_of_dependent_features(container: Any, alpha: float) -> None:
    """More features than rows: the dual problem in closed form."""
    wide, y = RNG.normal(size=(50, 100)), RNG.normal(size=50)
    rows = wide - wide.mean(axis=0)
    truth = rows.T @ np.linalg.pinv(rows @ rows.T + alpha * np.eye(50), rcond=1e-13)
    found = Ridge(alpha=alpha).fit(container(wide), y)
    np.testing.assert_allclose(found.coef_, truth @ (y - y.mean()), atol=1e-7)


def test_one_hot_rows_are_read_once() -> None:
    """Exactly dependent columns must not make the rows dense."""
    codes = sparse.csr_array(np.hstack([np.eye(40)[RNG.integers(40, size=800)] for _ in "abc"]))
    y = codes @ RNG.normal(size=120) + RNG.normal(size=800)
    found = LinearRegression().fit(codes, y)
    assert len(found.history_) == 1
    dense = codes.toarray()
    truth = np.linalg.lstsq(dense - dense.mean(axis=0), y - y.mean(), rcond=1e-8)[0]
    np.testing.assert_allclose(found.coef_, truth, atol=1e-9)


@pytest.mark.parametrize("estimator", [LinearRegression(positive=True), Ridge(positive=True)])
def test_constant_features(estimator: Any) -> None:
    half = np.column_stack([np.ones(N), X[:, 0], np.full(N, 7.0)])
    for rows, y in ((np.ones((5, 3)), np.arange(5.0)), (X[:1], Y[:1])):
        np.testing.assert_array_equal(estimator.fit(rows, y).coef_, 0.0)
    truth = optimize.nnls(half[:, 1:2] - half[:, 1].mean(), X[:, 0] - X[:, 0].mean())[0]
    found = LinearRegression(positive=True).fit(half, X[:, 0]).coef_
    np.testing.assert_allclose(found, [0.0, truth[0], 0.0], atol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e18, 1e30])
def test_squares_beyond_float32(size: float) -> None:
    found = LinearRegression().fit((X * size).astype("float32"), Y)
    truth = peers.LinearRegression().fit(X, Y)
    np.testing.assert_allclose(found.coef_.astype("float64") * size, truth.coef_, rtol=1e-5)


LABELS = (Y > 0).astype(int)
POSITIVE = np.abs(Y)
EVERY = [
    LinearRegression(), Ridge(), linear_model.Lasso(), linear_model.ElasticNet(),
    linear_model.HuberRegressor(), LinearSVR(), LinearSVR(loss="squared_epsilon_insensitive"),
    linear_model.PoissonRegressor(), linear_model.TweedieRegressor(solver="newton-cholesky"),
    linear_model.LogisticRegression(), linear_model.LogisticRegression(l1_ratio=1),
    linear_model.LogisticRegression(solver="newton-cholesky"), LinearSVC(),
    *(kind(random_state=0, optimizer=name)
      for kind in (SGDClassifier, SGDRegressor) for name in sorted(OPTIMIZERS)),
]  # fmt: skip


@pytest.mark.parametrize("estimator", EVERY, ids=str)
def test_squares_that_overflow(estimator: Any) -> None:
    y = LABELS if hasattr(estimator, "decision_function") else POSITIVE
    with pytest.raises(DivergedError, match=r"[Ss]cale the features"):
        estimator.fit(X * 1e200, y)


@pytest.mark.parametrize("name", ["LinearRegression", "Ridge", "Lasso", "ElasticNet"])
@pytest.mark.parametrize("size", [1e-300, 1e-160])
def test_squares_that_vanish(name: str, size: float) -> None:
    with pytest.raises(DivergedError, match="Scale the features"):
        getattr(linear_model, name)().fit(X * size, Y)


@pytest.mark.parametrize(
    "name", ["LinearRegression", "Ridge", "Lasso", "SGDRegressor", "PoissonRegressor"]
)
def test_targets_whose_squares_overflow(name: str) -> None:
    with pytest.raises(DivergedError, match=r"Scale the (targets|features)"):
        getattr(linear_model, name)().fit(X, POSITIVE * 1e200)
