"""Criteria that trees of a forest are split by: which sums they need, and what nodes answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AbsoluteErrorCriterion",
    "Criterion",
    "EntropyCriterion",
    "GiniCriterion",
    "PoissonCriterion",
    "SquaredErrorCriterion",
]

Array = NDArray[Any]


class Criterion(ABC):
    """Base class of the criteria.

    Attributes
    ----------
    kind : int
        Its number in `backends.forest_criteria`, where what it makes the most of is compiled.
    of_classes : bool
        Whether targets are numbers of classes.
    needs_rows : bool
        Whether a node's rows must be together: sums do not tell enough.
    """

    kind: ClassVar[int]
    of_classes: ClassVar[bool] = False
    needs_rows: ClassVar[bool] = False

    def terms(self, y: Array) -> Array:
        """Return the term of each target that is summed for the impurity (regression only)."""
        return np.zeros_like(y)

    def means(self, sums: Array, weight: Array, scale: float) -> Array:
        """Return the values of nodes, given the sums of their targets by output (regression
        only).
        """
        return np.asarray(sums / (scale * weight)[:, None])

    def term(self, sums: Array, weight: Array, scale: float) -> Array:
        """Return the mean of the terms of :meth:`terms`, given their sums."""
        return np.asarray(sums / (scale * weight))

    @abstractmethod
    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return the impurity of nodes: the mean of the impurities of their outputs."""

    def unit(self, scale: float) -> float:
        """Return the unit of the gain, where targets are in units of ``1 / scale``."""
        return 1.0


class GiniCriterion(Criterion):
    """Gini impurity."""

    kind = 0
    of_classes = True

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return one minus the sum of squared shares."""
        return np.asarray(1 - (means**2).sum(axis=1) / n_outputs)


class EntropyCriterion(Criterion):
    """Shannon's entropy, in bits."""

    kind = 1
    of_classes = True

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return minus the sum of shares times their logarithms."""
        logs = np.log2(means, out=np.zeros_like(means), where=means > 0)
        return np.asarray(np.abs((means * logs).sum(axis=1)) / n_outputs)


class SquaredErrorCriterion(Criterion):
    """Variance."""

    kind = 2

    def terms(self, y: Array) -> Array:
        """Return the squares of the targets."""
        return y**2

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return the mean square minus the squared mean."""
        return np.asarray(np.maximum(term - (means**2).sum(axis=1), 0.0) / n_outputs)

    def unit(self, scale: float) -> float:
        """Return the squared unit of the targets."""
        return 1.0 / scale**2


class PoissonCriterion(Criterion):
    """Half of the Poisson deviance."""

    kind = 3

    def terms(self, y: Array) -> Array:
        """Return targets times their logarithms."""
        return np.asarray(y * np.log(y, out=np.zeros_like(y), where=y > 0))

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return the mean of ``y log(y / mean)``."""
        logs = np.log(means, out=np.zeros_like(means), where=means > 0)
        return np.asarray(np.maximum(term - (means * logs).sum(axis=1), 0.0) / n_outputs)

    def unit(self, scale: float) -> float:
        """Return the unit of the targets."""
        return 1.0 / scale


class AbsoluteErrorCriterion(Criterion):
    """Mean absolute distance from the median, which nodes answer."""

    kind = 4
    needs_rows = True

    def terms(self, y: Array) -> Array:
        """Return the targets themselves: errors are summed in their scale."""
        return y

    def means(self, sums: Array, weight: Array, scale: float) -> Array:
        """Return the medians, whose float64 bits are stored in the array of sums."""
        return np.ascontiguousarray(sums).view(np.float64)

    def term(self, sums: Array, weight: Array, scale: float) -> Array:
        """Return mean errors, whose sums are stored as float64 bits in the array of sums."""
        return np.asarray(np.ascontiguousarray(sums).view(np.float64) / (scale * weight))

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return the mean errors."""
        return np.asarray(term / n_outputs)

    def unit(self, scale: float) -> float:
        """Return the unit of the targets."""
        return 1.0 / scale
