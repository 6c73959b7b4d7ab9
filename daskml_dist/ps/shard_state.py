"""State of a shard: what a later fit continues from, a snapshot of it, and how rows are split.

Parameters are a matrix, which is divided among servers, lanes of columns and stages of pipelines by
consecutive rows. All arrays of the state have the same rows, so that one slice divides them all
(`part`), and parts joined in the order of rows are the whole again (`join`).
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
    """Rows of a growing table that trainers hold, equal in all of them.

    Parameters
    ----------
    ids : ndarray of int64 of shape (n_rows,)
        In the order in which batches touch them.
    w : ndarray of shape (n_rows, width)
    opt_state : dict of str to ndarray
    step : int
        Steps of the rows, with those of earlier fits.
    clock : int
        Steps of each lane of this fit that are in them.
    """

    ids: NDArray[np.int64]
    w: NDArray[Any]
    opt_state: dict[str, NDArray[Any]]
    step: int
    clock: int


def copy_held_rows(held: HeldRows) -> HeldRows:
    """Return a copy, with arrays of its own."""
    opt_state = {name: array.copy() for name, array in held.opt_state.items()}
    return replace(held, w=held.w.copy(), opt_state=opt_state)


@dataclass
class ShardState:
    """State from which a later fit continues; its arrays are of shape (n_rows, width)."""

    w: NDArray[Any]
    opt_state: dict[str, NDArray[Any]]
    #: Steps and rows that the parameters were trained by.
    step: int = 0
    rows: float = 0.0
    #: Mean of the parameters over `n_averaged` steps (averaged SGD), or None.
    average: NDArray[Any] | None = None
    n_averaged: int = 0
    #: Outer steps that were made, at meetings of lanes that step alone.
    n_meetings: int = 0
    #: Sorted ids of the rows of a growing table; None: the rows are all there are.
    ids: NDArray[np.int64] | None = None
    #: Rows that trainers hold, none of the above: on a server as one of them last handed them over,
    #: of a trainer as they are. After a fit where their optimizer is another one than the others'.
    held: HeldRows | None = None

    def join_held(
        self, held: HeldRows, init: Callable[[NDArray[Any]], dict[str, NDArray[Any]]]
    ) -> ShardState:
        """Return the state with rows that trainers hold among the others.

        Where these have another optimizer, `init` makes the first state of the others' for them.
        """
        assert self.ids is not None
        is_theirs = held.opt_state.keys() == self.opt_state.keys()
        order = np.argsort(held.ids)
        ids = held.ids[order]
        at = np.searchsorted(self.ids, ids)
        # Rows of an earlier fit may be there, from before trainers held them.
        stale = at[at < len(self.ids)]
        stale = stale[self.ids[stale] == ids[: len(stale)]]
        at -= np.searchsorted(stale, at)

        def join(own: Any, rest: Any) -> Any:
            # Of the many rows of servers there is one copy, and never two at a time.
            own = np.delete(own, stale, axis=0) if len(stale) else own
            return np.insert(own, at, rest[order], axis=0)

        rest = held.opt_state if is_theirs else init(held.w)
        return replace(
            self,
            w=join(self.w, held.w),
            opt_state={name: join(own, rest[name]) for name, own in self.opt_state.items()},
            ids=join(self.ids, held.ids),
            held=None if is_theirs else held,
        )

    @property
    def final(self) -> NDArray[Any]:
        """Return the parameters of a fit that ends here."""
        # Averaged SGD predicts by the average, and trains on from the parameters themselves.
        return self.w if self.average is None else self.average

    def with_final_parameters(self, w: NDArray[Any]) -> ShardState:
        """Return the state with other parameters to end with."""
        return replace(self, w=w, average=None if self.average is None else w)

    def part(self, rows: slice) -> ShardState:
        """Return a copy of a slice of rows; of a table, of the ids in a range."""
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
            self.n_meetings,
            None if ids is None else ids[rows].copy(),
        )

    @staticmethod
    def join(parts: list[ShardState]) -> ShardState:
        """Return the state of all rows, of those of consecutive slices."""
        # Counts are those of any part: all shards of a fit make the same steps.
        first = parts[0]
        concat = namespace(first.w).concat
        return ShardState(
            concat([p.w for p in parts]),
            {name: concat([p.opt_state[name] for p in parts]) for name in first.opt_state},
            first.step,
            first.rows,
            None
            if any(p.average is None for p in parts)
            else concat([p.average for p in parts if p.average is not None]),
            first.n_averaged,
            first.n_meetings,
            None if first.ids is None else np.concatenate([p.ids for p in parts]),
            first.held,
        )


@dataclass(frozen=True)
class StateParts:
    """States of some ranges of the parameters, by the first row of each."""

    parts: dict[int, ShardState]

    @staticmethod
    def join(some: Iterable[StateParts]) -> ShardState:
        """Return the state of all rows, of those of ranges."""
        parts = {start: part for held in some for start, part in held.parts.items()}
        return ShardState.join([parts[start] for start in sorted(parts)])


@dataclass(frozen=True)
class ShardSnapshot:
    """Copy of all of a shard at one version; restored, it continues with the same bits.

    Unlike a `ShardState` it leaves the pending penalties of untouched rows as they are, since
    applying them at another time would change the digits.
    """

    w: NDArray[Any]
    opt_state: dict[str, NDArray[Any]]
    version: int
    first_step: int
    rows: float
    #: Sum of the learning rates so far, and that up to which each row's penalty was applied.
    rate_sum: float
    row_rate_sums: NDArray[np.float64] | None
    #: Sum of the parameters over `n_summed` steps, for their average, or None.
    total: NDArray[np.float64] | None
    n_summed: int
    #: Outer steps that were made.
    n_meetings: int = 0
    #: Rows of a growing table, all or those that have changed since the snapshot before (None: the
    #: shard has them, and goes back by itself); the arrays above are then empty.
    table: RowChanges | None = None
    #: Rows that trainers hold, as one of them last handed them over.
    held: HeldRows | None = None

    def part(self, rows: slice) -> ShardSnapshot:
        """Return the snapshot of a slice of rows; its arrays are views of these."""
        return replace(
            self,
            w=self.w[rows],
            opt_state={name: array[rows] for name, array in self.opt_state.items()},
            row_rate_sums=None if self.row_rate_sums is None else self.row_rate_sums[rows],
            total=None if self.total is None else self.total[rows],
        )

    @staticmethod
    def join(parts: Sequence[ShardSnapshot]) -> ShardSnapshot:
        """Return the snapshot of all rows, of those of consecutive slices."""

        def joined(arrays: list[Any]) -> Any:
            return None if any(a is None for a in arrays) else np.concatenate(arrays)

        return replace(
            parts[0],
            w=joined([p.w for p in parts]),
            opt_state={
                name: joined([p.opt_state[name] for p in parts]) for name in parts[0].opt_state
            },
            row_rate_sums=joined([p.row_rate_sums for p in parts]),
            total=joined([p.total for p in parts]),
        )


def copy_array(array: Any) -> Any:
    """Return a copy of an array of any library."""
    # Arrays of NumPy and CuPy have the method; the array API standard itself has only `asarray`.
    return array.copy() if hasattr(array, "copy") else namespace(array).asarray(array, copy=True)


@dataclass(frozen=True)
class ShardLayout:
    """Slices of a parameter matrix of `n_rows` x `width`.

    Parameters
    ----------
    n_rows, width : int
        Shape of the parameters.
    n_shards : int
        Wanted number of shards; no more than there are rows are made.
    """

    n_rows: int
    width: int
    n_shards: int

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Return the row boundaries: shard s holds rows bounds[s] to bounds[s + 1]."""
        # No empty shards: a server without rows would be waited for like any other.
        n_shards = max(1, min(self.n_shards, self.n_rows))
        return np.linspace(0, self.n_rows, n_shards + 1).astype(np.int64)

    def slices(self) -> list[slice]:
        """Return one slice of rows a shard."""
        bounds = self.bounds.tolist()
        return [slice(a, b) for a, b in itertools.pairwise(bounds)]

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return views of `values` (..., n_rows, width), one a shard."""
        return [values[..., s, :] for s in self.slices()]

    def split_index(self, index: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], slice]]:
        """Split a sorted row index: for each shard the local index, and where it stood."""
        bounds = self.bounds
        # The index is sorted, so each shard's rows are a range of it.
        cuts = np.searchsorted(index, bounds)
        return [
            (index[a:b] - bounds[s], slice(int(a), int(b)))
            for s, (a, b) in enumerate(itertools.pairwise(cuts))
        ]
