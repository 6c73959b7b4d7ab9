"""`KeyedBlock`: a lane's entries on one side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.blocks import Block
from daskml_dist.solvers.keyed import Side

__all__ = ["KeyedBlock", "by_use"]


@dataclass(frozen=True, eq=False)
class KeyedBlock(Block):
    """All entries of the row keys of a lane, as a CSR matrix. Its `rows` are `indices`.

    Parameters
    ----------
    side : Side
    lane : int
    column_cuts : ndarray
        Last id of each lane's range of column keys, but the last lane's.
    ids : ndarray of shape (n,)
        What the user calls the row keys; sorted.
    strengths : ndarray of float64 of shape (2, n)
        Of each row key, the sum of the values of all entries whose first, and second, key it is.
    indptr : ndarray of int64 of shape (n + 1,)
    indices : ndarray of int32 of shape (n_entries,)
        Where the values of column keys lie; the entries of a row are in the order of these keys.
    touched : ndarray
        Ids of the column keys of all entries, sorted.
    place : ndarray of int32
        Where the value of each of `touched` lies: those of most entries first, since the values of
        all do not fit in a processor's cache.
    values : ndarray of float64 or float32 of shape (n_entries,), or None
        Of float32 where that holds all of them exactly, and they are many.
    """

    # All of them are given by name; `Block` has fields with defaults.
    side: Side = None  # type: ignore[assignment]
    lane: int = 0
    column_cuts: NDArray[Any] = None  # type: ignore[assignment]
    ids: NDArray[Any] = None  # type: ignore[assignment]
    strengths: NDArray[np.float64] = None  # type: ignore[assignment]
    indptr: NDArray[np.int64] = None  # type: ignore[assignment]
    touched: NDArray[Any] = None  # type: ignore[assignment]
    place: NDArray[np.int32] = None  # type: ignore[assignment]
    values: NDArray[Any] | None = None

    @property
    def indices(self) -> NDArray[np.int32]:
        """Places of the values of the columns of all entries."""
        found: NDArray[np.int32] = self.rows
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all the arrays."""
        arrays = [self.rows, self.ids, self.strengths, self.indptr, self.touched, self.place]
        arrays += [self.values]
        return sum(int(array.nbytes) for array in arrays if array is not None)

    def aligned(self) -> KeyedBlock:
        """The block with arrays that begin at whole words: NumPy is slower over others."""
        names = ("rows", "strengths", "indptr", "place", "values")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, array in found.items():
            if array is not None:
                found[name] = np.require(array, requirements=["A", "C"])
        return replace(self, **found)


def by_use(uses: NDArray[np.int64]) -> NDArray[np.int32]:
    """Place of each in the order of their uses, most first."""
    order = np.argsort(-uses, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place
