"""Split criteria of the trees of forests: the sums that they need, node values and impurities.

References
----------
L. Breiman, J. H. Friedman, R. A. Olshen and C. J. Stone, "Classification and regression trees",
Wadsworth 1984.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Criterion(ABC):
    """Base class of the split criteria.

    Targets of a regression are summed in integers, so that sums do not depend on the order of the
    rows: each target is multiplied by a `scale` and rounded.

    Attributes
    ----------
    kind : int
        Number of the criterion in the compiled search of the best cut (`backends.forest_cuts` and
        forest_splits.cu).
    of_classes : bool
        Whether targets are class indices.
    needs_rows : bool
        Whether a split is found from the sorted rows of a node: histograms are not enough for
        medians.
    """

    kind: ClassVar[int]
    of_classes: ClassVar[bool] = False
    needs_rows: ClassVar[bool] = False

    def terms(self, y: Array) -> Array:
        """Return the term of each target whose mean the impurity needs (regression only)."""
        return np.zeros_like(y)

    def means(self, sums: Array, weight: Array, scale: float) -> Array:
        """Return the values of nodes, given sums of their targets by output (regression only)."""
        return np.asarray(sums / (scale * weight)[:, None])

    def term(self, sums: Array, weight: Array, scale: float) -> Array:
        """Return the mean over a node's rows of :meth:`terms`, given the scaled sums."""
        return np.asarray(sums / (scale * weight))

    @abstractmethod
    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return the impurity of nodes, as the mean over the outputs.

        Parameters
        ----------
        means : ndarray of shape (n_nodes, n_values)
            Class probabilities of all outputs, or the mean target of each output.
        term : ndarray of shape (n_nodes,)
            Mean of the terms, summed over the outputs; unused for classes.
        n_outputs : int
        """

    def unit(self, scale: float) -> float:
        """Return the factor that converts a gain of scaled targets to the targets' own units."""
        return 1.0


class GiniCriterion(Criterion):
    """Gini impurity: 1 minus the sum of the squared class probabilities."""

    kind = 0
    of_classes = True

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        # The probabilities of all outputs are adjacent columns: dividing by n_outputs averages.
        return np.asarray(1 - (means**2).sum(axis=1) / n_outputs)


class EntropyCriterion(Criterion):
    """Shannon entropy of the class probabilities, in bits."""

    kind = 1
    of_classes = True

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        # p * log2(p) is 0 for p = 0. No logarithm is positive: abs negates their sum, without -0.0.
        logs = np.log2(means, out=np.zeros_like(means), where=means > 0)
        return np.asarray(np.abs((means * logs).sum(axis=1)) / n_outputs)


class SquaredErrorCriterion(Criterion):
    """Variance of the targets."""

    kind = 2

    def terms(self, y: Array) -> Array:
        """Return the squares of the targets."""
        return y**2

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        # Mean square minus squared mean; rounding may make it negative.
        return np.asarray(np.maximum(term - (means**2).sum(axis=1), 0.0) / n_outputs)

    def unit(self, scale: float) -> float:
        """Return the squared unit of the targets."""
        return 1.0 / scale**2


class PoissonCriterion(Criterion):
    """Half the Poisson deviance of the targets from their mean."""

    kind = 3

    def terms(self, y: Array) -> Array:
        """Return y * log(y); 0 for y = 0."""
        return np.asarray(y * np.log(y, out=np.zeros_like(y), where=y > 0))

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return the mean of ``y * log(y / mean)``, from the means of ``y * log(y)`` and y."""
        # Rounding may make it negative.
        logs = np.log(means, out=np.zeros_like(means), where=means > 0)
        return np.asarray(np.maximum(term - (means * logs).sum(axis=1), 0.0) / n_outputs)

    def unit(self, scale: float) -> float:
        """Return the unit of the targets."""
        return 1.0 / scale


class AbsoluteErrorCriterion(Criterion):
    """Mean absolute error of the median, which is a node's value."""

    kind = 4
    needs_rows = True

    def terms(self, y: Array) -> Array:
        """Return the targets: absolute errors have the targets' scale."""
        return y

    def means(self, sums: Array, weight: Array, scale: float) -> Array:
        """Return the medians; the integer array of sums holds their float64 bits."""
        return np.ascontiguousarray(sums).view(np.float64)

    def term(self, sums: Array, weight: Array, scale: float) -> Array:
        """Return mean absolute errors; the integer array holds the float64 bits of their sums."""
        return np.asarray(np.ascontiguousarray(sums).view(np.float64) / (scale * weight))

    def impurity(self, means: Array, term: Array, n_outputs: int) -> Array:
        """Return the mean absolute errors."""
        return np.asarray(term / n_outputs)

    def unit(self, scale: float) -> float:
        """Return the unit of the targets."""
        return 1.0 / scale
