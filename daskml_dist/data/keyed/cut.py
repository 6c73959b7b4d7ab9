"""Entries cut into ranges of their keys: what tasks make of the parts of a frame, step by step.

A part's ids become numbers of its own (`Numbered`). Some ids of each part, with how many entries
they have, tell where ranges of keys are cut so that they have as many entries each. Then every part
is split by the ranges of its row keys (`Parcel`); and of the pieces of a range, from all parts,
come its ids and its entries. Nobody holds all ids, or all entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.keyed.blocks import KeyedBlock, by_use
from daskml_dist.data.keyed.ids import Places, check_one_kind, factorised, merged
from daskml_dist.errors import InvalidDataError
from daskml_dist.solvers.keyed import Side

__all__ = [
    "KeyTable",
    "Numbered",
    "Parcel",
    "Piece",
    "block_of",
    "cuts_of",
    "keys_of",
    "number_part",
    "parcels_of",
    "sample_of",
    "sorted_out",
    "table_of",
]

Array = NDArray[Any]

#: Ids of a part by which ranges are cut.
_SAMPLE = 1024


@dataclass(frozen=True, eq=False)
class Numbered:
    """A part's entries, with ids as positions among its own.

    Parameters
    ----------
    ids : tuple of (first, second)
        Sorted distinct ids of the first and second keys; of both where they share a space.
    codes : tuple of (first, second)
        Positions in these, of int32.
    values : ndarray of float64, or None
    """

    ids: tuple[Array, Array]
    codes: tuple[Array, Array]
    values: NDArray[np.float64] | None

    def sums(self, by: int) -> NDArray[np.float64]:
        """Sum of the values of the entries of each of `ids[by]`, whose first or second it is."""
        return np.bincount(self.codes[by], self.values, len(self.ids[by])).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Piece:
    """Entries of a part whose row keys are in one range."""

    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    row_ids: Array
    column_ids: Array
    values: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Ids of a range of a space, sorted, and their strengths."""

    ids: Array
    strengths: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Parcel:
    """Share that some ranges have in some parts.

    Parameters
    ----------
    pieces : dict of (position of a side, range) to list of (part, Piece)
    tables : dict of (space, range) to list of (part, KeyTable)
    """

    pieces: dict[tuple[int, int], list[tuple[int, Piece]]]
    tables: dict[tuple[str, int], list[tuple[int, KeyTable]]]

    def __sizeof__(self) -> int:
        # Dask asks this when it budgets a worker's memory.
        pieces = (piece for some in self.pieces.values() for _, piece in some)
        tables = (table for some in self.tables.values() for _, table in some)
        arrays = [array for thing in (*pieces, *tables) for array in vars(thing).values()]
        return sum(array.nbytes for array in arrays if array is not None)

    def of(self, ranges: range) -> Parcel:
        """Share of some of the ranges."""
        return Parcel(
            {key: some for key, some in self.pieces.items() if key[1] in ranges},
            {key: some for key, some in self.tables.items() if key[1] in ranges},
        )


def number_part(first: Array, second: Array, values: Any, shared: bool) -> Numbered:
    """Number a part's ids; `shared`: both columns are of one space."""
    if shared:
        ids, (a, b) = factorised([first, second])
        return Numbered((ids, ids), (a, b), values)
    (one, (a,)), (other, (b,)) = factorised([first]), factorised([second])
    return Numbered((one, other), (a, b), values)


# -- where ranges are cut --------------------------------------------------------------------------


def sample_of(part: Numbered, sides: Sequence[Side]) -> dict[str, tuple[Array, Array]]:
    """Some ids of each space, and how many entries each stands for."""
    found = {}
    for space in dict.fromkeys(side.rows for side in sides):
        counts: Any = 0.0
        for side in sides:
            if side.rows == space:
                ids = part.ids[side.by]
                counts = counts + np.bincount(part.codes[side.by], minlength=len(ids))
        # A key takes work too, even without entries.
        total = np.cumsum(counts + 1.0)
        if not len(total):
            found[space] = ids, total
            continue
        wanted = np.linspace(0, total[-1], min(_SAMPLE, len(total)) + 1)[1:]
        at = np.unique(np.searchsorted(total, wanted).clip(max=len(total) - 1))
        found[space] = ids[at], np.diff(total[at], prepend=0.0)
    return found


def cuts_of(samples: Sequence[dict[str, tuple[Array, Array]]], n_ranges: int) -> dict[str, Array]:
    """First id of each range but the first, by space."""
    cuts = {}
    for space in samples[0]:
        parts = [sample[space] for sample in samples if len(sample[space][0])]
        if not parts:
            raise InvalidDataError(
                "There are no entries in any part. Look at the files or the filter they are from."
            )
        check_one_kind([part for part, _ in parts])
        ids = np.concatenate([part for part, _ in parts])
        counts = np.concatenate([part for _, part in parts])
        order = np.argsort(ids, kind="stable")
        total = np.cumsum(counts[order])
        wanted = total[-1] * np.arange(1, n_ranges) / n_ranges
        # The sampled id ends what it stands for: the next range begins behind it.
        cuts[space] = ids[order][np.searchsorted(total, wanted)]
    return cuts


def _edges(ids: Array, cuts: Array) -> list[int]:
    """Positions among sorted ids at which ranges begin, and their number."""
    inner = np.searchsorted(ids, cuts, side="right") if len(ids) else np.zeros(len(cuts), int)
    return [0, *inner.tolist(), len(ids)]


# -- pieces of a part ------------------------------------------------------------------------------


def _pieces_of(part: Numbered, by: int, cuts: Array) -> list[Piece]:
    """A part's entries by the range of their row keys."""
    row_ids, column_ids = part.ids[by], part.ids[1 - by]
    rows, columns, values = part.codes[by], part.codes[1 - by], part.values
    edges = _edges(row_ids, cuts)
    if len(edges) == 2:
        return [_piece(rows, columns, row_ids, column_ids, values)]
    range_of = np.repeat(np.arange(len(edges) - 1, dtype=np.uint16), np.diff(edges))[rows]
    order = np.argsort(range_of, kind="stable")
    ends = np.cumsum(np.bincount(range_of, minlength=len(edges) - 1))
    pieces = []
    for i, some in enumerate(np.split(order, ends[:-1])):
        own = row_ids[edges[i] : edges[i + 1]]
        its = None if values is None else values[some]
        pieces.append(_piece(rows[some] - np.int32(edges[i]), columns[some], own, column_ids, its))
    return pieces


def _piece(rows: Array, columns: Array, row_ids: Array, column_ids: Array, values: Any) -> Piece:
    """A piece that has the ids of its own columns alone."""
    used = np.zeros(len(column_ids), np.bool_)
    used[columns] = True
    place = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return Piece(rows, place[columns], row_ids, column_ids[used], values)


def keys_of(part: Numbered, bys: Sequence[int], cuts: Array) -> list[KeyTable]:
    """A part's ids of a space, by range, with the sums of their entries."""
    ids = part.ids[bys[0]]
    sums = np.stack([part.sums(by) if by in bys else np.zeros(len(ids)) for by in (0, 1)])
    edges = _edges(ids, cuts)
    return [KeyTable(ids[a:b], sums[:, a:b]) for a, b in pairwise(edges)]


def parcels_of(
    numbers: Sequence[int], parts: Sequence[Numbered], sides: Sequence[Side],
    cuts: dict[str, Array], groups: Sequence[range],
) -> list[Parcel]:  # fmt: skip
    """Parcels of some parts, one for each group of ranges; `numbers` are those of the parts."""
    whole = Parcel({}, {})
    for number, part in zip(numbers, parts, strict=True):
        for at, side in enumerate(sides):
            for r, piece in enumerate(_pieces_of(part, side.by, cuts[side.rows])):
                whole.pieces.setdefault((at, r), []).append((number, piece))
        for space in cuts:
            # First and second keys share a space, or are of one each.
            bys = sorted({s.by for s in sides if s.rows == space} |
                         {1 - s.by for s in sides if s.columns == space})  # fmt: skip
            for r, table in enumerate(keys_of(part, bys, cuts[space])):
                whole.tables.setdefault((space, r), []).append((number, table))
    return [whole.of(group) for group in groups]


def sorted_out(parcels: Sequence[Parcel], groups: Sequence[range]) -> list[Parcel]:
    """Several parcels as one for each group of ranges."""
    whole = Parcel({}, {})
    for parcel in parcels:
        for key, pieces in parcel.pieces.items():
            whole.pieces.setdefault(key, []).extend(pieces)
        for at, tables in parcel.tables.items():
            whole.tables.setdefault(at, []).extend(tables)
    return [whole.of(group) for group in groups]


# -- ranges, of the pieces of all parts ------------------------------------------------------------


def _in_order(some: list[tuple[int, Any]]) -> list[Any]:
    """Those of all parts, whichever way they came."""
    return [thing for _, thing in sorted(some, key=lambda pair: pair[0])]


def table_of(parts: Sequence[KeyTable]) -> KeyTable:
    """Ids of a range, of those of all parts."""
    if len(parts) == 1:
        return parts[0]
    ids = merged([part.ids for part in parts])
    strengths, places = np.zeros((2, len(ids))), Places(ids)
    for part in parts:
        strengths[:, places(part.ids)] += part.strengths
    return KeyTable(ids, strengths)


def block_of(
    index: int, parcels: Sequence[Parcel], sides: Sequence[Side], cuts: dict[str, Array]
) -> KeyedBlock:
    """The block of a range and a side, of all parcels: all sides of a range, then of the next."""
    from daskml_dist.backends.csr_order import in_rows

    lane, at = divmod(index, len(sides))
    side = sides[at]
    pieces = _in_order([pair for parcel in parcels for pair in parcel.pieces[at, lane]])
    tables = _in_order([pair for parcel in parcels for pair in parcel.tables[side.rows, lane]])
    table = table_of(tables)
    touched = merged([piece.column_ids for piece in pieces])
    row_of, column_of = Places(table.ids), Places(touched)
    rows = np.concatenate([row_of(piece.row_ids)[piece.rows] for piece in pieces])
    columns = np.concatenate([column_of(piece.column_ids)[piece.columns] for piece in pieces])
    values = [piece.values for piece in pieces if piece.values is not None]
    place = by_use(np.bincount(columns, minlength=len(touched)))
    given = np.concatenate(values) if values else None
    indptr, indices, given = in_rows(rows, columns, given, (len(table.ids), len(touched)))
    return KeyedBlock(
        index=index,
        rows=place[indices],
        side=side,
        lane=lane,
        column_cuts=cuts[side.columns],
        ids=table.ids,
        strengths=table.strengths,
        indptr=indptr,
        touched=touched,
        place=place,
        values=given,
    )
