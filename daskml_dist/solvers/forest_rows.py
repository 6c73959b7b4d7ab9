"""Rows in the form that forests need: bins, and targets and weights as integers.

Sums of floating-point numbers depend on their order, so the trees would depend on the number of
workers. Weights and weighted targets are therefore scaled by powers of two and rounded to integers,
as large as a sum of all rows in 62 bits allows. The scales follow from sums and maxima over all
rows, so they too are the same on any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends.base import SparseRows
from daskml_dist.backends.binning import (
    fetch_rows,
    lie_on_device,
    open_device_bins,
    put_in_bins,
)
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.bins import Bins
from daskml_dist.models.criteria import Criterion
from daskml_dist.solvers.binning import iterate_tiles
from daskml_dist.solvers.own_rows import Array, OwnRows

#: A row's bins are padded to a multiple of this many bytes, so that few rows straddle cache lines.
_WORD_BYTES = 8
#: Most and fewest rows that are binned together, and most of their dense entries (64 MiB).
_MAX_TILE_ROWS, _MIN_TILE_ROWS, _MAX_TILE_ENTRIES = 16_384, 64, 1 << 23
#: Bits reserved for repeated draws of a row (31 at most), and for factors of the classes' weights.
_REPEAT_BITS, FACTOR_BITS = 5, 12
#: Bits of a sum of all rows: those of an int64 without the sign, and one to spare.
_SUM_BITS = 62
#: Least binary exponent of the largest number: smaller ones would need a scale beyond float64.
_MIN_EXPONENT = -940
#: Largest scale of targets whose squares are summed: the square of one unit must not underflow.
_MAX_SQUARED_SCALE = 2.0**500
#: Targets farther from zero than this many times their range are centred before they are scaled.
_FAR_RATIO = 16


@dataclass(eq=False)
class ForestRows:
    """Binned rows of a lane, or of all lanes, with integer weights and targets.

    Parameters
    ----------
    host_rows : ndarray of uint8 of shape (n, width) or None
        Bins in host memory, padded with zeros; None until they are requested.
    numbers : ndarray of int64 of shape (n,)
        Indices of the rows among all rows.
    y : ndarray of float64 of shape (n,), or (n, n_outputs) with several outputs
    user_weights : ndarray of float64 of shape (n,) or None
        The user's weights, times those of the classes.
    low, high : ndarray of float64 of shape (n_features, 256)
        Smallest and largest value in each bin among rows of positive weight: of the own rows, until
        :func:`scale_to_integers` makes them those of all rows.
    weight : ndarray of int64 of shape (n,)
        Scaled weights.
    slot : ndarray of int32 of shape (n,)
        Class of the first output; 0 in regression.
    more : ndarray of int64 of shape (n, n_line - 2)
        Rest of a drawn row's line; see `backends.forest_kernels`.
    device_bins : DeviceBins or None
        Bins that were made on the GPU that holds the rows.
    allocate_zeros : callable
        As `OwnRows.allocate_zeros`.
    """

    host_rows: Array | None
    numbers: Array
    y: Array
    user_weights: Array | None
    low: Array
    high: Array
    weight: Array = None  # type: ignore[assignment]
    slot: Array = None  # type: ignore[assignment]
    more: Array = None  # type: ignore[assignment]
    device_bins: Any = None
    allocate_zeros: Callable[[tuple[int, ...], Any], Array] = np.zeros

    @property
    def width(self) -> int:
        """Return the bytes of a row's bins."""
        return -(-len(self.low) // _WORD_BYTES) * _WORD_BYTES

    @property
    def rows(self) -> Array:
        """Return the bins in host memory; those of a GPU are copied there at the first call."""
        if self.host_rows is None:
            self.host_rows = self.allocate_zeros((len(self.numbers), self.width), np.uint8)
            if self.device_bins is not None:
                self.device_bins.copy_rows(self.host_rows)
        return self.host_rows

    @property
    def n_bytes(self) -> int:
        """Return the bytes that are sent if the rows are gathered."""
        row_arrays = self.numbers, self.weight, self.slot, self.more
        return len(self.numbers) * self.width + sum(array.nbytes for array in row_arrays)


#: Returns a number, or several, for each row of a slice.
_MakeNumbers = Callable[[ForestRows, slice], Array]


@dataclass(frozen=True)
class ForestScales:
    """Factors by which weights and targets were made integers.

    Parameters
    ----------
    bits : int
        Low bits of a packed number (weight and number of rows in one integer) that count rows.
    weight, target, term : float
        Factors of the weights, of the weighted targets, and of the criterion's weighted terms
        (their squares, for squared error).
    centre : float, or ndarray of float64 of shape (n_outputs,)
        Subtracted from the targets.
    """

    bits: int
    weight: float
    target: float = 1.0
    term: float = 1.0
    centre: Any = 0.0


def bin_forest_rows(
    rows: OwnRows, lane: int, bins: Bins, n_outputs: int, class_weight: Sequence[Array]
) -> ForestRows:
    """Return the binned rows of a lane; sparse rows are made dense a tile at a time."""
    n, d = rows.count_rows(lane), bins.n_features
    shape = (n,) if n_outputs == 1 else (n, n_outputs)
    binned = ForestRows(
        None, np.empty(0, np.int64), np.empty((0, *shape[1:])), None, np.full((d, 256), np.inf),
        np.full((d, 256), -np.inf), allocate_zeros=rows.allocate_zeros,
    )  # fmt: skip
    tile = min(_MAX_TILE_ROWS, max(_MIN_TILE_ROWS, _MAX_TILE_ENTRIES // d))
    write_tile, stop = _TileWriter(binned, bins, class_weight, min(n, tile)), 0
    for first, block in rows.iterate_blocks(lane):
        if not stop:
            # The bins of all blocks are made on the device of the first rows.
            if lie_on_device(block.X):
                binned.device_bins = open_device_bins(bins)
            else:
                binned.host_rows = rows.allocate_zeros((n, binned.width), np.uint8)
            binned.numbers = rows.allocate_zeros((n,), np.int64)
            binned.y = rows.allocate_zeros(shape, np.float64)
        n_rows, rows_of_block = block.X.shape[0], block.X
        if binned.device_bins is None:
            rows_of_block = fetch_rows(rows_of_block)
        # A GPU bins a whole block in one step.
        for tile_slice in row_slices(n_rows, n_rows if lie_on_device(rows_of_block) else tile):
            X = rows_of_block[tile_slice]
            X = X.toarray() if isinstance(X, SparseRows) else X
            weight = None if block.weight is None else block.weight[tile_slice]
            write_tile(
                X, block.y[tile_slice], weight, first + tile_slice.start, slice(stop, stop + len(X))
            )
            stop += len(X)
    if binned.device_bins is not None:
        binned.low, binned.high = binned.device_bins.fetch_reach()
    return binned


class _TileWriter:
    """Writer of tiles of rows into a lane's arrays `binned`; of at most `tile` rows on the host."""

    def __init__(
        self, binned: ForestRows, bins: Bins, class_weight: Sequence[Array], tile: int
    ) -> None:
        self._binned, self._bins, self._class_weight = binned, bins, class_weight
        d = bins.n_features
        self._columns, self._missing = np.empty((d, tile), np.uint8), np.empty(d, np.uint8)

    def __call__(
        self, X: Any, y: Array, weight: Array | None, first_row: int, row_slice: slice
    ) -> None:
        """Write rows to a slice; `first_row` is the index of the first among all rows."""
        binned = self._binned
        binned.numbers[row_slice] = np.arange(first_row, first_row + len(X))
        binned.y[row_slice] = y
        counts = None
        if weight is not None or self._class_weight:
            if binned.user_weights is None:
                binned.user_weights = binned.allocate_zeros((len(binned.numbers),), np.float64)
            binned.user_weights[row_slice] = 1.0 if weight is None else weight
            for k, class_weight in enumerate(self._class_weight):
                binned.user_weights[row_slice] *= class_weight[
                    binned.y[row_slice, k].astype(np.intp)
                ]
            # Rows of weight 0 must not move a threshold.
            counts = binned.user_weights[row_slice] > 0
        if binned.device_bins is not None:
            binned.device_bins.widen_reach(binned.device_bins.add(X), counts)
        else:
            self._put_on_host(np.ascontiguousarray(X), counts, row_slice)

    def _put_on_host(self, X: Array, counts: Array | None, row_slice: slice) -> None:
        """Put rows in host memory into bins."""
        from daskml_dist.backends.forest_kernels import widen_bin_reach

        binned, bins = self._binned, self._bins
        row_bins = binned.rows[row_slice]
        put_in_bins(
            X, bins.table, bins.n_edges, bins.categorical, bins.max_bins, row_bins,
            self._columns[:, : len(X)], self._missing,
        )  # fmt: skip
        if counts is not None:
            X, row_bins = X[counts], row_bins[counts]
        widen_bin_reach(X, row_bins, binned.low, binned.high)


def scale_to_integers(
    rows: OwnRows, binned_lanes: Sequence[ForestRows], criterion: Criterion, classes: Sequence[int],
    bootstrap: bool, factors: bool,
) -> ForestScales:  # fmt: skip
    """Write the integer weights and targets of all trainers' rows; return the factors."""
    # A threshold lies between the largest value of a bin and the smallest value of the next, over
    # all rows. Minima are computed as maxima of the negative values.
    shape = binned_lanes[0].low.shape if binned_lanes else (0, 256)
    reach = np.full((2, *shape), -np.inf)
    for binned in binned_lanes:
        np.maximum(reach[0], -binned.low, out=reach[0])
        np.maximum(reach[1], binned.high, out=reach[1])
    limits = rows.max_trainers(reach.ravel()).reshape(reach.shape)
    for binned in binned_lanes:
        # Zeros without a sign: which of two equal values comes first depends on the device.
        binned.low, binned.high = 0.0 - limits[0], limits[1] + 0.0
    # A packed sum has the number of rows in its low bits, and the weight above them.
    n_bits = int(rows.n_rows).bit_length()
    spare_bits = (_REPEAT_BITS if bootstrap else 0) + (FACTOR_BITS if factors else 0)
    weight = _scale_weights(rows, binned_lanes, _SUM_BITS - n_bits - spare_bits)
    scales = ForestScales(n_bits, weight)
    if criterion.of_classes:
        for binned in binned_lanes:
            binned.slot, binned.more = _class_slots(rows, binned.y, classes)
        return scales
    return _scale_targets(rows, binned_lanes, criterion, scales, _SUM_BITS - spare_bits)


def _class_slots(rows: OwnRows, y: Array, classes: Sequence[int]) -> tuple[Array, Array]:
    """Return each row's class of the first output, and the sums that its other classes add to.

    The classes of all outputs are numbered together.
    """
    first = np.append(0, np.cumsum(classes[:-1]))
    slot = rows.allocate_zeros((len(y),), np.int32)
    more_slots = rows.allocate_zeros((len(y), len(classes) // 2 * 2), np.int64)
    for tile in iterate_tiles(len(y)):
        slots = y[tile].reshape(-1, len(classes)).astype(np.int32) + first
        # An even width marks lines of classes; -1 in an unused column adds to no sum.
        slot[tile], more_slots[tile] = slots[:, 0], -1
        more_slots[tile, : len(classes) - 1] = slots[:, 1:]
    return slot, more_slots


def _scale_weights(rows: OwnRows, binned_lanes: Sequence[ForestRows], bits: int) -> float:
    """Write weights as integers; return their scale."""
    # Whether any row has a weight, the largest one, and whether one is no integer.
    facts = np.zeros(3)
    for binned in binned_lanes:
        binned.weight = rows.allocate_zeros((len(binned.y),), np.int64)
        if (user_weights := binned.user_weights) is None:
            continue
        for tile in iterate_tiles(len(user_weights)):
            fractional = (user_weights[tile] % 1).any()
            facts = np.maximum(facts, [1.0, user_weights[tile].max(initial=0.0), fractional])
    weighted, largest, fractional = rows.max_trainers(facts)
    if not weighted:
        for binned in binned_lanes:
            binned.weight[:] = 1
        return 1.0
    if not 0 < largest < np.inf:
        raise InvalidDataError(
            "All weights are zero, or too small for the dtype of the rows. Give some rows a "
            "positive weight, or pass sample_weight / sample_weight.max()."
        )

    scale = _find_scale(rows, binned_lanes, _user_weights, largest, bits)
    if scale == np.inf:
        raise InvalidDataError(
            f"The weights are too small: the largest is {largest:g}. Multiply all of them by one "
            "number, since only their ratios matter."
        )
    # Integer weights are not scaled, so that a weight of 2 equals a repeated row.
    if not fractional and scale >= 1:
        scale = 1.0
    for binned in binned_lanes:
        for tile in iterate_tiles(len(binned.y)):
            binned.weight[tile] = np.rint(_user_weights(binned, tile) * scale)
    return scale


def _user_weights(binned: ForestRows, row_slice: slice) -> Array:
    return (
        np.ones(len(binned.y[row_slice]))
        if binned.user_weights is None
        else binned.user_weights[row_slice]
    )


def _find_scale(
    rows: OwnRows,
    binned_lanes: Sequence[ForestRows],
    make_values: _MakeNumbers,
    largest: float,
    bits: int,
) -> float:
    """Return a power of two that scales the sum of non-negative numbers below 2**bits.

    `largest` is a bound of the numbers. Infinity where float64 has no such power.
    """
    if not largest > 0:
        return 1.0
    if np.frexp(largest)[1] < _MIN_EXPONENT:
        return np.inf
    # First a scale by which no sum can overflow, even if all numbers were the largest.
    safe_scale = np.ldexp(1.0, 60 - int(rows.n_rows).bit_length() - np.frexp(largest)[1])
    # Then the sum itself, rounded up to integers, so that it is the same in any order.
    total = sum(
        int(np.ceil(make_values(binned, tile) * safe_scale).astype(np.int64).sum())
        for binned in binned_lanes
        for tile in iterate_tiles(len(binned.y))
    )
    total = int(rows.sum_trainers(np.array([total]))[0])
    return float(np.ldexp(safe_scale, bits - total.bit_length() - 1))


def _scale_targets(
    rows: OwnRows,
    binned_lanes: Sequence[ForestRows],
    criterion: Criterion,
    scales: ForestScales,
    bits: int,
) -> ForestScales:
    """Write targets and the criterion's terms, weighted, as integers; return all factors."""
    target_ranges = [_target_range(binned.y.reshape(len(binned.y), -1)) for binned in binned_lanes]
    top, bottom = rows.max_trainers(np.max(target_ranges, axis=0).ravel()).reshape(2, -1)
    bottom = -bottom
    centre = np.zeros(len(top))
    if criterion.kind == 3:
        _check_poisson_targets(top, bottom)
    elif not criterion.needs_rows:
        # Digits that all targets share would cost bits. (A Poisson deviance is not invariant to a
        # shift, and medians are found among the targets themselves.)
        is_far = np.maximum(abs(top), abs(bottom)) > _FAR_RATIO * (top - bottom)
        centre[is_far] = np.rint((top + bottom) / 2)[is_far]
    # The columns of a line: k targets, the sum of the terms, and the bits of the k targets.
    k = len(centre)
    for binned in binned_lanes:
        binned.slot = rows.allocate_zeros((len(binned.y),), np.int32)
        binned.more = rows.allocate_zeros((len(binned.y), 2 * k + 1), np.int64)
        binned.more[:, k + 1 :] = binned.y.reshape(len(binned.y), -1).view(np.int64)

    def weighted_targets(binned: ForestRows, row_slice: slice) -> Array:
        y = binned.y[row_slice]
        return np.asarray((y.reshape(len(y), -1) - centre) * binned.weight[row_slice, None])

    def weighted_terms(binned: ForestRows, row_slice: slice) -> Array:
        y = binned.y[row_slice]
        terms = criterion.terms(y.reshape(len(y), -1) - centre).sum(axis=1, keepdims=True)
        return np.asarray(terms * binned.weight[row_slice, None])

    max_scale = _MAX_SQUARED_SCALE if criterion.kind == 2 else np.inf
    target = _write_integers(rows, binned_lanes, weighted_targets, slice(0, k), bits, max_scale)
    term = _write_integers(rows, binned_lanes, weighted_terms, slice(k, k + 1), bits)
    return ForestScales(
        scales.bits, scales.weight, target, target if criterion.needs_rows else term, centre
    )


def _write_integers(
    rows: OwnRows, binned_lanes: Sequence[ForestRows], make_values: _MakeNumbers, columns: slice,
    bits: int, max_scale: float = np.inf,
) -> float:  # fmt: skip
    """Write scaled numbers to columns of `ForestRows.more`; return their scale."""
    parts = ((binned, tile) for binned in binned_lanes for tile in iterate_tiles(len(binned.y)))
    own_largest = max(
        (np.abs(make_values(binned, tile)).max(initial=0.0) for binned, tile in parts), default=0.0
    )
    largest = rows.max_trainers(np.array([own_largest]))[0]
    if not np.isfinite(largest):
        raise InvalidDataError("The targets are too large: their squares overflow. Scale y.")
    # The numbers of all columns are summed together.
    width = columns.stop - columns.start
    scale = _find_scale(
        rows,
        binned_lanes,
        lambda binned, tile: np.abs(make_values(binned, tile)),
        largest * width,
        bits,
    )
    if scale > max_scale or scale == np.inf:
        raise InvalidDataError("The targets are too small for float64. Scale y.")
    for binned in binned_lanes:
        for tile in iterate_tiles(len(binned.y)):
            binned.more[tile, columns] = np.rint(make_values(binned, tile) * scale)
    return scale


def _target_range(y: Array) -> Array:
    """Return the largest target, and minus the smallest one, of each output."""
    return np.stack([y.max(axis=0, initial=-np.inf), -y.min(axis=0, initial=np.inf)])


def _check_poisson_targets(top: Array, bottom: Array) -> None:
    if (bottom < 0).any():
        raise InvalidDataError(
            "Some value(s) of y are negative which is not allowed for Poisson regression. "
            'Use criterion="squared_error".'
        )
    if not (top > 0).all():
        raise InvalidDataError(
            "Sum of y is not strictly positive which is necessary for Poisson regression. Use "
            'criterion="squared_error".'
        )


def gather_forest_rows(rows: OwnRows, binned_lanes: Sequence[ForestRows]) -> ForestRows:
    """Return the rows of all lanes of all trainers, without targets in floating point."""
    names = ["numbers", "weight", "slot", "more"]
    # Bins on a GPU stay there, if other trainers have no rows.
    lanes = [binned for binned in binned_lanes if len(binned.numbers)] or binned_lanes[:1]
    device_bins = lanes[0].device_bins if rows.size == 1 else None
    if device_bins is None:
        names = ["rows", *names]
    own_arrays = [_concatenate([getattr(binned, name) for binned in lanes]) for name in names]
    gathered = rows.gather_arrays(own_arrays) if rows.size > 1 else [own_arrays]
    arrays = [np.ascontiguousarray(_concatenate(parts)) for parts in zip(*gathered, strict=True)]
    bins = None if device_bins is not None else arrays.pop(0)
    numbers, weight, slot, more = arrays
    first = binned_lanes[0]
    all_rows = ForestRows(
        bins, numbers, np.empty(0), None, first.low, first.high, weight, slot, more
    )
    if device_bins is not None:
        all_rows.device_bins = device_bins.merge(lanes)
    return all_rows


def _concatenate(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
