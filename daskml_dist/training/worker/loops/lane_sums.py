"""A trainer's part of a sum over all rows, and the report of a whole one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.ps.ledger import PassReport
from daskml_dist.solvers import Statistic
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context

__all__ = ["EXTRA", "LaneSums", "report_sum"]

#: What follows each sum on its way: loss, rows, bytes sent, bytes received.
EXTRA = 4


class LaneSums:
    """Sums of statistics over the rows of a trainer's lanes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._moved = 0, 0
        for lane in context.lanes:
            lane.seek(0)

    def parts(self, statistic: Statistic) -> list[tuple[int, NDArray[np.float64]]]:
        """Number of each lane and its flattened sum, with `EXTRA` numbers behind it."""
        return self._context.map(lambda lane: self._part(lane, statistic), self._context.lanes)

    def total(self, statistic: Statistic) -> NDArray[np.float64]:
        """The flattened sum of all lanes, with `EXTRA` numbers behind it."""
        (_, total), *others = self.parts(statistic)
        for _, part in others:
            total += part
        return total

    def _part(self, lane: Lane, statistic: Statistic) -> tuple[int, NDArray[np.float64]]:
        shape = statistic.shape(self._context.fit.work.model)
        out = np.zeros(int(np.prod(shape)) + EXTRA)
        batch = lane.next_batch()
        out[-EXTRA] = lane.add_statistic(statistic, batch, out[:-EXTRA].reshape(shape))
        out[1 - EXTRA] = batch.n_rows
        return lane.number, out

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent to, and received from, other trainers since the last call."""
        communicator = self._context.communicator
        moved = communicator.bytes_sent, communicator.bytes_received
        since = moved[0] - self._moved[0], moved[1] - self._moved[1]
        self._moved = moved
        return since


def report_sum(
    context: Context, connection: ShardedConnection, number: int, extra: NDArray[Any]
) -> bool:
    """Report sum `number` (from 1) for all lanes; the ledger ignores what it knows already.

    Returns
    -------
    bool
        Whether the fit is to stop.
    """
    lanes = list(range(len(context.lane_rows)))
    report = PassReport(lanes, extra[0], extra[1], 1, int(extra[2]), int(extra[3]))
    answer = connection.call("report", **{"pass": number, "report": asdict(report)})
    return bool(answer["stop"])
