"""Columns of a stack, and the gradients that they ask for: one reading of the rows for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from daskml_dist.solvers.base import Array, Solver, Sums
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.of_splits import OfSplits
from daskml_dist.solvers.stacked_gradient import StackedGradient

__all__ = ["Candidate", "CandidateGradients"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One of the fits.

    Parameters
    ----------
    split : int
        Whose training rows it is fitted to.
    solver : Solver
    n_rows : float
        Sum of the weights of these rows.
    start : ndarray or None
    """

    split: int
    solver: Solver
    n_rows: float
    start: Array | None = None


class CandidateGradients:
    """Losses and gradients of columns, of which a place that was just asked about is known.

    Parameters
    ----------
    columns : sequence of Candidate
    sums : Sums
    """

    def __init__(self, columns: tuple[Candidate, ...], sums: Sums) -> None:
        self._columns, self._sums = columns, sums
        #: Of each column: where its last answer was asked for, and this.
        self._last: dict[int, tuple[tuple[int, bytes], Array]] = {}

    def __call__(self, asked: Mapping[int, Array], share: int) -> dict[int, Array]:
        """The answers, by the numbers of the columns.

        Parameters
        ----------
        asked : mapping of int to ndarray of shape (n_rows, width)
            Parameters of columns.
        share : int
            As of :class:`StackedGradient`.
        """
        found: dict[int, Array] = {}
        # Columns of a split side by side; at first all of them ask at the same place.
        places: dict[tuple[int, bytes], list[int]] = {}
        for i in sorted(asked, key=lambda i: self._columns[i].split):
            here = share, asked[i].tobytes()
            last, answer = self._last.get(i, (None, None))
            if last == here and answer is not None:
                found[i] = answer
            else:
                places.setdefault((self._columns[i].split, here[1]), []).append(i)
        if not places:
            return found
        w = np.stack([asked[same[0]] for same in places.values()])
        splits = np.array([split for split, _ in places])
        if len(w) == 1 and share == 1:  # as the fit of one column alone
            answers = self._sums(OfSplits(LossGradient(w[0]), (int(splits[0]),)))
        else:
            answers = self._sums(StackedGradient(w, splits, share))
        for ((_, place), same), answer in zip(places.items(), answers, strict=True):
            for i in same:
                found[i], self._last[i] = answer, ((share, place), answer)
        return found
