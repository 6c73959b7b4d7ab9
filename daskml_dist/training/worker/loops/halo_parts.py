"""Rows a part at a time, where the values that all of them touch do not fit beside the own ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Communicator
from daskml_dist.data.keyed.cut import KeyedBlock
from daskml_dist.data.keyed.ids import Places, merged
from daskml_dist.solvers.keyed import KeyedRows, KeyRange
from daskml_dist.training.worker.loops.halo import ExchangeBuffers, Owners, exchanged

__all__ = ["Part", "Slice", "parts_of", "slices_of", "taken"]

Array = NDArray[Any]


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
    wanted = merged([block.touched for block in blocks])
    numbers, at = owners.numbers(wanted, blocks[0].column_cuts), Places(wanted)
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
