"""Shared memory without locks (``"hogwild"``): threads race, processes meet at the server.

The threads of a trainer update one replica. Every few steps one of them sends the server what
the trainer has changed since the last meeting and adds what the others changed meanwhile.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.ps.shard import Shard, ShardState, UpdateRule
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
        if context.generation:
            shared.pull_first()
        context.run_threads(shared.run)
        shared.leave()
    finally:
        connection.close()
    return shared.replica.state() if context.rank == 0 else None


def _replica(context: Context, rule: UpdateRule, steps: int) -> Shard:
    """The trainer's replica of an earlier generation, or a new one that has made so many steps."""
    replica: Shard | None = context.memory.get("replica")
    if replica is None or steps == 0:
        replica = Shard(rule, context.fit.start_state())
    # The lanes may have gone back, or be others than before.
    replica.version, replica.rule = steps, rule
    context.memory["replica"] = replica
    return replica


class _Shared:
    """The replica of a trainer and its meetings."""

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        fit = context.fit
        share = len(context.lanes) / max(len(fit.lane_rows), 1)
        rule = dataclasses.replace(fit.rule, share=share)
        steps = sum(clock - fit.first_clock for clock in context.clocks.values())
        self.replica = _replica(context, rule, steps)
        self._context = context
        self._fit = fit
        self._connection = connection
        self._meeting = threading.Lock()
        self._name = min(lane.number for lane in context.lanes)
        self._lanes = [lane.number for lane in context.lanes]
        #: Clock, rows and loss of each lane; its thread puts a new entry for each step.
        self._done = {n: (context.clocks[n], 0.0, 0.0) for n in self._lanes}
        self._told = dict(self._done)
        self._base = self.replica.w.copy()
        self._clock = 0
        self._steps = 0
        self._stopped = False

    def run(self, lanes: list[Lane]) -> None:
        """The work of one thread."""
        with np.errstate(over="ignore", invalid="ignore"):
            for lane in lanes:
                lane.seek(self._context.clocks[lane.number])
            # Lanes that go on after a loss need not be at the same clock.
            for number in self._fit.passes(min(lane.clock for lane in lanes)):
                while behind := [lane for lane in lanes if self._has_steps(lane, number)]:
                    for lane in behind:
                        if self._stopped or self._context.failed:
                            return
                        self._step(lane)
                if self._end_pass(number, lanes):
                    return

    def _has_steps(self, lane: Lane, number: int) -> bool:
        return lane.clock < number * self._fit.n_steps

    def _step(self, lane: Lane) -> None:
        replica, batch = self.replica, lane.next_batch()
        w = replica.w if batch.index is None else replica.w[batch.index]
        replica.apply(lane.new_gradient(w, batch), batch.n_rows, batch.index)
        lane.clock += 1
        _, rows, loss = self._done[lane.number]
        self._done[lane.number] = lane.clock, rows + batch.n_rows, loss + lane.last_loss
        self._steps += 1
        if self._steps % _MEET_EVERY == 0 and self._meeting.acquire(blocking=False):
            try:
                self._meet()
            finally:
                self._meeting.release()

    def _meet(self) -> Any:
        """Exchange changes with the other trainers; the lock is held."""
        progress = self._progress()
        delta = self.replica.w - self._base
        self._clock += 1
        self._connection.send(
            tuple(self._lanes), self._clock, progress[:, 1].sum(), delta, progress=progress
        )
        pulled = self._connection.receive(self._name)
        # Threads went on meanwhile: add what others changed rather than overwrite.
        self.replica.w += pulled.w - (self._base + delta)
        self._base = pulled.w
        self._stopped = self._stopped or pulled.stop
        return pulled.w

    def _progress(self) -> NDArray[np.float64]:
        """Clock, and rows and loss since the last meeting, of each lane."""
        told, self._told = self._told, dict(self._done)
        return np.array(
            [
                (self._told[n][0], self._told[n][1] - told[n][1], self._told[n][2] - told[n][2])
                for n in self._lanes
            ]
        )

    def pull_first(self) -> None:
        """Take the parameters that the servers have after a loss."""
        self._connection.send((self._name,), 0)
        pulled = self._connection.receive(self._name)
        self.replica.replace(pulled.w)
        self._base, self._stopped = pulled.w, pulled.stop

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
            self._connection.call_all("leave", lanes=self._lanes)
