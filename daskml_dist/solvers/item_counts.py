"""Statistics of baskets: in how many of them items, pairs and larger itemsets are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.item_bits import (
    ItemBits,
    add_item_counts,
    add_pair_counts,
    add_set_counts,
    first_negative,
)
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import RowState, Statistic

__all__ = ["BasketBits", "ItemCounts", "PairCounts", "SetCounts"]


class BasketBits(RowState):
    """The rows as bits, by item; made of them when they are first asked for."""

    name = "bits"

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Nothing yet."""
        return ItemBits()


@dataclass(frozen=True, eq=False)
class ItemCounts(Statistic):
    """Rows of each item."""

    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (model.n_items,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> Any:
        if (found := first_negative(rows.X, backend)) is not None:
            row, value = found
            raise InvalidDataError(
                f"Block {rows.block}: X holds {value:g} (row {rows.first + row} of the block). An "
                "entry tells whether, or how much of, an item is in a basket: make it zero or "
                "more, such as X > 0."
            )
        add_item_counts(rows.X, out, backend)
        return float("nan")


@dataclass(frozen=True, eq=False)
class SetCounts(Statistic):
    """Rows of candidates that have at least two items.

    Parameters
    ----------
    items : ndarray of int64
        Columns that any candidate has, sorted.
    prefix : ndarray of int32 of shape (n_prefixes, k - 1)
        All but the last item of candidates, as numbers among `items`.
    bounds : ndarray of int64 of shape (n_prefixes + 1,)
        Where the candidates of each prefix begin.
    last : ndarray of int32 of shape (n,)
        Last item of each candidate.
    """

    items: NDArray[np.int64]
    prefix: NDArray[np.int32]
    bounds: NDArray[np.int64]
    last: NDArray[np.int32]
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> BasketBits:
        """The bits of each item."""
        return BasketBits()

    def shape(self, model: Any) -> tuple[int, ...]:
        return (len(self.last),)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> Any:
        prefix, last = self.prefix, self.last
        for words, items in rows.state.tiles(rows.X, self.items, backend):
            if len(items) > len(self.items):  # those of a level before: all that are kept
                place = np.searchsorted(items, self.items).astype(np.int32)
                prefix, last = place[self.prefix], place[self.last]
            add_set_counts(words, prefix, self.bounds, last, out)
        return float("nan")


@dataclass(frozen=True, eq=False)
class PairCounts(Statistic):
    """Rows of pairs of items.

    Parameters
    ----------
    items : ndarray of int64
        Columns, sorted.
    first, end : int
        First items of the pairs, as numbers among `items`; the second are all after these.
    """

    items: NDArray[np.int64]
    first: int
    end: int
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> BasketBits:
        """The bits of each item."""
        return BasketBits()

    def shape(self, model: Any) -> tuple[int, ...]:
        first = np.arange(self.first, self.end)
        return (int((len(self.items) - 1 - first).sum()),)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Any) -> Any:
        if add_pair_counts(rows.X, self.items, self.first, self.end, out):
            return float("nan")
        return self.as_sets().add(model, rows, out, backend)

    def as_sets(self) -> SetCounts:
        """The same pairs, one by one."""
        first, m = np.arange(self.first, self.end), len(self.items)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(m - 1 - first)])
        last = np.concatenate([np.arange(j + 1, m, dtype=np.int32) for j in first.tolist()])
        return SetCounts(self.items, first[:, None].astype(np.int32), bounds, last)
