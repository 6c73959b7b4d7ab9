"""Stages of pipelines: the layers that each trainer holds, and whose rows go through them."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from daskml_dist.models.base import BatchRows
from daskml_dist.models.staged import StagedModel
from daskml_dist.training.worker.loops.context import Context

__all__ = ["Stages", "cut_evenly", "seconds_of_layers"]


@dataclass(frozen=True)
class Stages:
    """Stages of all pipelines of a fit, as one trainer sees them.

    Trainers stand in rows of `n_pipelines`; each row but those past the last stage holds a stage.
    The others only feed their lanes' rows to a pipeline.

    Parameters
    ----------
    rank, size : int
        The trainer's, and how many there are.
    cuts : tuple of int
        First layer of each stage, and the number of layers.
    """

    rank: int
    size: int
    cuts: tuple[int, ...]

    @property
    def n_stages(self) -> int:
        """Stages of a pipeline."""
        return len(self.cuts) - 1

    @property
    def n_pipelines(self) -> int:
        """Pipelines beside each other."""
        return max(1, self.size // self.n_stages)

    @property
    def pipeline(self) -> int:
        """The trainer's pipeline."""
        return self.rank % self.n_pipelines

    @property
    def stage(self) -> int | None:
        """The trainer's stage; None: it only feeds rows."""
        stage = self.rank // self.n_pipelines
        return stage if stage < self.n_stages else None

    @property
    def layers(self) -> range:
        """The trainer's layers."""
        if self.stage is None:
            return range(0)
        return range(self.cuts[self.stage], self.cuts[self.stage + 1])

    @cached_property
    def holders(self) -> list[int]:
        """Ranks of the stages of the trainer's pipeline, in their order."""
        return [self.pipeline + stage * self.n_pipelines for stage in range(self.n_stages)]

    @property
    def members(self) -> list[int]:
        """Ranks whose lanes' rows go through the trainer's pipeline."""
        return list(range(self.pipeline, self.size, self.n_pipelines))

    @property
    def alike(self) -> list[int]:
        """Ranks that hold the same stage in other pipelines, and the trainer's."""
        assert self.stage is not None
        return [self.stage * self.n_pipelines + k for k in range(self.n_pipelines)]

    @property
    def leads(self) -> bool:
        """Whether the trainer holds a stage of the first pipeline."""
        return self.pipeline == 0 and self.stage is not None


def cut_evenly(seconds: Sequence[float], n_stages: int) -> tuple[int, ...]:
    """First layer of each of so many stages, and the number of layers: the longest is shortest.

    Parameters
    ----------
    seconds : sequence of float
        Of each layer.
    n_stages : int
        At most as many as layers.
    """
    n = len(seconds)
    until = [0.0, *itertools.accumulate(seconds)]
    # best[k][i]: the longest of k + 1 stages of the first i layers, and where the last one begins.
    best = [[(until[i], 0) for i in range(n + 1)]]
    for k in range(1, n_stages):
        row = [(float("inf"), 0)] * (n + 1)
        for i in range(k + 1, n + 1):
            row[i] = min((max(best[-1][at][0], until[i] - until[at]), at) for at in range(k, i))
        best.append(row)
    cuts = [n]
    for row in reversed(best):
        cuts.append(row[cuts[-1]][1])
    return tuple(reversed(cuts))


def seconds_of_layers(context: Context, w: Any, n_rows: int) -> list[float]:
    """Seconds that each layer takes, forward and backward, as measured on rows of a lane.

    Parameters
    ----------
    context : Context
    w : array of all parameters
        On the device of the lanes.
    n_rows : int
        Rows of a micro-batch, at most.
    """
    lane = max(context.lanes, key=lambda lane: lane.n_rows)
    lane.seek(context.clock)
    rows = next(iter(lane.next_batch().pieces), None)
    # What it keeps of single layers is of no use later.
    model: StagedModel = copy.copy(context.fit.steps.model)  # type: ignore[assignment]
    if rows is None:  # its pass is over
        return [1.0] * len(model.layers)
    y, weight = (None if a is None else a[:n_rows] for a in (rows.y, rows.weight))
    rows = BatchRows(rows.X[:n_rows], y, weight, rows.key)
    times = np.min([_timed(model, w, rows, lane.backend) for _ in range(3)], axis=0)
    return [float(seconds) for seconds in times]


def _timed(model: StagedModel, w: Any, rows: BatchRows, backend: Any) -> list[float]:
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
        since, at = time.perf_counter(), model.rows_of(layer)
        gradient = model.backward(
            w[at, ...], memories[n], gradient, np.zeros_like(w[at, ...]), layer, rows, backend,
            wants_input=n > 0,
        )  # fmt: skip
        seconds[n] += time.perf_counter() - since
    return seconds
