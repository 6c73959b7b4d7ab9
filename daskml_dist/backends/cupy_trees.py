"""Growing trees on a GPU: the rows of a lane stay there, a byte for each entry.

Of a tree the host learns where leaves are, and their best splits; raw predictions come back where
somebody asks for them (losses of an early stop, medians of leaves).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.cupy_tree_calls import LeafWork, TreeCalls
from daskml_dist.backends.device_memory import device_memory
from daskml_dist.backends.trees import ROUNDED, LeafPartition, SplitFacts, SplitLeaf
from daskml_dist.errors import InvalidDataError

__all__ = ["CupyTreeRows", "CupyTrees"]

Array = NDArray[Any]

#: Channels of a histogram whose hessians are all 1.
_CONSTANT = 2
#: Outputs whose largest gradients and hessians the shared memory of a block holds.
_MOST_OUTPUTS = 6_144
#: Rows at most: their numbers have 32 bits.
_MOST_ROWS = 2**31 - 1
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
        self._facts: tuple[SplitFacts, slice, list[Any]] | None = None

    def rows(self, rooms: Sequence[Any], shape: tuple[int, int, int]) -> list[CupyTreeRows]:
        """Return the rows of all lanes as one."""
        with self.memory(sum(room.n for room in rooms)):
            return [CupyTreeRows(rooms, shape, self._backend, self._calls)]

    def memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Say what did not fit in the memory of the GPU."""
        return device_memory(
            f"What boosting keeps of {n_rows:,} rows of a worker",
            'Use more workers, or device="cpu", whose trees are the same.',
        )

    def to_host(self, hist: Any) -> Array:
        """Histograms in host memory."""
        found: Array = self._backend.to_numpy(hist)
        return found

    def find(
        self, leaves: Sequence[SplitLeaf], first: int, facts: SplitFacts,
        scales: NDArray[np.float64], told: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Find the best split of some leaves: a warp for each and each feature."""
        of = slice(first, first + leaves[0].hist.shape[0])
        if of.start == of.stop:  # more trainers than features
            told[:, :1].view(np.float64)[:] = -1.0
            return
        if self._facts is None or self._facts[0] is not facts or self._facts[1] != of:
            arrays = facts.counts, facts.missing, facts.categorical, facts.signs
            self._facts = facts, of, [self._backend.to_device(array[of]) for array in arrays]
        table = np.empty((len(leaves), 8), np.int64)
        numbers = table.view(np.float64)
        for row, of_row, leaf in zip(table, numbers, leaves, strict=True):
            row[0], row[1] = self._calls.address(leaf.hist), leaf.hist.strides[0] // _ITEM
            row[2:5] = leaf.totals
            of_row[5:8] = leaf.value, leaf.low, leaf.high
        allowed = np.array([leaf.allowed[of] for leaf in leaves])
        on_device = self._calls.copy_together(table, allowed)
        found = self._calls.splits(
            on_device[0], on_device[1], self._facts[2], facts, scales.tolist(),
            leaves[0].hist.shape,
        )  # fmt: skip
        told[:] = self._backend.to_numpy(found)
        told[told[:, :1].view(np.float64)[:, 0] > 0, 1] += first


class CupyTreeRows:
    """Rows of a trainer's lanes in the leaves of a tree, on a GPU.

    Parameters
    ----------
    rooms : sequence of solvers.binning.BinnedRows
        Of each lane, one at least.
    shape : tuple of int
        Of a histogram.
    backend : CupyBackend
    calls : TreeCalls

    Raises
    ------
    InvalidDataError
        There are too many classes, or rows.
    """

    def __init__(
        self, rooms: Sequence[Any], shape: tuple[int, int, int], backend: Any, calls: TreeCalls
    ) -> None:
        self.rooms, self._shape, self._backend, self._calls = list(rooms), shape, backend, calls
        ends = np.cumsum([room.n for room in rooms]).tolist()
        self._places = [slice(end - room.n, end) for end, room in zip(ends, rooms, strict=True)]
        self.n = n = int(ends[-1])
        cp, k = calls.cupy, len(rooms[0].extra["raw"])
        if n > _MOST_ROWS:
            raise InvalidDataError(
                f"A worker has {n:,} rows, and boosting on a GPU takes {_MOST_ROWS:,}. Use more "
                'workers, or device="cpu", whose trees are the same.'
            )
        if k > _MOST_OUTPUTS:
            raise InvalidDataError(
                f"y has {k:,} classes, and boosting on a GPU takes {_MOST_OUTPUTS:,}. Use "
                'device="cpu", whose trees are the same.'
            )
        self._bins = self._joined([room.rows for room in rooms])
        self._y = self._joined([room.y for room in rooms])
        self._salt = self._joined([room.salt for room in rooms])
        # All rows have weights, or none; of a lane without rows nobody knows.
        if all(room.weight is None for room in rooms):
            self._weight = None
        else:
            weights = [room.y if room.weight is None else room.weight for room in rooms]
            self._weight = self._joined(weights)
        self._raw = cp.empty((k, n), np.float64)
        for room, at in zip(rooms, self._places, strict=True):
            self._raw[:, at] = backend.to_device(room.extra["raw"])
        self._g = cp.empty((k, n), np.float32)
        self._h = None if shape[2] == _CONSTANT else cp.empty((k, n), np.float32)
        self._packed = cp.empty((k, n), np.int64)
        self._first = cp.arange(n, dtype=np.int32)
        self._index, self._spare = cp.empty_like(self._first), cp.empty_like(self._first)

    def _joined(self, parts: Sequence[Array]) -> Any:
        """Copy the rows of all lanes to one array on the device, without a second copy of all."""
        first, *others = parts
        if not others:
            return self._backend.to_device(np.ascontiguousarray(first))
        out = self._calls.cupy.empty((self.n, *first.shape[1:]), first.dtype)
        for part, at in zip(parts, self._places, strict=True):
            out[at] = self._backend.to_device(np.ascontiguousarray(part))
        return out

    def gradients(self, loss: Any, constant: bool) -> NDArray[np.float64]:
        """Make gradients and hessians in float32; the largest of each output."""
        largest = self._calls.gradients(loss, self._y, self._raw, self._weight, self._g, self._h)
        found = self._backend.to_numpy(largest).view(np.float32)
        return np.asarray(found, np.float64)

    def pack(
        self, output: int, mode: int, g_scale: float, h_scale: float, key: int
    ) -> tuple[int, int]:
        """Pack the gradients of an output."""
        h = None if self._h is None else self._h[output]
        sums = self._calls.quantise(
            self._g[output], h, self._salt, self._packed[output], mode, g_scale, h_scale, key
        )
        if mode != ROUNDED:
            return 0, 0
        squares, hessians = self._backend.to_numpy(sums).tolist()
        return squares, hessians

    def whole(self, mode: int, output: int) -> Any:
        """Put all rows in one leaf, and return its histogram."""
        self._index[...] = self._first
        every = LeafPartition(0, np.zeros(256, np.uint8), slice(0, self.n), _ALL)
        return self._histograms(self._work([every], mode), output)

    def parted(
        self, parts: Sequence[LeafPartition], mode: int, output: int
    ) -> tuple[Any, list[int]]:
        """Part the rows of some leaves; histograms, and where the right children begin."""
        work = self._work(parts, mode)
        self._calls.part(work, self._bins, self._index, self._spare)
        hist = self._histograms(work, output)
        # Without a question to the device the host goes on while the kernels run.
        known = [part.at.start + part.n_left for part in parts if part.n_left is not None]
        if len(known) == len(parts):
            return hist, known
        middles: list[int] = self._backend.to_numpy(work.middles).tolist()
        return hist, middles

    def _work(self, parts: Sequence[LeafPartition], mode: int) -> LeafWork:
        return self._calls.work(parts, mode, self._bins.shape[1] // 8)

    def _histograms(self, work: LeafWork, output: int) -> Any:
        """Histograms of the leaves that ask for one, which lie one behind the other."""
        out = self._calls.cupy.zeros((work.n_slots, *self._shape), np.int64)
        self._calls.histograms(work, self._bins, self._packed[output], self._index, out)
        return out.transpose(1, 0, 2, 3)

    def answer(self, output: int, at: Sequence[slice], values: NDArray[np.float64]) -> None:
        """Add what leaves answer to the raw predictions of their rows."""
        starts = np.array([s.start for s in at])
        filled = np.flatnonzero([s.stop > s.start for s in at])
        if not len(filled):
            return
        order = filled[starts[filled].argsort()]
        of_leaves = self._calls.copy_together(starts[order], values[order])
        self._calls.answer(self._raw[output], self._index, *of_leaves)
        # Those of the host are behind: nobody may read them, and who goes on makes them anew.
        for room in self.rooms:
            room.extra.pop("raw", None)

    def bring_raw(self) -> None:
        """Bring raw predictions to the host."""
        raw = self._backend.to_numpy(self._raw)
        for room, at in zip(self.rooms, self._places, strict=True):
            room.extra["raw"] = raw[:, at]

    def leaves(self, at: Sequence[slice]) -> list[NDArray[np.int64]]:
        """Return, for each lane, the number of the leaf of each row."""
        index = self._backend.to_numpy(self._index)
        found = np.zeros(self.n, np.int64)
        for number, of_leaf in enumerate(at):
            found[index[of_leaf]] = number
        return [found[place] for place in self._places]
