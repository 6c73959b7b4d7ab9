"""Memory for arrays that are made again and again: what a process gets anew is dearer than a copy.

Dask's workers give freed memory back to the system at once, and each of its pages is a fault then.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scratch"]


class Scratch:
    """Memory of one thread, a piece for each use."""

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def empty(self, use: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array with anything in it; good until the next one of that use."""
        size, held = math.prod(shape), self._held.get(use)
        if held is None or held.dtype != dtype or held.size < size:
            held = self._held[use] = np.empty(size, dtype)
        return held[:size].reshape(shape)
