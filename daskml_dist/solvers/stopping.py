"""Early stopping by the scores of held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.hashed import draws
from daskml_dist.solvers.binned_rows import Aside

__all__ = ["Stopping"]

#: Names this use of a seed.
_HELD = 2


@dataclass(frozen=True)
class Stopping:
    """Early stopping.

    Parameters
    ----------
    n_iter_no_change : int
    tol : float
    share : float or None
        Of the rows that are held out by hash; None: none.
    n_train : int or None
        Rows from this number on are those that the user holds out; None: the user holds out none.
    """

    n_iter_no_change: int
    tol: float
    share: float | None = None
    n_train: int | None = None

    @property
    def validates(self) -> bool:
        """Whether rows are held out."""
        return self.share is not None or self.n_train is not None

    def ends(self, scores: Sequence[float]) -> bool:
        """Whether none of the last scores is better than the one before them."""
        if len(scores) <= self.n_iter_no_change:
            return False
        reference = scores[-self.n_iter_no_change - 1] + self.tol
        return not any(score > reference for score in scores[-self.n_iter_no_change :])

    def aside(self, seed: int) -> Aside | None:
        """Function that tells which rows are held out, by their numbers; None where none are."""
        if self.n_train is not None:
            return partial(_from, self.n_train)
        return None if self.share is None else partial(_drawn, self.share, seed)

    def n_used(self, n_rows: int) -> float:
        """Rows to train on, roughly."""
        if self.n_train is not None:
            return float(self.n_train)
        return n_rows * (1 - (self.share or 0.0))


def _from(first: int, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    return numbers >= first


def _drawn(share: float, seed: int, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    return draws(numbers, seed, _HELD) < np.uint64(int(share * 2.0**64))
