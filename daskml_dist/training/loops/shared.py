"""Shared memory without locks (``"hogwild"``): threads race, processes meet at the server.

The threads of a trainer update one replica. Every few steps one of them sends the server what
the trainer has changed since the last meeting and adds what the others changed meanwhile.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np

from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.ps.shard import Shard, ShardState
from daskml_dist.training.lane import Lane
from daskml_dist.training.loops.context import Context

__all__ = ["run_shared"]

#: Steps of a trainer between two meetings at the server.
_MEET_EVERY = 8


def run_shared(context: Context) -> ShardState | None:
    """Run all lanes; rank 0 returns its optimizer state (the servers hold the parameters)."""
    connection = context.connect()
    shared = _Shared(context, connection)
    try:
        context.run_threads(shared.run)
        shared.leave()
    finally:
        connection.close()
    return shared.replica.state() if context.rank == 0 else None


class _Shared:
    """The replica of a trainer and its meetings."""

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        fit = context.fit
        share = len(context.lanes) / max(len(fit.lane_rows), 1)
        rule = dataclasses.replace(fit.rule, steps_per_pass=fit.rule.steps_per_pass * share)
        self.replica = Shard(rule, fit.start_state())
        self._context = context
        self._fit = fit
        self._connection = connection
        self._meeting = threading.Lock()
        self._name = min(lane.number for lane in context.lanes)
        self._base = self.replica.w.copy()
        self._rows = 0.0
        self._clock = fit.first_clock
        self._steps = 0
        self._stopped = False

    def run(self, lanes: list[Lane]) -> None:
        """The work of one thread."""
        with np.errstate(over="ignore", invalid="ignore"):
            for lane in lanes:
                lane.seek(self._fit.first_clock)
            for number in self._fit.passes:
                for _ in range(self._fit.n_steps):
                    if self._stopped or self._context.failed:
                        return
                    for lane in lanes:
                        self._step(lane)
                if self._end_pass(number, lanes):
                    return

    def _step(self, lane: Lane) -> None:
        replica, batch = self.replica, lane.next_batch()
        w = replica.w if batch.index is None else replica.w[batch.index]
        replica.apply(lane.new_gradient(w, batch), batch.n_rows, batch.index)
        self._rows += batch.n_rows
        self._steps += 1
        if self._steps % _MEET_EVERY == 0 and self._meeting.acquire(blocking=False):
            try:
                self._meet()
            finally:
                self._meeting.release()

    def _meet(self) -> Any:
        """Exchange changes with the other trainers; the lock is held."""
        # Rows are counted for averaging only; a race may miscount a few.
        rows, self._rows = self._rows, 0.0
        delta = self.replica.w - self._base
        self._clock += 1
        self._connection.send((self._name,), self._clock, rows, delta)
        pulled = self._connection.receive(self._name)
        # Threads went on meanwhile: add what others changed rather than overwrite.
        self.replica.w += pulled.w - (self._base + delta)
        self._base = pulled.w
        self._stopped = self._stopped or pulled.stop
        return pulled.w

    def _end_pass(self, number: int, lanes: list[Lane]) -> bool:
        with self._meeting:
            w = self._meet()
            stop = self._context.report(self._connection, number, lanes, [w] * len(lanes))
            self._stopped = self._stopped or stop
        return self._stopped

    def leave(self) -> None:
        """Send the last changes and leave."""
        with self._meeting:
            self.replica.settle()
            self._meet()
            rows = sum(lane.unreported_rows for lane in self._context.lanes)
            self._connection.call_all(
                "leave", lanes=[lane.number for lane in self._context.lanes], rows=rows
            )
