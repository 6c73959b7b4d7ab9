"""Losses of times until an event, some of which are known only within bounds (censored).

`AFT` is a loss of single rows: an accelerated failure time model, in which the logarithm of the
time is the raw prediction plus noise. `Cox` is a loss of all rows together: the partial likelihood
of the order of events, with the raw prediction as the logarithm of the hazard.

References
----------
J. D. Kalbfleisch and R. L. Prentice, "The statistical analysis of failure time data", 2nd edition,
2002. D. R. Cox, "Regression models and life-tables", Journal of the Royal Statistical Society B
34(2), 1972. N. E. Breslow, contribution to its discussion (equal times). A. Barnwal, H. Cho and T.
Hocking, "Survival regression with accelerated failure time model in XGBoost", Journal of
Computational and Graphical Statistics 31(4), 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.losses.base import Array, Exponential, Loss, sum_over_columns
from daskml_dist.losses.row import RowLoss

__all__ = ["AFT", "UNBOUNDED", "Cox", "RiskOrder", "make_no_event_error"]

#: Finite number that stands for an infinite logarithm of a time: it fits into float32, and as it is
#: a power of two, the mean of several copies is exactly this number.
UNBOUNDED = 2.0**100
#: Distributions of the noise, and the numbers that stand for them in compiled functions.
_DISTRIBUTIONS = ("normal", "logistic", "extreme")
_NORMAL, _LOGISTIC, _EXTREME = 0.0, 1.0, 2.0
#: Hazards of the extreme distribution are exponentials: larger exponents could overflow float64.
_MAX_EXPONENT = 500.0
#: log(sqrt(2 pi)) and sqrt(1 / 2), for the normal density and its integral; compiled functions read
#: them as constants.
_LOG_ROOT_2_PI = 0.9189385332046727
_ROOT_HALF = 0.7071067811865476
#: Half the width of an interval of residuals below which its probability is computed as density
#: times width, with a relative error of about this number squared: the difference of two nearly
#: equal probabilities would have lost more than half of the digits.
_NARROW = 1e-6
#: Above this residual, the normal distribution's hazard is a continued fraction with this many
#: terms.
_MIN_FRACTION, _FRACTION_TERMS = 4.0, 60


def _normal_hazard(z: float) -> tuple[float, float, float]:
    """Return the standard normal's cumulative hazard ``-log S(z)``, hazard, and hazard's slope."""
    if z < _MIN_FRACTION:
        cdf = 0.5 * math.erfc(-z * _ROOT_HALF)
        if z < 0.0:
            cumulated = -math.log1p(-cdf)
        else:
            cumulated = -math.log(0.5 * math.erfc(z * _ROOT_HALF))
        hazard = math.exp(cumulated - 0.5 * z * z - _LOG_ROOT_2_PI)
        return cumulated, hazard, hazard * (hazard - z)
    # Mills's ratio as a continued fraction (Kalbfleisch and Prentice use tables): the hazard is z +
    # 1 / (z + 2 / (z + 3 / ...)). This form keeps the digits of its excess over z.
    fraction = z
    for k in range(_FRACTION_TERMS, 1, -1):
        fraction = z + k / fraction
    excess = 1.0 / fraction
    hazard = z + excess
    return 0.5 * z * z + _LOG_ROOT_2_PI + math.log(hazard), hazard, hazard * excess


def _find_hazard(distribution: float, z: float) -> tuple[float, float, float]:
    """Return the cumulative hazard, the hazard and its slope at a residual of unit scale."""
    if distribution == _NORMAL:
        return _normal_hazard(z)
    if distribution == _LOGISTIC:
        e = math.exp(-abs(z))
        share = (1.0 if z > 0.0 else e) / (1.0 + e)
        return math.log1p(e) + max(z, 0.0), share, e / ((1.0 + e) * (1.0 + e))
    hazard = math.exp(min(z, _MAX_EXPONENT))
    return hazard, hazard, hazard


def _evaluate_event(distribution: float, z: float) -> tuple[float, float, float]:
    """Return minus the log density at a residual, and its derivatives by the residual."""
    if distribution == _NORMAL:
        return 0.5 * z * z + _LOG_ROOT_2_PI, z, 1.0
    if distribution == _LOGISTIC:
        e = math.exp(-abs(z))
        return (
            abs(z) + 2.0 * math.log1p(e),
            math.copysign((1.0 - e) / (1.0 + e), z),
            2.0 * e / ((1.0 + e) * (1.0 + e)),
        )
    hazard = math.exp(min(z, _MAX_EXPONENT))
    return hazard - z, hazard - 1.0, hazard


def _evaluate_interval(distribution: float, low: float, high: float) -> tuple[float, float, float]:
    """Return minus the log probability of an interval of residuals, and its derivatives."""
    if high >= UNBOUNDED:
        return _find_hazard(distribution, low)
    sign = 1.0
    if distribution != _EXTREME and low + high < 0.0:
        # For a symmetric distribution, use the side with the smaller survival: it keeps more
        # digits.
        low, high, sign = -high, -low, -1.0
        if high >= UNBOUNDED:
            value, slope, curve = _find_hazard(distribution, low)
            return value, -slope, curve
    value, h, slope = 0.0, 0.0, 0.0
    if low > -UNBOUNDED:
        value, h, slope = _find_hazard(distribution, low)
    value_high, h_high, slope_high = _find_hazard(distribution, high)
    # The probability is S(low) - S(high) = S(low) * (1 - exp(-width)).
    width = max(value_high - value, 1e-300)
    less, difference = -math.expm1(-width), h_high - h
    odds = math.exp(-width) / less
    return (
        value - math.log(less),
        sign * (h - difference * odds),
        slope - (slope_high - slope) * odds + difference * difference * odds * (1.0 + odds),
    )


def _evaluate_time(
    y: complex, raw: float, parameters: tuple[float, ...]
) -> tuple[float, float, float]:
    """Return value, first and second derivative of a row; `y` as in :meth:`AFT.encode`."""
    distribution, scale = parameters[0], parameters[1]
    middle, bounds = y.real, y.imag
    z = (middle - raw) / scale
    if bounds == 0.0:
        value, slope, curve = _evaluate_event(distribution, z)
        value += math.log(scale)
    elif bounds >= UNBOUNDED:
        value, slope, curve = _evaluate_interval(distribution, z, UNBOUNDED)
    elif bounds <= -UNBOUNDED:
        value, slope, curve = _evaluate_interval(distribution, -UNBOUNDED, z)
    else:
        half_width = bounds / scale
        if half_width < _NARROW:
            value, slope, curve = _evaluate_event(distribution, z)
            value -= math.log(2.0 * half_width)
        else:
            value, slope, curve = _evaluate_interval(distribution, z - half_width, z + half_width)
    # All densities are log-concave: a negative value can only be a rounding error.
    return value, -slope / scale, max(curve, 0.0) / (scale * scale)


def _evaluate_time_slope(
    y: complex, raw: float, parameters: tuple[float, ...]
) -> tuple[float, float]:
    """Return value and derivative of a row."""
    value, slope, _ = _evaluate_time(y, raw, parameters)
    return value, slope


@dataclass(frozen=True)
class AFT(RowLoss):
    """Loss of an accelerated failure time model: minus the log likelihood of times.

    The logarithm of a time is the raw prediction plus noise: ``log(t) = raw + scale * z``. The
    likelihood of an event at t is the density; that of a censored time is the probability of its
    interval. `predict` returns ``exp(raw)``, the median of the normal and the logistic
    distribution.

    Use it with `SGDRegressor` and `HistGradientBoostingRegressor`, whose `fit` then takes y as
    signed times (negative: no event up to that time), as an array of (event, time), or as two
    columns of bounds.

    Parameters
    ----------
    distribution : {"normal", "logistic", "extreme"}, default="normal"
        Distribution of the noise z; times are then log-normal, log-logistic or Weibull-distributed.
    scale : float, default=1.0
        Scale of the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import AFT
    >>> from daskml_dist.linear_model import SGDRegressor
    >>> X = np.arange(100.0).reshape(-1, 1) / 50
    >>> y = np.where(X[:, 0] > 1.5, -4.0, np.exp(X[:, 0]))  # none is seen beyond 4
    >>> model = SGDRegressor(AFT(scale=0.5), random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)  # concordance of times and predictions
    True
    """

    name = "aft"
    kind = "survival"
    multiclass = None
    in_target_units = False
    # Residuals are divided by the scale: if it is far too small, steps grow exponentially.
    overflow_remedy = (
        "Raise scale, as in loss=AFT(scale=1.0): times are too many scales from the predictions. "
        "Or lower learning_rate."
    )
    distribution: str = "normal"
    scale: float = 1.0
    # The compiled steps of single rows take one number as target; here it is a pair.
    evaluate_row: ClassVar[Any] = None

    def __post_init__(self) -> None:
        if self.distribution not in _DISTRIBUTIONS:
            raise InvalidParameterError(
                f"distribution={self.distribution!r} of loss='aft': use one of "
                f"{list(_DISTRIBUTIONS)}."
            )
        if not 0 < self.scale < math.inf:
            raise InvalidParameterError(
                f"scale={self.scale!r} of loss='aft': use a finite number > 0."
            )

    @property
    def parameters(self) -> tuple[float, ...]:
        """Return the number that stands for the distribution, and `scale`."""
        return float(_DISTRIBUTIONS.index(self.distribution)), float(self.scale)

    @staticmethod
    def derive_row(y: complex, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return first and second derivative of one row."""
        _, slope, curve = _evaluate_time(y, raw, parameters)
        return slope, curve

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        """Return the loss of each row, and its gradient; `y` as in :meth:`encode`."""
        values, gradient = self._map_rows(_evaluate_time_slope, y, raw)
        return sum_over_columns(values), gradient

    @staticmethod
    def encode(low: Array, high: Array) -> Array:
        """Return bounds of times as two columns of finite numbers, of shape (n, 2).

        The first is the middle of the logarithms of the bounds (or the only finite one). The second
        is half of their distance: 0 for an event, `UNBOUNDED` without an upper bound, minus
        `UNBOUNDED` without a lower bound.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = np.log(low), np.log(high)
            bounds = np.stack([(low + high) / 2, (high - low) / 2], axis=1)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        is_event = low == high
        bounds[is_event] = np.stack([low, np.zeros_like(low)], axis=1)[is_event]
        bounds[~has_high] = np.stack([low, np.full_like(low, UNBOUNDED)], axis=1)[~has_high]
        bounds[~has_low] = np.stack([high, np.full_like(low, -UNBOUNDED)], axis=1)[~has_low]
        return bounds

    @staticmethod
    def join(y: Array, dtype: Any) -> Array:
        """Return the columns of :meth:`encode` as complex numbers, for the functions of rows.

        So a target stays one number per row wherever rows are distributed, batched and gathered.
        """
        joined = np.empty(len(y), np.result_type(dtype, np.complex64))
        joined.real, joined.imag = y[:, 0], y[:, 1]
        return joined

    def check_events(self, mean: Array) -> None:
        """Raise InvalidDataError if all times lack one bound, given the means of the columns."""
        if mean[1] >= UNBOUNDED:
            raise make_no_event_error()
        if mean[1] <= -UNBOUNDED:
            raise InvalidDataError(
                "All times of y have only an upper bound (the lower one is 0), so the "
                "likelihood grows without limit as the prediction falls. Give rows with events, "
                "or with lower bounds."
            )

    def constant(self, mean: float) -> float:
        """Return the mean of the logarithms of times and bounds."""
        return mean

    def inverse_link(self, raw: Array) -> Array:
        """Return the predicted time, ``exp(raw)``; infinite if it is too large for the dtype."""
        with np.errstate(over="ignore"):
            return namespace(raw).exp(raw)


@dataclass(frozen=True, eq=False)
class RiskOrder:
    """Rows sorted by time, with the indices needed for sums over the rows at risk.

    Parameters
    ----------
    is_event : ndarray of bool of shape (n,)
    weight : ndarray of float64 of shape (n,)
    first, last : ndarray of int64 of shape (n,)
        First and last row with the same time.
    """

    is_event: Array
    weight: Array
    first: Array = field(repr=False)
    last: Array = field(repr=False)

    @classmethod
    def of_sorted(cls, y: Array, weight: Array) -> RiskOrder:
        """Return the order of signed times that are sorted by absolute value."""
        times = np.abs(y)
        return cls(
            y > 0,
            weight,
            np.searchsorted(times, times, side="left"),
            np.searchsorted(times, times, side="right") - 1,
        )


#: Function (values of sorted rows, backwards): cumulative sums from the first row, or, if
#: `backwards`, from the last.
Cumulate = Callable[[Array, bool], Array]


@dataclass(frozen=True)
class Cox(Loss):
    """Minus the log partial likelihood of Cox's model, in Breslow's form for equal times.

    The likelihood of an event is the hazard of its row divided by the sum of the hazards of all
    rows with no earlier time. The raw prediction is the logarithm of the hazard, up to a constant;
    `predict` returns the hazard, ``exp(raw)``.

    Use it with `HistGradientBoostingRegressor`, whose `fit` then takes y as signed times (negative:
    no event up to that time) or as an array of (event, time).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import Cox
    >>> y = np.array([1.0, 2.0, -3.0])
    >>> Cox().value(y, np.zeros(3)).round(4).tolist()
    [1.0986, 0.6931, 0.0]
    """

    name = "cox"
    overflow_remedy = "Lower learning_rate, or raise l2_regularization."
    kind = "survival"
    has_hessian = True

    def evaluate(
        self, raw: Array, order: RiskOrder, exponential: Exponential, cumulate: Cumulate,
        most: float,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """Return hazards, weighted sums of hazards at risk, and each event's weight over that sum.

        Parameters
        ----------
        raw : ndarray of float64 of shape (n,)
            Sorted by time.
        order : RiskOrder
        exponential : callable
        cumulate : callable
        most : float
            Largest raw prediction of all rows; subtracted to avoid overflow.
        """
        hazard = exponential(raw - most)
        at_risk = cumulate(hazard * order.weight, True)[order.first]
        share = np.divide(
            order.weight, at_risk, out=np.zeros_like(hazard), where=order.is_event & (at_risk > 0)
        )
        return hazard, at_risk, share

    def derive_sorted(
        self, raw: Array, order: RiskOrder, exponential: Exponential, cumulate: Cumulate,
        most: float,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Return weighted gradients and hessians of sorted rows; arguments as in `evaluate`."""
        hazard, at_risk, share = self.evaluate(raw, order, exponential, cumulate, most)
        # A row is at risk at all events up to and including its time.
        expected = order.weight * hazard * cumulate(share, False)[order.last]
        squares = np.divide(share, at_risk, out=np.zeros_like(share), where=at_risk > 0)
        gradient = expected - np.where(order.is_event, order.weight, 0.0)
        # A row of weight k counts as k rows; each has a second derivative by its own prediction
        # only.
        variance = order.weight * hazard * hazard * cumulate(squares, False)[order.last]
        # Equals the sum of p * (1 - p) over these events: a negative value is a rounding error.
        return gradient, np.maximum(expected - variance, 0.0)

    def value_sorted(
        self, raw: Array, order: RiskOrder, exponential: Exponential, cumulate: Cumulate,
        most: float,
    ) -> Array:  # fmt: skip
        """Return weighted losses of sorted rows; rows without event have 0."""
        _, at_risk, _ = self.evaluate(raw, order, exponential, cumulate, most)
        logs = np.log(at_risk, out=np.zeros_like(at_risk), where=order.is_event & (at_risk > 0))
        return np.where(order.is_event, order.weight * (logs - (raw - most)), 0.0)

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        """Return the loss of each row and its gradient; `y` and `raw` must hold all rows."""
        values, gradient, _ = self.value_gradient_hessian(y, raw)
        return values, gradient

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Return each row's loss, gradient, and second derivative with respect to `raw`.

        All rows must be given together; second derivatives are by a row's own prediction only.
        """
        order = np.argsort(np.abs(y), kind="stable")
        risk_order = RiskOrder.of_sorted(y[order], np.ones(len(y)))
        sorted_raw = raw[order].astype(np.float64)
        arguments = sorted_raw, risk_order, np.exp, _cumulate, float(sorted_raw.max(initial=-1e300))
        derivatives = np.empty((3, len(y)))
        derivatives[0, order] = self.value_sorted(*arguments)
        derivatives[1, order], derivatives[2, order] = self.derive_sorted(*arguments)
        values, gradient, hessian = derivatives.astype(raw.dtype)
        return values, gradient, hessian

    def check_events(self, mean: Array) -> None:
        """Do nothing: :meth:`check_target` already checks that there are events."""

    def check_target(self, y: Array) -> None:
        """Raise InvalidDataError if all times are negative, so that there is no event."""
        if len(y) and y.max() < 0:
            raise make_no_event_error()

    def inverse_link(self, raw: Array) -> Array:
        """Return the hazard relative to that of a raw prediction of 0, ``exp(raw)``."""
        return namespace(raw).exp(raw)


def _cumulate(values: Array, backwards: bool) -> Array:
    """Return cumulative sums of rows that are all in memory."""
    return np.cumsum(values[::-1])[::-1] if backwards else np.cumsum(values)


def make_no_event_error() -> InvalidDataError:
    """Return the error for times without a single event."""
    return InvalidDataError(
        "All times of y are censored: no row has an event, so the likelihood grows without "
        "limit with the prediction. Give rows with events: positive times, event=True, or a "
        "finite upper bound. Is the sign, or the meaning of the event column, reversed?"
    )
