"""Parts of trees as arrays that travel: many behind each other, and one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.grown_tree import GrownTree
from daskml_dist.solvers.forest_grow import Growing

__all__ = ["flat", "part_of"]

Array = NDArray[Any]


def flat(grown: list[GrownTree], growing: Growing) -> list[Array]:
    """The arrays of some parts of trees behind each other, and how many nodes each has."""
    empty = GrownTree.room(0, growing.growth.n_sums, growing.bounded)
    n = np.array([0, *(len(part.left) for part in grown)], np.int64)
    arrays = zip(empty.arrays, *(part.arrays for part in grown), strict=True)
    return [n.cumsum(), *(np.concatenate(parts) for parts in arrays)]


def part_of(arrays: list[Array], k: int) -> GrownTree:
    """The k-th of some parts."""
    ends, *of = arrays
    at = slice(ends[k], ends[k + 1])
    return GrownTree(*(array[at] for array in of))
