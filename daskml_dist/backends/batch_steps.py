"""Steps along batches of dense rows: gradients and updates of many batches in one loop.

Python and NumPy take some 90 microseconds for a step, whatever its size; a small batch's products
take one. The rows are read where they lie, each once.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Step
from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.draws import Draw, flat_runs
from daskml_dist.backends.pointers import array_at, pointer, prefetch

__all__ = ["BatchSteps"]

#: Steps that are made together at most.
_STEPS = 256
#: Rows ahead that are fetched.
_AHEAD = 4


# `_loss` and `_move` stand for the functions of a loss and an optimizer.
def _loss(y: Any, raw: Any, parameters: Any) -> Any: ...
def _move(state: Any, k: Any, grad: Any, rate: Any, parameters: Any) -> Any: ...


def _steps(
    blocks: Any,
    runs: Any,
    rows: Any,
    rates: Any,
    numbers: Any,
    state: Any,
    grad: Any,
    losses: Any,
    n_penalised: Any,
    l1: Any,
    l2: Any,
    parameters: Any,
    n_features: Any,
) -> None:
    """Step along each batch.

    Parameters
    ----------
    blocks : int64 (n_blocks, 3)
        Addresses of X, y and weights; of no weights 0.
    runs : int64 (n_runs, 4)
        Batch, block, first row and number of rows, in the order of the batches.
    rows, rates : float64 (n_batches,)
        Number of rows, and learning rate.
    numbers : (n_batches, n) floats
        Of the optimizer.
    state : tuple of (n_parameters,) floats
        w, in which the intercept comes last, and the slots.
    grad : (n_parameters,) floats
        Scratch.
    losses : float64 (n_batches,)
        Of each batch before its step, summed.
    """
    w = state[0]
    number, item = w.dtype.type, w.itemsize
    size, has_intercept = n_features * item, len(w) > n_features
    r = 0
    for b in range(len(rows)):
        grad[:] = 0
        loss, slopes = 0.0, number(0)
        while r < len(runs) and runs[r, 0] == b:
            block, start, count = blocks[runs[r, 1]], runs[r, 2], runs[r, 3]
            if r + _AHEAD < len(runs):
                ahead = blocks[runs[r + _AHEAD, 1], 0] + runs[r + _AHEAD, 2] * size
                for at in range(ahead, ahead + size, 64):
                    prefetch(at)
            r += 1
            for i in range(start, start + count):
                x = array_at(pointer(block[0] + i * size), n_features, w.dtype)
                raw = number(0)
                for j in range(n_features):
                    raw += x[j] * w[j]
                if has_intercept:
                    raw += w[n_features]
                y = array_at(pointer(block[1] + i * item), 1, w.dtype)[0]
                value, slope = _loss(y, raw, parameters)
                g: Any = number(slope)
                if block[2] != 0:
                    weight = array_at(pointer(block[2] + i * item), 1, w.dtype)[0]
                    value, g = value * weight, g * weight
                loss += value
                slopes += g
                for j in range(n_features):
                    grad[j] += g * x[j]
        losses[b] = loss
        if rows[b] == 0:
            continue
        if has_intercept:
            grad[n_features] = slopes
        step, mean, at_step = number(rates[b]), number(1 / rows[b]), numbers[b]
        for j in range(n_penalised):
            moved = _move(state, j, grad[j] * mean + l2 * w[j], step, at_step)
            if l1 > 0:
                most = moved * l1
                w[j] -= min(max(w[j], -most), most)
        for j in range(n_penalised, len(w)):
            _move(state, j, grad[j] * mean, step, at_step)


class BatchSteps:
    """Steps of one replica along batches of dense rows of blocks, many in one call.

    Parameters
    ----------
    loss : Loss
        With an `at_row`.
    optimizer : Optimizer
        With an `at_entry`.
    blocks : mapping of int to (X, y, weight)
        C-contiguous and of one dtype; all have weights or none.
    step : Step
        One of the steps, without a gradient.
    """

    most = _STEPS

    def __init__(
        self, loss: Any, optimizer: Any, blocks: Mapping[int, tuple[Any, ...]], step: Step
    ) -> None:
        self._blocks = dict(blocks)  # whose memory must not be given to others
        self._place = {number: place for place, number in enumerate(blocks)}
        parts = self._blocks.values()
        self._where = np.array([[_address(a) for a in arrays] for arrays in parts], np.int64)
        self._optimizer = optimizer
        self._arrays = [step.w, *(step.slots[name] for name in optimizer.slot_names)]
        number = step.w.dtype.type
        n_features = next(iter(parts))[0].shape[1]
        self._scratch = np.empty(len(step.w), step.w.dtype)
        self._rest = (
            step.n_penalised, number(step.l1), number(step.l2), tuple(map(float, loss.parameters)),
            n_features,
        )  # fmt: skip
        self._loop = compiled_with(_steps, loss.__class__, optimizer.__class__, vectors=True)

    def serves(self, step: Step) -> bool:
        """Whether a step is of the same arrays: those of a replica change when it is restored."""
        arrays = [step.w, *(step.slots[name] for name in self._optimizer.slot_names)]
        return all(one is other for one, other in zip(self._arrays, arrays, strict=True))

    def __call__(self, batches: Sequence[Draw], steps: Sequence[Step]) -> NDArray[np.float64]:
        """Make steps.

        Returns
        -------
        ndarray of float64 of shape (len(steps),)
            The summed loss of each batch before its step.
        """
        runs, dtype = flat_runs(batches, self._place), self._scratch.dtype
        rows = np.array([step.rows for step in steps], np.float64)
        rates = np.array([step.lr for step in steps], np.float64)
        numbers = np.array([self._optimizer.numbers(step.number) for step in steps], dtype)
        state = tuple(array.reshape(-1) for array in self._arrays)
        losses = np.empty(len(steps))
        given = self._where, runs, rows, rates, numbers
        self._loop(*given, state, self._scratch, losses, *self._rest)
        return losses


def _address(array: Any) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])
