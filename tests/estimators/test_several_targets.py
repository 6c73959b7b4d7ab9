"""Multi-target fits equal separate fits of each target."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn import linear_model as truths
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import r2_score
from sklearn.multioutput import MultiOutputRegressor

from daskml_dist import Run
from daskml_dist.errors import ExportError, InvalidDataError
from daskml_dist.linear_model import HuberRegressor, LinearRegression, SGDRegressor
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.svm import LinearSVR
from daskml_dist.training.checkpoint import Checkpoint

RNG = np.random.default_rng(0)
N, D, K = 400, 4, 3
X = RNG.normal(size=(N, D))
SCALES, PLACES = np.array([1.0, 10.0, 0.1]), np.array([0.0, 100.0, 5.0])
Y = (X @ RNG.normal(size=(D, K)) + RNG.standard_t(4, size=(N, K))) * SCALES + PLACES
WEIGHT = RNG.random(N)
SPARSE = sparse.random(N, 3000, density=0.005, format="csr", rng=0)


def sgd(loss: str = "squared_error", **params: Any) -> SGDRegressor:
    return SGDRegressor(loss, **{"random_state": 0, "tol": None, "max_iter": 3} | params)


def lazy(values: Any) -> da.Array:
    return da.from_array(values, chunks=(130, *values.shape[1:]))


def assert_alone(model: Any, single_fits: list[Any], rtol: float = 1e-9) -> None:
    """Assert that each target's parameters equal those of its separate fit."""
    assert model.coef_.shape == (len(single_fits), model.n_features_in_)
    coef = np.array([one.coef_ for one in single_fits])
    assert_allclose(model.coef_, coef, rtol=rtol, atol=rtol * np.abs(coef).max())
    assert_allclose(
        model.intercept_, [np.ravel(one.intercept_)[0] for one in single_fits], rtol=rtol
    )


def separate_fits(model: Any, rows: Any, y: Any, *rest: Any) -> list[Any]:
    return [clone(model).fit(rows, y[:, k], *rest) for k in range(y.shape[1])]


SLOW = pytest.mark.slow

MODELS: dict[str, Any] = {
    "pilot": sgd(),
    "huber": sgd("huber", epsilon=0.5),
    "no intercept": sgd(fit_intercept=False),
    "average": sgd(optimizer="sgd", average=True),
    "adam, elasticnet": sgd(optimizer="adam", penalty="elasticnet"),
    "given rate": sgd(learning_rate=0.01, batch_size=None, fit_intercept=False),
    "HuberRegressor": HuberRegressor(max_iter=1000),
    "tube": LinearSVR(),
    "squared tube": LinearSVR(loss="squared_epsilon_insensitive", fit_intercept=False),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_target_equals_its_separate_fit(name: str) -> None:
    model = clone(MODELS[name])
    is_sgd = isinstance(model, SGDRegressor)
    for weight in ((), (WEIGHT,)) if is_sgd else ((WEIGHT,),):
        single_fits = separate_fits(model, X, Y, *weight)
        assert_alone(model.fit(X, Y, *weight), single_fits)
    predicted = np.column_stack([one.predict(X) for one in single_fits])
    assert_allclose(model.predict(X), predicted)
    assert model.score(X, Y, WEIGHT) == pytest.approx(r2_score(Y, predicted, sample_weight=WEIGHT))
    if name == "HuberRegressor":
        assert_allclose(model.scale_, [one.scale_ for one in single_fits])
        np.testing.assert_array_equal(
            model.outliers_, np.column_stack([one.outliers_ for one in single_fits])
        )
        theirs = MultiOutputRegressor(truths.HuberRegressor(max_iter=1000)).fit(X, Y, WEIGHT)
        assert_allclose(model.predict(X), theirs.predict(X), rtol=1e-3, atol=1e-4)


def test_links_and_few_of_many_features() -> None:
    for penalty in ("l1", "l2"):
        model, y = sgd(penalty=penalty, alpha=1e-3), SPARSE @ RNG.normal(size=(3000, 2))
        assert_alone(model.fit(SPARSE, y), separate_fits(model, SPARSE, y), rtol=1e-7)
    model, counts = sgd("poisson"), RNG.poisson(np.exp(X[:, :2] + [0, 2]))
    assert_alone(model.fit(X, counts), separate_fits(model, X, counts))
    with pytest.raises(ExportError, match="nor losses with a link"):
        model.to_sklearn()


@pytest.mark.parametrize(
    "policy",
    ["sync", *(pytest.param(name, marks=SLOW) for name in ("allreduce", "local", "average"))],
)
def test_policies_lanes_and_streams(client: Client, policy: str) -> None:
    streamed = policy in ("sync", "average")
    budget = "7.5 kB" if streamed else "auto"  # a block takes 7,280 bytes
    model = sgd(policy=policy, run=Run(n_lanes=2, deterministic=True, memory_budget=budget))
    rows, y = lazy(X), lazy(Y)
    assert_alone(model.fit(rows, y), separate_fits(model, rows, y))
    assert model.history_.extra["streamed"] == streamed
    assert model.predict(rows).shape == (N, K)
    assert model.score(rows, y) == pytest.approx(r2_score(Y, model.predict(X)))


@pytest.mark.parametrize("policy", ["ssp", "async", "hogwild"])
def test_policies_with_unordered_steps(client: Client, policy: str) -> None:
    model = sgd(policy=policy, max_iter=10, run=Run(n_lanes=2)).fit(lazy(X), lazy(Y))
    exact = truths.LinearRegression().fit(X, Y).score(X, Y)
    assert model.score(X, Y) > exact - 0.005


def test_rounds_of_collections(client: Client) -> None:
    whole = LinearSVR(loss="squared_epsilon_insensitive").fit(X, Y, WEIGHT)
    model = clone(whole).set_params(run=Run(memory_budget="9 kB"))  # a block takes 8,320 bytes
    assert_allclose(model.fit(lazy(X), lazy(Y), lazy(WEIGHT)).coef_, whole.coef_, rtol=1e-3)
    assert model.history_.extra["streamed"]


GOING_ON: dict[str, Callable[[Any, Any], Any]] = {
    "partial_fit": lambda model, y: model.partial_fit(X[:200], y[:200]).partial_fit(X, y),
    "warm_start": lambda model, y: model.set_params(warm_start=True).fit(X, y).fit(X, y),
    "coef_init": lambda model, y: model.fit(
        X, y, coef_init=np.ones((*y.shape[1:], D)), intercept_init=np.ones(y.shape[1:] or 1)
    ),
    "eval_set": lambda model, y: model.fit(X, y, eval_set=(X, y)),
    "early_stopping": lambda model, y: model.set_params(early_stopping=True).fit(X, y),
}


@pytest.mark.parametrize("how", GOING_ON)
def test_step_fits_continue(how: str) -> None:
    fit = GOING_ON[how]
    single_fits = [fit(sgd(), Y[:, k]) for k in range(K)]
    model = fit(sgd(), Y)
    assert_alone(model, single_fits)
    if how in ("eval_set", "early_stopping"):
        key = "eval_score" if how == "eval_set" else "val_score"
        means = np.mean(
            [[record[key] for record in one.history_.records] for one in single_fits], axis=0
        )
        assert_allclose([record[key] for record in model.history_.records], means)


def test_round_fits_continue() -> None:
    cold = HuberRegressor(max_iter=1000).fit(X, Y)
    warm = HuberRegressor(max_iter=1000, warm_start=True).fit(X, Y).fit(X, Y)
    assert warm.n_iter_ < cold.n_iter_
    assert_allclose(warm.coef_, cold.coef_, rtol=1e-3)
    refitted = warm.fit(X, Y[:, 0])  # one target after several restarts the fit
    assert_allclose(refitted.coef_, HuberRegressor(max_iter=1000).fit(X, Y[:, 0]).coef_)


@pytest.mark.parametrize("model", [sgd(max_iter=4), HuberRegressor(max_iter=1000)], ids=["s", "r"])
def test_checkpoints(model: Any, tmp_path: Any) -> None:
    checkpoint = Checkpoint(str(tmp_path / "fit"), every=2, resume=True)
    at = (
        {"callbacks": [checkpoint]}
        if isinstance(model, HuberRegressor)
        else {"checkpoint": checkpoint}
    )
    saved = clone(model).set_params(**at).fit(X, Y)
    refitted = clone(model).set_params(**at).fit(X, Y)  # from the file
    assert_allclose(saved.coef_, clone(model).fit(X, Y).coef_)
    assert_allclose(refitted.coef_, saved.coef_)


def test_units_of_targets_do_not_end_a_fit() -> None:
    """The target with the largest values converges first, and the others continue to learn."""
    y = np.column_stack([1e6 * RNG.normal(size=N), Y[:, 0], Y[:, 0]])
    model = sgd(tol=1e-3, max_iter=50, learning_rate="auto").fit(X, y)
    single_fit = sgd(tol=1e-3, max_iter=50).fit(X, Y[:, 0])
    assert r2_score(Y[:, 0], model.predict(X)[:, 1]) >= single_fit.score(X, Y[:, 0]) - 1e-3
    assert model.n_iter_ >= single_fit.n_iter_


def test_names_of_several_columns_in_frames() -> None:
    names = [f"y{k}" for k in range(K)]
    frame = pd.DataFrame(X).add_prefix("x").assign(**dict(zip(names, Y.T, strict=True)))
    whole = sgd().fit(X, Y)
    for rows in (frame, dd.from_pandas(frame, npartitions=1)):
        model = sgd().fit(rows, names)
        assert_allclose(model.coef_, whole.coef_, rtol=1e-2)  # a collection has different batches
        assert model.score(rows, names) == pytest.approx(whole.score(X, Y), abs=1e-4)


def test_twins_searches_and_sparse_coefficients() -> None:
    for model in (sgd(), HuberRegressor(), LinearSVR()):
        assert_allclose(model.fit(X, Y).to_sklearn().predict(X), model.predict(X))
    model = sgd().fit(X, Y)
    before = model.predict(X)
    assert model.sparsify().coef_.shape == (K, D)
    assert_allclose(model.predict(X), before)
    assert_allclose(model.partial_fit(X, Y).coef_, sgd().fit(X, Y).partial_fit(X, Y).coef_)
    found = GridSearchCV(sgd(), {"alpha": [1e-4, 1.0]}, cv=2, error_score="raise").fit(X, Y)
    assert found.best_params_ == {"alpha": 1e-4}


def test_a_column_is_one_target_and_multi_target_state_is_dropped() -> None:
    with pytest.warns(DataConversionWarning):
        assert sgd().fit(X, Y[:, :1]).coef_.shape == (D,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = sgd().fit(X, Y)
    for other in (Y[:, :2], Y[:, 0]):
        with pytest.raises(InvalidDataError, match="targets of the first fit, 3 columns"):
            model.partial_fit(X, other)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_constant_target_scores_1_where_it_is_predicted_exactly_else_0(shift: float) -> None:
    """As in scikit-learn, whose score of one row is NaN too."""
    model = sgd().fit(X, Y[:, 0])
    model.coef_, model.intercept_ = np.zeros(D), np.array([2.0 + shift])
    y = np.full(N, 2.0)
    assert model.score(lazy(X), lazy(y)) == model.score(X, y) == r2_score(y, model.predict(X))
    assert np.isnan(model.score(X[:1], y[:1]))


@pytest.mark.parametrize("chunks", [None, 20])
@pytest.mark.parametrize("n_given", [1, 2])
def test_scores_of_other_columns_are_refused(n_given: int, chunks: int | None) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(50, 3)), rng.normal(size=(50, 3))
    model = LinearRegression().fit(X, Y)
    y = Y[:, 0] if n_given == 1 else Y[:, :n_given]
    rows = (
        (X, y)
        if chunks is None
        else [da.from_array(a, chunks=(chunks, *a.shape[1:])) for a in (X, y)]
    )
    with pytest.raises(InvalidDataError, match=rf"y has {n_given} target.* predicts 3\. Pass"):
        model.score(*rows)
