"""Rows as forests grow on them: bins, and targets and weights as integers.

Weights and weighted targets are scaled to as many bits as no sum of all rows can overflow. The
scales follow from sums over all rows, so they are the same on any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from daskml_dist.backends.base import SparseRows
from daskml_dist.backends.binning import put_in_bins
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.bins import Bins
from daskml_dist.models.criteria import Criterion
from daskml_dist.solvers.binning import iterate_tiles
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Bytes that a row's bins are padded to a multiple of, so that few rows straddle cache lines.
_WORD_BYTES = 8
#: Rows that are binned together, at most and at least; and their dense entries at most (64 MiB).
_MAX_TILE_ROWS, _MIN_TILE_ROWS, _MAX_TILE_ENTRIES = 16_384, 64, 1 << 23
#: Bits reserved for repeated draws of a row (31 at most), and for weights of classes.
_REPEAT_BITS, FACTOR_BITS = 5, 12


@dataclass(eq=False)
class ForestRows:
    """Binned rows of a lane, or of all lanes, with integer weights and targets.

    Parameters
    ----------
    rows : ndarray of uint8 of shape (n, width)
        Bins; behind them zeros.
    numbers : ndarray of int64 of shape (n,)
        Of the rows, among all.
    y : ndarray of float64 of shape (n,), or (n, n_outputs) of several
    given : ndarray of float64 of shape (n,) or None
        The user's weights.
    low, high : ndarray of float64 of shape (n_features, 256)
        Smallest and largest value of each bin, of rows that have a weight; of some rows first,
        then of all.
    weight : ndarray of int64 of shape (n,)
    slot : ndarray of int32 of shape (n,)
        Classes of the first output.
    more : ndarray of int64 of shape (n, n_more)
        The rest of a drawn row's line; see `backends.forest_kernels`.
    """

    rows: Array
    numbers: Array
    y: Array
    given: Array | None
    low: Array
    high: Array
    weight: Array = None  # type: ignore[assignment]
    slot: Array = None  # type: ignore[assignment]
    more: Array = None  # type: ignore[assignment]

    @property
    def n_bytes(self) -> int:
        """Return the bytes that travel where the rows are gathered."""
        return sum(a.nbytes for a in (self.rows, self.numbers, self.weight, self.slot, self.more))


#: Makes a number of each of some rows.
MakeNumbers = Callable[[ForestRows, slice], Array]


@dataclass(frozen=True)
class ForestScales:
    """Factors that turned weights and targets into integers.

    Parameters
    ----------
    bits : int
        Of a packed number that count rows.
    weight, target, term : float
        Factors.
    centre : float, or ndarray of float64 of shape (n_outputs,)
        What targets were lowered by.
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
    made = ForestRows(
        rows.allocate_zeros((n, -(-d // _WORD_BYTES) * _WORD_BYTES), np.uint8),
        rows.allocate_zeros((n,), np.int64),
        rows.allocate_zeros((n,) if n_outputs == 1 else (n, n_outputs), np.float64), None,
        np.full((d, 256), np.inf), np.full((d, 256), -np.inf),
    )  # fmt: skip
    tile = min(_MAX_TILE_ROWS, max(_MIN_TILE_ROWS, _MAX_TILE_ENTRIES // d))
    put, stop = _TileWriter(rows, made, bins, class_weight, min(n, tile)), 0
    for first, block in rows.iterate_blocks(lane):
        for start in range(0, block.X.shape[0], tile):
            X = block.X[start : start + tile]
            X = X.toarray() if isinstance(X, SparseRows) else np.ascontiguousarray(X)
            at = slice(stop, stop + len(X))
            weight = None if block.weight is None else block.weight[start : start + tile]
            put(X, block.y[start : start + tile], weight, first + start, at)
            stop = at.stop
    return made


class _TileWriter:
    """Writer of tiles of rows into a lane's arrays.

    Parameters
    ----------
    rows : OwnRows
    made : ForestRows
    bins : Bins
    class_weight : sequence of ndarray of float64
    tile : int
        Rows of a tile at most.
    """

    def __init__(
        self, rows: OwnRows, made: ForestRows, bins: Bins, class_weight: Sequence[Array], tile: int
    ) -> None:
        self._rows, self._made, self._bins, self._class_weight = rows, made, bins, class_weight
        d = bins.n_features
        self._columns, self._seen = np.empty((d, tile), np.uint8), np.empty(d, np.uint8)

    def __call__(self, X: Array, y: Array, weight: Array | None, number: int, at: slice) -> None:
        """Put some rows, of which the first has a number among all."""
        from daskml_dist.backends.forest_kernels import widen_bin_reach

        made, bins = self._made, self._bins
        of = made.rows[at]
        put_in_bins(
            X, bins.table, bins.n_edges, bins.categorical, bins.max_bins, of,
            self._columns[:, : len(X)], self._seen,
        )  # fmt: skip
        made.numbers[at] = np.arange(number, number + len(X))
        made.y[at] = y
        if weight is not None or self._class_weight:
            if made.given is None:
                made.given = self._rows.allocate_zeros((len(made.numbers),), np.float64)
            made.given[at] = 1.0 if weight is None else weight
            for k, of_class in enumerate(self._class_weight):
                made.given[at] *= of_class[made.y[at, k].astype(np.intp)]
            counts = made.given[at] > 0
            X, of = X[counts], of[counts]
        widen_bin_reach(X, of, made.low, made.high)


def scale_to_integers(
    rows: OwnRows, rooms: Sequence[ForestRows], criterion: Criterion, classes: Sequence[int],
    bootstrap: bool, factors: bool,
) -> ForestScales:  # fmt: skip
    """Make whole numbers of the targets and weights of all trainers' rows, and merge their bins."""
    shape = rooms[0].low.shape if rooms else (0, 256)
    reach = np.full((2, *shape), -np.inf)
    for room in rooms:
        np.maximum(reach[0], -room.low, out=reach[0])
        np.maximum(reach[1], room.high, out=reach[1])
    both = rows.max_trainers(reach.ravel()).reshape(reach.shape)
    for room in rooms:
        room.low, room.high = -both[0], both[1]
    bits = int(rows.n_rows).bit_length()
    # Bits kept free for repeated draws and for class weights.
    spare = (_REPEAT_BITS if bootstrap else 0) + (FACTOR_BITS if factors else 0)
    weight = _scale_weights(rows, rooms, 62 - bits - spare)
    scales = ForestScales(bits, weight)
    if criterion.of_classes:
        for room in rooms:
            room.slot, room.more = _class_slots(rows, room.y, classes)
        return scales
    return _scale_targets(rows, rooms, criterion, scales, 62 - spare)


def _class_slots(rows: OwnRows, y: Array, classes: Sequence[int]) -> tuple[Array, Array]:
    """Return each row's class of the first output, and the sums that its other classes add to."""
    first = np.append(0, np.cumsum(classes[:-1]))
    slot = rows.allocate_zeros((len(y),), np.int32)
    more = rows.allocate_zeros((len(y), len(classes) // 2 * 2), np.int64)
    for at in iterate_tiles(len(y)):
        slots = y[at].reshape(-1, len(classes)).astype(np.int32) + first
        slot[at], more[at] = slots[:, 0], -1
        more[at, : len(classes) - 1] = slots[:, 1:]
    return slot, more


def _scale_weights(rows: OwnRows, rooms: Sequence[ForestRows], bits: int) -> float:
    """Make the weights whole numbers; their scale."""
    facts = np.zeros(3)
    for room in rooms:
        room.weight = rows.allocate_zeros((len(room.y),), np.int64)
        if (given := room.given) is None:
            continue
        for at in iterate_tiles(len(given)):
            odd = (given[at] % 1).any()
            facts = np.maximum(facts, [1.0, given[at].max(initial=0.0), odd])
    weighted, largest, odd = rows.max_trainers(facts)
    if not weighted:
        for room in rooms:
            room.weight[:] = 1
        return 1.0
    if not 0 < largest < np.inf:
        raise InvalidDataError("All weights are zero. Give some rows a positive weight.")

    scale = _find_scale(rows, rooms, _user_weights, largest, bits)
    # Integer weights stay as they are.
    if not odd and scale >= 1:
        scale = 1.0
    for room in rooms:
        for at in iterate_tiles(len(room.y)):
            room.weight[at] = np.rint(_user_weights(room, at) * scale)
    return scale


def _user_weights(room: ForestRows, at: slice) -> Array:
    return np.ones(len(room.y[at])) if room.given is None else room.given[at]


def _find_scale(
    rows: OwnRows, rooms: Sequence[ForestRows], make: MakeNumbers, largest: float, bits: int
) -> float:
    """Return the largest power of two that keeps a sum of positive numbers below 2**bits."""
    if not largest > 0:
        return 1.0
    # Whole numbers, so that the bound is the same in any order.
    rough = np.ldexp(1.0, 60 - int(rows.n_rows).bit_length() - np.frexp(largest)[1])
    # An upper bound of the sum, itself in integers, so that all trainers find the same.
    total = sum(
        int(np.ceil(make(room, at) * rough).astype(np.int64).sum())
        for room in rooms
        for at in iterate_tiles(len(room.y))
    )
    total = int(rows.sum_trainers(np.array([total]))[0])
    return float(np.ldexp(rough, bits - total.bit_length() - 1))


def _scale_targets(
    rows: OwnRows,
    rooms: Sequence[ForestRows],
    criterion: Criterion,
    scales: ForestScales,
    bits: int,
) -> ForestScales:
    found = [_target_range(room.y.reshape(len(room.y), -1)) for room in rooms]
    top, bottom = rows.max_trainers(np.max(found, axis=0).ravel()).reshape(2, -1)
    bottom = -bottom
    centre = np.zeros(len(top))
    if criterion.kind == 3:
        _check_poisson_targets(top, bottom)
    elif not criterion.needs_rows:
        # Digits that all targets share would cost bits.
        apart = np.maximum(abs(top), abs(bottom)) > 16 * (top - bottom)
        centre[apart] = np.rint((top + bottom) / 2)[apart]
    k = len(centre)
    for room in rooms:
        room.slot = rows.allocate_zeros((len(room.y),), np.int32)
        room.more = rows.allocate_zeros((len(room.y), 2 * k + 1), np.int64)
        room.more[:, k + 1 :] = room.y.reshape(len(room.y), -1).view(np.int64)
    target, term = (
        _write_integers(rows, rooms, partial(_weighted_numbers, made, centre), columns, bits)
        for made, columns in (
            (_identity, slice(0, k)),
            (partial(_criterion_terms, criterion), slice(k, k + 1)),
        )
    )
    return ForestScales(
        scales.bits, scales.weight, target, target if criterion.needs_rows else term, centre
    )


def _identity(y: Array) -> Array:
    return y


def _criterion_terms(criterion: Criterion, y: Array) -> Array:
    terms: Array = criterion.terms(y).sum(axis=1, keepdims=True)
    return terms


def _weighted_numbers(
    made: Callable[[Array], Array], centre: Array, room: ForestRows, at: slice
) -> Array:
    """Return numbers made of some targets times the rows' weights; one column or more."""
    y = room.y[at]
    return np.asarray(made(y.reshape(len(y), -1) - centre)) * room.weight[at, None]


def _write_integers(
    rows: OwnRows, rooms: Sequence[ForestRows], make: MakeNumbers, columns: slice, bits: int
) -> float:
    """Make whole numbers, columns of `ForestRows.more`; their scale."""
    parts = ((room, at) for room in rooms for at in iterate_tiles(len(room.y)))
    own = max((np.abs(make(room, at)).max(initial=0.0) for room, at in parts), default=0.0)
    most = rows.max_trainers(np.array([own]))[0]
    if not np.isfinite(most):
        raise InvalidDataError("The targets are too large: their squares overflow. Scale y.")
    width = columns.stop - columns.start
    scale = _find_scale(rows, rooms, lambda room, at: np.abs(make(room, at)), most * width, bits)
    for room in rooms:
        for at in iterate_tiles(len(room.y)):
            room.more[at, columns] = np.rint(make(room, at) * scale)
    return scale


def _target_range(y: Array) -> Array:
    """Return the largest target, and minus the smallest, of each output."""
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


def gather_forest_rows(rows: OwnRows, rooms: Sequence[ForestRows]) -> ForestRows:
    """Return the rows of all lanes of all trainers."""
    own = [
        _concatenate([getattr(room, name) for room in rooms])
        for name in ("rows", "numbers", "weight", "slot", "more")
    ]
    every = rows.gather_arrays(own) if rows.size > 1 else [own]
    bins, numbers, weight, slot, more = (
        np.ascontiguousarray(_concatenate(parts)) for parts in zip(*every, strict=True)
    )
    first = rooms[0]
    return ForestRows(bins, numbers, np.empty(0), None, first.low, first.high, weight, slot, more)


def _concatenate(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
