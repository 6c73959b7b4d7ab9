"""Growing trees on a GPU: the rows of a lane stay there, a byte for each entry.

Gradients come from the host, a number of 64 bits a row and tree, and raw predictions go back: both
follow from functions (exponentials) whose last bits differ from library to library.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.cupy_tree_calls import TreeCalls, Work
from daskml_dist.backends.device_memory import device_memory
from daskml_dist.backends.trees import Part, SplitFacts, SplitLeaf

__all__ = ["CupyRows", "CupyTrees"]

Array = NDArray[Any]

#: Which rows of a leaf a histogram is of, beside those of a side.
_ALL = 2
#: Bytes of a number of a histogram.
_ITEM = 8


class CupyTrees:
    """A GPU, as trees grow on it.

    Parameters
    ----------
    backend : CupyBackend
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._calls = TreeCalls(backend.calls.cupy, backend.calls.address)
        self._facts: tuple[SplitFacts, list[Any]] | None = None

    def rows(self, room: Any, shape: tuple[int, int, int]) -> CupyRows:
        """Rows of a lane."""
        return CupyRows(room, shape, self._backend, self._calls)

    def to_host(self, hist: Any) -> Array:
        """Histograms in host memory."""
        found: Array = self._backend.to_numpy(hist)
        return found

    def find(
        self, leaves: Sequence[SplitLeaf], first: int, facts: SplitFacts,
        scales: NDArray[np.float64], told: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Find the best split of some leaves: a warp for each and each feature."""
        assert first == 0  # histograms of some features alone are those of several trainers
        if self._facts is None or self._facts[0] is not facts:
            arrays = facts.counts, facts.missing, facts.categorical, facts.signs
            self._facts = facts, [self._backend.to_device(array) for array in arrays]
        table = np.empty((len(leaves), 8), np.int64)
        numbers = table.view(np.float64)
        for row, of_row, leaf in zip(table, numbers, leaves, strict=True):
            row[0], row[1] = self._calls.address(leaf.hist), leaf.hist.strides[0] // _ITEM
            row[2:5] = leaf.totals
            of_row[5:8] = leaf.value, leaf.low, leaf.high
        allowed = self._backend.to_device(np.array([leaf.allowed for leaf in leaves]))
        found = self._calls.splits(
            self._backend.to_device(table), allowed, self._facts[1], facts, scales.tolist(),
            leaves[0].hist.shape,
        )  # fmt: skip
        told[:] = self._backend.to_numpy(found)


class CupyRows:
    """Rows of a lane in the leaves of a tree, on a GPU.

    Parameters
    ----------
    room : solvers.binned_rows.BinnedRows
    shape : tuple of int
        Of a histogram.
    backend : CupyBackend
    calls : TreeCalls

    Raises
    ------
    DeviceMemoryError
        They do not fit in the memory of the GPU.
    """

    def __init__(
        self, room: Any, shape: tuple[int, int, int], backend: Any, calls: TreeCalls
    ) -> None:
        self._room, self._shape, self._backend, self._calls = room, shape, backend, calls
        cp = calls.cupy
        with self._memory():
            self._bins = backend.to_device(np.ascontiguousarray(room.rows))
            self._raw = [backend.to_device(raw) for raw in room.extra["raw"]]
            self._packed: Any = None
            self._first = cp.arange(room.n, dtype=np.int32)
            self._index, self._spare = cp.empty_like(self._first), cp.empty_like(self._first)

    def _memory(self) -> AbstractContextManager[None]:
        return device_memory(
            f"{self._room.n:,} binned rows of a worker",
            'Use more workers, or device="cpu", whose trees are the same.',
        )

    def whole(self, mode: int, output: int) -> Any:
        """Put all rows in one leaf, and return its histogram."""
        with self._memory():
            self._packed = self._backend.to_device(self._room.extra["packed"][output])
            self._index[...] = self._first
            every = Part(0, np.zeros(256, np.uint8), slice(0, self._room.n), _ALL)
            return self._histograms(self._work([every], mode))

    def parted(self, parts: Sequence[Part], mode: int, output: int) -> tuple[Any, list[int]]:
        """Part the rows of some leaves; histograms, and where the right children begin."""
        with self._memory():
            work = self._work(parts, mode)
            self._calls.part(work, self._bins, self._index, self._spare)
            hist = self._histograms(work)
        middles: list[int] = self._backend.to_numpy(work.middles).tolist()
        return hist, middles

    def _work(self, parts: Sequence[Part], mode: int) -> Work:
        return self._calls.work(parts, mode, self._bins.shape[1] // 8)

    def _histograms(self, work: Work) -> Any:
        """Histograms of the leaves that ask for one, which lie one behind the other."""
        out = self._calls.cupy.zeros((work.n_slots, *self._shape), np.int64)
        self._calls.histograms(work, self._bins, self._packed, self._index, out)
        return out.transpose(1, 0, 2, 3)

    def answer(self, output: int, at: Sequence[slice], values: NDArray[np.float64]) -> None:
        """Add what leaves answer to the raw predictions of their rows, on both sides."""
        starts = np.array([s.start for s in at])
        filled = np.flatnonzero([s.stop > s.start for s in at])
        if not len(filled):
            return
        order = filled[starts[filled].argsort()]
        raw = self._raw[output]
        of_leaves = map(self._backend.to_device, (starts[order], values[order]))
        self._calls.answer(raw, self._index, *of_leaves)
        self._room.extra["raw"][output] = self._backend.to_numpy(raw)

    def leaves(self, at: Sequence[slice]) -> NDArray[np.int64]:
        """Number of the leaf of each row."""
        index = self._backend.to_numpy(self._index)
        found = np.zeros(self._room.n, np.int64)
        for number, of_leaf in enumerate(at):
            found[index[of_leaf]] = number
        return found
