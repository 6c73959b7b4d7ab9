"""Deviances of the Tweedie family for regression: Poisson, gamma, and other powers of the mean.

References
----------
B. Jorgensen, "Exponential dispersion models", Journal of the Royal Statistical Society B 49(2),
1987. P. McCullagh and J. A. Nelder, "Generalized linear models", 2nd edition, 1989.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.losses.base import (
    Array,
    Exponential,
    Loss,
    diagonal_matrices,
    sum_over_columns,
)
from daskml_dist.losses.tweedie_deviances import compute_tweedie_deviances

__all__ = ["Gamma", "Poisson", "Tweedie"]


class _TweedieDeviance(Loss):
    """Half the deviance of a distribution of the Tweedie family, up to a constant in `raw`.

    For a mean m and a target y the deviance is ``2 (c(y) - c(m) - c'(m) (y - m))``, the Bregman
    divergence of a convex function c that depends on the distribution.
    """

    kind = "regression"
    has_hessian = True
    power: float

    @abstractmethod
    def link(self, mean: Any) -> Any:
        """Return the raw prediction of a mean; the inverse of :meth:`inverse_link`."""

    def constant(self, mean: float) -> float:
        """Return the link of the mean; 0 for a mean of 0, which has no logarithm."""
        with np.errstate(divide="ignore", invalid="ignore"):
            raw = float(self.link(mean))
        return raw if np.isfinite(raw) else 0.0

    @abstractmethod
    def _evaluate_derivatives(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Return values, first and second derivatives, elementwise."""

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        values, gradient, _ = self._evaluate_derivatives(cast(y, raw.dtype), raw)
        return sum_over_columns(values), gradient

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Return each row's loss, gradient, and second derivative with respect to `raw`."""
        values, gradient, hessian = self._evaluate_derivatives(cast(y, raw.dtype), raw)
        return (
            sum_over_columns(values),
            gradient,
            hessian if raw.ndim == 1 else diagonal_matrices(hessian),
        )

    def half_deviance(self, y: Array, mean: Array) -> Array:
        """Return half the deviance of each target from its mean, in float64; 0 if equal."""
        y, mean = y.astype(np.float64), mean.astype(np.float64)
        return np.asarray(compute_tweedie_deviances(y, mean, y - mean, self.power) / 2)

    def check_target(self, y: Array) -> None:
        """Raise InvalidDataError for a target outside the distribution's domain."""
        invalid = "<= 0" if self.power >= 2 else "< 0"
        if self.power >= 1 and bool((y <= 0 if self.power >= 2 else y < 0).any()):
            domain = "> 0" if self.power >= 2 else ">= 0"
            raise InvalidDataError(
                f"Some value(s) of y are out of the valid range of the loss {self.name!r}: it "
                f"needs targets y {domain}, and some are {invalid}. Correct them, or use "
                "loss='squared_error'."
            )


class _LogLinkDeviance(_TweedieDeviance):
    """Deviance with a log link: the raw prediction is the logarithm of the mean."""

    def link(self, mean: Any) -> Any:
        return np.log(mean)

    def inverse_link(self, raw: Array) -> Array:
        """Return the predicted mean, ``exp(raw)``."""
        return namespace(raw).exp(raw)


@dataclass(frozen=True)
class Poisson(_LogLinkDeviance):
    """Half the Poisson deviance, up to a constant: ``exp(raw) - y * raw``, with y >= 0.

    The raw prediction is the logarithm of the mean.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import Poisson
    >>> y, raw = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    >>> Poisson().value(y, raw).round(4).tolist()
    [1.1487, 0.1487]
    """

    name = "poisson"
    kernel = "poisson"
    tree_kernel = "poisson"
    power = 1.0

    def derive(self, y: Array, raw: Array, exponential: Exponential) -> tuple[Array, Array]:
        """Return first and second derivatives; the second one is the mean."""
        mean = exponential(raw)
        return mean - y, mean

    def _evaluate_derivatives(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        # One exponential gives the value and both derivatives with respect to raw.
        gradient, mean = self.derive(y, raw, namespace(raw).exp)
        return mean - y * raw, gradient, mean

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
        mean = math.exp(raw)
        return mean - y * raw, mean - y


@dataclass(frozen=True)
class Gamma(_LogLinkDeviance):
    """Half the gamma deviance, up to a constant: ``raw + y * exp(-raw)``, with y > 0.

    The raw prediction is the logarithm of the mean.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import Gamma
    >>> y, raw = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    >>> Gamma().value(y, raw).round(4).tolist()
    [1.1065, 2.3196]
    """

    name = "gamma"
    kernel = "gamma"
    tree_kernel = "gamma"
    power = 2.0

    def derive(self, y: Array, raw: Array, exponential: Exponential) -> tuple[Array, Array]:
        """Return first and second derivatives; the second one is the target divided by the mean."""
        ratio = y * exponential(-raw)
        return 1 - ratio, ratio

    def _evaluate_derivatives(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        gradient, ratio = self.derive(y, raw, namespace(raw).exp)
        return raw + ratio, gradient, ratio


@dataclass(frozen=True)
class Tweedie(_TweedieDeviance):
    """Half the Tweedie deviance, up to a constant (Jorgensen 1987).

    Parameters
    ----------
    power : float, default=1.5
        The variance of a target is the mean to this power: 0 normal, 1 Poisson, 1 to 2 compound
        Poisson-gamma (y >= 0, with exact zeros), 2 gamma, 3 inverse Gaussian (y > 0). No
        distribution exists between 0 and 1.
    identity : bool, default=False
        Whether the raw prediction is the mean itself, which must be positive unless `power` is 0;
        otherwise it is the logarithm of the mean.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import Tweedie
    >>> y, raw = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    >>> Tweedie().value(y, raw).round(4).tolist()
    [4.1257, 7.2409]
    """

    name = "tweedie"
    power: float = 1.5
    identity: bool = False

    def __post_init__(self) -> None:
        if not np.isfinite(self.power) or 0 < self.power < 1:
            raise InvalidParameterError(
                f"power={self.power!r}: use a number <= 0 or >= 1; no distribution exists between."
            )
        # A NumPy float64 would widen a float32 fit; a Python float does not.
        object.__setattr__(self, "power", float(self.power))

    def link(self, mean: Any) -> Any:
        return mean if self.identity else np.log(mean)

    def inverse_link(self, raw: Array) -> Array:
        """Return the predicted mean."""
        return raw if self.identity else namespace(raw).exp(raw)

    def _evaluate_derivatives(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Return values, first and second derivatives, elementwise."""
        if self.identity:
            return self._evaluate_at_mean(y, raw)
        if self.power in (1, 2):
            return (Poisson() if self.power == 1 else Gamma())._evaluate_derivatives(y, raw)
        # Half the deviance is m**(2-p) / (2-p) - y * m**(1-p) / (1-p), up to terms that depend only
        # on y, with m = exp(raw) (Jorgensen 1987).
        one_minus_p, two_minus_p = 1 - self.power, 2 - self.power
        xp = namespace(raw)
        a, b = y * xp.exp(one_minus_p * raw), xp.exp(two_minus_p * raw)
        # For p = 0, y**2 / 2 is added to get half the squared error.
        values = (
            (xp.exp(raw) - y) ** 2 / 2 if self.power == 0 else b / two_minus_p - a / one_minus_p
        )
        return values, b - a, two_minus_p * b - one_minus_p * a

    def _evaluate_at_mean(self, y: Array, mean: Array) -> tuple[Array, Array, Array]:
        """Return values, first and second derivatives with respect to the mean (identity link)."""
        xp = namespace(mean)
        if self.power == 0:
            return (mean - y) ** 2 / 2, mean - y, xp.ones_like(mean)
        # A mean <= 0 is outside the distribution's domain: an infinite loss makes the line search
        # shorten its step. The mean is replaced by 1, so that no logarithm or power below fails.
        outside = mean <= 0
        mean = xp.where(outside, 1, mean)
        one_minus_p, two_minus_p = 1 - self.power, 2 - self.power
        if self.power == 1:
            values = mean - y * xp.log(mean)
        elif self.power == 2:
            values = xp.log(mean) + y / mean
        else:
            values = mean**two_minus_p / two_minus_p - y * mean**one_minus_p / one_minus_p
        # The derivative of half the deviance is (mean - y) / V(mean), with the variance function
        # V(mean) = mean**power (McCullagh and Nelder).
        scale = mean**-self.power
        values = xp.where(outside, math.inf, values)
        return values, scale * (mean - y), scale * (one_minus_p + self.power * y / mean)
