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
    indptr: NDArray[np.int64], max_entries: int, n_piece_entries: int | None
) -> tuple[list[EntrySlice], list[EntrySlice]]:
    """Return pieces of long rows, and runs of whole rows, each of about `max_entries` entries.

    `n_piece_entries` is the unit of entries at which long rows may be cut; None: they stay whole.
    """
    sizes = np.diff(indptr)
    # Rows longer than a part (popular items) are cut; the sums of their pieces are joined later.
    long_rows = (
        np.flatnonzero(sizes > max(max_entries, n_piece_entries)).tolist()
        if n_piece_entries
        else []
    )
    pieces, runs = [], []
    for row in long_rows:
        start, n = int(indptr[row]), int(sizes[row])
        # Cuts are at multiples of `piece`, so that sums of pieces do not depend on the free memory.
        step = max(max_entries // (n_piece_entries or 1), 1) * (n_piece_entries or 1)
        for offset in range(0, n, step):
            entries = slice(start + offset, start + min(offset + step, n))
            pieces.append(EntrySlice(slice(row, row + 1), entries, (offset, n)))
    for previous, end in pairwise([-1, *long_rows, len(sizes)]):
        row = previous + 1
        while row < end:
            # As many whole rows as have `max_entries` entries in total.
            last = int(np.searchsorted(indptr, indptr[row] + max_entries, side="right")) - 1
            stop = min(max(last, row + 1), end)
            runs.append(EntrySlice(slice(row, stop), slice(int(indptr[row]), int(indptr[stop]))))
            row = stop
    return pieces, runs


def take_row_slice(rows: KeyedRows, entry_slice: EntrySlice, indices: Array) -> KeyedRows:
    """Return a slice of a lane's rows, with new indices for its entries."""
    key_range, entries = rows.range, entry_slice.entries
    a, b = entry_slice.rows.start, entry_slice.rows.stop
    start = key_range.own_slice.start
    return KeyedRows(
        KeyRange(
            key_range.lane,
            key_range.first + a,
            slice(start + a, start + b),
            key_range.ids[a:b],
            key_range.strengths[:, a:b],
        ),
        np.clip(rows.indptr[a : b + 1], entries.start, entries.stop) - entries.start,
        indices,
        None if rows.values is None else rows.values[entries],
        entry_slice.of_row,
    )


def plan_row_parts(
    communicator: Communicator,
    owners: KeyOwners,
    blocks: Sequence[KeyedBlock],
    ranges: Sequence[KeyRange],
    prepare: Callable[[KeyedRows], KeyedRows],
    max_entries: int,
    n_piece_entries: int | None,
) -> tuple[list[TouchedRows], list[TouchedRows]]:
    """Return parts of pieces of long rows, and of whole rows; equally many in each trainer."""
    touched_ids = merge_ids([block.touched for block in blocks])
    # The numbers of all touched ids are looked up once for all parts.
    numbers, lookup = (
        owners.find_key_numbers(touched_ids, blocks[0].column_cuts),
        IdLookup(touched_ids),
    )
    lanes = []
    for block, key_range in zip(blocks, ranges, strict=True):
        key_numbers = np.empty(len(block.touched), np.int64)
        key_numbers[block.place] = numbers[lookup(block.touched)]
        rows = prepare(KeyedRows(key_range, block.indptr, block.indices, block.values))
        lanes.append(
            (
                rows,
                key_numbers,
                cut_rows_by_entries(
                    rows.indptr, max(max_entries // len(blocks), 1), n_piece_entries
                ),
            )
        )
    del touched_ids, numbers, lookup
    # Exchanges are collective, so a trainer with fewer parts joins with empty ones.
    counts = [max(len(cut[kind]) for *_, cut in lanes) for kind in (0, 1)]
    all_counts = [
        trainer_counts for (trainer_counts,) in communicator.allgather([np.array(counts, np.int64)])
    ]
    buffers, parts = ExchangeBuffers(), list[list[TouchedRows]]()
    for kind, n in enumerate(np.max(all_counts, axis=0).tolist()):
        parts.append([])
        for i in range(n):
            piece_rows = [
                (rows, key_numbers, cut[kind][i])
                for rows, key_numbers, cut in lanes
                if i < len(cut[kind])
            ]
            parts[-1].append(_make_part(communicator, owners, piece_rows, buffers))
    return parts[0], parts[1]


def _make_part(
    communicator: Communicator,
    owners: KeyOwners,
    lane_cuts: Sequence[tuple[KeyedRows, NDArray[np.int64], EntrySlice]],
    buffers: ExchangeBuffers,
) -> TouchedRows:
    """Return one part with its exchange plan, made by all trainers together."""
    wanted_numbers, used_positions = [np.empty(0, np.int64)], []
    for lane, numbers, cut in lane_cuts:
        is_used = np.zeros(len(numbers), np.bool_)
        is_used[lane.indices[cut.entries]] = True
        used_positions.append(np.flatnonzero(is_used))
        wanted_numbers.append(numbers[used_positions[-1]])
    fetch = _PartFetch(communicator, owners, np.concatenate(wanted_numbers), buffers)
    rows, first = [], 0
    for (lane, numbers, cut), positions in zip(lane_cuts, used_positions, strict=True):
        new_indices = np.empty(len(numbers), np.int32)
        new_indices[positions] = fetch.value_positions[first : first + len(positions)]
        rows.append(take_row_slice(lane, cut, new_indices[lane.indices[cut.entries]]))
        first += len(positions)
    del fetch.value_positions  # it is contained in the rows now
    return TouchedRows(fetch, rows)


class _PartFetch:
    """Exchange plan of a part's values, like `Halo`, ordered by their owners."""

    def __init__(
        self,
        communicator: Communicator,
        owners: KeyOwners,
        key_indices: NDArray[np.int64],
        buffers: ExchangeBuffers,
    ) -> None:
        self._communicator, self._buffers = communicator, buffers
        positions_by_owner = owners.group_by_owner(key_indices)
        #: Position of the value of each of `numbers` in the result.
        self.value_positions = np.empty(len(key_indices), np.int32)
        self.value_positions[np.concatenate(positions_by_owner)] = np.arange(
            len(key_indices), dtype=np.int32
        )
        self._owner_ends = np.cumsum([len(positions) for positions in positions_by_owner]).tolist()
        wanted_numbers = communicator.alltoall(
            [key_indices[positions] for positions in positions_by_owner]
        )
        self._sent_positions = [
            owners.positions(rank_numbers).astype(np.int32) for rank_numbers in wanted_numbers
        ]

    def __call__(self, values: Array) -> Array:
        rank = self._communicator.rank
        received = exchange_values(self._communicator, values, self._sent_positions, self._buffers)
        buffer = self._buffers.get_buffer(values, self._owner_ends[-1], "wanted")
        for r, (start, stop) in enumerate(pairwise([0, *self._owner_ends])):
            if r == rank:
                np.take(
                    values, self._sent_positions[r], axis=0, out=buffer[start:stop], mode="clip"
                )
            else:
                buffer[start:stop] = received[r]
        return buffer


class KeyOwners:
    """Owner of each key of a space, and the position of a key's values at its owner.

    Parameters
    ----------
    communicator : Communicator
    bounds : ndarray of int64 of shape (n_lanes + 1,)
        Number of the first key of each lane, then the number of all keys.
    own_ranges : sequence of KeyRange
    """

    def __init__(
        self, communicator: Communicator, bounds: NDArray[np.int64], own_ranges: Sequence[KeyRange]
    ) -> None:
        self._communicator = communicator
        self._bounds = bounds
        self._own_ranges = own_ranges
        self._firsts = np.array([key_range.first for key_range in own_ranges])
        self._starts = np.array([key_range.own_slice.start for key_range in own_ranges])
        lanes = np.array([key_range.lane for key_range in own_ranges], np.int64)
        # Rank of each lane: every rank sends the numbers of its lanes.
        self._owner = np.zeros(len(bounds) - 1, np.intp)
        for rank, (rank_lanes,) in enumerate(communicator.allgather([lanes])):
            self._owner[rank_lanes] = rank

    def find_key_numbers(self, ids: Array, cuts: Array) -> NDArray[np.int64]:
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
        numbers_by_rank = self._communicator.alltoall(
            [self._number_own_ids(unpack_ids(packed_ids)) for packed_ids in wanted_ids]
        )
        # Answers are ordered by rank, and within a rank by lane.
        out = np.empty(len(ids), np.int64)
        for rank, rank_numbers in enumerate(numbers_by_rank):
            lanes = self._lanes_of_rank(rank)
            ends = np.cumsum([len(parts[lane]) for lane in lanes])[:-1]
            for lane, lane_numbers in zip(lanes, np.split(rank_numbers, ends), strict=True):
                out[edges[lane] : edges[lane + 1]] = lane_numbers
        return out

    def _lanes_of_rank(self, rank: int) -> list[int]:
        """Return the lanes of a trainer."""
        lanes: list[int] = np.flatnonzero(self._owner == rank).tolist()
        return lanes

    def _number_own_ids(self, ids: list[Array]) -> NDArray[np.int64]:
        """Return the numbers of the ids of each own lane, one lane after the other."""
        numbers = [
            IdLookup(key_range.ids)(lane_ids).astype(np.int64) + key_range.first
            for key_range, lane_ids in zip(
                sorted(self._own_ranges, key=lambda r: r.lane), ids, strict=True
            )
        ]
        return np.concatenate([np.empty(0, np.int64), *numbers])

    def group_by_owner(self, key_indices: NDArray[np.int64]) -> list[NDArray[np.intp]]:
        """Return, by rank, the positions in `key_indices` of the keys that it owns."""
        # A lane without keys begins at the same number as the next lane; the last such lane is the
        # owner.
        of_rank = self._owner[np.searchsorted(self._bounds, key_indices, side="right") - 1]
        return [np.flatnonzero(of_rank == rank) for rank in range(self._communicator.size)]

    def positions(self, key_indices: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the positions of own keys in the own array of values."""
        lane = np.searchsorted(self._firsts, key_indices, side="right") - 1
        positions: NDArray[np.intp] = (
            key_indices - self._firsts[lane] + self._starts[lane]
        ).astype(np.intp)
        return positions

    def send_to_owners(
        self, key_indices: NDArray[np.int64], contributions: Array
    ) -> tuple[NDArray[np.intp], Array]:
        """Send parts to the owners of keys; return own keys' positions and the parts of all."""
        positions_by_owner = self.group_by_owner(key_indices)
        wanted_numbers = self._communicator.alltoall(
            [key_indices[positions] for positions in positions_by_owner]
        )
        received = self._communicator.alltoall(
            [contributions[positions] for positions in positions_by_owner]
        )
        return self.positions(np.concatenate(wanted_numbers)), np.concatenate(received)

    def gather(self, key_indices: NDArray[np.int64], values: Array) -> Array:
        """Return the values of any keys, fetched from their owners."""
        positions_by_owner = self.group_by_owner(key_indices)
        wanted_numbers = self._communicator.alltoall(
            [key_indices[positions] for positions in positions_by_owner]
        )
        received = self._communicator.alltoall(
            [values[self.positions(rank_numbers)] for rank_numbers in wanted_numbers]
        )
        out = np.empty((len(key_indices), *values.shape[1:]), values.dtype)
        for positions, received_values in zip(positions_by_owner, received, strict=True):
            out[positions] = received_values
        return out


class ExchangeBuffers:
    """Arrays for received values, allocated once: the first write to new memory is slow."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Array] = {}

    def get_buffer(self, values: Array, n: int, name: Any) -> Array:
        """Return an array for `n` values of this shape and dtype, aligned to a cache line."""
        buffer_kept = self._buffers.get(name)
        is_alike = buffer_kept is not None and (buffer_kept.dtype, buffer_kept.shape[1:]) == (
            values.dtype,
            values.shape[1:],
        )
        # Grown when needed, never shrunk.
        if buffer_kept is None or not is_alike or len(buffer_kept) < n:
            shape = (n, *values.shape[1:])
            size = math.prod(shape) * values.dtype.itemsize
            buffer = np.empty(size + _CACHE_LINE_BYTES, np.uint8)
            # Skip the bytes before a cache line, so that values begin at one.
            start = -buffer.ctypes.data % _CACHE_LINE_BYTES
            buffer_kept = self._buffers[name] = (
                buffer[start : start + size].view(values.dtype).reshape(shape)
            )
        return buffer_kept[:n]


class Halo:
    """Plan of the values that a trainer receives from each trainer, and sends to each.

    Parameters
    ----------
    communicator : Communicator
    owners : KeyOwners
        Owners of the keys.
    key_indices : ndarray of int64 of shape (n,)
        Numbers of the keys whose values are fetched, in the order of the result.
    """

    def __init__(
        self, communicator: Communicator, owners: KeyOwners, key_indices: NDArray[np.int64]
    ) -> None:
        self._communicator, self._n, self._buffers = (
            communicator,
            len(key_indices),
            ExchangeBuffers(),
        )
        #: Positions in the result of the values from each rank.
        self._positions_by_rank = owners.group_by_owner(key_indices)
        # Each rank learns once which of its values the others need.
        wanted_numbers = communicator.alltoall(
            [key_indices[positions] for positions in self._positions_by_rank]
        )
        #: Positions of the own values that are sent to each rank.
        self._sent_positions = [owners.positions(rank_numbers) for rank_numbers in wanted_numbers]

    def fetch(self, values: Array) -> Array:
        """Return the fetched values, from all ranks; valid until the next call."""
        received = exchange_values(self._communicator, values, self._sent_positions, self._buffers)
        rank, buffer = self._communicator.rank, self._buffers.get_buffer(values, self._n, "wanted")
        for r, positions in enumerate(self._positions_by_rank):
            if r != rank:
                buffer[positions] = received[r]
        own_positions, place_here = self._sent_positions[rank], self._positions_by_rank[rank]
        # Own values never leave the process; they are copied in tiles.
        for start in range(0, len(own_positions), _VALUES_AT_ONCE):
            piece = slice(start, start + _VALUES_AT_ONCE)
            buffer[place_here[piece]] = values[own_positions[piece]]
        return buffer


def exchange_values(
    communicator: Communicator,
    values: Array,
    positions_by_rank: Sequence[NDArray[Any]],
    buffers: ExchangeBuffers,
) -> list[Array]:
    """Send own values, by positions for each rank; return the values received, by rank."""
    sent = []
    for r, positions in enumerate(positions_by_rank):
        is_own = r == communicator.rank
        sent.append(buffers.get_buffer(values, 0 if is_own else len(positions), r))
        if not is_own:
            np.take(values, positions, axis=0, out=sent[r], mode="clip")
    return communicator.alltoall(sent)


def arrange_touched_keys(
    blocks: Sequence[KeyedBlock],
) -> tuple[Array, list[Array], NDArray[np.int32]]:
    """Return the sorted ids of all touched keys, the entries' new indices, and the ids' positions.

    Positions are in order of decreasing use, so that values that many entries touch share cache
    lines.
    """
    if len(blocks) == 1:
        return blocks[0].touched, [blocks[0].indices], blocks[0].place
    touched_ids = merge_ids([block.touched for block in blocks])
    lookup = IdLookup(touched_ids)
    # Number of each block's values among all touched keys.
    numbers_of_blocks = []
    uses = np.zeros(len(touched_ids), np.int64)
    for block in blocks:
        key_numbers = np.empty(len(block.touched), np.int32)
        key_numbers[block.place] = lookup(block.touched)
        uses[key_numbers] += np.bincount(block.indices, minlength=len(key_numbers))
        numbers_of_blocks.append(key_numbers)
    positions = rank_by_use(uses)
    return (
        touched_ids,
        [
            positions[key_numbers][block.indices]
            for block, key_numbers in zip(blocks, numbers_of_blocks, strict=True)
        ],
        positions,
    )
