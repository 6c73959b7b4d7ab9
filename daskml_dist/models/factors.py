"""Factors of users and items: a rating is the product of two short vectors, and biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.als import Regressors
from daskml_dist.models.base import Model
from daskml_dist.models.hashed import hash_numbers

__all__ = ["FactorModel"]


@dataclass(frozen=True)
class FactorModel(Model):
    """A vector for each user and each item, whose product is a rating or a preference.

    With biases the last entry of a vector is what its user or item adds to every rating, beside
    the mean of all.

    Parameters
    ----------
    rank : int
        Length of the vectors, biases apart.
    implicit : bool, default=False
        Whether ratings are counts of what was seen, and a pair without one is a weak "no".
    biased : bool, default=False
    dtype : {"float32", "float64"}, default="float32"
        Of the factors.
    """

    rank: int
    implicit: bool = False
    biased: bool = False
    dtype: str = "float32"

    @property
    def width(self) -> int:
        """Numbers of a user or an item."""
        return self.rank + int(self.biased)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the ratings unchanged."""
        return y

    def start(self, at: slice, seed: int) -> NDArray[Any]:
        """Return initial factors of expected length 1, hashed from the numbers of the ids."""
        column = np.arange(self.rank, dtype=np.uint64)
        factors = np.zeros((at.stop - at.start, self.width), self.dtype)
        for start in range(0, len(factors), _FACTOR_ROWS_AT_ONCE):
            own = factors[start : start + _FACTOR_ROWS_AT_ONCE, : self.rank]
            first = at.start + start + 1
            number = np.arange(first, first + len(own), dtype=np.uint64)[:, np.newaxis]
            draw = hash_numbers(
                hash_numbers(number) + column + hash_numbers(np.array([seed], np.uint64))
            )
            uniform = (draw >> np.uint64(11)) * 2.0**-53
            own[:] = (uniform - 0.5) * np.sqrt(12 / self.rank)
        return factors

    def gram(self, factors: NDArray[Any]) -> NDArray[np.float64]:
        """Return the Gram matrix of some factors.

        Those of all parts add up to that of all factors.
        """
        total = np.zeros((self.width, self.width))
        for start in range(0, len(factors), _FACTOR_ROWS_AT_ONCE):
            part = factors[start : start + _FACTOR_ROWS_AT_ONCE].astype(np.float64)
            total += part.T @ part
        return total

    def regressors(
        self, factors: NDArray[Any], gram: NDArray[np.float64], mean: float
    ) -> Regressors:
        """Return the factors as regressors of the other side's ratings."""
        if not self.biased:
            return Regressors(factors, np.empty(0, factors.dtype), gram).padded(factors.dtype)
        ones = factors.copy()
        ones[:, -1] = 1
        offsets = factors[:, -1] + factors.dtype.type(mean)
        return Regressors(ones, offsets, gram).padded(factors.dtype)


#: Users or items whose factors are drawn, or squared in float64, at once.
_FACTOR_ROWS_AT_ONCE = 1 << 14
