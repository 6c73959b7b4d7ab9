"""Steps of an optimizer in compiled loops: over all parameters, and over few rows of them.

For each entry, the mean gradient, the l2 penalty (or its pending part), the optimizer's step and
the l1 penalty are applied in one pass, with the same bits as NumPy's operations on whole arrays.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Step
from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.intrinsics import copy_values, prefetch

#: Stands for None in compiled loops, whose arguments must have one type.
_NO_RATE_SUMS = np.empty(0)
#: Rows whose parameters are prefetched ahead, since they are scattered.
_ROWS_AHEAD = 16


# `_step_entry` is a placeholder for a step of `host_update`.
def _step_entry(state: Any, k: Any, grad: Any, rate: Any, l1: Any, coefficients: Any) -> Any: ...


def update_at(
    state: Any,
    index: Any,
    grad: Any,
    rows: Any,
    rate: Any,
    l1: Any,
    l2: Any,
    n_penalised: Any,
    row_rate_sums: Any,
    rate_sum: Any,
    step_rate: Any,
    longest: Any,
    coefficients: Any,
) -> None:
    """Take one step.

    Parameters
    ----------
    state : tuple of (n_parameters,) floats
        w and the optimizer's state.
    index : (n_rows,) integers
        Rows of the parameters.
    grad : (n_rows, width) floats
        Gradient of the summed loss; not changed.
    rows, rate, l1, l2 : floats of the same type
    n_penalised : int
        Number of leading rows that are penalised.
    row_rate_sums : (n_parameter_rows,) floats
        Rate sum up to which each row's penalty has been applied; empty if no penalty is pending.
    rate_sum, step_rate : float
        Sum of the learning rates including this step's, and this step's rate.
    longest : float
        Maximum number of steps for which the l2 penalty is applied: a row that was not used for
        long must not be moved past zero.
    coefficients : floats
        Coefficients of the optimizer.
    """
    w, number, width = state[0], state[0].dtype.type, grad.shape[1]
    n, stride = len(index), width * w.itemsize
    for i in range(n):
        # Used rows are scattered: prefetch the following ones.
        if i + _ROWS_AHEAD < n:
            ahead = np.int64(index[i + _ROWS_AHEAD])
            for s in range(len(state)):
                prefetch(state[s].ctypes.data + ahead * stride)
            if len(row_rate_sums):
                prefetch(row_rate_sums.ctypes.data + ahead * row_rate_sums.strides[0])
        row = np.uint64(index[i])
        # Lazy regularisation: apply now the penalty of all steps since the row was last used.
        elapsed = number(0)
        if len(row_rate_sums):
            if index[i] < n_penalised:
                elapsed = number((rate_sum - row_rate_sums[row]) / step_rate)
            row_rate_sums[row] = rate_sum
        strength = l1 * elapsed
        for c in range(width):
            k = row * np.uint64(width) + np.uint64(c)
            g = grad[i, c] / rows
            if l2 > 0:
                # The pending l2 steps together, at most as many as shrink the parameter to 0.
                g += l2 * min(elapsed, longest) * w[k]
            _step_entry(state, k, g, rate, strength, coefficients)


def _merge_sorted_rows(
    index: Any,
    values: Any,
    other_index: Any,
    other_values: Any,
    merged_index: Any,
    merged_values: Any,
) -> Any:
    """Merge two sorted lists of rows, adding values of equal rows; return the number of rows."""
    i, j, n = 0, 0, 0
    while i < len(index) and j < len(other_index):
        a, b = index[i], other_index[j]
        merged_index[n] = min(a, b)
        for c in range(values.shape[1]):
            if a < b:
                merged_values[n, c] = values[i, c]
            elif b < a:
                merged_values[n, c] = other_values[j, c]
            else:
                merged_values[n, c] = values[i, c] + other_values[j, c]
        # Equal rows advance both lists.
        i += a <= b
        j += b <= a
        n += 1
    for k in range(i, len(index)):
        merged_index[n] = index[k]
        copy_values(merged_values[n], values[k])
        n += 1
    for k in range(j, len(other_index)):
        merged_index[n] = other_index[k]
        copy_values(merged_values[n], other_values[k])
        n += 1
    return n


def merge_gradients(
    index: NDArray[np.int64],
    values: NDArray[Any],
    other_index: NDArray[np.int64],
    other_values: NDArray[Any],
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the sorted union of two gradients' rows, and the sum of both gradients.

    Parameters
    ----------
    index, other_index : ndarray of int64 of shape (n,), (m,)
        Sorted and unique.
    values, other_values : ndarray of shape (n, width), (m, width)
    """
    n_both = len(index) + len(other_index)
    both = np.empty(n_both, np.int64)
    total = np.empty((n_both, values.shape[1]), values.dtype)
    n = compiled_with(_merge_sorted_rows, exact=True)(
        index, values, other_index, other_values, both, total
    )
    return both[:n], total[:n]


class CoordinateUpdates:
    """Steps of an optimizer with an `elementwise_update`, each in some rows of the same arrays.

    Parameters
    ----------
    optimizer : Optimizer
    step : Step
        Any of the steps: its arrays (contiguous, of one dtype) and its penalty.
    row_rate_sums : ndarray of float64 of shape (n_rows,) or None
        Rate sum up to which each row's penalty has been applied, as a sum of learning rates.
    """

    def __init__(
        self, optimizer: Any, step: Step, row_rate_sums: NDArray[np.float64] | None
    ) -> None:
        self._optimizer = optimizer
        self._scalar_type: Any = step.w.dtype.type
        self._state = tuple(array.reshape(-1) for array in step.state(optimizer))
        self._l1, self._l2 = (step.l1, step.l2) if row_rate_sums is not None else (0.0, 0.0)
        self._n_penalised = step.n_penalised
        self._row_rate_sums = row_rate_sums if self._l1 or self._l2 else None
        self._loops = tuple(
            compiled_with(
                update_at, exact=True, _step_entry=compile_entry_step(optimizer, self._l1 * lr, lr)
            )
            for lr in (0.0, 1.0)
        )

    def __call__(
        self,
        index: NDArray[np.int64],
        grad: NDArray[Any],
        rows: float,
        lr: float,
        step_number: int,
        rate_sum: float,
    ) -> None:
        """Take a step.

        Parameters
        ----------
        index : ndarray of int64 of shape (n,)
        grad : ndarray of shape (n, width)
            Gradient of the summed loss; not changed.
        rows : float
            Number of rows of the gradient.
        lr : float
        step_number : int
            Number of the step, from 1.
        rate_sum : float
            Sum of the learning rates, including this step's.
        """
        to, l2 = self._scalar_type, self._l2
        has_penalty = self._row_rate_sums is not None and lr > 0
        longest = 1 / (lr * l2) if has_penalty and l2 else 0.0
        self._loops[lr != 0](
            self._state, index, grad, to(rows), to(lr),
            to(self._l1 if has_penalty else 0), to(l2 if has_penalty else 0), self._n_penalised,
            self._row_rate_sums if has_penalty else _NO_RATE_SUMS, rate_sum, lr, to(longest),
            tuple([to(x) for x in self._optimizer.coefficients(step_number)]),
        )  # fmt: skip


#: Classes of optimizers that numba cannot compile.
_refused: set[type] = set()


# `_move` is a placeholder for an optimizer's `elementwise_update`, `_step_entry` for one of the
# steps below.
def _move(state: Any, k: Any, grad: Any, rate: Any, coefficients: Any) -> Any: ...


def _plain(state: Any, k: Any, grad: Any, rate: Any, l1: Any, coefficients: Any) -> None:
    """Step one parameter without l1."""
    _move(state, k, grad, rate, coefficients)


def _proximal(state: Any, k: Any, grad: Any, rate: Any, l1: Any, coefficients: Any) -> None:
    """Step one parameter, and apply the proximal operator of l1 with the step's rate."""
    most = _move(state, k, grad, rate, coefficients) * l1
    state[0][k] -= max(min(state[0][k], most), -most)


def _update(
    state: Any,
    grad: Any,
    rows: Any,
    rate: Any,
    l1: Any,
    l2: Any,
    n_penalised: Any,
    coefficients: Any,
) -> None:
    """Take one step.

    Parameters
    ----------
    state : tuple of (n_parameters,) floats
        w and the optimizer's state.
    grad : (n_parameters,) floats
        Gradient of the summed loss; not changed.
    rows, rate, l1, l2 : floats of the same type
    n_penalised : int
        Number of leading parameters that are penalised.
    coefficients : floats
        Coefficients of the optimizer.
    """
    w = state[0]
    with_l2 = n_penalised if l2 > 0 else 0
    # Unsigned index: for signed indices numba adds a check for negative values.
    for i in range(with_l2):
        k = np.uint64(i)
        _step_entry(state, k, grad[k] / rows + l2 * w[k], rate, l1, coefficients)
    for i in range(with_l2, n_penalised):
        k = np.uint64(i)
        _step_entry(state, k, grad[k] / rows, rate, l1, coefficients)
    # Apply a strength of zero as well: the bits then do not depend on how parameters are split.
    none = l1 - l1
    for i in range(n_penalised, len(w)):
        k = np.uint64(i)
        _step_entry(state, k, grad[k] / rows, rate, none, coefficients)


def compile_entry_step(optimizer: Any, l1: float, lr: float) -> Callable[..., Any]:
    """Return an optimizer's update of one entry, for a strength of l1 and a learning rate."""
    kind = type(optimizer)
    if l1 > 0 and lr != 0 and kind.elementwise_update_l1 is not None:
        step: Callable[..., Any] = kind.elementwise_update_l1
        return step
    form = _proximal if l1 > 0 else _plain
    entry_step: Callable[..., Any] = compiled_with(form, exact=True, _move=kind.elementwise_update)
    return entry_step


# `_update_state` is a placeholder for `_update`.
def _update_state(
    state: Any,
    grad: Any,
    rows: Any,
    rate: Any,
    l1: Any,
    l2: Any,
    n_penalised: Any,
    coefficients: Any,
) -> None: ...


def _add_noise_and_update(
    state: Any,
    grad: Any,
    rows: Any,
    rate: Any,
    l1: Any,
    l2: Any,
    n_penalised: Any,
    noise_and_coefficients: Any,
) -> None:
    """Take a step on a gradient plus noise, the first of `noise_and_coefficients`."""
    for j in range(len(grad)):
        grad[j] += noise_and_coefficients[j]
    _update_state(state, grad, rows, rate, l1, l2, n_penalised, noise_and_coefficients[len(grad) :])


def compile_update(
    optimizer: Any, l1: float, lr: float, noisy: bool = False
) -> Callable[..., None]:
    """Return `_update` compiled for an optimizer, for a strength of l1 and a learning rate.

    `noisy`: numbers are those that `list_step_numbers` returns for steps with noise.
    """
    loop: Callable[..., None] = compiled_with(
        _update, exact=True, _step_entry=compile_entry_step(optimizer, l1, lr)
    )
    if noisy:
        loop = compiled_with(_add_noise_and_update, exact=True, _update_state=loop)
    return loop


def list_step_numbers(optimizer: Any, steps: Sequence[Step]) -> NDArray[Any]:
    """Return the numbers that compiled updates need for each step, one row per step.

    They are the noise, if any, followed by the optimizer's coefficients.
    """
    numbers: NDArray[Any] = np.array(
        [optimizer.coefficients(step.number) for step in steps], steps[0].w.dtype
    )
    if steps[0].noise is None:
        return numbers
    return np.hstack([np.stack([step.noise[:, 0] for step in steps]), numbers])


def can_compile_update(optimizer: Any, step: Step) -> bool:
    """Return whether numba compiles `elementwise_update`: a user's is tried on the first row."""
    if type(optimizer).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return True
    w = step.w[:1].copy()
    opt_state = {name: array[:1].copy() for name, array in step.opt_state.items()}
    row_step = replace(step, w=w, opt_state=opt_state, n_penalised=min(step.n_penalised, 1))
    return Updates(optimizer, row_step)(w * 0, 1.0, step.lr, step.number)


class Updates:
    """Steps of an optimizer with an `elementwise_update`, as compiled passes over the same arrays.

    Parameters
    ----------
    optimizer : Optimizer
    step : Step
        Any of the steps: its arrays (contiguous, of one dtype) and its penalty.
    """

    def __init__(self, optimizer: Any, step: Step) -> None:
        self._optimizer = optimizer
        self._dtype = step.w.dtype
        # numba treats a Python float as float64, and it is faster to create.
        self._scalar_type: Any = float if self._dtype == np.float64 else self._dtype.type
        self._state = tuple([array.reshape(-1) for array in step.state(optimizer)])
        self._loops = tuple(compile_update(optimizer, step.l1, lr) for lr in (0.0, 1.0))
        self._penalty = self._scalar_type(step.l1), self._scalar_type(step.l2)
        self._n_penalised = step.n_penalised * step.w.shape[1]

    def __call__(self, grad: Any, rows: float, lr: float, step_number: int) -> bool:
        """Take a step."""
        as_number = self._scalar_type
        if type(self._optimizer) in _refused:
            return False
        if grad.dtype != self._dtype or not grad.flags.c_contiguous:
            return False
        numbers = tuple([as_number(x) for x in self._optimizer.coefficients(step_number)])
        step_arguments = as_number(rows), as_number(lr), *self._penalty, self._n_penalised
        try:
            self._loops[lr != 0](self._state, grad.reshape(-1), *step_arguments, numbers)
        except numba.errors.NumbaError:
            _refused.add(type(self._optimizer))
            return False
        return True
