"""Pipeline-parallel steps: trainers hold layers, and micro-batches pass through all of them.

Every trainer sends the rows of its lanes to the first stage of its pipeline, and their targets to
the last. A stage alternates between one forward and one backward pass (1F1B; Narayanan et al. 2019,
PipeDream). It sums its layers' gradients over all micro-batches of the step and over the same
stages of other pipelines, and updates its range of the parameters. `Stages` assigns layers to
trainers.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import zeros
from daskml_dist.comm.base import Arrays
from daskml_dist.comm.socket_group import PairMessages, PeerGroup
from daskml_dist.errors import DivergedError
from daskml_dist.models.base import BatchRows, StagedModel
from daskml_dist.ps.messages import sum_in_lane_order
from daskml_dist.ps.shard_state import ShardState, copy_array
from daskml_dist.ps.snapshots import LaneSnapshot, join_lane_snapshots
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.loops.context import Context, DevicePlacement, gather_lane_parts
from daskml_dist.training.worker.reader import join_batch_pieces

#: Steps between two copies of parameters with a finite loss, which a diverging fit returns; a copy
#: takes about as long as a step.
_COPY_INTERVAL = 32
#: Kinds of messages. A message is named by its kind and the number of its micro-batch or lane.
_ROWS, _TARGETS, _FORWARD, _BACKWARD, _LOSS, _STATE = range(6)


class _MicroBatch(NamedTuple):
    """Micro-batch: its number in a step of this pipeline, its lane, and the lane's rank."""

    number: int
    lane: int
    owner: int


class PipelineSteps:
    """Steps of all lanes through the stages that the trainers hold.

    Parameters
    ----------
    context : Context
        Its communicator is a `PeerGroup`, or that of a single trainer.
    """

    def __init__(self, context: Context) -> None:
        pipeline = context.fit.steps.pipeline
        assert pipeline is not None
        self._context = context
        self._m = pipeline.micro_batches
        # A copy: a model may cache arrays of its layers, and trainers of one process share the
        # fit's model.
        self._model: StagedModel = copy.copy(context.fit.steps.model)  # type: ignore[assignment]
        self._placement = DevicePlacement(context, alone=False)
        self._backend = context.lanes[0].backend
        self._stages = self._cut_stages(min(pipeline.stages, context.communicator.size))
        self._rows = self._model.rows_of(self._stages.layers)
        self._shard = self._placement.make_replica(
            context.fit.make_start_state(self._rows), self._rows.start
        )
        peers = context.communicator
        self._lines = PairMessages(peers) if isinstance(peers, PeerGroup) else None
        self._own_messages: dict[tuple[int, int], Arrays] = {}
        # The micro-batches of a step in this pipeline, in lane order.
        lane_numbers = np.array([lane.number for lane in self._context.lanes])
        lanes = self._context.communicator.allgather([lane_numbers])
        owner = {n: rank for rank in self._stages.members for n in lanes[rank][0].tolist()}
        lane_of_job = [lane for lane in sorted(owner) for _ in range(self._m)]
        self._jobs = [
            _MicroBatch(number, lane, owner[lane]) for number, lane in enumerate(lane_of_job)
        ]
        self._alike = None
        if isinstance(peers, PeerGroup) and self._stages.stage is not None:
            self._alike = peers.make_subgroup(self._stages.ranks_of_same_stage)
        #: For each micro-batch, the rows, activations and gradient that its backward pass needs.
        self._live: dict[int, tuple[BatchRows, Any, Any]] = {}
        self._losses: dict[int, float] = {}
        self._busy = 0.0
        self._last_finite: NDArray[Any] | None = None

    def _cut_stages(self, n_stages: int) -> Stages:
        """Divide the layers into stages of about equal time, as measured by the first trainer."""
        context, n = self._context, len(self._model.layers)
        # With one stage, or one stage per layer, there is no choice and nothing to measure.
        seconds = [1.0] * n
        if context.rank == 0 and 1 < n_stages < n:
            state = self._placement.enter(context.fit.make_start_state())
            rows = context.step_rows(0) // max(1, len(context.lane_rows)) // self._m
            seconds = seconds_of_layers(context, state.w, max(2, int(rows)))
        (first, *_) = context.communicator.allgather([np.array(seconds)])
        cuts = cut_layers_evenly(first[0].tolist(), min(n_stages, n))
        return Stages(context.rank, context.communicator.size, cuts)

    # -- messages ------------------------------------------------------------------------------

    def _send_to_stage(
        self, target_rank: int, kind: int, message_number: int, arrays: Arrays
    ) -> None:
        """Send arrays to a rank; arrays for this rank are only stored."""
        if self._lines is None or target_rank == self._context.rank:
            self._own_messages[kind, message_number] = arrays
        else:
            # Messages are sent from host memory.
            host = [self._placement.to_host(array) for array in arrays]
            # Activations and gradients are read soon; rows and targets of a step are all sent in
            # advance.
            awaited = kind in (_FORWARD, _BACKWARD)
            self._lines.send(target_rank, kind + 8 * message_number, host, awaited=awaited)

    def _receive_from_stage(self, source_rank: int, kind: int, message_number: int) -> Arrays:
        """Receive arrays from a rank, on the device."""
        if self._lines is None or source_rank == self._context.rank:
            return self._own_messages.pop((kind, message_number))
        arrays = self._lines.receive(source_rank, kind + 8 * message_number)
        return [self._placement.to_device(array) for array in arrays]

    # -- a step --------------------------------------------------------------------------------

    def steps(self, clock: int, max_steps: int) -> int:
        """Take the next step; return 1, the number of steps taken."""
        context = self._context
        # 1. Send rows and targets to the first and last stages.
        batches = {lane.number: self._feed_batch(lane) for lane in context.lanes}
        # 2. Run all micro-batches forward and backward through this trainer's layers.
        parts = self._compute_gradients(clock)
        busy, self._busy = self._busy, 0.0
        last = self._stages.holders[-1]
        for lane in context.lanes:
            # 3. Receive the loss of each lane's batch from the last stage.
            (loss,) = self._receive_from_stage(last, _LOSS, lane.number)
            lane.count_made_steps([batches[lane.number]], np.array([float(loss)]), busy)
            busy = 0.0
        if self._lines is not None:
            self._lines.flush()
        if self._stages.stage is not None:
            rows = context.step_rows(clock % context.fit.work.n_steps)
            # 4. Sum with the same stage of other pipelines, and update.
            self._shard.apply(self._sum_pipelines(parts), rows)
        return 1

    def _feed_batch(self, lane: Lane) -> int:
        """Send the micro-batches of a lane's next batch to the stages; return its row count."""
        batch = lane.draw_next_batch()
        pieces = list(batch.pieces)
        rows = join_batch_pieces(pieces) if len(pieces) > 1 else next(iter(pieces), None)
        first, last = self._stages.holders[0], self._stages.holders[-1]
        for micro, job in enumerate(job for job in self._jobs if job.lane == lane.number):
            micro_rows = slice(
                batch.n_rows * micro // self._m, batch.n_rows * (micro + 1) // self._m
            )
            if rows is None or micro_rows.start == micro_rows.stop:
                self._send_to_stage(first, _ROWS, job.number, [])
                continue
            # The key of random streams is sent with the rows, so draws depend on the rows, not the
            # stage.
            key = np.array([*rows.key, micro_rows.start])
            has_targets = np.array([rows.y is not None, rows.weight is not None])
            # Targets and weights go to the last stage, which computes the loss.
            targets = [array[micro_rows] for array in (rows.y, rows.weight) if array is not None]
            self._send_to_stage(first, _ROWS, job.number, [key, rows.X[micro_rows]])
            self._send_to_stage(last, _TARGETS, job.number, [has_targets, *targets])
        return batch.n_rows

    def _compute_gradients(self, clock: int) -> list[tuple[int, Any]]:
        """Return the gradients of this trainer's layers by lane.

        Parameters with a finite loss are copied at intervals, for the error of a diverging fit; if
        several trainers hold the layers, the client has snapshots instead.
        """
        try:
            parts = self._run_stage()
        except DivergedError as error:
            error.snapshot = self._last_finite
            raise
        if self._stages.n_stages == 1 and clock % _COPY_INTERVAL == 0:
            self._last_finite = self._placement.to_host(copy_array(self._shard.w))
        return parts

    def _run_stage(self) -> list[tuple[int, Any]]:
        """Run this trainer's layers on all micro-batches; return gradients by lane."""
        stage, jobs = self._stages.stage, self._jobs
        if stage is None:
            return []
        self._losses = dict.fromkeys((job.lane for job in jobs), 0.0)
        parts: dict[int, Any] = {}
        # 1F1B: at first one micro-batch forward for each stage that follows, and one more, so that
        # no stage waits while a message is in transit.
        n_later_stages = self._stages.n_stages - stage - 1
        n_ahead = min(n_later_stages + 1 if n_later_stages else 0, len(jobs))
        for job in jobs[:n_ahead]:
            self._run_forward(stage, job)
        # Steady state: alternate one forward and one backward pass.
        for number, job in enumerate(jobs):
            if number + n_ahead < len(jobs):
                self._run_forward(stage, jobs[number + n_ahead])
            self._run_backward(stage, job, self._get_gradient_sum(parts, job.lane))
        if stage == self._stages.n_stages - 1:
            owners = {job.lane: job.owner for job in jobs}
            for lane, loss in self._losses.items():
                self._send_to_stage(owners[lane], _LOSS, lane, [np.array(loss)])
        return list(parts.items())

    def _get_gradient_sum(self, gradient_sums: dict[int, Any], lane: int) -> Any:
        """Return the array of a lane's gradient, shared by all lanes unless deterministic."""
        lane = lane if self._context.fit.run.deterministic else 0
        if lane not in gradient_sums:
            w = self._shard.w
            gradient_sums[lane] = zeros(w.shape, w.dtype, like=w)
        return gradient_sums[lane]

    def _run_forward(self, stage: int, job: _MicroBatch) -> None:
        """Run this trainer's layers forward on a micro-batch, and send on the output."""
        holders = self._stages.holders
        if stage == 0:
            message = self._receive_from_stage(job.owner, _ROWS, job.number)
        else:
            message = self._receive_from_stage(holders[stage - 1], _FORWARD, job.number)
        last = stage == len(holders) - 1
        if not message:  # an empty micro-batch
            if not last:
                self._send_to_stage(holders[stage + 1], _FORWARD, job.number, [])
            return
        key, x = message
        rows = BatchRows(x, key=tuple(key.tolist()))
        if last:
            has_targets, *targets = self._receive_from_stage(job.owner, _TARGETS, job.number)
            rows.y = targets[0] if has_targets[0] else None
            rows.weight = targets[-1] if has_targets[1] else None
        since, layers = time.perf_counter(), self._stages.layers
        output, memory = self._model.forward(self._shard.w, x, layers, rows, self._backend)
        if last:
            loss, output = self._model.loss_gradient(output, rows, self._backend)
            self._losses[job.lane] += float(loss)
        self._busy += time.perf_counter() - since
        self._live[job.number] = rows, memory, output if last else None
        if not last:
            self._send_to_stage(holders[stage + 1], _FORWARD, job.number, [key, output])

    def _run_backward(self, stage: int, job: _MicroBatch, out: Any) -> None:
        """Run this trainer's layers backward on a micro-batch, and send back the gradient."""
        if job.number not in self._live:  # an empty micro-batch
            return
        rows, memory, gradient = self._live.pop(job.number)
        holders = self._stages.holders
        if gradient is None:
            (gradient,) = self._receive_from_stage(holders[stage + 1], _BACKWARD, job.number)
        since = time.perf_counter()
        input_gradient = self._model.backward(
            self._shard.w, memory, gradient, out, self._stages.layers, rows, self._backend,
            wants_input=stage > 0,
        )  # fmt: skip
        self._busy += time.perf_counter() - since
        if stage > 0:
            # Copied, since the next backward pass may overwrite the memory before it is sent.
            self._send_to_stage(
                holders[stage - 1], _BACKWARD, job.number, [copy_array(input_gradient)]
            )

    def _sum_pipelines(self, lane_gradients: list[tuple[int, Any]]) -> Any:
        """Return the sum of the gradients of all lanes of all pipelines."""
        same_stage = self._alike
        if not self._context.fit.run.deterministic:
            total = lane_gradients[0][1]
            return (
                total if same_stage is None or same_stage.size == 1 else same_stage.allreduce(total)
            )
        own_parts = [(lane, self._placement.to_host(part)) for lane, part in lane_gradients]
        return self._placement.to_device(
            sum_in_lane_order(gather_lane_parts(same_stage, own_parts))[1]
        )

    def draw_rows_ahead(self, clock: int, max_steps: int) -> None:
        """Do nothing: rows are drawn with each step."""

    # -- state ---------------------------------------------------------------------------------

    def snapshots(self) -> dict[int, LaneSnapshot]:
        """Return every lane's sums; the first lane in the first pipeline also has the stage."""
        first = self._context.lanes[0].number
        shard = (
            self._placement.leave(self._shard.snapshot())
            if self._stages.leads_first_pipeline
            else None
        )
        return {
            lane.number: LaneSnapshot(
                *lane.sums,
                shard if lane.number == first else None,
                self._rows.start if lane.number == first and shard is not None else 0,
            )
            for lane in self._context.lanes
        }

    def restore(self, lanes: dict[int, LaneSnapshot]) -> None:
        """Restore this trainer's stage from the snapshots of all stages, however they were cut."""
        (shard,) = (
            lane.shard for lane in join_lane_snapshots(lanes).values() if lane.shard is not None
        )
        self._shard.restore(self._placement.enter(shard.slice_rows(self._rows)))

    def get_interrupted_state(self) -> InterruptedState | None:
        """Return the parameters at an interruption, if one trainer holds all of them."""
        if self._stages.n_stages > 1 or (state := self.state()) is None:
            return None
        return InterruptedState(state, rows=sum(lane.sums[1] for lane in self._context.lanes))

    def validation_weights(self) -> list[Any | None]:
        """Return the whole parameters for each lane, if rows are held out."""
        if not self._context.fit.rows.validation_fraction:
            return [None] * len(self._context.lanes)
        own_params = (
            [self._placement.to_host(self._shard.w)] if self._stages.leads_first_pipeline else []
        )
        gathered = self._context.communicator.allgather(own_params)
        all_params = np.concatenate([w for parts in gathered for w in parts])
        return [all_params] * len(self._context.lanes)

    def state(self) -> ShardState | None:
        """Return the state of all stages, on the first rank."""
        if not self._stages.leads_first_pipeline:
            return None
        shard = self._placement.leave(self._shard.state())
        # Messages are lists of arrays, so both ends use the same order.
        names = sorted(shard.opt_state)
        average = [] if shard.average is None else [shard.average]
        self._send_to_stage(
            0, _STATE, 0, [shard.w, *(shard.opt_state[name] for name in names), *average]
        )
        if self._lines is not None:
            self._lines.flush()
        if self._context.rank:
            return None
        parts = []
        for rank in self._stages.holders:
            w, *other_arrays = self._receive_from_stage(rank, _STATE, 0)
            opt_state = dict(zip(names, other_arrays, strict=False))
            last = other_arrays[-1] if average else None
            parts.append(ShardState(w, opt_state, shard.step, shard.rows, last, shard.n_averaged))
        return ShardState.join(parts)


@dataclass(frozen=True)
class Stages:
    """Stages of all pipelines of a fit, from the viewpoint of one trainer.

    Ranks are assigned to pipelines in turn: rank r is in pipeline ``r % n_pipelines`` and holds its
    stage ``r // n_pipelines``. Ranks after the last stage only send their lanes' rows to a
    pipeline.

    Parameters
    ----------
    rank, size : int
        Rank of the trainer, and the number of trainers.
    cuts : tuple of int
        First layer of each stage, then the number of layers.
    """

    rank: int
    size: int
    cuts: tuple[int, ...]

    @property
    def n_stages(self) -> int:
        """Return the number of stages of a pipeline."""
        return len(self.cuts) - 1

    @property
    def n_pipelines(self) -> int:
        """Return the number of parallel pipelines."""
        return max(1, self.size // self.n_stages)

    @property
    def pipeline(self) -> int:
        """Return the number of the trainer's pipeline."""
        return self.rank % self.n_pipelines

    @property
    def stage(self) -> int | None:
        """Return the trainer's stage; None if it only provides rows."""
        stage = self.rank // self.n_pipelines
        return stage if stage < self.n_stages else None

    @property
    def layers(self) -> range:
        """Return the trainer's layers."""
        if self.stage is None:
            return range(0)
        return range(self.cuts[self.stage], self.cuts[self.stage + 1])

    @cached_property
    def holders(self) -> list[int]:
        """Return the ranks of the stages of the trainer's pipeline, in order."""
        return [self.pipeline + stage * self.n_pipelines for stage in range(self.n_stages)]

    @property
    def members(self) -> list[int]:
        """Return the ranks whose lanes' rows pass through the trainer's pipeline."""
        return list(range(self.pipeline, self.size, self.n_pipelines))

    @property
    def ranks_of_same_stage(self) -> list[int]:
        """Return the ranks that hold the trainer's stage, in all pipelines."""
        assert self.stage is not None
        return [self.stage * self.n_pipelines + k for k in range(self.n_pipelines)]

    @property
    def leads_first_pipeline(self) -> bool:
        """Return whether the trainer holds a stage of the first pipeline."""
        return self.pipeline == 0 and self.stage is not None


def cut_layers_evenly(seconds: Sequence[float], n_stages: int) -> tuple[int, ...]:
    """Return the first layer of each stage, then the number of layers.

    The time of the slowest stage is as short as possible.
    """
    n = len(seconds)
    # Linear partition by dynamic programming over prefixes of the layers.
    until = [0.0, *itertools.accumulate(seconds)]
    # best[k][i]: least time of the slowest of k + 1 stages of the first i layers, and the first
    # layer of the last of these stages.
    best = [[(until[i], 0) for i in range(n + 1)]]
    for k in range(1, n_stages):
        row = [(float("inf"), 0)] * (n + 1)
        for i in range(k + 1, n + 1):
            row[i] = min(
                (max(best[-1][first][0], until[i] - until[first]), first) for first in range(k, i)
            )
        best.append(row)
    cuts = [n]
    for row in reversed(best):
        cuts.append(row[cuts[-1]][1])
    return tuple(reversed(cuts))


def seconds_of_layers(context: Context, w: Any, n_rows: int) -> list[float]:
    """Measure the seconds of each layer, forward and backward, on rows of a lane."""
    lane = max(context.lanes, key=lambda lane: lane.n_rows)
    lane.seek(context.clock)
    rows = next(iter(lane.draw_next_batch().pieces), None)
    # A copy: the model caches arrays by its layers, and those of single layers are not needed
    # later.
    model: StagedModel = copy.copy(context.fit.steps.model)  # type: ignore[assignment]
    if rows is None:  # the lane's pass is over
        return [1.0] * len(model.layers)
    y, weight = (None if a is None else a[:n_rows] for a in (rows.y, rows.weight))
    rows = BatchRows(rows.X[:n_rows], y, weight, rows.key)
    # The fastest of three, since the others were disturbed.
    times = np.min([_time_layers(model, w, rows, lane.backend) for _ in range(3)], axis=0)
    return [float(seconds) for seconds in times]


def _time_layers(model: StagedModel, w: Any, rows: BatchRows, backend: Any) -> list[float]:
    """Return the seconds of each layer in one forward and backward pass."""
    x, memories = rows.X, []
    layers = [range(n, n + 1) for n in range(len(model.layers))]
    seconds = [0.0] * len(layers)
    for n, layer in enumerate(layers):
        since = time.perf_counter()
        x, memory = model.forward(w[model.rows_of(layer), ...], x, layer, rows, backend)
        memories.append(memory)
        seconds[n] = time.perf_counter() - since
    _, gradient = model.loss_gradient(x, rows, backend)
    for n, layer in reversed(list(enumerate(layers))):
        since, layer_rows = time.perf_counter(), model.rows_of(layer)
        gradient = model.backward(
            w[layer_rows, ...], memories[n], gradient, np.zeros_like(w[layer_rows, ...]),
            layer, rows, backend, wants_input=n > 0,
        )  # fmt: skip
        seconds[n] += time.perf_counter() - since
    return seconds
