"""scikit-learn's parameters of gradient descent have their effect or are refused by name."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn import linear_model as peers

from daskml_dist import Run
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from daskml_dist.schedules import Constant, InverseScaling
from tests.versions import OLD_SCIKIT_LEARN

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * RNG.normal(size=80)
LABELS = np.where(Y > 0.3, "yes", "no")
THREE = np.digitize(Y, [-1.0, 1.0])
#: scikit-learn's steps: of one row each, in the order of the rows.
PLAIN: dict[str, Any] = {
    "optimizer": "sgd", "batch_size": 1, "shuffle": False, "tol": None, "max_iter": 3,
}  # fmt: skip
FULL: dict[str, Any] = {"batch_size": None, "tol": None, "max_iter": 6, "random_state": 0}


@pytest.mark.parametrize("rate", ["constant", "invscaling"])
@pytest.mark.parametrize("average", [False, True])
def test_plain_steps_equal_scikit_learn(rate: str, average: bool) -> None:
    params = {"learning_rate": rate, "eta0": 0.02, "power_t": 0.3, "average": average}
    # Without an intercept, which ours initialises near the targets.
    params |= {"fit_intercept": False}
    theirs = peers.SGDRegressor(**params, shuffle=False, tol=None, max_iter=3).fit(X, Y)
    np.testing.assert_allclose(SGDRegressor(**params, **PLAIN).fit(X, Y).coef_, theirs.coef_)


@pytest.mark.parametrize("loss", ["squared_error", "huber", "epsilon_insensitive",
                                  "squared_epsilon_insensitive"])  # fmt: skip
@pytest.mark.parametrize("labels", [LABELS, THREE], ids=["two", "three"])
def test_regression_losses_for_labels_equal_scikit_learn(loss: str, labels: Any) -> None:
    params = {"loss": loss, "learning_rate": "constant", "eta0": 0.02, "epsilon": 0.2}
    theirs = peers.SGDClassifier(**params, shuffle=False, tol=None, max_iter=3).fit(X, labels)
    ours = SGDClassifier(**params, **PLAIN).fit(X, labels)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-12)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-12)


def test_epsilon_applies_to_losses_given_by_name() -> None:
    assert SGDRegressor(loss="huber", epsilon=0.7)._loss().parameters == (0.7,)
    assert SGDRegressor(loss="squared_error", epsilon=0.7)._loss().parameters == ()


@pytest.mark.parametrize(
    ("params", "schedule"),
    [
        ({"learning_rate": "constant", "eta0": 0.2}, Constant(0.2)),
        ({"learning_rate": "adaptive", "eta0": 0.2}, Constant(0.2)),
        ({"learning_rate": "invscaling", "eta0": 0.2, "power_t": 0.3}, InverseScaling(0.2, 0.3)),
        ({"learning_rate": "auto", "eta0": 0.2}, Constant(0.2)),
        ({"learning_rate": "constant", "optimizer": "sgd"}, Constant(0.01)),
    ],
)
def test_eta0_is_the_first_rate(params: dict[str, Any], schedule: Any) -> None:
    assert SGDClassifier(**params)._check_settings(None).schedule == schedule


@pytest.mark.parametrize("where", ["memory", "cluster"])
@pytest.mark.parametrize("labels", [None, LABELS, THREE], ids=["numbers", "two", "three"])
def test_a_fit_starts_from_given_parameters(where: str, labels: Any, request: Any) -> None:
    y = Y if labels is None else labels
    rows: Any = (X, y)
    if where == "cluster":
        request.getfixturevalue("client")
        rows = da.from_array(X, chunks=(80, 3)), da.from_array(y, chunks=80)
    kind: Any = SGDRegressor if labels is None else SGDClassifier
    make = {"optimizer": "sgd", "learning_rate": 0.05, **FULL}
    whole = kind(**make).fit(*rows)
    half = kind(**(make | {"max_iter": 3})).fit(*rows)
    rest = kind(**(make | {"max_iter": 3}))
    rest.fit(*rows, coef_init=half.coef_, intercept_init=half.intercept_)
    np.testing.assert_allclose(rest.coef_, whole.coef_)
    np.testing.assert_allclose(rest.intercept_, whole.intercept_)
    assert rest.t_ == half.t_ == 240


@pytest.mark.parametrize("where", ["memory", "cluster"])
def test_a_start_of_another_shape_is_refused(where: str, request: Any) -> None:
    rows: Any = (X, THREE)
    if where == "cluster":
        request.getfixturevalue("client")
        rows = da.from_array(X, chunks=(40, 3)), da.from_array(THREE, chunks=40)
    clf = SGDClassifier(**FULL)
    with pytest.raises(InvalidDataError, match="Provided coef_init does not match dataset"):
        clf.fit(*rows, coef_init=np.zeros((2, 3)))
    for wrong in ("abc", np.nan, 1j, [["a"]]):
        with pytest.raises(InvalidDataError, match="coef_init must be finite real numbers"):
            clf.fit(*rows, coef_init=wrong)
    with pytest.raises(InvalidDataError, match="intercept_init must be finite real numbers"):
        clf.fit(*rows, intercept_init=np.inf)
    start = clf.fit(*rows).sparsify().coef_
    np.testing.assert_array_equal(
        clf.fit(*rows, coef_init=start).coef_, clf.fit(*rows, coef_init=start.toarray()).coef_
    )
    with pytest.raises(InvalidDataError, match="Provided intercept_init does not match dataset"):
        clf.fit(*rows, intercept_init=np.zeros(2))
    with pytest.raises(InvalidParameterError, match="fit_intercept=False"):
        clf.set_params(fit_intercept=False).fit(*rows, intercept_init=np.ones(3))


def test_an_adaptive_rate_falls_where_the_loss_does_not(request: Any) -> None:
    y = Y + np.random.default_rng(1).normal(size=80)  # steps of a fixed length never settle
    passes: list[int] = []

    class Told:
        """Callback that counts."""

        def on_fit_begin(self, run: Any) -> None:
            passes.append(0)

        def on_pass_end(self, run: Any, record: Any) -> None:
            passes.append(record["pass"])

    params: dict[str, Any] = {"optimizer": "sgd", "eta0": 0.1, "n_iter_no_change": 2}
    params |= {"batch_size": 8, "max_iter": 100, "alpha": 0.0, "run": Run(n_lanes=1)}
    exact, fixed_error, adaptive_error = peers.LinearRegression().fit(X, y).coef_, 0.0, 0.0
    for seed in range(6):
        fixed = SGDRegressor(learning_rate="constant", random_state=seed, **params).fit(X, y)
        falls = SGDRegressor(learning_rate="adaptive", random_state=seed, **params)
        passes.clear()
        falls.set_params(callbacks=Told()).fit(X, y)
        assert fixed.n_iter_ < falls.n_iter_ < 100
        assert passes == list(range(falls.n_iter_ + 1))
        fixed_error += np.abs(fixed.coef_ - exact).max()
        adaptive_error += np.abs(falls.coef_ - exact).max()
    assert adaptive_error < 0.6 * fixed_error
    coef = falls.coef_
    request.getfixturevalue("client")
    falls.fit(da.from_array(X, chunks=(80, 3)), da.from_array(y, chunks=80))
    np.testing.assert_allclose(falls.coef_, coef)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"learning_rate": "pa1"}, "single row|own row"),
        ({"learning_rate": 0.1, "eta0": 0.1}, "Leave eta0 out"),
        ({"eta0": 0.0}, "eta0=0.0: use a number > 0"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
        ({"learning_rate": "invscaling", "power_t": -1.0}, "power_t=-1.0"),
        ({"penalty": "elasticnet", "l1_ratio": None}, "l1_ratio must be set"),
        ({"learning_rate": "adaptive", "checkpoint": "here"}, "checkpoint"),
    ],
)
@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_parameters_without_effect_are_refused_by_name(kind: Any, params: Any, words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        kind(**params).fit(X, LABELS if kind is SGDClassifier else Y)


def test_an_unused_negative_power_warns() -> None:
    with pytest.warns(FutureWarning, match="Negative values for `power_t`"):
        SGDRegressor(power_t=-1.0, **FULL).fit(X, Y)


@pytest.mark.parametrize("params", [{}, {"l1_ratio": 1.0}, {"intercept_scaling": 5.0}], ids=str)
def test_liblinear_penalises_the_intercept(params: dict[str, Any]) -> None:
    params = {"solver": "liblinear", "C": 0.3, "tol": 1e-8, "max_iter": 5000, **params}
    ours = LogisticRegression(**params).fit(X, LABELS)
    if OLD_SCIKIT_LEARN and "l1_ratio" in params:  # The penalty is given by name instead.
        del params["l1_ratio"]
        params["penalty"] = "l1"
    theirs = peers.LogisticRegression(**params, random_state=0).fit(X, LABELS)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"solver": "lbfgs", "dual": True}, "supports only dual=False"),
        ({"solver": "newton-cg", "l1_ratio": 0.5}, "supports only 'l2' or None"),
        ({"solver": "liblinear", "l1_ratio": 0.5}, "Only 'saga' solver supports elasticnet"),
        ({"solver": "liblinear", "C": np.inf}, "not supported for the liblinear solver"),
        ({"solver": "conjugate"}, "use one of"),
        ({"penalty": "elasticnet", "l1_ratio": None}, "l1_ratio must be specified"),
    ],
)
def test_solvers_that_do_not_support_the_penalty(params: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        LogisticRegression(**params).fit(X, LABELS)


@pytest.mark.parametrize("solver", ["newton-cg", "sag", "saga"])
def test_other_solvers_of_logistic_regression_have_the_same_optimum(solver: str) -> None:
    ours = LogisticRegression(solver=solver).fit(X, THREE)
    assert np.array_equal(ours.coef_, LogisticRegression().fit(X, THREE).coef_)


def test_liblinear_supports_two_classes_only() -> None:
    with pytest.raises(InvalidDataError, match="does not support multiclass"):
        LogisticRegression(solver="liblinear").fit(X, THREE)
