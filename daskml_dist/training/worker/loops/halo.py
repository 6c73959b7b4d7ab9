"""Rows a part at a time, where the values that all of them touch do not fit beside the own ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Communicator
from daskml_dist.comm.ids import pack_ids, unpack_ids
from daskml_dist.data.keyed.cut import KeyedBlock, rank_by_use
from daskml_dist.data.keyed.ids import IdLookup, merge_ids
from daskml_dist.solvers.keyed import KeyedRows, KeyRange

__all__ = ["Halo", "Owners", "Part", "Slice", "arranged", "parts_of", "slices_of", "taken"]


Array = NDArray[Any]
#: Bytes of a cache line.
_LINE = 64
#: Own values that are moved at once.
_MOVED = 1 << 14


@dataclass(frozen=True)
class Slice:
    """Neighbouring rows of a lane, or some entries of one row.

    Parameters
    ----------
    rows : slice
    entries : slice
    of_row : tuple of int, or None
        As of `KeyedRows`.
    """

    rows: slice
    entries: slice
    of_row: tuple[int, int] | None = None


@dataclass(frozen=True)
class Part:
    """Some rows of each own lane, and the plan of the values that they touch."""

    fetch: Callable[[Array], Array]
    rows: list[KeyedRows]


def slices_of(
    indptr: NDArray[np.int64], most: int, piece: int | None
) -> tuple[list[Slice], list[Slice]]:
    """Pieces of long rows, in order, and runs of whole ones, each of few entries.

    Parameters
    ----------
    indptr : ndarray of int64 of shape (n + 1,)
    most : int
        Entries of each; one piece, or one row that is not cut, may have more.
    piece : int or None
        Rows may be cut at multiples of so many entries; None: no row is.
    """
    sizes = np.diff(indptr)
    long = np.flatnonzero(sizes > max(most, piece)).tolist() if piece else []
    pieces, runs = [], []
    for row in long:
        start, n = int(indptr[row]), int(sizes[row])
        step = max(most // (piece or 1), 1) * (piece or 1)
        for at in range(0, n, step):
            entries = slice(start + at, start + min(at + step, n))
            pieces.append(Slice(slice(row, row + 1), entries, (at, n)))
    for before, end in pairwise([-1, *long, len(sizes)]):
        row = before + 1
        while row < end:
            last = int(np.searchsorted(indptr, indptr[row] + most, side="right")) - 1
            stop = min(max(last, row + 1), end)
            runs.append(Slice(slice(row, stop), slice(int(indptr[row]), int(indptr[stop]))))
            row = stop
    return pieces, runs


def taken(rows: KeyedRows, some: Slice, indices: Array) -> KeyedRows:
    """A slice of a lane's rows, whose entries point elsewhere."""
    own, entries = rows.range, some.entries
    a, b = some.rows.start, some.rows.stop
    start = own.own.start
    return KeyedRows(
        KeyRange(
            own.lane,
            own.first + a,
            slice(start + a, start + b),
            own.ids[a:b],
            own.strengths[:, a:b],
        ),
        np.clip(rows.indptr[a : b + 1], entries.start, entries.stop) - entries.start,
        indices,
        None if rows.values is None else rows.values[entries],
        some.of_row,
    )


def parts_of(
    communicator: Communicator,
    owners: Owners,
    blocks: Sequence[KeyedBlock],
    ranges: Sequence[KeyRange],
    ready: Callable[[KeyedRows], KeyedRows],
    most: int,
    piece: int | None,
) -> tuple[list[Part], list[Part]]:
    """Parts of pieces of long rows, and parts of whole rows; every trainer has as many.

    Parameters
    ----------
    communicator : Communicator
    owners : Owners
        Of the side's columns.
    blocks : sequence of KeyedBlock
        Of one side, of the own lanes.
    ranges : sequence of KeyRange
        Of their rows.
    ready : callable
        Applied to each lane's rows first.
    most : int
        Values that a part has room for.
    piece : int or None
        As of `slices_of`.
    """
    wanted = merge_ids([block.touched for block in blocks])
    numbers, at = owners.numbers(wanted, blocks[0].column_cuts), IdLookup(wanted)
    lanes = []
    for block, own in zip(blocks, ranges, strict=True):
        its = np.empty(len(block.touched), np.int64)
        its[block.place] = numbers[at(block.touched)]
        rows = ready(KeyedRows(own, block.indptr, block.indices, block.values))
        lanes.append((rows, its, slices_of(rows.indptr, max(most // len(blocks), 1), piece)))
    del wanted, numbers, at
    counts = [max(len(cut[kind]) for *_, cut in lanes) for kind in (0, 1)]
    all_ = [found for (found,) in communicator.allgather([np.array(counts, np.int64)])]
    rooms, found = ExchangeBuffers(), list[list[Part]]()
    for kind, n in enumerate(np.max(all_, axis=0).tolist()):
        found.append([])
        for i in range(n):
            some = [(rows, its, cut[kind][i]) for rows, its, cut in lanes if i < len(cut[kind])]
            found[-1].append(_part(communicator, owners, some, rooms))
    return found[0], found[1]


def _part(
    communicator: Communicator,
    owners: Owners,
    some: Sequence[tuple[KeyedRows, NDArray[np.int64], Slice]],
    rooms: ExchangeBuffers,
) -> Part:
    wanted, used = [np.empty(0, np.int64)], []
    for lane, numbers, cut in some:
        found = np.zeros(len(numbers), np.bool_)
        found[lane.indices[cut.entries]] = True
        used.append(np.flatnonzero(found))
        wanted.append(numbers[used[-1]])
    fetch = _Fetch(communicator, owners, np.concatenate(wanted), rooms)
    rows, first = [], 0
    for (lane, numbers, cut), own in zip(some, used, strict=True):
        place = np.empty(len(numbers), np.int32)
        place[own] = fetch.place[first : first + len(own)]
        rows.append(taken(lane, cut, place[lane.indices[cut.entries]]))
        first += len(own)
    del fetch.place  # it is in the rows now
    return Part(fetch, rows)


class _Fetch:
    """Plan of a part's values, as `Halo`; they come in the order of their owners."""

    def __init__(
        self,
        communicator: Communicator,
        owners: Owners,
        numbers: NDArray[np.int64],
        rooms: ExchangeBuffers,
    ) -> None:
        self._communicator, self._rooms = communicator, rooms
        places = owners.places(numbers)
        #: Where the value of each of `numbers` comes.
        self.place = np.empty(len(numbers), np.int32)
        self.place[np.concatenate(places)] = np.arange(len(numbers), dtype=np.int32)
        self._ends = np.cumsum([len(at) for at in places]).tolist()
        asked = communicator.alltoall([numbers[at] for at in places])
        self._give = [owners.positions(some).astype(np.int32) for some in asked]

    def __call__(self, values: Array) -> Array:
        rank = self._communicator.rank
        found = exchanged(self._communicator, values, self._give, self._rooms)
        room = self._rooms.like(values, self._ends[-1], "wanted")
        for r, (start, stop) in enumerate(pairwise([0, *self._ends])):
            if r == rank:
                np.take(values, self._give[r], axis=0, out=room[start:stop], mode="clip")
            else:
                room[start:stop] = found[r]
        return room


class Owners:
    """Owners of the keys of a space, and where each has its keys' values.

    Parameters
    ----------
    communicator : Communicator
    bounds : ndarray of int64 of shape (n_lanes + 1,)
        Number of the first key of each lane, and of all keys.
    own : sequence of KeyRange
    """

    def __init__(
        self, communicator: Communicator, bounds: NDArray[np.int64], own: Sequence[KeyRange]
    ) -> None:
        self._communicator = communicator
        self._bounds = bounds
        self._own = own
        self._firsts = np.array([at.first for at in own])
        self._starts = np.array([at.own.start for at in own])
        lanes = np.array([at.lane for at in own], np.int64)
        self._owner = np.zeros(len(bounds) - 1, np.intp)
        for rank, (its,) in enumerate(communicator.allgather([lanes])):
            self._owner[its] = rank

    def numbers(self, ids: Array, cuts: Array) -> NDArray[np.int64]:
        """Numbers of sorted ids, as their owners know them.

        Parameters
        ----------
        ids : ndarray
        cuts : ndarray
            Last id of each lane's range but the last lane's.
        """
        edges = [0, *np.searchsorted(ids, cuts, side="right").tolist(), len(ids)]
        parts = [ids[a:b] for a, b in pairwise(edges)]
        asked = self._communicator.alltoall(
            [pack_ids([parts[k] for k in self._lanes(r)]) for r in range(self._communicator.size)]
        )
        found = self._communicator.alltoall([self._numbered(unpack_ids(some)) for some in asked])
        out = np.empty(len(ids), np.int64)
        for rank, its in enumerate(found):
            lanes = self._lanes(rank)
            ends = np.cumsum([len(parts[lane]) for lane in lanes])[:-1]
            for lane, some in zip(lanes, np.split(its, ends), strict=True):
                out[edges[lane] : edges[lane + 1]] = some
        return out

    def _lanes(self, rank: int) -> list[int]:
        found: list[int] = np.flatnonzero(self._owner == rank).tolist()
        return found

    def _numbered(self, ids: list[Array]) -> NDArray[np.int64]:
        """Numbers of ids of each own lane, one lane after the other."""
        found = [
            IdLookup(own.ids)(some).astype(np.int64) + own.first
            for own, some in zip(sorted(self._own, key=lambda at: at.lane), ids, strict=True)
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def places(self, numbers: NDArray[np.int64]) -> list[NDArray[np.intp]]:
        """Places of each rank's keys among some."""
        # Of lanes without keys several begin at one number: the last of them has it.
        of_rank = self._owner[np.searchsorted(self._bounds, numbers, side="right") - 1]
        return [np.flatnonzero(of_rank == rank) for rank in range(self._communicator.size)]

    def positions(self, numbers: NDArray[np.int64]) -> NDArray[np.intp]:
        """Positions of own keys in the own array."""
        lane = np.searchsorted(self._firsts, numbers, side="right") - 1
        found: NDArray[np.intp] = (numbers - self._firsts[lane] + self._starts[lane]).astype(
            np.intp
        )
        return found

    def sent(self, numbers: NDArray[np.int64], parts: Array) -> tuple[NDArray[np.intp], Array]:
        """Give parts to the owners of keys; what others gave for the own ones, by rank."""
        places = self.places(numbers)
        asked = self._communicator.alltoall([numbers[at] for at in places])
        given = self._communicator.alltoall([parts[at] for at in places])
        return self.positions(np.concatenate(asked)), np.concatenate(given)

    def at(self, numbers: NDArray[np.int64], values: Array) -> Array:
        """Values of any keys, of the own ones of all ranks."""
        places = self.places(numbers)
        asked = self._communicator.alltoall([numbers[at] for at in places])
        found = self._communicator.alltoall([values[self.positions(some)] for some in asked])
        out = np.empty((len(numbers), *values.shape[1:]), values.dtype)
        for at, some in zip(places, found, strict=True):
            out[at] = some
        return out


class ExchangeBuffers:
    """Memory that is kept for values: to be given fresh memory takes longer than to fill it."""

    def __init__(self) -> None:
        self._kept: dict[Any, Array] = {}

    def like(self, values: Array, n: int, name: Any) -> Array:
        """Room for n values like some, whose rows begin at whole cache lines as far as they can."""
        kept = self._kept.get(name)
        known = kept is not None and (kept.dtype, kept.shape[1:]) == (
            values.dtype,
            values.shape[1:],
        )
        if kept is None or not known or len(kept) < n:
            kept = self._kept[name] = _on_lines((n, *values.shape[1:]), values.dtype)
        return kept[:n]


def _on_lines(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    return room[start : start + size].view(dtype).reshape(shape)


class Halo:
    """Plan of whose values a trainer gets, and whom it gives its own.

    Parameters
    ----------
    communicator : Communicator
    owners : Owners
        Of the keys.
    numbers : ndarray of int64 of shape (n,)
        Of the keys whose values are wanted, in the order in which they are.
    """

    def __init__(
        self, communicator: Communicator, owners: Owners, numbers: NDArray[np.int64]
    ) -> None:
        self._communicator, self._n, self._rooms = communicator, len(numbers), ExchangeBuffers()
        #: Where what comes of each rank is put.
        self._place = owners.places(numbers)
        asked = communicator.alltoall([numbers[at] for at in self._place])
        #: Which of the own values each rank gets.
        self._give = [owners.positions(some) for some in asked]

    def fetch(self, values: Array) -> Array:
        """The wanted values, of the own ones of all ranks; good until the next call."""
        found = exchanged(self._communicator, values, self._give, self._rooms)
        rank, room = self._communicator.rank, self._rooms.like(values, self._n, "wanted")
        for r, at in enumerate(self._place):
            if r != rank:
                room[at] = found[r]
        own, to = self._give[rank], self._place[rank]
        for start in range(0, len(own), _MOVED):
            some = slice(start, start + _MOVED)
            room[to[some]] = values[own[some]]
        return room


def exchanged(
    communicator: Communicator, values: Array, give: Sequence[NDArray[Any]], rooms: ExchangeBuffers
) -> list[Array]:
    """Values that other ranks have for this one, by rank; what is its own goes nowhere.

    Parameters
    ----------
    communicator : Communicator
    values : ndarray of shape (n_own, ...)
    give : sequence of ndarray of int
        Which of them each rank gets.
    rooms : ExchangeBuffers
    """
    given = []
    for r, at in enumerate(give):
        own = r == communicator.rank
        given.append(rooms.like(values, 0 if own else len(at), r))
        if not own:
            np.take(values, at, axis=0, out=given[r], mode="clip")
    return communicator.alltoall(given)


def arranged(blocks: Sequence[KeyedBlock]) -> tuple[Array, list[Array], NDArray[np.int32]]:
    """Ids of all touched keys, sorted; where the entries' values lie; and where each id's does.

    Parameters
    ----------
    blocks : sequence of KeyedBlock
        Of one side, of the own lanes.
    """
    if len(blocks) == 1:
        return blocks[0].touched, [blocks[0].indices], blocks[0].place
    wanted = merge_ids([block.touched for block in blocks])
    at = IdLookup(wanted)
    #: Of each block's values, which of all touched keys they are of.
    of_value = []
    uses = np.zeros(len(wanted), np.int64)
    for block in blocks:
        which = np.empty(len(block.touched), np.int32)
        which[block.place] = at(block.touched)
        uses[which] += np.bincount(block.indices, minlength=len(which))
        of_value.append(which)
    place = rank_by_use(uses)
    return (
        wanted,
        [place[which][block.indices] for block, which in zip(blocks, of_value, strict=True)],
        place,
    )
