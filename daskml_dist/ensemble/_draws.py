"""Rows that members of a bagged ensemble draw: told by seeds and numbers of rows, anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray
from scipy import stats

from daskml_dist.data.permutations import Permutation, hash_numbers

__all__ = ["DrawnRows", "Draws", "weights_of"]

_BITS = np.uint64(11)
#: Draws of a row, the most that a table of their chances has.
_MOST = 64


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of each row by each member, which follow from the row's number among all.

    Parameters
    ----------
    seeds : ndarray of int64 of shape (n_members,)
    n_rows : int
        Of all blocks.
    n_drawn : int
        Rows that a member draws: exactly so many without replacement, else on average.
    replace : bool
        Whether a row may be drawn again.
    weight : float or None
        Sum of the weights of all rows, which these are drawn by; None: all alike.

    Notes
    -----
    With replacement the draws of a row are Poisson-distributed, which is what n draws of n rows
    come to for many rows, and what rows that do not know of each other can draw (N. Oza and
    S. Russell, "Online bagging and boosting", AISTATS 2001). Without, rows are ranked by a
    permutation.
    """

    seeds: NDArray[np.int64]
    n_rows: int
    n_drawn: int
    replace: bool
    weight: float | None = None

    def of(
        self, member: int, first: int, n: int, weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.int64]:
        """Draws of the `n` rows from number `first` on, of these weights."""
        return self.of_rows(member, np.arange(first, first + n), weights)

    def of_rows(
        self, member: int, rows: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.int64]:
        """Draws of the rows of these numbers, and weights."""
        n, seed = len(rows), int(self.seeds[member])
        if not self.replace:
            if self.n_drawn >= self.n_rows:
                return np.ones(n, np.int64)
            return (Permutation(self.n_rows, (seed,))(rows) < self.n_drawn).astype(np.int64)
        key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        chance = hash_numbers(hash_numbers(rows.astype(np.uint64), key[0]), key[1]) >> _BITS
        uniform = chance.astype(np.float64) * 2.0**-53
        if weights is None or self.weight is None:
            chances = stats.poisson.cdf(np.arange(_MOST), self.n_drawn / self.n_rows)
            return np.searchsorted(chances, uniform, side="right").astype(np.int64)
        rates = self.n_drawn * weights / self.weight
        return np.asarray(np.maximum(stats.poisson.ppf(uniform, rates), 0), np.int64)


def weights_of(n: int, given: Any) -> NDArray[np.float64] | None:
    """Weights of a block's rows, of which there may be one for all."""
    if given is None:
        return None
    return np.full(n, float(given)) if np.ndim(given) == 0 else np.asarray(given, np.float64)


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Draws of a fit, told without its rows.

    Parameters
    ----------
    draws : Draws
    starts : ndarray of int64 of shape (n_blocks,)
    weights : list of Delayed or float, or None
        Of the rows of each block, where they are drawn by these.
    """

    draws: Draws
    starts: NDArray[np.int64]
    weights: list[Any] | None

    def of(self, member: int) -> da.Array:
        """Numbers of the rows that a member has drawn, lazy."""
        number = delayed(partial(_numbers, self.draws, member), pure=False)
        stops = np.append(self.starts[1:], self.draws.n_rows)
        weights = self.weights or [None] * len(stops)
        pieces = [
            number(int(start), int(stop), weight)
            for start, stop, weight in zip(self.starts, stops, weights, strict=True)
        ]
        numbers: da.Array = da.concatenate(
            [da.from_delayed(piece, (np.nan,), dtype=np.int64) for piece in pieces]
        )
        return numbers


def _numbers(draws: Draws, member: int, start: int, stop: int, weight: Any) -> NDArray[np.int64]:
    counts = draws.of(member, start, stop - start, weights_of(stop - start, weight))
    return np.repeat(np.arange(start, stop), counts)
