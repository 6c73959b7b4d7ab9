"""Codes of rows: what each splitter's rule makes of a block."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.model_selection._roles import (
    TEST,
    TRAIN,
    DigitRoles,
    FoldAssignment,
    FoldCodes,
    Ints,
    Order,
    contiguous,
    label_codes,
    spread,
)

__all__ = ["ByGroup", "ByPlace", "ByRange", "Given", "Spread", "Thinned"]


@dataclass(frozen=True, eq=False)
class ByPlace(FoldCodes):
    """Folds dealt out by the places of rows.

    Parameters
    ----------
    order : Order
    n_folds : int
    """

    order: Order
    n_folds: int

    def of(self, index: int, column: Any, n_rows: int) -> Ints:
        """As in :class:`FoldCodes`."""
        return self.order.places(index, column, n_rows) % self.n_folds


@dataclass(frozen=True, eq=False)
class ByRange(FoldCodes):
    """Ranges of places, numbered again and again.

    Parameters
    ----------
    order : Order
    stops : ndarray of int64 of shape (n_ranges,)
        Where each range ends.
    n_codes : int
        Ranges further on have the codes of the first ones.
    n_rows : int, optional
        All rows, the last ones of which are a range too.
    """

    order: Order
    stops: Ints
    n_codes: int
    n_rows: int | None = None

    def of(self, index: int, column: Any, n_rows: int) -> Ints:
        """As in :class:`FoldCodes`."""
        return contiguous(self.order.places(index, column, n_rows), self.stops) % self.n_codes

    def sizes(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """As in :class:`FoldCodes`: how far the ranges and those of the blocks overlap."""
        if self.n_rows is None:
            return None
        starts, stops = self.order.ranges(self.n_rows)
        found = np.zeros(len(starts), np.int64)
        bounds = np.concatenate([[0], self.stops, [self.n_rows]])
        for number, (first, last) in enumerate(pairwise(bounds)):
            code = np.array([number % self.n_codes])
            if roles.played(code, split)[0] == role:
                overlaps = np.minimum(stops, last) - np.maximum(starts, first)
                found += overlaps.clip(min=0).sum(axis=1)
        return found


@dataclass(frozen=True, eq=False)
class ByGroup(FoldCodes):
    """Folds of groups.

    Parameters
    ----------
    groups : ndarray of shape (n_groups,)
    folds : ndarray of int64 of shape (n_groups,)
    """

    groups: NDArray[Any]
    folds: Ints

    def of(self, index: int, column: Any, n_rows: int) -> Ints:
        """As in :class:`FoldCodes`."""
        return self.folds[label_codes(self.groups, column)]


@dataclass(frozen=True, eq=False)
class Spread(FoldCodes):
    """Rows held out by splits that know nothing of each other; exactly as many of each.

    Parameters
    ----------
    order : Order
        Shuffled.
    roles : DigitRoles
    n_rows, n_test, n_train : int
        Of all rows.
    """

    order: Order
    roles: DigitRoles
    n_rows: int
    n_test: int
    n_train: int

    def of(self, index: int, column: Any, n_rows: int) -> Ints:
        """As in :class:`FoldCodes`."""
        found = []
        for split in range(self.roles.n_splits):
            places = self.order.places(index, column, n_rows, split)
            found.append(spread(places, self.n_rows, self.n_test, self.n_train))
        return self.roles.codes(found)

    def sizes(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """As in :class:`FoldCodes`: differences of what `spread` counts up to a place."""
        rest = max(self.n_rows - self.n_test, 1)

        def held(places: Ints) -> Ints:
            return places * self.n_test // self.n_rows

        def taken(places: Ints) -> Ints:
            return (places - held(places)) * self.n_train // rest

        count = {TEST: held, TRAIN: taken}.get(role)
        if count is None:
            return None
        starts, stops = self.order.ranges(self.n_rows)
        sizes: Ints = (count(stops) - count(starts)).sum(axis=1)
        return sizes


@dataclass(frozen=True, eq=False)
class Given(FoldCodes):
    """Codes that somebody made of all rows, in memory.

    Parameters
    ----------
    blocks : tuple of ndarray of int64
    """

    blocks: tuple[Ints, ...]

    def of(self, index: int, column: Any, n_rows: int) -> Ints:
        """As in :class:`FoldCodes`."""
        return self.blocks[index]


@dataclass(frozen=True, eq=False)
class Thinned(FoldCodes):
    """Codes of a share of the rows, counted from 1; 0 is nothing to any split.

    Parameters
    ----------
    codes : FoldCodes
        Of all rows.
    order : Order
        Shuffled within blocks.
    fraction : float
    """

    codes: FoldCodes
    order: Order
    fraction: float

    def of(self, index: int, column: Any, n_rows: int) -> Ints:
        """As in :class:`FoldCodes`."""
        first = int(self.order.first[index])
        place = self.order.places(index, None, n_rows) - first
        # The shares of all blocks add up to that of all rows.
        share = int((first + n_rows) * self.fraction) - int(first * self.fraction)
        return np.where(place < share, self.codes.of(index, column, n_rows) + 1, 0)
