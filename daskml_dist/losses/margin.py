"""Losses of the margin ``y * raw``, for classification: logistic, hinge and related losses.

References
----------
D. Goldberg, "What every computer scientist should know about floating-point arithmetic", ACM
Computing Surveys 23(1), 1991. T. Zhang, "Solving large scale linear prediction problems using
stochastic gradient descent algorithms", ICML 2004 (the modified Huber loss). B. Zadrozny and C.
Elkan, "Transforming classifier scores into accurate multiclass probability estimates", KDD 2002.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.namespace import cast, is_host, namespace, one_hot, total
from daskml_dist.losses.base import Array, Exponential, Loss, Multiclass, sum_over_columns

__all__ = ["Hinge", "LogLoss", "ModifiedHuber", "Perceptron", "SquaredHinge"]

#: Largest number of columns for which a softmax is written class by class: a loop over rows with
#: few entries each is slower.
_MAX_COLUMNS_BY_CLASS = 40


class _MarginLoss(Loss):
    """Loss that is a function of the margin ``y * raw``, with y in {-1, +1}."""

    kind = "classification"
    multiclass: ClassVar[Multiclass | None] = "ovr"

    @abstractmethod
    def _evaluate_at_margin(self, margin: Array) -> tuple[Array, Array]:
        """Return value and derivative at each margin; `margin` may be overwritten."""

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        y = cast(y, raw.dtype)
        values, slope = self._evaluate_at_margin(y * raw)
        slope *= y
        return sum_over_columns(values), slope


@dataclass(frozen=True)
class LogLoss(_MarginLoss):
    """Logistic loss: ``log(1 + exp(-y * raw))``; softmax cross-entropy for K classes.

    Both are computed from exponentials of non-positive numbers, which cannot overflow.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import LogLoss
    >>> y, raw = np.array([1.0, -1.0]), np.array([0.5, 0.5])
    >>> LogLoss().value(y, raw).round(4).tolist()
    [0.4741, 0.9741]
    """

    name = "log_loss"
    multiclass = "softmax"
    proba = True
    kernel = "log_loss"
    tree_kernel = "log_loss"
    has_hessian = True

    def _evaluate_at_margin(self, margin: Array) -> tuple[Array, Array]:
        """Return value and derivative, from exponentials of numbers <= 0, which cannot overflow."""
        xp = namespace(margin)
        e = xp.exp(-xp.abs(margin))
        values = _log_one_plus(e)
        values -= xp.minimum(margin, 0)
        slope = xp.where(margin > 0, e, 1)
        slope /= -1 - e
        return values, slope

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
        margin = y * raw
        e = math.exp(-abs(margin))
        slope = (e if margin > 0 else 1.0) / (1.0 + e)
        return math.log1p(e) - min(margin, 0.0), -y * slope

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        if raw.ndim == 1:
            return super().value_and_gradient(y, raw)
        if is_host(raw):
            return _softmax_value_and_gradient(y, raw)
        xp = namespace(raw)
        # After subtracting the maximum no exponential overflows.
        shifted = raw - xp.max(raw, axis=1)[:, None]
        gradient = xp.exp(shifted)
        sums = total(gradient, axis=1)
        gradient /= sums[:, None]
        gradient -= one_hot(y, raw.shape[1], raw.dtype)
        return xp.log(sums) - xp.take_along_axis(shifted, y[:, None], axis=1)[:, 0], gradient

    def value_gradient_hessian(self, y: Array, raw: Array) -> tuple[Array, Array, Array]:
        """Return each row's loss, gradient, and second derivative with respect to `raw`.

        Second derivatives are products of probabilities, never differences such as ``p - p**2``,
        so that no digits are lost where p is near 0 or 1.
        """
        xp = namespace(raw)
        if raw.ndim == 1:
            y = cast(y, raw.dtype)
            margin = y * raw
            e = xp.exp(-xp.abs(margin))
            values = _log_one_plus(e)
            values -= xp.minimum(margin, 0)
            larger = 1 / (1 + e)
            smaller = e * larger
            gradient = xp.where(margin > 0, smaller, larger)
            gradient *= -y
            return values, gradient, smaller * larger
        values, gradient = self.value_and_gradient(y, raw)
        proba = self.predict_proba(raw)
        n, width = raw.shape
        # The diagonal p * (1 - p) is the sum of p * q over the other classes: each row sums to 0.
        pairs = xp.reshape(-proba[:, :, None] * proba[:, None, :], (n, width**2))
        pairs[:, :: width + 1] = 0
        pairs[:, :: width + 1] = -total(xp.reshape(pairs, (n, width, width)), axis=2)
        return values, gradient, xp.reshape(pairs, (n, width, width))

    def derive(self, y: Array, raw: Array, exponential: Exponential) -> tuple[Array, Array]:
        """Return first and second derivatives, ``p - 1[y]`` and ``p * (1 - p)``, class by class."""
        xp = namespace(raw)
        if raw.ndim == 1:
            # exp(-|raw|) does not overflow. It determines the larger and the smaller probability of
            # the two classes.
            smaller = exponential(-xp.abs(raw))
            larger = 1 / (1 + smaller)
            smaller *= larger
            gradient = xp.where(raw >= 0, larger, smaller)
            gradient -= y
            larger *= smaller
            return gradient, larger
        proba = exponential(raw - raw.max(axis=0))
        # A loop, since the order of additions in numpy.sum depends on the number of rows.
        sums = proba[0].copy()
        for other in proba[1:]:
            sums += other
        proba /= sums
        is_class = xp.arange(len(raw))[:, None] == y
        return proba - is_class, proba * (1 - proba)

    def start(self, mean: Array) -> Array:
        """Return the log odds for two classes, or the logarithms of the shares for more classes."""
        eps = float(np.finfo(np.float64).eps)
        share = np.clip(mean, eps, 1 - eps)
        if len(share) == 1:
            return np.asarray(np.log(share / (1 - share)))
        logs = np.log(share)
        return np.asarray(logs - logs.mean())

    def predict_proba(self, raw: Array) -> Array:
        """Return the logistic function of `raw` (two classes), or softmax over its columns."""
        xp = namespace(raw)
        if raw.ndim == 1:
            return xp.stack(self._binary_probabilities(raw), axis=1)
        proba = xp.exp(raw - xp.max(raw, axis=1, keepdims=True))
        proba /= total(proba, axis=1)[:, None]
        return proba

    def write_proba(self, raw: Array, out: Array) -> None:
        """Write :meth:`predict_proba` to `out`; for two classes without another copy."""
        if raw.ndim == 1:
            out[:, 0], out[:, 1] = self._binary_probabilities(raw)
        elif raw.shape[1] <= _MAX_COLUMNS_BY_CLASS and is_host(raw):
            _write_softmax(raw, out)
        else:
            super().write_proba(raw, out)

    def _binary_probabilities(self, raw: Array) -> tuple[Array, Array]:
        """Return the probabilities of the two classes: the softmax of (0, raw)."""
        # Both are computed from the odds, so that small probabilities keep their digits; the odds
        # are bounded to avoid overflow.
        xp = namespace(raw)
        odds = xp.exp(xp.minimum(-raw, _log_of_largest_odds(xp, raw.dtype)))
        positive = 1 / (1 + odds)
        odds *= positive
        return odds, positive


@dataclass(frozen=True)
class Hinge(_MarginLoss):
    """Loss of a linear support vector machine: ``max(0, 1 - y * raw)``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import Hinge
    >>> y, raw = np.array([1.0, -1.0]), np.array([0.5, 0.5])
    >>> Hinge().value(y, raw).round(4).tolist()
    [0.5, 1.5]
    """

    name = "hinge"
    kernel = "hinge"
    _threshold: ClassVar[float] = 1.0

    def _evaluate_at_margin(self, margin: Array) -> tuple[Array, Array]:
        # At the kink the slope is that of the side with a loss, as in scikit-learn: a perceptron at
        # w = 0 has margin 0 everywhere and must be able to move.
        xp = namespace(margin)
        slope = -cast(margin <= self._threshold, margin.dtype)
        return xp.maximum(self._threshold - margin, 0), slope

    @property
    def parameters(self) -> tuple[float, ...]:
        """Return the smallest margin at which the loss is zero."""
        return (self._threshold,)

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
        gap = parameters[0] - y * raw
        return max(gap, 0.0), -y if gap >= 0 else 0.0


@dataclass(frozen=True)
class SquaredHinge(_MarginLoss):
    """Squared hinge loss: ``max(0, 1 - y * raw) ** 2``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import SquaredHinge
    >>> y, raw = np.array([1.0, -1.0]), np.array([0.5, 0.5])
    >>> SquaredHinge().value(y, raw).round(4).tolist()
    [0.25, 2.25]
    """

    name = "squared_hinge"
    kernel = "squared_hinge"

    def _evaluate_at_margin(self, margin: Array) -> tuple[Array, Array]:
        gap = namespace(margin).maximum(1 - margin, 0)
        values = gap * gap
        # The derivative, written over the array of the gap.
        gap *= -2
        return values, gap

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
        gap = max(1.0 - y * raw, 0.0)
        return gap * gap, -2.0 * gap * y


@dataclass(frozen=True)
class ModifiedHuber(_MarginLoss):
    """Squared hinge loss, linear (``-4 * y * raw``) for margins below -1 (Zhang 2004).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import ModifiedHuber
    >>> y, raw = np.array([1.0, -1.0]), np.array([0.5, 0.5])
    >>> ModifiedHuber().value(y, raw).round(4).tolist()
    [0.25, 2.25]
    """

    name = "modified_huber"
    kernel = "modified_huber"
    proba = True

    def _evaluate_at_margin(self, margin: Array) -> tuple[Array, Array]:
        """Return value and derivative at each margin, with one temporary array."""
        # With s = min(gap, 2) the value is (2 * gap - s) * s: gap ** 2 up to a gap of 2, and beyond
        # it 4 * gap - 4, which is -4 * margin. The derivative is -2 * s.
        xp = namespace(margin)
        gap = xp.maximum(1 - margin, 0)
        slope = xp.minimum(gap, 2)
        gap *= 2
        gap -= slope
        gap *= slope
        slope *= -2
        return gap, slope

    @staticmethod
    def evaluate_row(y: float, raw: float, parameters: tuple[float, ...]) -> tuple[float, float]:
        """Return value and derivative of one row."""
        gap = max(1.0 - y * raw, 0.0)
        slope = min(gap, 2.0)
        return (2.0 * gap - slope) * slope, -2.0 * slope * y

    def predict_proba(self, raw: Array) -> Array:
        """Return ``(clip(raw, -1, 1) + 1) / 2``, normalised over the columns.

        A row in which all columns are 0 gets equal probabilities, as in scikit-learn (Zadrozny and
        Elkan 2002).
        """
        xp = namespace(raw)
        proba = (xp.minimum(xp.maximum(raw, -1), 1) + 1) / 2
        if raw.ndim == 1:
            return xp.stack([1 - proba, proba], axis=1)
        sums = total(proba, axis=1)[:, None]
        all_zero = sums == 0
        if is_host(raw) and not all_zero.any():
            proba /= sums
            return proba
        return xp.where(all_zero, 1, proba) / xp.where(all_zero, raw.shape[1], sums)


@dataclass(frozen=True)
class Perceptron(Hinge):
    """Loss of the perceptron: ``max(0, -y * raw)``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.losses import Perceptron
    >>> y, raw = np.array([1.0, -1.0]), np.array([0.5, 0.5])
    >>> Perceptron().value(y, raw).round(4).tolist()
    [0.0, 0.5]
    """

    name = "perceptron"
    kernel = "perceptron"
    _threshold = 0.0


@cache
def _log_of_largest_odds(xp: Any, dtype: Any) -> float:
    """Return the logarithm of an eighth of the largest number of a dtype, below overflow."""
    return math.log(xp.finfo(dtype).max / 8)


def _softmax_value_and_gradient(y: Array, raw: Array) -> tuple[Array, Array]:
    """Return each row's cross-entropy, and its gradient, in NumPy.

    For each class, one vectorised loop over all rows: 3 to 6 times as fast as loops over the few
    classes of each row.
    """
    columns = np.array(raw.T, order="C")
    # After subtracting the maximum no exponential overflows.
    columns -= columns.max(axis=0)
    of_label = y, np.arange(len(y))
    shifted = columns[of_label]
    np.exp(columns, out=columns)
    sums = columns.sum(axis=0)
    columns /= sums
    columns[of_label] -= 1
    return np.log(sums) - shifted, columns.T


def _write_softmax(raw: Array, out: Array) -> None:
    """Write the softmax over few columns: for each class, one vectorised loop over all rows."""
    proba = np.ascontiguousarray(raw.T)
    row = proba.max(axis=0)
    proba -= row
    np.exp(proba, out=proba)
    np.add.reduce(proba, axis=0, out=row)
    proba /= row
    out.T[...] = proba


def _log_one_plus(e: Array) -> Array:
    """Return ``log(1 + e)`` for e from 0 to 1, without losing digits for small e.

    For NumPy's float32, a logarithm corrected for the rounding of ``1 + e`` is twice as fast as
    `log1p` (Goldberg 1991, theorem 4).
    """
    if not is_host(e) or e.dtype != np.float32:
        return namespace(e).log1p(e)
    # log(u) * e / (u - 1): the rounding errors of u in numerator and denominator cancel.
    u = 1 + e
    values = np.log(u)
    u -= 1
    values *= e
    values /= np.maximum(u, np.finfo(np.float32).tiny, out=u)
    return np.where(u > 1e-10, values, e)
