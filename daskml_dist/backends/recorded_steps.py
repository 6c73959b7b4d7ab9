"""Steps that a device makes by itself: launched one by one, small ones would wait for the host."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from daskml_dist.backends import kernels
from daskml_dist.backends.cupy_calls import CsrRows, KernelCall
from daskml_dist.backends.device_gather import DeviceGather
from daskml_dist.backends.draws import Draw
from daskml_dist.backends.step import Step

__all__ = ["RecordedSteps"]


class RecordedSteps:
    """Steps of one replica along the batches of one gather, several in one launch.

    The kernels of so many steps are recorded once, as a CUDA graph, which runs them all. What
    differs from time to time lies in device memory, at addresses that stay: the rows of each batch,
    and the numbers of each step.

    Parameters
    ----------
    gather : DeviceGather
    optimizer : daskml_dist.optimizers.Optimizer
    step : Step
        One of the steps, without a gradient.
    """

    def __init__(self, gather: DeviceGather, optimizer: Any, step: Step) -> None:
        self._cp = cupy = gather.calls.cupy
        self._gather = gather
        self._optimizer = optimizer
        self._state = step.state(optimizer)
        #: Steps that can be made together.
        self.most = gather.most
        self._numbers = cupy.zeros((self.most, kernels.NUMBERS), np.float64)
        self._losses = cupy.zeros(self.most, np.float64)
        gradient = dataclasses.replace(step, grad=cupy.zeros_like(step.w))
        self._partials = gather.calls.partials(gather.rows(0))
        self._calls = [self._of_step(place, gradient) for place in range(self.most)]
        #: By number of steps; None where it is launched kernel by kernel, as at first.
        self._graphs: dict[int, Any] = {}

    def _of_step(self, place: int, step: Step) -> list[KernelCall]:
        numbers, calls = self._numbers[place], self._gather.calls
        rows, loss = self._gather.rows(place), self._losses[place : place + 1]
        gradient = calls.gradient(
            *self._gather.loss, rows, step.w, step.grad, loss,
            add=step.coordinates, count=numbers, partials=self._partials,
        )  # fmt: skip
        if step.coordinates:
            assert isinstance(rows, CsrRows)
            # A step at the columns alone leaves zeros for the next gradient.
            return [*gradient, calls.adagrad_at(rows, step, numbers)]
        return [*gradient, calls.update(self._optimizer, step, self._state[1:], numbers)]

    def serves(self, step: Step) -> bool:
        """Say if a step is of the same arrays: those of a replica change when it is restored."""
        pairs = zip(self._state, step.state(self._optimizer), strict=True)
        return all(one is other for one, other in pairs)

    def __call__(self, batches: list[Draw], steps: list[Step]) -> Any:
        """Make steps, at most as many as can be made together."""
        n = len(steps)
        self._gather.gather(batches)
        table = [kernels.optimizer_numbers(self._optimizer, s.rows, s.lr, s.number) for s in steps]
        self._numbers[:n] = self._cp.asarray(np.array(table))
        self._losses[:n] = 0
        self._launch(n)
        return self._losses[:n].copy()

    def _launch(self, n: int) -> None:
        graph = self._graphs.get(n)
        if graph is None and n in self._graphs:
            graph = self._graphs[n] = self._recorded(n)
        if graph is not None:
            graph.launch()
            return
        # What is launched first is loaded first, and nothing can be loaded while it is recorded.
        self._graphs[n] = None
        self._run(n)

    def _run(self, n: int) -> None:
        for calls in self._calls[:n]:
            for call in calls:
                call()

    def _recorded(self, n: int) -> Any:
        stream = self._cp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                self._run(n)
            finally:
                graph = stream.end_capture()
        return graph
