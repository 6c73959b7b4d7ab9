"""Entries partitioned by ranges of their keys: the functions that tasks apply to parts of a frame.

A part numbers its ids locally (`NumberedEntries`). A sample of each part's ids, with their numbers
of entries, determines key ranges with equal numbers of entries. Then each part is split by the
ranges of its row keys (`EntryParcel`). The pieces of a range from all parts are merged to its ids
and its entries. No process holds all ids, or all entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.blocks import Block
from daskml_dist.data.keyed.ids import IdLookup, check_one_kind, factorize_columns, merge_ids
from daskml_dist.errors import InvalidDataError
from daskml_dist.solvers.keyed import EntrySide

Array = NDArray[Any]

#: Ids sampled per part to choose the ranges: with a thousand, a part's share of a range is accurate
#: to a thousandth of its entries.
_SAMPLE_IDS = 1024


@dataclass(frozen=True, eq=False)
class NumberedEntries:
    """A part's entries, with ids as positions among the part's ids.

    Parameters
    ----------
    ids : tuple of (first, second)
        Sorted distinct ids of the first and of the second keys; of both together if they share a
        space.
    codes : tuple of (first, second)
        Positions in `ids`, as int32.
    values : ndarray of float64 or float32, or None
        float32 if that holds all of them exactly.
    """

    ids: tuple[Array, Array]
    codes: tuple[Array, Array]
    values: Array | None

    def __len__(self) -> int:
        return len(self.codes[0])

    def __sizeof__(self) -> int:
        # Dask calls this to budget a worker's memory.
        return _count_bytes([*self.ids, *self.codes, self.values])

    def sum_by_key(self, key_index: int) -> NDArray[np.float64]:
        """Return the sum of the values of the entries of each of `ids[key_index]`."""
        return _sum_values(self.codes[key_index], self.values, len(self.ids[key_index]))


@dataclass(frozen=True, eq=False)
class EntryPiece:
    """Entries of a part whose row keys are in one range.

    Parameters
    ----------
    rows, columns : ndarray of int32
        Positions among `row_ids` (all ids of the part in the range) and `column_ids`.
    row_key_index : {0, 1}
        Index of the key (first or second) that is the row.
    strengths : ndarray of float64 of shape (2, n), or None
        As in `KeyTable`; None if they can be computed from `rows` and the values.
    """

    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    row_ids: Array
    column_ids: Array
    values: Array | None
    row_key_index: int
    strengths: NDArray[np.float64] | None

    @property
    def table(self) -> KeyTable:
        """Return the ids of the rows, and their strengths."""
        strengths = self.strengths
        if strengths is None:
            strengths = np.zeros((2, len(self.row_ids)))
            strengths[self.row_key_index] = _sum_values(self.rows, self.values, len(self.row_ids))
        return KeyTable(self.row_ids, strengths)


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Sorted ids of one range of a space, and their strengths."""

    ids: Array
    strengths: NDArray[np.float64]

    def __sizeof__(self) -> int:
        # Dask calls this to budget a worker's memory.
        return _count_bytes([self.ids, self.strengths])


@dataclass(frozen=True, eq=False)
class EntryParcel:
    """Pieces of some parts for some ranges, on one side: the unit sent between workers.

    Parameters
    ----------
    pieces : dict of int to list of (int, EntryPiece)
        Keyed by the number of the range; each piece with the number of its part.
    """

    pieces: dict[int, list[tuple[int, EntryPiece]]]

    def __sizeof__(self) -> int:
        # Dask calls this to budget a worker's memory.
        pieces = (piece for range_pieces in self.pieces.values() for _, piece in range_pieces)
        return sum(
            _count_bytes([p.rows, p.columns, p.row_ids, p.column_ids, p.values, p.strengths])
            for p in pieces
        )

    def select_ranges(self, ranges: range) -> EntryParcel:
        """Return the pieces of some of the ranges."""
        return EntryParcel(
            {number: pieces for number, pieces in self.pieces.items() if number in ranges}
        )


def _count_bytes(arrays: Sequence[Array | None]) -> int:
    """Return the number of bytes of arrays together; None counts 0."""
    return sum(array.nbytes for array in arrays if array is not None)


def _sum_values(codes: Array, values: Array | None, n: int) -> NDArray[np.float64]:
    """Return the sum of the values of each code, or the number of entries without values."""
    return np.bincount(codes, values, n).astype(np.float64)


def number_part(first: Array, second: Array, values: Any, shared: bool) -> NumberedEntries:
    """Return a part's entries with numbered ids; `shared`: both columns are in one space."""
    values = None if values is None else _narrow_values(values)
    if shared:
        ids, (a, b) = factorize_columns([first, second])
        return NumberedEntries((ids, ids), (a, b), values)
    (first_ids, (a,)), (second_ids, (b,)) = factorize_columns([first]), factorize_columns([second])
    return NumberedEntries((first_ids, second_ids), (a, b), values)


def _narrow_values(values: NDArray[np.float64]) -> Array:
    """Return the values as float32 if that holds all of them exactly, else unchanged."""
    with np.errstate(over="ignore"):
        narrowed = values.astype(np.float32)
    return narrowed if (narrowed == values).all() else values


# -- where ranges are cut --------------------------------------------------------------------------


def sample_ids(part: NumberedEntries, sides: Sequence[EntrySide]) -> dict[str, tuple[Array, Array]]:
    """Return sampled ids of each space, and the number of entries that each represents."""
    samples = {}
    for space in dict.fromkeys(side.rows for side in sides):
        # Entries of each id, summed over the sides whose rows are in its space.
        counts: Any = 0.0
        for side in sides:
            if side.rows == space:
                ids = part.ids[side.row_key_index]
                counts = counts + np.bincount(part.codes[side.row_key_index], minlength=len(ids))
        # A key costs work even without entries.
        total = np.cumsum(counts + 1.0)
        if not len(total):
            samples[space] = ids, total
            continue
        bounds = np.linspace(0, total[-1], min(_SAMPLE_IDS, len(total)) + 1)[1:]
        indices = np.unique(np.searchsorted(total, bounds).clip(max=len(total) - 1))
        samples[space] = ids[indices], np.diff(total[indices], prepend=0.0)
    return samples


def choose_cuts(
    samples: Sequence[dict[str, tuple[Array, Array]]], n_ranges: int
) -> dict[str, Array]:
    """Return the last id of each range except the last, by space."""
    cuts = {}
    for space in samples[0]:
        parts = [sample[space] for sample in samples if len(sample[space][0])]
        if not parts:
            raise InvalidDataError(
                "There are no entries in any part. Check the files or the filter that they "
                "come from."
            )
        check_one_kind([part for part, _ in parts])
        ids = np.concatenate([part for part, _ in parts])
        counts = np.concatenate([part for _, part in parts])
        order = np.argsort(ids, kind="stable")
        total = np.cumsum(counts[order])
        # Equal shares of the entries that the sampled ids represent, whatever the number of ids.
        bounds = total[-1] * np.arange(1, n_ranges) / n_ranges
        # A sampled id is the last one that it represents: the next range begins after it.
        cuts[space] = ids[order][np.searchsorted(total, bounds)]
    return cuts


def _find_range_edges(ids: Array, cuts: Array) -> list[int]:
    """Return the positions among sorted ids at which ranges begin, then the number of ids."""
    inner = np.searchsorted(ids, cuts, side="right") if len(ids) else np.zeros(len(cuts), int)
    return [0, *inner.tolist(), len(ids)]


# -- pieces of a part ------------------------------------------------------------------------------


def _split_into_pieces(part: NumberedEntries, side: EntrySide, cuts: Array) -> list[EntryPiece]:
    """Return a part's entries, split by the range of their row keys."""
    row_ids, column_ids = part.ids[side.row_key_index], part.ids[1 - side.row_key_index]
    rows, columns, values = (
        part.codes[side.row_key_index],
        part.codes[1 - side.row_key_index],
        part.values,
    )
    edges = _find_range_edges(row_ids, cuts)
    # If a key may be both row and column, one piece does not contain all its entries.
    shared = side.rows == side.columns
    sums = np.stack([part.sum_by_key(0), part.sum_by_key(1)]) if shared else None
    if len(edges) == 2:
        return [_make_piece(rows, columns, row_ids, column_ids, values, side.row_key_index, sums)]
    # Range of each entry, from its row key: ids are sorted, so ranges are slices of them.
    range_of = np.repeat(np.arange(len(edges) - 1, dtype=np.uint16), np.diff(edges))[rows]
    # A stable sort keeps the order of the part's entries within each range.
    order = np.argsort(range_of, kind="stable")
    ends = np.cumsum(np.bincount(range_of, minlength=len(edges) - 1))
    del range_of
    pieces = []
    for (a, b), entry_numbers in zip(pairwise(edges), np.split(order, ends[:-1]), strict=True):
        piece_values = None if values is None else values[entry_numbers]
        piece_sums = None if sums is None else sums[:, a:b]
        # Copies, so that the ids of the whole part are not sent with the piece.
        piece_entries = (
            rows[entry_numbers] - np.int32(a),
            columns[entry_numbers],
            row_ids[a:b].copy(),
            column_ids,
            piece_values,
        )
        pieces.append(_make_piece(*piece_entries, side.row_key_index, piece_sums))
    return pieces


def _make_piece(
    rows: Array, columns: Array, row_ids: Array, column_ids: Array, values: Any, row_key_index: int,
    strengths: Any,
) -> EntryPiece:  # fmt: skip
    """Return a piece that holds only the ids of its own columns."""
    # A table over all columns marks the used ones, without a sort.
    is_used = np.zeros(len(column_ids), np.bool_)
    is_used[columns] = True
    # Used columns are renumbered, so that only their ids are sent.
    place = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
    return EntryPiece(
        rows, place[columns], row_ids, column_ids[is_used], values, row_key_index, strengths
    )


def split_keys(part: NumberedEntries, key_index: int, cuts: Array) -> list[KeyTable]:
    """Return a part's first or second ids, by range, with the sums of their entries."""
    ids = part.ids[key_index]
    sums = np.zeros((2, len(ids)))
    sums[key_index] = part.sum_by_key(key_index)
    return [KeyTable(ids[a:b], sums[:, a:b]) for a, b in pairwise(_find_range_edges(ids, cuts))]


def make_parcels(
    part_numbers: Sequence[int], parts: Sequence[NumberedEntries], side: EntrySide, cuts: Array,
    groups: Sequence[range],
) -> list[EntryParcel]:  # fmt: skip
    """Return parcels of the parts `part_numbers`, one for each group of ranges."""
    pieces_by_range: dict[int, list[tuple[int, EntryPiece]]] = {}
    for number, part in zip(part_numbers, parts, strict=True):
        for r, piece in enumerate(_split_into_pieces(part, side, cuts)):
            pieces_by_range.setdefault(r, []).append((number, piece))
    return [EntryParcel(pieces_by_range).select_ranges(group) for group in groups]


def sort_parcels(parcels: Sequence[EntryParcel], groups: Sequence[range]) -> list[EntryParcel]:
    """Merge several parcels, and return one for each group of ranges."""
    pieces_by_range: dict[int, list[tuple[int, EntryPiece]]] = {}
    for parcel in parcels:
        for range_number, pieces in parcel.pieces.items():
            pieces_by_range.setdefault(range_number, []).extend(pieces)
    return [EntryParcel(pieces_by_range).select_ranges(group) for group in groups]


# -- ranges, of the pieces of all parts ------------------------------------------------------------


def merge_key_tables(tables: Sequence[KeyTable]) -> KeyTable:
    """Return the table of a range, merged from the tables of all parts."""
    return _join_tables([part.ids for part in tables], tables)


def _join_tables(id_arrays: Sequence[Array], tables: Iterable[KeyTable]) -> KeyTable:
    """Return the union of tables, with strengths added up in the order of the parts."""
    if len(id_arrays) == 1:
        return next(iter(tables))
    ids = merge_ids(id_arrays)
    strengths, places = np.zeros((2, len(ids))), IdLookup(ids)
    for part in tables:
        strengths[:, places(part.ids)] += part.strengths
    return KeyTable(ids, strengths)


def build_block(
    index: int, parcels: Sequence[EntryParcel], sides: Sequence[EntrySide], cuts: dict[str, Array]
) -> KeyedBlock:
    """Return the block of a lane and side; block numbers enumerate the sides of each lane."""
    from daskml_dist.backends.csr_order import (
        MIN_COMPILED_ENTRIES,
        Entries,
        count_column_entries,
        sort_into_csr,
    )

    lane, side_number = divmod(index, len(sides))
    side = sides[side_number]
    numbered_pieces = [pair for parcel in parcels for pair in parcel.pieces[lane]]
    # Sorted by part, so that the result does not depend on the order of arrival.
    pieces = [piece for _, piece in sorted(numbered_pieces, key=lambda pair: pair[0])]
    table = _join_tables([piece.row_ids for piece in pieces], (piece.table for piece in pieces))
    used_columns = merge_ids([piece.column_ids for piece in pieces])
    row_of, column_of = IdLookup(table.ids), IdLookup(used_columns)

    def read_entries() -> Iterator[Entries]:
        for p in pieces:
            yield Entries(p.rows, p.columns, p.values, row_of(p.row_ids), column_of(p.column_ids))

    # Values of frequently used columns are stored together, so that they stay in the cache.
    n_uses = count_column_entries(read_entries, len(used_columns))
    place, dtype = rank_by_use(n_uses), None
    if pieces[0].values is not None:
        n = sum(len(piece.rows) for piece in pieces)
        # For few values float32 saves little, and loops would have to be compiled for it too.
        dtype = (
            np.result_type(*(piece.values for piece in pieces))
            if n >= MIN_COMPILED_ENTRIES
            else np.float64
        )
    indptr, indices, values = sort_into_csr(read_entries, len(table.ids), n_uses, place, dtype)
    return KeyedBlock(
        index=index,
        rows=indices,
        side=side,
        lane=lane,
        column_cuts=cuts[side.columns],
        ids=table.ids,
        strengths=table.strengths,
        indptr=indptr,
        touched=used_columns,
        place=place,
        values=values,
    )


@dataclass(frozen=True, eq=False)
class KeyedBlock(Block):
    """Block of all entries of a lane's row keys, as a CSR matrix whose `indices` are `rows`.

    Parameters
    ----------
    side : EntrySide
    lane : int
    column_cuts : ndarray
        Last id of each lane's range of column keys, except the last lane's.
    ids : ndarray of shape (n,)
        Ids of the row keys, sorted.
    strengths : ndarray of float64 of shape (2, n)
        For each row key, the sums of the values of all entries with it as first, and as second,
        key.
    indptr : ndarray of int64 of shape (n + 1,)
    indices : ndarray of int32 of shape (n_entries,)
        Positions of the values of column keys; the entries of a row are in the order of these keys.
    touched : ndarray
        Ids of the column keys of all entries, sorted.
    place : ndarray of int32
        Position of the value of each of `touched`: columns with the most entries first, since the
        values of all do not fit in a processor's cache.
    values : ndarray of float64 or float32 of shape (n_entries,), or None
        float32 if that holds all of them exactly and there are many of them.
    """

    # All are passed by name; defaults are needed only because fields of `Block` have defaults.
    side: EntrySide = None  # type: ignore[assignment]
    lane: int = 0
    column_cuts: NDArray[Any] = None  # type: ignore[assignment]
    ids: NDArray[Any] = None  # type: ignore[assignment]
    strengths: NDArray[np.float64] = None  # type: ignore[assignment]
    indptr: NDArray[np.int64] = None  # type: ignore[assignment]
    touched: NDArray[Any] = None  # type: ignore[assignment]
    place: NDArray[np.int32] = None  # type: ignore[assignment]
    values: NDArray[Any] | None = None

    @property
    def indices(self) -> NDArray[np.int32]:
        """Return, for each entry, the position of its column's value."""
        positions: NDArray[np.int32] = self.rows
        return positions

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of all arrays."""
        arrays = [self.rows, self.ids, self.strengths, self.indptr, self.touched, self.place]
        arrays += [self.values]
        return sum(int(array.nbytes) for array in arrays if array is not None)

    def aligned(self) -> KeyedBlock:
        """Return the block with word-aligned arrays: NumPy is slower on unaligned ones."""
        names = ("rows", "strengths", "indptr", "place", "values")
        arrays: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, array in arrays.items():
            if array is not None:
                arrays[name] = np.require(array, requirements=["A", "C"])
        return replace(self, **arrays)


def rank_by_use(uses: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the rank of each item by number of uses, most used first."""
    order = np.argsort(-uses, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place
