"""Steps of many linear models on the same rows: their parameters are columns of one matrix.

The rows of a batch are gathered once for a few dozen columns, whose products, losses, gradients and
updates are computed while data is cached. Columns are independent, so each thread takes some of
them through many steps.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import ReplicaSteps, Step
from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.elementary_functions import ROW_LOSSES
from daskml_dist.backends.host_gather import HostGather
from daskml_dist.backends.host_update import compile_entry_step
from daskml_dist.backends.intrinsics import (
    VECTOR_BYTES,
    array_at,
    broadcast_number,
    load_vector,
    multiply_add,
    pointer,
    prefetch,
    store_vector,
    zero_vector,
)
from daskml_dist.backends.row_slices import Draw, run_over_threads

#: Rows, or features, whose sums (a vector of columns each) are in registers together.
TOGETHER = 8
#: Rows whose memory is prefetched ahead; rows of a batch are scattered in a block.
_ROWS_AHEAD = 8


# `_evaluate_row` is a placeholder for a loss's function, `_step_entry` for
# `host_update.compile_entry_step`, the others as named.
def _evaluate_row(y: Any, raw: Any, parameters: Any) -> Any: ...
def _step_entry(state: Any, k: Any, grad: Any, rate: Any, l1: Any, coefficients: Any) -> Any: ...
def _take(blocks: Any, segments: Any, p: Any, rows: Any, y: Any, mask: Any, d: Any) -> Any: ...
def _products(n: Any, rows: Any, w: Any, raw: Any) -> None: ...
def _slopes(
    n: Any, y: Any, mask: Any, stops: Any, raw: Any, losses: Any, parameters: Any
) -> None: ...
def _shares(n: Any, rows: Any, raw: Any, grad: Any) -> None: ...
def _gradient(
    blocks: Any, segments: Any, p: Any, w: Any, grad: Any, losses: Any, scratch: Any, stops: Any,
    parameters: Any, d: Any,
) -> Any: ...  # fmt: skip
def _update(
    state: Any,
    grad: Any,
    n: Any,
    rates: Any,
    l1: Any,
    l2: Any,
    d: Any,
    n_rows: Any,
    coefficients: Any,
) -> None: ...


def _copy_batch_rows(
    blocks: Any, segments: Any, p: Any, rows: Any, y: Any, mask: Any, d: Any
) -> Any:
    """Copy the rows of a batch, with targets and weights; return their number, and the next part.

    Parameters
    ----------
    blocks : int64 (n_blocks, 3)
        Addresses of X, of y (each followed by a weight per split), and of weights (0: none).
    segments, p
        As in `host_gather`.
    rows : (n_most, n_padded) floats
        A 1 for the intercept follows the features.
    y : (n_most,) floats
    mask : (n_most, n_splits) floats
    d : int
        Number of features.
    """
    dtype, item = rows.dtype, rows.itemsize
    n_splits = mask.shape[1]
    size, of_y = d * item, (1 + n_splits) * item
    n, batch = np.int64(0), segments[p, 0]
    while p < len(segments) and segments[p, 0] == batch:
        X_at, y_at, weight_at = blocks[segments[p, 1]]
        n_runs, counted = segments[p, 4], segments[p, 3] != 0
        starts = array_at(pointer(segments[p, 2]), n_runs, np.int64)
        counts = array_at(pointer(segments[p, 3]), n_runs, np.int64)
        for r in range(n_runs):
            # A later run is prefetched while this one is copied.
            ahead = starts[min(r + _ROWS_AHEAD, n_runs - 1)]
            for address in range(X_at + ahead * size, X_at + ahead * size + size, 64):
                prefetch(address)
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
                    # A row's weight in each split of cross-validation; 0: the row is held out.
                    mask[n, s] = target[1 + s] * weight
                n += 1
        p += 1
    return n, p


def _write_products(n: Any, rows: Any, w: Any, raw: Any) -> None:
    """Write the products of n rows, rounded up to a multiple of eight, with all columns."""
    dtype, item = w.dtype, w.itemsize
    n_columns, width = w.shape[1], rows.shape[1]
    w_at, raw_at, line = w.ctypes.data, raw.ctypes.data, n_columns * item
    # Eight rows by a vector of columns: 8 accumulators stay in registers, and each load of w is
    # used for 8 rows.
    for i in range(0, n, 8):
        eight_rows = rows[i : i + 8]
        for c in range(0, line, VECTOR_BYTES):
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = zero_vector(dtype)
            for k in range(width):
                v = load_vector(w_at + k * line + c, dtype)
                a0 = multiply_add(broadcast_number(eight_rows[0, k]), v, a0)
                a1 = multiply_add(broadcast_number(eight_rows[1, k]), v, a1)
                a2 = multiply_add(broadcast_number(eight_rows[2, k]), v, a2)
                a3 = multiply_add(broadcast_number(eight_rows[3, k]), v, a3)
                a4 = multiply_add(broadcast_number(eight_rows[4, k]), v, a4)
                a5 = multiply_add(broadcast_number(eight_rows[5, k]), v, a5)
                a6 = multiply_add(broadcast_number(eight_rows[6, k]), v, a6)
                a7 = multiply_add(broadcast_number(eight_rows[7, k]), v, a7)
            address = raw_at + i * line + c
            store_vector(address, a0)
            store_vector(address + line, a1)
            store_vector(address + 2 * line, a2)
            store_vector(address + 3 * line, a3)
            store_vector(address + 4 * line, a4)
            store_vector(address + 5 * line, a5)
            store_vector(address + 6 * line, a6)
            store_vector(address + 7 * line, a7)


def _write_slopes(
    n: Any, y: Any, mask: Any, stops: Any, raw: Any, losses: Any, parameters: Any
) -> None:
    """Add up the weighted losses of n rows by column; derivatives replace the products in `raw`."""
    for i in range(n):
        first, target = 0, y[i]
        for s in range(len(stops)):
            raw_row, sums, weight = raw[i, first : stops[s]], losses[first : stops[s]], mask[i, s]
            # Held-out rows add nothing, and their derivative must be 0 in the gradient's product.
            if weight != 0:
                for j in range(len(raw_row)):
                    value, slope = _evaluate_row(target, raw_row[j], parameters)
                    raw_row[j] = slope * weight
                    sums[j] += value * weight
            else:
                for j in range(len(raw_row)):
                    raw_row[j] = 0
            first = stops[s]


def _write_gradient(n: Any, rows: Any, raw: Any, grad: Any) -> None:
    """Write the gradient: each feature's products with the derivatives of all columns."""
    dtype, item = raw.dtype, raw.itemsize
    n_columns, width = raw.shape[1], rows.shape[1]
    raw_at, grad_at, line = raw.ctypes.data, grad.ctypes.data, n_columns * item
    # Eight features by a vector of columns, over all rows of the batch.
    for k in range(0, width, 8):
        for c in range(0, line, VECTOR_BYTES):
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = zero_vector(dtype)
            for i in range(n):
                v = load_vector(raw_at + i * line + c, dtype)
                x = rows[i]
                a0 = multiply_add(broadcast_number(x[k]), v, a0)
                a1 = multiply_add(broadcast_number(x[k + 1]), v, a1)
                a2 = multiply_add(broadcast_number(x[k + 2]), v, a2)
                a3 = multiply_add(broadcast_number(x[k + 3]), v, a3)
                a4 = multiply_add(broadcast_number(x[k + 4]), v, a4)
                a5 = multiply_add(broadcast_number(x[k + 5]), v, a5)
                a6 = multiply_add(broadcast_number(x[k + 6]), v, a6)
                a7 = multiply_add(broadcast_number(x[k + 7]), v, a7)
            address = grad_at + k * line + c
            store_vector(address, a0)
            store_vector(address + line, a1)
            store_vector(address + 2 * line, a2)
            store_vector(address + 3 * line, a3)
            store_vector(address + 4 * line, a4)
            store_vector(address + 5 * line, a5)
            store_vector(address + 6 * line, a6)
            store_vector(address + 7 * line, a7)


def _set_gradients(
    blocks: Any, segments: Any, p: Any, w: Any, grad: Any, losses: Any, scratch: Any, stops: Any,
    parameters: Any, d: Any,
) -> Any:  # fmt: skip
    """Set the gradients and losses of a batch; return the position of the next batch."""
    rows, y, mask, raw = scratch
    n, p = _take(blocks, segments, p, rows, y, mask, d)
    _products(n, rows, w, raw)
    for j in range(len(losses)):
        losses[j] = 0
    _slopes(n, y, mask, stops, raw, losses, parameters)
    _shares(n, rows, raw, grad)
    return p


def _update_columns(
    state: Any,
    grad: Any,
    n: Any,
    rates: Any,
    l1: Any,
    l2: Any,
    d: Any,
    n_rows: Any,
    coefficients: Any,
) -> None:
    """Take an optimizer's step in every column, at its own rate and penalty.

    Parameters
    ----------
    state : tuple of flat floats
        Of shape (n_rows, n_columns): w and the optimizer's state.
    grad : flat floats
        Gradient of the summed losses.
    n : float
        Number of rows of the batch.
    rates, l1, l2 : (n_columns,) floats
    d, n_rows : int
        Number of leading rows that are penalised; number of all rows.
    coefficients : floats
        Coefficients of the optimizer.
    """
    w, n_columns = state[0], len(rates)
    for i in range(d):
        for j in range(n_columns):
            # Unsigned: for signed indices numba adds a test for negative values.
            k = np.uint64(i * n_columns + j)
            _step_entry(state, k, grad[k] / n + l2[j] * w[k], rates[j], l1[j], coefficients)
    for i in range(d, n_rows):
        for j in range(n_columns):
            k = np.uint64(i * n_columns + j)
            # l1 - l1 is a zero of the right type.
            _step_entry(state, k, grad[k] / n, rates[j], l1[j] - l1[j], coefficients)


def _take_steps(
    blocks: Any, segments: Any, counts: Any, rates: Any, coefficients: Any, l1: Any, l2: Any,
    state: Any, w: Any, grad: Any, losses: Any, totals: Any, scratch: Any, stops: Any,
    parameters: Any, d: Any, n_rows: Any,
) -> None:  # fmt: skip
    """Take a step along each batch.

    Parameters
    ----------
    blocks, segments, d
        As in `_copy_batch_rows`.
    stops, parameters
        As in `_write_slopes`.
    scratch : tuple of arrays
        Scratch for a batch: its rows, targets and weights, and their raw predictions.
    counts : float64 (n_batches,)
        Number of rows of each batch; a batch without rows has no parts.
    rates : (n_batches, n_columns) floats
    coefficients : (n_batches, n) floats
    l1, l2, state, n_rows
        As in `_update_columns`.
    w, grad : (n_padded, n_columns) floats
        The parameters, which `state` contains too; scratch.
    losses, totals : floats (n_columns,), float64 (n_batches, n_columns)
        Scratch; the losses of each batch before its step.
    """
    p, flat = np.int64(0), grad.reshape(-1)
    for b in range(len(counts)):
        if counts[b] == 0:
            for j in range(len(losses)):
                totals[b, j] = 0
            continue
        p = _gradient(blocks, segments, p, w, grad, losses, scratch, stops, parameters, d)
        for j in range(len(losses)):
            totals[b, j] = losses[j]
        n = w.dtype.type(counts[b])
        _update(state, flat, n, rates[b], l1, l2, d, n_rows, coefficients[b])


def compile_gradient(evaluate_row: Any) -> Any:
    """Return `_set_gradients` compiled with the `evaluate_row` of a loss."""
    return compiled_with(
        _set_gradients,
        _take=compiled_with(_copy_batch_rows),
        _products=compiled_with(_write_products),
        _slopes=compiled_with(_write_slopes, _evaluate_row=evaluate_row),
        _shares=compiled_with(_write_gradient),
    )


def compile_slopes(evaluate_row: Any) -> Any:
    """Return `_write_slopes` compiled with the `evaluate_row` of a loss."""
    return compiled_with(_write_slopes, _evaluate_row=evaluate_row)


def compile_steps(gradient: Any, step: Any) -> Any:
    """Return `_take_steps` compiled with a `compile_gradient` and an optimizer's step."""
    update = compiled_with(_update_columns, exact=True, _step_entry=step)
    return compiled_with(_take_steps, _gradient=gradient, _update=update)


#: Maximum steps made together, and products in them: about 50 ms on one core, during which the
#: trainer handles no messages.
_MAX_STEPS_AT_ONCE, _MAX_PRODUCTS_AT_ONCE = 256, 1 << 30
#: Products of a call that are worth another thread: about a millisecond, much longer than its
#: start.
_MIN_PRODUCTS_PER_THREAD = 1 << 24

#: Maximum rows of a batch: its gradient is summed in the rows' dtype.
_MAX_BATCH_ROWS = 1 << 13


def make_wide_gather(
    loss: Any,
    shape: tuple[int, int],
    blocks: Mapping[int, tuple[Any, Any, Any | None]],
    n_rows: int,
) -> WideGather | None:
    """Return a gather if numba compiles the loss and blocks are dense, else None."""
    are_dense = all(
        isinstance(X, np.ndarray)
        and X.dtype == y.dtype
        and all(a is None or a.flags.c_contiguous for a in (X, y, weight))
        for X, y, weight in blocks.values()
    )
    if (
        not are_dense
        or type(loss.model_loss).evaluate_row is None
        or loss.width > 1
        or n_rows > _MAX_BATCH_ROWS
    ):
        return None
    return WideGather(loss, shape, blocks, n_rows)


class WideGather(HostGather):
    """Gather of rows of dense blocks, for many linear models of one output.

    Parameters
    ----------
    loss : BatchedLoss
        Loss of all columns, with an `evaluate_row`.
    shape : tuple of two int
        Shape of the parameters: a row per feature, one of intercepts if any, and one of losses.
    blocks : mapping of int to (X, y, weight)
        C-contiguous and of one dtype; y has a column of targets, and one of weights per split.
    n_rows : int
        Maximum rows of a batch.
    """

    def __init__(
        self, loss: Any, shape: tuple[int, int],
        blocks: Mapping[int, tuple[Any, Any, Any | None]], n_rows: int,
    ) -> None:  # fmt: skip
        self._hold(blocks)
        X, y, _ = next(iter(blocks.values()))
        self.n_features = int(X.shape[1])
        self.dtype: np.dtype[Any] = np.dtype(X.dtype)
        self.n_splits = int(y.shape[1]) - 1
        self.has_intercept = shape[0] > self.n_features + 1
        self._stops: NDArray[np.int64] = np.array(loss.stops, np.int64)
        self.parameters = tuple(map(float, loss.parameters))
        #: Rows of a batch, rounded up to whole groups.
        self._n_rows = -(-n_rows // TOGETHER) * TOGETHER
        #: Products of a step, by which its time is estimated.
        self.products = n_rows * (self.n_features + 1) * shape[1]
        #: Maximum steps made together.
        most = max(1, _MAX_PRODUCTS_AT_ONCE // max(self.products, 1))
        self.max_steps = int(min(_MAX_STEPS_AT_ONCE, most))
        evaluate_row = ROW_LOSSES.get(loss.model_loss.kernel, type(loss.model_loss).evaluate_row)
        self.gradient = compile_gradient(evaluate_row)

    def add_gradient(self, batch: Draw, w: NDArray[Any], out: NDArray[Any]) -> float:
        """Add the gradients of a batch's summed losses to `out`; return the mean over columns."""
        parts, n_rows = self.locate_segments([batch]), self.n_features + self.has_intercept
        loss_sums = np.zeros(w.shape[1])

        # Columns are independent: a thread takes some lines (vectors) of columns, with copies of
        # their parameters and sums that no other thread writes.
        def process_lines(lines: slice) -> None:
            columns = self.columns(lines, w.shape[1])
            padded_w, grad, losses, scratch = self.scratch(w, columns)
            self.gradient(
                self.where, parts, 0, padded_w, grad, losses, scratch, self.split_ends(columns),
                self.parameters, self.n_features,
            )  # fmt: skip
            n = columns.stop - columns.start
            out[:n_rows, columns] += grad[:n_rows, :n]
            # The last row of the parameters sums losses: a step along minus the loss adds it.
            out[-1, columns] -= losses[:n]
            loss_sums[columns] = losses[:n]

        run_over_threads(
            process_lines, self.n_lines(w.shape[1]), self.min_vectors_per_thread(w.shape[1])
        )
        return float(_mean_losses(loss_sums))

    def recorder(self, optimizer: Any, step: Step) -> WideSteps | None:
        """Return an object that makes many steps in one call, if they can be compiled, or None."""
        # Only optimizers of the package: a user's own step may not compile.
        is_builtin = (
            type(optimizer.column_optimizer).__module__.partition(".")[0]
            == __name__.partition(".")[0]
        )
        same_dtype = all(a.dtype == self.dtype for a in step.state(optimizer))
        return WideSteps(self, optimizer, step) if is_builtin and same_dtype else None

    # -- columns of a thread -------------------------------------------------------------------

    def n_lines(self, n_columns: int) -> int:
        """Return the number of vectors that hold a number of columns."""
        return -(-n_columns * int(self.dtype.itemsize) // VECTOR_BYTES)

    def min_vectors_per_thread(self, n_columns: int, n_steps: int = 1) -> int:
        """Return the number of vectors of columns that are worth a thread."""
        products = max(self.products * n_steps, 1)
        return max(1, _MIN_PRODUCTS_PER_THREAD * self.n_lines(n_columns) // products)

    def columns(self, lines: slice, n_columns: int) -> slice:
        """Return the columns of some vectors."""
        size = VECTOR_BYTES // self.dtype.itemsize
        return slice(lines.start * size, min(lines.stop * size, n_columns))

    def split_ends(self, column_slice: slice) -> NDArray[np.int64]:
        """Return the ends of each split's columns, within some columns."""
        stops: NDArray[np.int64] = np.clip(
            self._stops - column_slice.start, 0, column_slice.stop - column_slice.start
        )
        return stops

    def padded(self, w: NDArray[Any], column_slice: slice) -> NDArray[Any]:
        """Return some columns of the parameters, padded to whole vectors."""
        size, n = VECTOR_BYTES // self.dtype.itemsize, column_slice.stop - column_slice.start
        padded_columns = np.zeros((self._width, -(-n // size) * size), self.dtype)
        used = self.n_features + self.has_intercept
        padded_columns[:used, :n] = w[:used, column_slice]
        return padded_columns

    def scratch(self, w: NDArray[Any], column_slice: slice) -> tuple[Any, Any, Any, Any]:
        """Return some columns of the parameters, and scratch for gradients, losses and a batch."""
        padded_w = self.padded(w, column_slice)
        rows = np.zeros((self._n_rows, self._width), self.dtype)
        if self.has_intercept:
            rows[:, self.n_features] = 1
        n = self._n_rows
        scratch = (
            rows, np.zeros(n, self.dtype), np.zeros((n, self.n_splits), self.dtype),
            np.zeros((n, padded_w.shape[1]), self.dtype),
        )  # fmt: skip
        return padded_w, np.zeros_like(padded_w), np.zeros(padded_w.shape[1], self.dtype), scratch

    @property
    def _width(self) -> int:
        """Return the width of a row: features, an intercept, and zeros up to a multiple of 8."""
        return -(-(self.n_features + self.has_intercept) // TOGETHER) * TOGETHER


class WideSteps(ReplicaSteps):
    """Steps of many columns on the batches of one gather, many in one call.

    Parameters
    ----------
    gather : WideGather
    optimizer : BatchedOptimizer
    step : Step
        One of the steps, without a gradient.
    """

    def __init__(self, gather: WideGather, optimizer: Any, step: Step) -> None:
        super().__init__(optimizer, step)
        self._gather = gather
        #: Maximum steps made together.
        self.max_steps = gather.max_steps
        l1 = float(optimizer.l1.max()) if step.l1 else 0.0
        self._loop = compile_steps(
            gather.gradient, compile_entry_step(optimizer.column_optimizer, l1, 1.0)
        )

    def __call__(self, batches: Sequence[Draw], steps: Sequence[Step]) -> NDArray[np.float64]:
        """Make steps along batches; return the mean loss over columns of each."""
        gather, optimizer = self._gather, self._optimizer
        w, used = self._state[0], gather.n_features + gather.has_intercept
        n_columns, dtype = w.shape[1], gather.dtype
        counts = np.array([step.rows for step in steps], np.float64)
        rates = optimizer.rates_of([step.lr for step in steps]).astype(dtype)
        numbers = np.array(
            [optimizer.column_optimizer.coefficients(step.number) for step in steps], dtype
        )
        numbers = numbers.reshape(len(steps), -1)
        parts, loss_sums = gather.locate_segments(batches), np.zeros((len(steps), n_columns))

        def process_lines(lines: slice) -> None:
            columns = gather.columns(lines, n_columns)
            n = columns.stop - columns.start
            padded_w, grad, losses, scratch = gather.scratch(w, columns)
            opt_state = [gather.padded(array, columns) for array in self._state[1:]]
            penalties = [_pad_with_zeros(a[columns].astype(dtype), padded_w.shape[1]) for a in
                         (optimizer.l1, optimizer.l2)]  # fmt: skip
            # Padding columns step at rate 1 on a gradient of zeros.
            own_rates = np.ones((len(steps), padded_w.shape[1]), dtype)
            own_rates[:, :n] = rates[:, columns]
            totals = np.zeros((len(steps), padded_w.shape[1]))
            state = tuple(array.reshape(-1) for array in (padded_w, *opt_state))
            self._loop(
                gather.where, parts, counts, own_rates, numbers, *penalties, state, padded_w, grad,
                losses, totals, scratch, gather.split_ends(columns), gather.parameters,
                gather.n_features, used,
            )  # fmt: skip
            for full_array, part in zip(self._state, (padded_w, *opt_state), strict=True):
                full_array[:used, columns] = part[:used, :n]
            loss_sums[:, columns] = totals[:, :n]
            # The last row of the parameters collects each model's losses.
            w[-1, columns] += totals[:, :n].sum(axis=0).astype(dtype)

        run_over_threads(
            process_lines,
            gather.n_lines(n_columns),
            gather.min_vectors_per_thread(n_columns, len(steps)),
        )
        losses: NDArray[np.float64] = _mean_losses(loss_sums)
        return losses


def _mean_losses(losses: NDArray[Any]) -> Any:
    """Return means over columns; infinite or NaN columns do not affect the others."""
    finite = np.isfinite(losses)
    sums = np.where(finite, losses, 0.0).sum(axis=-1)
    return sums / np.maximum(finite.sum(axis=-1), 1)


def _pad_with_zeros(values: NDArray[Any], n: int) -> NDArray[Any]:
    """Return numbers followed by zeros."""
    out = np.zeros(n, values.dtype)
    out[: len(values)] = values
    return out
