"""A trainer's part of a sum over all rows, and the reports of whole ones."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.solvers import Statistic
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context

__all__ = ["EXTRA", "LaneSums", "SumReports"]

#: What follows each sum on its way: loss, rows, bytes sent, bytes received.
EXTRA = 4
#: Seconds between two reports where others wait for this trainer meanwhile.
_EVERY = 0.01


class LaneSums:
    """Sums of statistics over the rows of a trainer's lanes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._moved = 0, 0
        #: Where each lane adds up: memory that is new is dearer than a sum.
        self._rooms: dict[int, NDArray[np.float64]] = {}
        for lane in context.lanes:
            lane.seek(0)

    def parts(
        self, statistic: Statistic, number: int, left: int = 0
    ) -> list[tuple[int, NDArray[np.float64]]]:
        """Number of each lane and its flattened sum, with `EXTRA` numbers behind it.

        They are good until the next ones are asked for.

        Parameters
        ----------
        statistic : Statistic
        number : int
            Of the sum, from 1.
        left : int
            Number of the sum that left the statistic's state as it is to be found.
        """
        return self._context.map(
            lambda lane: self._part(lane, statistic, number, left), self._context.lanes
        )

    def total(self, statistic: Statistic, number: int, left: int = 0) -> NDArray[np.float64]:
        """The flattened sum of all lanes, with `EXTRA` numbers behind it; good as are `parts`."""
        (_, total), *others = self.parts(statistic, number, left)
        for _, part in others:
            total += part
        return total

    def _part(
        self, lane: Lane, statistic: Statistic, number: int, left: int
    ) -> tuple[int, NDArray[np.float64]]:
        shape = statistic.shape(self._context.fit.work.model)
        out = self._zeros(lane.number, math.prod(shape) + EXTRA)
        sums = out[:-EXTRA].reshape(shape)
        out[-EXTRA:][:2] = lane.add_statistic(statistic, number, left, sums)
        return lane.number, out

    def _zeros(self, lane: int, n: int) -> NDArray[np.float64]:
        room = self._rooms.get(lane)
        if room is None or len(room) < n:
            room = self._rooms[lane] = np.empty(n)
        out = room[:n]
        out.fill(0.0)
        return out

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent to, and received from, other trainers since the last call."""
        communicator = self._context.communicator
        moved = communicator.bytes_sent, communicator.bytes_received
        since = moved[0] - self._moved[0], moved[1] - self._moved[1]
        self._moved = moved
        return since


class SumReports:
    """The first trainer's reports of whole sums, each of which is a pass of all lanes.

    One that sums alone reports each at once. Where other trainers wait for it meanwhile it reports
    some together, a hundred times a second.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection

    Attributes
    ----------
    should_stop : bool
        Whether the fit is to stop, as far as the last report told.
    """

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        self.should_stop = False
        self._connection = connection
        self._every = _EVERY if context.communicator.size > 1 else 0.0
        self._sent_at = -math.inf
        self._next = 1
        self._waiting: list[tuple[list[float], float]] = []

    def add(self, extra: NDArray[Any]) -> None:
        """Take the `EXTRA` numbers of the next sum, and scores behind them.

        The ledger ignores the sums that it knows already.
        """
        now = time.perf_counter()
        self._waiting.append((extra.tolist(), now))
        if now - self._sent_at >= self._every:
            self.send()

    def send(self) -> None:
        """Report what has not been reported yet."""
        if not self._waiting:
            return
        now = self._sent_at = time.perf_counter()
        sums = [[*extra, now - made] for extra, made in self._waiting]
        answer = self._connection.call("report_sums", first=self._next, sums=sums)
        self._next += len(sums)
        self._waiting.clear()
        self.should_stop = bool(answer["stop"])
