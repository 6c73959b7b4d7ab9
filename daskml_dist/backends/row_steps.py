"""Steps of single rows over CSR blocks, without locks: product, slope and update in one loop.

The cost of a row is proportional to its stored entries: their parameters are gathered into scratch
arrays that stay in the cache, the loss and the optimizer update them there (`Loss.evaluate_row`,
`Optimizer.elementwise_update`), and they are scattered back with plain writes, and threads may race
on the parameters (HOGWILD!, Recht et al. 2011). Penalties are applied when a parameter is touched,
for all steps since then (lazy regularisation, Carpenter 2008). All values of one parameter are
contiguous in a *cell*: ``(w, *opt_state, row_rate_sums)``. Each thread estimates the steps that all
have taken, so that a penalty is not held back until a batch ends: as one long pull, it would
dominate an adaptive optimizer's squared gradients. Rows are visited in any order, and those
ahead are prefetched; runs of neighbouring rows are faster to read.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.elementary_functions import ROW_LOSSES
from daskml_dist.backends.intrinsics import array_at, pointer, prefetch

#: A CSR block, its targets and weights (or None).
Rows = tuple[Any, NDArray[Any], NDArray[Any] | None]

#: Rows whose entries, and whose cells, are prefetched ahead.
_ENTRIES_AHEAD, _CELLS_AHEAD = 8, 2


# `_evaluate_row` and `_move_entry` are placeholders for functions of a loss and an optimizer.
def _evaluate_row(y: Any, raw: Any, parameters: Any) -> Any: ...
def _move_entry(state: Any, k: Any, grad: Any, rate: Any, parameters: Any) -> Any: ...


def _step_along_rows(
    blocks: Any,
    index_like: Any,
    block: Any,
    row: Any,
    stops: Any,
    cells: Any,
    state: Any,
    row_rate_sums: Any,
    rate: Any,
    rate_sum: Any,
    pace: Any,
    l1: Any,
    l2: Any,
    loss_parameters: Any,
    coefficients: Any,
    intercept: Any,
) -> Any:
    """Take a step along each row; return the sum of the rows' losses before their steps.

    Parameters
    ----------
    blocks : int64 (n_blocks, 6)
        Addresses of indptr, indices and data; whether a row never holds a column twice; addresses
        of targets and weights (0: no weights).
    index_like : integers (0,)
        Has the dtype of indptr and indices.
    block, row : integers (n_rows,)
        Rows in the order in which they are visited.
    stops : int64 (n_batches,)
        Number of rows up to the end of each batch.
    cells : (n_parameters, n) floats
        The last cell is the intercept's, if there is one.
    state, row_rate_sums : tuple of floats, floats
        Scratch for w and the optimizer's state, and for the rate sums up to which penalties have
        been applied, each as long as the longest row plus the intercept.
    rate, rate_sum : float
        Learning rate, and sum of the learning rates before these steps.
    pace : float
        Increase of the rate sum by each of these steps: the rate times the number of threads, since
        the others take as many steps meanwhile.
    l1, l2 : float
        Penalties.
    loss_parameters, coefficients : tuple of float
        Parameters of the loss, and of the optimizer.
    intercept : bool
        Whether there is one.
    """
    n_rows, n_state, bias = len(row), len(state), len(cells) - 1
    number, item = cells.dtype.type, cells.itemsize
    index_item = index_like.itemsize
    base, stride = cells.ctypes.data, cells.strides[0]
    # Penalties are pending in the cells until a row uses them.
    penalised = l1 > 0 or l2 > 0
    # A row that was not used for long must not be moved past zero.
    longest = number(1 / (rate * l2)) if l2 > 0 else number(np.inf)
    step, per_step = number(rate), number(1 / rate)
    loss, batch, before = 0.0, 0, rate_sum
    for i in range(n_rows):
        while i == stops[batch]:
            # Rounded in the same way as by code that counts batches, however many are made
            # together.
            before += (stops[batch] - (stops[batch - 1] if batch > 0 else 0)) * pace
            batch, rate_sum = batch + 1, before
        if i + _ENTRIES_AHEAD < n_rows:
            upcoming = i + _ENTRIES_AHEAD
            ahead = blocks[block[upcoming]]
            ends = array_at(pointer(ahead[0] + row[upcoming] * index_item), 2, index_like.dtype)
            for address in range(
                ahead[1] + ends[0] * index_item, ahead[1] + ends[1] * index_item, 64
            ):
                prefetch(address)
            for address in range(ahead[2] + ends[0] * item, ahead[2] + ends[1] * item, 64):
                prefetch(address)
        if i + 3 * _ENTRIES_AHEAD < n_rows:
            far = i + 3 * _ENTRIES_AHEAD
            prefetch(blocks[block[far], 0] + row[far] * index_item)
        if i + _CELLS_AHEAD < n_rows:
            next_ = i + _CELLS_AHEAD
            ahead = blocks[block[next_]]
            ends = array_at(pointer(ahead[0] + row[next_] * index_item), 2, index_like.dtype)
            n_ahead = ends[1] - ends[0]
            columns = array_at(pointer(ahead[1] + ends[0] * index_item), n_ahead, index_like.dtype)
            for k in range(n_ahead):
                prefetch(base + np.int64(columns[k]) * stride)

        addresses = blocks[block[i]]
        ends = array_at(pointer(addresses[0] + row[i] * index_item), 2, index_like.dtype)
        n = ends[1] - ends[0]
        column = array_at(pointer(addresses[1] + ends[0] * index_item), n, index_like.dtype)
        x = array_at(pointer(addresses[2] + ends[0] * item), n, cells.dtype)

        for k in range(n):
            j: Any = np.uint64(column[k])
            # Gather: the cells of the row's columns are copied to scratch arrays in the L1 cache.
            for s in range(n_state):
                state[s][k] = cells[j, s]
            if penalised:
                row_rate_sums[k] = cells[j, n_state]
        # Four independent sums, which do not wait for each other.
        raw, raw_b, raw_c, raw_d = number(0), number(0), number(0), number(0)
        for k in range(0, n - 3, 4):
            raw += x[k] * state[0][k]
            raw_b += x[k + 1] * state[0][k + 1]
            raw_c += x[k + 2] * state[0][k + 2]
            raw_d += x[k + 3] * state[0][k + 3]
        for k in range(n - n % 4, n):
            raw += x[k] * state[0][k]
        raw = (raw + raw_b) + (raw_c + raw_d)
        if intercept:
            for s in range(n_state):
                state[s][n] = cells[bias, s]
            raw += state[0][n]

        # Loss and derivative.
        y = array_at(pointer(addresses[4] + row[i] * item), 1, cells.dtype)[0]
        value, slope = _evaluate_row(y, raw, loss_parameters)
        if addresses[5] != 0:
            weight = array_at(pointer(addresses[5] + row[i] * item), 1, cells.dtype)[0]
            value, slope = value * weight, slope * weight
        loss += value
        g = number(slope)
        rate_sum += pace
        now = number(rate_sum)

        if addresses[3] == 0:
            # The row may hold a column twice: its entries are updated one after the other.
            for k in range(n):
                j = np.uint64(column[k])
                for s in range(n_state):
                    state[s][k] = cells[j, s]
                elapsed = number(0)
                if penalised:
                    elapsed = max((now - cells[j, n_state]) * per_step, number(0))
                    cells[j, n_state] = max(now, cells[j, n_state])
                # Pending l2, then the optimizer's step, then the l1 pending as a soft threshold.
                pull = number(l2) * min(elapsed, longest) * state[0][k]
                size = _move_entry(state, k, x[k] * g + pull, step, coefficients)
                most = size * number(l1) * elapsed
                state[0][k] -= min(max(state[0][k], -most), most)
                for s in range(n_state):
                    cells[j, s] = state[s][k]
        else:
            if l1 > 0:
                for k in range(n):
                    elapsed = max((now - row_rate_sums[k]) * per_step, number(0))
                    pull = number(l2) * min(elapsed, longest) * state[0][k]
                    size = _move_entry(state, k, x[k] * g + pull, step, coefficients)
                    most = size * number(l1) * elapsed
                    state[0][k] -= min(max(state[0][k], -most), most)
            elif l2 > 0:
                for k in range(n):
                    elapsed = min(max((now - row_rate_sums[k]) * per_step, number(0)), longest)
                    pull = number(l2) * elapsed * state[0][k]
                    _move_entry(state, k, x[k] * g + pull, step, coefficients)
            else:
                for k in range(n):
                    _move_entry(state, k, x[k] * g, step, coefficients)
            for k in range(n):
                j = np.uint64(column[k])
                for s in range(n_state):
                    cells[j, s] = state[s][k]
                # Another thread may be ahead: a smaller sum would let it apply the penalty of the
                # same steps again, each time that threads alternate on a column.
                if penalised:
                    cells[j, n_state] = max(now, row_rate_sums[k])
        if intercept:
            _move_entry(state, n, g, step, coefficients)
            for s in range(n_state):
                cells[bias, s] = state[s][n]
    return loss


@dataclass(frozen=True, slots=True)
class _LocatedBlock:
    """Addresses of a block; `arrays` keeps its memory allocated."""

    arrays: tuple[Any, ...]
    addresses: NDArray[np.int64]
    longest: int


class RowSteps:
    """Steps of single rows by one thread, on cells that other threads may write as well.

    Parameters
    ----------
    loss : Loss
        Loss with an `evaluate_row`.
    optimizer : Optimizer
        Optimizer with an `elementwise_update`, and `single_rows`.
    l1, l2 : float
        Strengths of the penalty on all parameters except the intercept.
    fit_intercept : bool
    n_threads : int, default=1
        Threads that step on the same cells at the same time.
    """

    def __init__(
        self,
        loss: Any,
        optimizer: Any,
        l1: float,
        l2: float,
        fit_intercept: bool,
        n_threads: int = 1,
    ) -> None:
        self._kernel = compiled_with(
            _step_along_rows,
            _evaluate_row=ROW_LOSSES.get(loss.kernel, type(loss).evaluate_row),
            _move_entry=type(optimizer).elementwise_update,
        )
        self._n_state_arrays = len(optimizer.state_names)
        self._penalty = float(l1), float(l2)
        self._loss_parameters = tuple(map(float, loss.parameters))
        self._optimizer_numbers = optimizer.coefficients(1)
        self._intercept = bool(fit_intercept)
        self._n_threads = n_threads
        self._located_blocks: dict[tuple[int, int, np.dtype[Any]], _LocatedBlock] = {}
        self._scratch: list[NDArray[Any]] = []

    def run(
        self,
        blocks: Sequence[Rows],
        block: NDArray[np.intp],
        row: NDArray[np.intp],
        cells: NDArray[Any],
        rate: float,
        rate_sum: float,
        sizes: Sequence[int] | None = None,
    ) -> float:
        """Take a step along each row; return the sum of their losses.

        Parameters
        ----------
        blocks : sequence of (X, y, weight or None)
            CSR blocks.
        block, row : ndarray of int of shape (n_rows,)
            Position of each row's block in `blocks`, and number of the row in it.
        cells : ndarray of shape (n_parameters, n), C-contiguous
            ``(w, *opt_state, row_rate_sums)`` of each parameter.
        rate : float
            Learning rate of each step.
        rate_sum : float
            Sum of the learning rates of all earlier steps.
        sizes : sequence of int, optional
            Rows of each batch; the rate sum is rounded after each. None: all are one batch.
        """
        stops = np.cumsum([len(row)] if sizes is None else sizes)
        addresses, longest, index_dtype = self._blocks(blocks)
        scratch = self._get_scratch(longest + 1, cells.dtype)
        number = cells.dtype.type
        # A penalty that is pending at a rate of zero is applied later.
        l1, l2 = self._penalty if rate > 0 else (0.0, 0.0)
        return float(
            self._kernel(
                addresses, np.empty(0, index_dtype), block, row, stops, cells,
                tuple(scratch[1:]), scratch[0], float(rate), float(rate_sum),
                float(rate * self._n_threads), l1, l2, self._loss_parameters,
                tuple(map(number, self._optimizer_numbers)), self._intercept,
            )
        )  # fmt: skip

    def _get_scratch(self, length: int, dtype: Any) -> list[NDArray[Any]]:
        """Return scratch arrays for the values of a row of a length, kept between calls."""
        if not self._scratch or len(self._scratch[0]) < length:
            self._scratch = [np.empty(length, dtype) for _ in range(2 + self._n_state_arrays)]
        return self._scratch

    def _blocks(self, blocks: Sequence[Rows]) -> tuple[NDArray[np.int64], int, Any]:
        """Return the blocks' addresses, their longest row's length, and their index dtype."""
        # One version of the loop reads all blocks: with 64-bit indices if any block has them.
        wide = np.dtype(np.int64 if any(X.indptr.itemsize == 8 for X, *_ in blocks) else np.int32)
        keys = [(id(X), id(y), wide) for X, y, _ in blocks]
        located = {
            key: self._located_blocks.get(key) or _locate_block(X, y, weight, wide)
            for key, (X, y, weight) in zip(keys, blocks, strict=True)
        }
        # The next batch mostly has the same blocks; other blocks must not be kept in memory.
        self._located_blocks = located
        batch_blocks = [located[key] for key in keys]
        return (
            np.stack([k.addresses for k in batch_blocks]),
            max(k.longest for k in batch_blocks),
            wide,
        )


def _locate_block(X: Any, y: Any, weight: Any, wide: np.dtype[Any]) -> _LocatedBlock:
    """Return a block's arrays, their addresses and its longest row, for compiled loops."""
    # They nearly always have one dtype already, so nothing is copied.
    indptr, indices = (np.require(a, wide, ["C", "A"]) for a in (X.indptr, X.indices))
    values = [
        None if a is None else np.require(a, X.data.dtype, ["C", "A"]) for a in (X.data, y, weight)
    ]
    arrays = indptr, indices, *values
    *row_addresses, y_at, weight_at = (
        0 if a is None else a.__array_interface__["data"][0] for a in arrays
    )
    addresses = np.array([*row_addresses, X.has_canonical_format, y_at, weight_at], dtype=np.int64)
    # Blocks are identified by the ids of X and y; holding both keeps these ids from being reused.
    return _LocatedBlock((X, y, *arrays), addresses, int(np.diff(X.indptr).max(initial=0)))
