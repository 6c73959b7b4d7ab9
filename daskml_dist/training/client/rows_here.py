"""Rows in the client's memory, cut into the blocks that workers get."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from daskml_dist.data.collection import Collection
from daskml_dist.data.keyed import KeyedCollection

__all__ = ["RowsHere"]


class RowsHere:
    """Rows in memory, cut into blocks of a row at least; parts that hold columns are a block each.

    Parameters
    ----------
    collection : Collection
        Of the kind "memory".
    n_blocks : int
        Wanted number of blocks of whole rows.
    """

    def __init__(self, collection: Collection, n_blocks: int) -> None:
        self._collection = collection
        n_rows = collection.n_rows or 0
        n_blocks = max(1, min(n_blocks, n_rows))
        self._cuts = np.arange(n_blocks + 1) * n_rows // n_blocks

    def __len__(self) -> int:
        """Number of blocks."""
        whole = self._collection.by_lane
        return len(self._collection.parts) if whole else len(self._cuts) - 1

    def parts(self, numbers: Iterable[int]) -> list[list[Any]]:
        """X, y and weights of some blocks."""
        make, parts = self._collection.block_maker, self._collection.parts
        if isinstance(self._collection, KeyedCollection):
            return [list(parts[i]) for i in numbers]
        if self._collection.by_lane:
            made = (make(i, *parts[i]) for i in numbers)
            return [[block.X, block.y, block.sample_weight] for block in made]
        whole = make(0, *parts[0])
        columns = (whole.X, whole.y, whole.sample_weight)
        return [
            [None if v is None else v[a:b] for v in columns]
            for a, b in (self._cuts[i : i + 2] for i in numbers)
        ]
