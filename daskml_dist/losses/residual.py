"""Losses of the residual ``raw - y``, for regression: squared, robust and quantile losses.

References
----------
P. J. Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35(1),
1964. R. Koenker and G. Bassett, "Regression quantiles", Econometrica 46(1), 1978. H. Drucker et
al., "Support vector regression machines", NIPS 1996 (the epsilon-insensitive losses).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses.base import Array, Loss, diagonal_matrices, sum_over_columns

__all__ = [
    "AbsoluteError",
    "EpsilonInsensitive",
    "Huber",
    "Quantile",
    "SquaredEpsilonInsensitive",
    "SquaredError",
]


class _ResidualLoss(Loss):
    """Loss that is a function of the residual ``raw - y``."""

    kind = "regression"
    in_target_units = True
    center: ClassVar[Literal["mean", "median"] | None] = "median"

    @abstractmethod
    def _evaluate_at_residual(self, residual: Array) -> tuple[Array, Array]:
        """Return value and derivative at each residual; `residual` may be overwritten."""

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        values, gradient = self._evaluate_at_residual(raw - cast(y, raw.dtype))
        return sum_over_columns(values), gradient


@dataclass(frozen=True)
class SquaredError(_ResidualLoss):
    """Half the squared error: ``(raw - y) ** 2 / 2``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import SquaredError
    >>> y, raw = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    >>> SquaredError().value(y, raw).round(4).tolist()
    [0.125, 3.125]
    """

    name = "squared_error"
    center = "mean"
    kernel = "squared_error"
    tree_kernel = "squared_error"
    has_hessian = True
    unit_hessian = True

    def _evaluate_at_residual(self, residual: Array) -> tuple[Array, Array]:
        values = residual * residual
        values *= 0.5
        return values, residual

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
        residual = raw - y
        return 0.5 * residual * residual, residual

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Return each row's loss, gradient, and second derivative, which is 1."""
        hessian = namespace(raw).ones_like(raw)
        return *self.value_and_gradient(y, raw), hessian if raw.ndim == 1 else diagonal_matrices(
            hessian
        )


@dataclass(frozen=True)
class _EpsilonLoss(_ResidualLoss):
    """Loss of the residual with the parameter `epsilon`, in units of the target."""

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < np.inf:
            raise InvalidParameterError(
                f"epsilon={self.epsilon!r} of loss={self.name!r}: use a finite number >= 0."
            )

    @property
    def parameters(self) -> tuple[float, ...]:
        """Return `epsilon`."""
        return (float(self.epsilon),)

    def _residual_beyond_epsilon(self, residual: Array) -> Array:
        """Return ``max(0, |residual| - epsilon)``, a new array."""
        xp = namespace(residual)
        excess = xp.abs(residual)
        # In place, which keeps float32 even if epsilon has another type.
        excess -= self.epsilon
        return xp.maximum(excess, 0)


@dataclass(frozen=True)
class Huber(_EpsilonLoss):
    """Half the squared error up to `epsilon`, linear beyond (Huber 1964).

    Parameters
    ----------
    epsilon : float, default=0.1
        In the unit of the target.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import Huber
    >>> y, raw = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    >>> Huber().value(y, raw).round(4).tolist()
    [0.045, 0.245]
    """

    name = "huber"
    kernel = "huber"

    def _evaluate_at_residual(self, residual: Array) -> tuple[Array, Array]:
        epsilon = float(self.epsilon)  # a NumPy float64 would widen a float32 residual
        gradient = namespace(residual).clip(residual, -epsilon, epsilon)
        # (r - g / 2) * g is r ** 2 / 2 up to epsilon, and epsilon * |r| - epsilon ** 2 / 2 beyond.
        residual -= gradient / 2
        residual *= gradient
        return residual, gradient

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
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

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import EpsilonInsensitive
    >>> y, raw = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    >>> EpsilonInsensitive().value(y, raw).round(4).tolist()
    [0.4, 2.4]
    """

    name = "epsilon_insensitive"
    kernel = "epsilon_insensitive"

    def _evaluate_at_residual(self, residual: Array) -> tuple[Array, Array]:
        xp = namespace(residual)
        values = self._residual_beyond_epsilon(residual)
        # Inside the tube and at its border, the value and the subgradient are 0.
        return values, xp.sign(residual) * cast(values > 0, residual.dtype)

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
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

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import SquaredEpsilonInsensitive
    >>> y, raw = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    >>> SquaredEpsilonInsensitive().value(y, raw).round(4).tolist()
    [0.16, 5.76]
    """

    name = "squared_epsilon_insensitive"
    center = "mean"
    kernel = "squared_epsilon_insensitive"

    def _evaluate_at_residual(self, residual: Array) -> tuple[Array, Array]:
        excess = self._residual_beyond_epsilon(residual)
        values = excess * excess
        # The derivative is 2 * excess with the sign of the residual; it has no kink.
        excess *= 2
        return values, namespace(residual).copysign(excess, residual)

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
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

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import Quantile
    >>> y, raw = np.array([1.0, 3.0]), np.array([0.5, 0.5])
    >>> Quantile().value(y, raw).round(4).tolist()
    [0.25, 1.25]
    """

    name = "quantile"
    kernel = "quantile"
    tree_kernel = "quantile"
    quantile: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise InvalidParameterError(
                f"quantile={self.quantile!r}: use a number between 0 and 1, both excluded."
            )

    def _evaluate_at_residual(self, residual: Array) -> tuple[Array, Array]:
        # The slope is 1 - quantile for predictions above the target, -quantile for those below.
        slope = cast(residual > 0, residual.dtype)
        slope -= self.quantile
        return slope * residual, slope

    @property
    def parameters(self) -> tuple[float, ...]:
        """Return `quantile`."""
        return (float(self.quantile),)

    @property
    def leaf_quantile(self) -> float:  # type: ignore[override]
        """Return `quantile`: the best constant of a leaf is this quantile of its targets."""
        return float(self.quantile)

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
        residual = raw - y
        slope = (1.0 if residual > 0 else 0.0) - parameters[0]
        return slope * residual, slope


@dataclass(frozen=True)
class AbsoluteError(_ResidualLoss):
    """Absolute error ``|raw - y|`` of gradient boosting: a leaf predicts the median.

    Linear models use ``Quantile(0.5)``, which is half of it.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import AbsoluteError
    >>> AbsoluteError().value(np.array([1.0, 3.0]), np.array([0.5, 0.5])).tolist()
    [0.5, 2.5]
    """

    name = "absolute_error"
    tree_kernel = "absolute_error"
    leaf_quantile: ClassVar[float] = 0.5  # type: ignore[misc]

    def _evaluate_at_residual(self, residual: Array) -> tuple[Array, Array]:
        xp = namespace(residual)
        slope = cast(residual > 0, residual.dtype)
        slope *= 2
        slope -= 1
        return xp.abs(residual), slope
