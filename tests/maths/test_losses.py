"""Losses: gradients against finite differences, values against scikit-learn, dtypes, limits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics
from sklearn.linear_model import SGDClassifier

from daskml_dist.data.total_deviance import TotalDeviance
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.losses import LOSSES, Huber, Loss, Quantile, Tweedie, get_loss

N, K = 60, 3
NAMES = list(LOSSES)
CLASSIFICATION = [name for name in NAMES if LOSSES[name].kind == "classification"]
REGRESSION = [name for name in NAMES if LOSSES[name].kind == "regression"]
PROBA = [name for name in NAMES if LOSSES[name].proba]
SHAPES = pytest.mark.parametrize("shape", [(N,), (N, K)], ids=["1d", "2d"])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def _draw(loss: Loss, shape: tuple[int, ...], dtype: Any = np.float64) -> tuple[Any, Any]:
    """Targets in the loss's domain, and raw predictions on all its branches."""
    rng = np.random.default_rng(3)
    raw = rng.normal(scale=2, size=shape).astype(dtype)
    if loss.kind == "regression":
        return abs(rng.normal(scale=2, size=shape)).astype(dtype), raw
    if loss.multiclass == "softmax" and len(shape) == 2:
        return rng.integers(shape[1], size=shape[0]), raw
    return rng.choice([-1.0, 1.0], size=shape).astype(dtype), raw


def _per_row(values: NDArray[Any]) -> NDArray[Any]:
    return values if values.ndim == 1 else values.sum(axis=1)


@SHAPES
@pytest.mark.parametrize("name", NAMES)
def test_gradient_equals_finite_differences(name: str, shape: tuple[int, ...]) -> None:
    loss = LOSSES[name]()
    y, raw = _draw(loss, shape)
    gradient = loss.gradient(y, raw)
    assert gradient.shape == raw.shape
    assert np.any(gradient != 0)
    h = 1e-6
    for column in [()] if raw.ndim == 1 else [(c,) for c in range(K)]:
        move = np.zeros_like(raw)
        move[(slice(None), *column)] = h
        slope = (loss.value(y, raw + move) - loss.value(y, raw - move)) / (2 * h)
        np.testing.assert_allclose(gradient[(slice(None), *column)], slope, rtol=1e-6, atol=1e-8)


@SHAPES
@pytest.mark.parametrize("name", [name for name in NAMES if LOSSES[name].has_hessian])
def test_hessian_equals_finite_differences(name: str, shape: tuple[int, ...]) -> None:
    loss = LOSSES[name]()
    y, raw = _draw(loss, shape)
    values, gradient, hessian = loss.value_gradient_hessian(y, raw)
    np.testing.assert_allclose(values, loss.value(y, raw), rtol=1e-12)
    np.testing.assert_allclose(gradient, loss.gradient(y, raw), rtol=1e-12)
    h = 1e-6
    for column in [()] if raw.ndim == 1 else [(c,) for c in range(K)]:
        move = np.zeros_like(raw)
        move[(slice(None), *column)] = h
        slope = (loss.gradient(y, raw + move) - loss.gradient(y, raw - move)) / (2 * h)
        np.testing.assert_allclose(hessian[(slice(None), *column)], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("identity", [False, True])
def test_tweedie_derivatives(power: float, identity: bool) -> None:
    loss = Tweedie(power, identity)
    rng = np.random.default_rng(0)
    y, raw = rng.gamma(2, size=N), rng.uniform(0.3, 2, size=N)
    h = 1e-6
    _, gradient, hessian = loss.value_gradient_hessian(y, raw)
    slope = (loss.value(y, raw + h) - loss.value(y, raw - h)) / (2 * h)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-7)
    slope = (loss.gradient(y, raw + h) - loss.gradient(y, raw - h)) / (2 * h)
    np.testing.assert_allclose(hessian, slope, rtol=1e-5, atol=1e-7)
    deviance = metrics.mean_tweedie_deviance(y, loss.inverse_link(raw), power=power)
    assert loss.half_deviance(y, loss.inverse_link(raw)).mean() == pytest.approx(
        deviance / 2, rel=1e-10
    )
    null = TotalDeviance.from_values(y, np.ones(N), power).deviance / N
    constant = metrics.mean_tweedie_deviance(y, np.full(N, y.mean()), power=power)
    assert null == pytest.approx(constant, rel=1e-10)


@pytest.mark.parametrize("power", [0.5, float("nan"), float("inf")])
def test_wrong_power(power: float) -> None:
    with pytest.raises(InvalidParameterError, match=r"power=.*<= 0 or >= 1"):
        Tweedie(power)


def test_loss_without_a_second_derivative() -> None:
    with pytest.raises(InvalidParameterError, match=r"hinge.*lbfgs.*log_loss"):
        LOSSES["hinge"]().value_gradient_hessian(np.ones(2), np.ones(2))


@DTYPES
@SHAPES
@pytest.mark.parametrize("name", NAMES)
def test_results_keep_the_dtype_and_the_arguments(
    name: str, shape: tuple[int, ...], dtype: Any
) -> None:
    loss = LOSSES[name]()
    y, raw = _draw(loss, shape, dtype)
    y_before, raw_before = y.copy(), raw.copy()
    # float64 targets of a float32 fit must not widen it.
    for target in (y, y.astype(np.float64) if y.dtype.kind == "f" else y):
        values, gradient = loss.value_and_gradient(target, raw)
        assert values.dtype == gradient.dtype == dtype
        assert values.shape == (N,)
        assert gradient.shape == shape
        assert not np.shares_memory(gradient, raw)
    assert np.array_equal(loss.value(y, raw), values)
    assert np.array_equal(loss.gradient(y, raw), gradient)
    assert loss.inverse_link(raw).dtype == dtype
    np.testing.assert_array_equal(raw, raw_before)
    np.testing.assert_array_equal(y, y_before)


@pytest.mark.parametrize("name", NAMES)
def test_float64_parameter_does_not_widen_a_float32_fit(name: str) -> None:
    """Searches over parameters give NumPy scalars."""
    default = LOSSES[name]()
    numbers = {
        field: np.float64(value)
        for field, value in vars(default).items()
        if not isinstance(value, bool)
    }
    loss = type(default)(**numbers)
    y, raw = _draw(loss, (N,), np.float32)
    values, gradient = loss.value_and_gradient(y, raw)
    assert values.dtype == gradient.dtype == np.float32


@SHAPES
@pytest.mark.parametrize("name", NAMES)
def test_float32_agrees_with_float64(name: str, shape: tuple[int, ...]) -> None:
    loss = LOSSES[name]()
    y, raw = _draw(loss, shape, np.float32)
    narrow = loss.value_and_gradient(y, raw)
    wide = loss.value_and_gradient(y, raw.astype(np.float64))
    for a, b in zip(narrow, wide, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@SHAPES
@pytest.mark.parametrize("name", NAMES)
def test_convex(name: str, shape: tuple[int, ...]) -> None:
    loss = LOSSES[name]()
    y, raw = _draw(loss, shape)
    other = np.random.default_rng(5).normal(scale=2, size=shape)
    middle = loss.value(y, (raw + other) / 2)
    assert np.all(middle <= (loss.value(y, raw) + loss.value(y, other)) / 2 + 1e-12)
    # The (sub)gradient is a supporting plane.
    plane = loss.value(y, raw) + _per_row(loss.gradient(y, raw) * (other - raw))
    assert np.all(loss.value(y, other) >= plane - 1e-12)


@DTYPES
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_confident_predictions_do_not_overflow(name: str, dtype: Any) -> None:
    loss = LOSSES[name]()
    raw = np.array([-1e4, 1e4, -1e4, 1e4], dtype)
    y = np.array([-1, -1, 1, 1], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        values, gradient = loss.value_and_gradient(y, raw)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(values[[0, 3]], 0)
    np.testing.assert_array_equal(np.sign(gradient[[1, 2]]), [1, -1])


# --- against scikit-learn --------------------------------------------------------------------


def test_log_loss_of_two_classes() -> None:
    loss = LOSSES["log_loss"]()
    y, raw = _draw(loss, (N,))
    proba = loss.predict_proba(raw)
    assert loss.value(y, raw).mean() == pytest.approx(metrics.log_loss(y, proba), rel=1e-12)


def test_log_loss_of_many_classes() -> None:
    loss = LOSSES["log_loss"]()
    codes, raw = _draw(loss, (N, K))
    proba = loss.predict_proba(raw)
    expected = metrics.log_loss(codes, proba, labels=range(K))
    assert loss.value(codes, raw).mean() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(loss.gradient(codes, raw), proba - np.eye(K)[codes], atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [2, 5, 40, 41])
@pytest.mark.parametrize("name", ["log_loss", "modified_huber"])
def test_probabilities_are_written_as_they_are_returned(name: str, width: int, dtype: str) -> None:
    loss = LOSSES[name]()
    raw = np.random.default_rng(0).normal(0, 50, size=(300, width)).astype(dtype)
    expected, out = loss.predict_proba(raw.copy()), np.empty_like(raw)
    loss.write_proba(raw, out)
    tiny = np.finfo(dtype)
    np.testing.assert_allclose(out, expected, rtol=8 * tiny.eps, atol=tiny.tiny)


def test_softmax_does_not_overflow() -> None:
    loss = LOSSES["log_loss"]()
    raw = np.array([[1e4, 0.0, -1e4], [1e4, 0.0, -1e4]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        values, _ = loss.value_and_gradient(np.array([0, 2]), raw)
    np.testing.assert_allclose(values, [0, 2e4])


def test_hinge() -> None:
    loss = LOSSES["hinge"]()
    y, raw = _draw(loss, (N,))
    assert loss.value(y, raw).mean() == pytest.approx(metrics.hinge_loss(y, raw), rel=1e-12)
    np.testing.assert_allclose(LOSSES["squared_hinge"]().value(y, raw), loss.value(y, raw) ** 2)
    np.testing.assert_allclose(LOSSES["perceptron"]().value(y, raw), np.maximum(0, -y * raw))


def test_zero_start_moves_every_linear_classifier() -> None:
    for name in CLASSIFICATION:
        np.testing.assert_array_less(LOSSES[name]().gradient(np.ones(2), np.zeros(2)), 0)


def test_modified_huber_by_its_branches() -> None:
    margin = np.array([2.0, 1.0, 0.0, -1.0, -3.0])
    values, gradient = LOSSES["modified_huber"]().value_and_gradient(np.ones(5), margin)
    np.testing.assert_allclose(values, [0, 0, 1, 4, 12])
    np.testing.assert_allclose(gradient, [0, 0, -2, -4, -4])


def test_regression_metrics() -> None:
    y, raw = _draw(LOSSES["squared_error"](), (N,))
    half = LOSSES["squared_error"]().value(y, raw).mean()
    assert half == pytest.approx(metrics.mean_squared_error(y, raw) / 2, rel=1e-12)
    for q in (0.1, 0.5, 0.8):
        expected = metrics.mean_pinball_loss(y, raw, alpha=q)
        assert Quantile(q).value(y, raw).mean() == pytest.approx(expected, rel=1e-12)


def test_poisson_is_half_the_deviance_up_to_a_constant() -> None:
    loss = LOSSES["poisson"]()
    y, raw = _draw(loss, (N,))
    mean = loss.inverse_link(raw)
    np.testing.assert_allclose(mean, np.exp(raw))
    constant = (y - y * np.log(y)).mean()  # the loss at the perfect prediction log(y)
    expected = metrics.mean_poisson_deviance(y, mean) / 2 + constant
    assert loss.value(y, raw).mean() == pytest.approx(expected, rel=1e-10)


def test_losses_around_a_tube() -> None:
    residual = np.array([-2.0, -0.3, 0.0, 0.2, 3.0])
    zero = np.zeros(5)
    huber = np.array([0.875, 0.045, 0, 0.02, 1.375])
    np.testing.assert_allclose(Huber(0.5).value(zero, residual), huber)
    excess = np.array([1.9, 0.2, 0, 0.1, 2.9])
    insensitive = LOSSES["epsilon_insensitive"]()
    np.testing.assert_allclose(insensitive.value(zero, residual), excess, atol=1e-15)
    squared = LOSSES["squared_epsilon_insensitive"]()
    np.testing.assert_allclose(squared.value(zero, residual), excess**2, atol=1e-15)


# --- probabilities ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", PROBA)
def test_probabilities(name: str, n_classes: int) -> None:
    loss = LOSSES[name]()
    rng = np.random.default_rng(0)
    raw = rng.normal(scale=3, size=N if n_classes == 2 else (N, n_classes)).astype(np.float32)
    before = raw.copy()
    proba = loss.predict_proba(raw)
    assert proba.shape == (N, n_classes)
    assert proba.dtype == np.float32
    assert proba.min() >= 0
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-6)
    guess = raw > 0 if n_classes == 2 else raw.argmax(axis=1)
    best = np.take_along_axis(proba, guess.astype(int)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(best, proba.max(axis=1))
    np.testing.assert_array_equal(raw, before)


# For more classes scikit-learn's log_loss normalises one-vs-rest; ours is a softmax.
@pytest.mark.parametrize(
    ("name", "n_classes"), [("log_loss", 2), ("modified_huber", 2), ("modified_huber", 3)]
)
def test_probabilities_equal_those_of_scikit_learn(name: str, n_classes: int) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(scale=2, size=(300, 4))
    y = rng.integers(n_classes, size=300)
    clf = SGDClassifier(loss=name, random_state=0, max_iter=5, tol=None).fit(X, y)
    clf.coef_ /= abs(clf.coef_).max()
    if n_classes > 2:
        clf.intercept_[:] = -2.0  # many rows that no class claims
    raw = clf.decision_function(X)
    expected = clf.predict_proba(X)
    np.testing.assert_allclose(LOSSES[name]().predict_proba(raw), expected, rtol=1e-12, atol=1e-15)
    if n_classes > 2:
        assert np.any((raw <= -1).all(axis=1))


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(PROBA)))
def test_loss_without_probabilities_names_those_with(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"log_loss.*modified_huber.*Calibrated"):
        LOSSES[name]().predict_proba(np.zeros(2))


# --- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_table_entry(name: str) -> None:
    loss = get_loss(name, LOSSES[name].kind)
    assert loss.name == name
    assert loss == LOSSES[name]()
    assert get_loss(loss, loss.kind) is loss
    assert pickle.loads(pickle.dumps(loss)) == loss
    assert (loss.multiclass is None) == (loss.kind == "regression")
    assert type(loss).__doc__


@pytest.mark.parametrize("wrong", ["nothing", "", None, 3, Huber])
def test_unknown_loss_lists_the_names_of_its_kind(wrong: Any) -> None:
    for kind, names in (("classification", CLASSIFICATION), ("regression", REGRESSION)):
        with pytest.raises(InvalidParameterError) as caught:
            get_loss(wrong, kind)  # type: ignore[arg-type]
        assert all(f"'{name}'" in str(caught.value) for name in names)


def test_loss_of_the_other_kind_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"not a loss for regression.*'huber'"):
        get_loss("hinge", "regression")
    with pytest.raises(InvalidParameterError, match=r"not a loss for classification.*'hinge'"):
        get_loss(Huber(), "classification")


@pytest.mark.parametrize("name", ["huber", "epsilon_insensitive", "squared_epsilon_insensitive"])
@pytest.mark.parametrize("epsilon", [-0.1, float("nan"), float("inf")])
def test_wrong_epsilon(name: str, epsilon: float) -> None:
    with pytest.raises(InvalidParameterError, match=f"epsilon=.*{name}.*>= 0"):
        LOSSES[name](epsilon=epsilon)  # type: ignore[call-arg]


@pytest.mark.parametrize("quantile", [0, 1, -1, float("nan")])
def test_wrong_quantile(quantile: float) -> None:
    with pytest.raises(InvalidParameterError, match=r"quantile=.*between 0 and 1"):
        Quantile(quantile)


@pytest.mark.parametrize("name", NAMES)
def test_target_outside_the_domain(name: str) -> None:
    loss = LOSSES[name]()
    if name == "gamma":
        with pytest.raises(InvalidDataError, match=r"y > 0.*squared_error"):
            loss.check_target(np.array([0.0, 2.0]))
        return
    loss.check_target(np.array([0.0, 2.0]))
    if name in {"poisson", "tweedie"}:
        with pytest.raises(InvalidDataError, match=r"y >= 0.*squared_error"):
            loss.check_target(np.array([1.0, -1.0]))
