"""Loop *own rows*: each trainer runs the solver on its rows; sums for decisions are all-reduced.

All trainers have the same result after each iteration. So after a loss, the one that has done most
iterations sends its result to the others, and all continue. Arrays that a solver computed from rows
(such as bins) stay with the trainers of these rows; for lanes that move to another trainer they are
computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import is_host
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.own_rows import State
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.rounds import (
    PausedError,
    SolverPoint,
    SolverView,
    connect_to_ledger,
)
from daskml_dist.training.worker.spill import SpillStore

T = TypeVar("T")
R = TypeVar("R")
Array = NDArray[Any]


def run_own_rows_loop(context: Context) -> Solution | None:
    """Run the fit's solver on this trainer's rows; rank 0 returns the solution."""
    with connect_to_ledger(context) as connection, _open_spill_store(context) as store:
        rows = _TrainerRows(context, connection, store)
        try:
            solution: Solution = context.fit.own_rows_work.solver.solve(
                context.fit.work.model, rows
            )
        except PausedError as paused:
            solution = paused.solution
        rows.end()
    return None if context.rank else solution


@contextmanager
def _open_spill_store(context: Context) -> Iterator[SpillStore]:
    """Open the store of arrays that solvers compute from the rows; it outlives generations."""
    store: SpillStore | None = context.memory.get("spill_store")
    if store is None:
        work = context.fit.own_rows_work
        # The store gets the rest of the budget that the blocks in memory do not use.
        held_bytes = work.row_bytes * sum(lane.n_rows for lane in context.lanes)
        context.memory["spill_store"] = store = SpillStore(max(work.budget - held_bytes, 0.0))
    store.begin()
    try:
        yield store
    finally:
        store.end()


class _TrainerRows(SolverView):
    """Rows of a trainer, in the solver's interface (`solvers.own_rows.OwnRows`)."""

    def __init__(
        self, context: Context, connection: ShardedConnection | None, store: SpillStore
    ) -> None:
        super().__init__(context, connection)
        self.allocate_zeros = store.zeros
        self.budget = store.budget
        self.rank, self.size = self._communicator.rank, self._communicator.size
        self.device = context.fit.run.device
        self.sums_on_device = self._communicator.sums_on_device
        self._of_number: dict[int, Lane] = {lane.number: lane for lane in context.lanes}
        self.lanes = list(self._of_number)
        work = context.fit.own_rows_work
        self._is_stopped = self.should_stop = work.is_stopped
        point: SolverPoint | None = context.memory.get("point")
        if point is None and work.log is not None:
            point = SolverPoint.unpacked(work.log)
        self.kept = self._agree_on_point(point).state
        # Computed arrays, such as bins, survive generations unless rows were lost for good: then
        # they include rows that no longer count.
        computed = context.memory.setdefault("computed_arrays", {"n_rows": self.n_rows})
        if computed["n_rows"] != self.n_rows:
            context.memory["computed_arrays"] = computed = {"n_rows": self.n_rows}
        self.memory: dict[str, Any] = computed

    # -- rows ----------------------------------------------------------------------------------

    def count_rows(self, lane: int) -> int:
        """Return the number of rows of an own lane."""
        return self._of_number[lane].n_rows

    def first_row_numbers(self, lane: int) -> NDArray[np.int64]:
        """Return the number of the first row of each block part of an own lane."""
        # Draws are hashes of a row's number among all rows, so they do not depend on lanes.
        first = self._context.fit.own_rows_work.first_rows
        parts = [part for part in self._of_number[lane].segments if len(part)]
        return np.array([first[part.block] + part.start for part in parts], np.int64)

    def iterate_blocks(self, lane: int) -> Iterator[tuple[int, BatchRows]]:
        """Yield, for each block of a lane, the number of its first row among all, and its rows."""
        reader, first = self._of_number[lane], self._context.fit.own_rows_work.first_rows
        reader.seek(0)
        for rows in reader.draw_next_batch().pieces:
            if rows.X.shape[0]:
                yield int(first[rows.block]) + rows.first, rows
        reader.drop_streamed_blocks()

    def map_lanes(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Apply a function to items in the compute threads."""
        return self._context.map(function, items)

    # -- sums over all trainers ----------------------------------------------------------------

    def sum_trainers(self, array: Array) -> Array:
        """Return the sum of all trainers' arrays."""
        total: Array = self._communicator.allreduce(array)
        return np.asarray(total) if is_host(total) else total

    def split_ranges(self, n: int) -> list[slice]:
        """Return each trainer's range of `n` items."""
        return [slice(a, b) for a, b in pairwise(self._communicator.bounds(n))]

    def sum_own_range(self, array: Array) -> Array:
        """Return the own range of the sum along the first axis (reduce-scatter)."""
        # Copied, since the solver may reuse its array.
        if self.size == 1:
            return array.copy()
        n, *other_sizes = array.shape
        row_size = int(np.prod(other_sizes))
        bounds = [bound * row_size for bound in self._communicator.bounds(n)]
        own_range: Array = self._communicator.reduce_scatter(array.reshape(-1), bounds)
        # On a device the range is a view of the whole sum; it is copied to free that memory.
        return (np.asarray(own_range) if is_host(own_range) else own_range.copy()).reshape(
            -1, *other_sizes
        )

    def max_trainers(self, values: Array) -> Array:
        """Return the elementwise maximum of all trainers' numbers."""
        # A maximum computed from a sum: each trainer fills its own row of a zero matrix.
        trainer_values = np.zeros((self.size, len(values) + 3))
        trainer_values[self.rank] = [*values, *self._extra_numbers()]
        sums = self._communicator.allreduce(trainer_values)
        self.should_stop = bool(sums[:, -3].any())
        self._extra += sums[:, -2:].sum(axis=0)
        return np.asarray(sums[:, :-3].max(axis=0))

    def gather_arrays(self, arrays: list[Array]) -> list[list[Array]]:
        """Return the arrays of every trainer."""
        return self._communicator.allgather(arrays)

    def exchange_arrays(self, arrays: list[Array]) -> list[Array]:
        """Send each rank the array at its index; return the arrays that all ranks sent here."""
        return self._communicator.alltoall(arrays)

    def _extra_numbers(self) -> tuple[float, float, float]:
        """Return whether the first trainer wants to stop, and the bytes that this trainer moved."""
        return float(self._wants_to_stop or self._is_stopped), *self._context.count_moved_bytes()

    # -- iterations ----------------------------------------------------------------------------

    def keep(
        self, n_iter: int, state: State, loss: float = float("nan"), scores: Sequence[float] = ()
    ) -> None:
        """Report an iteration, and keep the function that returns its state."""
        work = self._context.fit.own_rows_work
        self._count_iteration(work.solver, loss, float(self.n_rows), scores)
        point = self._remember_point(n_iter, state)
        # From now on, an interrupt returns the result of this iteration.
        self._context.set_left_behind(
            lambda: InterruptedState(work.solver.interrupted(n_iter, state()))
        )
        self._end_pass()
        # All trainers pause after the same iteration, unless it is the last.
        is_last = n_iter >= work.solver.max_passes
        if work.pause_at is not None and len(self._reports) >= work.pause_at and not is_last:
            raise PausedError(point.packed())
