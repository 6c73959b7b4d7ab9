"""Layout of the parameters' rows: contiguous slices, one a shard."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
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
        """Row boundaries of the shards; shard s holds rows bounds[s] to bounds[s + 1]."""
        n_shards = max(1, min(self.n_shards, self.n_rows))
        return np.linspace(0, self.n_rows, n_shards + 1).astype(np.int64)

    def slices(self) -> list[slice]:
        """One slice of rows a shard."""
        bounds = self.bounds.tolist()
        return [slice(a, b) for a, b in itertools.pairwise(bounds)]

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Views of `values` (..., n_rows, width), one a shard."""
        return [values[..., s, :] for s in self.slices()]

    def split_index(self, index: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], slice]]:
        """Split a sorted row index: for each shard the local index, and where it stood."""
        bounds = self.bounds
        cuts = np.searchsorted(index, bounds)
        return [
            (index[a:b] - bounds[s], slice(int(a), int(b)))
            for s, (a, b) in enumerate(itertools.pairwise(cuts))
        ]
