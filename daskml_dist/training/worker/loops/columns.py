"""Steps of lanes that hold some columns of all rows each, with the parameters of these.

Each lane makes its columns' share of the products that the model begins with (margins of a linear
model, the first layer of a network), which are added up; from the sum every trainer makes the
loss and its slope, or where parameters are needed for that, the trainer of the last lane does, and
shares the slope. Each lane then steps its own parameters, which no other has.
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
from daskml_dist.training.spec import Left
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.device_placement import DevicePlacement
from daskml_dist.training.worker.reader import joined_targets

__all__ = ["Columns"]


@dataclass
class _Range:
    """A lane's columns: their model and parameters, and what a step makes of them.

    Parameters
    ----------
    lane : Lane
    model : ColumnModel
    start : int
        First of its rows of the parameters.
    shard : Shard
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


class Columns:
    """Steps of all lanes, over the columns that the trainers hold.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        work = context.fit.steps
        assert work.columns is not None
        self._context = context
        self._home = DevicePlacement(context, alone=False)
        self._backend = context.lanes[0].backend
        self._clip = work.rule.clip
        self._last = len(work.columns) - 2
        rule = replace(work.rule, clip=None)  # of all lanes' gradients together
        self._ranges: list[_Range] = []
        for lane in context.lanes:
            own, start = context.fit.of_lane(lane.number), work.rows_of(lane.number).start
            shard = self._home.shard(own.start_state(), start, rule)
            self._ranges.append(_Range(lane, own.steps.model, start, shard))

    @property
    def _head(self) -> _Range | None:
        """The last lane's, which has what belongs to no column; None: it is another trainer's."""
        last = self._ranges[-1]
        return last if last.lane.number == self._last else None

    def steps(self, clock: int, most: int) -> int:
        """Take the next step; 1, as many as are taken."""
        ranges = self._ranges
        total = self._sum(self._context.map(self._begin, ranges))
        n_rows = 0 if total is None else total.shape[0]
        loss = 0.0
        if total is not None:
            pieces = ranges[0].pieces
            rows = joined_targets(pieces) if len(pieces) > 1 else pieces[0]
            loss, slope = self._slope(total, rows)
            self._context.map(lambda own: self._finish(own, slope), ranges)
            self._clip_together(n_rows)
        self._context.map(lambda own: self._step(own, n_rows), ranges)
        for own in ranges:
            counts = own is self._head
            own.lane.count_steps(
                [n_rows if counts else 0], np.array([float(loss) if counts else 0.0]), own.busy
            )
        return 1

    def _begin(self, own: _Range) -> Any:
        """The next batch of a lane; its columns' products, None where the batch has no rows."""
        batch, shard = own.lane.next_batch(), own.shard
        since = time.perf_counter()
        own.pieces, own.index = tuple(batch.pieces), batch.index
        own.w = own.out = None
        if not own.pieces:
            return None
        own.w = self._computed(shard.w if own.index is None else shard.w[own.index])
        found = [own.model.products(own.w, piece.X, own.lane.backend) for piece in own.pieces]
        own.busy = time.perf_counter() - since
        return found[0] if len(found) == 1 else namespace(found[0]).concat(found)

    def _sum(self, parts: list[Any]) -> Any:
        """Sum of all lanes' products; None where the batch has no rows, as all see alike."""
        if parts[0] is None:
            return None
        if self._context.fit.run.deterministic:
            own = [np.array([each.lane.number for each in self._ranges])]
            own += [self._home.to_host(part) for part in parts]
            return self._computed(self._in_lane_order(own))
        total = parts[0]
        for part in parts[1:]:
            total += part
        return self._context.communicator.allreduce(total)

    def _in_lane_order(self, own: list[Any]) -> Any:
        everyone: list[tuple[int, NDArray[np.int64] | None, NDArray[Any]]] = [
            (lane, None, part)
            for lanes, *theirs in self._context.communicator.allgather(own)
            for lane, part in zip(lanes.tolist(), theirs, strict=True)
        ]
        return sum_in_lane_order(everyone)[1]

    def _slope(self, total: Any, rows: BatchRows) -> tuple[float, Any]:
        """Loss of the batch, and its gradient by the products."""
        model, head = self._ranges[-1].model, self._head
        if not model.has_head:
            loss, slope = model.head(None, total, rows, None, self._backend)
            return float(loss), slope
        given: list[Any] = []
        if head is not None:
            since = time.perf_counter()
            self._make_room(head)
            loss, slope = model.head(head.w, total, rows, head.out, self._backend)
            given = [np.array(float(loss)), self._home.to_host(slope)]
            head.busy += time.perf_counter() - since
        (found,) = (theirs for theirs in self._context.communicator.allgather(given) if theirs)
        return float(found[0]), self._computed(found[1])

    def _computed(self, array: Any) -> Any:
        """An array where the lanes compute."""
        return array if self._backend.device == "cpu" else self._backend.to_device(array)

    def _make_room(self, own: _Range) -> None:
        if own.out is None:
            own.out = zeros(own.w.shape, own.w.dtype, own.w)

    def _finish(self, own: _Range, slope: Any) -> None:
        """The gradient of a lane's own parameters."""
        since, first = time.perf_counter(), 0
        self._make_room(own)
        for piece in own.pieces:
            stop = first + piece.X.shape[0]
            own.model.add_products(piece.X, slope[first:stop, ...], own.out, own.lane.backend)
            first = stop
        own.busy += time.perf_counter() - since

    def _clip_together(self, n_rows: int) -> None:
        """Scale the mean gradient of all lanes down to the largest norm."""
        if self._clip is None:
            return
        own = [np.array([each.lane.number for each in self._ranges])]
        own += [np.array([_square(each.out, n_rows)]) for each in self._ranges]
        norm = float(self._in_lane_order(own)[0]) ** 0.5
        if norm > self._clip:
            for each in self._ranges:
                each.out *= self._clip / norm

    def _step(self, own: _Range, n_rows: int) -> None:
        since = time.perf_counter()
        # Parameters of which few are touched may lie on the host.
        gradient = self._home.to_host(own.out) if is_host(own.shard.w) else own.out
        own.shard.apply(gradient, n_rows, own.index if n_rows else None)
        own.busy += time.perf_counter() - since

    def draw_ahead(self, clock: int, most: int) -> None:
        """Nothing is drawn ahead."""

    # -- what a fit keeps ----------------------------------------------------------------------

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Every lane's sums and parameters."""
        return {
            own.lane.number: LaneSnapshot(
                *own.lane.sums, self._home.leave(own.shard.snapshot()), own.start
            )
            for own in self._ranges
        }

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Go on from each lane's own parameters."""
        for own in self._ranges:
            own.shard.restore(self._home.enter(lanes[own.lane.number].held))

    def left(self) -> Left | None:
        """The parameters as far as they came, where one trainer holds all."""
        if len(self._ranges) <= self._last:
            return None
        state = StateParts.join([self.state()])
        return Left(state, rows=sum(own.lane.sums[1] for own in self._ranges))

    def validation_weights(self) -> list[Any | None]:
        """None: held-out rows are scored here, since no lane can do so by itself."""
        if self._context.fit.rows.validation_fraction:
            for each in zip(*(own.lane.held_out() for own in self._ranges), strict=True):
                self._score(each)
        return [None] * len(self._ranges)

    def _score(self, rows: tuple[BatchRows, ...]) -> None:
        """Score some held-out rows, which each lane has its columns of."""
        pairs = zip(self._ranges, rows, strict=True)
        total = self._sum(
            [o.model.products(self._computed(o.shard.w), r.X, o.lane.backend) for o, r in pairs]
        )
        if (head := self._head) is not None:
            head.lane.add_validation(
                head.model.head_sums(self._computed(head.shard.w), total, rows[-1], self._backend)
            )

    def state(self) -> StateParts:
        """State of each lane's parameters, at the end: its own arrays, since they may be large."""
        return StateParts(
            {own.start: self._home.leave(own.shard.state(copy=False)) for own in self._ranges}
        )


def _square(gradient: Any, n_rows: int) -> float:
    """Squared norm of a mean gradient."""
    xp = namespace(gradient)
    return float(xp.sum((cast(gradient, xp.float64) / n_rows) ** 2))
