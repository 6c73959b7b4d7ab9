"""Keys: each trainer owns the values of some keys, and fetches the others that its entries touch.

All trainers run the solver, each on its own keys. What decides is summed lane by lane, so all of
them decide alike, whatever lanes they have.

Now and then every trainer copies its values, and gives the copy to the next one too. After a loss
the lanes' values go, of the last iteration that is still known of all lanes, to whoever runs them
now, and the solver goes on from there: to the digits of an undisturbed fit.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import pack_object, unpack_object
from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.data.keyed.cut import KeyedBlock
from daskml_dist.solvers.keyed import KeyedRows, KeyedSolution, KeyRange
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.halo import Halo, Owners, Part, arranged, parts_of
from daskml_dist.training.worker.loops.rounds import Together

__all__ = ["run_keyed"]


Array = NDArray[Any]
R = TypeVar("R")
#: Share of the time that may go into images.
_SHARE = 0.02
#: What trainers say beside each sum: whether to stop, whether to copy, bytes sent and received.
_SAID = 4
#: Tells this process from all others, with its number: it may be a fork.
_PROCESS = int.from_bytes(os.urandom(6), "little")


def run_keyed(context: Context) -> KeyedSolution:
    """Run the fit's solver on this trainer's keys; each trainer returns the values of its own."""
    # The first trainer reports for all.
    connection = None if context.rank else context.connect()
    try:
        keyed = _Keyed(context, connection)
        found: KeyedSolution = context.fit.keyed.solver.solve(keyed)
        keyed.end()
    finally:
        if connection is not None:
            connection.close()
    found.lanes = {space: {at.lane: at.own for at in keyed.ranges(space)} for space in found.values}
    found.ids = {
        space: np.concatenate([at.ids for at in keyed.ranges(space)]) for space in found.values
    }
    return found


class _Keyed(Together):
    """A trainer's keys and entries, as the solver sees them (`solvers.keyed.Keyed`)."""

    def __init__(self, context: Context, connection: ShardedConnection | None) -> None:
        super().__init__(context, connection)
        blocks = [lane.keyed_blocks for lane in context.lanes]
        #: By side, the blocks of the own lanes.
        self._blocks: dict[str, list[KeyedBlock]] = {
            block.side.name: [lane[i] for lane in blocks] for i, block in enumerate(blocks[0])
        }
        of_space = {found[0].side.rows: found for found in self._blocks.values()}
        self._bounds = self._all_bounds(of_space)
        self._ranges = {s: _ranges(found, self._bounds[s]) for s, found in of_space.items()}
        self.n_keys = {space: int(bounds[-1]) for space, bounds in self._bounds.items()}
        self._owners: dict[str, Owners] = {}
        self._halos: dict[str, Halo] = {}
        self._rows: dict[str, list[KeyedRows]] = {}
        self._parts: dict[str, tuple[list[Part], list[Part]]] = {}
        self._n_rows = float(sum(context.lane_rows))
        self._is_due = False
        self._image_at = time.perf_counter()
        self._image_took = 0.0
        self._images = BuddyCheckpoints(context, {s: self._lane_slices(s) for s in self._ranges})
        image = self._images.agree()
        self.n_done, self.kept, self.small = image.n_iter, image.values, image.small
        self._go_on_from(image.reports)

    def _all_bounds(self, blocks: Mapping[str, list[KeyedBlock]]) -> dict[str, Array]:
        """Number of the first key of each lane, and of all keys, by space."""
        own = np.array(
            [[block.lane, len(block.ids)] for some in blocks.values() for block in some], np.int64
        ).reshape(len(blocks), -1, 2)
        all_ = np.concatenate([found for (found,) in self._communicator.allgather([own])], axis=1)
        sizes = np.zeros((len(blocks), all_.shape[1] + 1), np.int64)
        for space, its in enumerate(all_):
            sizes[space, its[:, 0] + 1] = its[:, 1]
        return dict(zip(blocks, np.cumsum(sizes, axis=1), strict=True))

    def _lane_slices(self, space: str) -> dict[int, slice]:
        return {at.lane: at.own for at in self._ranges[space]}

    # -- keys and entries ----------------------------------------------------------------------

    def ranges(self, space: str) -> list[KeyRange]:
        """The own keys of a space."""
        return self._ranges[space]

    def map(self, function: Callable[[KeyedRows], R], side: str) -> list[R]:
        """Apply a function to each own lane's rows of a side."""
        self._halo(side)
        return self._context.map(function, self._rows[side])

    def touched(self, side: str, values: Array) -> Array:
        """The values of all column keys of the own rows of a side."""
        return self._halo(side).fetch(values)

    def in_parts(
        self,
        side: str,
        values: Array,
        ready: Callable[[KeyedRows], KeyedRows],
        piece: int | None = None,
        again: bool = False,
    ) -> Iterator[tuple[Array, Callable[[Callable[[KeyedRows], R]], list[R]]]]:
        """The touched values, of some rows at a time where there is no room for all."""
        if side not in self._parts:
            self._parts[side] = self._planned(side, values, ready, piece)
        of_pieces, whole = self._parts[side]
        for part in of_pieces if again else [*of_pieces, *whole]:
            yield part.fetch(values), partial(self._map_part, part.rows)

    def _map_part(self, rows: list[KeyedRows], function: Callable[[KeyedRows], R]) -> list[R]:
        return self._context.map(function, rows)

    def _planned(
        self, side: str, values: Array, ready: Callable[[KeyedRows], KeyedRows], piece: int | None
    ) -> tuple[list[Part], list[Part]]:
        """Parts of a side: one of all rows, where every trainer has room for what they touch."""
        blocks, room = self._blocks[side], self._context.fit.keyed.room
        nbytes = max(values[:0].itemsize * math.prod(values.shape[1:]), 1)
        touched = sum(len(block.touched) for block in blocks)
        fits = room is None or touched * nbytes <= room
        if all(bool(found[0]) for (found,) in self._communicator.allgather([np.array([fits])])):
            halo = self._halo(side)
            return [], [Part(halo.fetch, [ready(rows) for rows in self._rows[side]])]
        owners, ranges = self._owners_of(blocks[0].side.columns), self._ranges[blocks[0].side.rows]
        most = max((room or 0) // nbytes, 1)
        return parts_of(self._communicator, owners, blocks, ranges, ready, most, piece)

    def at(self, space: str, numbers: NDArray[np.int64], values: Array) -> Array:
        """The values of any keys, by whoever owns them."""
        return self._owners_of(space).at(numbers, values)

    def sent(
        self, space: str, numbers: NDArray[np.int64], parts: Array
    ) -> tuple[NDArray[np.intp], Array]:
        """Give parts to the owners of any keys; what all trainers gave for the own ones."""
        return self._owners_of(space).sent(numbers, parts)

    def _owners_of(self, space: str) -> Owners:
        if space not in self._owners:
            bounds, own = self._bounds[space], self._ranges[space]
            self._owners[space] = Owners(self._communicator, bounds, own)
        return self._owners[space]

    def _halo(self, side: str) -> Halo:
        """The plan of a side, made when it is first asked for, in all trainers at once."""
        if side not in self._halos:
            blocks = self._blocks[side]
            owners = self._owners_of(blocks[0].side.columns)
            wanted, indices, place = arranged(blocks)
            numbers = np.empty(len(wanted), np.int64)
            numbers[place] = owners.numbers(wanted, blocks[0].column_cuts)
            self._halos[side] = Halo(self._communicator, owners, numbers)
            rows = self._ranges[blocks[0].side.rows]
            self._rows[side] = [
                KeyedRows(at, block.indptr, its, block.values)
                for at, block, its in zip(rows, blocks, indices, strict=True)
            ]
        return self._halos[side]

    # -- what all decide by --------------------------------------------------------------------

    def sum(self, parts: Sequence[Any]) -> NDArray[np.float64]:
        """Sum over the lanes of all trainers, in the order of the lanes."""
        own = [np.asarray(part, dtype=np.float64) for part in parts]
        shape, size = own[0].shape, own[0].size
        all_ = np.zeros((len(self._context.lane_rows) + 1, max(size, _SAID)))
        for lane, part in zip(self._context.lanes, own, strict=True):
            all_[lane.number, :size] = part.ravel()
        all_[-1, :_SAID] = self._say()
        found = self._communicator.allreduce(all_)
        self.should_stop, self._is_due = bool(found[-1, 0]), bool(found[-1, 1])
        self._extra = found[-1, 2:_SAID]
        total: NDArray[np.float64] = found[0].copy()
        for part in found[1:-1]:
            total += part
        return total[:size].reshape(shape)

    def _say(self) -> tuple[float, float, float, float]:
        """Facts that the first trainer alone knows, and the bytes that this one has moved."""
        moved = self._bytes_moved()
        if self._to_ledger is None:
            return 0.0, 0.0, *moved
        since = time.perf_counter() - self._image_at
        due = self._image_took <= _SHARE * since
        return float(self._is_to_stop), float(due), *moved

    # -- iterations ----------------------------------------------------------------------------

    def keep(
        self,
        values: Mapping[str, Array],
        n_iter: int,
        small: Any = None,
        loss: float = float("nan"),
    ) -> None:
        """Report an iteration, and keep an image of it where one is due."""
        self._count(self._context.fit.keyed.solver, loss, self._n_rows)
        if self._is_due:
            began = time.perf_counter()
            self._images.keep(values, n_iter, small, self._reports)
            self._image_at, self._is_due = time.perf_counter(), False
            self._image_took = self._image_at - began
        self._end_pass()


def _ranges(blocks: Sequence[KeyedBlock], bounds: Array) -> list[KeyRange]:
    """Ranges of the rows of some lanes' blocks, whose values lie one behind the other."""
    ranges, at = [], 0
    for block in blocks:
        stop = at + len(block.ids)
        first = int(bounds[block.lane])
        ranges.append(KeyRange(block.lane, first, slice(at, stop), block.ids, block.strengths))
        at = stop
    return ranges


@dataclass(frozen=True)
class BuddyCheckpoint:
    """Values of some lanes' keys at the end of an iteration.

    Parameters
    ----------
    n_iter : int
        0: nothing is known yet.
    values : dict of str to ndarray, or None
        By space, of a trainer's own lanes.
    small : ndarray of float64 or None
    reports : sequence of ndarray
        What was reported of each iteration up to there.
    """

    n_iter: int = 0
    values: dict[str, Array] | None = None
    small: NDArray[np.float64] | None = None
    reports: Sequence[Array] = ()


@dataclass
class _Kept:
    """An iteration, as a trainer remembers it: of its own lanes, and of another trainer's."""

    n_iter: int
    small: NDArray[np.float64] | None
    reports: list[Array]
    lanes: dict[int, dict[str, Array]] = field(default_factory=dict)


class BuddyCheckpoints:
    """The last two images that a trainer knows of.

    Every trainer has the one before the last until all have the last.

    Parameters
    ----------
    context : Context
    own : mapping of str to mapping of int to slice
        By space, where the values of each own lane's keys lie.
    """

    def __init__(self, context: Context, own: Mapping[str, Mapping[int, slice]]) -> None:
        self._communicator = context.communicator
        self._generation = context.generation
        self._n_lanes = len(context.lane_rows)
        self._own = own
        self._kept: list[_Kept] = context.memory.setdefault("images", [])
        own_process = np.array([_PROCESS, os.getpid()])
        processes = [tuple(p.tolist()) for (p,) in self._communicator.allgather([own_process])]
        #: Rank that keeps each rank's image too; its own where there is but one process.
        self._keeper = [_next_elsewhere(rank, processes) for rank in range(len(processes))]

    def keep(
        self, values: Mapping[str, Array], n_iter: int, small: Any, reports: list[Array]
    ) -> None:
        """Copy the own values, and give them to another process."""
        few = None if small is None else np.array(small, np.float64)
        kept = _Kept(n_iter, few, list(reports))
        for space, array in values.items():
            for lane, at in self._own[space].items():
                kept.lanes.setdefault(lane, {})[space] = array[at].copy()
        kept.lanes.update(self._mirrored(kept.lanes))
        self._kept[:] = [*self._kept[-1:], kept]

    def _mirrored(self, lanes: dict[int, dict[str, Array]]) -> dict[int, dict[str, Array]]:
        """Values of other trainers' lanes, having given the own to their keeper."""
        rank = self._communicator.rank
        if self._keeper[rank] == rank:
            return {}
        given = [np.empty(0, np.uint8) for _ in self._keeper]
        given[self._keeper[rank]] = _packed(lanes)
        found: dict[int, dict[str, Array]] = {}
        for packed in self._communicator.alltoall(given):
            if len(packed):
                found.update(_unpacked(packed))
        return found

    def agree(self) -> BuddyCheckpoint:
        """The last iteration that is known of all lanes, with the values of the own ones."""
        if not self._generation:
            self._kept.clear()
            return BuddyCheckpoint()
        n_iter, holders = self._best()
        self._kept[:] = [kept for kept in self._kept if kept.n_iter == n_iter]
        if not n_iter:
            return BuddyCheckpoint()
        kept = self._kept[0] if self._kept else None
        lanes = self._handed_out(kept, holders)
        few, reports = self._facts(kept, holders[min(holders)])
        # Whoever is lost next may be before another image: nothing known is forgotten until then.
        known = {} if kept is None else kept.lanes
        self._kept[:] = [_Kept(n_iter, few, reports, {**known, **lanes, **self._mirrored(lanes)})]
        values = {
            space: np.concatenate([lanes[lane][space] for lane in own])
            for space, own in self._own.items()
            if all(space in lanes[lane] for lane in own)
        }
        return BuddyCheckpoint(n_iter, values, few, reports)

    def _best(self) -> tuple[int, dict[int, int]]:
        """The latest iteration of which all lanes are known, 0 for none; a rank that has each."""
        own = np.array(
            [(kept.n_iter, lane) for kept in self._kept for lane in kept.lanes], np.int64
        ).reshape(-1, 2)
        found: dict[int, dict[int, int]] = {}
        for rank, (known,) in enumerate(self._communicator.allgather([own])):
            for n_iter, lane in known.tolist():
                found.setdefault(n_iter, {}).setdefault(lane, rank)
        whole = [n_iter for n_iter, lanes in found.items() if len(lanes) == self._n_lanes]
        best = max(whole, default=0)
        return best, found.get(best, {})

    def _handed_out(
        self, kept: _Kept | None, holders: dict[int, int]
    ) -> dict[int, dict[str, Array]]:
        """The values of the own lanes, of whoever has them."""
        communicator = self._communicator
        own = np.array([lane for at in self._own.values() for lane in at], np.int64)
        given = []
        for (lanes,) in communicator.allgather([np.unique(own)]):
            mine = [lane for lane in lanes.tolist() if holders[lane] == communicator.rank]
            given.append(_packed({lane: kept.lanes[lane] for lane in mine} if kept else {}))
        found: dict[int, dict[str, Array]] = {}
        for packed in communicator.alltoall(given):
            found.update(_unpacked(packed))
        return found

    def _facts(self, kept: _Kept | None, holder: int) -> tuple[Any, list[Array]]:
        """Facts that are the same in all trainers, of one that knows them."""
        own: list[Array] = []
        if self._communicator.rank == holder:
            assert kept is not None
            facts = [kept.small, np.array(kept.reports)]
            own = [np.frombuffer(pack_object(facts, {}), np.uint8)]
        (packed,) = self._communicator.allgather(own)[holder]
        few, reports = unpack_object(packed, {})
        return few, list(reports)


def _next_elsewhere(rank: int, processes: Sequence[tuple[int, ...]]) -> int:
    """The next rank in another process: one that runs several trainers is lost with all of them."""
    others = (r % len(processes) for r in range(rank + 1, rank + len(processes)))
    return next((other for other in others if processes[other] != processes[rank]), rank)


def _packed(lanes: dict[int, dict[str, Array]]) -> NDArray[np.uint8]:
    facts = [[lane, dict(values)] for lane, values in lanes.items()]
    return np.frombuffer(pack_object(facts, {}), np.uint8)


def _unpacked(packed: NDArray[np.uint8]) -> dict[int, dict[str, Array]]:
    return {lane: dict(values) for lane, values in unpack_object(packed, {})}
