"""Loop *own rows*: each trainer runs the solver on its own rows; deciding sums are all-reduced.

All trainers hold the same result at any time, so after a loss the one that is furthest gives it to
the others, and they continue. What a solver made of the rows stays with the trainers that have
them; for lanes that come from others it is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import is_host
from daskml_dist.comm.packing import pack_object, unpack_object
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers import Solution
from daskml_dist.solvers.own_rows import State
from daskml_dist.training.spec import Left
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.rounds import PausedError, RowsLog, Together
from daskml_dist.training.worker.spill import SpillStore

__all__ = ["run_own_rows_loop"]

T = TypeVar("T")
R = TypeVar("R")
Array = NDArray[Any]


def run_own_rows_loop(context: Context) -> Solution | None:
    """Run the fit's solver on this trainer's rows; rank 0 returns the solution."""
    # The first trainer reports for all.
    connection = None if context.rank else context.connect()
    rooms = _get_spill_store(context)
    try:
        rows = _TrainerRows(context, connection, rooms)
        try:
            found: Solution = context.fit.own_rows_work.solver.solve(context.fit.work.model, rows)
        except PausedError as paused:
            found = paused.solution
        rows.end()
    finally:
        rooms.end()
        if connection is not None:
            connection.close()
    return None if context.rank else found


def _get_spill_store(context: Context) -> SpillStore:
    """Return the store for what is made of the rows, the same in all generations."""
    rooms: SpillStore | None = context.memory.get("rooms")
    if rooms is None:
        work = context.fit.own_rows_work
        # The blocks that are held leave the rest of the budget.
        held = work.row_bytes * sum(lane.n_rows for lane in context.lanes)
        context.memory["rooms"] = rooms = SpillStore(max(work.budget - held, 0.0))
    rooms.begin()
    return rooms


@dataclass
class _KnownIteration:
    """Iteration that ended, as every trainer knows it.

    Parameters
    ----------
    n_rows : int
        Rows of the fit then.
    n_iter : int
    state : callable or None
    reports : sequence of ndarray
        What was reported of each iteration up to there.
    """

    n_rows: int
    n_iter: int = 0
    state: State | None = None
    reports: Sequence[Array] = field(default_factory=list)

    def packed(self) -> NDArray[np.uint8]:
        """Return the iteration as bytes, for a checkpoint."""
        assert self.state is not None
        log = RowsLog(self.n_rows, self.n_iter, dict(self.state()), np.array(self.reports))
        return log.packed()

    @classmethod
    def unpacked(cls, data: NDArray[np.uint8]) -> _KnownIteration:
        """Return the iteration that :meth:`packed` made bytes of."""
        log = RowsLog.unpacked(data)
        return cls(log.n_rows, log.n_iter, lambda: log.state, list(log.reports))


class _TrainerRows(Together):
    """Rows of a trainer, as the solver sees them (`solvers.own_rows.OwnRows`)."""

    def __init__(
        self, context: Context, connection: ShardedConnection | None, rooms: SpillStore
    ) -> None:
        super().__init__(context, connection)
        self.room = rooms.zeros
        self.budget = rooms.budget
        self.rank, self.size = self._communicator.rank, self._communicator.size
        self.device = context.fit.run.device
        self.sums_on_device = self._communicator.sums_on_device
        self.n_rows = sum(context.lane_rows)
        # The solver speaks of lanes by their numbers.
        self._of_number: dict[int, Lane] = {lane.number: lane for lane in context.lanes}
        self.lanes = list(self._of_number)
        work = context.fit.own_rows_work
        self._is_stopped = self.should_stop = work.is_stopped
        known: _KnownIteration | None = context.memory.get("kept")
        if known is None and work.log is not None:
            known = _KnownIteration.unpacked(work.log)
        kept = self._agree_on_furthest(known)
        # Where rows were lost for good, arrays made of the other rows have wrong counts.
        # Bins and the like survive generations, unless rows were lost for good: then counts differ.
        made = context.memory.setdefault("made", {"n_rows": self.n_rows})
        if made["n_rows"] != self.n_rows:
            context.memory["made"] = made = {"n_rows": self.n_rows}
        self.memory: dict[str, Any] = made
        self.n_done = kept.n_iter
        self.kept = None if kept.state is None else kept.state()
        self._repeat_reports(kept.reports)

    def _agree_on_furthest(self, known: _KnownIteration | None) -> _KnownIteration:
        """Return the furthest iteration of any trainer, given to all."""
        own = (
            _KnownIteration(self.n_rows) if known is None or known.n_rows != self.n_rows else known
        )

        def state_of_own() -> Array:
            assert own.state is not None
            return _pack_state(dict(own.state()))

        if further := self._share_furthest(own.n_iter, state_of_own, own.reports):
            n_iter, packed, reports = further
            state = _unpack_state(packed)
            own = _KnownIteration(self.n_rows, n_iter, lambda: state, reports)
        self._context.memory["kept"] = own
        return own

    # -- rows ----------------------------------------------------------------------------------

    def count(self, lane: int) -> int:
        """Return the number of rows of an own lane."""
        return self._of_number[lane].n_rows

    def firsts(self, lane: int) -> NDArray[np.int64]:
        """Return the number of the first row of each part of a block that an own lane has."""
        # Numbers of rows among all, from which draws are hashed: they do not depend on lanes.
        first = self._context.fit.own_rows_work.first_rows
        parts = [part for part in self._of_number[lane].segments if len(part)]
        return np.array([first[part.block] + part.start for part in parts], np.int64)

    def blocks(self, lane: int) -> Iterator[tuple[int, BatchRows]]:
        """Yield the number of the first row, and the rows, of each block of an own lane."""
        reader, first = self._of_number[lane], self._context.fit.own_rows_work.first_rows
        reader.seek(0)
        for rows in reader.draw_next_batch().pieces:
            if rows.X.shape[0]:
                yield int(first[rows.block]) + rows.first, rows
        reader.drop_streamed_blocks()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Apply a function to items in the compute threads."""
        return self._context.map(function, items)

    # -- what all decide by --------------------------------------------------------------------

    def sum(self, array: Array) -> Array:
        """Return the sum of all trainers' arrays."""
        total: Array = self._communicator.allreduce(array)
        return np.asarray(total) if is_host(total) else total

    def ranges(self, n: int) -> list[slice]:
        """Return the range of `n` things that each trainer has."""
        return [slice(a, b) for a, b in pairwise(self._communicator.bounds(n))]

    def sum_own(self, array: Array) -> Array:
        """Return the own range of the sum along the first axis (reduce-scatter)."""
        # Copied, since the solver may reuse its array.
        if self.size == 1:
            return array.copy()
        n, *rest = array.shape
        each = int(np.prod(rest))
        bounds = [at * each for at in self._communicator.bounds(n)]
        own: Array = self._communicator.reduce_scatter(array.reshape(-1), bounds)
        # On a device the range is a view of the whole sum, whose memory must become free.
        return (np.asarray(own) if is_host(own) else own.copy()).reshape(-1, *rest)

    def largest(self, values: Array) -> Array:
        """Return the elementwise largest of all trainers' numbers."""
        # A maximum as a sum: each trainer fills its own row of zeros.
        all_ = np.zeros((self.size, len(values) + 3))
        all_[self.rank] = [*values, *self._extra_numbers()]
        found = self._communicator.allreduce(all_)
        self.should_stop = bool(found[:, -3].any())
        self._extra += found[:, -2:].sum(axis=0)
        return np.asarray(found[:, :-3].max(axis=0))

    def gather(self, arrays: list[Array]) -> list[list[Array]]:
        """Return the arrays of every trainer."""
        return self._communicator.allgather(arrays)

    def deal(self, arrays: list[Array]) -> list[Array]:
        """Return the arrays that all trainers have for this one."""
        return self._communicator.alltoall(arrays)

    def _extra_numbers(self) -> tuple[float, float, float]:
        """Return the first trainer's wish to stop, and the bytes that this trainer has moved."""
        return float(self._wants_to_stop or self._is_stopped), *self._bytes_moved()

    # -- iterations ----------------------------------------------------------------------------

    def keep(
        self, n_iter: int, state: State, loss: float = float("nan"), scores: Sequence[float] = ()
    ) -> None:
        """Report an iteration, and remember how to make its state."""
        work = self._context.fit.own_rows_work
        self._count_iteration(work.solver, loss, float(self.n_rows), scores)
        kept = _KnownIteration(self.n_rows, n_iter, state, list(self._reports))
        self._context.memory["kept"] = kept
        # An interrupt from here on returns what was found up to this iteration.
        self._context.set_left_behind(lambda: Left(work.solver.interrupted(n_iter, state())))
        self._end_pass()
        # All trainers come here after the same iteration. The last one needs no pause.
        is_last = n_iter >= work.solver.max_passes
        if work.pause_at is not None and len(self._reports) >= work.pause_at and not is_last:
            raise PausedError(kept.packed())


def _pack_state(state: Mapping[str, Array]) -> NDArray[np.uint8]:
    """Return a state as bytes."""
    return np.frombuffer(pack_object(dict(state), {}), np.uint8)


def _unpack_state(packed: NDArray[np.uint8]) -> dict[str, Array]:
    """Return the state that :func:`_pack_state` packed."""
    found: dict[str, Array] = unpack_object(packed, {})
    return found
