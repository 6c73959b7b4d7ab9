"""`PairCollection`: rows of the numbers of two ids, beside a value, that stay where they lie.

Nobody holds all ids: each part's own ones are numbered by the tables of their ranges, as in
`cut.py`, while entries do not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.data.keyed import cut
from daskml_dist.data.keyed.collection import Holder, KeyedCollection, Tasks, item
from daskml_dist.data.keyed.cut import KeyTable, Numbered
from daskml_dist.data.keyed.ids import Places

__all__ = ["NumberedPairs", "PairCollection"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class NumberedPairs(Collection):
    """Rows of two numbers: of a first key among all first ones, of a second after all of these.

    Parameters
    ----------
    ids : tuple of (first, second)
        Sorted ids of either kind: number i is that of the ith.
    """

    ids: tuple[Array, Array] = field(default=(np.empty(0), np.empty(0)))


@dataclass(frozen=True, eq=False)
class PairCollection(KeyedCollection):
    """Entries whose keys are numbered where they lie; its sides are those of the two keys."""

    def cut(self, n_lanes: int, n_groups: int = 1, hold: Holder | None = None) -> NumberedPairs:
        """Number the keys, of which a part's worker has those of its own entries alone.

        Parameters
        ----------
        n_lanes : int
        n_groups : int, default=1
            Ranges of keys that are numbered apart.
        hold : Holder
            Of lazy parts.
        """
        assert self.numbers is not None
        if self.kind == "memory":
            (source,) = self.sources
            part = self.numbers(source)
            # Refuses a part without entries, in the words for all of them.
            cut.cuts_of([cut.sample_of(part, self.sides)], 1)
            n, m = (len(ids) for ids in part.ids)
            rows = _rows_of(part, [np.arange(n)], [np.arange(m)], n, m)
            return _collection("memory", [rows], [len(rows[0])], part.ids)
        assert hold is not None
        given, _, cuts = self.numbered(min(n_groups, n_lanes), hold)
        held = given.parts
        by = [(at, cuts[side.rows]) for at, side in enumerate(self.sides)]
        tasks = Tasks(held)
        made = [_tables(tasks, held, *one) for one in by]
        kept = hold(tasks.lazy(list(chain.from_iterable(made))))
        tables, found = kept.parts, kept.ask(_ids)
        n = len(tables) // 2
        tasks = Tasks([*held, *tables])
        ids, numbers = [], []
        for at, own in by:
            some = found[at * n : (at + 1) * n]
            ids.append(np.concatenate([part for part in some if len(part)]))
            numbers.append(_numbers(tasks, held, at, own, tables[at * n : (at + 1) * n], some))
        lazy = []
        for part, first, second in zip(held, *numbers, strict=True):
            rows = tasks(_rows_of, part.key, first, second, len(ids[0]), len(ids[1]))
            lazy += [tasks(item, rows, 0), tasks(item, rows, 1)]
        columns = tasks.lazy(lazy)
        pairs = list(zip(columns[::2], columns[1::2], strict=True))
        return _collection("dask", pairs, None, (ids[0], ids[1]))


def _collection(
    kind: Any, pairs: Sequence[Any], row_counts: list[int] | None, ids: tuple[Array, Array]
) -> NumberedPairs:
    parts = [(X, y, None) for X, y in pairs]
    return NumberedPairs(kind, parts, (2,), None, row_counts, tensors=True, ids=ids)


def _keys(tasks: Tasks, held: Sequence[Delayed], by: int, cuts: Array) -> list[list[Any]]:
    """Each part's own first or second ids, by range."""
    found = [tasks(cut.keys_of, part.key, by, cuts) for part in held]
    return [[tasks(item, key, r) for r in range(len(cuts) + 1)] for key in found]


def _tables(tasks: Tasks, held: Sequence[Delayed], by: int, cuts: Array) -> list[Any]:
    """The first or second ids of all parts, by range."""
    return [
        tasks(cut.table_of, list(own)) for own in zip(*_keys(tasks, held, by, cuts), strict=True)
    ]


def _numbers(
    tasks: Tasks, held: Sequence[Delayed], by: int, cuts: Array, tables: Sequence[Delayed],
    ids: Sequence[Array],
) -> list[list[Any]]:  # fmt: skip
    """Numbers of each part's own first or second ids, by range."""
    first = [0, *accumulate(map(len, ids))]
    return [
        [tasks(_numbers_in, first[r], tables[r].key, key) for r, key in enumerate(own)]
        for own in _keys(tasks, held, by, cuts)
    ]


def _ids(table: KeyTable) -> Array:
    return table.ids


def _numbers_in(first: int, table: KeyTable, own: KeyTable) -> NDArray[np.int64]:
    """Numbers of ids of a range, whose first one has the number `first`."""
    return Places(table.ids)(own.ids).astype(np.int64) + first


def _rows_of(
    part: Numbered, first: Sequence[Array], second: Sequence[Array], n_first: int, n_second: int
) -> tuple[Array, Array]:
    """Numbers of the keys of a part's entries, and the values; `first` are those of its own ids."""
    kind = np.int32 if n_first + n_second < 2**31 else np.int64
    rows = np.empty((len(part.codes[0]), 2), kind)
    rows[:, 0] = np.concatenate(first)[part.codes[0]]
    rows[:, 1] = np.concatenate(second)[part.codes[1]] + n_first
    values = np.ones(len(rows)) if part.values is None else part.values.astype(np.float64)
    return rows, values
