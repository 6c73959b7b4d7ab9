"""Lanes that share each step of a stream: through servers, or on replicas of the parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.ps.messages import LaneGradient, sum_in_lane_order
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.cluster.calls import Step
from daskml_dist.streaming.cluster.gradients import Gradients
from daskml_dist.training.worker.loops.context import Context

__all__ = ["Averaged", "Bulk", "Learner", "Losses", "Summed", "mean_state"]

#: Number of a step, lane, and the sum of the losses of its share.
Losses = list[tuple[int, int, float]]


class Learner(ABC):
    """Lanes of one worker, which learn the calls of a stream, from :meth:`load` on.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection
    lanes : list of int
    first : int
        Number of the step that comes first.
    """

    def __init__(
        self,
        context: Context,
        connection: ShardedConnection,
        lanes: list[int],
        first: int,
    ) -> None:
        self._fit = context.fit
        self._context = context
        self._connection = connection
        self._lanes = lanes
        self._first = first
        self._gradients = Gradients(context.fit)

    def take(self, steps: list[Step]) -> Losses:
        """Take the steps of a call."""
        losses = [loss for step in steps for loss in self._take(step)]
        if self._fit.steps.rule.penalty_is_lazy:
            self._apply_pending_penalty()  # as at the end of a pass
        return losses

    @abstractmethod
    def _take(self, step: Step) -> Losses: ...

    def _apply_pending_penalty(self) -> None:  # noqa: B027 (at the pace of others there is no such moment)
        """Apply the penalty that is pending for untouched parameters."""

    def flush(self) -> None:  # noqa: B027 (most push what they have at once)
        """Push what has not been, and see that the servers have it."""

    def load(self, states: dict[int, ShardState]) -> None:  # noqa: B027 (servers have it)
        """Begin with parameters, or go on from others."""

    def states(self) -> dict[int, ShardState]:
        """States that lanes here hold, of those whose others have the same only the first."""
        return {}

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:  # noqa: B027
        """Go on with rows of larger values."""


class Bulk(Learner):
    """All lanes step together through the servers (``"sync"``)."""

    _clock = 0
    _w: Any = None

    def _take(self, step: Step) -> Losses:
        number, _, shares = step
        rows = [self._gradients.rows(number, share) for share in shares]
        index = [self._gradients.touched(one) for one in rows]
        lanes = [share[0] for share in shares]
        if self._fit.work.coordinates:
            weights = self._pull(lanes, index)
        else:
            if self._w is None:
                (self._w,) = self._pull(lanes[:1], [None])
            weights = [self._w] * len(lanes)
        made = [self._gradients.of(w, one) for w, one in zip(weights, rows, strict=True)]
        self._clock += 1
        self._w = self._round(lanes, [one.X.shape[0] for one in rows], index, made)
        return [(number, lane, loss) for lane, (_, loss) in zip(lanes, made, strict=True)]

    def _round(
        self, lanes: list[int], counts: list[int], index: list[Any],
        made: list[tuple[NDArray[Any], float]],
    ) -> Any:  # fmt: skip
        """Push gradients; parameters after the step, which come once the round has closed."""
        if self._fit.work.coordinates or self._fit.run.deterministic:
            for lane, n, at, (gradient, loss) in zip(lanes, counts, index, made, strict=True):
                nothing = None if at is None else at[:0]
                self._connection.send(
                    (lane,), self._clock, n, gradient, at, loss=loss, pull_index=nothing
                )
            pulled = [self._connection.receive(lane).w for lane in lanes]
            return pulled[0]
        total = made[0][0]
        for gradient, _ in made[1:]:
            total += gradient
        self._connection.send(tuple(lanes), self._clock, sum(counts), total)
        return self._connection.receive(lanes[0]).w

    def _pull(self, lanes: list[int], index: list[Any]) -> list[Any]:
        for lane, at in zip(lanes, index, strict=True):
            self._connection.send((lane,), self._clock, pull_index=at)
        return [self._connection.receive(lane).w for lane in lanes]

    def _apply_pending_penalty(self) -> None:
        # Nobody begins the next call before the first worker has answered.
        if self._context.rank == 0:
            self._connection.call_all("apply_pending_penalty")

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        self._w = None


class Summed(Learner):
    """One replica a worker; the gradients of all lanes are summed (``"allreduce"``)."""

    def load(self, states: dict[int, ShardState]) -> None:
        self._replica = Shard(self._fit.steps.rule, states[0])

    def _take(self, step: Step) -> Losses:
        number, n_rows, shares = step
        losses, parts = [], []
        for share in shares:
            rows = self._gradients.rows(number, share)
            index = self._gradients.touched(rows)
            w = self._replica.w if index is None else self._replica.w[index]
            gradient, loss = self._gradients.of(w, rows)
            parts.append((share[0], index, gradient))
            losses.append((number, share[0], loss))
        index, total = self._summed(parts)
        self._replica.apply(total, n_rows, index)
        return losses

    def _summed(self, parts: list[LaneGradient]) -> tuple[NDArray[np.int64] | None, Any]:
        if not (self._fit.run.deterministic or self._fit.work.coordinates):
            total = parts[0][2]
            for _, _, gradient in parts[1:]:
                total += gradient
            return None, self._context.communicator.allreduce(total)
        return _in_order(self._context, parts)

    def states(self) -> dict[int, ShardState]:
        return {} if self._context.rank else {0: self._replica.state()}

    def _apply_pending_penalty(self) -> None:
        self._replica.apply_pending_penalty()

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        self._replica.rescale(largest, norm)


class Averaged(Learner):
    """One replica a lane, averaged now and then (``"local"``) or when asked for (``"average"``)."""

    def load(self, states: dict[int, ShardState]) -> None:
        self._n_lanes = len(self._fit.rows.lane_rows)
        rule = self._fit.steps.rule.scale_to_share(1 / self._n_lanes)
        whole = slice(None)
        self._replicas = {
            lane: Shard(rule, states.get(lane, states[0]).part(whole)) for lane in self._lanes
        }

    def _take(self, step: Step) -> Losses:
        number, _, shares = step
        losses = []
        for share in shares:
            rows, replica = self._gradients.rows(number, share), self._replicas[share[0]]
            index = self._gradients.touched(rows)
            w = replica.w if index is None else replica.w[index]
            gradient, loss = self._gradients.of(w, rows)
            replica.apply(gradient, rows.X.shape[0], index)
            losses.append((number, share[0], loss))
        every = self._fit.steps.policy.average_every
        if every and (number + 1) % every == 0:
            self._meet()
        return losses

    def _meet(self) -> None:
        parts: list[LaneGradient] = [
            (lane, None, replica.w / self._n_lanes) for lane, replica in self._replicas.items()
        ]
        if self._fit.run.deterministic:
            mean = _in_order(self._context, parts)[1]
        else:
            total = parts[0][2]
            for _, _, part in parts[1:]:
                total += part
            mean = self._context.communicator.allreduce(total)
        for replica in self._replicas.values():
            replica.meet(mean)

    def _apply_pending_penalty(self) -> None:
        for replica in self._replicas.values():
            replica.apply_pending_penalty()

    def states(self) -> dict[int, ShardState]:
        return {lane: replica.state() for lane, replica in self._replicas.items()}

    def rescale(self, largest: NDArray[np.float64], norm: float) -> None:
        for replica in self._replicas.values():
            replica.rescale(largest, norm)


def _in_order(
    context: Context, parts: list[LaneGradient]
) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
    """Sum of all lanes' parts in the order of the lanes, the same on every worker."""
    has_index = parts[0][1] is not None
    arrays: list[NDArray[Any]] = [np.array([lane for lane, _, _ in parts])]
    for _, at, part in parts:
        arrays += [part] if at is None else [at, part]
    found: list[LaneGradient] = []
    stride = 2 if has_index else 1
    for lanes, *rest in context.communicator.allgather(arrays):
        for i, lane in enumerate(lanes.tolist()):
            *index, values = rest[i * stride : (i + 1) * stride]
            found.append((lane, index[0] if index else None, values))
    return sum_in_lane_order(found)


def mean_state(states: dict[int, ShardState]) -> ShardState:
    """Mean of the lanes' parameters, with the first lane's optimizer state."""
    first = states[min(states)].part(slice(None))
    if len(states) == 1:
        return first
    some = [states[lane] for lane in sorted(states)]
    first.w = np.mean([state.w for state in some], axis=0, dtype=np.float64).astype(first.w.dtype)
    first.rows = sum(state.rows for state in some)
    if any(state.average is not None for state in some):
        finals = [state.final for state in some]
        first.average = np.mean(finals, axis=0, dtype=np.float64).astype(first.w.dtype)
    return first
