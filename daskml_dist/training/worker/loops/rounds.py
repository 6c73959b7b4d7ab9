"""Parts that the loops of solvers share: points and logs, sums over lanes, and reports.

After a loss, or in a later part of its fit, a solver continues either from a `SolverPoint`, the
state after an iteration, or from a `SumLog`, the sums over all rows since the last saved state,
which it reuses instead of reading the rows. `LaneSums` computes a trainer's part of a sum.
`SumReports` reports complete sums as passes. `share_furthest` sends the log or point of the most
advanced trainer to all. `SolverView` is the base class of the interface to a solver that all
trainers run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import Communicator, ReusedMemory
from daskml_dist.comm.packing import pack_object, unpack_object
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.solvers.base import Solution, Statistic
from daskml_dist.solvers.own_rows import State
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context

#: Numbers that follow each sum in messages: loss, rows, bytes sent, bytes received.
EXTRA = 4
#: Most bytes of sums in a log (256 MiB); after a loss, a solver with more restarts from its last
#: saved state, or from the beginning.
MAX_REMEMBERED_BYTES = 2**28
#: Bytes of sums (16 MiB) from which a solver's saved state replaces them.
REPLACED_FROM_BYTES = 2**24
#: Seconds between two reports, if other trainers wait during a report.
REPORT_INTERVAL_SECONDS = 0.01
Array = NDArray[Any]
FloatArray = NDArray[np.float64]


@dataclass
class SolverPoint:
    """State after a solver's iteration, to continue from after a loss or in the next part of a fit.

    Parameters
    ----------
    n_rows : int
        Number of rows of the fit.
    n_iter : int
        Number of iterations so far, as the solver counts them.
    make_state : callable or None
        Returns the arrays from which the solver continues, by name; None: the solver starts.
    reports : sequence of ndarray
        The `EXTRA` numbers that were reported for each pass, and its scores.
    """

    n_rows: int
    n_iter: int = 0
    make_state: State | None = None
    reports: Sequence[Array] = ()

    @property
    def state(self) -> Mapping[str, Array] | None:
        """Return the arrays from which the solver continues; None: the solver starts."""
        return None if self.make_state is None else self.make_state()

    def packed(self) -> NDArray[np.uint8]:
        """Return the point as bytes, for other trainers, later parts of a fit and checkpoints."""
        facts = [self.n_rows, self.n_iter, dict(self.state or {}), np.array(self.reports)]
        return np.frombuffer(pack_object(facts, {}), np.uint8)

    @classmethod
    def unpacked(cls, data: NDArray[np.uint8]) -> SolverPoint:
        """Undo :meth:`packed`."""
        n_rows, n_iter, state, reports = unpack_object(data, {})
        if not isinstance(state, dict) or np.ndim(reports) != 2 or np.shape(reports)[1] < EXTRA:
            raise ValueError("no point of a solver on its own rows")
        return cls(n_rows, n_iter, lambda: state, list(reports))


@dataclass
class SumLog:
    """Log of the sums of a fit, or of a solver's last saved state and the sums since then.

    Parameters
    ----------
    n_rows : int
        Number of rows of the fit.
    saved_state : dict from str to ndarray, or None
        The solver's last saved state; None: there is none, and the log begins with the fit.
    n_iter : int
        Number of iterations up to that state.
    first : int
        Number of sums up to that state, which are no longer in the log.
    sums : list of ndarray or None
        Later sums, each flattened and followed by `EXTRA` numbers; None: must be computed again.
    reports : list of ndarray
        The `EXTRA` numbers of all sums since the beginning of the fit.
    is_whole : bool
        Whether all sums since that state are in the log; False if they became too large.
    n_bytes : int
        Size of the sums.
    """

    n_rows: int
    saved_state: dict[str, FloatArray] | None = None
    n_iter: int = 0
    first: int = 0
    sums: list[FloatArray | None] = field(default_factory=list)
    reports: list[FloatArray] = field(default_factory=list)
    is_whole: bool = True
    n_bytes: int = 0
    _memory: ReusedMemory = field(default_factory=ReusedMemory)

    def allocate(self, n: int) -> FloatArray:
        """Return memory for the next sum, of `n` numbers, reused once no reference is left."""
        return self._memory.empty(8 * n).view(np.float64)

    def get(self, sum_number: int) -> FloatArray | None:
        """Return sum `sum_number` (from 1); None if it is not in the log."""
        index = sum_number - self.first - 1
        return self.sums[index] if self.is_whole and index < len(self.sums) else None

    def add(self, sum_number: int, total: FloatArray, remembered: bool = True) -> None:
        """Add a sum to the log, and make it read-only."""
        total.flags.writeable = False
        # A sum that was computed before but not remembered, and has been computed again.
        if sum_number <= len(self.reports):
            return
        self.reports.append(total[-EXTRA:].copy())
        # Statistics may declare that their sum is too large to be remembered.
        self.n_bytes += total.nbytes if remembered else 0
        if self.n_bytes > MAX_REMEMBERED_BYTES:
            self.sums, self.is_whole = [], False
        if self.is_whole:
            self.sums.append(total if remembered else None)

    def is_worth_replacing(self, sum_number: int) -> bool:
        """Return whether a state saved after sum `sum_number` is smaller than the sums up to it."""
        kept_bytes = 0 if self.saved_state is None else _count_bytes(self.saved_state)
        return sum_number == len(self.reports) and self.n_bytes > max(
            REPLACED_FROM_BYTES, kept_bytes
        )

    def keep(self, state: dict[str, FloatArray], n_iter: int, n_repeated: int) -> None:
        """Replace all sums except the last `n_repeated` by the solver's state.

        The solver requests these sums again when it continues from the state.
        """
        self.saved_state, self.n_iter = state, n_iter
        self.first = len(self.reports) - n_repeated
        self.sums = self.sums[len(self.sums) - n_repeated :] if n_repeated else []
        self.is_whole = len(self.sums) == n_repeated
        self.n_bytes = sum(total.nbytes for total in self.sums if total is not None)

    def restart(self) -> SumLog:
        """Return this log for a solver that restarts; without any sums if some are missing."""
        if not self.is_whole:
            self.sums, self.reports = [], self.reports[: self.first]
            self.is_whole, self.n_bytes = True, 0
        return self

    @property
    def held_range(self) -> tuple[int, int]:
        """Return the numbers of all sums, and of those before the state; the best log has most."""
        return len(self.reports), self.first

    def packed(self) -> NDArray[np.uint8]:
        """Return the log as bytes, for other trainers and for files."""
        reports = np.array(self.reports).reshape(-1, EXTRA)
        facts = [self.n_rows, self.saved_state, self.n_iter, self.first, self.sums, reports]
        return np.frombuffer(pack_object(facts, {}), np.uint8)

    def replace_by(self, data: NDArray[np.uint8]) -> None:
        """Replace this log by one from :meth:`packed`."""
        unpacked = unpack_object(data, {})
        self.n_rows, self.saved_state, self.n_iter, self.first, self.sums, reports = unpacked
        self.reports = list(reports)
        self.n_bytes, self.is_whole = _count_bytes(dict(enumerate(self.sums))), True
        for total in self.sums:
            if total is not None:
                total.flags.writeable = False


def _count_bytes(arrays: dict[str, FloatArray] | dict[int, FloatArray | None]) -> int:
    """Return the bytes of arrays."""
    return sum(array.nbytes for array in arrays.values() if array is not None)


class PausedError(Exception):
    """Raised at the end of one part of a fit that runs in parts.

    Parameters
    ----------
    log : ndarray of uint8
        Packed log from which the next part continues.
    """

    def __init__(self, log: NDArray[np.uint8]) -> None:
        super().__init__("paused")
        self.solution = Solution(np.empty(0), 0, False, "paused", {"log": log})


@contextmanager
def connect_to_ledger(context: Context) -> Iterator[ShardedConnection | None]:
    """Connect the first trainer, which reports for all, to the ledger; yield None in others."""
    connection = None if context.rank else context.connect()
    try:
        yield connection
    finally:
        if connection is not None:
            connection.close()


def share_furthest(
    context: Context, progress: Sequence[int], pack: Callable[[], NDArray[np.uint8]]
) -> NDArray[np.uint8] | None:
    """Return the packed data of the trainer with the largest `progress`; None if all are equal.

    After a loss every solver loop begins with this, since trainers may have received different
    numbers of sums.
    """
    if not context.generation:
        return None
    communicator = context.communicator
    all_reaches = [tuple(r.tolist()) for (r,) in communicator.allgather([np.array(progress)])]
    if min(all_reaches) == (best := max(all_reaches)):
        return None
    return broadcast_from(communicator, all_reaches.index(best), pack)


def broadcast_from(
    communicator: Communicator, rank: int, pack: Callable[[], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """Return the data that one rank packs, on all ranks."""
    own_data = [pack()] if communicator.rank == rank else []
    (packed,) = communicator.allgather(own_data)[rank]
    return packed


class SolverView:
    """Base class of the interface to a solver that every trainer runs: iterations and reports.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection or None
        Connection to the ledger; the first trainer reports for all.
    """

    def __init__(self, context: Context, connection: ShardedConnection | None) -> None:
        self._context = context
        self._communicator = context.communicator
        self.n_rows = sum(context.lane_rows)
        #: Number of iterations before this generation.
        self.n_done = 0
        self._to_ledger = None if connection is None else SumReports(context, connection)
        self._reports: list[Array] = []
        self.should_stop = False
        #: Bytes sent and received since the last iteration, by all trainers.
        self._extra: Array = np.zeros(2)

    @property
    def _wants_to_stop(self) -> bool:
        """Return whether the ledger wants the fit to end; only the first trainer knows."""
        return self._to_ledger is not None and self._to_ledger.should_stop

    def _agree_on_point(self, known_point: SolverPoint | None) -> SolverPoint:
        """Return the point from which the solver continues: the most advanced of any trainer."""
        # A point for other rows (some were lost for good) cannot be used.
        point = (
            SolverPoint(self.n_rows)
            if known_point is None or known_point.n_rows != self.n_rows
            else known_point
        )
        if (packed := share_furthest(self._context, (point.n_iter,), point.packed)) is not None:
            point = SolverPoint.unpacked(packed)
        self._context.memory["point"] = point
        self.n_done = point.n_iter
        self._repeat_reports(point.reports)
        return point

    def _remember_point(self, n_iter: int, make_state: State) -> SolverPoint:
        """Remember a finished iteration for the next generation."""
        point = SolverPoint(self.n_rows, n_iter, make_state, list(self._reports))
        self._context.memory["point"] = point
        return point

    def _repeat_reports(self, reports: Iterable[Array]) -> None:
        """Repeat the reports of the iterations before a loss."""
        self._reports = list(reports)
        for extra in self._reports:
            self._report_iteration(extra)

    def _count_iteration(
        self, solver: Any, loss: float, n_rows: float, scores: Sequence[float] = ()
    ) -> None:
        """Count an iteration of the solver."""
        # The ledger has the same bound, and would end the fit without an error.
        if len(self._reports) >= solver.max_passes:
            raise InvalidParameterError(
                f"The solver {type(solver).__name__} makes more than "
                f"max_passes={solver.max_passes} iterations. Set max_passes to the largest "
                "number it may need."
            )
        self._reports.append(np.array([loss, n_rows, *self._extra, *scores]))
        self._extra = np.zeros(2)

    def _end_pass(self) -> None:
        """Report the last iteration, which is a pass of the fit."""
        self._report_iteration(self._reports[-1])
        self._context.end_pass()

    def _report_iteration(self, extra: Array) -> None:
        """Report one iteration, if this is the first trainer."""
        if self._to_ledger is not None:
            self._to_ledger.add(extra)

    def end(self) -> None:
        """Send the remaining reports."""
        if self._to_ledger is not None:
            self._to_ledger.send()


class LaneSums:
    """Sums of statistics over the rows of a trainer's lanes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: Buffer of each lane, reused since the first write to new memory takes longer than a sum.
        self._buffers: dict[int, NDArray[np.float64]] = {}
        # Each sum is one pass over all rows of the lane.
        for lane in context.lanes:
            lane.seek(0)

    def sum_by_lane(
        self, statistic: Statistic, sum_number: int, source_sum: int = 0
    ) -> list[tuple[int, NDArray[np.float64]]]:
        """Return the number of each lane and its flattened sum, followed by `EXTRA` numbers.

        The arrays are valid until the next call.
        """
        return self._context.map(
            lambda lane: self._sum_lane(lane, statistic, sum_number, source_sum),
            self._context.lanes,
        )

    def sum_lanes(
        self, statistic: Statistic, sum_number: int, source_sum: int = 0
    ) -> NDArray[np.float64]:
        """Return the flattened sum of all lanes, followed by `EXTRA` numbers."""
        (_, total), *other_parts = self.sum_by_lane(statistic, sum_number, source_sum)
        for _, part in other_parts:
            total += part
        return total

    def _sum_lane(
        self, lane: Lane, statistic: Statistic, sum_number: int, source_sum: int
    ) -> tuple[int, NDArray[np.float64]]:
        """Return a lane's number and its sum."""
        shape = statistic.shape(self._context.fit.work.model)
        n = math.prod(shape) + EXTRA
        buffer = self._buffers.get(lane.number)
        if buffer is None or len(buffer) < n:
            buffer = self._buffers[lane.number] = np.empty(n)
        out = buffer[:n]
        out.fill(0.0)
        sums = out[:-EXTRA].reshape(shape)
        # Loss and rows are part of the array, so one all-reduce carries everything.
        out[-EXTRA:][:2] = lane.add_statistic(statistic, sum_number, source_sum, sums)
        return lane.number, out


class SumReports:
    """Reports of the first trainer: each complete sum counts as a pass of all lanes.

    A single trainer reports each sum immediately. If other trainers wait during a report, several
    sums are reported together, at most a hundred times a second.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection

    Attributes
    ----------
    should_stop : bool
        Whether the fit should stop, according to the answer to the last report.
    """

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        self.should_stop = False
        self._connection = connection
        self._report_interval = REPORT_INTERVAL_SECONDS if context.communicator.size > 1 else 0.0
        self._sent_at = -math.inf
        self._next = 1
        self._waiting: list[tuple[list[float], float]] = []

    def add(self, extra: NDArray[Any]) -> None:
        """Report the `EXTRA` numbers of the next sum, followed by scores, now or with later ones.

        The ledger ignores sums that were reported before.
        """
        now = time.perf_counter()
        self._waiting.append((extra.tolist(), now))
        if now - self._sent_at >= self._report_interval:
            self.send()

    def send(self) -> None:
        """Send all waiting reports."""
        if not self._waiting:
            return
        now = self._sent_at = time.perf_counter()
        # With the age of each sum, from which the ledger computes when it was made.
        sums = [[*extra, now - made_at] for extra, made_at in self._waiting]
        answer = self._connection.call("report_sums", first=self._next, sums=sums)
        self._next += len(sums)
        self._waiting.clear()
        self.should_stop = bool(answer["stop"])
