"""State of a shard: the state from which a later fit continues, snapshots, and row slices.

The parameters are a matrix, which is divided by consecutive rows among servers, lanes of columns,
and pipeline stages. All arrays of the state have the same rows, so one slice divides them all
(`part`), and parts joined in row order give the whole again (`join`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import namespace
from daskml_dist.ps.row_store import RowChanges


@dataclass(frozen=True)
class HeldRows:
    """Rows of a growing table that the trainers hold, identical in all of them.

    Parameters
    ----------
    ids : ndarray of int64 of shape (n_rows,)
        Ids, in the order in which batches use them.
    w : ndarray of shape (n_rows, width)
    opt_state : dict of str to ndarray
    step : int
        Steps of the rows, including those of earlier fits.
    clock : int
        Steps of each lane of this fit that the rows include.
    """

    ids: NDArray[np.int64]
    w: NDArray[Any]
    opt_state: dict[str, NDArray[Any]]
    step: int
    clock: int


def copy_held_rows(held_rows: HeldRows) -> HeldRows:
    """Return a copy whose parameters and optimizer state are new arrays."""
    opt_state = {name: array.copy() for name, array in held_rows.opt_state.items()}
    return replace(held_rows, w=held_rows.w.copy(), opt_state=opt_state)


@dataclass(frozen=True, eq=False)
class MostlyEqualRows:
    """Matrix of which all rows but a few are equal, so that only those few are sent and stored.

    A slice of its rows is an array.

    Parameters
    ----------
    n_rows : int
    row_numbers : ndarray of int64 of shape (n_stored,)
        Sorted numbers of the stored rows.
    rows : ndarray of shape (n_stored, width)
    common_row : ndarray of shape (width,)
        Each of the other rows.
    """

    n_rows: int
    row_numbers: NDArray[np.int64]
    rows: NDArray[Any]
    common_row: NDArray[Any]

    @property
    def nbytes(self) -> int:
        """Return the bytes that are stored."""
        return self.row_numbers.nbytes + self.rows.nbytes

    def slice_rows(self, rows: slice) -> MostlyEqualRows:
        """Return a slice of rows that shares the memory."""
        start, stop, _ = rows.indices(self.n_rows)
        first, last = np.searchsorted(self.row_numbers, (start, stop))
        return MostlyEqualRows(
            max(stop - start, 0),
            self.row_numbers[first:last] - start,
            self.rows[first:last],
            self.common_row,
        )

    def __getitem__(self, row_index: Any) -> NDArray[Any]:
        """Return a slice of rows as a new array."""
        rows = row_index[0] if isinstance(row_index, tuple) else row_index
        part = self.slice_rows(rows)
        all_rows = np.empty((part.n_rows, len(self.common_row)), self.rows.dtype)
        all_rows[...] = self.common_row
        all_rows[part.row_numbers] = part.rows
        return all_rows


def pack_rows(array: NDArray[Any], row_numbers: NDArray[Any]) -> Any:
    """Return an array as `MostlyEqualRows` where all rows but half, at `row_numbers`, are equal."""
    n_rows = len(array)
    if len(row_numbers) > n_rows // 2:
        return array
    is_other = np.ones(n_rows, bool)
    is_other[row_numbers] = False
    other = array[int(is_other.argmax())].copy()
    equals = (array == other).all(axis=1)
    if not (equals | ~is_other).all():
        return array
    return MostlyEqualRows(n_rows, np.asarray(row_numbers, np.int64), array[row_numbers], other)


@dataclass
class ShardState:
    """State from which a later fit continues; its arrays are of shape (n_rows, width)."""

    w: NDArray[Any]
    opt_state: dict[str, NDArray[Any]]
    #: Number of steps, and of rows, that the parameters were trained with.
    step: int = 0
    rows: float = 0.0
    #: Mean of the parameters over `n_averaged` steps (averaged SGD), or None.
    average: NDArray[Any] | None = None
    n_averaged: int = 0
    #: Number of outer steps, taken when lanes that train independently are averaged.
    n_outer_steps: int = 0
    #: Sorted ids of the rows of a growing table; None for a plain matrix.
    ids: NDArray[np.int64] | None = None
    #: Rows that trainers hold, which are not among the rows above: on a server, as a trainer last
    #: stored them; in a trainer, the current ones. After a fit, only if their optimizer differs
    #: from the other rows' optimizer.
    held: HeldRows | None = None

    def join_held(
        self, held_rows: HeldRows, init: Callable[[NDArray[Any]], dict[str, NDArray[Any]]]
    ) -> ShardState:
        """Return the state with the rows that trainers hold merged into the others.

        If they have another optimizer, `init` makes the initial state of the others' for them.
        """
        assert self.ids is not None
        is_theirs = held_rows.opt_state.keys() == self.opt_state.keys()
        order = np.argsort(held_rows.ids)
        ids = held_rows.ids[order]
        positions = np.searchsorted(self.ids, ids)
        # Rows of an earlier fit may exist, from before trainers held them.
        stale = positions[positions < len(self.ids)]
        stale = stale[self.ids[stale] == ids[: len(stale)]]
        positions -= np.searchsorted(stale, positions)

        def join(own_array: Any, held_array: Any) -> Any:
            # The servers' rows may be many, so each array is copied once and there are never two
            # copies.
            own_array = np.delete(own_array, stale, axis=0) if len(stale) else own_array
            return np.insert(own_array, positions, held_array[order], axis=0)

        rest = held_rows.opt_state if is_theirs else init(held_rows.w)
        return replace(
            self,
            w=join(self.w, held_rows.w),
            opt_state={name: join(own, rest[name]) for name, own in self.opt_state.items()},
            ids=join(self.ids, held_rows.ids),
            held=None if is_theirs else held_rows,
        )

    @property
    def final(self) -> NDArray[Any]:
        """Return the parameters of a fit that ends here."""
        # Averaged SGD predicts by the average, but continues training from the parameters
        # themselves.
        return self.w if self.average is None else self.average

    def with_final_parameters(self, w: NDArray[Any]) -> ShardState:
        """Return the state with other final parameters."""
        return replace(self, w=w, average=None if self.average is None else w)

    def slice_rows(self, rows: slice) -> ShardState:
        """Return a copy of a slice of rows; for a table, of the rows of a range of ids."""
        ids = self.ids
        if ids is not None:
            first, stop = rows.start or 0, rows.stop
            rows = slice(
                int(np.searchsorted(ids, first)),
                len(ids) if stop is None else int(np.searchsorted(ids, stop)),
            )
        return ShardState(
            copy_array(self.w[rows, ...]),
            {name: copy_array(array[rows, ...]) for name, array in self.opt_state.items()},
            self.step,
            self.rows,
            None if self.average is None else copy_array(self.average[rows, ...]),
            self.n_averaged,
            self.n_outer_steps,
            None if ids is None else ids[rows].copy(),
        )

    def view(self, rows: slice) -> ShardState:
        """Return a slice of the rows of a matrix, which shares the memory."""

        def cut(array: Any) -> Any:
            return (
                array.slice_rows(rows) if isinstance(array, MostlyEqualRows) else array[rows, ...]
            )

        return replace(
            self,
            w=cut(self.w),
            opt_state={name: cut(array) for name, array in self.opt_state.items()},
            average=None if self.average is None else cut(self.average),
        )

    @staticmethod
    def join(states: list[ShardState]) -> ShardState:
        """Return the state of all rows, from those of consecutive slices."""
        # All shards of a fit make the same steps, so the counts of any part are valid.
        first = states[0]
        concat = namespace(first.w).concat
        return ShardState(
            concat([p.w for p in states]),
            {name: concat([p.opt_state[name] for p in states]) for name in first.opt_state},
            first.step,
            first.rows,
            None
            if any(p.average is None for p in states)
            else concat([p.average for p in states if p.average is not None]),
            first.n_averaged,
            first.n_outer_steps,
            None if first.ids is None else np.concatenate([p.ids for p in states]),
            first.held,
        )


@dataclass(frozen=True)
class StateParts:
    """States of ranges of the parameters, by the first row of each range."""

    states_by_start: dict[int, ShardState]

    @staticmethod
    def join(state_parts: Iterable[StateParts]) -> ShardState:
        """Return the state of all rows, from those of ranges."""
        parts = {
            start: part
            for parts_of_range in state_parts
            for start, part in parts_of_range.states_by_start.items()
        }
        return ShardState.join([parts[start] for start in sorted(parts)])


@dataclass(frozen=True)
class ShardSnapshot:
    """Copy of a whole shard at one version; once restored, it continues bit-identically.

    Unlike a `ShardState` it does not apply the pending penalties of untouched rows, since applying
    them at another time would change the digits.
    """

    w: NDArray[Any]
    opt_state: dict[str, NDArray[Any]]
    version: int
    first_step: int
    rows: float
    #: Sum of the learning rates so far, and its value up to which each row's penalty was applied.
    rate_sum: float
    row_rate_sums: NDArray[np.float64] | None
    #: Sum of the parameters over `n_summed` steps, for their average, or None.
    total: NDArray[np.float64] | None
    n_summed: int
    #: Number of outer steps.
    n_outer_steps: int = 0
    #: Rows of a growing table: all of them, or those that have changed since the previous snapshot.
    #: The arrays above are then empty. None: the shard's row store keeps them, and restores them
    #: itself.
    table: RowChanges | None = None
    #: Rows that trainers hold, as one of them last stored them.
    held: HeldRows | None = None

    def slice_rows(self, rows: slice) -> ShardSnapshot:
        """Return the snapshot of a slice of rows; its arrays are views."""
        return replace(
            self,
            w=self.w[rows],
            opt_state={name: array[rows] for name, array in self.opt_state.items()},
            row_rate_sums=None if self.row_rate_sums is None else self.row_rate_sums[rows],
            total=None if self.total is None else self.total[rows],
        )

    @staticmethod
    def join(snapshots: Sequence[ShardSnapshot]) -> ShardSnapshot:
        """Return the snapshot of all rows, from those of consecutive slices."""

        def joined(arrays: list[Any]) -> Any:
            return None if any(a is None for a in arrays) else np.concatenate(arrays)

        return replace(
            snapshots[0],
            w=joined([p.w for p in snapshots]),
            opt_state={
                name: joined([p.opt_state[name] for p in snapshots])
                for name in snapshots[0].opt_state
            },
            row_rate_sums=joined([p.row_rate_sums for p in snapshots]),
            total=joined([p.total for p in snapshots]),
        )


def copy_array(array: Any) -> Any:
    """Return a copy of an array of any library."""
    # Arrays of NumPy and CuPy have the method; the array API standard only has `asarray`.
    return array.copy() if hasattr(array, "copy") else namespace(array).asarray(array, copy=True)


@dataclass(frozen=True)
class ShardLayout:
    """Slices of a parameter matrix of `n_rows` x `width`.

    Parameters
    ----------
    n_rows, width : int
        Shape of the parameters.
    n_shards : int
        Requested number of shards; at most one per row is made.
    """

    n_rows: int
    width: int
    n_shards: int

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Return the row boundaries: shard s holds rows bounds[s] to bounds[s + 1]."""
        # No empty shards: a server without rows would still have to be awaited.
        n_shards = max(1, min(self.n_shards, self.n_rows))
        return np.linspace(0, self.n_rows, n_shards + 1).astype(np.int64)

    def slices(self) -> list[slice]:
        """Return one slice of rows per shard."""
        bounds = self.bounds.tolist()
        return [slice(a, b) for a, b in itertools.pairwise(bounds)]

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return views of `values` (..., n_rows, width), one per shard."""
        return [values[..., s, :] for s in self.slices()]

    def split_index(self, index: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], slice]]:
        """Split a sorted row index: for each shard its local index, and the position of that."""
        bounds = self.bounds
        # The index is sorted, so each shard's rows are a contiguous range of it.
        cuts = np.searchsorted(index, bounds)
        return [
            (index[a:b] - bounds[s], slice(int(a), int(b)))
            for s, (a, b) in enumerate(itertools.pairwise(cuts))
        ]
