"""Parts that rows play in the splits of a cross-validation: a code a row, and no row copied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.batched import NEITHER, TEST, TRAIN, FoldAssignment

__all__ = [
    "NEITHER",
    "TEST",
    "TRAIN",
    "DigitRoles",
    "FoldAssignment",
    "FoldCodes",
    "Order",
    "TableRoles",
    "ThinnedRoles",
    "contiguous",
    "label_codes",
    "spread",
]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TableRoles(FoldAssignment):
    """Roles by a table.

    Parameters
    ----------
    table : ndarray of int8 of shape (n_codes, n_splits)
    """

    table: NDArray[np.int8]

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Number of splits."""
        return int(self.table.shape[1])

    @classmethod
    def of_folds(cls, n_splits: int) -> TableRoles:
        """Each code is the fold that is held out once, and trained on else."""
        table = np.full((n_splits, n_splits), TRAIN, np.int8)
        np.fill_diagonal(table, TEST)
        return cls(table)

    def played(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """As in :class:`FoldAssignment`."""
        played: NDArray[np.int8] = self.table[codes, split]
        return played


@dataclass(frozen=True, eq=False)
class DigitRoles(FoldAssignment):
    """Roles as the digits of a code to the base of three: splits that know nothing of each other.

    Parameters
    ----------
    n_splits : int
        At most :attr:`most`.
    """

    n_splits: int
    #: Splits whose roles a float64 holds.
    most: ClassVar[int] = 33

    def played(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """As in :class:`FoldAssignment`."""
        played: NDArray[np.int8] = (codes // 3**split % 3).astype(np.int8)
        return played

    def codes(self, roles: list[NDArray[np.int8]]) -> Ints:
        """The codes of rows that play these roles in the splits."""
        total = np.zeros(len(roles[0]), np.int64)
        for split, played in enumerate(roles):
            total += played.astype(np.int64) * 3**split
        return total


@dataclass(frozen=True, eq=False)
class ThinnedRoles(FoldAssignment):
    """Roles of codes that are counted from 1; 0 is nothing to any split.

    Parameters
    ----------
    each : FoldAssignment
    """

    each: FoldAssignment

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Number of splits."""
        return self.each.n_splits

    def played(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """As in :class:`FoldAssignment`."""
        played = self.each.played(np.maximum(codes - 1, 0), split)
        return np.where(codes > 0, played, np.int8(NEITHER))


@dataclass(frozen=True, eq=False)
class Order:
    """Places of the rows of a block among all rows: each of 0 to n - 1 is that of one row.

    Parameters
    ----------
    first : ndarray of int64 of shape (n_blocks,)
        Place of the first row of each block.
    seed : int or None
        Shuffles the rows of each block; None: rows keep their order.
    labels : ndarray or None
        Orders rows by their labels first, in this order of them; None: labels do not matter.
    first_of : ndarray of int64 of shape (n_blocks, n_labels), or None
        Place of each block's first row of each label.
    """

    first: Ints
    seed: int | None = None
    labels: NDArray[Any] | None = None
    first_of: Ints | None = None

    def places(self, index: int, column: Any, n_rows: int, more: int = 0) -> Ints:
        """Places of a block's rows; `more` names another shuffle of the same seed."""
        at = np.arange(n_rows)
        if self.seed is not None:
            at = np.random.default_rng((self.seed, more, index)).permutation(n_rows)
        if self.labels is None or self.first_of is None:
            return np.asarray(self.first[index] + at, np.int64)
        code = label_codes(self.labels, column)
        found = np.empty(n_rows, np.int64)
        by_label = np.lexsort((at, code))
        counts = np.bincount(code, minlength=len(self.labels))
        rank = np.arange(n_rows) - np.repeat(counts.cumsum() - counts, counts)
        found[by_label] = self.first_of[index][code[by_label]] + rank
        return found

    def ranges(self, n_rows: int) -> tuple[Ints, Ints]:
        """Return the ranges of places that each block's rows have, of `n_rows` in all.

        Starts and stops of shape (n_blocks, n_labels); without labels of shape (n_blocks, 1).
        """
        starts = self.first[:, np.newaxis] if self.first_of is None else self.first_of
        # Label after label, and in each of them block after block, the ranges follow each other.
        stops = np.append(starts.T.ravel()[1:], n_rows).reshape(starts.T.shape).T
        return starts, stops

    def first_places(self) -> Ints:
        """Place of the first row of each label."""
        assert self.first_of is not None
        first: Ints = self.first_of[0]
        return first


def label_codes(labels: NDArray[Any], column: Any) -> Ints:
    """Place of each row's label among `labels`, which need not be sorted."""
    order = np.argsort(labels)
    codes: Ints = order[np.searchsorted(labels, np.asarray(column), sorter=order)]
    return codes


class FoldCodes(ABC):
    """Maker of the codes of a block's rows. Picklable."""

    @abstractmethod
    def of(self, index: int, column: Any, n_rows: int) -> Ints:
        """The codes; `column` holds the labels or groups of the rows, if there are any."""

    def sizes(self, roles: FoldAssignment, split: int, role: int) -> Ints | None:
        """Return how many rows of each block play a role; None where only the rows tell."""
        return None


def contiguous(places: Ints, stops: Ints) -> Ints:
    """Range that each place lies in, by where ranges stop."""
    return np.asarray(np.searchsorted(stops, places, side="right"), np.int64)


def spread(places: Ints, n: int, n_test: int, n_train: int) -> NDArray[np.int8]:
    """Roles of places of which exactly so many are held out and trained on, evenly spread."""
    before = places * n_test // n
    held = (places + 1) * n_test // n > before
    left, rest = places - before, n - n_test
    # (left + 1) * n_train may be of the next row where this one is held out; it is not asked.
    taken = (left + 1) * n_train // max(rest, 1) > left * n_train // max(rest, 1)
    roles = np.where(taken, TRAIN, NEITHER)
    return np.where(held, TEST, roles).astype(np.int8)
