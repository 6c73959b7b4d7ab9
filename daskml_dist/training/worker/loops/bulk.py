"""Loop *bulk*: all lanes of all trainers step together through the servers (policy ``"sync"``)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.server_connections import PulledParameters, ShardedConnection
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.reader import LaneBatch


def run_bulk_loop(context: Context) -> None:
    """Run all passes of the trainer's lanes in lock-step with all others."""
    # One connection per trainer, shared by all its lanes.
    connection = context.connect()
    try:
        steps = BulkSteps(context, connection)
        steps.pull_first_parameters()
        for number in context.fit.work.passes(context.clock):
            steps.run_steps_of_pass(number)
            weights = steps.validation_weights()
            if context.report(connection, number, context.lanes, weights):
                break
    finally:
        connection.close()


class BulkSteps:
    """Steps of a trainer's lanes through the servers.

    Lanes share one summed push per trainer, unless the server must get each lane's gradient
    separately: to add gradients in lane order, or because each lane touches different rows.
    """

    def __init__(self, context: Context, connection: ShardedConnection) -> None:
        self._fit = context.fit
        self._context = context
        self._lanes = context.lanes
        self._connection = connection
        self._apart = self._fit.run.deterministic or self._fit.work.coordinates
        self._clock = context.clock
        self._batches: list[LaneBatch] = []
        self._pulled: list[PulledParameters] = []

    def pull_first_parameters(self) -> None:
        """Draw the first batches and pull the parameters for them."""
        self.draw_first_batches()
        # All requests are sent before any answer is awaited.
        for lanes, pull_index in self._list_messages():
            self._connection.send(lanes, self._clock, pull_index=pull_index)
        self._receive_parameters()

    def draw_first_batches(self) -> None:
        """Draw the batches of the next step, which starts from the parameters pulled last."""
        for lane in self._lanes:
            lane.seek(self._clock)
        self._batches = [lane.draw_next_batch() for lane in self._lanes]

    def _list_messages(self) -> list[tuple[tuple[int, ...], NDArray[np.int64] | None]]:
        """Return the lanes of each message, and the parameter rows that it requests next."""
        if not self._apart:
            return [(tuple(lane.number for lane in self._lanes), None)]
        return [
            ((lane.number,), self._rows_of_servers(batch.index))
            for lane, batch in zip(self._lanes, self._batches, strict=True)
        ]

    def _rows_of_servers(self, rows: Any) -> Any:
        """Return the part of a batch's touched rows, or of their values, that servers hold."""
        return rows

    def _receive_parameters(self) -> None:
        """Receive the parameters for the next step."""
        first = self._lanes[:1] if not self._apart else self._lanes
        self._pulled = [self._connection.receive(lane.number) for lane in first]

    def run_steps_of_pass(self, pass_number: int) -> None:
        """Make the steps of a pass."""
        end = pass_number * self._fit.work.n_steps
        while self._clock < end:
            self._context.raise_if_stopped()
            self.step()
            # The server's clock is ahead: it has continued without these lanes.
            if self._pulled[0].clock > self._clock:
                self._clock = min(self._pulled[0].clock, end)
                self.draw_first_batches()

    def step(self) -> None:
        """Make one step, then draw the batches and receive the parameters of the next one."""
        if self._apart:
            self._push_each_lane(self._batches)
        else:
            total = self._sum_gradients(self._pulled[0].w, self._batches)
            rows = sum(batch.n_rows for batch in self._batches)
            ((lanes, _),) = self._list_messages()
            loss = sum(lane.last_batch_loss for lane in self._lanes)
            uncompressed = self._fit.steps.pushes_uncompressed(self._clock + 1)
            self._connection.send(
                lanes, self._clock + 1, rows, total, loss=loss, uncompressed=uncompressed
            )
            # The next batches are gathered while the push is in transit.
            self._batches = [lane.draw_next_batch() for lane in self._lanes]
        self._receive_parameters()
        self._clock += 1

    def _sum_gradients(self, w: Any, batches: list[LaneBatch]) -> NDArray[Any]:
        """Return the sum of the gradients of all lanes."""
        # One thread: add each lane's gradient into one array.
        if self._context.pool is None:
            total = np.zeros(w.shape, dtype=w.dtype)
            for lane, batch in zip(self._lanes, batches, strict=True):
                lane.add_gradient(w, batch, total)
            return total
        # Several threads: one array per lane, summed afterwards.
        parts = self._compute_gradients(batches, [w] * len(batches))
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total

    def _compute_gradients(
        self, batches: list[LaneBatch], weights: list[Any]
    ) -> list[NDArray[Any]]:
        """Return each lane's gradient, computed in the compute threads."""

        def one(work: tuple[Lane, LaneBatch, Any]) -> Any:
            lane, batch, w = work
            return lane.compute_gradient(w, batch)

        return self._context.map(one, zip(self._lanes, batches, weights, strict=True))

    def _push_each_lane(self, batches: list[LaneBatch]) -> list[NDArray[Any]]:
        """Push each lane's gradient in its own message; return all gradients."""
        gradients = self._compute_gradients(batches, [pulled.w for pulled in self._pulled])
        losses = [lane.last_batch_loss for lane in self._lanes]
        # The next rows are drawn and copied while the server works.
        self._batches = [lane.draw_next_batch() for lane in self._lanes]
        for (lanes, pull_index), batch, gradient, loss in zip(
            self._list_messages(), batches, gradients, losses, strict=True
        ):
            self._connection.send(
                lanes,
                self._clock + 1,
                batch.n_rows,
                self._rows_of_servers(gradient),
                self._rows_of_servers(batch.index),
                loss=loss,
                pull_index=pull_index,
                uncompressed=self._fit.steps.pushes_uncompressed(self._clock + 1),
            )
        return gradients

    def validation_weights(self) -> list[Any | None]:
        """Return the parameters to validate each lane with: all rows, the same for each lane."""
        if not self._fit.rows.validation_fraction:
            return [None] * len(self._lanes)
        # Dense pulls contain all parameters already.
        w = self._pulled[0].w
        if self._fit.work.coordinates:
            first = self._lanes[0].number
            # Pulls by index contained only some rows; validation needs all.
            self._connection.send((first,), self._clock)
            w = self._connection.receive(first).w
        return [w] * len(self._lanes)
