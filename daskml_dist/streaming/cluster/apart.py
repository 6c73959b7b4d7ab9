"""Lanes that take the steps of a stream in turn, each at its own pace."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.base import BatchRows
from daskml_dist.ps.messages import LaneGradient, sum_in_lane_order
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.cluster.calls import Step
from daskml_dist.streaming.cluster.together import Learner, Losses

__all__ = ["Free", "Shared"]


class Free(Learner):
    """Each lane pulls, and pushes its gradient (``"async"``, ``"ssp"``).

    Steps come to lanes in turn, so those that a lane waits for under a bound on its lead were dealt
    before its own: nobody waits for a step that is not under way.
    """

    def load(self, states: dict[int, ShardState]) -> None:
        self._clocks = dict.fromkeys(self._lanes, 0)
        self._w: dict[int, Any] = {}
        self._open: dict[int, list[tuple[LaneGradient, int, float]]] = {n: [] for n in self._lanes}

    def _take(self, step: Step) -> Losses:
        number, _, shares = step
        losses = []
        for share in shares:
            lane, policy = share[0], self._fit.steps.policy
            rows = self._gradients.rows(number, share)
            index, clock = self._gradients.touched(rows), self._clocks[lane]
            if index is not None or lane not in self._w or clock % policy.pull_every == 0:
                self._connection.send((lane,), clock, pull_index=index)
                self._w[lane] = self._connection.receive(lane).w
            gradient, loss = self._gradients.of(self._w[lane], rows)
            open_ = self._open[lane]
            open_.append(((len(open_), index, gradient), rows.X.shape[0], loss))
            self._clocks[lane] = clock + 1
            if self._clocks[lane] % policy.push_every == 0:
                self._push(lane)
            losses.append((number, lane, loss))
        return losses

    def _push(self, lane: int) -> None:
        parts = self._open[lane]
        index, total = sum_in_lane_order([part for part, _, _ in parts])
        rows, loss = sum(n for _, n, _ in parts), sum(loss for _, _, loss in parts)
        self._connection.send(
            (lane,), self._clocks[lane], rows, total, index, loss=loss, pull=False
        )
        parts.clear()

    def flush(self) -> None:
        for lane, parts in self._open.items():
            if parts:
                self._push(lane)
        # Servers take messages in their order, so they have taken all pushes once they answer.
        self._connection.call_all("restore", lanes=[])


class Shared(Learner):
    """A replica a worker, whose changes go to the servers after each call (``"hogwild"``).

    Lanes of a worker take their steps one after the other; workers do not wait for each other.
    Where steps touch few of the parameters, the replica knows the others as they were when it
    touched them last.
    """

    def load(self, states: dict[int, ShardState]) -> None:
        self._replica = Shard(self._fit.steps.rule, states[0])
        self._clocks = dict.fromkeys(self._lanes, 0)
        self._meetings = 0
        #: Rows of the steps of a call, and the parameters that each touches.
        self._read: dict[int, tuple[BatchRows, NDArray[np.int64] | None]] = {}

    def take(self, steps: list[Step]) -> Losses:
        if not steps:
            return []
        read = [(n, self._gradients.rows(n, share)) for n, _, (share,) in steps]
        self._read = {n: (rows, self._gradients.touched(rows)) for n, rows in read}
        few = [index for _, index in self._read.values() if index is not None]
        index = np.unique(np.concatenate(few)) if few else None
        base = self._pull(index)
        losses = super().take(steps)
        self._push(base, index, losses, sum(rows for _, rows, _ in steps))
        return losses

    def _take(self, step: Step) -> Losses:
        number, _, ((lane, *_),) = step
        (rows, index), replica = self._read.pop(number), self._replica
        w = replica.w if index is None else replica.w[index]
        gradient, loss = self._gradients.of(w, rows)
        # Rates follow from the steps of all workers.
        replica.version = number - self._first
        replica.apply(gradient, rows.X.shape[0], index)
        self._clocks[lane] += 1
        return [(number, lane, loss)]

    def _pull(self, index: NDArray[np.int64] | None) -> Any:
        """Go on from the servers' parameters, or some of them, which hold all own changes."""
        self._connection.send((self._lanes[0],), self._meetings, pull_index=index)
        base = self._connection.receive(self._lanes[0]).w
        self._replica.replace(base, index)
        return base

    def _push(
        self, base: Any, index: NDArray[np.int64] | None, losses: Losses, rows: float
    ) -> None:
        """Send what was changed, and where each lane is."""
        self._meetings += 1
        loss = dict.fromkeys(self._lanes, 0.0)
        for _, lane, one in losses:
            loss[lane] += one
        share = rows / len(self._lanes)
        progress = [(self._clocks[lane], share, loss[lane]) for lane in self._lanes]
        w = self._replica.w if index is None else self._replica.w[index]
        self._connection.send(
            tuple(self._lanes), self._meetings, rows, w - base, index,
            progress=np.array(progress), pull=False,
        )  # fmt: skip

    def flush(self) -> None:
        if self._fit.steps.rule.penalty_is_lazy:
            base = self._pull(None)
            self._replica.apply_pending_penalty()
            self._push(base, None, [], 0.0)
        self._connection.call_all("restore", lanes=[])

    def states(self) -> dict[int, ShardState]:
        return {} if self._context.rank else {0: self._replica.state()}

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        self._replica.rescale(largest, norm)
