"""Gather of rows of blocks that come and go: those of the next steps are held, and no others.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.draws import Draw
from daskml_dist.backends.host_gather import HostGather

__all__ = ["StreamGather"]


class StreamGather(HostGather):
    """Gather of rows of dense blocks that are asked for as batches come to them.

    Parameters
    ----------
    loss : Loss
        With an `at_row`.
    n_features : int
    dtype : dtype
        Of all blocks.
    find : callable
        Takes the number of a block, in the order of the batches; returns X, y and weights.
    n_rows : int
        Of a batch at most.
    most_steps : int
        Steps made together at most: the blocks of them all are held at once.
    """

    def __init__(
        self,
        loss: Any,
        n_features: int,
        dtype: Any,
        find: Callable[[int], tuple[Any, Any, Any | None]],
        n_rows: int,
        most_steps: int,
    ) -> None:
        nothing = np.empty((0, n_features), dtype), np.empty(0, dtype), None
        super().__init__(loss, {-1: nothing}, n_rows)
        self.most_steps = max(1, min(self.most_steps, most_steps))
        self._find = find

    def parts(self, batches: Sequence[Draw]) -> NDArray[np.int64]:
        """Addresses of the runs of rows of batches; good until the next batches are asked for."""
        needed = dict.fromkeys(block for batch in batches for block, _, _ in batch)
        had = self._blocks
        self._hold({n: had[n] if n in had else self._find(n) for n in needed})
        return super().parts(batches)
