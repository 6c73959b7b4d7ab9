"""Losses: value and gradient with respect to the raw prediction.

A raw prediction is ``X @ coef + intercept``, of shape (n,), or (n, K) where a model has K > 1
outputs. Everything here is elementwise, in the functions of the array API standard, so that the
arrays of a GPU run through it as well; beside it stands ``at_row``, the same for the numbers of
one row, which numba compiles into the steps of single rows (`daskml_dist.backends.row_steps`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.special import xlogy

from daskml_dist.backends.namespace import cast, is_host, namespace, one_hot, total, zeros
from daskml_dist.errors import InvalidDataError, InvalidParameterError

__all__ = [
    "LOSSES",
    "EpsilonInsensitive",
    "Gamma",
    "Hinge",
    "Huber",
    "LogLoss",
    "Loss",
    "ModifiedHuber",
    "Perceptron",
    "Poisson",
    "Quantile",
    "SquaredEpsilonInsensitive",
    "SquaredError",
    "SquaredHinge",
    "Tweedie",
    "get_loss",
]

#: Of NumPy, or of another library that follows the array API standard.
Array = Any
Kind = Literal["classification", "regression"]
Multiclass = Literal["softmax", "ovr"]


class Loss(ABC):
    """A loss of one row, as a function of its target and raw prediction.

    Results have the dtype of the raw prediction (float32 or float64) and are new arrays.

    Attributes
    ----------
    name : str
        What an estimator's ``loss`` argument calls it.
    kind : {"classification", "regression"}
    multiclass : {"softmax", "ovr"} or None
        How more than two classes are told apart: by one softmax over integer codes, or by one
        -1/+1 problem for each class.
    proba : bool
        Whether :meth:`predict_proba` is defined.
    in_target_units : bool
        Whether raw predictions are in the units of the targets.
    center : {"mean", "median"} or None
        For a function of ``raw - y`` alone: near which of the targets the best constant prediction
        lies. A fit then takes it from the targets, and adds it to the intercept. Not inherited by
        a class with a :meth:`value_and_gradient` of its own.
    kernel : str or None
        What backends that have one call the fused kernel that computes the same for linear models.
        Not inherited, since a subclass may compute something else.
    at_row : function or None
        Static: value and derivative of one row with one output, from its target (-1 or +1 for
        classification), raw prediction and `parameters`. Arithmetic and `math` only, so that
        numba compiles it. None: the loss has only its array form, and no steps of single rows.
    has_hessian : bool
        Whether :meth:`value_gradient_hessian` is defined.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    multiclass: ClassVar[Multiclass | None] = None
    proba: ClassVar[bool] = False
    in_target_units: ClassVar[bool] = False
    center: ClassVar[Literal["mean", "median"] | None] = None
    kernel: ClassVar[str | None] = None
    at_row: ClassVar[Any] = None
    has_hessian: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.kernel = vars(cls).get("kernel")
        # Whoever writes the array form anew must do so with both.
        forms = {"value_and_gradient", "_at_margin", "_at_residual", "_derivatives"}
        if forms & cls.__dict__.keys() and "at_row" not in cls.__dict__:
            cls.at_row = None
        if "value_and_gradient" in cls.__dict__ and "center" not in cls.__dict__:
            cls.center = None

    @property
    def parameters(self) -> tuple[float, ...]:
        """Numbers that `at_row` needs beside the row."""
        return ()

    @abstractmethod
    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        """Loss of each row, and its gradient.

        Parameters
        ----------
        y : ndarray
            Targets of the shape of `raw`: -1 or +1 for classification, numbers for regression.
            For ``"softmax"`` with 2-d `raw`: integer codes of shape (n,).
        raw : ndarray of shape (n,) or (n, K)

        Returns
        -------
        values : ndarray of shape (n,)
            Summed over the columns where `raw` is 2-d.
        gradient : ndarray of the shape of `raw`
            A subgradient where the loss has a kink.
        """

    def value(self, y: Array, raw: Array) -> Array:
        """Loss of each row, of shape (n,)."""
        return self.value_and_gradient(y, raw)[0]

    def gradient(self, y: Array, raw: Array) -> Array:
        """Gradient with respect to `raw`, of its shape."""
        return self.value_and_gradient(y, raw)[1]

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """As :meth:`value_and_gradient`, and the second derivative with respect to `raw`.

        Returns
        -------
        values, gradient : ndarray
        hessian : ndarray of shape (n,), or (n, K, K) where `raw` is 2-d
            Can be negative where the loss is not convex.

        Raises
        ------
        InvalidParameterError
            If the loss has no second derivative.
        """
        names = sorted(name for name, loss in LOSSES.items() if loss.has_hessian)
        raise InvalidParameterError(
            f"loss={self.name!r} has no second derivative. Use solver='lbfgs', or one of {names}."
        )

    def predict_proba(self, raw: Array) -> Array:
        """Probabilities of the classes.

        Parameters
        ----------
        raw : ndarray of shape (n,) for two classes, or (n, n_classes)

        Returns
        -------
        ndarray of shape (n, n_classes)

        Raises
        ------
        InvalidParameterError
            If the loss has no probabilities.
        """
        names = sorted(name for name, loss in LOSSES.items() if loss.proba)
        raise InvalidParameterError(
            f"loss={self.name!r} gives no probabilities. Use one of {names}, or wrap the "
            "estimator in sklearn.calibration.CalibratedClassifierCV."
        )

    def write_proba(self, raw: Array, out: Array) -> None:
        """Write :meth:`predict_proba` to `out`, of shape (n, n_classes); `raw` may be lost."""
        out[...] = self.predict_proba(raw)

    def inverse_link(self, raw: Array) -> Array:
        """Predicted target of a regression: the raw prediction itself, unless overridden."""
        return raw

    def constant(self, mean: float) -> float:
        """Raw prediction to start from where no feature has an effect, of the targets' mean."""
        return 0.0

    def check_target(self, y: Array) -> None:  # noqa: B027
        """Raise InvalidDataError for a target outside the loss's domain."""


def _per_row(values: Array) -> Array:
    return values if values.ndim == 1 else total(values, axis=1)


def _log1p(e: Array) -> Array:
    """``log(1 + e)`` for e from 0 to 1, small ones exactly too.

    In NumPy's float32 a logarithm corrected for what ``1 + e`` rounds off is twice as fast as
    `log1p` (Goldberg 1991, theorem 4).
    """
    if not is_host(e) or e.dtype != np.float32:
        return namespace(e).log1p(e)
    u = 1 + e
    values = np.log(u)
    u -= 1
    values *= e
    values /= np.maximum(u, np.finfo(np.float32).tiny, out=u)
    return np.where(u > 1e-10, values, e)


class _MarginLoss(Loss):
    """A function of the margin ``y * raw``, with y in {-1, +1}."""

    kind = "classification"
    multiclass: ClassVar[Multiclass | None] = "ovr"

    @abstractmethod
    def _at_margin(self, margin: Array) -> tuple[Array, Array]:
        """Value and derivative at each margin; `margin` may be used as scratch."""

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        y = cast(y, raw.dtype)
        values, slope = self._at_margin(y * raw)
        slope *= y
        return _per_row(values), slope


@dataclass(frozen=True)
class LogLoss(_MarginLoss):
    """Logistic loss: ``log(1 + exp(-y * raw))``; softmax cross-entropy for K classes.

    Both are computed from exponentials of non-positive numbers, which cannot overflow.
    """

    name = "log_loss"
    multiclass = "softmax"
    proba = True
    kernel = "log_loss"
    has_hessian = True

    def _at_margin(self, margin: Array) -> tuple[Array, Array]:
        xp = namespace(margin)
        e = xp.exp(-xp.abs(margin))
        values = _log1p(e)
        values -= xp.minimum(margin, 0)
        slope = xp.where(margin > 0, e, 1)
        slope /= -1 - e
        return values, slope

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        margin = y * raw
        e = math.exp(-abs(margin))
        slope = (e if margin > 0 else 1.0) / (1.0 + e)
        return math.log1p(e) - min(margin, 0.0), -y * slope

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        if raw.ndim == 1:
            return super().value_and_gradient(y, raw)
        xp, host = namespace(raw), is_host(raw)
        # With few rows NumPy's methods are faster, and with many classes its assignment.
        top = raw.max(axis=1) if host else xp.max(raw, axis=1)
        shifted = raw - top[:, None]
        gradient = xp.exp(shifted)
        sums = total(gradient, axis=1)
        gradient /= sums[:, None]
        if host:
            at = np.arange(len(y)), y
            gradient[at] -= 1
            return np.log(sums) - shifted[at], gradient
        gradient -= one_hot(y, raw.shape[1], raw.dtype)
        return xp.log(sums) - xp.take_along_axis(shifted, y[:, None], axis=1)[:, 0], gradient

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """As in `Loss`; products of probabilities, never differences: exact far from 1/2 too."""
        xp = namespace(raw)
        if raw.ndim == 1:
            y = cast(y, raw.dtype)
            margin = y * raw
            e = xp.exp(-xp.abs(margin))
            values = _log1p(e)
            values -= xp.minimum(margin, 0)
            larger = 1 / (1 + e)
            smaller = e * larger
            gradient = xp.where(margin > 0, smaller, larger)
            gradient *= -y
            return values, gradient, smaller * larger
        values, gradient = self.value_and_gradient(y, raw)
        proba = self.predict_proba(raw)
        n, width = raw.shape
        pairs = xp.reshape(-proba[:, :, None] * proba[:, None, :], (n, width**2))
        pairs[:, :: width + 1] = 0
        pairs[:, :: width + 1] = -total(xp.reshape(pairs, (n, width, width)), axis=2)
        return values, gradient, xp.reshape(pairs, (n, width, width))

    def predict_proba(self, raw: Array) -> Array:
        """Logistic function of `raw` (two classes), or softmax over its columns."""
        xp = namespace(raw)
        if raw.ndim == 1:
            return xp.stack(self._two_classes(raw), axis=1)
        proba = xp.exp(raw - xp.max(raw, axis=1, keepdims=True))
        proba /= total(proba, axis=1)[:, None]
        return proba

    def write_proba(self, raw: Array, out: Array) -> None:
        """Write :meth:`predict_proba` to `out`, of two classes without another copy."""
        if raw.ndim > 1:
            super().write_proba(raw, out)
        else:
            out[:, 0], out[:, 1] = self._two_classes(raw)

    def _two_classes(self, raw: Array) -> tuple[Array, Array]:
        # The softmax of (0, raw); like it exact for probabilities near 0, with the odds kept in
        # the range of the dtype.
        xp = namespace(raw)
        odds = xp.exp(xp.minimum(-raw, math.log(xp.finfo(raw.dtype).max / 8)))
        positive = 1 / (1 + odds)
        odds *= positive
        return odds, positive


@dataclass(frozen=True)
class Hinge(_MarginLoss):
    """Loss of a linear support vector machine: ``max(0, 1 - y * raw)``."""

    name = "hinge"
    kernel = "hinge"
    _threshold: ClassVar[float] = 1.0

    def _at_margin(self, margin: Array) -> tuple[Array, Array]:
        # The kink counts as wrong, as in scikit-learn: a perceptron must leave w = 0.
        xp = namespace(margin)
        slope = -cast(margin <= self._threshold, margin.dtype)
        return xp.maximum(self._threshold - margin, 0), slope

    @property
    def parameters(self) -> tuple[float, ...]:
        """The margin from which on the loss is zero."""
        return (self._threshold,)

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        gap = parameters[0] - y * raw
        return max(gap, 0.0), -y if gap >= 0 else 0.0


@dataclass(frozen=True)
class Perceptron(Hinge):
    """Loss of the perceptron: ``max(0, -y * raw)``."""

    name = "perceptron"
    kernel = "perceptron"
    _threshold = 0.0


@dataclass(frozen=True)
class SquaredHinge(_MarginLoss):
    """Squared hinge loss: ``max(0, 1 - y * raw) ** 2``."""

    name = "squared_hinge"
    kernel = "squared_hinge"

    def _at_margin(self, margin: Array) -> tuple[Array, Array]:
        gap = namespace(margin).maximum(1 - margin, 0)
        values = gap * gap
        gap *= -2
        return values, gap

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        gap = max(1.0 - y * raw, 0.0)
        return gap * gap, -2.0 * gap * y


@dataclass(frozen=True)
class ModifiedHuber(_MarginLoss):
    """Squared hinge loss, linear (``-4 * y * raw``) for margins below -1 (Zhang 2004)."""

    name = "modified_huber"
    kernel = "modified_huber"
    proba = True

    def _at_margin(self, margin: Array) -> tuple[Array, Array]:
        xp = namespace(margin)
        gap = xp.maximum(1 - margin, 0)
        slope = xp.minimum(gap, 2)
        gap *= 2
        gap -= slope
        gap *= slope
        slope *= -2
        return gap, slope

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        gap = max(1.0 - y * raw, 0.0)
        slope = min(gap, 2.0)
        return (2.0 * gap - slope) * slope, -2.0 * slope * y

    def predict_proba(self, raw: Array) -> Array:
        """``(clip(raw, -1, 1) + 1) / 2``, normalised over the columns (Zadrozny and Elkan 2002).

        A row that no class claims is uniform, as in scikit-learn.
        """
        xp = namespace(raw)
        proba = (xp.clip(raw, -1, 1) + 1) / 2
        if raw.ndim == 1:
            return xp.stack([1 - proba, proba], axis=1)
        sums = total(proba, axis=1)[:, None]
        return xp.where(sums == 0, 1, proba) / xp.where(sums == 0, raw.shape[1], sums)


class _ResidualLoss(Loss):
    """A function of the residual ``raw - y``."""

    kind = "regression"
    in_target_units = True
    center: ClassVar[Literal["mean", "median"] | None] = "median"

    @abstractmethod
    def _at_residual(self, residual: Array) -> tuple[Array, Array]:
        """Value and derivative at each residual; `residual` may be returned."""

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        values, gradient = self._at_residual(raw - cast(y, raw.dtype))
        return _per_row(values), gradient


@dataclass(frozen=True)
class SquaredError(_ResidualLoss):
    """Half the squared error: ``(raw - y) ** 2 / 2``."""

    name = "squared_error"
    center = "mean"
    kernel = "squared_error"
    has_hessian = True

    def _at_residual(self, residual: Array) -> tuple[Array, Array]:
        values = residual * residual
        values *= 0.5
        return values, residual

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        residual = raw - y
        return 0.5 * residual * residual, residual

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """As in `Loss`: the second derivative is 1."""
        hessian = namespace(raw).ones_like(raw)
        return *self.value_and_gradient(y, raw), hessian if raw.ndim == 1 else _diagonal(hessian)


@dataclass(frozen=True)
class _EpsilonLoss(_ResidualLoss):
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < np.inf:
            raise InvalidParameterError(
                f"epsilon={self.epsilon!r} of loss={self.name!r}: use a finite number >= 0."
            )

    @property
    def parameters(self) -> tuple[float, ...]:
        """`epsilon`."""
        return (float(self.epsilon),)

    def _excess(self, residual: Array) -> Array:
        """``max(0, |residual| - epsilon)``, a new array."""
        xp = namespace(residual)
        excess = xp.abs(residual)
        excess -= self.epsilon
        return xp.maximum(excess, 0)


@dataclass(frozen=True)
class Huber(_EpsilonLoss):
    """Half the squared error up to `epsilon`, linear beyond (Huber 1964).

    Parameters
    ----------
    epsilon : float, default=0.1
        In the unit of the target.
    """

    name = "huber"
    kernel = "huber"

    def _at_residual(self, residual: Array) -> tuple[Array, Array]:
        epsilon = float(self.epsilon)  # a NumPy float64 would widen a float32 residual
        gradient = namespace(residual).clip(residual, -epsilon, epsilon)
        residual -= gradient / 2
        residual *= gradient
        return residual, gradient

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        residual = raw - y
        slope = min(max(residual, -parameters[0]), parameters[0])
        return (residual - 0.5 * slope) * slope, slope


@dataclass(frozen=True)
class EpsilonInsensitive(_EpsilonLoss):
    """Loss of support vector regression: ``max(0, |raw - y| - epsilon)``.

    Parameters
    ----------
    epsilon : float, default=0.1
        In the unit of the target.
    """

    name = "epsilon_insensitive"
    kernel = "epsilon_insensitive"

    def _at_residual(self, residual: Array) -> tuple[Array, Array]:
        xp = namespace(residual)
        values = self._excess(residual)
        return values, xp.sign(residual) * cast(values > 0, residual.dtype)

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        residual = raw - y
        excess = max(abs(residual) - parameters[0], 0.0)
        return excess, math.copysign(1.0, residual) if excess > 0 else 0.0


@dataclass(frozen=True)
class SquaredEpsilonInsensitive(EpsilonInsensitive):
    """Squared epsilon-insensitive loss: ``max(0, |raw - y| - epsilon) ** 2``.

    Parameters
    ----------
    epsilon : float, default=0.1
        In the unit of the target.
    """

    name = "squared_epsilon_insensitive"
    center = "mean"
    kernel = "squared_epsilon_insensitive"

    def _at_residual(self, residual: Array) -> tuple[Array, Array]:
        excess = self._excess(residual)
        values = excess * excess
        excess *= 2
        return values, namespace(residual).copysign(excess, residual)

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        residual = raw - y
        excess = max(abs(residual) - parameters[0], 0.0)
        return excess * excess, math.copysign(2.0 * excess, residual)


@dataclass(frozen=True)
class Quantile(_ResidualLoss):
    """Pinball loss, whose minimum is a quantile of the target (Koenker and Bassett 1978).

    Parameters
    ----------
    quantile : float, default=0.5
        Between 0 and 1, both excluded; 0.5 is half the absolute error.
    """

    name = "quantile"
    kernel = "quantile"
    quantile: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise InvalidParameterError(
                f"quantile={self.quantile!r}: use a number between 0 and 1, both excluded."
            )

    def _at_residual(self, residual: Array) -> tuple[Array, Array]:
        slope = cast(residual > 0, residual.dtype)
        slope -= self.quantile
        return slope * residual, slope

    @property
    def parameters(self) -> tuple[float, ...]:
        """`quantile`."""
        return (float(self.quantile),)

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        residual = raw - y
        slope = (1.0 if residual > 0 else 0.0) - parameters[0]
        return slope * residual, slope


class _Deviance(Loss):
    """Half the deviance of a distribution of the Tweedie family, up to what `raw` does not change.

    Of a mean m and a target y it is ``c(y) - c(m) - c'(m) (y - m)`` with a convex function c, the
    family's own.
    """

    kind = "regression"
    has_hessian = True
    power: float

    @abstractmethod
    def link(self, mean: Any) -> Any:
        """The raw prediction of a mean; the inverse of :meth:`inverse_link`."""

    def constant(self, mean: float) -> float:
        """The link of the mean; 0 for a mean of 0, which has no logarithm."""
        with np.errstate(divide="ignore", invalid="ignore"):
            raw = float(self.link(mean))
        return raw if np.isfinite(raw) else 0.0

    @abstractmethod
    def _derivatives(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Values, first and second derivatives, elementwise."""

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        values, gradient, _ = self._derivatives(cast(y, raw.dtype), raw)
        return _per_row(values), gradient

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """As in `Loss`."""
        values, gradient, hessian = self._derivatives(cast(y, raw.dtype), raw)
        return _per_row(values), gradient, hessian if raw.ndim == 1 else _diagonal(hessian)

    def convex(self, y: Array) -> Array:
        """The function c, float64: the null deviance is its mean less its value at the mean."""
        y = np.asarray(y, dtype=np.float64)
        if self.power == 1:
            return np.asarray(xlogy(y, y) - y)
        if self.power == 2:
            return np.asarray(-np.log(y))
        if self.power == 0:
            return np.asarray(y**2 / 2)
        one, two = 1 - self.power, 2 - self.power
        return np.asarray(np.maximum(y, 0) ** two / (one * two))

    def half_deviance(self, y: Array, mean: Array) -> Array:
        """Half the deviance of each target from a mean, 0 where they are equal; float64."""
        y, mean = y.astype(np.float64), mean.astype(np.float64)
        if self.power == 1:
            return np.asarray(xlogy(y, y / mean) - y + mean)
        if self.power == 2:
            return np.asarray(y / mean - np.log(y / mean) - 1)
        if self.power == 0:
            return np.asarray((y - mean) ** 2 / 2)
        one, two = 1 - self.power, 2 - self.power
        mean = np.maximum(mean, 0)
        return np.asarray(self.convex(y) - y * mean**one / one + mean**two / two)

    def check_target(self, y: Array) -> None:
        """Raise InvalidDataError for a target outside the distribution's domain."""
        below = "<= 0" if self.power >= 2 else "< 0"
        if self.power >= 1 and bool((y <= 0 if self.power >= 2 else y < 0).any()):
            domain = "> 0" if self.power >= 2 else ">= 0"
            raise InvalidDataError(
                f"Some value(s) of y are out of the valid range of the loss {self.name!r}: it "
                f"needs targets y {domain}, and some are {below}. Mend them, or use "
                "loss='squared_error'."
            )


class _LogLink(_Deviance):
    """The raw prediction is the logarithm of the mean."""

    def link(self, mean: Any) -> Any:
        return np.log(mean)

    def inverse_link(self, raw: Array) -> Array:
        """The predicted mean, ``exp(raw)``."""
        return namespace(raw).exp(raw)


@dataclass(frozen=True)
class Poisson(_LogLink):
    """Half the Poisson deviance, up to a constant: ``exp(raw) - y * raw``, with y >= 0.

    The raw prediction is the logarithm of the mean.
    """

    name = "poisson"
    kernel = "poisson"
    power = 1.0

    def _derivatives(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        mean = namespace(raw).exp(raw)
        return mean - y * raw, mean - y, mean

    @staticmethod
    def at_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Value and derivative of one row."""
        mean = math.exp(raw)
        return mean - y * raw, mean - y


@dataclass(frozen=True)
class Gamma(_LogLink):
    """Half the gamma deviance, up to a constant: ``raw + y * exp(-raw)``, with y > 0.

    The raw prediction is the logarithm of the mean.
    """

    name = "gamma"
    kernel = "gamma"
    power = 2.0

    def _derivatives(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        ratio = y * namespace(raw).exp(-raw)
        return raw + ratio, 1 - ratio, ratio


@dataclass(frozen=True)
class Tweedie(_Deviance):
    """Half the Tweedie deviance, up to a constant (Jorgensen 1987).

    Parameters
    ----------
    power : float, default=1.5
        The variance of a target is the mean to this power: 0 normal, 1 Poisson, 1 to 2 compound
        Poisson-gamma (y >= 0, with exact zeros), 2 gamma, 3 inverse Gaussian (y > 0). No
        distribution exists between 0 and 1.
    identity : bool, default=False
        Whether the raw prediction is the mean itself, which must be positive unless `power` is
        0; else it is its logarithm.
    """

    name = "tweedie"
    power: float = 1.5
    identity: bool = False

    def __post_init__(self) -> None:
        if not np.isfinite(self.power) or 0 < self.power < 1:
            raise InvalidParameterError(
                f"power={self.power!r}: use a number <= 0 or >= 1; no distribution exists between."
            )
        # A NumPy float64 would widen a float32 fit.
        object.__setattr__(self, "power", float(self.power))

    def link(self, mean: Any) -> Any:
        return mean if self.identity else np.log(mean)

    def inverse_link(self, raw: Array) -> Array:
        """The predicted mean."""
        return raw if self.identity else namespace(raw).exp(raw)

    def _derivatives(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        if self.identity:
            return self._at_mean(y, raw)
        if self.power in (1, 2):
            return (Poisson() if self.power == 1 else Gamma())._derivatives(y, raw)
        one, two = 1 - self.power, 2 - self.power
        xp = namespace(raw)
        a, b = y * xp.exp(one * raw), xp.exp(two * raw)
        values = (xp.exp(raw) - y) ** 2 / 2 if self.power == 0 else b / two - a / one
        return values, b - a, two * b - one * a

    def _at_mean(self, y: Array, mean: Array) -> tuple[Array, Array, Array]:
        xp = namespace(mean)
        if self.power == 0:
            return (mean - y) ** 2 / 2, mean - y, xp.ones_like(mean)
        outside = mean <= 0
        mean = xp.where(outside, 1, mean)
        one, two = 1 - self.power, 2 - self.power
        if self.power == 1:
            values = mean - y * xp.log(mean)
        elif self.power == 2:
            values = xp.log(mean) + y / mean
        else:
            values = mean**two / two - y * mean**one / one
        scale = mean**-self.power
        # No distribution has such a mean; a line search then takes a shorter step.
        values = xp.where(outside, math.inf, values)
        return values, scale * (mean - y), scale * (one + self.power * y / mean)


def _diagonal(hessian: Array) -> Array:
    """Diagonal matrices of shape (n, K, K) from second derivatives of shape (n, K)."""
    n, width = hessian.shape
    pairs = zeros((n, width**2), hessian.dtype, hessian)
    pairs[:, :: width + 1] = hessian
    return namespace(hessian).reshape(pairs, (n, width, width))


# fmt: off
LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (
        LogLoss, Hinge, SquaredHinge, ModifiedHuber, Perceptron,
        SquaredError, Huber, EpsilonInsensitive, SquaredEpsilonInsensitive, Quantile, Poisson,
        Gamma, Tweedie,
    )
}
# fmt: on


def get_loss(loss: str | Loss, kind: Kind) -> Loss:
    """Return the loss of a name, or check an object.

    Parameters
    ----------
    loss : str or Loss
    kind : {"classification", "regression"}

    Raises
    ------
    InvalidParameterError
        For an unknown name, or a loss of the other kind.
    """
    if isinstance(loss, str) and loss in LOSSES:
        loss = LOSSES[loss]()
    if isinstance(loss, Loss) and loss.kind == kind:
        return loss
    names = sorted(name for name, entry in LOSSES.items() if entry.kind == kind)
    raise InvalidParameterError(
        f"loss={loss!r} is not a loss for {kind}. Use one of {names}, or an object of their "
        "classes in daskml_dist.losses."
    )
