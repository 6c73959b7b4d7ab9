"""Loop *ranges*: rounds of a solver with large vectors, of which each trainer holds a range.

All trainers run the solver on their ranges and all-reduce the few numbers that it decides by, so
they decide alike. Whole vectors exist only as the point at which a sum is made, and the sum. Every
trainer keeps the last point that an iteration ended at. After a loss the solver continues from
there to the same optimum, though by other steps, since its memory of the curvature is gone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.solvers import RangedSolver, Solution, Statistic
from daskml_dist.training.spec import Left
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.rounds import EXTRA, LaneSums, Together

__all__ = ["run_ranges_loop"]

Array = NDArray[np.float64]


def run_ranges_loop(context: Context) -> Solution | None:
    """Run the fit's solver on this trainer's range; rank 0 returns the solution."""
    solver = context.fit.rounds.solver
    assert isinstance(solver, RangedSolver)
    # The first trainer reports for all.
    connection = None if context.rank else context.connect()
    try:
        ranges = _TrainerRanges(context, connection)
        found = solver.solve_in_ranges(context.fit.work.model, ranges, ranges.start())
        ranges.end()
        w = ranges.whole(found.w).reshape(context.fit.rounds.shape or ())
    finally:
        if connection is not None:
            connection.close()
    return None if context.rank else dataclasses.replace(found, w=w)


@dataclass
class _KeptPoint:
    """Point at which an iteration ended, and what was reported up to there.

    Parameters
    ----------
    n_rows : int
        Rows that it was found with.
    n_iter : int
    w : ndarray of float64, flat, or None
        None: where the fit began.
    reports : list of ndarray
        `EXTRA` numbers of each sum.
    """

    n_rows: int
    n_iter: int = 0
    w: Array | None = None
    reports: list[Array] = field(default_factory=list)


class _TrainerRanges(Together):
    """Range of the vectors of one trainer, as the solver sees it (`solvers.Ranges`)."""

    def __init__(self, context: Context, connection: ShardedConnection | None) -> None:
        super().__init__(context, connection)
        # Sums are made at the whole point, over this trainer's rows.
        self._sums = LaneSums(context)
        self._bounds = self._communicator.bounds(int(np.prod(context.fit.rounds.shape or ())))
        # A contiguous range of every vector of the solver.
        self.own = slice(*self._bounds[context.rank : context.rank + 2])
        self.n_rows = sum(context.lane_rows)
        point = self._agree_on_furthest(context.memory.get("point"))
        self._begin: Array | None = point.w
        self._last: Array | None = point.w
        self.n_done = point.n_iter
        self._repeat_reports(point.reports)

    def _agree_on_furthest(self, known: _KeptPoint | None) -> _KeptPoint:
        """Return the furthest point of any trainer, given to all."""
        own = _KeptPoint(self.n_rows) if known is None or known.n_rows != self.n_rows else known

        def own_vector() -> Array:
            assert own.w is not None
            return own.w

        if further := self._share_furthest(own.n_iter, own_vector, own.reports):
            n_iter, w, reports = further
            own = _KeptPoint(self.n_rows, n_iter, w, reports)
        self._context.memory["point"] = own
        return own

    def start(self) -> Array:
        """Return the own range of the initial vector."""
        if self._begin is not None:
            return self._begin[self.own].copy()
        start = self._context.fit.rounds.first()
        assert start is not None
        return start.ravel()[self.own]

    def keep(self, n_iter: int) -> None:
        """Keep the last point."""
        reports = list(self._reports)
        point = _KeptPoint(self.n_rows, self.n_done + n_iter, self._last, reports)
        self._context.memory["point"] = point
        self._context.set_left_behind(lambda: self._make_left(point))

    def _make_left(self, point: _KeptPoint) -> Left:
        """Return a point as what the trainer leaves behind."""
        assert point.w is not None
        w = point.w.reshape(self._context.fit.rounds.shape or ())
        return Left(Solution(w, point.n_iter, converged=False, message="interrupted"))

    # -- numbers -------------------------------------------------------------------------------

    def dot(self, a: Array, b: Array) -> float:
        """Return the dot product of two vectors."""
        return float(self._communicator.allreduce(np.array([a @ b]))[0])

    def largest(self, a: Array) -> float:
        """Return the largest absolute value of a vector's components."""
        found = np.zeros(self._communicator.size)
        found[self._communicator.rank] = np.abs(a).max(initial=0.0)
        return float(self._communicator.allreduce(found).max())

    # -- vectors -------------------------------------------------------------------------------

    def whole(self, own: Array) -> Array:
        """Return a whole vector from the ranges of all trainers."""
        self._last = np.concatenate([part for (part,) in self._communicator.allgather([own])])
        return self._last

    def __call__(self, statistic: Statistic) -> Array:
        """Return the numbers that a sum begins with, and the own range of each vector."""
        total = self._sums.total(statistic, len(self._reports) + 1)
        total[2 - EXTRA :] = self._sums.bytes_moved()
        n, size = statistic.n_numbers, self._bounds[-1]
        # The first trainer alone hears that the fit is to stop, and all must know it alike.
        # Few numbers: loss, rows, bytes, the wish to stop, and the scalars of the sum.
        small = self._communicator.allreduce(
            np.hstack([total[-EXTRA:], float(self._wants_to_stop), total[:n]])
        )
        # Long vectors are reduced and scattered: each rank gets its range of the sum only.
        vectors = [
            self._communicator.reduce_scatter(total[at : at + size], self._bounds)
            for at in range(n, len(total) - EXTRA, size)
        ]
        self._reports.append(small[:EXTRA])
        self.should_stop = bool(small[EXTRA])
        self._end_pass()
        return np.hstack([small[EXTRA + 1 :], *vectors])
