"""Idle time of a pipeline, compared with the formula.

The layers of the network only wait, all equally long, so that workers do not need separate cores;
idle time comes only from the schedule and the messages.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from benchmarks._common import markdown, persisted, processes
from daskml_dist import Run
from daskml_dist.base import BaseSteps, Supervised
from daskml_dist.models import Parameters, Part, StagedModel
from daskml_dist.policies import Pipeline

#: Seconds of the forward and of the backward computation of a layer.
FORWARD, BACKWARD = 0.05, 0.1
LAYERS, STEPS, WIDTH = 12, 2, 64
#: Numbers of stages, and of micro-batches in each worker's batch.
SHAPES = [(2, 1), (2, 2), (2, 4), (3, 2), (4, 1), (4, 4)]


class Waiting(StagedModel):
    """Layers that wait."""

    layers = tuple((f"layer {n}",) for n in range(LAYERS))
    parameters = Parameters(tuple(Part(name, (1,)) for (name,) in layers))

    def encode(self, y: NDArray[Any], classes: Any, dtype: Any) -> NDArray[Any]:
        return y.astype(dtype)

    def forward(self, w: Any, x: Any, layers: range, rows: Any, backend: Any) -> tuple[Any, Any]:
        time.sleep(FORWARD * len(layers) / LAYERS)
        return x, None

    def backward(
        self, w: Any, memory: Any, gradient: Any, out: Any, layers: range, rows: Any,
        backend: Any, *, wants_input: bool,
    ) -> Any:  # fmt: skip
        time.sleep(BACKWARD * len(layers) / LAYERS)
        return gradient

    def loss_gradient(self, output: Any, rows: Any, backend: Any) -> tuple[float, Any]:
        return 0.0, np.zeros_like(output)

    def identity(self) -> dict[str, Any]:
        return {"layers": LAYERS}


class Waiter(RegressorMixin, BaseSteps, Supervised):
    """Estimator of `Waiting`."""

    def __init__(
        self,
        pipeline: Any = None,
        max_iter: int = 4,
        batch_size: int = 32,
        learning_rate: float = 0.1,
        run: Any = None,
    ) -> None:
        self.pipeline = pipeline
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.run = run

    def _model(self, rows: Any, last: Any) -> StagedModel:
        return Waiting()

    def _set_parameters(self, w: Any, model: Any, rows: Any) -> None:
        self.n_features_in_ = WIDTH


def _lasts(stages: int) -> float:
    """Return the seconds of a stage's forward and backward: a sleep takes longer than asked."""
    since, times = time.perf_counter(), 10
    for _ in range(times):
        time.sleep(FORWARD / stages)
        time.sleep(BACKWARD / stages)
    return (time.perf_counter() - since) / times


def run(tiny: bool = False) -> str:
    """Return the table."""
    shapes, passes = (SHAPES[:1], 2) if tiny else (SHAPES, 4)
    table = []
    for stages, micro_batches in shapes:
        with processes(stages) as client:
            n_rows = 32 * STEPS * stages
            X = persisted(np.zeros((n_rows, WIDTH), np.float32), stages)
            y = persisted(np.zeros(n_rows, np.float32), stages)
            model = Waiter(Pipeline(stages, micro_batches), passes, run=Run(n_lanes=stages))
            model.fit(X, y, client=client)
        step = statistics.median(r["seconds"] for r in model.history_.records[1:]) / STEPS
        jobs = stages * micro_batches
        work = jobs * _lasts(stages)
        formula = (stages - 1) / (jobs + stages - 1)
        table.append([
            stages, micro_batches, jobs, f"{1e3 * step:.1f}", f"{1 - work / step:.3f}",
            f"{formula:.3f}", f"{(1 - work / step) / formula:.2f}",
        ])  # fmt: skip
    columns = ["stages", "micro-batches per lane", "per step", "step, ms", "idle",
               "(p - 1) / (jobs + p - 1)", "ratio"]  # fmt: skip
    return markdown("Idle share of a pipeline's stages, one lane per worker", columns, table)
