"""A pilot fit on a sample finds initial coefficients and a learning rate without tuning."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn import datasets
from sklearn import linear_model as peers
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import Run
from daskml_dist.data.batches import LaneRows, LaneSpec, Segment
from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import as_collection
from daskml_dist.errors import DivergedError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.losses import get_loss
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import OPTIMIZERS, Adagrad
from daskml_dist.penalties import Penalty
from daskml_dist.policies import POLICIES
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.learning_rate_search import choose_sample_size, draw_sample_rows
from daskml_dist.training.pilot import Coordinates, Pilot

RNG = np.random.default_rng(0)
#: Columns of sizes from 0.1 to 1e6, some of them far from zero.
UNITS, OFFSETS = 10.0 ** np.array([-1, 0, 2, 4, 6]), np.array([0, 5, 1e3, 0, 1e7])
PLAIN = RNG.normal(size=(3_000, 5))
RAW = PLAIN @ [1.0, -2.0, 0.5, 1.5, -1.0] + RNG.logistic(size=3_000)
X = PLAIN * UNITS + OFFSETS


def _model(n_classes: int, d: int = 5) -> LinearModel:
    loss = get_loss("log_loss", "classification") if n_classes else None
    return LinearModel(loss or get_loss("squared_error", "regression"), d, n_classes, True)


# --- purpose ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_columns_in_any_units_are_fitted_to_the_optimum(policy: str) -> None:
    y = RAW > 0
    exact = peers.LogisticRegression(C=1 / (1e-4 * len(y)), solver="newton-cholesky")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        ours = SGDClassifier(policy=policy, random_state=0, run=Run(n_lanes=3)).fit(X, y)
    assert ours.score(X, y) >= exact.fit(PLAIN, y).score(PLAIN, y) - 0.005


def test_targets_in_any_unit_give_the_same_fit() -> None:
    small, large = (
        SGDRegressor(random_state=0).fit(X, RAW * unit + 3 * unit) for unit in (1.0, 2.0**20)
    )
    np.testing.assert_allclose(large.coef_ / 2**20, small.coef_, rtol=1e-6)
    assert large.n_iter_ == small.n_iter_
    exact = peers.LinearRegression().fit(X, RAW)
    assert small.score(X, RAW + 3) >= exact.score(X, RAW) - 1e-3


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_keeps_the_accuracy_of_the_pilot(optimizer: str) -> None:
    model = SGDClassifier(optimizer=optimizer, random_state=0).fit(X, RAW > 0)
    assert model.score(X, RAW > 0) > 0.8


def test_a_given_rate_is_used_from_zero_coefficients() -> None:
    params: dict[str, Any] = {"random_state": 0, "max_iter": 1, "tol": None}
    fixed_rate = SGDClassifier(learning_rate=1e-9, **params).fit(PLAIN, RAW > 0)
    assert fixed_rate.history_.records[0]["loss"] == pytest.approx(np.log(2), rel=1e-4)
    found = SGDClassifier(**params).fit(PLAIN, RAW > 0)
    assert found.history_.records[0]["loss"] < 0.5


def test_continued_fits_keep_the_feature_units() -> None:
    y = RAW > 0
    model = SGDClassifier(random_state=0).fit(X, y)
    before = model.score(X, y)
    for _ in range(3):
        model.partial_fit(X, y)
    assert model.score(X, y) >= before - 0.01
    refitted = SGDClassifier(random_state=0, warm_start=True).fit(X, y).fit(X, y)
    assert refitted.score(X, y) >= before - 0.01


def test_fits_that_have_not_converged_warn() -> None:
    X, y = datasets.make_classification(20_000, 300, n_informative=200, n_classes=8, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        SGDClassifier(random_state=0, max_iter=2).fit(X.astype("f4"), y)


def test_losses_below_zero_and_with_kinks_are_minimised_too() -> None:
    counts = np.random.default_rng(1).poisson(np.exp(RAW / 8))
    deviance = SGDRegressor(loss="poisson", random_state=0).fit(X, counts)
    exact: Any = peers.PoissonRegressor(alpha=0, max_iter=1_000).fit(PLAIN, counts)
    np.testing.assert_allclose(deviance.coef_ * UNITS, exact.coef_, atol=0.01)
    median = SGDRegressor(loss="quantile", alpha=0, random_state=0).fit(X, 1e4 * RAW)
    exact = peers.QuantileRegressor(alpha=0).fit(PLAIN, 1e4 * RAW)
    off, least = (np.abs(1e4 * RAW - p).mean() for p in (median.predict(X), exact.predict(PLAIN)))
    assert off <= 1.001 * least


def test_perceptrons_keep_their_default_rate() -> None:
    """Zero coefficients minimise their loss, so the pilot finds no rate."""
    assert SGDClassifier(loss="perceptron", random_state=0).fit(PLAIN, RAW > 0).coef_.any()


def test_features_that_are_too_large_raise_diverged_error() -> None:
    with pytest.raises(DivergedError, match="Scale the features"):
        SGDClassifier(random_state=0).fit(X * 1e200, RAW > 0)


# --- the sample ------------------------------------------------------------------------------


def _sampled(n_lanes: int | None, cuts: list[int], n: int, held_out: float = 0.0) -> Block:
    engine = InProcessEngine(as_collection(X, RAW))
    engine.inspect_blocks()
    if cuts:
        engine._blocks = {
            i: Block(i, X[a:b], RAW[a:b])
            for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(X)], strict=True))
        }
    lanes = engine.choose_lanes(n_lanes, bytes_per_lane=None, passes=1)
    return draw_sample_rows(engine, lanes, n, 0, held_out)


def test_the_sample_does_not_depend_on_the_blocks() -> None:
    whole = _sampled(1, [], 100)
    assert len(np.unique(whole.rows[:, 0])) == 100
    for lanes, cuts in ((3, []), (1, [1_000, 1_007]), (4, [500, 2_000])):
        np.testing.assert_array_equal(_sampled(lanes, cuts, 100).rows, whole.rows)
    np.testing.assert_array_equal(_sampled(2, [50], 5_000).y, RAW)


def test_held_out_rows_are_never_sampled() -> None:
    engine = InProcessEngine(as_collection(X, RAW))
    engine.inspect_blocks()
    lanes = engine.choose_lanes(2, bytes_per_lane=None, passes=1)
    sample = draw_sample_rows(engine, lanes, len(X), 7, 0.25)
    held_out = np.concatenate(
        [rows for lane in lanes for _, rows in LaneRows(lane, 1, 7, True, 0.25).held_out]
    )
    assert len(sample.y) + len(held_out) == len(X)
    assert not np.isin(RAW[held_out], sample.y).any()


def test_few_streamed_blocks_are_read_for_the_sample() -> None:
    blocks_read: list[int] = []

    def look(function: Any, arguments: dict[int, Any]) -> list[Any]:
        blocks_read.extend(arguments)
        return [
            function(Block(i, np.full((10, 2), i, "f8"), np.full(10, i)), argument)
            for i, argument in arguments.items()
        ]

    engine: Any = SimpleNamespace(streaming=object(), columns=None, map_chosen_blocks=look)
    lanes = [LaneSpec(0, tuple(Segment(i, 0, 10) for i in range(100)))]
    assert len(draw_sample_rows(engine, lanes, 40, 0, 0.0).y) == 40
    assert len(set(blocks_read)) == len(blocks_read) <= 8


# --- the maths -------------------------------------------------------------------------------


@pytest.mark.parametrize("lay", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("turned", [True, False])
def test_change_of_coordinates_keeps_predictions(lay: Any, turned: bool) -> None:
    places = Coordinates.from_rows(
        lay(X), RNG.random(len(X)), centred=True, turned=turned, least=1e-3
    )
    w = RNG.normal(size=(6, 2))
    Z, v = places.rows(lay(X)), places.to_coordinates(w)
    np.testing.assert_allclose(Z @ v[:5] + v[5], X @ w[:5] + w[5], rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(places.from_coordinates(v), w, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("penalty", [Penalty(0.0, 1e-2), Penalty(1e-2, 0.0), Penalty(5e-3, 5e-3)])
def test_the_pilot_reaches_the_minimum_of_a_solver(penalty: Penalty) -> None:
    y = np.where(RAW > 0, 1.0, -1.0)
    strength = penalty.l1 + penalty.l2
    exact = peers.LogisticRegression(
        l1_ratio=penalty.l1 / strength, C=1 / (strength * len(y)), solver="saga", tol=1e-8,
        max_iter=5_000,
    )  # fmt: skip
    exact.fit(PLAIN, y)
    w, converged = Pilot(_model(2), PLAIN, y, None, penalty, 0).minimise_all_rows(
        np.zeros((6, 1)), 100
    )
    assert converged
    np.testing.assert_allclose(w[:5, 0], exact.coef_[0], atol=0.01)


def test_rates_that_diverge_are_dropped() -> None:
    y = RAW.copy()
    pilot = Pilot(_model(0), PLAIN, y, None, Penalty(0.0, 0.0), 0)
    sgd, w = OPTIMIZERS["sgd"](), np.zeros((6, 1))
    factor = pilot.find_best_rate(sgd, w, {}, 10.0, 32)
    assert np.isfinite(pilot._step_through(sgd, w.copy(), {}, 10.0 * factor, 32)[0]).all()
    assert factor < 0.1


def test_sums_of_squares_equal_those_of_batches_of_the_sample() -> None:
    pilot = Pilot(_model(0), PLAIN, RAW.copy(), None, Penalty(0.0, 0.0), 0)
    w = RNG.normal(size=(6, 1))
    opt_state = pilot.warm_optimizer(Adagrad(), w, Adagrad().init(w), 3_000)
    residual = PLAIN @ w[:5, 0] + w[5, 0] - RAW
    gradient = np.append(PLAIN.T @ residual, residual.sum()) / 3_000
    np.testing.assert_allclose(opt_state["accumulator"][:, 0], gradient**2)


def test_the_minimum_is_found_with_more_columns_than_rows() -> None:
    X, y = datasets.make_classification(80, 300, n_informative=20, random_state=0)
    exact = peers.LogisticRegression(C=1 / (1e-4 * 80), tol=1e-10, max_iter=5_000).fit(X, y)
    pilot = Pilot(_model(2, 300), X, np.where(y > 0, 1.0, -1.0), None, Penalty(0.0, 1e-4), 0)
    w, _ = pilot.minimise_all_rows(np.zeros((301, 1)), 200)
    best = np.append(exact.coef_[0], exact.intercept_)[:, None]
    assert pilot.value(w) <= 1.01 * pilot.value(best)
    assert np.linalg.norm(w[:300]) <= 1.05 * np.linalg.norm(best[:300])


def test_few_rows_of_many_columns_reach_the_unique_minimum() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 6)) @ rng.normal(size=(6, 400)) + rng.normal(size=(100, 400)) + 3
    y, weight = X[:, :9].sum(axis=1), rng.random(100) * np.r_[0.0, np.ones(99)]
    exact = peers.Ridge(alpha=1e-4 * weight.sum(), solver="svd").fit(X, y, weight)
    pilot = Pilot(_model(0, 400), X, y, weight, Penalty(0.0, 1e-4), 0)
    assert pilot._coordinates.n_coordinates < 100
    w, converged = pilot.minimise_all_rows(np.zeros((401, 1)), 200)
    assert converged
    np.testing.assert_allclose(w[:400, 0], exact.coef_, atol=1e-4)
    assert w[400, 0] == pytest.approx(exact.intercept_, abs=1e-3)


def test_few_rows_of_very_different_units_keep_all_columns() -> None:
    X = np.random.default_rng(0).normal(size=(20, 400)) * np.geomspace(1e-2, 1e2, 400)
    pilot = Pilot(_model(0, 400), X, X[:, 0].copy(), None, Penalty(0.0, 1e-4), 0)
    assert pilot._coordinates.n_coordinates == 400


@pytest.mark.parametrize("n_columns", [3, 400])
def test_all_zero_rows_determine_an_intercept(n_columns: int) -> None:
    y = (np.arange(600) % 4 == 0).astype(int)
    model = SGDClassifier(random_state=0, max_iter=30).fit(sparse.csr_array((600, n_columns)), y)
    assert not model.coef_.any()
    assert model.intercept_[0] == pytest.approx(np.log(1 / 3), abs=0.3)


def test_samples_overrepresent_rare_labels() -> None:
    even, rare, few = (
        choose_sample_size(n, _model(2, 28), rarest_share)
        for n, rarest_share in ((1_000_000, 0.5), (1_000_000, 0.01), (500, 0.01))
    )
    assert even < rare <= 1 << 16
    assert few == 500


def test_samples_of_wide_sparse_rows_are_small() -> None:
    narrow, wide, few = (
        choose_sample_size(n, replace(_model(2, d), touches=35), 0.5)
        for n, d in ((1_000_000, 1 << 12), (1_000_000, 1 << 18), (30_000, 1 << 18))
    )
    assert 4 * wide <= narrow
    assert few == 30_000


def test_a_client_loads_no_compiled_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compiled", "dense_kernels"):
        monkeypatch.setitem(sys.modules, f"daskml_dist.backends.{name}", None)
    X = np.random.default_rng(0).normal(size=(4000, 5))
    pilot = Pilot(_model(2), X, np.sign(X[:, 0] + X[:, 1]), None, Penalty(0.0, 1e-2), 0)
    w, converged = pilot.minimise_all_rows(np.zeros((6, 1)), 100)
    assert converged
    opt_state = pilot.warm_optimizer(Adagrad(), w, {"accumulator": np.zeros_like(w)}, 50)
    assert pilot.find_best_rate(Adagrad(), 0 * w, opt_state, 0.05, 50) > 0
