"""Loop *ranges*: rounds of a solver with large vectors; each trainer holds a range of them.

All trainers run the solver on their ranges and all-reduce the few numbers on which its decisions
depend, so they all decide the same. Only two vectors are ever whole: the point at which a sum is
computed, and the sum. Every trainer keeps the point of the last iteration. After a loss the solver
continues from it to the same optimum, but by other steps, since its memory of the curvature is
lost.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.solvers.base import RangedSolver, Solution, Statistic
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.rounds import EXTRA, LaneSums, SolverView, connect_to_ledger

Array = NDArray[np.float64]


def run_ranges_loop(context: Context) -> Solution | None:
    """Run the fit's solver on this trainer's range; rank 0 returns the solution."""
    solver = context.fit.rounds.solver
    assert isinstance(solver, RangedSolver)
    with connect_to_ledger(context) as connection:
        ranges = _TrainerRanges(context, connection)
        solution = solver.solve_in_ranges(context.fit.work.model, ranges, ranges.start())
        ranges.end()
        w = ranges.gather(solution.w).reshape(context.fit.rounds.shape or ())
    return None if context.rank else dataclasses.replace(solution, w=w)


class _TrainerRanges(SolverView):
    """Range of one trainer's vectors, in the solver's interface (`solvers.Ranges`)."""

    def __init__(self, context: Context, connection: ShardedConnection | None) -> None:
        super().__init__(context, connection)
        # Sums are computed at the whole point, over this trainer's rows.
        self._sums = LaneSums(context)
        self._bounds = self._communicator.bounds(int(np.prod(context.fit.rounds.shape or ())))
        # A contiguous range of every vector of the solver.
        self.own_range = slice(*self._bounds[context.rank : context.rank + 2])
        state = self._agree_on_point(context.memory.get("point")).state
        self._initial_vector: Array | None = None if state is None else state["w"]
        self._last = self._initial_vector

    def start(self) -> Array:
        """Return the own range of the initial vector."""
        if self._initial_vector is not None:
            return self._initial_vector[self.own_range].copy()
        start = self._context.fit.rounds.first()
        assert start is not None
        return start.ravel()[self.own_range]

    def keep(self, n_iter: int) -> None:
        """Keep the last whole point as the point of iteration `n_iter`."""
        last, n_iter = self._last, self.n_done + n_iter
        assert last is not None
        self._remember_point(n_iter, lambda: {"w": last})
        w = last.reshape(self._context.fit.rounds.shape or ())
        solution = Solution(w, n_iter, converged=False, message="interrupted")
        self._context.set_left_behind(lambda: InterruptedState(solution))

    # -- numbers -------------------------------------------------------------------------------

    def dot(self, a: Array, b: Array) -> float:
        """Return the dot product of two vectors."""
        return float(self._communicator.allreduce(np.array([a @ b]))[0])

    def largest(self, a: Array) -> float:
        """Return the largest absolute value of a vector's components."""
        maxima = np.zeros(self._communicator.size)
        maxima[self._communicator.rank] = np.abs(a).max(initial=0.0)
        return float(self._communicator.allreduce(maxima).max())

    # -- vectors -------------------------------------------------------------------------------

    def gather(self, own_values: Array) -> Array:
        """Return a whole vector from the ranges of all trainers."""
        self._last = np.concatenate(
            [part for (part,) in self._communicator.allgather([own_values])]
        )
        return self._last

    def __call__(self, statistic: Statistic) -> Array:
        """Return the numbers at the start of a sum, and the own range of each of its vectors."""
        total = self._sums.sum_lanes(statistic, len(self._reports) + 1)
        total[2 - EXTRA :] = self._context.count_moved_bytes()
        n, size = statistic.n_numbers, self._bounds[-1]
        # All-reduced: loss, rows, bytes, whether to stop (only the first trainer knows), and the
        # scalars of the sum.
        small = self._communicator.allreduce(
            np.hstack([total[-EXTRA:], float(self._wants_to_stop), total[:n]])
        )
        # Long vectors are reduce-scattered: each rank gets only its range of the sum.
        vectors = [
            self._communicator.reduce_scatter(total[start : start + size], self._bounds)
            for start in range(n, len(total) - EXTRA, size)
        ]
        self._reports.append(small[:EXTRA])
        self.should_stop = bool(small[EXTRA])
        self._end_pass()
        return np.hstack([small[EXTRA + 1 :], *vectors])
