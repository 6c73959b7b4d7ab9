"""Rows that a scorer sees, gathered to one trainer in the order of their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.hashed import draws
from daskml_dist.solvers.binned_rows import BinnedRows
from daskml_dist.solvers.own_rows import OwnRows
from daskml_dist.solvers.stopping import Range, Scorer

__all__ = ["ScoredRows", "are_within"]

#: Names this use of a seed.
_SCORED = 5


class ScoredRows:
    """Rows that a scorer sees.

    One trainer scores them for all: what a user's function answers need not be the same twice.

    Parameters
    ----------
    rows : OwnRows
    rooms : sequence of BinnedRows
        Of each own lane, with their numbers.
    share : float
        Of the rows that are scored, drawn; 1: all.
    seed : int
    weighted : bool
        Whether any trainer's have weights.
    within : Range or None, default=None
        Numbers of the rows that are scored; None: of all.
    """

    def __init__(
        self,
        rows: OwnRows,
        rooms: Sequence[BinnedRows],
        share: float,
        seed: int,
        weighted: bool,
        within: Range | None = None,
    ) -> None:
        self._rows, self._rooms, self._weighted = rows, list(rooms), weighted
        last = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
        self._at = []
        for room in rooms:
            is_scored = draws(_numbers(room), seed, _SCORED) <= last
            if within is not None:
                is_scored &= are_within(_numbers(room), within)
            self._at.append(np.flatnonzero(is_scored))
        numbers = self._gathered([_numbers(room)[at] for room, at in self._each()])
        self._order = np.argsort(numbers, kind="stable")
        self._y = self._gathered([room.y[at] for room, at in self._each()])[self._order]
        self._weight: NDArray[np.float64] | None = None
        if weighted:
            of_rooms = [
                np.ones(len(at)) if room.weight is None else room.weight[at]
                for room, at in self._each()
            ]
            self._weight = self._gathered(of_rooms)[self._order]

    def score(self, scorer: Scorer) -> float:
        """The score of the rows as they are predicted now."""
        raw = self._gathered([room.extra["raw"][:, at].T for room, at in self._each()])
        told = np.zeros(1)
        if self._rows.rank == 0:
            told[0] = scorer(raw[self._order], self._y, self._weight)
        # As whole numbers, so that what is not finite comes as it is.
        return float(self._rows.sum(told.view(np.int64)).view(np.float64)[0])

    def _each(self) -> list[tuple[BinnedRows, NDArray[np.intp]]]:
        return list(zip(self._rooms, self._at, strict=True))

    def _gathered(self, parts: list[NDArray]) -> NDArray:  # type: ignore[type-arg]
        """Rows of all trainers, on the first; the own elsewhere."""
        own = np.ascontiguousarray(np.concatenate(parts))
        others = [own if rank == 0 else own[:0] for rank in range(self._rows.size)]
        found = self._rows.deal(others)
        return np.concatenate(found)


def are_within(numbers: NDArray[np.int64], within: Range) -> NDArray[np.bool_]:
    """Return which numbers of rows lie in a range."""
    return np.asarray((numbers >= within[0]) & (numbers < within[1]))


def _numbers(room: BinnedRows) -> NDArray[np.int64]:
    assert room.numbers is not None
    return room.numbers
