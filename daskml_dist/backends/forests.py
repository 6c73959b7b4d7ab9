"""Interface for growing the trees of forests on a device: lines of drawn rows, sums, cuts.

All numbers that affect decisions are sums of integers, or follow from them by the same float64
operations, so every device grows trees with the same bits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.devices import open_on_device


def open_forest_device(device: str) -> ForestDevice:
    """Return the device, by name, on which the trees of forests grow; called on the worker."""
    opened: ForestDevice = open_on_device(
        device,
        ("daskml_dist.backends.host_forests", "HostForests"),
        ("daskml_dist.backends.cupy_forests", "CupyForests"),
    )
    return opened


Array = NDArray[Any]

#: Numbers (int64) that describe a cut, before the sums of its left child: gain and threshold (bits
#: of float64), whether the feature varies, last bin on the left, first bin on the right, whether
#: missing values go left.
N_CUT_FACTS = 6


@dataclass(frozen=True, eq=False, slots=True)
class ForestFacts:
    """Facts that all trees of a forest share.

    Parameters
    ----------
    table : ndarray of uint64
        Cumulative probabilities of 0, 1, ... draws, times 2**64; empty: each row is drawn once.
    bits : int
        Bits of a packed number that count rows.
    n_sums, n_line, n_outputs, n_features : int
        Sums of a node, numbers of a line, outputs, features.
    missing : int
        Bin of missing values.
    monotonic_signs : ndarray of int8 of shape (n_features,)
        Signs of monotonic constraints.
    bounded : bool
        Whether there are monotonic constraints.
    low, high : ndarray of float64 of shape (n_features, 256)
        Smallest and largest value of each bin.
    """

    table: NDArray[np.uint64]
    bits: int
    n_sums: int
    n_line: int
    n_outputs: int
    n_features: int
    missing: int
    monotonic_signs: NDArray[np.int8]
    bounded: bool
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class GrowingNodes:
    """Nodes of growing trees, and where the lines of a lane's rows are.

    Parameters
    ----------
    tree : ndarray of int64 of shape (n,)
        Index among the trees that grow together; the positions of lines count from 0 in each tree.
    start, stop : ndarray of int64 of shape (n,)
    path : ndarray of uint64 of shape (n,)
        Hash of the path to the node.
    bounds : ndarray of float64 of shape (n, 3)
        Bounds of children's values; whether there are constraints at all.
    n_partitions : int
        Number of times that lines have been partitioned.
    """

    tree: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    path: NDArray[np.uint64]
    bounds: NDArray[np.float64]
    n_partitions: int

    def __len__(self) -> int:
        return len(self.tree)

    def select(self, selection: Any) -> GrowingNodes:
        """Return some of the nodes, by a slice, numbers or a mask."""
        return GrowingNodes(
            self.tree[selection], self.start[selection], self.stop[selection], self.path[selection],
            self.bounds[selection], self.n_partitions,
        )  # fmt: skip


class ForestLane(Protocol):
    """Rows of a lane, and the lines of rows that some trees draw."""

    def draw_lines(self, keys: NDArray[np.uint64], factor: NDArray[np.int64] | None) -> list[int]:
        """Draw the rows of some trees, numbered from 0; return the number of lines of each tree.

        Parameters
        ----------
        keys : ndarray of uint64 of shape (n_trees,)
            Keys of the trees' draws.
        factor : ndarray of int64 of shape (n_trees, n_classes), or None
            Additional weight of each class.
        """

    def hold_lines(self, lines: NDArray[np.int64], firsts: NDArray[np.int64]) -> None:
        """Store lines that were drawn elsewhere, and where those of each tree begin."""

    def add_node_sums(
        self, nodes: GrowingNodes, sums: NDArray[np.int64], target_ranges: NDArray[np.float64]
    ) -> None:
        """Add up the sums of nodes.

        Parameters
        ----------
        nodes : GrowingNodes
        sums : ndarray of int64 of shape (n, n_sums + 2)
            Sums for `forest_cuts.node_worth`, the packed total, and the terms of the impurity;
            added to.
        target_ranges : ndarray of float64 of shape (n, 2 * n_outputs)
            For each regression output, minus the smallest and the largest target; updated.
        """

    def build_histograms(self, nodes: GrowingNodes, features: Any) -> Any:
        """Return the histograms of some features of nodes."""

    def partition_nodes(self, nodes: GrowingNodes, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Move lines that go left before the others; return where the latter begin.

        The children's `n_partitions` is one larger.
        """

    def copy_lines(self, nodes: GrowingNodes, k: int) -> NDArray[np.int64]:
        """Return a copy of the lines of the k-th node, in host memory."""


class ForestDevice(Protocol):
    """A device on which trees of forests grow.

    Attributes
    ----------
    by_levels : bool
        Whether all nodes of a level should be split together, rather than one by one.
    budget : float
        Free bytes of its memory; infinite if the host's budget applies.
    """

    by_levels: bool

    @property
    def budget(self) -> float: ...

    def open_lane(self, binned: Any, settings: ForestFacts, allocate: Any) -> ForestLane:
        """Return the rows of a lane on the device."""

    def guard_memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Return a context that translates the device's out-of-memory error."""

    def copy_to_host(self, hist: Any) -> Array:
        """Return histograms in host memory."""

    def copy_to_device(self, summed: Array) -> Any:
        """Return the sums of all trainers in the device's memory."""

    def draw_features(
        self, nodes: GrowingNodes, settings: ForestFacts, first: int, last: int
    ) -> Any:
        """Return the features that nodes draw, from draw `first` to `last`: (n, last - first)."""

    def find_cuts(
        self, nodes: GrowingNodes, features: Any, hist: Any, jobs: slice, sums: NDArray[np.int64],
        settings: ForestFacts, tree_settings: NDArray[np.int64],
    ) -> Any:  # fmt: skip
        """Return facts of the best (or drawn) cuts of some jobs; a job is a node and a feature.

        Parameters
        ----------
        nodes : GrowingNodes
        features : array of int32 of shape (n, m)
        hist : array of int64 of shape (n_jobs, 256, n_sums)
            Histograms of some of the n * m jobs; overwritten.
        jobs : slice
            Range of these jobs; the results of other jobs stay zeros.
        sums : ndarray of int64 of shape (n, n_sums + 2)
            Sums of the nodes.
        settings : ForestFacts
        tree_settings : ndarray of int64 of shape (n_trees, n_facts)
            See `forest_cuts`.
        """

    def choose_best_cuts(self, cuts: Any, features: Any, first_only: bool) -> NDArray[np.int64]:
        """Return the best cut of each node; in ties, by the feature drawn first."""
