"""Losses of the margin ``y * raw``, for classification: logistic, hinge and their kin."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.namespace import cast, is_host, namespace, one_hot, total
from daskml_dist.losses.base import Array, Loss, Multiclass
from daskml_dist.losses.columns import per_row

__all__ = ["Hinge", "LogLoss", "ModifiedHuber", "Perceptron", "SquaredHinge"]

#: Columns that are few for rows of some thousands.
_FEW = 40


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
        return per_row(values), slope


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
        if raw.ndim == 1:
            out[:, 0], out[:, 1] = self._two_classes(raw)
        elif raw.shape[1] <= _FEW and is_host(raw):
            _write_softmax(raw, out)
        else:
            super().write_proba(raw, out)

    def _two_classes(self, raw: Array) -> tuple[Array, Array]:
        # The softmax of (0, raw); like it exact for probabilities near 0, with the odds kept in
        # the range of the dtype.
        xp = namespace(raw)
        odds = xp.exp(xp.minimum(-raw, _log_largest(xp, raw.dtype)))
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
        proba = (xp.minimum(xp.maximum(raw, -1), 1) + 1) / 2
        if raw.ndim == 1:
            return xp.stack([1 - proba, proba], axis=1)
        sums = total(proba, axis=1)[:, None]
        nobody = sums == 0
        if is_host(raw) and not nobody.any():
            proba /= sums
            return proba
        return xp.where(nobody, 1, proba) / xp.where(nobody, raw.shape[1], sums)


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
def _log_largest(xp: Any, dtype: Any) -> float:
    """Logarithm of an eighth of the largest number of a dtype."""
    return math.log(xp.finfo(dtype).max / 8)


def _write_softmax(raw: Array, out: Array) -> None:
    """Softmax over few columns, class by class: loops over rows of a few entries are slow."""
    proba = np.ascontiguousarray(raw.T)
    row = proba.max(axis=0)
    proba -= row
    np.exp(proba, out=proba)
    np.add.reduce(proba, axis=0, out=row)
    proba /= row
    out.T[...] = proba


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
