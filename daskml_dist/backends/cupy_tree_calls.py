"""From arrays on a device to launches of the kernels of trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import kernels
from daskml_dist.backends.cupy_calls import Calls
from daskml_dist.backends.trees import EXACT, LeafPartition, SplitFacts

__all__ = ["LeafWork", "TreeCalls"]

#: Neighbours of an index that a block parts; the word of tree_tasks.cuh.
_TILE = 1024
#: Rows that a block adds up at least, and at most, so that no packed sum overflows.
_LEAST, _MOST = 512, 8_191
#: Blocks that sum histograms, a multiprocessor: they have two turns each.
_BLOCKS = 12
#: Features of a word; words of bins that a block takes.
_FEATURES, _WORDS = 8, 2
#: Numbers of a split.
_TOLD = 12


@dataclass(frozen=True, eq=False, slots=True)
class LeafWork:
    """Leaves whose rows are parted and summed together, as a device is told of them.

    Parameters
    ----------
    tasks : array of int64 of shape (n_tasks, 7)
        As tree_tasks.cuh has them.
    tables : array of uint8 of shape (n_tasks, 256)
        Of each leaf, which bins go left.
    middles : array of int64 of shape (n_tasks,)
        Where the rows that go right will begin.
    n_tiles, n_groups, n_units, n_slots : int
        Runs of rows that are parted, groups of features, parts of histograms, histograms.
    chunk : int
        Rows of a part of a histogram.
    mode : int
        How gradients are packed.
    """

    tasks: Any
    tables: Any
    middles: Any
    n_tiles: int
    n_groups: int
    n_units: int
    n_slots: int
    chunk: int
    mode: int


class TreeCalls(Calls):
    """Calls of the kernels that trees grow by, on one device."""

    def copy_together(self, *arrays: NDArray[Any]) -> list[Any]:
        """Copy small arrays to the device at once: each copy costs more than its bytes."""
        parts = [array.reshape(-1).view(np.uint8) for array in arrays]
        there, found, start = self.cupy.asarray(np.concatenate(parts)), [], 0
        for array in arrays:
            own = there[start : start + array.nbytes]
            found.append(own.view(array.dtype).reshape(array.shape))
            start += array.nbytes
        return found

    def gradients(self, loss: Any, y: Any, raw: Any, weight: Any, g: Any, h: Any) -> Any:
        """Set gradients and hessians; the bits of the largest of each output.

        Parameters
        ----------
        loss : solvers.boosting_losses.BoostLoss
        y, weight : array of float64 of shape (n,); weight or None
        raw : array of float64 of shape (n_outputs, n)
        g, h : array of float32 of shape (n_outputs, n); h or None, where all are 1
        """
        k, n = raw.shape
        largest = self.cupy.zeros((2, k), np.uint32)
        self._tree(
            "tree_gradients", "tree_gradients", n, y, raw, weight, g, h, largest, n, k,
            kernels.TREE_LOSSES.index(loss.kernel), float(loss.quantile or 0.0), k=k,
        )  # fmt: skip
        return largest

    def quantise(
        self, g: Any, h: Any, salt: Any, packed: Any, mode: int, g_scale: float, h_scale: float,
        key: int,
    ) -> Any:  # fmt: skip
        """Pack the gradients of an output; see `TreeRows.pack`."""
        sums, n = self.cupy.zeros(2, np.int64), len(g)
        arrays = g, h, salt, packed, sums
        self._tree("tree_gradients", "tree_quantise", n, *arrays, n, mode, key, g_scale, h_scale)
        return sums

    def work(self, parts: Sequence[LeafPartition], mode: int, words: int) -> LeafWork:
        """Tell the device of some leaves."""
        n_groups = words if mode == EXACT else -(-words // _WORDS)
        rows = [part.at.stop - part.at.start for part in parts]
        asked = sum(n for n, part in zip(rows, parts, strict=True) if part.side >= 0)
        chunk = -(-asked * n_groups // (_BLOCKS * self._n_sms))
        chunk = min(max(chunk, _LEAST), _MOST)
        tasks, tile, unit, slot = np.zeros((len(parts), 7), np.int64), 0, 0, 0
        for task, part, n in zip(tasks, parts, rows, strict=True):
            task[:] = part.feature, part.at.start, part.at.stop, part.side, slot, tile, unit
            tile += -(-n // _TILE)
            if part.side >= 0:
                slot += 1
                unit += -(-n // chunk) * n_groups
        tables = np.array([part.table for part in parts])
        # `tree_scan` writes the middles, and histograms of all rows read none.
        middles = self.cupy.empty(len(parts), np.int64)
        on_device = self.copy_together(tasks, tables)
        return LeafWork(
            on_device[0], on_device[1], middles, tile, n_groups, unit, slot, chunk, mode
        )

    def part(self, work: LeafWork, bins: Any, index: Any, spare: Any) -> None:
        """Bring the rows of leaves that go left before the others, in their order."""
        n_tasks, n_tiles, width = len(work.middles), work.n_tiles, bins.shape[1]
        counts = self.cupy.empty(n_tiles, np.int32)
        given, ends = (bins, index, work.tasks, work.tables, counts), (n_tasks, n_tiles)
        of_tasks = work.tasks, counts, work.middles
        self._tree("tree_partition", "tree_count", n_tiles, *given, *ends, width)
        self._tree("tree_partition", "tree_scan", n_tasks, *of_tasks, *ends)
        parted = work.middles, spare
        self._tree("tree_partition", "tree_part", n_tiles, *given, *parted, *ends, width)
        self._tree("tree_partition", "tree_back", n_tiles, index, work.tasks, spare, *ends)

    def histograms(self, work: LeafWork, bins: Any, packed: Any, index: Any, out: Any) -> None:
        """Add the histograms that are asked for to `out`, (n_slots, d, n_bins, channels)."""
        _, d, n_bins, channels = out.shape
        numbers = (
            len(work.middles), work.n_units, work.n_groups, work.chunk,
            bins.shape[1] // _FEATURES, d, n_bins, work.mode, n_bins * channels,
            d * n_bins * channels,
        )  # fmt: skip
        arrays = bins, packed, index, work.tasks, work.middles, out
        self._tree("tree_histograms", "tree_histograms", work.n_units, *arrays, *numbers)

    def splits(
        self, leaves: Any, allowed: Any, features: Sequence[Any], facts: SplitFacts,
        scales: Sequence[float], shape: tuple[int, int, int],
    ) -> Any:  # fmt: skip
        """The best splits of some leaves; see `TreeDevice.find`.

        Parameters
        ----------
        leaves : array of int64 of shape (n_leaves, 8)
            As tree_splits.cu has them.
        allowed : array of uint8 of shape (n_leaves, n_features)
        features : sequence of array
            The arrays of `facts`, in their order.
        facts : SplitFacts
        scales : sequence of float
        shape : tuple of int
            Of a leaf's histogram.
        """
        (d, n_bins, channels), n = shape, len(leaves)
        told = self.cupy.empty((n, d, _TOLD), np.int64)
        best = self.cupy.empty((n, _TOLD), np.int64)
        self._tree(
            "tree_splits", "tree_splits", n * d, leaves, allowed, *features, told, n, d,
            n_bins - 1, channels, *scales, float(facts.l2), float(facts.least_hessian),
            int(facts.least_rows),
        )  # fmt: skip
        self._tree("tree_splits", "tree_best", n, told, best, n, d)
        return best

    def answer(self, raw: Any, index: Any, starts: Any, values: Any) -> None:
        """Add what leaves answer to the raw predictions of their rows."""
        n = len(index)
        self._tree("tree_partition", "tree_answer", n, raw, index, starts, values, n, len(starts))

    def _tree(self, source: str, function: str, n: int, *arguments: Any, k: int = 1) -> None:
        at = kernels.launch(function, n, 1, "float32", self._n_sms, k=k)
        self._call(source, "float32", function, at, *arguments)()
