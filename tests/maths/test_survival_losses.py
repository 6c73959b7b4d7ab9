"""Losses of censored times: likelihoods by SciPy, derivatives by differences, far tails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.losses import AFT, Cox, get_loss
from daskml_dist.losses.survival import UNBOUNDED

DISTRIBUTIONS = {"normal": stats.norm, "logistic": stats.logistic, "extreme": stats.gumbel_l}
#: Lower and upper bounds: an event, censored from above and from below, and two intervals.
LOW = np.array([2.0, 2.0, 0.0, 0.7, 3.0])
HIGH = np.array([2.0, np.inf, 1.5, 1.1, 40.0])
FORMS = ("event", "right", "left", "narrow", "wide")
every = pytest.mark.parametrize("name", DISTRIBUTIONS)


def encoded(low: Any = LOW, high: Any = HIGH, dtype: str = "float64") -> Any:
    return AFT.join(AFT.encode(low, high), dtype)


def expected(name: str, raw: Any, scale: float) -> Any:
    """Minus the log likelihood of each row, by SciPy; the density is of the log of the time."""
    law = DISTRIBUTIONS[name]
    with np.errstate(divide="ignore"):
        low, high = ((np.log(of) - raw) / scale for of in (LOW, HIGH))
    is_event = LOW == HIGH
    # On the side of the smaller probability, where no digits cancel.
    upper = low > 0
    share = np.where(upper, law.sf(low) - law.sf(high), law.cdf(high) - law.cdf(low))
    return np.where(is_event, -law.logpdf(low) + np.log(scale), -np.log(np.maximum(share, 1e-300)))


@every
@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_values_are_log_likelihoods(name: str, scale: float) -> None:
    y, loss = encoded(), AFT(name, scale)
    for at in (-3.0, -0.5, 0.0, 0.4, 1.0, 3.0):
        if name == "extreme" and at < -1:
            continue  # probabilities that underflow in SciPy
        raw = np.full(len(LOW), at)
        np.testing.assert_allclose(loss.value(y, raw), expected(name, raw, scale), 1e-8, 1e-14)


@every
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_derivatives_are_differences(name: str, scale: float) -> None:
    y, loss, h = encoded(), AFT(name, scale), 1e-5
    for at in (-30.0, -4.0, -0.5, 0.3, 1.0, 4.0, 30.0):
        raw = np.full(len(LOW), at)
        values, gradient, hessian = loss.value_gradient_hessian(y, raw)
        np.testing.assert_array_equal(loss.value_and_gradient(y, raw)[0], values)
        if name == "extreme" and at < -4:
            continue  # exponentials of exponentials, of which differences have no digits
        more, less = (loss.value_gradient_hessian(y, raw + step) for step in (h, -h))
        for found, above, below, what in (
            (gradient, more[0], less[0], "gradient"),
            (hessian, more[1], less[1], "hessian"),
        ):
            compared = dict(
                zip(FORMS, zip(found, (above - below) / (2 * h), strict=True), strict=True)
            )
            size = 1 + np.abs(above)
            np.testing.assert_allclose(
                found, (above - below) / (2 * h), atol=1e-9 * size.max() / h, rtol=2e-5,
                err_msg=f"{what} at {at}: {compared}",
            )  # fmt: skip
        assert (hessian >= 0).all()


@every
def test_far_tails_are_finite_and_point_back(name: str) -> None:
    y, loss = encoded(), AFT(name, 0.1)
    tail = 500.0 if name != "extreme" else 20.0
    for at in (-tail, tail):
        values, gradient, hessian = loss.value_gradient_hessian(y, np.full(len(LOW), at))
        assert np.isfinite([values, gradient, hessian]).all(), FORMS
        # Of raw predictions that are far too small, and far too large.
        wrong = np.array([True, at < 0, at > 0, True, True])
        assert (np.sign(gradient[wrong]) == np.sign(at)).all()
        np.testing.assert_allclose(values[~wrong], 0, atol=1e-12)


@every
@pytest.mark.parametrize("half", [1e-5, 1e-7, 1e-11, 1e-17])
def test_intervals_of_almost_no_width_are_events(name: str, half: float) -> None:
    """The probability is the density times the width, so derivatives equal those of an event."""
    loss, middle = AFT(name, 0.5), np.array([0.3, 0.3, -0.2])
    raw = np.array([0.0, 1.0, -0.5])
    narrow = AFT.join(np.column_stack([middle, np.full(3, half)]), "float64")
    event = AFT.join(np.column_stack([middle, np.zeros(3)]), "float64")
    found, wanted = (loss.value_gradient_hessian(y, raw) for y in (narrow, event))
    np.testing.assert_allclose(found[0], wanted[0] - np.log(2 * half), rtol=1e-8)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-7)
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-7)


def test_times_of_float32_and_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    from daskml_dist.backends import own_losses

    y, raw = encoded(dtype="float32"), np.linspace(-1, 1, 5, dtype="float32")
    assert y.dtype == np.complex64
    values, gradient = AFT().value_and_gradient(y, raw)
    assert values.dtype == gradient.dtype == np.float32
    wide = AFT().value_and_gradient(encoded(), raw.astype(float))
    np.testing.assert_allclose(values, wide[0], rtol=1e-5)
    monkeypatch.setattr(own_losses, "_compile", lambda *_: None)
    slow = AFT().value_and_gradient(encoded(), raw.astype(float))
    np.testing.assert_allclose(slow, wide, rtol=1e-12, atol=1e-15)


def test_bounds_are_encoded() -> None:
    found = AFT.encode(LOW, HIGH)
    np.testing.assert_allclose(found[:, 0][:3], np.log([2.0, 2.0, 1.5]))
    np.testing.assert_array_equal(found[:3, 1], [0.0, UNBOUNDED, -UNBOUNDED])
    for row in (3, 4):
        middle, half = found[row]
        np.testing.assert_allclose(np.exp([middle - half, middle + half]), [LOW[row], HIGH[row]])


def naive_cox(y: Any, raw: Any, weight: Any) -> float:
    """Minus the weighted log partial likelihood, row by row."""
    total = 0.0
    for time, raw_of_row, w in zip(y, raw, weight, strict=True):
        if time > 0:
            at_risk = np.abs(y) >= time
            total += w * (np.log((weight * np.exp(raw))[at_risk].sum()) - raw_of_row)
    return total


def test_partial_likelihood_of_equal_times() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(1, 12, 60) * rng.choice([-1.0, 1.0], 60)
    raw, h = rng.normal(size=60), 1e-3
    values, gradient, hessian = Cox().value_gradient_hessian(y, raw)
    ones = np.ones(60)
    assert values.sum() == pytest.approx(naive_cox(y, raw, ones), rel=1e-12)
    assert (values[y < 0] == 0).all()
    for row in range(60):
        more, less = raw.copy(), raw.copy()
        more[row] += h
        less[row] -= h
        high, low, mid = (naive_cox(y, one, ones) for one in (more, less, raw))
        assert gradient[row] == pytest.approx((high - low) / (2 * h), abs=1e-5)
        assert hessian[row] == pytest.approx((high - 2 * mid + low) / h**2, abs=1e-5)
    small = Cox().value_gradient_hessian(y, raw.astype("float32"))
    assert {one.dtype for one in small} == {np.dtype("float32")}
    np.testing.assert_allclose(small, [values, gradient, hessian], rtol=1e-4, atol=1e-6)
    # A constant cancels.
    np.testing.assert_allclose(Cox().gradient(y, raw + 700), gradient, atol=1e-10)
    assert gradient.sum() == pytest.approx(0, abs=1e-10)


def test_bad_losses_are_named() -> None:
    with pytest.raises(InvalidParameterError, match="distribution='weibull'"):
        AFT("weibull")
    for scale in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InvalidParameterError, match="scale="):
            AFT(scale=scale)
    for loss in (AFT(), Cox()):
        with pytest.raises(InvalidParameterError, match="not a loss for regression"):
            get_loss(loss, "regression")
        assert get_loss(loss, "regression", censored=True) is loss
    with pytest.raises(InvalidDataError, match="All times of y are censored"):
        AFT().check_events(AFT.encode(LOW[[1, 1]], HIGH[[1, 1]]).mean(axis=0))
    with pytest.raises(InvalidDataError, match="only an upper bound"):
        AFT().check_events(AFT.encode(np.zeros(2), np.array([1.0, 2.0])).mean(axis=0))
    with pytest.raises(InvalidDataError, match="All times of y are censored"):
        Cox().check_target(np.array([-1.0, -2.0]))
