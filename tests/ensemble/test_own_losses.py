"""Boosting with custom losses: trees equal the built-in loss's for any chunks; helpful errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import special

from daskml_dist import Run
from daskml_dist.backends import own_losses
from daskml_dist.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from daskml_dist.errors import DivergedError, ExportError, InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.losses import (
    Gamma,
    Huber,
    LogLoss,
    Loss,
    Poisson,
    Quantile,
    RowLoss,
    SquaredError,
    Tweedie,
)

rng = np.random.default_rng(0)
X = rng.normal(size=(1_500, 5))
Y = np.exp(0.5 * X[:, 0] + X[:, 1] * X[:, 2] / 2 + 0.3 * rng.normal(size=len(X)))
CLASS = np.where(Y > 1, "yes", "no")
WEIGHT = rng.integers(1, 4, len(X)).astype(float)
GIVEN: dict[str, Any] = {"max_iter": 5, "random_state": 0, "early_stopping": False}


@dataclass(frozen=True)
class Logistic(RowLoss):
    """The logistic loss as a user writes it."""

    name = "my_logistic"
    kind = "classification"
    proba = True

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        e = math.exp(-abs(raw))
        share = 1.0 / (1.0 + e) if raw > 0 else e / (1.0 + e)
        return math.log1p(e) + max(raw, 0.0) - (raw if y > 0 else 0.0), share - 0.5 * (y + 1.0)

    @staticmethod
    def derive_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        e = math.exp(-abs(raw))
        larger = 1.0 / (1.0 + e)
        smaller = e * larger
        return (larger if raw > 0 else smaller) - 0.5 * (y + 1.0), larger * smaller

    def inverse_link(self, raw: Any) -> Any:
        return special.expit(raw)

    def constant(self, mean: float) -> float:
        return math.log((1 + mean) / (1 - mean))


class Untyped(Logistic):
    """The same, with functions that numba cannot compile."""

    @staticmethod
    def derive_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        found = dict(zip("gh", Logistic.derive_row(y, raw, parameters), strict=True))
        return tuple(found.get(letter) for letter in "gh")  # type: ignore[return-value]


class ByArrays(Loss):
    """The same, with array functions."""

    name = "logistic_of_arrays"
    kind = "classification"
    has_hessian = True

    def value_and_gradient(self, y: Any, raw: Any) -> tuple[Any, Any]:
        return np.logaddexp(0, raw) - raw * (y > 0), special.expit(raw) - (y > 0)

    def value_gradient_hessian(self, y: Any, raw: Any) -> tuple[Any, Any, Any]:
        share = special.expit(raw)
        return *self.value_and_gradient(y, raw), share * (1 - share)

    def constant(self, mean: float) -> float:
        return math.log((1 + mean) / (1 - mean))


def bits(model: Any) -> list[bytes]:
    """Return the trees of a fit, for bitwise comparison."""
    return [array.tobytes() for array in model._trees.packed().values()]


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("loss", [Logistic(), Untyped(), ByArrays()], ids=lambda x: x.name)
def test_trees_equal_those_of_the_built_in_loss(loss: Loss, weight: Any) -> None:
    params = {**GIVEN, "early_stopping": True, "validation_fraction": None}
    built_in = HistGradientBoostingClassifier(**params).fit(X, CLASS, weight)
    with_own_loss = HistGradientBoostingClassifier(loss, **params).fit(X, CLASS, weight)
    for name in ("feature", "bin", "left"):
        found, expected = (getattr(m._trees.nodes, name) for m in (with_own_loss, built_in))
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(
        with_own_loss.decision_function(X), built_in.decision_function(X), rtol=1e-6, atol=1e-8
    )
    np.testing.assert_allclose(with_own_loss.train_score_, built_in.train_score_, rtol=1e-6)
    np.testing.assert_array_equal(with_own_loss.predict(X), built_in.predict(X))


def test_functions_are_compiled_if_possible() -> None:
    assert own_losses._compile(Logistic.derive_row, 0) is not None
    assert own_losses._compile(Untyped.derive_row, 0) is None


def test_the_same_trees_for_any_chunks_and_lanes(client: Client) -> None:
    params = {**GIVEN, "early_stopping": True}
    for loss in (Logistic(), ByArrays()):
        alone = HistGradientBoostingClassifier(loss, **params, run=Run(n_lanes=1)).fit(X, CLASS)
        for n, n_lanes in ((400, None), (333, 5)):
            rows = [da.from_array(a, chunks=(n, *a.shape[1:])) for a in (X, CLASS)]
            model = HistGradientBoostingClassifier(loss, **params, run=Run(n_lanes=n_lanes))
            assert bits(model.fit(*rows)) == bits(alone)
        if loss.proba:
            lazy = model.predict_proba(rows[0])
            assert isinstance(lazy, da.Array)
            np.testing.assert_array_equal(lazy.compute(), alone.predict_proba(X))


@pytest.mark.parametrize(
    ("loss", "name", "more"),
    [
        (SquaredError(), "squared_error", {}),
        (Poisson(), "poisson", {}),
        (Gamma(), "gamma", {}),
        (Quantile(0.8), "quantile", {"quantile": 0.8}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_objects_equal_losses_given_by_name(loss: Loss, name: str, more: dict[str, Any]) -> None:
    named = HistGradientBoostingRegressor(name, **GIVEN, **more).fit(X, Y)
    model = HistGradientBoostingRegressor(loss, **GIVEN).fit(X, Y)
    assert bits(model) == bits(named)
    np.testing.assert_allclose(model.predict(X), named.predict(X), rtol=1e-12)


def test_the_log_loss_takes_any_classes() -> None:
    three = np.digitize(Y, [0.7, 1.4])
    named, model = (
        HistGradientBoostingClassifier(loss, **GIVEN).fit(X, three)
        for loss in ("log_loss", LogLoss())
    )
    assert bits(model) == bits(named)
    np.testing.assert_array_equal(model.predict_proba(X), named.predict_proba(X))
    with pytest.raises(InvalidParameterError, match=r"two classes.*y has 3"):
        HistGradientBoostingClassifier(Logistic(), **GIVEN).fit(X, three)


@pytest.mark.parametrize("loss", [Huber(0.5), Tweedie(1.5)], ids=["huber", "tweedie"])
def test_losses_of_linear_models_can_be_boosted(loss: Loss) -> None:
    params = {**GIVEN, "max_iter": 40, "early_stopping": True, "validation_fraction": None}
    model = HistGradientBoostingRegressor(loss, **params).fit(X, Y)
    raw = model._raw_prediction()(X)
    assert model.train_score_[-1] == pytest.approx(-loss.value(Y, raw).mean())
    assert model.train_score_[-1] > model.train_score_[0]
    np.testing.assert_allclose(model.predict(X), loss.inverse_link(raw))
    assert model.score(X, Y) > 0.1  # Huber steps are short if targets are skewed


def test_one_loss_class_works_for_steps_and_trees() -> None:
    steps = SGDClassifier(Logistic(), max_iter=5, tol=None, random_state=0).fit(X, CLASS)
    built_in = SGDClassifier("log_loss", max_iter=5, tol=None, random_state=0).fit(X, CLASS)
    np.testing.assert_allclose(steps.coef_, built_in.coef_, rtol=0.05, atol=0.02)
    shares = steps.predict_proba(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


class _Wrong(RowLoss):
    name, kind = "wrong", "regression"

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        return (raw - y) ** 2 / 2, raw - y


class OfNaN(_Wrong):
    @staticmethod
    def derive_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        return (raw - y) / (raw - raw), 1.0


class Concave(_Wrong):
    @staticmethod
    def derive_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        return raw - y, -1.0


class Fails(_Wrong):
    """Loss with functions that numba cannot compile and that raise."""

    @staticmethod
    def derive_row(y: float, raw: float, parameters: Any) -> tuple[float, float]:
        found = dict(g=raw - y, h=1 / (raw - raw))
        return tuple(found.get(letter) for letter in "gh")  # type: ignore[return-value]


class NoStart(_Wrong):
    def constant(self, mean: float) -> float:
        return float("nan")


class OfShape(Loss):
    name, kind = "shape", "regression"

    def value_and_gradient(self, y: Any, raw: Any) -> tuple[Any, Any]:
        return (raw - y) ** 2, (raw - y)[:, None]


@pytest.mark.parametrize(
    ("loss", "error", "match"),
    [
        (OfNaN(), DivergedError, "OfNaN returned NaN or infinity"),
        (Concave(), InvalidParameterError, "Concave returned a negative second derivative, -1"),
        (Fails(), InvalidParameterError, r"Fails\.derive_row failed for the target .* raw pred"),
        (NoStart(), InvalidParameterError, "constant.*finite number"),
        (OfShape(), InvalidParameterError, r"OfShape returned as gradient.*\(\d+, 1\)"),
        (Logistic(), InvalidParameterError, "not a loss for regression"),
        (Gamma(), InvalidDataError, "y > 0"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Loss) else "",
)
def test_wrong_losses_are_named(loss: Loss, error: Any, match: str) -> None:
    y = Y - 1 if isinstance(loss, Gamma) else Y
    with pytest.raises(error, match=match):
        HistGradientBoostingRegressor(loss, **GIVEN).fit(X, y)


def test_without_a_second_derivative_leaves_take_means() -> None:
    model = HistGradientBoostingRegressor(_Wrong(), **{**GIVEN, "max_iter": 60}).fit(X, Y)
    named = HistGradientBoostingRegressor("squared_error", **GIVEN).fit(X, Y)
    # The named loss starts from the mean, this one from 0.
    assert model._baseline[0] == 0 != named._baseline[0]
    assert model.score(X, Y) > 0.5
    steps = SGDRegressor(_Wrong(), max_iter=3, tol=None, random_state=0).fit(X, Y)
    assert np.isfinite(steps.coef_).all()


def test_custom_losses_are_not_exported() -> None:
    model = HistGradientBoostingClassifier(Logistic(), **GIVEN).fit(X, CLASS)
    with pytest.raises(ExportError, match="does not support loss"):
        model.to_sklearn()
    without = HistGradientBoostingClassifier(ByArrays(), **GIVEN).fit(X, CLASS)
    with pytest.raises(InvalidParameterError, match="gives no probabilities"):
        without.predict_proba(X)


def test_scorers_use_the_probabilities_of_the_loss() -> None:
    params = {**GIVEN, "early_stopping": True, "validation_fraction": None}
    with_own_loss, built_in = (
        HistGradientBoostingClassifier(loss, **params, scoring="neg_log_loss").fit(X, CLASS)
        for loss in (Logistic(), "log_loss")
    )
    np.testing.assert_allclose(with_own_loss.train_score_, built_in.train_score_, rtol=1e-6)
