"""Batches of dense rows on the host, read in place: gradients, and many steps in one loop.

Python and NumPy take about 90 microseconds per step of any size, a third of it to gather its
rows; the products of a small batch take one microsecond.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import ReplicaSteps, Step
from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.elementary_functions import ROW_LOSSES
from daskml_dist.backends.host_update import compile_update, list_step_numbers
from daskml_dist.backends.intrinsics import array_at, pointer, prefetch
from daskml_dist.backends.row_slices import Draw

#: Rows whose gradients are added up in the dtype of X.
_MAX_ROWS_PER_SUM = 1 << 13


#: Maximum steps made together, and entries of their rows: about 50 ms, during which a trainer
#: handles no messages.
_MAX_STEPS_AT_ONCE, _MAX_ENTRIES_AT_ONCE = 256, 1 << 26
#: Rows whose products, losses and gradients are computed together, in a cache.
_TILE_ROWS = 64
#: Bytes of a row that are prefetched when it is drawn; the processor prefetches the rest.
_PREFETCHED_BYTES = 256


# `_evaluate_row` is a placeholder for a loss's function, the others for
# `host_update.compile_update`.
def _evaluate_row(y: Any, raw: Any, parameters: Any) -> Any: ...
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


_update_at_rest = _update_state  # used if the learning rate is 0


def _write_losses(n: Any, y: Any, weight: Any, raw: Any, values: Any, parameters: Any) -> None:
    """Write each row's weighted loss into `values`, and its weighted derivative into `raw`."""
    for t in range(n):
        values[t], slope = _evaluate_row(y[t], raw[t], parameters)
        values[t] *= weight[t]
        raw[t] = slope * weight[t]


def _write_clipped_losses(
    n: Any, y: Any, bound: Any, raw: Any, values: Any, parameters: Any
) -> None:
    """Write each row's derivative, clipped to the row's bound, into `raw`; write no losses."""
    for t in range(n):
        _, slope = _evaluate_row(y[t], raw[t], parameters)
        values[t] = 0
        raw[t] = min(max(slope, -bound[t]), bound[t])


def _add_tile_gradient(
    n: Any, where: Any, y: Any, weight: Any, g: Any, values: Any, w: Any, grad: Any,
    parameters: Any, d: Any,
) -> Any:  # fmt: skip
    """Add the gradient of the summed loss of some rows to `grad`; return the loss.

    Parameters
    ----------
    n, d : int
        Rows and features.
    where : int64 (_TILE,)
        Addresses of the rows.
    y, weight, g, values : (_TILE,) floats
        The last two are scratch.
    w, grad : (n_parameters,) floats
        The intercept is last, if there is one.
    parameters : tuple
        Parameters of the loss.
    """
    dtype, number = w.dtype, w.dtype.type
    # Products of four rows at a time: w is loaded once for four rows, and four sums hide the
    # latency of additions.
    for t in range(0, n - 3, 4):
        a, b = array_at(pointer(where[t]), d, dtype), array_at(pointer(where[t + 1]), d, dtype)
        c, e = array_at(pointer(where[t + 2]), d, dtype), array_at(pointer(where[t + 3]), d, dtype)
        raw_a, raw_b, raw_c, raw_e = number(0), number(0), number(0), number(0)
        for j in range(d):
            raw_a += a[j] * w[j]
            raw_b += b[j] * w[j]
            raw_c += c[j] * w[j]
            raw_e += e[j] * w[j]
        g[t], g[t + 1], g[t + 2], g[t + 3] = raw_a, raw_b, raw_c, raw_e
    for t in range(n - n % 4, n):
        x = array_at(pointer(where[t]), d, dtype)
        raw = number(0)
        for j in range(d):
            raw += x[j] * w[j]
        g[t] = raw
    # The intercept.
    if len(w) > d:
        for t in range(n):
            g[t] += w[d]
    _write_losses(n, y, weight, g, values, parameters)
    loss, slopes = 0.0, number(0)
    for t in range(n):
        loss += values[t]
        slopes += g[t]
    if len(w) > d:
        grad[d] += slopes
    for t in range(0, n - 3, 4):
        a, b = array_at(pointer(where[t]), d, dtype), array_at(pointer(where[t + 1]), d, dtype)
        c, e = array_at(pointer(where[t + 2]), d, dtype), array_at(pointer(where[t + 3]), d, dtype)
        g_a, g_b, g_c, g_e = g[t], g[t + 1], g[t + 2], g[t + 3]
        for j in range(d):
            # The rows are still cached: each entry of the gradient is read and written once per
            # four rows.
            grad[j] += g_a * a[j] + g_b * b[j] + g_c * c[j] + g_e * e[j]
    for t in range(n - n % 4, n):
        x = array_at(pointer(where[t]), d, dtype)
        for j in range(d):
            grad[j] += g[t] * x[j]
    return loss


def _set_batch_gradient(
    blocks: Any, segments: Any, p: Any, w: Any, grad: Any, parameters: Any, n_features: Any
) -> Any:
    """Set the gradient of a batch's summed loss; return the loss, and where the next batch begins.

    Parameters
    ----------
    blocks : int64 (n_blocks, 3)
        Addresses of X, y and weights (0: no weights).
    segments : int64 (n_parts, 5)
        Runs of rows of a batch and a block, in the order of the batches: batch, block, address of
        the first rows, address of the numbers of rows (0: one row each), and number of runs.
    p : int
        Position in `segments` at which the batch begins.
    w, grad : (n_parameters,) floats
    parameters : tuple of floats
        Parameters of the loss.
    n_features : int
    """
    dtype, item = w.dtype, w.itemsize
    size = n_features * item
    fetched = min(size, _PREFETCHED_BYTES)
    where, weight = np.empty(_TILE_ROWS, np.int64), np.ones(_TILE_ROWS, dtype)
    y, g = np.empty(_TILE_ROWS, dtype), np.empty(_TILE_ROWS, dtype)
    values = np.empty(_TILE_ROWS, dtype)
    grad[:] = 0
    # For a literal, numba would compile the called function again.
    none = np.int64(0)
    loss, n, batch = 0.0, none, segments[p, 0]
    while p < len(segments) and segments[p, 0] == batch:
        X_at, y_at, weight_at = blocks[segments[p, 1]]
        n_runs, counted = segments[p, 4], segments[p, 3] != 0
        starts = array_at(pointer(segments[p, 2]), n_runs, np.int64)
        counts = array_at(pointer(segments[p, 3]), n_runs, np.int64)
        for r in range(n_runs):
            for i in range(starts[r], starts[r] + (counts[r] if counted else 1)):
                # Rows are not copied: the tile holds their addresses, and their first cache lines
                # are being prefetched.
                where[n] = X_at + i * size
                for address in range(where[n], where[n] + fetched, 64):
                    prefetch(address)
                y[n] = array_at(pointer(y_at + i * item), 1, dtype)[0]
                if weight_at != 0:
                    weight[n] = array_at(pointer(weight_at + i * item), 1, dtype)[0]
                n += 1
                # A full tile is processed while it is cached.
                if n == _TILE_ROWS:
                    loss += _add_tile_gradient(
                        n, where, y, weight, g, values, w, grad, parameters, n_features
                    )
                    n = none
        p += 1
    loss += _add_tile_gradient(n, where, y, weight, g, values, w, grad, parameters, n_features)
    return loss, p


def _set_large_gradient(
    blocks: Any, segments: Any, p: Any, w: Any, grad: Any, parameters: Any, n_features: Any
) -> Any:
    """Set the gradient of a large batch part by part, adding up the parts in float64."""
    # float32 sums over very many rows lose digits; sums of parts of `_MAX_ROWS_PER_SUM` rows do
    # not.
    sums, loss, batch = np.zeros(len(grad), np.float64), 0.0, segments[p, 0]
    none = np.int64(0)
    while p < len(segments) and segments[p, 0] == batch:
        part_loss, _ = _set_batch_gradient(
            blocks, segments[p : p + 1], none, w, grad, parameters, n_features
        )
        for j in range(len(grad)):
            sums[j] += grad[j]
        loss += part_loss
        p += 1
    for j in range(len(grad)):
        grad[j] = sums[j]
    return loss, p


def _take_steps(
    blocks: Any,
    segments: Any,
    rows: Any,
    rates: Any,
    coefficients: Any,
    state: Any,
    grad: Any,
    losses: Any,
    n_penalised: Any,
    l1: Any,
    l2: Any,
    parameters: Any,
    n_features: Any,
) -> None:
    """Take an optimizer's step along each batch.

    Parameters
    ----------
    blocks, segments, parameters, n_features
        As in `_set_batch_gradient`.
    rows, rates : float64 (n_batches,)
        Number of rows, and learning rate; a batch without rows has no entries in `segments`.
    coefficients : (n_batches, n) floats
        Coefficients of the optimizer.
    state : tuple of (n_parameters,) floats
        w and the optimizer's state.
    grad : (n_parameters,) floats
        Scratch.
    losses : float64 (n_batches,)
        Summed loss of each batch before its step.
    n_penalised : int
        Number of leading parameters that are penalised.
    l1, l2 : float
    """
    w, p = state[0], np.int64(0)
    number = w.dtype.type
    for b in range(len(rows)):
        losses[b] = 0.0
        if rows[b] == 0:
            continue
        losses[b], p = _set_batch_gradient(blocks, segments, p, w, grad, parameters, n_features)
        n, rate, at_step = number(rows[b]), number(rates[b]), coefficients[b]
        # For a learning rate of 0, a version without the penalty's step.
        if rate > 0:
            _update_state(state, grad, n, rate, l1, l2, n_penalised, at_step)
        else:
            _update_at_rest(state, grad, n, rate, l1, l2, n_penalised, at_step)


class HostGather:
    """Gather of rows of dense blocks.

    Parameters
    ----------
    loss : Loss
        Loss with an `evaluate_row`.
    blocks : mapping of int to (X, y, weight)
        C-contiguous and of one dtype; all have weights or none.
    n_rows : int
        Maximum rows of a batch.
    clips : bool, default=False
        Whether the weights are bounds of the rows' derivatives, as in private fits.
    """

    #: Number of batches that are gathered together.
    max_batches = 1
    #: Whether batches are added up in parts.
    _adds_parts = False

    def __init__(
        self,
        loss: Any,
        blocks: Mapping[int, tuple[Any, Any, Any | None]],
        n_rows: int,
        clips: bool = False,
    ) -> None:
        self._hold(blocks)
        first = next(iter(blocks.values()))[0]
        self.n_features, self.dtype = int(first.shape[1]), np.dtype(first.dtype)
        #: Maximum steps made together.
        self.max_steps = min(
            _MAX_STEPS_AT_ONCE, max(1, _MAX_ENTRIES_AT_ONCE // max(n_rows * self.n_features, 1))
        )
        self.parameters = tuple(map(float, loss.parameters))
        evaluate_row = ROW_LOSSES.get(loss.kernel, type(loss).evaluate_row)
        write = _write_clipped_losses if clips else _write_losses
        losses = compiled_with(write, _evaluate_row=evaluate_row)
        tile = compiled_with(_add_tile_gradient, reassociates=True, _write_losses=losses)
        self.gradient = compiled_with(_set_batch_gradient, _add_tile_gradient=tile)
        self._adds_parts = n_rows > _MAX_ROWS_PER_SUM
        if self._adds_parts:
            self.gradient = compiled_with(_set_large_gradient, _set_batch_gradient=self.gradient)

    def _hold(self, blocks: Mapping[int, tuple[Any, Any, Any | None]]) -> None:
        """Keep blocks, and store the addresses of their arrays."""
        self._blocks = dict(blocks)  # keeps their memory allocated
        self._block_positions = {number: place for place, number in enumerate(blocks)}
        parts = self._blocks.values()
        self.where = np.array([[address_of(a) for a in arrays] for arrays in parts], np.int64)

    def __call__(self, batches: Sequence[Draw]) -> list[Callable[[Any, Any], float]]:
        """Return, for each batch, :meth:`add_gradient` for its rows."""
        return [partial(self.add_gradient, batch) for batch in batches]

    def locate_segments(self, batches: Sequence[Draw]) -> NDArray[np.int64]:
        """Return the addresses of the batches' runs of rows; valid until the next call."""
        if self._adds_parts:
            batches = [[part for run in batch for part in _split_run(run)] for batch in batches]
        # Keeps the runs that the loop reads in memory.
        self._located = batches
        return locate_runs(self._block_positions, batches)

    def add_gradient(self, batch: Draw, w: NDArray[Any], out: NDArray[Any]) -> float:
        """Add the gradient of a batch's loss at `w` to `out`, both (n, 1); return the loss."""
        # The loop writes a separate gradient, which is added to `out` in its dtype.
        grad, parts = np.empty(len(w), self.dtype), self.locate_segments([batch])
        # The loop reads rows in the dtype of w; only the version for writable arrays is compiled.
        is_usable = w.dtype == self.dtype and w.flags.c_contiguous and w.flags.writeable
        w = w.reshape(-1) if is_usable else w.astype(self.dtype).reshape(-1)
        loss, _ = self.gradient(self.where, parts, 0, w, grad, self.parameters, self.n_features)
        out[:, 0] += grad
        return float(loss)


class BatchSteps(ReplicaSteps):
    """Steps of one replica on the batches of one gather, many in one call.

    Parameters
    ----------
    gather : HostGather
    optimizer : Optimizer
        Optimizer with an `elementwise_update`.
    step : Step
        One of the steps, without a gradient.
    """

    def __init__(self, gather: HostGather, optimizer: Any, step: Step) -> None:
        self._gather = gather
        #: Maximum steps made together.
        self.max_steps = gather.max_steps
        super().__init__(optimizer, step)
        self._scratch = np.empty(len(step.w), step.w.dtype)
        number = step.w.dtype.type
        penalty = np.int64(step.n_penalised), number(step.l1), number(step.l2)
        self._fixed_arguments = *penalty, gather.parameters, gather.n_features
        noisy = step.noise is not None
        loops = [compile_update(optimizer, step.l1, rate, noisy) for rate in (1.0, 0.0)]
        self._loop = compiled_with(
            _take_steps,
            _set_batch_gradient=gather.gradient,
            _update_state=loops[0],
            _update_at_rest=loops[1],
        )

    def __call__(self, batches: Sequence[Draw], steps: Sequence[Step]) -> NDArray[np.float64]:
        """Make steps."""
        # Values that differ between steps are passed as arrays: one call for all steps.
        rows = np.array([step.rows for step in steps], np.float64)
        rates = np.array([step.lr for step in steps], np.float64)
        step_numbers = rows, rates, list_step_numbers(self._optimizer, steps)
        state = tuple(array.reshape(-1) for array in self._state)
        losses, parts = np.empty(len(steps)), self._gather.locate_segments(batches)
        self._loop(
            self._gather.where,
            parts,
            *step_numbers,
            state,
            self._scratch,
            losses,
            *self._fixed_arguments,
        )
        return losses


def locate_runs(block_positions: Mapping[int, int], batches: Sequence[Draw]) -> NDArray[np.int64]:
    """Return the batches' runs of rows as compiled loops need them, with blocks by position."""
    return np.array(
        [
            (
                number,
                block_positions[block],
                _address_of_integers(starts),
                _address_of_integers(counts),
                len(starts),
            )
            for number, batch in enumerate(batches)
            for block, starts, counts in batch
        ],
        np.int64,
    ).reshape(-1, 5)


def _address_of_integers(array: Any) -> int:
    """Return the address of an int64 array (0 for None), after checks that the loop omits."""
    assert array is None or (array.dtype == np.int64 and array.flags.c_contiguous)
    return address_of(array)


def address_of(array: Any) -> int:
    """Return the address of an array; 0, a null pointer, for None."""
    return 0 if array is None else int(array.__array_interface__["data"][0])


class StreamGather(HostGather):
    """Gather of rows of dense blocks that are requested as batches need them.

    Parameters
    ----------
    loss : Loss
        Loss with an `evaluate_row`.
    n_features : int
    dtype : dtype
        Of all blocks.
    find : callable
        Maps the number of a block, in the order of the batches, to X, y and weights.
    n_rows : int
        Maximum rows of a batch.
    max_steps : int
        Maximum steps made together: the blocks of all of them are held at the same time.
    """

    def __init__(
        self,
        loss: Any,
        n_features: int,
        dtype: Any,
        find: Callable[[int], tuple[Any, Any, Any | None]],
        n_rows: int,
        max_steps: int,
    ) -> None:
        nothing = np.empty((0, n_features), dtype), np.empty(0, dtype), None
        super().__init__(loss, {-1: nothing}, n_rows)
        self.max_steps = max(1, min(self.max_steps, max_steps))
        self._find = find

    def locate_segments(self, batches: Sequence[Draw]) -> NDArray[np.int64]:
        """Return the addresses of the batches' runs of rows; valid until the next call."""
        # Blocks of these batches are held until the next call; blocks that stay are not requested
        # again.
        needed = dict.fromkeys(block for batch in batches for block, _, _ in batch)
        had = self._blocks
        self._hold({n: had[n] if n in had else self._find(n) for n in needed})
        return super().locate_segments(batches)


def _split_run(run: tuple[int, Any, Any | None]) -> list[tuple[int, Any, Any | None]]:
    """Split a run into runs that have at most `_MAX_ROWS_PER_SUM` rows together."""
    block, starts, counts = run
    if counts is None:
        return [
            (block, starts[i : i + _MAX_ROWS_PER_SUM], None)
            for i in range(0, len(starts), _MAX_ROWS_PER_SUM)
        ]
    if counts.max(initial=0) > _MAX_ROWS_PER_SUM:
        starts, counts = _shorten_runs(starts, counts)
    # Cut where the running number of rows crosses a multiple of the bound.
    ends = np.cumsum(counts)
    # If a run crosses a multiple of the bound, the next part begins with it.
    edges = np.flatnonzero(np.diff((ends - 1) // _MAX_ROWS_PER_SUM, prepend=0)).tolist()
    return [
        (block, starts[a:b], counts[a:b])
        for a, b in itertools.pairwise([0, *edges, len(starts)])
        if a < b
    ]


def _shorten_runs(
    starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the same rows as runs of at most `_MAX_ROWS_PER_SUM` rows each."""
    pieces = -(-counts // _MAX_ROWS_PER_SUM)
    run_numbers = np.repeat(np.arange(len(starts)), pieces)
    nth = np.arange(len(run_numbers)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return starts[run_numbers] + nth * _MAX_ROWS_PER_SUM, np.minimum(
        counts[run_numbers] - nth * _MAX_ROWS_PER_SUM, _MAX_ROWS_PER_SUM
    )
