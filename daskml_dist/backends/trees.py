"""Interface for growing boosted trees on a device: rows in leaves, histograms, best splits.

A tree grows by histograms of gradients (Friedman 2001; LightGBM, Ke et al. 2017): a leaf's rows are
summed by the bin of each feature, the best split is found in these sums, and the rows are
partitioned. Gradients are first scaled to integers. All numbers that affect decisions are sums of
integers, or follow from such sums by the same float64 operations, so that every device, and any
partition of the rows, grows trees with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.devices import open_on_device
from daskml_dist.errors import InvalidDataError


def check_dense_rows(X: Any) -> None:
    """Check that rows of NumPy or CuPy are dense."""
    if hasattr(X, "tocsr"):
        raise sparse_rows_error()


def sparse_rows_error() -> InvalidDataError:
    """Return the error for sparse rows that are given to trees."""
    return InvalidDataError(
        "X is sparse, and trees need dense rows. Convert it: X.toarray(), X.map_blocks("
        "lambda b: b.toarray()), or X.sparse.to_dense() of a frame of sparse columns."
    )


def open_tree_device(device: str) -> TreeDevice:
    """Return the device, by name, on which boosted trees grow; called on the worker."""
    opened: TreeDevice = open_on_device(
        device,
        ("daskml_dist.backends.host_trees", "HostTrees"),
        ("daskml_dist.backends.cupy_trees", "CupyTrees"),
    )
    return opened


Array = NDArray[Any]

#: Rows that are sorted together.
_ROWS_AT_ONCE = 15_000
#: Ways in which gradients and hessians are packed to integers: without hessians, which are all 1;
#: with all digits; rounded to 12 bits, up or down at random so that the mean is exact (stochastic
#: rounding) and sums of many are accurate. Last, for trees whose leaves are vectors: all digits of
#: all outputs, not packed but contiguous.
CONSTANT, EXACT, ROUNDED, VECTOR = 0, 1, 2, 3
#: Channels of a histogram with several outputs are a multiple of this number: 256 bits of int64, a
#: register of AVX2.
VECTOR_CHANNELS = 4


def count_channels(n_outputs: int, constant: bool) -> int:
    """Return the channels of a histogram: gradients, hessians unless all are 1, and rows.

    With several outputs, channels of zeros follow, up to the end of a vector register.
    """
    n = (n_outputs if constant else 2 * n_outputs) + 1
    return n if n_outputs == 1 else -(-n // VECTOR_CHANNELS) * VECTOR_CHANNELS


@dataclass(eq=False, slots=True)
class LeafPartition:
    """Split of a leaf, by which its rows are partitioned.

    Parameters
    ----------
    feature : int
    table : ndarray of uint8 of shape (256,)
        For each bin of the feature, whether it goes left.
    row_slice : slice
        Positions of the leaf's rows.
    requested_side : int
        Child whose histogram is requested: 0 the left one, 1 the right one, -1 none. The other
        one's is the parent's minus this one.
    n_left : int, optional
        Number of rows that go left, if known: then no reply from a device is needed.
    """

    feature: int
    table: NDArray[np.uint8]
    row_slice: slice
    requested_side: int
    n_left: int | None = None


@dataclass(eq=False, slots=True)
class SplitLeaf:
    """Leaf for which the best split is searched.

    Parameters
    ----------
    hist : array of int64 of shape (m, n_bins, channels)
        Histograms of consecutive features; on the device, or NumPy's.
    allowed : ndarray of uint8 of shape (n_features,)
        Whether a feature may split the leaf.
    totals : ndarray of int64 of shape (2 * n_outputs + 1,)
        Sums of gradients, hessians and rows.
    value : float, or list of float of several outputs
        Predicted value.
    low, high : float
        Bounds of the children's values.
    """

    hist: Any
    allowed: NDArray[np.uint8]
    totals: NDArray[np.int64]
    value: Any
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class SplitFacts:
    """Settings of a fit that affect best splits.

    Parameters
    ----------
    counts : ndarray of int32 of shape (n_features,)
        Bins of each feature, without the bin of missing values, which is the last.
    missing, categorical : ndarray of uint8 of shape (n_features,)
    monotonic_signs : ndarray of int8 of shape (n_features,)
        Signs of monotonic constraints.
    l2, least_hessian : float
    least_rows : int
    """

    counts: NDArray[np.int32]
    missing: NDArray[np.uint8]
    categorical: NDArray[np.uint8]
    monotonic_signs: NDArray[np.int8]
    l2: float
    least_hessian: float
    least_rows: int


class TreeRows(Protocol):
    """Binned rows in the leaves of a growing tree.

    Attributes
    ----------
    binned_rows : list of solvers.binning.BinnedRows
        The rows, concatenated.
    n : int
        Number of rows.
    n_chosen : int
        Number of rows from which trees are grown; see `choose_rows`.
    """

    binned_rows: list[Any]
    n: int
    n_chosen: int

    def make_gradients(self, loss: Any, constant: bool) -> NDArray[np.float64]:
        """Compute the gradients and hessians of all rows, in float32, and keep them."""

    def set_gradients(
        self, g: Sequence[NDArray[np.float64]], h: Sequence[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Store gradients and hessians of one output that were computed elsewhere, in float32.

        One array for each of `binned_rows`. The result is that of `make_gradients`.
        """

    def fetch_gradients(self) -> list[NDArray[np.float32]]:
        """Return the gradients of each of `binned_rows`, (n_outputs, n), in host memory."""

    def multiply_gradients(self, factors: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Multiply the stored gradients and hessians of each row by its factor.

        The result is that of `make_gradients`.
        """

    def pack_output_gradients(
        self, output: int, mode: int, g_scale: float, h_scale: float, key: int
    ) -> tuple[int, int]:
        """Pack the gradients of an output as integers; see `tree_kernels.pack_gradients`."""

    def pack_vectors(self, g_scales: NDArray[np.float64], h_scales: NDArray[np.float64]) -> None:
        """Round the gradients of all outputs to integers, for trees with vector leaves.

        Only CPUs grow these.
        """

    def choose_rows(self, is_chosen: Sequence[NDArray[np.bool_]]) -> None:
        """Let trees grow on some rows only, by a mask for each of `binned_rows`."""

    def order_rows(self) -> None:
        """Put all rows in one leaf: the chosen rows, then the others, each in order."""

    def build_root_histogram(self, mode: int, output: int) -> Any:
        """Put all rows in one leaf, and return the histogram of the chosen ones.

        Returns
        -------
        array of int64 of shape (n_features, 1, n_bins, n_channels)
            On the device; valid until the next call.
        """

    def partition_leaves(
        self, partitions: Sequence[LeafPartition], mode: int, output: int
    ) -> tuple[Any, list[int]]:
        """Partition the rows of some leaves; return the histograms of the requested sides.

        Returns
        -------
        array of int64 of shape (n_features, n_asked, n_bins, n_channels)
            Histograms of the requested sides; valid until the next call.
        list of int
            Positions at which the rows of the right children begin.
        """

    def add_leaf_values(
        self, output: int, leaf_slices: Sequence[slice], values: NDArray[np.float64]
    ) -> None:
        """Add the values of leaves to the raw predictions of their rows.

        The positions `leaf_slices` of all leaves cover all rows.
        """

    def fetch_raw_predictions(self) -> None:
        """Copy raw predictions to ``extra["raw"]`` in host memory."""

    def find_row_leaves(self, leaf_slices: Sequence[slice]) -> list[NDArray[np.int64]]:
        """Return, for each of `binned_rows`, the number of the leaf of each row."""


def largest_sizes(g: Array, h: Array) -> NDArray[np.float64]:
    """Return the largest absolute gradient and hessian of one output, of shape (2, 1)."""
    sizes = [float(np.abs(values).max(initial=0.0)) for values in (g, h)]
    return np.array(sizes)[:, None]


def order_by_choice(is_chosen: NDArray[np.bool_], out: NDArray[np.int32]) -> int:
    """Write the numbers of the chosen rows, then of the others; return how many are chosen."""
    n_chosen = int(np.count_nonzero(is_chosen))
    chosen_start, other_start = 0, n_chosen
    # By slices, whose temporary arrays fit in a cache.
    for start in range(0, len(is_chosen), _ROWS_AT_ONCE):
        of_slice = is_chosen[start : start + _ROWS_AT_ONCE]
        chosen, not_chosen = np.flatnonzero(of_slice), np.flatnonzero(~of_slice)
        out[chosen_start : chosen_start + len(chosen)] = chosen + start
        out[other_start : other_start + len(not_chosen)] = not_chosen + start
        chosen_start, other_start = chosen_start + len(chosen), other_start + len(not_chosen)
    return n_chosen


class TreeDevice(Protocol):
    """Device on which trees grow."""

    def open_rows(
        self, binned_rows: Sequence[Any], shape: tuple[int, int, int]
    ) -> Sequence[TreeRows]:
        """Return a trainer's rows, in as many parts as the device processes in parallel.

        On a CPU each thread processes a lane. A GPU processes the rows of all lanes together:
        separately, each lane would need as many launches and replies again, which cost more than
        their work.
        """

    def guard_memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Return a context that translates the device's out-of-memory error."""

    def copy_to_host(self, hist: Any) -> Array:
        """Return histograms in host memory."""

    def find_best_splits(
        self, leaves: Sequence[SplitLeaf], first: int, settings: SplitFacts,
        scales: NDArray[np.float64], splits: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Find the best split of some leaves.

        Parameters
        ----------
        leaves : sequence of SplitLeaf
        first : int
            Number of the first feature in their histograms.
        settings : SplitFacts
        scales : ndarray of float64 of shape (2,), or (2, n_outputs) of several outputs
            Units of gradients and of hessians.
        splits : ndarray of int64 of shape (n_leaves, 10 + 2 * n_outputs)
            Initially zeros. Set to the bits of the gain (-1.0 if there is no split), the results of
            `tree_kernels.find_best_split`, and the categories that go left.
        """
