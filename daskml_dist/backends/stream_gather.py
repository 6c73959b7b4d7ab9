"""Gather of rows of blocks that come and go: those of the next steps are held, and no others.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.draws import Draw
from daskml_dist.backends.host_gather import HostGather

__all__ = ["StreamGather"]

#: Rows whose gradients are added up in the dtype of X.
_AT_ONCE = 1 << 13


# Stands for that of `host_gather`.
def _gradient(
    blocks: Any, parts: Any, p: Any, w: Any, grad: Any, parameters: Any, n_features: Any
) -> Any: ...


def _large_gradient(
    blocks: Any, parts: Any, p: Any, w: Any, grad: Any, parameters: Any, n_features: Any
) -> Any:
    """As `host_gather` has it, part by part: what these sum in their dtype is summed in float64."""
    sums, loss, batch = np.zeros(len(grad), np.float64), 0.0, parts[p, 0]
    none = np.int64(0)
    while p < len(parts) and parts[p, 0] == batch:
        some, _ = _gradient(blocks, parts[p : p + 1], none, w, grad, parameters, n_features)
        for j in range(len(grad)):
            sums[j] += grad[j]
        loss += some
        p += 1
    for j in range(len(grad)):
        grad[j] = sums[j]
    return loss, p


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
        self._cut: list[Draw] = []  # whose runs lie where the loop reads them
        self._large = n_rows > _AT_ONCE
        if self._large:
            self.gradient = compiled_with(_large_gradient, _gradient=self.gradient)

    def parts(self, batches: Sequence[Draw]) -> NDArray[np.int64]:
        """Addresses of the runs of rows of batches; good until the next batches are asked for."""
        needed = dict.fromkeys(block for batch in batches for block, _, _ in batch)
        had = self._blocks
        self._hold({n: had[n] if n in had else self._find(n) for n in needed})
        if self._large:
            self._cut = batches = [[one for run in batch for one in _cut(run)] for batch in batches]
        return super().parts(batches)


def _cut(run: tuple[int, Any, Any | None]) -> list[tuple[int, Any, Any | None]]:
    """Runs of rows of a block, no more rows together than are added up in their dtype."""
    block, starts, counts = run
    if counts is None:
        return [(block, starts[i : i + _AT_ONCE], None) for i in range(0, len(starts), _AT_ONCE)]
    if counts.max(initial=0) > _AT_ONCE:
        starts, counts = _shorter(starts, counts)
    ends = np.cumsum(counts)
    # Where a run crosses a multiple of the bound, the next part begins with it.
    edges = np.flatnonzero(np.diff((ends - 1) // _AT_ONCE, prepend=0)).tolist()
    return [
        (block, starts[a:b], counts[a:b])
        for a, b in itertools.pairwise([0, *edges, len(starts)])
        if a < b
    ]


def _shorter(
    starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same rows in runs that are no longer than the bound."""
    pieces = -(-counts // _AT_ONCE)
    at = np.repeat(np.arange(len(starts)), pieces)
    nth = np.arange(len(at)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return starts[at] + nth * _AT_ONCE, np.minimum(counts[at] - nth * _AT_ONCE, _AT_ONCE)
