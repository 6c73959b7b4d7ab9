"""Exchange of keys' values between trainers: each fetches the values that its entries touch.

These values are the trainer's *halo*. A `Halo` is a plan, made once, of the values that each
trainer sends to each other trainer. `plan_row_parts` makes such plans for some rows at a time, if
the values that all rows touch do not fit in memory. `KeyOwners` finds the trainer that owns a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Communicator
from daskml_dist.comm.packing import pack_ids, unpack_ids
from daskml_dist.data.keyed.cut import KeyedBlock, rank_by_use
from daskml_dist.data.keyed.ids import IdLookup, merge_ids
from daskml_dist.solvers.keyed import KeyedRows, KeyRange

Array = NDArray[Any]
#: Bytes of a cache line.
_CACHE_LINE_BYTES = 64
#: Own values that are moved at a time, so that the indices stay in the cache.
_VALUES_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class EntrySlice:
    """Range of whole rows of a lane, or of the entries of one long row.

    Parameters
    ----------
    rows : slice
    entries : slice
    of_row : tuple of int, or None
        For a piece of a row: the number of the row's entries before the piece, and in total. None
        for whole rows.
    """

    rows: slice
    entries: slice
    of_row: tuple[int, int] | None = None


@dataclass(frozen=True)
class TouchedRows:
    """Some rows of each own lane, and the function that fetches the values that they touch."""

    fetch: Callable[[Array], Array]
    rows: list[KeyedRows]


def cut_rows_by_entries(
    indptr: NDArray[np.int64], most: int, piece: int | None
) -> tuple[list[EntrySlice], list[EntrySlice]]:
    """Return pieces of long rows, and runs of whole rows, each of about `most` entries at most.

    `piece` is the unit of entries at which long rows may be cut; None: they stay whole.
    """
    sizes = np.diff(indptr)
    # Rows longer than a part (popular items) are cut; the sums of their pieces are joined later.
    long = np.flatnonzero(sizes > max(most, piece)).tolist() if piece else []
    pieces, runs = [], []
    for row in long:
        start, n = int(indptr[row]), int(sizes[row])
        # Cuts are at multiples of `piece`, so that sums of pieces do not depend on the free memory.
        step = max(most // (piece or 1), 1) * (piece or 1)
        for at in range(0, n, step):
            entries = slice(start + at, start + min(at + step, n))
            pieces.append(EntrySlice(slice(row, row + 1), entries, (at, n)))
    for before, end in pairwise([-1, *long, len(sizes)]):
        row = before + 1
        while row < end:
            # As many whole rows as have `most` entries in total.
            last = int(np.searchsorted(indptr, indptr[row] + most, side="right")) - 1
            stop = min(max(last, row + 1), end)
            runs.append(EntrySlice(slice(row, stop), slice(int(indptr[row]), int(indptr[stop]))))
            row = stop
    return pieces, runs


def take_row_slice(rows: KeyedRows, some: EntrySlice, indices: Array) -> KeyedRows:
    """Return a slice of a lane's rows, with new indices for its entries."""
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


def plan_row_parts(
    communicator: Communicator,
    owners: KeyOwners,
    blocks: Sequence[KeyedBlock],
    ranges: Sequence[KeyRange],
    ready: Callable[[KeyedRows], KeyedRows],
    most: int,
    piece: int | None,
) -> tuple[list[TouchedRows], list[TouchedRows]]:
    """Return parts of pieces of long rows, and of whole rows; equally many in each trainer."""
    wanted = merge_ids([block.touched for block in blocks])
    # The numbers of all touched ids are looked up once for all parts.
    numbers, at = owners.numbers(wanted, blocks[0].column_cuts), IdLookup(wanted)
    lanes = []
    for block, own in zip(blocks, ranges, strict=True):
        key_numbers = np.empty(len(block.touched), np.int64)
        key_numbers[block.place] = numbers[at(block.touched)]
        rows = ready(KeyedRows(own, block.indptr, block.indices, block.values))
        lanes.append(
            (
                rows,
                key_numbers,
                cut_rows_by_entries(rows.indptr, max(most // len(blocks), 1), piece),
            )
        )
    del wanted, numbers, at
    # Exchanges are collective, so a trainer with fewer parts joins with empty ones.
    counts = [max(len(cut[kind]) for *_, cut in lanes) for kind in (0, 1)]
    all_ = [found for (found,) in communicator.allgather([np.array(counts, np.int64)])]
    buffers, found = ExchangeBuffers(), list[list[TouchedRows]]()
    for kind, n in enumerate(np.max(all_, axis=0).tolist()):
        found.append([])
        for i in range(n):
            some = [
                (rows, key_numbers, cut[kind][i])
                for rows, key_numbers, cut in lanes
                if i < len(cut[kind])
            ]
            found[-1].append(_make_part(communicator, owners, some, buffers))
    return found[0], found[1]


def _make_part(
    communicator: Communicator,
    owners: KeyOwners,
    some: Sequence[tuple[KeyedRows, NDArray[np.int64], EntrySlice]],
    buffers: ExchangeBuffers,
) -> TouchedRows:
    """Return one part with its exchange plan, made by all trainers together."""
    wanted, used = [np.empty(0, np.int64)], []
    for lane, numbers, cut in some:
        found = np.zeros(len(numbers), np.bool_)
        found[lane.indices[cut.entries]] = True
        used.append(np.flatnonzero(found))
        wanted.append(numbers[used[-1]])
    fetch = _PartFetch(communicator, owners, np.concatenate(wanted), buffers)
    rows, first = [], 0
    for (lane, numbers, cut), own in zip(some, used, strict=True):
        place = np.empty(len(numbers), np.int32)
        place[own] = fetch.place[first : first + len(own)]
        rows.append(take_row_slice(lane, cut, place[lane.indices[cut.entries]]))
        first += len(own)
    del fetch.place  # it is contained in the rows now
    return TouchedRows(fetch, rows)


class _PartFetch:
    """Exchange plan of a part's values, like `Halo`, ordered by their owners."""

    def __init__(
        self,
        communicator: Communicator,
        owners: KeyOwners,
        numbers: NDArray[np.int64],
        buffers: ExchangeBuffers,
    ) -> None:
        self._communicator, self._buffers = communicator, buffers
        places = owners.group_by_owner(numbers)
        #: Position of the value of each of `numbers` in the result.
        self.place = np.empty(len(numbers), np.int32)
        self.place[np.concatenate(places)] = np.arange(len(numbers), dtype=np.int32)
        self._ends = np.cumsum([len(at) for at in places]).tolist()
        wanted_numbers = communicator.alltoall([numbers[at] for at in places])
        self._sent_positions = [owners.positions(some).astype(np.int32) for some in wanted_numbers]

    def __call__(self, values: Array) -> Array:
        rank = self._communicator.rank
        found = exchange_values(self._communicator, values, self._sent_positions, self._buffers)
        buffer = self._buffers.get_buffer(values, self._ends[-1], "wanted")
        for r, (start, stop) in enumerate(pairwise([0, *self._ends])):
            if r == rank:
                np.take(
                    values, self._sent_positions[r], axis=0, out=buffer[start:stop], mode="clip"
                )
            else:
                buffer[start:stop] = found[r]
        return buffer


class KeyOwners:
    """Owner of each key of a space, and the position of a key's values at its owner.

    Parameters
    ----------
    communicator : Communicator
    bounds : ndarray of int64 of shape (n_lanes + 1,)
        Number of the first key of each lane, then the number of all keys.
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
        # Rank of each lane: every rank sends the numbers of its lanes.
        self._owner = np.zeros(len(bounds) - 1, np.intp)
        for rank, (rank_lanes,) in enumerate(communicator.allgather([lanes])):
            self._owner[rank_lanes] = rank

    def numbers(self, ids: Array, cuts: Array) -> NDArray[np.int64]:
        """Return the numbers of sorted ids, as their owners assign them."""
        # Lanes are ranges of ids, so each owns a slice of the sorted ids, which its trainer
        # numbers.
        edges = [0, *np.searchsorted(ids, cuts, side="right").tolist(), len(ids)]
        parts = [ids[a:b] for a, b in pairwise(edges)]
        wanted_ids = self._communicator.alltoall(
            [
                pack_ids([parts[k] for k in self._lanes_of_rank(r)])
                for r in range(self._communicator.size)
            ]
        )
        found = self._communicator.alltoall(
            [self._number_own_ids(unpack_ids(some)) for some in wanted_ids]
        )
        # Answers are ordered by rank, and within a rank by lane.
        out = np.empty(len(ids), np.int64)
        for rank, rank_numbers in enumerate(found):
            lanes = self._lanes_of_rank(rank)
            ends = np.cumsum([len(parts[lane]) for lane in lanes])[:-1]
            for lane, some in zip(lanes, np.split(rank_numbers, ends), strict=True):
                out[edges[lane] : edges[lane + 1]] = some
        return out

    def _lanes_of_rank(self, rank: int) -> list[int]:
        """Return the lanes of a trainer."""
        found: list[int] = np.flatnonzero(self._owner == rank).tolist()
        return found

    def _number_own_ids(self, ids: list[Array]) -> NDArray[np.int64]:
        """Return the numbers of the ids of each own lane, one lane after the other."""
        found = [
            IdLookup(own.ids)(some).astype(np.int64) + own.first
            for own, some in zip(sorted(self._own, key=lambda at: at.lane), ids, strict=True)
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def group_by_owner(self, numbers: NDArray[np.int64]) -> list[NDArray[np.intp]]:
        """Return, by rank, the positions in `numbers` of the keys that it owns."""
        # A lane without keys begins at the same number as the next lane; the last such lane is the
        # owner.
        of_rank = self._owner[np.searchsorted(self._bounds, numbers, side="right") - 1]
        return [np.flatnonzero(of_rank == rank) for rank in range(self._communicator.size)]

    def positions(self, numbers: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the positions of own keys in the own array of values."""
        lane = np.searchsorted(self._firsts, numbers, side="right") - 1
        found: NDArray[np.intp] = (numbers - self._firsts[lane] + self._starts[lane]).astype(
            np.intp
        )
        return found

    def send_to_owners(
        self, numbers: NDArray[np.int64], parts: Array
    ) -> tuple[NDArray[np.intp], Array]:
        """Send parts to the owners of keys; return own keys' positions and the parts of all."""
        places = self.group_by_owner(numbers)
        wanted_numbers = self._communicator.alltoall([numbers[at] for at in places])
        given = self._communicator.alltoall([parts[at] for at in places])
        return self.positions(np.concatenate(wanted_numbers)), np.concatenate(given)

    def at(self, numbers: NDArray[np.int64], values: Array) -> Array:
        """Return the values of any keys, fetched from their owners."""
        places = self.group_by_owner(numbers)
        wanted_numbers = self._communicator.alltoall([numbers[at] for at in places])
        found = self._communicator.alltoall(
            [values[self.positions(some)] for some in wanted_numbers]
        )
        out = np.empty((len(numbers), *values.shape[1:]), values.dtype)
        for at, some in zip(places, found, strict=True):
            out[at] = some
        return out


class ExchangeBuffers:
    """Arrays for received values, allocated once: the first write to new memory is slow."""

    def __init__(self) -> None:
        self._kept: dict[Any, Array] = {}

    def get_buffer(self, values: Array, n: int, name: Any) -> Array:
        """Return an array for `n` values of this shape and dtype, aligned to a cache line."""
        kept = self._kept.get(name)
        known = kept is not None and (kept.dtype, kept.shape[1:]) == (
            values.dtype,
            values.shape[1:],
        )
        # Grown when needed, never shrunk.
        if kept is None or not known or len(kept) < n:
            shape = (n, *values.shape[1:])
            size = math.prod(shape) * values.dtype.itemsize
            buffer = np.empty(size + _CACHE_LINE_BYTES, np.uint8)
            # Skip the bytes before a cache line, so that values begin at one.
            start = -buffer.ctypes.data % _CACHE_LINE_BYTES
            kept = self._kept[name] = buffer[start : start + size].view(values.dtype).reshape(shape)
        return kept[:n]


class Halo:
    """Plan of the values that a trainer receives from each trainer, and sends to each.

    Parameters
    ----------
    communicator : Communicator
    owners : KeyOwners
        Owners of the keys.
    numbers : ndarray of int64 of shape (n,)
        Numbers of the keys whose values are fetched, in the order of the result.
    """

    def __init__(
        self, communicator: Communicator, owners: KeyOwners, numbers: NDArray[np.int64]
    ) -> None:
        self._communicator, self._n, self._buffers = communicator, len(numbers), ExchangeBuffers()
        #: Positions in the result of the values from each rank.
        self._place = owners.group_by_owner(numbers)
        # Each rank learns once which of its values the others need.
        wanted_numbers = communicator.alltoall([numbers[at] for at in self._place])
        #: Positions of the own values that are sent to each rank.
        self._sent_positions = [owners.positions(some) for some in wanted_numbers]

    def fetch(self, values: Array) -> Array:
        """Return the fetched values, from all ranks; valid until the next call."""
        found = exchange_values(self._communicator, values, self._sent_positions, self._buffers)
        rank, buffer = self._communicator.rank, self._buffers.get_buffer(values, self._n, "wanted")
        for r, at in enumerate(self._place):
            if r != rank:
                buffer[at] = found[r]
        own, to = self._sent_positions[rank], self._place[rank]
        # Own values never leave the process; they are copied in tiles.
        for start in range(0, len(own), _VALUES_AT_ONCE):
            some = slice(start, start + _VALUES_AT_ONCE)
            buffer[to[some]] = values[own[some]]
        return buffer


def exchange_values(
    communicator: Communicator,
    values: Array,
    positions_by_rank: Sequence[NDArray[Any]],
    buffers: ExchangeBuffers,
) -> list[Array]:
    """Send own values, by positions for each rank; return the values received, by rank."""
    given = []
    for r, at in enumerate(positions_by_rank):
        own = r == communicator.rank
        given.append(buffers.get_buffer(values, 0 if own else len(at), r))
        if not own:
            np.take(values, at, axis=0, out=given[r], mode="clip")
    return communicator.alltoall(given)


def arrange_touched_keys(
    blocks: Sequence[KeyedBlock],
) -> tuple[Array, list[Array], NDArray[np.int32]]:
    """Return the sorted ids of all touched keys, the entries' new indices, and the ids' positions.

    Positions are in order of decreasing use, so that values that many entries touch share cache
    lines.
    """
    if len(blocks) == 1:
        return blocks[0].touched, [blocks[0].indices], blocks[0].place
    wanted = merge_ids([block.touched for block in blocks])
    at = IdLookup(wanted)
    # Number of each block's values among all touched keys.
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
