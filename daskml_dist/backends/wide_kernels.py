"""Loops over the rows of a batch and the columns of many linear models.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.pointers import array_at, pointer, prefetch
from daskml_dist.backends.vectors import LINE, load, multiply_add, spread, store, zeros

__all__ = ["TOGETHER", "gradient_loop", "slope_loop", "step_loop"]

#: Rows, or features, whose sums are in registers together.
TOGETHER = 8
#: Rows ahead of which memory is asked for.
_AHEAD = 8


# `_loss` stands for the function of a loss, `_step` for `host_update.step_of`, others as named.
def _loss(y: Any, raw: Any, parameters: Any) -> Any: ...
def _step(state: Any, k: Any, grad: Any, rate: Any, l1: Any, numbers: Any) -> Any: ...
def _take(blocks: Any, parts: Any, p: Any, rows: Any, y: Any, mask: Any, d: Any) -> Any: ...
def _products(n: Any, rows: Any, w: Any, raw: Any) -> None: ...
def _slopes(
    n: Any, y: Any, mask: Any, stops: Any, raw: Any, losses: Any, parameters: Any
) -> None: ...
def _shares(n: Any, rows: Any, raw: Any, grad: Any) -> None: ...
def _gradient(
    blocks: Any, parts: Any, p: Any, w: Any, grad: Any, losses: Any, room: Any, stops: Any,
    parameters: Any, d: Any,
) -> Any: ...  # fmt: skip
def _update(
    state: Any, grad: Any, n: Any, rates: Any, l1: Any, l2: Any, d: Any, n_rows: Any, numbers: Any
) -> None: ...


def _take_rows(blocks: Any, parts: Any, p: Any, rows: Any, y: Any, mask: Any, d: Any) -> Any:
    """Copy the rows of a batch, with their targets and weights; their number, and the next part.

    Parameters
    ----------
    blocks : int64 (n_blocks, 3)
        Addresses of X, of y with a weight a split behind each, and of weights; of none 0.
    parts, p
        As in `host_gather`.
    rows : (n_most, n_padded) floats
        Behind the features comes a 1 for the intercept.
    y : (n_most,) floats
    mask : (n_most, n_splits) floats
    d : int
        Features.
    """
    dtype, item = rows.dtype, rows.itemsize
    n_splits = mask.shape[1]
    size, of_y = d * item, (1 + n_splits) * item
    n, batch = np.int64(0), parts[p, 0]
    while p < len(parts) and parts[p, 0] == batch:
        X_at, y_at, weight_at = blocks[parts[p, 1]]
        n_runs, counted = parts[p, 4], parts[p, 3] != 0
        starts = array_at(pointer(parts[p, 2]), n_runs, np.int64)
        counts = array_at(pointer(parts[p, 3]), n_runs, np.int64)
        for r in range(n_runs):
            ahead = starts[min(r + _AHEAD, n_runs - 1)]
            for at in range(X_at + ahead * size, X_at + ahead * size + size, 64):
                prefetch(at)
            prefetch(y_at + ahead * of_y)
            for i in range(starts[r], starts[r] + (counts[r] if counted else 1)):
                x = array_at(pointer(X_at + i * size), d, dtype)
                for j in range(d):
                    rows[n, j] = x[j]
                target = array_at(pointer(y_at + i * of_y), 1 + n_splits, dtype)
                y[n] = target[0]
                weight = dtype.type(1)
                if weight_at != 0:
                    weight = array_at(pointer(weight_at + i * item), 1, dtype)[0]
                for s in range(n_splits):
                    mask[n, s] = target[1 + s] * weight
                n += 1
        p += 1
    return n, p


def _products_of(n: Any, rows: Any, w: Any, raw: Any) -> None:
    """Products of n rows, and some behind them, with all columns."""
    dtype, item = w.dtype, w.itemsize
    n_columns, width = w.shape[1], rows.shape[1]
    w_at, raw_at, line = w.ctypes.data, raw.ctypes.data, n_columns * item
    for i in range(0, n, 8):
        some = rows[i : i + 8]
        for c in range(0, line, LINE):
            a0, a1, a2, a3 = zeros(dtype), zeros(dtype), zeros(dtype), zeros(dtype)
            a4, a5, a6, a7 = zeros(dtype), zeros(dtype), zeros(dtype), zeros(dtype)
            for k in range(width):
                v = load(w_at + k * line + c, dtype)
                a0 = multiply_add(spread(some[0, k]), v, a0)
                a1 = multiply_add(spread(some[1, k]), v, a1)
                a2 = multiply_add(spread(some[2, k]), v, a2)
                a3 = multiply_add(spread(some[3, k]), v, a3)
                a4 = multiply_add(spread(some[4, k]), v, a4)
                a5 = multiply_add(spread(some[5, k]), v, a5)
                a6 = multiply_add(spread(some[6, k]), v, a6)
                a7 = multiply_add(spread(some[7, k]), v, a7)
            at = raw_at + i * line + c
            store(at, a0)
            store(at + line, a1)
            store(at + 2 * line, a2)
            store(at + 3 * line, a3)
            store(at + 4 * line, a4)
            store(at + 5 * line, a5)
            store(at + 6 * line, a6)
            store(at + 7 * line, a7)


def _slopes_of(
    n: Any, y: Any, mask: Any, stops: Any, raw: Any, losses: Any, parameters: Any
) -> None:
    """Weighted losses of n rows, added up a column; derivatives take the products' place."""
    for i in range(n):
        first, target = 0, y[i]
        for s in range(len(stops)):
            some, sums, weight = raw[i, first : stops[s]], losses[first : stops[s]], mask[i, s]
            if weight != 0:
                for j in range(len(some)):
                    value, slope = _loss(target, some[j], parameters)
                    some[j] = slope * weight
                    sums[j] += value * weight
            else:
                for j in range(len(some)):
                    some[j] = 0
            first = stops[s]


def _shares_of(n: Any, rows: Any, raw: Any, grad: Any) -> None:
    """Gradients of n rows: each feature with the derivatives of all columns."""
    dtype, item = raw.dtype, raw.itemsize
    n_columns, width = raw.shape[1], rows.shape[1]
    raw_at, grad_at, line = raw.ctypes.data, grad.ctypes.data, n_columns * item
    for k in range(0, width, 8):
        for c in range(0, line, LINE):
            a0, a1, a2, a3 = zeros(dtype), zeros(dtype), zeros(dtype), zeros(dtype)
            a4, a5, a6, a7 = zeros(dtype), zeros(dtype), zeros(dtype), zeros(dtype)
            for i in range(n):
                v = load(raw_at + i * line + c, dtype)
                x = rows[i]
                a0 = multiply_add(spread(x[k]), v, a0)
                a1 = multiply_add(spread(x[k + 1]), v, a1)
                a2 = multiply_add(spread(x[k + 2]), v, a2)
                a3 = multiply_add(spread(x[k + 3]), v, a3)
                a4 = multiply_add(spread(x[k + 4]), v, a4)
                a5 = multiply_add(spread(x[k + 5]), v, a5)
                a6 = multiply_add(spread(x[k + 6]), v, a6)
                a7 = multiply_add(spread(x[k + 7]), v, a7)
            at = grad_at + k * line + c
            store(at, a0)
            store(at + line, a1)
            store(at + 2 * line, a2)
            store(at + 3 * line, a3)
            store(at + 4 * line, a4)
            store(at + 5 * line, a5)
            store(at + 6 * line, a6)
            store(at + 7 * line, a7)


def _gradient_of(
    blocks: Any, parts: Any, p: Any, w: Any, grad: Any, losses: Any, room: Any, stops: Any,
    parameters: Any, d: Any,
) -> Any:  # fmt: skip
    """Set the gradients of a batch's summed losses, and these; where the next batch begins."""
    rows, y, mask, raw = room
    n, p = _take(blocks, parts, p, rows, y, mask, d)
    _products(n, rows, w, raw)
    for j in range(len(losses)):
        losses[j] = 0
    _slopes(n, y, mask, stops, raw, losses, parameters)
    _shares(n, rows, raw, grad)
    return p


def _update_columns(
    state: Any, grad: Any, n: Any, rates: Any, l1: Any, l2: Any, d: Any, n_rows: Any, numbers: Any
) -> None:
    """A step in every column, at its own rate and penalty.

    Parameters
    ----------
    state : tuple of flat floats
        Of shape (n_rows, n_columns): w and the optimizer's state.
    grad : flat floats
        Of the summed losses.
    n : float
        Rows of the batch.
    rates, l1, l2 : (n_columns,) floats
    d, n_rows : int
        Leading rows that are penalised; all rows that there are.
    numbers : floats
        Of the optimizer.
    """
    w, n_columns = state[0], len(rates)
    for i in range(d):
        for j in range(n_columns):
            k = np.uint64(i * n_columns + j)
            _step(state, k, grad[k] / n + l2[j] * w[k], rates[j], l1[j], numbers)
    for i in range(d, n_rows):
        for j in range(n_columns):
            k = np.uint64(i * n_columns + j)
            _step(state, k, grad[k] / n, rates[j], l1[j] - l1[j], numbers)


def _steps(
    blocks: Any, parts: Any, counts: Any, rates: Any, numbers: Any, l1: Any, l2: Any, state: Any,
    w: Any, grad: Any, losses: Any, totals: Any, room: Any, stops: Any, parameters: Any, d: Any,
    n_rows: Any,
) -> None:  # fmt: skip
    """Step along each batch.

    Parameters
    ----------
    counts : float64 (n_batches,)
        Rows of each batch; one without rows has no parts.
    rates : (n_batches, n_columns) floats
    numbers : (n_batches, n) floats
    w, grad : (n_padded, n_columns) floats
        The parameters, which `state` has too; scratch.
    losses, totals : floats (n_columns,), float64 (n_batches, n_columns)
        Scratch; the losses of each batch before its step.
    """
    p, flat = np.int64(0), grad.reshape(-1)
    for b in range(len(counts)):
        if counts[b] == 0:
            for j in range(len(losses)):
                totals[b, j] = 0
            continue
        p = _gradient(blocks, parts, p, w, grad, losses, room, stops, parameters, d)
        for j in range(len(losses)):
            totals[b, j] = losses[j]
        n = w.dtype.type(counts[b])
        _update(state, flat, n, rates[b], l1, l2, d, n_rows, numbers[b])


def gradient_loop(at_row: Any) -> Any:
    """`_gradient_of` for the `at_row` of a loss."""
    return compiled_with(
        _gradient_of,
        _take=compiled_with(_take_rows),
        _products=compiled_with(_products_of),
        _slopes=compiled_with(_slopes_of, _loss=at_row),
        _shares=compiled_with(_shares_of),
    )


def slope_loop(at_row: Any) -> Any:
    """`_slopes_of` for the `at_row` of a loss."""
    return compiled_with(_slopes_of, _loss=at_row)


def step_loop(gradient: Any, step: Any) -> Any:
    """`_steps` along a `gradient_loop`, of `host_update.step_of`."""
    update = compiled_with(_update_columns, exact=True, _step=step)
    return compiled_with(_steps, _gradient=gradient, _update=update)
