"""Rows of a lane as trees grow on them: a byte for each entry, and what boosting keeps of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.binning import put_in_bins
from daskml_dist.models.base import BatchRows
from daskml_dist.models.bins import Bins
from daskml_dist.models.hashed import draws
from daskml_dist.solvers.hold_out import HoldoutMask
from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["BinnedRows", "binned", "chosen", "tiles"]

#: Rows of bins begin where a word does, so that few reach over a processor's lines.
_WORD = 8
#: Rows of which something is made at once.
TILE = 2**16


class BinnedRows:
    """Binned rows, their targets and weights, in room for more.

    Parameters
    ----------
    most : int
        Rows at most.
    bins : Bins
    room : callable
        As `OwnRows.room`.
    numbered : bool, default=False
        Whether the numbers of the rows are kept.

    Attributes
    ----------
    n : int
        Rows.
    missing : ndarray of uint8 of shape (n_features,)
        Whether a feature has missing values.
    rows : ndarray of uint8 of shape (n, width)
        The bins of each row, and zeros up to whole words.
    columns : ndarray of uint8 of shape (n_features, n)
        The same by feature.
    y : ndarray of float64 of shape (n,)
    weight : ndarray of float64 of shape (n,) or None
    salt : ndarray of uint32 of shape (n,)
        A hash of each row's number among all.
    numbers : ndarray of int64 of shape (n,) or None
        These, where they are kept.
    extra : dict
        What a solver keeps of them beside.
    """

    def __init__(
        self, most: int, bins: Bins, room: Callable[[tuple[int, ...], Any], NDArray[Any]],
        numbered: bool = False,
    ) -> None:  # fmt: skip
        d = bins.n_features
        self.n = 0
        self.missing = np.zeros(d, np.uint8)
        self.bins = bins
        self.room = room
        self._rows = room((most, -(-d // _WORD) * _WORD), np.uint8)
        self._columns = room((d, most), np.uint8)
        self._y = room((most,), np.float64)
        self._weight: NDArray[Any] | None = None
        self._salt = room((most,), np.uint32)
        self._numbers = room((most,), np.int64) if numbered else None
        self.extra: dict[str, Any] = {}

    def add(
        self, X: NDArray[Any], y: NDArray[Any], weight: NDArray[Any] | None,
        numbers: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Add some rows and their numbers among all; weights come with all of them, or none."""
        if not len(X):
            return
        bins, at = self.bins, slice(self.n, self.n + len(X))
        put_in_bins(
            np.ascontiguousarray(X), bins.table, bins.n_edges, bins.categorical, bins.max_bins,
            self._rows[at], self._columns[:, at], self.missing,
        )  # fmt: skip
        self._y[at] = y
        self._salt[at] = (draws(numbers) >> np.uint64(32)).astype(np.uint32)
        if self._numbers is not None:
            self._numbers[at] = numbers
        if weight is not None:
            if self._weight is None:
                self._weight = self.room((len(self._y),), np.float64)
            self._weight[at] = weight
        self.n = at.stop

    @property
    def rows(self) -> NDArray[np.uint8]:
        return self._rows[: self.n]

    @property
    def columns(self) -> NDArray[np.uint8]:
        return self._columns[:, : self.n]

    @property
    def y(self) -> NDArray[np.float64]:
        return self._y[: self.n]

    @property
    def salt(self) -> NDArray[np.uint32]:
        return self._salt[: self.n]

    @property
    def numbers(self) -> NDArray[np.int64] | None:
        return None if self._numbers is None else self._numbers[: self.n]

    @property
    def weight(self) -> NDArray[np.float64] | None:
        return None if self._weight is None else self._weight[: self.n]


def binned(
    rows: OwnRows, lane: int, bins: Bins, aside: HoldoutMask | None, numbered: bool = False
) -> tuple[BinnedRows, BinnedRows | None]:
    """Bins of a lane's rows, and of those that are kept aside for validation."""
    most = rows.count(lane)
    own = BinnedRows(most, bins, rows.room, numbered)
    if aside is None:
        for first, block in rows.blocks(lane):
            numbers = np.arange(first, first + len(block.X))
            own.add(block.X, block.y, block.weight, numbers)
        return own, None
    held = BinnedRows(most, bins, rows.room, numbered)
    is_aside = aside.reader()
    for first, block in rows.blocks(lane):
        numbers = np.arange(first, first + len(block.X))
        is_held = is_aside(first, block.y)
        own.add(*chosen(block, ~is_held), numbers[~is_held])
        X, y, weight = chosen(block, is_held)
        weight = None if weight is None else aside.own_weight(y, weight)
        held.add(X, y, weight, numbers[is_held])
    return own, held


def tiles(n: int) -> Iterator[slice]:
    """Some of `n` rows at a time, so that what is made of them stays small."""
    for start in range(0, n, TILE):
        yield slice(start, min(n, start + TILE))


def chosen(
    block: BatchRows, which: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Some rows of a block, their targets and weights."""
    if which.all():
        return block.X, block.y, block.weight
    return block.X[which], block.y[which], None if block.weight is None else block.weight[which]
