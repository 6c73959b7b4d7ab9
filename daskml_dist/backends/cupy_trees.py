"""Trees of boosting on a GPU: growth on rows that stay there, and predictions.

Rows have one byte per entry. The host gets only the positions of a tree's leaves and their best
splits; raw predictions are copied back on request (losses for early stopping, medians of leaves).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import kernels
from daskml_dist.backends.cupy_bins import join_bins
from daskml_dist.backends.cupy_calls import KernelCalls
from daskml_dist.backends.devices import device_memory
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.backends.trees import (
    EXACT,
    ROUNDED,
    LeafPartition,
    SplitFacts,
    SplitLeaf,
    largest_sizes,
    order_by_choice,
)
from daskml_dist.errors import InvalidDataError

#: Consecutive index entries that a block partitions; as in tree_tasks.cuh.
_ROWS_PER_TILE = 1024
#: Minimum and maximum rows summed by a block; the maximum keeps packed sums from overflowing.
_MIN_CHUNK_ROWS, _MAX_CHUNK_ROWS = 512, 8_191
#: Histogram blocks per multiprocessor: each multiprocessor gets two rounds of them.
_BLOCKS_PER_MULTIPROCESSOR = 12
#: Features of a word; words of bins processed by a block.
_FEATURES_PER_WORD, _WORDS_PER_BLOCK = 8, 2
#: Numbers that describe a split.
_NUMBERS_PER_SPLIT = 12


@dataclass(frozen=True, eq=False, slots=True)
class LeafWork:
    """Description, on a device, of leaves whose rows are partitioned and summed together.

    Parameters
    ----------
    tasks : array of int64 of shape (n_tasks, 7)
        Columns as in tree_tasks.cuh.
    tables : array of uint8 of shape (n_tasks, 256)
        For each leaf, which bins go left.
    middles : array of int64 of shape (n_tasks,)
        Positions at which the rows that go right will begin.
    n_tiles, n_groups, n_units, n_slots : int
        Runs of rows to partition, groups of features, parts of histograms, histograms.
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


class TreeCalls(KernelCalls):
    """Calls of the kernels that grow trees, on one device.

    Parameters
    ----------
    cupy, address
        As in `KernelCalls`.
    send_small : callable
        Copies the bytes of some small arrays to one array on the device.
    """

    def __init__(
        self,
        cupy: Any,
        address: Callable[[Any], int],
        send_small: Callable[[Sequence[NDArray[np.uint8]]], Any],
    ) -> None:
        super().__init__(cupy, address)
        self._send_small = send_small
        #: Compiled functions by name: looking one up by its options takes longer than launching it,
        #: and a tree needs a hundred launches.
        self._functions: dict[str, Any] = {}

    def copy_together(self, *arrays: NDArray[Any]) -> list[Any]:
        """Copy small arrays to the device in one transfer, which costs more than its bytes."""
        parts = [array.reshape(-1).view(np.uint8) for array in arrays]
        on_device, copies, start = self._send_small(parts), [], 0
        for array in arrays:
            array_bytes = on_device[start : start + array.nbytes]
            copies.append(array_bytes.view(array.dtype).reshape(array.shape))
            start += array.nbytes
        return copies

    def gradients(self, loss: Any, y: Any, raw: Any, weight: Any, g: Any, h: Any) -> Any:
        """Compute gradients and hessians; return the bits of the largest of each output.

        Parameters
        ----------
        loss : BoostLoss
        y, weight : array of float64 of shape (n,); weight or None
        raw : array of float64 of shape (n_outputs, n)
        g, h : array of float32 of shape (n_outputs, n); h or None, if all are 1
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
        """Pack the gradients of an output; see `TreeRows.pack_output_gradients`."""
        sums, n = self.cupy.zeros(2, np.int64), len(g)
        arrays = g, h, salt, packed, sums
        self._tree("tree_gradients", "tree_quantise", n, *arrays, n, mode, key, g_scale, h_scale)
        return sums

    def describe_leaves(
        self, partitions: Sequence[LeafPartition], mode: int, n_words: int
    ) -> LeafWork:
        """Copy the description of some leaves to the device."""
        n_groups = n_words if mode == EXACT else -(-n_words // _WORDS_PER_BLOCK)
        rows = [part.row_slice.stop - part.row_slice.start for part in partitions]
        n_requested = sum(
            n for n, part in zip(rows, partitions, strict=True) if part.requested_side >= 0
        )
        # Rows per block: few enough to use all multiprocessors, and enough that adding the block's
        # histogram to memory costs little.
        chunk = -(-n_requested * n_groups // (_BLOCKS_PER_MULTIPROCESSOR * self._n_sms))
        chunk = min(max(chunk, _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS)
        numbers, tile, unit, slot = [], 0, 0, 0
        for part, n in zip(partitions, rows, strict=True):
            # Columns as in tree_tasks.cuh.
            numbers.append(
                (
                    part.feature,
                    part.row_slice.start,
                    part.row_slice.stop,
                    part.requested_side,
                    slot,
                    tile,
                    unit,
                )
            )
            tile += -(-n // _ROWS_PER_TILE)
            if part.requested_side >= 0:
                slot += 1
                unit += -(-n // chunk) * n_groups
        tasks, tables = np.array(numbers, np.int64), np.array([part.table for part in partitions])
        # `tree_scan` writes the middles; histograms of all rows do not read them.
        middles = self.cupy.empty(len(partitions), np.int64)
        on_device = self.copy_together(tasks, tables)
        return LeafWork(
            on_device[0], on_device[1], middles, tile, n_groups, unit, slot, chunk, mode
        )

    def partition_rows(self, work: LeafWork, bins: Any, index: Any, spare_index: Any) -> None:
        """Move the rows of leaves that go left before the others, keeping their order."""
        n_tasks, n_tiles, width = len(work.middles), work.n_tiles, bins.shape[1]
        # Stable partition in four launches: count by tile, scan, write to the spare index, copy
        # back.
        counts = self.cupy.empty(n_tiles, np.int32)
        inputs, ends = (bins, index, work.tasks, work.tables, counts), (n_tasks, n_tiles)
        of_tasks = work.tasks, counts, work.middles
        self._tree("tree_partition", "tree_count", n_tiles, *inputs, *ends, width)
        self._tree("tree_partition", "tree_scan", n_tasks, *of_tasks, *ends)
        outputs = work.middles, spare_index
        self._tree("tree_partition", "tree_part", n_tiles, *inputs, *outputs, *ends, width)
        self._tree("tree_partition", "tree_back", n_tiles, index, work.tasks, spare_index, *ends)

    def histograms(self, work: LeafWork, bins: Any, packed: Any, index: Any, out: Any) -> None:
        """Add the requested histograms to `out`, of shape (n_slots, d, n_bins, channels)."""
        _, d, n_bins, channels = out.shape
        numbers = (
            len(work.middles), work.n_units, work.n_groups, work.chunk,
            bins.shape[1] // _FEATURES_PER_WORD, d, n_bins, work.mode, n_bins * channels,
            d * n_bins * channels,
        )  # fmt: skip
        arrays = bins, packed, index, work.tasks, work.middles, out
        self._tree("tree_histograms", "tree_histograms", work.n_units, *arrays, *numbers)

    def splits(
        self, leaves: Any, allowed: Any, features: Sequence[Any], settings: SplitFacts,
        scales: Sequence[float], shape: tuple[int, int, int],
    ) -> Any:  # fmt: skip
        """Find the best splits of some leaves; see `TreeDevice.find_best_splits`.

        Parameters
        ----------
        leaves : array of int64 of shape (n_leaves, 8)
            Columns as in tree_splits.cu.
        allowed : array of uint8 of shape (n_leaves, n_features)
        features : sequence of array
            The arrays of `settings`, in order.
        settings : SplitFacts
        scales : sequence of float
        shape : tuple of int
            Shape of a leaf's histogram.
        """
        (d, n_bins, channels), n = shape, len(leaves)
        splits = self.cupy.empty((n, d, _NUMBERS_PER_SPLIT), np.int64)
        best = self.cupy.empty((n, _NUMBERS_PER_SPLIT), np.int64)
        self._tree(
            "tree_splits", "tree_splits", n * d, leaves, allowed, *features, splits, n, d,
            n_bins - 1, channels, *scales, float(settings.l2), float(settings.least_hessian),
            int(settings.least_rows),
        )  # fmt: skip
        self._tree("tree_splits", "tree_best", n, splits, best, n, d)
        return best

    def answer(self, raw: Any, index: Any, starts: Any, values: Any) -> None:
        """Add the values of leaves to the raw predictions of their rows."""
        n = len(index)
        self._tree("tree_partition", "tree_answer", n, raw, index, starts, values, n, len(starts))

    def _tree(self, source: str, function: str, n: int, *arguments: Any, k: int = 1) -> None:
        """Launch a kernel of trees over n of its units."""
        launch = kernels.launch(function, n, 1, "float32", self._n_sms, k=k)
        assert launch is not None
        kernel = self._functions.get(function)
        if kernel is None:
            call = self._call(source, "float32", function, launch)
            kernel = self._functions[function] = call.function
        # None is a null pointer.
        pointers = tuple([0 if argument is None else argument for argument in arguments])
        kernel((launch.grid,), launch.block, pointers, shared_mem=launch.shared)


Array = NDArray[Any]

#: Maximum entries of sparse rows that are made dense together.
_MAX_DENSE_ENTRIES = 1 << 24
#: A node and its flags, as in tree_predict.cu.
_NODE_DTYPE = np.dtype([("threshold", np.float64), ("left", np.int32), ("feature", np.int32)])
_MISSING_LEFT, _CATEGORY = 1, 2


class CupyForest:
    """Trees on a GPU, as a function from rows to the sums of the trees' values.

    Parameters
    ----------
    backend : CupyBackend
    trees : models.trees.Trees
    start : ndarray of float64 of shape (n_outputs,)
        Added to the sums. If trees have one value each and there are several outputs, trees belong
        to the outputs in turn.
    """

    def __init__(self, backend: Any, trees: Any, start: NDArray[np.float64]) -> None:
        self._backend, self._start = backend, start
        self._calls = _PredictCalls(backend.calls.cupy, backend.calls.address)
        arrays = (
            trees.roots[:-1], pack_nodes(trees.nodes), _ensure_nonempty(trees.nodes.bitsets),
            *_join_categories(trees.bins), np.ascontiguousarray(trees.nodes.value),
        )  # fmt: skip
        self._arrays = [backend.to_device(array) for array in arrays]
        self._n_features = trees.bins.n_features

    def __call__(self, X: Any) -> NDArray[np.float64]:
        """Return the sums (n, n_outputs) in host memory; sparse rows are made dense in slices."""
        cp, n = self._calls.cupy, X.shape[0]
        out = cp.empty((n, len(self._start)), np.float64)
        out[...] = self._backend.to_device(self._start)
        if hasattr(X, "tocsr"):
            for row_slice in row_slices(n, max(1, _MAX_DENSE_ENTRIES // max(self._n_features, 1))):
                self._calls.predict(
                    cp.ascontiguousarray(X[row_slice].toarray()), self._arrays, out[row_slice]
                )
        else:
            self._calls.predict(cp.ascontiguousarray(X), self._arrays, out)
        sums: NDArray[np.float64] = self._backend.to_numpy(out)
        return sums


def pack_nodes(nodes: Any) -> NDArray[np.float64]:
    """Return nodes of 16 bytes each, as pairs of numbers whose bits the kernel reads."""
    packed = np.empty(len(nodes.feature), _NODE_DTYPE)
    packed["threshold"], packed["left"] = nodes.threshold, nodes.left
    of_category = nodes.category >= 0
    # For a split by categories, the threshold's bits hold the number of its bitset.
    packed["threshold"][of_category] = nodes.category[of_category].astype(np.int64).view(np.float64)
    flags = nodes.missing_left * _MISSING_LEFT + of_category * _CATEGORY
    packed["feature"] = np.where(nodes.feature < 0, -1, nodes.feature * 4 + flags)
    return packed.view(np.float64)


def _join_categories(bins: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the concatenated categories of all features, and where each feature's begin."""
    categories = [e if c else e[:0] for e, c in zip(bins.edges, bins.categorical, strict=True)]
    firsts = np.cumsum([0, *map(len, categories)])
    return _ensure_nonempty(np.concatenate([np.empty(0), *categories])), firsts.astype(np.int64)


def _ensure_nonempty(array: Array) -> Array:
    """Return the array, or one zero if it is empty: a device has no empty arrays."""
    return array if array.size else np.zeros(1, array.dtype)


class _PredictCalls(KernelCalls):
    """Calls of the kernel of predictions."""

    def predict(self, X: Any, arrays: list[Any], out: Any) -> None:
        """Add the values of the leaves that rows reach to `out`."""
        (n, d), (roots, *_, values) = X.shape, arrays
        launch = kernels.launch("tree_predict", n, d, X.dtype, self._n_sms)
        self._call(
            "tree_predict", X.dtype, "tree_predict", launch, X, *arrays, out, n, d, len(roots),
            values.shape[1], out.shape[1],
        )()  # fmt: skip


#: Channels of a histogram if all hessians are 1.
_CONSTANT_CHANNELS = 2
#: Maximum outputs whose largest gradients and hessians fit in a block's shared memory.
_MAX_OUTPUTS = 6_144
#: Maximum rows: row numbers have 32 bits.
_MAX_ROWS = 2**31 - 1
#: Value of `side` for a histogram of all rows of a leaf.
_ALL_ROWS_SIDE = 2
#: Bytes of a number in a histogram.
_HISTOGRAM_ITEM_BYTES = 8


class CupyTrees:
    """GPU on which trees grow.

    Parameters
    ----------
    backend : CupyBackend
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._calls = TreeCalls(backend.calls.cupy, backend.calls.address, backend.send_small)
        self._device_settings: tuple[SplitFacts, slice, list[Any]] | None = None

    def open_rows(
        self, binned_rows: Sequence[Any], shape: tuple[int, int, int]
    ) -> list[CupyTreeRows]:
        """Return the rows of all lanes as one."""
        with self.guard_memory(sum(binned.n for binned in binned_rows)):
            return [CupyTreeRows(binned_rows, shape, self._backend, self._calls)]

    def guard_memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Turn out-of-memory errors of the GPU into an error that names the data."""
        return device_memory(
            f"What boosting keeps of {n_rows:,} rows of a worker",
            'Use more workers, or device="cpu", whose trees are the same.',
        )

    def copy_to_host(self, hist: Any) -> Array:
        """Return histograms in host memory."""
        on_host: Array = self._backend.to_numpy(hist)
        return on_host

    def find_best_splits(
        self, leaves: Sequence[SplitLeaf], first: int, settings: SplitFacts,
        scales: NDArray[np.float64], splits: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Find the best split of some leaves, with a warp per leaf and feature."""
        owned = slice(first, first + leaves[0].hist.shape[0])
        if owned.start == owned.stop:  # more trainers than features
            splits[:, :1].view(np.float64)[:] = -1.0
            return
        if (
            self._device_settings is None
            or self._device_settings[0] is not settings
            or self._device_settings[1] != owned
        ):
            arrays = (
                settings.counts,
                settings.missing,
                settings.categorical,
                settings.monotonic_signs,
            )
            self._device_settings = (
                settings,
                owned,
                [self._backend.to_device(array[owned]) for array in arrays],
            )
        table = np.empty((len(leaves), 8), np.int64)
        # Columns as in `Leaf` of tree_splits.cu: histograms are not copied, but given by address
        # and stride. Written column by column, since the device waits for the host here.
        table[:, 0] = [self._calls.address(leaf.hist) for leaf in leaves]
        table[:, 1] = [leaf.hist.strides[0] // _HISTOGRAM_ITEM_BYTES for leaf in leaves]
        table[:, 2:5] = [leaf.totals for leaf in leaves]
        table.view(np.float64)[:, 5:8] = [(leaf.value, leaf.low, leaf.high) for leaf in leaves]
        allowed = np.array([leaf.allowed[owned] for leaf in leaves])
        on_device = self._calls.copy_together(table, allowed)
        device_splits = self._calls.splits(
            on_device[0], on_device[1], self._device_settings[2], settings, scales.tolist(),
            leaves[0].hist.shape,
        )  # fmt: skip
        splits[:] = self._backend.to_numpy(device_splits)
        # Features are numbered from the first that this trainer owns.
        splits[splits[:, :1].view(np.float64)[:, 0] > 0, 1] += first


class CupyTreeRows:
    """Rows of a trainer's lanes in the leaves of a tree, on a GPU.

    Parameters
    ----------
    binned_rows : sequence of solvers.binning.BinnedRows
        One per lane, at least one.
    shape : tuple of int
        Shape of a histogram.
    backend : CupyBackend
    calls : TreeCalls

    Raises
    ------
    InvalidDataError
        There are too many classes, or rows.
    """

    def __init__(
        self,
        binned_rows: Sequence[Any],
        shape: tuple[int, int, int],
        backend: Any,
        calls: TreeCalls,
    ) -> None:
        self.binned_rows, self._shape = list(binned_rows), shape
        self._backend, self._calls = backend, calls
        ends = np.cumsum([binned.n for binned in binned_rows]).tolist()
        self._places = [slice(a, b) for a, b in pairwise([0, *ends])]
        self.n = self.n_chosen = n = int(ends[-1])
        cp, k = calls.cupy, len(binned_rows[0].extra["raw"])
        if n > _MAX_ROWS:
            raise InvalidDataError(
                f"A worker has {n:,} rows, and boosting on a GPU takes {_MAX_ROWS:,}. Use more "
                'workers, or device="cpu", whose trees are the same.'
            )
        if k > _MAX_OUTPUTS:
            raise InvalidDataError(
                f"y has {k:,} classes, and boosting on a GPU takes {_MAX_OUTPUTS:,}. Use "
                'device="cpu", whose trees are the same.'
            )
        self._bins = join_bins(self.binned_rows, backend)
        self._y, self._salt = (
            self._joined([getattr(binned, name) for binned in binned_rows])
            for name in ("y", "salt")
        )
        # All lanes have weights, or none has; lanes without rows do not count.
        weights = [b.y if b.weight is None else b.weight for b in binned_rows]
        has_weights = any(binned.weight is not None for binned in binned_rows)
        self._weight = self._joined(weights) if has_weights else None
        self._raw = cp.empty((k, n), np.float64)
        for binned, place in zip(binned_rows, self._places, strict=True):
            self._raw[:, place] = backend.to_device(binned.extra["raw"])
        self._g = cp.empty((k, n), np.float32)
        self._h = None if shape[2] == _CONSTANT_CHANNELS else cp.empty((k, n), np.float32)
        self._packed = cp.empty((k, n), np.int64)
        self._first = cp.arange(n, dtype=np.int32)
        self._index, self._spare_index = cp.empty_like(self._first), cp.empty_like(self._first)

    def _joined(self, chunks: Sequence[Array]) -> Any:
        """Copy the rows of all lanes to one array on the device, without a second full copy."""
        first, *later_parts = chunks
        if not later_parts:
            return self._backend.to_device(np.ascontiguousarray(first))
        # Bounds of times in lanes without rows have the dtype of other targets.
        dtype = np.result_type(*chunks)
        out = self._calls.cupy.empty((self.n, *first.shape[1:]), dtype)
        for part, place in zip(chunks, self._places, strict=True):
            out[place] = self._backend.to_device(np.ascontiguousarray(part))
        return out

    def make_gradients(self, loss: Any, constant: bool) -> NDArray[np.float64]:
        """Compute gradients and hessians in float32; return the largest of each output."""
        if loss.kernel not in kernels.TREE_LOSSES:  # a user's loss: computed by the host
            return self._make_on_host(loss, constant)
        largest = self._calls.gradients(loss, self._y, self._raw, self._weight, self._g, self._h)
        largest_values = self._backend.to_numpy(largest).view(np.float32)
        return np.asarray(largest_values, np.float64)

    def _make_on_host(self, loss: Any, constant: bool) -> NDArray[np.float64]:
        """Compute gradients and hessians on the host; return the largest of each output."""
        self.fetch_raw_predictions()
        pairs = []
        for binned in self.binned_rows:
            g = np.empty(binned.n, np.float32)
            h = np.empty(0 if constant else binned.n, np.float32)
            loss.write_gradients(binned.y, binned.extra["raw"], binned.weight, g, h)
            pairs.append((g, h))
        gradients, hessians = zip(*pairs, strict=True)
        return self.set_gradients(gradients, hessians)

    def set_gradients(
        self, g: Sequence[NDArray[np.float64]], h: Sequence[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Store gradients and hessians of one output that the host computed."""
        on_host = [np.concatenate(parts).astype(np.float32) for parts in (g, h)]
        for target, values in zip((self._g, self._h), on_host, strict=True):
            if target is not None:
                target[0] = self._backend.to_device(values)
        return largest_sizes(*on_host)

    def fetch_gradients(self) -> list[NDArray[np.float32]]:
        """Return the gradients of each lane, (n_outputs, n), in host memory."""
        g = self._backend.to_numpy(self._g)
        return [g[:, place] for place in self._places]

    def multiply_gradients(self, factors: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Multiply the gradients and hessians of each row by its factor; return the largest."""
        assert self._h is not None, "hessians are 1, and factors are not"
        if not self.n:
            return np.zeros((2, len(self._g)))
        of_rows, cp, maxima = self._joined(factors), self._calls.cupy, []
        for values in (self._g, self._h):
            values *= of_rows
            maxima.append(self._backend.to_numpy(cp.abs(values).max(axis=1)))
        return np.array(maxima, np.float64)

    def pack_output_gradients(
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

    def choose_rows(self, is_chosen: Sequence[NDArray[np.bool_]]) -> None:
        """Let trees grow on some rows only."""
        order = np.empty(self.n, np.int32)
        self.n_chosen = order_by_choice(np.concatenate(is_chosen), order)
        self._first[...] = self._backend.to_device(order)

    def order_rows(self) -> None:
        """Put all rows in one leaf: the chosen rows, then the others, each in order."""
        self._index[...] = self._first

    def build_root_histogram(self, mode: int, output: int) -> Any:
        """Put all rows in one leaf, and return the histogram of the chosen ones."""
        self.order_rows()
        root = LeafPartition(0, np.zeros(256, np.uint8), slice(0, self.n_chosen), _ALL_ROWS_SIDE)
        return self._histograms(self._work([root], mode), output)

    def partition_leaves(
        self, partitions: Sequence[LeafPartition], mode: int, output: int
    ) -> tuple[Any, list[int]]:
        """Partition the rows of some leaves; return histograms and where right children begin."""
        work = self._work(partitions, mode)
        self._calls.partition_rows(work, self._bins, self._index, self._spare_index)
        hist = self._histograms(work, output)
        # If no reply from the device is needed, the host continues while the kernels run.
        known_middles = [
            part.row_slice.start + part.n_left for part in partitions if part.n_left is not None
        ]
        if len(known_middles) == len(partitions):
            return hist, known_middles
        middles: list[int] = self._backend.to_numpy(work.middles).tolist()
        return hist, middles

    def _work(self, partitions: Sequence[LeafPartition], mode: int) -> LeafWork:
        """Return the work for some leaves, as the kernels need it."""
        return self._calls.describe_leaves(partitions, mode, self._bins.shape[1] // 8)

    def _histograms(self, work: LeafWork, output: int) -> Any:
        """Return the requested histograms of leaves, one after the other."""
        out = self._calls.cupy.zeros((work.n_slots, *self._shape), np.int64)
        self._calls.histograms(work, self._bins, self._packed[output], self._index, out)
        return out.transpose(1, 0, 2, 3)

    def add_leaf_values(
        self, output: int, leaf_slices: Sequence[slice], values: NDArray[np.float64]
    ) -> None:
        """Add the values of leaves to the raw predictions of their rows."""
        starts = np.array([s.start for s in leaf_slices])
        # The kernel finds a row's leaf by binary search among the starts, which must be sorted.
        filled = np.flatnonzero([s.stop > s.start for s in leaf_slices])
        if not len(filled):
            return
        order = filled[starts[filled].argsort()]
        of_leaves = self._calls.copy_together(starts[order], values[order])
        self._calls.answer(self._raw[output], self._index, *of_leaves)
        # The host's copies are outdated: they must not be read, and are recomputed when a fit is
        # continued.
        for binned in self.binned_rows:
            binned.extra.pop("raw", None)

    def fetch_raw_predictions(self) -> None:
        """Copy raw predictions to the host."""
        raw = self._backend.to_numpy(self._raw)
        for binned, place in zip(self.binned_rows, self._places, strict=True):
            binned.extra["raw"] = raw[:, place]

    def find_row_leaves(self, leaf_slices: Sequence[slice]) -> list[NDArray[np.int64]]:
        """Return, for each lane, the number of the leaf of each row."""
        index = self._backend.to_numpy(self._index)
        leaf_numbers = np.zeros(self.n, np.int64)
        for number, of_leaf in enumerate(leaf_slices):
            leaf_numbers[index[of_leaf]] = number
        return [leaf_numbers[place] for place in self._places]
