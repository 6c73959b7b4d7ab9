"""Interface by which trees of boosting grow on a device: rows in leaves, histograms, best splits.

A tree grows by histograms of gradients (Friedman 2001; LightGBM, Ke et al. 2017): a leaf's rows are
summed by the bin of each feature, the best split is found in these sums, and the rows are parted.
Gradients are scaled to whole numbers first. All numbers that decide are sums of whole numbers, or
follow from such sums by the same operations in float64, so that every device, and any division of
the rows, grows the same trees to the last bit.
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
    """Return the error of sparse rows that are given to trees."""
    return InvalidDataError(
        "X is sparse, and trees need dense rows. Convert it: X.toarray(), X.map_blocks("
        "lambda b: b.toarray()), or X.sparse.to_dense() of a frame of sparse columns."
    )


def open_tree_device(device: str) -> TreeDevice:
    """Return the device on which trees of boosting grow, by its name; called on the worker."""
    opened: TreeDevice = open_on_device(
        device,
        ("daskml_dist.backends.host_trees", "HostTrees"),
        ("daskml_dist.backends.cupy_trees", "CupyTrees"),
    )
    return opened


Array = NDArray[Any]

#: Rows that are put in order at once.
_ROWS_AT_ONCE = 15_000
#: Ways in which gradients and hessians are packed to whole numbers: hessians are all 1 and left
#: out; all digits; rounded to 12 bits, up or down by a draw whose mean is the number (stochastic
#: rounding), so that sums of many are right. Last, of trees whose leaves are vectors: all digits of
#: all outputs, which are not packed but lie behind each other.
CONSTANT, EXACT, ROUNDED, VECTOR = 0, 1, 2, 3
#: Channels of a histogram of several outputs are a multiple of this number: 256 bits of int64, a
#: register of AVX2.
VECTOR_CHANNELS = 4


def count_channels(n_outputs: int, constant: bool) -> int:
    """Return the channels of a histogram: gradients, hessians unless all are 1, and rows.

    Of several outputs those of zeros follow, up to the end of a vector register.
    """
    n = (n_outputs if constant else 2 * n_outputs) + 1
    return n if n_outputs == 1 else -(-n // VECTOR_CHANNELS) * VECTOR_CHANNELS


@dataclass(eq=False, slots=True)
class LeafPartition:
    """Split of a leaf, by which its rows are to be parted.

    Parameters
    ----------
    feature : int
    table : ndarray of uint8 of shape (256,)
        For each bin of the feature, whether it goes left.
    at : slice
        Places of the leaf's rows.
    side : int
        Child whose histogram is asked for: 0 the left one, 1 the right one, -1 none. The other
        one's is the difference from the parent's.
    n_left : int, optional
        Rows that go left, where they are known: a device need not be asked then.
    """

    feature: int
    table: NDArray[np.uint8]
    at: slice
    side: int
    n_left: int | None = None


@dataclass(eq=False, slots=True)
class SplitLeaf:
    """Leaf whose best split is asked for.

    Parameters
    ----------
    hist : array of int64 of shape (m, n_bins, channels)
        Of the first of some features on; where a device keeps it, or NumPy's.
    allowed : ndarray of uint8 of shape (n_features,)
        Whether it may be split by a feature.
    totals : ndarray of int64 of shape (2 * n_outputs + 1,)
        Sums of gradients, hessians and rows.
    value : float, or list of float of several outputs
        What it answers.
    low, high : float
        Bounds of what its children may answer.
    """

    hist: Any
    allowed: NDArray[np.uint8]
    totals: NDArray[np.int64]
    value: Any
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class SplitFacts:
    """Facts of a fit that best splits depend on.

    Parameters
    ----------
    counts : ndarray of int32 of shape (n_features,)
        Bins of each feature, without that of missing values, which is the last.
    missing, categorical : ndarray of uint8 of shape (n_features,)
    monotonic_signs : ndarray of int8 of shape (n_features,)
        Of monotonic constraints.
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
        The rows, those of one after those of another.
    n : int
        How many they are.
    n_chosen : int
        How many of them trees are grown on; see `choose_rows`.
    """

    binned_rows: list[Any]
    n: int
    n_chosen: int

    def make_gradients(self, loss: Any, constant: bool) -> NDArray[np.float64]:
        """Make the gradients and hessians of all rows, in float32, and keep them."""

    def set_gradients(
        self, g: Sequence[NDArray[np.float64]], h: Sequence[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Keep gradients and hessians of one output that were made elsewhere, in float32.

        Of each of `binned_rows`. The result is that of `make_gradients`.
        """

    def fetch_gradients(self) -> list[NDArray[np.float32]]:
        """Return the gradients of each of `binned_rows`, (n_outputs, n), in host memory."""

    def multiply_gradients(self, factors: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Multiply the gradients and hessians of each row, which are kept, by its factor.

        The result is that of `make_gradients`.
        """

    def pack_output_gradients(
        self, output: int, mode: int, g_scale: float, h_scale: float, key: int
    ) -> tuple[int, int]:
        """Pack the gradients of an output as whole numbers; see `tree_kernels.pack_gradients`."""

    def pack_vectors(self, g_scales: NDArray[np.float64], h_scales: NDArray[np.float64]) -> None:
        """Round the gradients of all outputs to whole numbers, for trees of vectors.

        CPUs alone grow these.
        """

    def choose_rows(self, is_chosen: Sequence[NDArray[np.bool_]]) -> None:
        """Have trees grow on some rows alone, by a mask of each of `binned_rows`."""

    def order_rows(self) -> None:
        """Put all rows in one leaf: the chosen ones, then the others, each in their order."""

    def build_root_histogram(self, mode: int, output: int) -> Any:
        """Put all rows in one leaf, and return the histogram of those that are chosen.

        Returns
        -------
        array of int64 of shape (n_features, 1, n_bins, n_channels)
            Where the device keeps it; good until the next call.
        """

    def partition_leaves(
        self, parts: Sequence[LeafPartition], mode: int, output: int
    ) -> tuple[Any, list[int]]:
        """Partition the rows of some leaves; return the histograms of the sides asked for.

        Returns
        -------
        array of int64 of shape (n_features, n_asked, n_bins, n_channels)
            Histograms of the sides that are asked for; good until the next call.
        list of int
            Where the rows of the right children begin.
        """

    def add_leaf_values(
        self, output: int, at: Sequence[slice], values: NDArray[np.float64]
    ) -> None:
        """Add what leaves answer to the raw predictions of their rows.

        The places `at` of all leaves are those of all rows.
        """

    def fetch_raw_predictions(self) -> None:
        """Bring raw predictions to ``extra["raw"]`` in host memory."""

    def find_row_leaves(self, at: Sequence[slice]) -> list[NDArray[np.int64]]:
        """Return, for each of `binned_rows`, the number of the leaf of each row."""


def largest_sizes(g: Array, h: Array) -> NDArray[np.float64]:
    """Return the largest size of gradients and of hessians of one output, of shape (2, 1)."""
    sizes = [float(np.abs(values).max(initial=0.0)) for values in (g, h)]
    return np.array(sizes)[:, None]


def order_by_choice(is_chosen: NDArray[np.bool_], out: NDArray[np.int32]) -> int:
    """Write the numbers of the chosen rows, then those of the others; return how many are first."""
    n_chosen = int(np.count_nonzero(is_chosen))
    left, right = 0, n_chosen
    # By slices, whose temporary arrays a cache holds.
    for start in range(0, len(is_chosen), _ROWS_AT_ONCE):
        of_slice = is_chosen[start : start + _ROWS_AT_ONCE]
        chosen, others = np.flatnonzero(of_slice), np.flatnonzero(~of_slice)
        out[left : left + len(chosen)] = chosen + start
        out[right : right + len(others)] = others + start
        left, right = left + len(chosen), right + len(others)
    return n_chosen


class TreeDevice(Protocol):
    """A device on which trees grow."""

    def open_rows(
        self, binned_rows: Sequence[Any], shape: tuple[int, int, int]
    ) -> Sequence[TreeRows]:
        """Return the rows of a trainer's lanes in as many parts as the device works on at once.

        A CPU's threads take a lane each. A GPU takes the rows of all lanes together: of each lane
        apart it would take as many launches and answers again, which cost more than their work.
        """

    def guard_memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Return a context that turns the device's out-of-memory error into ours, with
        its remedy.
        """

    def copy_to_host(self, hist: Any) -> Array:
        """Return histograms in host memory."""

    def find_best_splits(
        self, leaves: Sequence[SplitLeaf], first: int, facts: SplitFacts,
        scales: NDArray[np.float64], told: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Find the best split of some leaves.

        Parameters
        ----------
        leaves : sequence of SplitLeaf
        first : int
            Number of the first feature that their histograms have.
        facts : SplitFacts
        scales : ndarray of float64 of shape (2,), or (2, n_outputs) of several outputs
            What a unit of gradients, and of hessians, is.
        told : ndarray of int64 of shape (n_leaves, 10 + 2 * n_outputs)
            Of zeros. Becomes the bits of the gain (-1.0 where there is no split), what
            `tree_kernels.find_best_split` found, categories that go left.
        """
