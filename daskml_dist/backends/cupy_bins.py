"""Bins of rows on a GPU: they are made there, and stay there.

A row has one byte per entry. Bins are copied to the host only if it grows trees itself; values are
never copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import kernels
from daskml_dist.backends.cupy_calls import KernelCalls
from daskml_dist.backends.devices import device_memory

Array = NDArray[Any]

#: Features of a word; bytes of a load.
_FEATURES_PER_WORD, _LOAD_BYTES = 8, 16
#: Words whose edges fit in the 32 KiB of a block's shared memory, by bytes of an edge.
_WORDS_PER_BLOCK = {4: 4, 8: 2}
#: Minimum rows of a block, so that its rows are more bytes than its edges.
_MIN_CHUNK_ROWS = 1_024
#: Blocks of the kernels that fit in the registers of a multiprocessor at the same time.
_BLOCKS_PER_MULTIPROCESSOR = 4
#: Levels of the search tree over a feature's edges; each node is an edge.
_LEVELS = 8


class DeviceBins:
    """Bins of a lane's rows on a GPU.

    Parameters
    ----------
    bins : models.bins.Bins
    backend : CupyBackend

    Attributes
    ----------
    width : int
        Bytes of a row: features rounded up to a multiple of 8.
    chunks : list of array of uint8 of shape (., width)
        Bins of the rows, padded with zeros, in order; may be replaced by one joined array.
    """

    def __init__(self, bins: Any, backend: Any) -> None:
        self.chunks: list[Any] = []
        self.width = -(-bins.n_features // _FEATURES_PER_WORD) * _FEATURES_PER_WORD
        self._bins, self._backend = bins, backend
        self._calls = _BinCalls(backend.calls.cupy, backend.calls.address)
        self._has_missing: Any = None
        #: Edges, categories and their numbers, by dtype of the values.
        self._edges: dict[str, tuple[Any, Any, Any]] = {}
        #: Of each bin, minus the smallest value and the largest one, as ordered integers.
        self._bin_ranges: Any = None

    def add(self, X: Any) -> Any:
        """Put the values of some rows into bins; return the rows as the kernels read them.

        Parameters
        ----------
        X : array of float32 or float64 of shape (n, n_features)
            NumPy arrays are copied to the GPU; arrays not in C order are copied on the GPU.
        """
        cp, bins = self._calls.cupy, self._bins
        n, d = X.shape
        with self._guard_memory(n):
            X = self._backend.to_device(X)
            if self._has_missing is None:
                self._has_missing = cp.zeros(d, np.uint8)
            rows = cp.empty((n, self.width), np.uint8)
            self._calls.put(X, self._copy_edges(X.dtype), rows, self._has_missing, bins.max_bins)
        self.chunks.append(rows)
        return X

    def _copy_edges(self, dtype: Any) -> tuple[Any, Any, Any]:
        """Return the edges on the device, as the kernel needs them."""
        name = np.dtype(dtype).name
        if name not in self._edges:
            bins, to_device = self._bins, self._backend.to_device
            categories: list[Any] = [None, None]
            if bins.categorical.any():
                counts = np.where(bins.categorical, bins.n_edges, -1).astype(np.int32)
                categories = [to_device(bins.table), to_device(counts)]
            self._edges[name] = (to_device(order_edges(bins.table, dtype)), *categories)
        return self._edges[name]

    def widen_reach(self, X: Any, counts: NDArray[np.bool_] | None) -> None:
        """Update the smallest and largest value of each bin by the rows added last.

        `counts`: whether a row counts; None: all do.
        """
        cp, d = self._calls.cupy, self._bins.n_features
        with self._guard_memory(len(X)):
            if self._bin_ranges is None:
                none = to_ordered_integers(np.full((2, d, 256), -np.inf))
                self._bin_ranges = cp.asarray(none)
            of_rows = None if counts is None else self._backend.to_device(counts.view(np.uint8))
            self._calls.widen(X, self.chunks[-1], of_rows, self._bin_ranges)

    def merge(self, lanes: Sequence[Any]) -> DeviceBins:
        """Return the bins of several lanes, including this one, as those of one lane."""
        merged = DeviceBins(self._bins, self._backend)
        merged.chunks = [join_bins(lanes, self._backend)]
        return merged

    def fetch_missing(self) -> NDArray[np.uint8]:
        """Return whether features have missing values."""
        if self._has_missing is None:
            return np.zeros(self._bins.n_features, np.uint8)
        has_missing: NDArray[np.uint8] = self._backend.to_numpy(self._has_missing)
        return has_missing

    def fetch_reach(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the smallest and the largest value of each bin."""
        low, high = from_ordered_integers(self._backend.to_numpy(self._bin_ranges))
        return -low, high

    def copy_rows(self, out: NDArray[np.uint8]) -> None:
        """Copy the bins of the rows, (n, width), to host memory."""
        first = 0
        for part in self.chunks:
            out[first : first + len(part)] = self._backend.to_numpy(part)
            first += len(part)

    def copy_columns(self, out: NDArray[np.uint8]) -> None:
        """Copy the bins of each feature, (n_features, n), to host memory."""
        cp, first = self._calls.cupy, 0
        for part in self.chunks:
            for j in range(self._bins.n_features):
                # One feature at a time needs little memory.
                of_feature = cp.ascontiguousarray(part[:, j])
                out[j, first : first + len(part)] = self._backend.to_numpy(of_feature)
            first += len(part)

    def _guard_memory(self, n_rows: int) -> Any:
        """Turn out-of-memory errors of the GPU into an error that names the data."""
        return device_memory(
            f"The bins of {n_rows:,} rows",
            'Use more workers, or device="cpu", whose trees are the same.',
        )


def join_bins(lanes: Sequence[Any], backend: Any) -> Any:
    """Return the bins of all lanes, in this order, in one array on the device.

    Bins that were made on the device are stored there only once afterwards.

    Parameters
    ----------
    lanes : sequence of BinnedRows or ForestRows
    backend : CupyBackend
    """
    parts: list[list[Any]] = [
        [lane.rows] if lane.device_bins is None else lane.device_bins.chunks for lane in lanes
    ]
    (first, *later_parts), start = [part for of_lane in parts for part in of_lane], 0
    joined = backend.to_device(first)
    if later_parts:
        n = sum(len(part) for of_lane in parts for part in of_lane)
        joined = backend.calls.cupy.empty((n, first.shape[1]), np.uint8)
    for lane, of_lane in zip(lanes, parts, strict=True):
        lane_start = start
        for part in of_lane:
            if later_parts:
                joined[start : start + len(part)] = backend.to_device(part)
            start += len(part)
        if lane.device_bins is not None:
            lane.device_bins.chunks = [joined[lane_start:start]]
    return joined


class _BinCalls(KernelCalls):
    """Calls of the kernels of bins."""

    def put(
        self, X: Any, edges: tuple[Any, Any, Any], rows: Any, has_missing: Any, missing: int
    ) -> None:
        """Write the bins of some rows; `edges` are followed by categories and their numbers."""
        (n, d), n_words = X.shape, rows.shape[1] // _FEATURES_PER_WORD
        # Groups of words whose edges fit in a block, as equal as possible.
        n_groups = -(-n_words // _WORDS_PER_BLOCK[X.dtype.itemsize])
        own_words = -(-n_words // n_groups)
        chunk, n_units = self._divide(n, -(-n_words // own_words))
        self._launch_units(
            "tree_bins", X, n_units, X, *edges, rows, has_missing, n, d, n_words, missing,
            own_words, chunk, n_units, self._is_aligned(X),
        )  # fmt: skip

    def widen(self, X: Any, rows: Any, counts: Any, bin_ranges: Any) -> None:
        """Update the range of the values of each bin."""
        (n, d), n_words = X.shape, rows.shape[1] // _FEATURES_PER_WORD
        chunk, n_units = self._divide(n, n_words)
        self._launch_units(
            "tree_reach", X, n_units, X, rows, counts, bin_ranges, n, d, n_words, chunk, n_units,
            self._is_aligned(X),
        )  # fmt: skip

    def _divide(self, n: int, n_groups: int) -> tuple[int, int]:
        """Return the rows of a unit of work, and the number of units.

        At most one unit per concurrently running block, if the groups allow: a few more units would
        take as long as twice as many.
        """
        most = max(1, _BLOCKS_PER_MULTIPROCESSOR * self._n_sms // n_groups)
        chunk = max(-(-n // most), _MIN_CHUNK_ROWS)
        return chunk, -(-n // chunk) * n_groups

    def _is_aligned(self, X: Any) -> int:
        """Return 1 if each row begins at a 16-byte aligned address, else 0."""
        row_bytes = X.shape[1] * X.dtype.itemsize
        return int(self.alignment(X) == _LOAD_BYTES and row_bytes % _LOAD_BYTES == 0)

    def _launch_units(self, function: str, X: Any, n_units: int, *arguments: Any) -> None:
        """Launch a kernel over units of work."""
        launch = kernels.launch(function, n_units, X.shape[1], X.dtype, self._n_sms)
        self._call("tree_bins", X.dtype, function, launch, *arguments)()


def order_edges(table: NDArray[np.float64], dtype: Any) -> Array:
    """Return the edges of each feature in the order of a search tree, of shape (d, 255).

    Edge k (from 1) is followed by edge 2 k if it is not below a value, else by 2 k + 1.
    """
    order = np.empty(2**_LEVELS - 1, np.intp)
    for level in range(_LEVELS):
        # The nodes of a level are evenly spaced among the sorted edges.
        step = 2 ** (_LEVELS - level)
        order[2**level - 1 : 2 ** (level + 1) - 1] = np.arange(step // 2 - 1, 2**_LEVELS - 1, step)
    with np.errstate(over="ignore"):
        edges = table.astype(dtype)
    # An edge is below a float32 number if and only if the next float32 below the edge is.
    return np.where(edges > table, np.nextafter(edges, edges.dtype.type(-np.inf)), edges)[:, order]


def to_ordered_integers(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return float64 values as int64 with the same order, for atomic maxima."""
    # Bits of negative floats sort in reverse; flipping all but the sign reverses them again.
    bits = np.ascontiguousarray(values).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def from_ordered_integers(ordered: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the float64 values from which `to_ordered_integers` made int64."""
    bits = np.where(ordered < 0, ordered ^ np.int64(2**63 - 1), ordered)
    return bits.view(np.float64)
