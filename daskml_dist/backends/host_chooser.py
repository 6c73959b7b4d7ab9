"""Batches of dense rows on the host, read where they lie: gradients, and many steps in one loop.

Python and NumPy take some 90 microseconds for a step, whatever its size, a third of them to gather
its rows; a small batch's products take one.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Step
from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.draws import Draw, flat_runs
from daskml_dist.backends.host_rows import HostRows
from daskml_dist.backends.pointers import array_at, pointer, prefetch

__all__ = ["BatchSteps", "HostChooser"]

#: Steps that are made together at most.
_STEPS = 256
#: Runs ahead whose first rows are fetched.
_AHEAD = 4


# `_loss` and `_move` stand for the functions of a loss and an optimizer.
def _loss(y: Any, raw: Any, parameters: Any) -> Any: ...
def _move(state: Any, k: Any, grad: Any, rate: Any, numbers: Any) -> Any: ...


def _gradient(
    blocks: Any, runs: Any, r: Any, w: Any, grad: Any, parameters: Any, n_features: Any
) -> Any:
    """Set the gradient of the summed loss of a batch; return that, and where the next begins.

    Parameters
    ----------
    blocks : int64 (n_blocks, 3)
        Addresses of X, y and weights; of no weights 0.
    runs : int64 (n_runs, 4)
        Batch, block, first row and number of rows, in the order of the batches.
    r : int
        Where in `runs` the batch begins.
    w, grad : (n_parameters,) floats
        The intercept comes last, where there is one.
    parameters : tuple
        Of the loss.
    """
    number, item = w.dtype.type, w.itemsize
    size, has_intercept = n_features * item, len(w) > n_features
    grad[:] = 0
    loss, slopes, batch = 0.0, number(0), runs[r, 0]
    while r < len(runs) and runs[r, 0] == batch:
        block, start, stop = blocks[runs[r, 1]], runs[r, 2], runs[r, 2] + runs[r, 3]
        if r + _AHEAD < len(runs):
            ahead = blocks[runs[r + _AHEAD, 1], 0] + runs[r + _AHEAD, 2] * size
            for at in range(ahead, ahead + size, 64):
                prefetch(at)
        r += 1
        for i in range(start, stop):
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
    if has_intercept:
        grad[n_features] = slopes
    return loss, r


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
    blocks, runs, parameters
        As above.
    rows, rates : float64 (n_batches,)
        Number of rows, and learning rate; what has no rows has no run either.
    numbers : (n_batches, n) floats
        Of the optimizer.
    state : tuple of (n_parameters,) floats
        w and the slots.
    grad : (n_parameters,) floats
        Scratch.
    losses : float64 (n_batches,)
        Of each batch before its step, summed.
    """
    w, r = state[0], 0
    number = w.dtype.type
    for b in range(len(rows)):
        losses[b] = 0.0
        if rows[b] == 0:
            continue
        losses[b], r = _gradient(blocks, runs, r, w, grad, parameters, n_features)
        step, mean, at_step = number(rates[b]), number(1 / rows[b]), numbers[b]
        for j in range(n_penalised):
            moved = _move(state, j, grad[j] * mean + l2 * w[j], step, at_step)
            if l1 > 0:
                most = moved * l1
                w[j] -= min(max(w[j], -most), most)
        for j in range(n_penalised, len(w)):
            _move(state, j, grad[j] * mean, step, at_step)


class HostChooser:
    """Chooses rows of dense blocks.

    Parameters
    ----------
    loss : Loss
        With an `at_row`.
    blocks : mapping of int to (X, y, weight)
        C-contiguous and of one dtype; all have weights or none.
    """

    #: Batches that are chosen together.
    most = 1

    def __init__(self, loss: Any, blocks: Mapping[int, tuple[Any, Any, Any | None]]) -> None:
        self._blocks = dict(blocks)  # whose memory must not be given to others
        self._place = {number: place for place, number in enumerate(blocks)}
        parts = self._blocks.values()
        self.where = np.array([[_address(a) for a in arrays] for arrays in parts], np.int64)
        first = next(iter(parts))[0]
        self.n_features, self.dtype = first.shape[1], first.dtype
        self.parameters = tuple(map(float, loss.parameters))
        self.gradient = compiled_with(_gradient, vectors=True, _loss=type(loss).at_row)

    def __call__(self, batches: Sequence[Draw]) -> list[tuple[HostRows, None, None]]:
        """Choose batches: their features, which know their targets and weights."""
        found = []
        for batch in batches:
            runs = self.runs([batch])
            shape = int(runs[:, 3].sum()), self.n_features
            found.append((HostRows(shape, self.dtype, partial(self._add, runs)), None, None))
        return found

    def runs(self, batches: Sequence[Draw]) -> NDArray[np.intp]:
        """All runs of rows of batches."""
        return flat_runs(batches, self._place)

    def _add(self, runs: NDArray[np.intp], w: NDArray[Any], out: NDArray[Any]) -> float:
        grad = np.empty(len(w), self.dtype)
        # One version of the loop is enough: for what may be written to.
        w = w.reshape(-1) if w.flags.writeable else w.flatten()
        loss, _ = self.gradient(self.where, runs, 0, w, grad, self.parameters, self.n_features)
        out[:, 0] += grad
        return float(loss)

    def recorder(self, optimizer: Any, step: Step) -> BatchSteps | None:
        """Steps of an optimizer along batches, made by one loop; None where it has no such form.

        Parameters
        ----------
        optimizer : daskml_dist.optimizers.Optimizer
        step : Step
            One of them, without a gradient.
        """
        return None if optimizer.at_entry is None else BatchSteps(self, optimizer, step)


class BatchSteps:
    """Steps of one replica along the batches of one chooser, many in one call.

    Parameters
    ----------
    chooser : HostChooser
    optimizer : Optimizer
        With an `at_entry`.
    step : Step
        One of the steps, without a gradient.
    """

    #: Steps that can be made together.
    most = _STEPS

    def __init__(self, chooser: HostChooser, optimizer: Any, step: Step) -> None:
        self._chooser = chooser
        self._optimizer = optimizer
        self._arrays = [step.w, *(step.slots[name] for name in optimizer.slot_names)]
        self._scratch = np.empty(len(step.w), step.w.dtype)
        number = step.w.dtype.type
        penalty = step.n_penalised, number(step.l1), number(step.l2)
        self._rest = *penalty, chooser.parameters, chooser.n_features
        move = type(optimizer).at_entry
        self._loop = compiled_with(_steps, vectors=True, _gradient=chooser.gradient, _move=move)

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
        rows = np.array([step.rows for step in steps], np.float64)
        rates = np.array([step.lr for step in steps], np.float64)
        numbers = [self._optimizer.numbers(step.number) for step in steps]
        given = rows, rates, np.array(numbers, self._scratch.dtype)
        state = tuple(array.reshape(-1) for array in self._arrays)
        losses, runs = np.empty(len(steps)), self._chooser.runs(batches)
        self._loop(self._chooser.where, runs, *given, state, self._scratch, losses, *self._rest)
        return losses


def _address(array: Any) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])
