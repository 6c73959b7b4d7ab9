"""Loop *keyed*: each trainer owns the values of some keys, and fetches those that it needs.

All trainers run the solver, each on its own keys. Sums on which the solver's decisions depend are
added lane by lane, so all trainers get the same bits and decide the same, whatever lanes they have.
At intervals every trainer sends a copy of its values to a trainer in another process
(`BuddyCheckpoints`, the double in-memory checkpointing of Zheng, Shi and Kalé 2004). After a loss,
the values of the last iteration that is complete for all lanes are sent to the trainers that now
run the lanes, and the solver continues to the same digits as in an undisturbed fit.
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
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.data.keyed.cut import KeyedBlock
from daskml_dist.solvers.keyed import KeyedRows, KeyedSolution, KeyRange
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.halo import (
    Halo,
    KeyOwners,
    TouchedRows,
    arrange_touched_keys,
    plan_row_parts,
)
from daskml_dist.training.worker.loops.rounds import SolverView, broadcast_from, connect_to_ledger

Array = NDArray[Any]
R = TypeVar("R")
#: Share of the time that buddy checkpoints may take.
_CHECKPOINT_TIME_SHARE = 0.02
#: Numbers that trainers append to each sum: whether to stop, whether to copy, bytes sent and
#: received.
_N_EXTRA = 4
#: Random number that, together with the pid (forks share the number), identifies this process.
_PROCESS = int.from_bytes(os.urandom(6), "little")


def run_keyed_loop(context: Context) -> KeyedSolution:
    """Run the fit's solver on this trainer's keys; each trainer returns its own values."""
    with connect_to_ledger(context) as connection:
        keyed = _KeyedTrainer(context, connection)
        solution: KeyedSolution = context.fit.keyed_work.solver.solve(keyed)
        keyed.end()
    solution.lanes = {
        space: {key_range.lane: key_range.own_slice for key_range in keyed.ranges(space)}
        for space in solution.values
    }
    solution.ids = {
        space: np.concatenate([key_range.ids for key_range in keyed.ranges(space)])
        for space in solution.values
    }
    return solution


class _KeyedTrainer(SolverView):
    """Keys and entries of a trainer, in the solver's interface (`solvers.keyed.Keyed`)."""

    def __init__(self, context: Context, connection: ShardedConnection | None) -> None:
        super().__init__(context, connection)
        # A lane has one block per side: the same entries by rows and by columns.
        blocks = [lane.keyed_blocks for lane in context.lanes]
        #: Blocks of this trainer's lanes, by side.
        self._blocks: dict[str, list[KeyedBlock]] = {
            block.side.name: [lane[i] for lane in blocks] for i, block in enumerate(blocks[0])
        }
        # Each space of keys (users, items, nodes) is the row side of one kind of blocks.
        blocks_of_space = {
            side_blocks[0].side.rows: side_blocks for side_blocks in self._blocks.values()
        }
        self._bounds = self._gather_bounds(blocks_of_space)
        self._own_ranges = {
            s: _make_ranges(side_blocks, self._bounds[s])
            for s, side_blocks in blocks_of_space.items()
        }
        self.n_keys = {space: int(bounds[-1]) for space, bounds in self._bounds.items()}
        self._owners: dict[str, KeyOwners] = {}
        self._halos: dict[str, Halo] = {}
        self._rows: dict[str, list[KeyedRows]] = {}
        self._parts_by_side: dict[str, tuple[list[TouchedRows], list[TouchedRows]]] = {}
        self._is_due = False
        self._copied_at = time.perf_counter()
        self._copy_seconds = 0.0
        # The slice of each lane's values in this trainer's array of values.
        slices = {
            s: {key_range.lane: key_range.own_slice for key_range in ranges}
            for s, ranges in self._own_ranges.items()
        }
        self._checkpoints = BuddyCheckpoints(context, slices)
        # After a loss, the values of the last iteration that is complete for all lanes.
        latest, self.kept = self._checkpoints.agree_on_latest()
        self.n_done, self.solver_state = latest.n_iter, latest.solver_state
        self._repeat_reports(latest.reports)

    def _gather_bounds(self, blocks: Mapping[str, list[KeyedBlock]]) -> dict[str, Array]:
        """Return, by space, the number of each lane's first key, then the number of all keys."""
        own_sizes = np.array(
            [
                [block.lane, len(block.ids)]
                for side_blocks in blocks.values()
                for block in side_blocks
            ],
            np.int64,
        ).reshape(len(blocks), -1, 2)
        all_sizes = np.concatenate(
            [trainer_sizes for (trainer_sizes,) in self._communicator.allgather([own_sizes])],
            axis=1,
        )
        # Number of keys of each lane; their cumulative sums are the bounds.
        sizes = np.zeros((len(blocks), all_sizes.shape[1] + 1), np.int64)
        for space, lane_sizes in enumerate(all_sizes):
            sizes[space, lane_sizes[:, 0] + 1] = lane_sizes[:, 1]
        return dict(zip(blocks, np.cumsum(sizes, axis=1), strict=True))

    # -- keys and entries ----------------------------------------------------------------------

    def ranges(self, space: str) -> list[KeyRange]:
        """Return this trainer's keys of a space."""
        return self._own_ranges[space]

    def map(self, function: Callable[[KeyedRows], R], side: str) -> list[R]:
        """Apply a function to each own lane's rows of a side."""
        self._get_halo(side)
        return self._context.map(function, self._rows[side])

    def touched(self, side: str, values: Array) -> Array:
        """Return the values of all column keys that this trainer's rows of a side touch."""
        return self._get_halo(side).fetch(values)

    def in_parts(
        self,
        side: str,
        values: Array,
        prepare: Callable[[KeyedRows], KeyedRows],
        n_piece_entries: int | None = None,
        only_long_rows: bool = False,
    ) -> Iterator[tuple[Array, Callable[[Callable[[KeyedRows], R]], list[R]]]]:
        """Yield touched values and a map over their rows, part by part if not all values fit.

        `prepare` prepares rows once. `n_piece_entries` is the unit at which long rows may be cut,
        None if they may not be. With `only_long_rows`, only the pieces of long rows are yielded.
        """
        if side not in self._parts_by_side:
            self._parts_by_side[side] = self._plan_parts(side, values, prepare, n_piece_entries)
        piece_parts, row_parts = self._parts_by_side[side]
        for part in piece_parts if only_long_rows else [*piece_parts, *row_parts]:
            yield part.fetch(values), partial(self._map_rows, part.rows)

    def _map_rows(self, rows: list[KeyedRows], function: Callable[[KeyedRows], R]) -> list[R]:
        """Apply a function to some rows in the compute threads."""
        return self._context.map(function, rows)

    def _plan_parts(
        self,
        side: str,
        values: Array,
        prepare: Callable[[KeyedRows], KeyedRows],
        n_piece_entries: int | None,
    ) -> tuple[list[TouchedRows], list[TouchedRows]]:
        """Return the parts of a side: a single one if every trainer has room for all values."""
        blocks = self._blocks[side]
        max_bytes = self._context.fit.keyed_work.remote_key_bytes
        nbytes = max(values[:0].itemsize * math.prod(values.shape[1:]), 1)
        touched = sum(len(block.touched) for block in blocks)
        fits = max_bytes is None or touched * nbytes <= max_bytes
        # Exchanges are collective, so there is a single part only if every trainer has the memory.
        if all(
            bool(fits_there[0])
            for (fits_there,) in self._communicator.allgather([np.array([fits])])
        ):
            halo = self._get_halo(side)
            return [], [TouchedRows(halo.fetch, [prepare(rows) for rows in self._rows[side]])]
        own_side = blocks[0].side
        owners, ranges = self._get_owners(own_side.columns), self._own_ranges[own_side.rows]
        max_values = max((max_bytes or 0) // nbytes, 1)
        return plan_row_parts(
            self._communicator, owners, blocks, ranges, prepare, max_values, n_piece_entries
        )

    def gather(self, space: str, key_indices: NDArray[np.int64], values: Array) -> Array:
        """Return the values of any keys, from their owners."""
        return self._get_owners(space).gather(key_indices, values)

    def scatter(
        self, space: str, key_indices: NDArray[np.int64], contributions: Array
    ) -> tuple[NDArray[np.intp], Array]:
        """Send parts to the owners of any keys; return own keys' positions, and their parts."""
        return self._get_owners(space).send_to_owners(key_indices, contributions)

    def _get_owners(self, space: str) -> KeyOwners:
        """Return the owners of a space's keys, determined once."""
        if space not in self._owners:
            bounds, own_ranges = self._bounds[space], self._own_ranges[space]
            self._owners[space] = KeyOwners(self._communicator, bounds, own_ranges)
        return self._owners[space]

    def _get_halo(self, side: str) -> Halo:
        """Return the plan of a side, made by all trainers together at the first call."""
        if side not in self._halos:
            blocks = self._blocks[side]
            owners = self._get_owners(blocks[0].side.columns)
            touched_ids, indices, positions = arrange_touched_keys(blocks)
            numbers = np.empty(len(touched_ids), np.int64)
            # Values are stored in the order to which the entries' indices refer.
            numbers[positions] = owners.find_key_numbers(touched_ids, blocks[0].column_cuts)
            self._halos[side] = Halo(self._communicator, owners, numbers)
            rows = self._own_ranges[blocks[0].side.rows]
            self._rows[side] = [
                KeyedRows(key_range, block.indptr, block_indices, block.values)
                for key_range, block, block_indices in zip(rows, blocks, indices, strict=True)
            ]
        return self._halos[side]

    # -- sums over all trainers ----------------------------------------------------------------

    def sum(self, lane_terms: Sequence[Any]) -> NDArray[np.float64]:
        """Return the sum over the lanes of all trainers, in lane order."""
        own_parts = [np.asarray(part, dtype=np.float64) for part in lane_terms]
        shape, size = own_parts[0].shape, own_parts[0].size
        # One row per lane, filled by its trainer: the all-reduce then only adds zeros, and each
        # rank adds the lanes in order, with the same bits.
        lane_sums = np.zeros((len(self._context.lane_rows) + 1, max(size, _N_EXTRA)))
        for lane, part in zip(self._context.lanes, own_parts, strict=True):
            lane_sums[lane.number, :size] = part.ravel()
        lane_sums[-1, :_N_EXTRA] = self._extra_numbers()
        sums = self._communicator.allreduce(lane_sums)
        self.should_stop, self._is_due = bool(sums[-1, 0]), bool(sums[-1, 1])
        self._extra = sums[-1, 2:_N_EXTRA]
        total: NDArray[np.float64] = sums[0].copy()
        for part in sums[1:-1]:
            total += part
        return total[:size].reshape(shape)

    def _extra_numbers(self) -> tuple[float, float, float, float]:
        """Return whether to stop and to copy (0 except in the first trainer), and bytes moved."""
        moved_bytes = self._context.count_moved_bytes()
        if self._to_ledger is None:
            return 0.0, 0.0, *moved_bytes
        since = time.perf_counter() - self._copied_at
        # The first trainer's clock decides for all trainers when a copy is due.
        is_due = self._copy_seconds <= _CHECKPOINT_TIME_SHARE * since
        return float(self._wants_to_stop), float(is_due), *moved_bytes

    # -- iterations ----------------------------------------------------------------------------

    def keep(
        self,
        values: Mapping[str, Array],
        n_iter: int,
        solver_state: Any = None,
        loss: float = float("nan"),
    ) -> None:
        """Report an iteration, and copy its values to another process if a copy is due."""
        self._count_iteration(self._context.fit.keyed_work.solver, loss, float(self.n_rows))
        if self._is_due:
            began = time.perf_counter()
            self._checkpoints.keep(values, n_iter, solver_state, self._reports)
            self._copied_at, self._is_due = time.perf_counter(), False
            self._copy_seconds = self._copied_at - began
        self._end_pass()


def _make_ranges(blocks: Sequence[KeyedBlock], bounds: Array) -> list[KeyRange]:
    """Return the key ranges of lanes, whose values are adjacent in one array."""
    ranges, start = [], 0
    for block in blocks:
        stop = start + len(block.ids)
        first = int(bounds[block.lane])
        ranges.append(KeyRange(block.lane, first, slice(start, stop), block.ids, block.strengths))
        start = stop
    return ranges


@dataclass
class BuddyCheckpoint:
    """State after an iteration in a trainer's memory, from which the solver can continue.

    Parameters
    ----------
    n_iter : int
        Number of iterations; 0: the solver starts.
    solver_state : ndarray of float64 or None
        State of the solver besides the keys' values, the same in all trainers.
    reports : sequence of ndarray
        Report of each iteration up to this one.
    lanes : dict of int to dict of str to ndarray
        Values of the keys of the trainer's lanes, and of the lanes for which it is the buddy, by
        space.
    """

    n_iter: int = 0
    solver_state: NDArray[np.float64] | None = None
    reports: Sequence[Array] = ()
    lanes: dict[int, dict[str, Array]] = field(default_factory=dict)


class BuddyCheckpoints:
    """Checkpoints of a trainer's values in its own memory and in its buddy's, another process.

    The last two are kept, since trainers may be lost while only some of them have the last one.

    Parameters
    ----------
    context : Context
    own_slices : mapping of str to mapping of int to slice
        By space, the slice of each own lane's values in this trainer's array of values.
    """

    def __init__(self, context: Context, own_slices: Mapping[str, Mapping[int, slice]]) -> None:
        self._communicator = context.communicator
        self._generation = context.generation
        self._n_lanes = len(context.lane_rows)
        self._own_slices = own_slices
        self._checkpoints: list[BuddyCheckpoint] = context.memory.setdefault(
            "buddy_checkpoints", []
        )
        own_process = np.array([_PROCESS, os.getpid()])
        processes = [tuple(p.tolist()) for (p,) in self._communicator.allgather([own_process])]
        #: Buddy of each rank, which keeps its copy; the rank itself if all are in one process.
        self._buddies = [_next_other_process(rank, processes) for rank in range(len(processes))]

    def keep(
        self, values: Mapping[str, Array], n_iter: int, solver_state: Any, reports: list[Array]
    ) -> None:
        """Copy this trainer's values after an iteration, and send the copy to the buddy."""
        small_copy = None if solver_state is None else np.array(solver_state, np.float64)
        checkpoint = BuddyCheckpoint(n_iter, small_copy, list(reports))
        for space, array in values.items():
            for lane, own_slice in self._own_slices[space].items():
                checkpoint.lanes.setdefault(lane, {})[space] = array[own_slice].copy()
        checkpoint.lanes.update(self._exchange_with_buddy(checkpoint.lanes))
        # The older one is replaced only now, so that a failed exchange leaves both.
        self._checkpoints[:] = [*self._checkpoints[-1:], checkpoint]

    def _exchange_with_buddy(
        self, lanes: dict[int, dict[str, Array]]
    ) -> dict[int, dict[str, Array]]:
        """Send this trainer's values to the buddy; return the values that were sent here."""
        rank = self._communicator.rank
        if self._buddies[rank] == rank:
            return {}
        sent = [np.empty(0, np.uint8) for _ in self._buddies]
        sent[self._buddies[rank]] = _pack_lanes(lanes)
        received: dict[int, dict[str, Array]] = {}
        for packed in self._communicator.alltoall(sent):
            if len(packed):
                received.update(_unpack_lanes(packed))
        return received

    def agree_on_latest(self) -> tuple[BuddyCheckpoint, dict[str, Array] | None]:
        """Return the last checkpoint of all lanes, and this trainer's lanes' values by space."""
        if not self._generation:
            self._checkpoints.clear()
            return BuddyCheckpoint(), None
        n_iter, holders = self._find_latest_whole()
        self._checkpoints[:] = [
            checkpoint for checkpoint in self._checkpoints if checkpoint.n_iter == n_iter
        ]
        if not n_iter:
            return BuddyCheckpoint(), None
        checkpoint = self._checkpoints[0] if self._checkpoints else None
        lanes = self._collect_own_lanes(checkpoint, holders)
        small, reports = self._share_facts(checkpoint, holders[min(holders)])
        # Another trainer may be lost before the next copy, so this one is exchanged again, and all
        # known values are kept until then.
        kept_lanes = {} if checkpoint is None else checkpoint.lanes
        all_lanes = {**kept_lanes, **lanes, **self._exchange_with_buddy(lanes)}
        self._checkpoints[:] = [latest := BuddyCheckpoint(n_iter, small, reports, all_lanes)]
        values = {
            space: np.concatenate([lanes[lane][space] for lane in own_slices])
            for space, own_slices in self._own_slices.items()
            if all(space in lanes[lane] for lane in own_slices)
        }
        return latest, values

    def _find_latest_whole(self) -> tuple[int, dict[int, int]]:
        """Return the last iteration complete for all lanes (0: none), and a rank with each lane."""
        own_lanes = np.array(
            [
                (checkpoint.n_iter, lane)
                for checkpoint in self._checkpoints
                for lane in checkpoint.lanes
            ],
            np.int64,
        ).reshape(-1, 2)
        ranks_by_iteration: dict[int, dict[int, int]] = {}
        for rank, (iteration_lanes,) in enumerate(self._communicator.allgather([own_lanes])):
            for n_iter, lane in iteration_lanes.tolist():
                ranks_by_iteration.setdefault(n_iter, {}).setdefault(lane, rank)
        complete = [
            n_iter for n_iter, lanes in ranks_by_iteration.items() if len(lanes) == self._n_lanes
        ]
        best = max(complete, default=0)
        return best, ranks_by_iteration.get(best, {})

    def _collect_own_lanes(
        self, checkpoint: BuddyCheckpoint | None, holders: dict[int, int]
    ) -> dict[int, dict[str, Array]]:
        """Return the values of this trainer's lanes, sent by the ranks `holders`."""
        communicator = self._communicator
        lane_numbers = np.array(
            [lane for slices in self._own_slices.values() for lane in slices], np.int64
        )
        sent = []
        for (lanes,) in communicator.allgather([np.unique(lane_numbers)]):
            own_lanes = [lane for lane in lanes.tolist() if holders[lane] == communicator.rank]
            sent.append(
                _pack_lanes(
                    {lane: checkpoint.lanes[lane] for lane in own_lanes} if checkpoint else {}
                )
            )
        received: dict[int, dict[str, Array]] = {}
        for packed in communicator.alltoall(sent):
            received.update(_unpack_lanes(packed))
        return received

    def _share_facts(
        self, checkpoint: BuddyCheckpoint | None, holder: int
    ) -> tuple[Any, list[Array]]:
        """Return the solver's small state and the reports, sent by the rank `holder`."""

        def pack() -> NDArray[np.uint8]:
            assert checkpoint is not None
            facts = [checkpoint.solver_state, np.array(checkpoint.reports)]
            return np.frombuffer(pack_object(facts, {}), np.uint8)

        small, reports = unpack_object(broadcast_from(self._communicator, holder, pack), {})
        return small, list(reports)


def _next_other_process(rank: int, processes: Sequence[tuple[int, ...]]) -> int:
    """Return the next rank in another process; trainers of one process are lost together."""
    next_ranks = (r % len(processes) for r in range(rank + 1, rank + len(processes)))
    return next((other for other in next_ranks if processes[other] != processes[rank]), rank)


def _pack_lanes(lanes: dict[int, dict[str, Array]]) -> NDArray[np.uint8]:
    """Return lanes' values as bytes."""
    facts = [[lane, dict(values)] for lane, values in lanes.items()]
    return np.frombuffer(pack_object(facts, {}), np.uint8)


def _unpack_lanes(packed: NDArray[np.uint8]) -> dict[int, dict[str, Array]]:
    """Undo :func:`_pack_lanes`."""
    return {lane: dict(values) for lane, values in unpack_object(packed, {})}
