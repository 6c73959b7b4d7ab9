"""Means and variances of parts of the rows, merged without losing digits to a large mean.

Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The American Statistician
37, 1983.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Spread"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spread:
    """Weight, mean and spread of numbers, of one column or several; parts are added.

    Parameters
    ----------
    weight : float
        Sum of the weights.
    origin : ndarray of float64 of shape (n_columns,)
        Some value near all others, so that the mean keeps its digits.
    offset : ndarray of float64 of shape (n_columns,)
        Weighted mean, from `origin` on.
    squares : ndarray of float64 of shape (n_columns,)
        Weighted sum of squared distances from the mean; not finite where they overflow.
    """

    weight: float
    origin: Numbers
    offset: Numbers
    squares: Numbers

    @classmethod
    def of(cls, values: NDArray[Any], weights: NDArray[Any] | None = None) -> Self:
        """Of some numbers.

        Parameters
        ----------
        values : ndarray of shape (n,) or (n, n_columns)
        weights : ndarray of shape (n,), or None
            At least 0; None: all are 1.
        """
        columns = (values if values.ndim == 2 else values[:, None]).astype(np.float64, copy=False)
        n_rows, width = columns.shape
        given = None if weights is None else weights.astype(np.float64, copy=False)
        weight = float(n_rows if given is None else given.sum())
        if not weight > 0:
            return cls(weight, np.zeros(width), np.zeros(width), np.zeros(width))
        # A row without weight may hold anything.
        origin = columns[0 if given is None else int(given.argmax())].copy()
        with np.errstate(over="ignore", invalid="ignore"):  # whoever asks for the spread sees it
            distances = columns - origin
            offset = _summed(distances, given) / weight
            distances -= offset
            distances *= distances
            return cls(weight, origin, offset, _summed(distances, given))

    def __add__(self, other: Spread) -> Spread:
        if not self.weight > 0 or not other.weight > 0:
            return other if other.weight > 0 else self
        weight = self.weight + other.weight
        distance = (other.origin - self.origin) + (other.offset - self.offset)
        share = other.weight / weight
        squares = self.squares + other.squares + self.weight * share * distance**2
        return Spread(weight, self.origin, self.offset + share * distance, squares)

    def of_column(self, column: int) -> Spread:
        """Of one of the columns alone."""
        at = slice(column, column + 1)
        return Spread(self.weight, self.origin[at], self.offset[at], self.squares[at])

    @property
    def mean(self) -> Numbers:
        """Weighted mean; zero where all weights are."""
        return self.origin + self.offset

    @property
    def deviation(self) -> Numbers:
        """Standard deviation; zero where all numbers are equal."""
        return np.sqrt(self.squares / (self.weight or 1.0))


def _summed(values: Numbers, weights: Numbers | None) -> Numbers:
    return np.asarray(values.sum(axis=0) if weights is None else weights @ values)
