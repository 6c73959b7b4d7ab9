"""Growing trees in host memory: compiled loops over the rows of leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import (
    VECTOR,
    LeafPartition,
    SplitFacts,
    SplitLeaf,
    largest_sizes,
    order_by_choice,
)

Array = NDArray[Any]

#: Rows whose gradients NumPy computes together, so that its temporary arrays (120 kB of float64
#: each) stay in the L2 cache.
_ROWS_AT_ONCE = 15_000
#: Up to this many rows, loops are not worth a second of compiling: NumPy gives the same gradients,
#: and the partition loop gives the same histogram of all rows.
_MAX_ROWS_IN_NUMPY = 1 << 10
#: int64 numbers from the packed sums of one feature to those of the next: the 256 bins, and a cache
#: line. Otherwise the same bin of all features would be at multiples of 2 KiB, where addresses
#: share a few cache sets and the processor confuses loads with stores of another address.
_PACKED_STRIDE = 264
#: Table of a split that sends the rows of all bins left.
_ALL_LEFT = np.ones(256, np.uint8)


class HostTrees:
    """CPU on which trees grow."""

    def open_rows(self, binned_rows: Sequence[Any], shape: tuple[int, int, int]) -> list[HostRows]:
        """Return the rows of each lane, each processed by a thread."""
        return [HostRows(binned, shape) for binned in binned_rows]

    def guard_memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Return a context that does nothing: the host's error is not changed."""
        return nullcontext()

    def copy_to_host(self, hist: Any) -> Array:
        """Return the histograms themselves."""
        return np.asarray(hist)

    def find_best_splits(
        self, leaves: Sequence[SplitLeaf], first: int, settings: SplitFacts,
        scales: NDArray[np.float64], splits: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Find the best split of some leaves, one after the other."""
        if scales.ndim == 2:
            self._find_best_vector_splits(leaves, first, settings, scales, splits)
            return
        from daskml_dist.backends.tree_kernels import compiled_search

        best_split = compiled_search(bool(settings.categorical.any()))
        for leaf, split_row in zip(leaves, splits, strict=True):
            of_leaf = np.array(
                [
                    leaf.value,
                    leaf.low,
                    leaf.high,
                    settings.l2,
                    settings.least_hessian,
                    settings.least_rows,
                ]
            )
            gain = best_split(
                leaf.hist, first, settings.counts, settings.missing, settings.categorical,
                settings.monotonic_signs, leaf.allowed, leaf.totals, scales, of_leaf,
                split_row[1:8], split_row[8:].view(np.uint64),
            )  # fmt: skip
            split_row[:1].view(np.float64)[0] = gain

    def _find_best_vector_splits(
        self, leaves: Sequence[SplitLeaf], first: int, settings: SplitFacts,
        scales: NDArray[np.float64], splits: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Find the best split of leaves with several outputs, which share it."""
        from daskml_dist.backends.vector_tree_kernels import compiled_vector_search

        best_split = compiled_vector_search(bool(settings.categorical.any()))
        limits = np.array([settings.l2, settings.least_hessian, settings.least_rows])
        for leaf, split_row in zip(leaves, splits, strict=True):
            split_row[:1].view(np.float64)[0] = best_split(
                leaf.hist, first, settings.counts, settings.missing, settings.categorical,
                leaf.allowed, leaf.totals, scales, np.array(leaf.value), limits, split_row[1:-4],
                split_row[-4:].view(np.uint64),
            )  # fmt: skip


class HostRows:
    """Rows of a lane in the leaves of a tree.

    Parameters
    ----------
    binned : solvers.binning.BinnedRows
    shape : tuple of int
        Shape of a histogram.
    """

    def __init__(self, binned: Any, shape: tuple[int, int, int]) -> None:
        d, _, channels = shape
        self._binned, self._shape = binned, shape
        self.binned_rows, self.n = [binned], int(binned.n)
        self.n_chosen, self._order = self.n, np.empty(0, np.int32)
        # Packed sums of the bins, of one number or of two: the loops add them to a histogram before
        # they can overflow.
        self._packed_sums = np.zeros((d, _PACKED_STRIDE), np.int64)
        self._packed_pairs = np.zeros((d if channels == 3 else 0, _PACKED_STRIDE, 2), np.int64)
        self._out = np.empty(0, np.int64)

    def _allocate_histograms(self, n: int) -> Array:
        """Return arrays for the histograms of `n` leaves, valid until the next call.

        Dask's workers return freed memory to the system immediately, and new pages are expensive.
        """
        d, *inner_shape = self._shape
        size = n * math.prod(self._shape)
        if len(self._out) < size:
            self._out = np.empty(size, np.int64)
        return self._out[:size].reshape(d, n, *inner_shape)

    # Beyond the range of float32 they become infinite, which the caller looks for.
    @np.errstate(over="ignore")
    def make_gradients(self, loss: Any, constant: bool) -> NDArray[np.float64]:
        """Compute gradients and hessians in float32; return the largest size of each output."""
        from daskml_dist.backends.tree_kernels import GRADIENT_LOOPS

        binned, k = self._binned, loss.n_outputs
        g, h = self._allocate_gradients(k, constant)
        loss_maxima: NDArray[np.float64] | None = loss.write_gradients(
            binned.y, binned.extra["raw"], binned.weight, g[0], h[0] if len(h) else g[0, :0]
        )
        if loss_maxima is not None:
            return loss_maxima
        # One pass for the log loss; other losses in NumPy, a slice at a time that fits in a cache.
        compiled = GRADIENT_LOOPS.get(loss.kernel) if binned.n > _MAX_ROWS_IN_NUMPY else None
        if compiled is not None:
            maxima = np.zeros(2, np.float32)
            weight = np.empty(0) if binned.weight is None else binned.weight
            compiled(binned.y, binned.extra["raw"][0], weight, g[0], h[0], maxima)
            return maxima.astype(np.float64)[:, None]
        largest = np.zeros((2, k))
        for start in range(0, binned.n, _ROWS_AT_ONCE):
            tile = slice(start, min(binned.n, start + _ROWS_AT_ONCE))
            g_at, h_at = loss.gradients(binned.y[tile], binned.extra["raw"][:, tile])
            if binned.weight is not None:
                g_at = g_at * binned.weight[tile]
                h_at = (
                    np.broadcast_to(1.0 if h_at is None else h_at, g_at.shape) * binned.weight[tile]
                )
            # The largest float32 values, by which gradients are scaled to integers.
            g[:, tile] = g_at
            for end in (g[:, tile].max(axis=1), -g[:, tile].min(axis=1)):
                np.maximum(largest[0], end, out=largest[0])
            if not constant:
                h[:, tile] = 1.0 if h_at is None else h_at
                np.maximum(largest[1], h[:, tile].max(axis=1), out=largest[1])
        return largest

    def set_gradients(
        self, g: Sequence[NDArray[np.float64]], h: Sequence[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Store gradients and hessians of one output in float32; return the largest sizes."""
        own_g, own_h = self._allocate_gradients(1, constant=False)
        own_g[0], own_h[0] = g[0], h[0]
        return largest_sizes(own_g, own_h)

    def fetch_gradients(self) -> list[NDArray[np.float32]]:
        """Return the gradients of all rows, (n_outputs, n)."""
        return [self._binned.extra["given"][0]]

    def multiply_gradients(self, factors: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Multiply the gradients and hessians of each row by its factor; return largest sizes."""
        g, h = self._binned.extra["given"]
        for values in (*g, *h):
            values *= factors[0]
        return np.hstack([largest_sizes(*both) for both in zip(g, h, strict=True)])

    def _allocate_gradients(self, k: int, constant: bool) -> tuple[Array, Array]:
        """Return arrays for gradients and hessians, kept between trees: new pages are expensive."""
        binned = self._binned
        if "given" not in binned.extra:
            shape = k, binned.n
            of_h = (0, binned.n) if constant else shape
            g, h = (binned.allocate_zeros(array_shape, np.float32) for array_shape in (shape, of_h))
            binned.extra["given"] = g, h
        arrays: tuple[Array, Array] = binned.extra["given"]
        return arrays

    def pack_output_gradients(
        self, output: int, mode: int, g_scale: float, h_scale: float, key: int
    ) -> tuple[int, int]:
        """Pack the gradients of an output."""
        from daskml_dist.backends.tree_kernels import pack_gradients

        extra = self._binned.extra
        g, h = extra["given"]
        h = h[output] if len(h) else g[output, :0]
        squares, sums = pack_gradients(
            g[output], h, g_scale, h_scale, mode, self._binned.salt, np.uint32(key),
            extra["packed"][output],
        )  # fmt: skip
        return int(squares), int(sums)

    def pack_vectors(self, g_scales: NDArray[np.float64], h_scales: NDArray[np.float64]) -> None:
        """Round the gradients of all outputs to integers."""
        from daskml_dist.backends.vector_tree_kernels import round_gradients

        extra = self._binned.extra
        g, h = extra["given"]
        round_gradients(g, h, g_scales, h_scales, extra["packed"])

    def choose_rows(self, is_chosen: Sequence[NDArray[np.bool_]]) -> None:
        """Let trees grow on some rows only."""
        extra = self._binned.extra
        if "order" not in extra:  # kept, like the index, since new pages are expensive
            extra["order"] = self._binned.allocate_zeros((self.n,), np.int32)
        self._order = extra["order"]
        self.n_chosen = order_by_choice(is_chosen[0], self._order)

    def order_rows(self) -> None:
        """Put all rows in one leaf: the chosen rows, then the others, each in order."""
        # The index holds the rows leaf by leaf; before any split they are in order.
        index = self._binned.extra["index"]
        if len(self._order):
            index[:] = self._order
            return
        for start in range(0, self.n, _ROWS_AT_ONCE):
            stop = min(self.n, start + _ROWS_AT_ONCE)
            index[start:stop] = np.arange(start, stop, dtype=np.int32)

    def build_root_histogram(self, mode: int, output: int) -> Array:
        """Put all rows in one leaf, and return the histogram of the chosen ones."""
        binned = self._binned
        self.order_rows()
        # For few or chosen rows: the partition loop, which is compiled anyway, with a split that
        # sends all rows left.
        if mode == VECTOR or binned.n <= _MAX_ROWS_IN_NUMPY or len(self._order):
            root = LeafPartition(0, _ALL_LEFT, slice(0, self.n_chosen), 0)
            return self.partition_leaves([root], mode, output)[0]
        from daskml_dist.backends.tree_kernels import sum_all_rows

        out, packed = self._allocate_histograms(1), binned.extra["packed"][output]
        out[:] = 0
        sum_all_rows(
            mode, binned.rows, packed, binned.bins.counts, self._packed_sums, self._packed_pairs,
            out
        )  # fmt: skip
        return out

    def partition_leaves(
        self, partitions: Sequence[LeafPartition], mode: int, output: int
    ) -> tuple[Array, list[int]]:
        """Partition the rows of some leaves; return histograms and where right children begin."""
        binned, extra = self._binned, self._binned.extra
        hist = self._allocate_histograms(sum(part.requested_side >= 0 for part in partitions))
        tasks = np.array(
            [(p.feature, p.row_slice.start, p.row_slice.stop, p.requested_side) for p in partitions]
        )
        tables = np.stack([part.table for part in partitions])
        if mode == VECTOR:
            from daskml_dist.backends.vector_tree_kernels import partition_and_sum_vectors

            partition_and_sum_vectors(
                binned.columns, binned.rows, extra["packed"], extra["index"], extra["spare"],
                tasks, tables, hist,
            )  # fmt: skip
            return hist, tasks[:, 1].tolist()
        from daskml_dist.backends.tree_kernels import partition_and_sum

        partition_and_sum(
            mode, binned.columns, binned.rows, extra["packed"][output], extra["index"],
            extra["spare"], tasks, tables, binned.bins.counts, self._packed_sums,
            self._packed_pairs, hist,
        )  # fmt: skip
        return hist, tasks[:, 1].tolist()

    def add_leaf_values(
        self, output: int, leaf_slices: Sequence[slice], values: NDArray[np.float64]
    ) -> None:
        """Add the values of leaves to the raw predictions of their rows."""
        from daskml_dist.backends.tree_kernels import add_to_leaf

        extra = self._binned.extra
        for of_leaf, value in zip(leaf_slices, values, strict=True):
            add_to_leaf(extra["raw"][output], extra["index"][of_leaf], value)

    def fetch_raw_predictions(self) -> None:
        """Do nothing: raw predictions are in host memory."""

    def find_row_leaves(self, leaf_slices: Sequence[slice]) -> list[NDArray[np.int64]]:
        """Return the number of the leaf of each row."""
        leaf_numbers = np.zeros(self._binned.n, np.int64)
        for number, of_leaf in enumerate(leaf_slices):
            leaf_numbers[self._binned.extra["index"][of_leaf]] = number
        return [leaf_numbers]
