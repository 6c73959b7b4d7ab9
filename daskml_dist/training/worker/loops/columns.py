"""Steps of lanes that each hold some columns of all rows, with the columns' parameters.

Each lane computes its columns' share of the model's first products (margins of a linear model, the
first layer of a network); the shares are summed over the trainers. From the sum each trainer
computes the loss and its gradient by the products (the slope). If that needs parameters, only the
trainer of the last lane computes them, and broadcasts the slope. Each lane then steps its own
parameters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import cast, is_host, namespace, zeros
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.messages import sum_in_lane_order
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import StateParts
from daskml_dist.ps.snapshots import LaneSnapshot
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context, DevicePlacement, gather_lane_parts
from daskml_dist.training.worker.reader import join_batch_targets


@dataclass
class _LaneColumns:
    """Columns of one lane: their model and parameters, and the intermediate results of a step.

    Parameters
    ----------
    lane : Lane
    model : ColumnPart
        Part of the fit's model that belongs to these columns.
    start : int
        First row of the lane's parameters in the whole matrix.
    shard : Shard
        The lane's parameters.
    """

    lane: Lane
    model: Any
    start: int
    shard: Shard
    pieces: tuple[BatchRows, ...] = ()
    index: Any = None
    w: Any = None
    out: Any = None
    busy: float = 0.0


class ColumnSteps:
    """Steps of all lanes over the columns that the trainers hold.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        work = context.fit.steps
        assert work.columns is not None
        self._context = context
        self._placement = DevicePlacement(context, alone=False)
        self._backend = context.lanes[0].backend
        self._clip = work.rule.clip
        self._last = len(work.columns) - 2
        # Clipping needs the norm over all lanes' gradients; see `_clip_gradients`.
        rule = replace(work.rule, clip=None)
        self._ranges: list[_LaneColumns] = []
        for lane in context.lanes:
            lane_fit, start = context.fit.of_lane(lane.number), work.rows_of(lane.number).start
            shard = self._placement.make_replica(lane_fit.make_start_state(), start, rule)
            self._ranges.append(_LaneColumns(lane, lane_fit.steps.model, start, shard))

    @property
    def _head_lane(self) -> _LaneColumns | None:
        """Return the last lane, which also has parameters of no column; None if it is elsewhere."""
        last = self._ranges[-1]
        return last if last.lane.number == self._last else None

    def steps(self, clock: int, max_steps: int) -> int:
        """Take the next step; return 1, the number of steps taken."""
        ranges = self._ranges
        # Forward: the products of all lanes' columns, summed. Backward: the gradient of the loss by
        # the products, then by each lane's own parameters.
        total = self._sum_products(self._context.map(self._compute_products, ranges))
        n_rows = 0 if total is None else total.shape[0]
        loss = 0.0
        if total is not None:
            pieces = ranges[0].pieces
            rows = join_batch_targets(pieces) if len(pieces) > 1 else pieces[0]
            loss, slope = self._loss_and_slope(total, rows)
            self._context.map(lambda columns: self._add_parameter_gradient(columns, slope), ranges)
            self._clip_gradients(n_rows)
        self._context.map(lambda columns: self._apply_step(columns, n_rows), ranges)
        for columns in ranges:
            counts = columns is self._head_lane
            columns.lane.count_made_steps(
                [n_rows if counts else 0], np.array([float(loss) if counts else 0.0]), columns.busy
            )
        return 1

    def _compute_products(self, lane_columns: _LaneColumns) -> Any:
        """Draw a lane's next batch; return its columns' products, None without rows."""
        batch, shard = lane_columns.lane.draw_next_batch(), lane_columns.shard
        since = time.perf_counter()
        lane_columns.pieces, lane_columns.index = tuple(batch.pieces), batch.index
        # The arrays of the last step are dropped before new ones are made.
        lane_columns.w = lane_columns.out = None
        if not lane_columns.pieces:
            return None
        lane_columns.w = self._to_compute_device(
            shard.w if lane_columns.index is None else shard.w[lane_columns.index]
        )
        products = [
            lane_columns.model.products(lane_columns.w, piece.X, lane_columns.lane.backend)
            for piece in lane_columns.pieces
        ]
        lane_columns.busy = time.perf_counter() - since
        return products[0] if len(products) == 1 else namespace(products[0]).concat(products)

    def _sum_products(self, products: list[Any]) -> Any:
        """Sum the products of all lanes; return None if the batch has no rows, as in all lanes."""
        if products[0] is None:
            return None
        # Deterministic: the same bits for any number of workers, by summing in lane order.
        if self._context.fit.run.deterministic:
            return self._to_compute_device(
                self._sum_in_lane_order([self._placement.to_host(part) for part in products])
            )
        # This trainer's lanes first, then one all-reduce over the trainers.
        total = products[0]
        for part in products[1:]:
            total += part
        return self._context.communicator.allreduce(total)

    def _sum_in_lane_order(self, arrays: list[NDArray[Any]]) -> Any:
        """Sum the arrays of all lanes of all trainers in lane order."""
        own_parts = [
            (columns.lane.number, array)
            for columns, array in zip(self._ranges, arrays, strict=True)
        ]
        return sum_in_lane_order(gather_lane_parts(self._context.communicator, own_parts))[1]

    def _loss_and_slope(self, total: Any, rows: BatchRows) -> tuple[float, Any]:
        """Return the loss of the batch, and its gradient by the products."""
        model, head_lane = self._ranges[-1].model, self._head_lane
        # Linear models: every rank computes the loss from the margins.
        if not model.has_head:
            loss, slope = model.head(None, total, rows, None, self._backend)
            return float(loss), slope
        sent: list[Any] = []
        if head_lane is not None:
            since = time.perf_counter()
            self._allocate_gradient(head_lane)
            loss, slope = model.head(head_lane.w, total, rows, head_lane.out, self._backend)
            sent = [np.array(float(loss)), self._placement.to_host(slope)]
            head_lane.busy += time.perf_counter() - since
        # Only the rank of the last lane has sent arrays.
        (received,) = (arrays for arrays in self._context.communicator.allgather(sent) if arrays)
        return float(received[0]), self._to_compute_device(received[1])

    def _to_compute_device(self, array: Any) -> Any:
        """Return an array on the device where the lanes compute."""
        return array if self._backend.device == "cpu" else self._backend.to_device(array)

    def _allocate_gradient(self, lane_columns: _LaneColumns) -> None:
        """Allocate a lane's gradient, once per step."""
        if lane_columns.out is None:
            lane_columns.out = zeros(lane_columns.w.shape, lane_columns.w.dtype, lane_columns.w)

    def _add_parameter_gradient(self, lane_columns: _LaneColumns, slope: Any) -> None:
        """Compute the gradient of a lane's own parameters from the slope."""
        since, first = time.perf_counter(), 0
        self._allocate_gradient(lane_columns)
        for piece in lane_columns.pieces:
            stop = first + piece.X.shape[0]
            lane_columns.model.add_products(
                piece.X, slope[first:stop, ...], lane_columns.out, lane_columns.lane.backend
            )
            first = stop
        lane_columns.busy += time.perf_counter() - since

    def _clip_gradients(self, n_rows: int) -> None:
        """Scale the mean gradient of all lanes down to the largest norm."""
        if self._clip is None:
            return
        squares = [np.array([_squared_mean_norm(columns.out, n_rows)]) for columns in self._ranges]
        # The norm of the whole gradient is the root of the sum of all lanes' squares, in lane order
        # on every rank.
        norm = float(self._sum_in_lane_order(squares)[0]) ** 0.5
        if norm > self._clip:
            for columns in self._ranges:
                columns.out *= self._clip / norm

    def _apply_step(self, lane_columns: _LaneColumns, n_rows: int) -> None:
        """Update a lane's parameters."""
        since = time.perf_counter()
        # Parameters of which few are touched may be on the host.
        gradient = (
            self._placement.to_host(lane_columns.out)
            if is_host(lane_columns.shard.w)
            else lane_columns.out
        )
        lane_columns.shard.apply(gradient, n_rows, lane_columns.index if n_rows else None)
        lane_columns.busy += time.perf_counter() - since

    def draw_rows_ahead(self, clock: int, max_steps: int) -> None:
        """Do nothing: rows are drawn with each step."""

    # -- state ---------------------------------------------------------------------------------

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Return every lane's sums and parameters."""
        return {
            columns.lane.number: LaneSnapshot(
                *columns.lane.sums, self._placement.leave(columns.shard.snapshot()), columns.start
            )
            for columns in self._ranges
        }

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Continue from each lane's own snapshot."""
        for columns in self._ranges:
            columns.shard.restore(self._placement.enter(lanes[columns.lane.number].own_shard))

    def get_interrupted_state(self) -> InterruptedState | None:
        """Return the parameters at an interruption, if one trainer holds all of them."""
        if len(self._ranges) <= self._last:
            return None
        state = StateParts.join([self.state()])
        return InterruptedState(state, rows=sum(columns.lane.sums[1] for columns in self._ranges))

    def validation_weights(self) -> list[Any | None]:
        """Score the held-out rows here, since a single lane cannot; return None for each lane."""
        if self._context.fit.rows.validation_fraction:
            for pieces in zip(*(columns.lane.held_out() for columns in self._ranges), strict=True):
                self._score_held_out(pieces)
        return [None] * len(self._ranges)

    def _score_held_out(self, rows: tuple[BatchRows, ...]) -> None:
        """Score some held-out rows, of which each lane has its columns."""
        columns_and_rows = zip(self._ranges, rows, strict=True)
        total = self._sum_products(
            [
                o.model.products(self._to_compute_device(o.shard.w), r.X, o.lane.backend)
                for o, r in columns_and_rows
            ]
        )
        if (head_lane := self._head_lane) is not None:
            # The score is counted once, in the last lane's report.
            head_lane.lane.add_validation(
                head_lane.model.head_sums(
                    self._to_compute_device(head_lane.shard.w), total, rows[-1], self._backend
                )
            )

    def state(self) -> StateParts:
        """Return each lane's final parameters, without a copy since they may be large."""
        return StateParts(
            {
                columns.start: self._placement.leave(columns.shard.state(copy=False))
                for columns in self._ranges
            }
        )


def _squared_mean_norm(gradient: Any, n_rows: int) -> float:
    """Return the squared norm of a mean gradient."""
    xp = namespace(gradient)
    return float(xp.sum((cast(gradient, xp.float64) / n_rows) ** 2))
