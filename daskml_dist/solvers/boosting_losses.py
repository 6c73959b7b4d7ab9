"""Losses of gradient boosting: first prediction, gradients and hessians, values of leaves.

They have the numbers of scikit-learn's ``HistGradientBoosting``. A loss is computed for some rows
at a time; it must give the same bits for a row whatever its neighbours are. Gradients use only
operations that IEEE 754 defines exactly, so that every machine, and a GPU, gives the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AbsoluteErrorBoostLoss",
    "BinomialBoostLoss",
    "BoostLoss",
    "GammaBoostLoss",
    "MultinomialBoostLoss",
    "PinballBoostLoss",
    "PoissonBoostLoss",
    "SquaredErrorBoostLoss",
]

Array = NDArray[Any]
_EPS = float(np.finfo(np.float64).eps)


def _exact_exponential(x: Array) -> Array:
    """Return exponentials in a new array, with the same bits on every machine."""
    from daskml_dist.backends.margins import exponential

    return exponential(x)


class BoostLoss(ABC):
    """Base class of the losses of boosting.

    Attributes
    ----------
    constant_hessian : bool
        Whether the hessian of every row without a weight is 1.
    kernel : str
        Name of its gradients in tree_gradients.cu.
    quantile : float or None
        Of the residuals of a leaf's rows, which is what the leaf then answers; None: a Newton step.
    """

    constant_hessian: ClassVar[bool] = False
    kernel: ClassVar[str]
    quantile: float | None = None

    @property
    def n_outputs(self) -> int:
        """Return the number of columns of a raw prediction."""
        return 1

    def of_target(self, y: Array) -> Array:
        """Return numbers, of shape (n, n_outputs), whose means give the first raw prediction."""
        return y[:, None]

    @abstractmethod
    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the raw prediction of no tree, from the means of `of_target`."""

    @abstractmethod
    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        """Return gradients and hessians of rows, of shape (n_outputs, n).

        Parameters
        ----------
        y : ndarray of float64 of shape (n,)
        raw : ndarray of float64 of shape (n_outputs, n)
        """

    @abstractmethod
    def losses(self, y: Array, raw: Array) -> Array:
        """Return the loss of each row."""


class SquaredErrorBoostLoss(BoostLoss):
    """Half the squared error."""

    kernel = "squared_error"
    constant_hessian = True

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        return raw - y, None

    def losses(self, y: Array, raw: Array) -> Array:
        return np.asarray(0.5 * (raw[0] - y) ** 2)


class AbsoluteErrorBoostLoss(BoostLoss):
    """Absolute error: a leaf predicts the median."""

    kernel = "absolute_error"
    constant_hessian = True
    quantile = 0.5

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        return np.where(raw > y, 1.0, -1.0), None

    def losses(self, y: Array, raw: Array) -> Array:
        return np.asarray(np.abs(raw[0] - y))


@dataclass
class PinballBoostLoss(BoostLoss):
    """Pinball loss: a leaf predicts a quantile.

    Parameters
    ----------
    quantile : float
    """

    quantile: float | None = 0.5
    constant_hessian: ClassVar[bool] = True
    kernel: ClassVar[str] = "quantile"

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        assert self.quantile is not None
        return np.where(y >= raw, -self.quantile, 1 - self.quantile), None

    def losses(self, y: Array, raw: Array) -> Array:
        assert self.quantile is not None
        over = y - raw[0]
        return np.asarray(np.where(over >= 0, self.quantile * over, (self.quantile - 1) * over))


class PoissonBoostLoss(BoostLoss):
    """Half the Poisson deviance, with a log link."""

    kernel = "poisson"

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(np.maximum(mean, _EPS)))

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        mean = _exact_exponential(raw)
        return mean - y, mean

    def losses(self, y: Array, raw: Array) -> Array:
        return np.asarray(np.exp(raw[0]) - y * raw[0])


class GammaBoostLoss(BoostLoss):
    """Half the gamma deviance, with a log link."""

    kernel = "gamma"

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(np.maximum(mean, _EPS)))

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        ratio = y * _exact_exponential(-raw)
        return 1 - ratio, ratio

    def losses(self, y: Array, raw: Array) -> Array:
        return np.asarray(raw[0] + y * np.exp(-raw[0]))


class BinomialBoostLoss(BoostLoss):
    """Log loss of two classes, 0 and 1."""

    kernel = "binomial"

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        share = np.clip(mean, _EPS, 1 - _EPS)
        return np.asarray(np.log(share / (1 - share)))

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        # Of the smaller of both, so that nothing overflows.
        small = _exact_exponential(-np.abs(raw))
        larger = 1 / (1 + small)
        small *= larger
        share = np.where(raw >= 0, larger, small)
        share -= y
        larger *= small
        return share, larger

    def losses(self, y: Array, raw: Array) -> Array:
        raw = raw[0]
        return np.asarray(np.maximum(raw, 0) + np.log1p(np.exp(-np.abs(raw))) - y * raw)


@dataclass
class MultinomialBoostLoss(BoostLoss):
    """Log loss of several classes, numbered from 0.

    Parameters
    ----------
    n_classes : int
    """

    n_classes: int
    kernel: ClassVar[str] = "multinomial"

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    def of_target(self, y: Array) -> Array:
        return np.asarray(y[:, None] == np.arange(self.n_classes), np.float64)

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        logs = np.log(np.clip(mean, _EPS, 1 - _EPS))
        return np.asarray(logs - logs.mean())

    def gradients(self, y: Array, raw: Array) -> tuple[Array, Array | None]:
        share = _exact_exponential(raw - raw.max(axis=0))
        total = share[0].copy()
        for other in share[1:]:  # in this order, however few rows there are
            total += other
        share /= total
        return share - (np.arange(self.n_classes)[:, None] == y), share * (1 - share)

    def losses(self, y: Array, raw: Array) -> Array:
        most = raw.max(axis=0)
        own = np.take_along_axis(raw, y.astype(np.intp)[None], axis=0)[0]
        return np.asarray(np.log(np.exp(raw - most).sum(axis=0)) + most - own)
