"""Sums of numbers that are made of rows, the same in any order of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.binned_rows import BinnedRows, tiles
from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["exact_sums"]

Array = NDArray[Any]
#: Makes `m` numbers of each of some rows.
Make = Callable[[BinnedRows, slice], Sequence[Array]]


def exact_sums(
    rows: OwnRows, rooms: Sequence[BinnedRows], make: Make, m: int
) -> NDArray[np.float64]:
    """Sums over the rows of all trainers, by whole numbers; NaN where some number is not finite.

    Parameters
    ----------
    rows : OwnRows
    rooms : sequence of BinnedRows
        Of the own lanes.
    make : callable
        Takes some of these and a slice of its rows; returns `m` arrays of a number a row.
    m : int
    """

    def made(room: BinnedRows) -> tuple[Array, Array]:
        values, largest = _room(room, m), np.zeros(m)
        for at in tiles(room.n):
            for k, of in enumerate(make(room, at)):
                values[k, at] = of
                largest[k] = np.maximum(largest[k], np.abs(of).max(initial=0.0))
        return values, largest

    found = rows.map(made, rooms)
    largest = rows.largest(np.max([np.zeros(m), *(most for _, most in found)], axis=0))
    if not np.isfinite(largest).all():
        return np.full(m, np.nan)
    # So many bits that no sum of so many numbers overflows.
    bits = 61 - int(rows.n_rows).bit_length()
    scales = np.ldexp(1.0, bits - np.frexp(largest)[1])

    def summed(values: Array) -> NDArray[np.int64]:
        total = np.zeros(m, np.int64)
        for at in tiles(values.shape[1]):
            total += np.rint(values[:, at] * scales[:, None]).astype(np.int64).sum(axis=1)
        return total

    own = rows.map(summed, [values for values, _ in found])
    return np.asarray(rows.sum(np.sum([np.zeros(m, np.int64), *own], axis=0)) / scales)


def _room(room: BinnedRows, m: int) -> Array:
    """Room for `m` numbers a row, the same each time."""
    held: Array | None = room.extra.get("summed")
    if held is None or len(held) < m:
        room.extra["summed"] = held = room.room((m, room.n), np.float64)
    return held[:m]
