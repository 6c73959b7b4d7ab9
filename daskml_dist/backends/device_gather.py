"""Batches on a GPU whose rows are not moved: gathered by address; steps as CUDA graphs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from daskml_dist.backends import kernels
from daskml_dist.backends.base import ReplicaSteps, Step
from daskml_dist.backends.cupy_calls import CsrRows, DenseRows, KernelCall, KernelCalls
from daskml_dist.backends.row_slices import Draw


class RecordedSteps(ReplicaSteps):
    """Steps of one replica on the batches of one gather, several in one launch.

    The kernels of a given number of steps are recorded once, as a CUDA graph, which then runs them
    all. Values that change between runs are in device memory at fixed addresses: the rows of each
    batch, and the numbers of each step.

    Parameters
    ----------
    gather : DeviceGather
    optimizer : daskml_dist.optimizers.Optimizer
    step : Step
        One of the steps, without a gradient.
    """

    def __init__(self, gather: DeviceGather, optimizer: Any, step: Step) -> None:
        self._cp = cupy = gather.calls.cupy
        super().__init__(optimizer, step)
        self._gather = gather
        #: Maximum steps made together.
        self.max_steps = gather.max_batches
        self._step_values = cupy.zeros((self.max_steps, kernels.N_STEP_VALUES), np.float64)
        self._losses = cupy.zeros(self.max_steps, np.float64)
        gradient = dataclasses.replace(step, grad=cupy.zeros_like(step.w))
        self._partials = gather.calls.partials(gather.rows(0))
        self._calls = [self._make_step_calls(place, gradient) for place in range(self.max_steps)]
        #: By number of steps; None if still launched kernel by kernel, as at first.
        self._graphs: dict[int, Any] = {}

    def _make_step_calls(self, batch_index: int, step: Step) -> list[KernelCall]:
        """Return the launches of a step: the gradient of its rows, and the update."""
        numbers, calls = self._step_values[batch_index], self._gather.calls
        rows, loss = self._gather.rows(batch_index), self._losses[batch_index : batch_index + 1]
        gradient = calls.gradient(
            *self._gather.loss, rows, step.w, step.grad, loss,
            add=step.coordinates, count=numbers, partials=self._partials,
        )  # fmt: skip
        if step.coordinates:
            assert isinstance(rows, CsrRows)
            # A step restricted to the columns leaves zeros for the next gradient.
            return [*gradient, calls.adagrad_at(rows, step, numbers)]
        return [*gradient, calls.update(self._optimizer, step, self._state[1:], numbers)]

    def __call__(self, batches: list[Draw], steps: list[Step]) -> Any:
        """Make steps, at most `max_steps` together."""
        n = len(steps)
        self._gather.gather(batches)
        table = [kernels.optimizer_numbers(self._optimizer, s.rows, s.lr, s.number) for s in steps]
        self._step_values[:n] = self._cp.asarray(np.array(table))
        self._losses[:n] = 0
        self._launch(n)
        return self._losses[:n].copy()

    def _launch(self, n: int) -> None:
        """Launch the first n steps, as a CUDA graph from the third time on."""
        graph = self._graphs.get(n)
        # The first launch of a length runs kernel by kernel, the second records, and later ones
        # replay.
        if graph is None and n in self._graphs:
            graph = self._graphs[n] = self._recorded(n)
        if graph is not None:
            graph.launch()
            return
        # The first launch loads the kernels: nothing can be loaded during a recording.
        self._graphs[n] = None
        self._run(n)

    def _run(self, n: int) -> None:
        """Launch the first n steps, kernel by kernel."""
        for calls in self._calls[:n]:
            for call in calls:
                call()

    def _recorded(self, n: int) -> Any:
        """Return the CUDA graph of the first n steps."""
        stream = self._cp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                self._run(n)
            finally:
                graph = stream.end_capture()
        return graph


#: Maximum batches that are gathered together, and maximum rows of them.
_MAX_BATCHES_AT_ONCE, _MAX_ROWS_AT_ONCE = 32, 1 << 20


class DeviceGather:
    """Gather of rows of dense blocks: several batches by one copy of a few numbers, one launch.

    A batch is valid until others are gathered.

    Parameters
    ----------
    calls : KernelCalls
    loss : tuple of str and float
        Name of its kernel, and the kernel's parameter.
    blocks : mapping of int to (X, y, weight)
        C-contiguous, on the device; all have weights or none.
    n_rows : int
        Maximum rows of a batch.
    """

    def __init__(
        self,
        calls: KernelCalls,
        loss: tuple[str, float],
        blocks: Mapping[int, tuple[Any, Any, Any | None]],
        n_rows: int,
    ) -> None:
        self._cp = cupy = calls.cupy
        self.calls = calls
        self.loss = loss
        self._blocks = dict(blocks)  # keeps their memory allocated
        self._block_positions = {number: place for place, number in enumerate(blocks)}
        first = next(iter(self._blocks.values()))
        self.n_features, self.dtype = first[0].shape[1], first[0].dtype
        parts = [
            (*self._arrays(X), *targets_weights) for X, *targets_weights in self._blocks.values()
        ]
        where = [[0 if a is None else calls.address(a) for a in arrays] for arrays in parts]
        self._where = cupy.asarray(np.array(where, np.uint64))
        #: Maximum batches gathered together.
        self.max_batches = max(1, min(_MAX_BATCHES_AT_ONCE, _MAX_ROWS_AT_ONCE // max(n_rows, 1)))
        self._n_rows = n_rows
        shape = self.max_batches * n_rows
        self._gathered = self._allocate_output(shape)
        self._y = cupy.empty(shape, first[1].dtype)
        self._weight = None if first[2] is None else cupy.empty(shape, first[2].dtype)

    def __call__(self, batches: Sequence[Draw]) -> list[Callable[[Any, Any], Any]]:
        """Return, for each batch, :meth:`add_gradient` for its rows."""
        gathered = [self.rows(place, n) for place, n in enumerate(self.gather(batches))]
        return [functools.partial(self.add_gradient, rows) for rows in gathered]

    def add_gradient(self, rows: DenseRows | CsrRows, w: Any, out: Any) -> Any:
        """Add the gradient of gathered rows at `w` to `out`, both (n, 1); return the loss."""
        loss = self._cp.zeros((), np.float64)
        w = self._cp.ascontiguousarray(w, dtype=rows.y.dtype)
        for call in self.calls.gradient(*self.loss, rows, w, out, loss):
            call()
        return loss

    def gather(self, batches: Sequence[Draw]) -> list[int]:
        """Copy the positions of batch rows to the device; return each batch's number of rows."""
        parts = [(place, *part) for place, batch in enumerate(batches) for part in batch]
        n_rows = np.zeros(len(batches), np.intp)
        if parts:
            places, blocks, firsts, counts = zip(*parts, strict=True)
            # All runs of all batches in one table, copied together: each copy costs microseconds.
            place, block = (
                np.repeat(of_parts, [len(part) for part in firsts])
                for of_parts in (places, [self._block_positions[number] for number in blocks])
            )
            count = np.concatenate(
                [
                    np.ones(len(first), np.intp) if part is None else part
                    for first, part in zip(firsts, counts, strict=True)
                ]
            )
            n_rows = np.bincount(place, count, len(batches)).astype(np.intp)
            # Each batch begins at a fixed place.
            gaps = np.arange(len(batches)) * self._n_rows - np.cumsum(n_rows) + n_rows
            destination = np.cumsum(count) - count + gaps[place]
            table = np.stack([block, np.concatenate(firsts), destination, count], axis=1)
            runs = self._cp.asarray(table.astype(np.int32))
            arrays = self._gathered, self._y, self._weight
            self.calls.gather_rows(self._where, runs, self._row_bytes, *arrays)()
        row_counts: list[int] = n_rows.tolist()
        return row_counts

    def rows(self, batch_index: int, n_rows: int | None = None) -> DenseRows | CsrRows:
        """Return a gathered batch as a kernel needs it; by default with the maximum of rows."""
        start = batch_index * self._n_rows
        n = self._n_rows if n_rows is None else n_rows
        row_slice = slice(start, start + n)
        weight = None if self._weight is None else self._weight[row_slice]
        return self._described(n, self._gathered[row_slice], self._y[row_slice], weight)

    # Properties that depend on the layout of a block's rows.

    @staticmethod
    def _arrays(X: Any) -> tuple[Any, ...]:
        """Return the arrays whose addresses a kernel needs."""
        return (X,)

    def _allocate_output(self, n: int) -> Any:
        """Return memory in which a kernel can write the positions of n rows."""
        return self._cp.empty(n, np.uint64)

    @property
    def _row_bytes(self) -> int | None:
        """Return the bytes of a row; None for CSR blocks."""
        return int(self.n_features * self.dtype.itemsize)

    def _described(self, n: int, gathered: Any, y: Any, weight: Any | None) -> DenseRows | CsrRows:
        """Return the description of gathered rows, in the form for kernels."""
        return DenseRows(n, self.n_features, self.dtype, self._alignment, None, gathered, y, weight)

    @functools.cached_property
    def _alignment(self) -> int:
        """Return the largest power of two that divides the addresses of all blocks."""
        return self.calls.alignment(*(X for X, _, _ in self._blocks.values()))


class CsrGather(DeviceGather):
    """Gather of rows of CSR blocks, whose columns are int32, in canonical form."""

    _row_bytes = None

    @staticmethod
    def _arrays(X: Any) -> tuple[Any, ...]:
        return X.data, X.indices, X.indptr

    def _allocate_output(self, n: int) -> Any:
        return self._cp.empty((n, 3), np.uint64)

    def _described(self, n: int, gathered: Any, y: Any, weight: Any | None) -> CsrRows:
        return CsrRows(n, self.n_features, self.dtype, None, gathered, y, weight)
