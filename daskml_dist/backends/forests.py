"""Interface by which the trees of forests grow on a device: lines of drawn rows, sums, cuts.

All numbers that decide are sums of whole ones, or follow from those by the same operations in
float64, so every device grows the same trees to the last bit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.devices import open_on_device


def open_forest_device(device: str) -> ForestDevice:
    """Return the device on which the trees of forests grow, by its name; called on the worker."""
    opened: ForestDevice = open_on_device(
        device,
        ("daskml_dist.backends.host_forests", "HostForests"),
        ("daskml_dist.backends.cupy_forests", "CupyForests"),
    )
    return opened


Array = NDArray[Any]

#: Numbers (int64) that describe a cut, before the sums of its left child: gain and threshold (bits
#: of float64), whether the feature varies, the last bin on the left, the first on the right,
#: whether missing values go left.
N_CUT_FACTS = 6


@dataclass(frozen=True, eq=False, slots=True)
class ForestFacts:
    """Facts that all trees of a forest share.

    Parameters
    ----------
    table : ndarray of uint64
        Cumulated probabilities of 0, 1, ... draws, of 2**64; empty: each row is drawn once.
    bits : int
        Of a packed number that count rows.
    n_sums, n_line, n_outputs, n_features : int
        Sums of a node, numbers of a line, outputs, features.
    missing : int
        Bin of missing values.
    monotonic_signs : ndarray of int8 of shape (n_features,)
        Of monotonic constraints.
    bounded : bool
        Whether there are any.
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
        Among those that grow together, of which lines are counted from 0.
    start, stop : ndarray of int64 of shape (n,)
    path : ndarray of uint64 of shape (n,)
        Hash of the way to the node.
    bounds : ndarray of float64 of shape (n, 3)
        Of what children may answer; whether there are constraints at all.
    turn : int
        How often lines have been parted.
    """

    tree: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    path: NDArray[np.uint64]
    bounds: NDArray[np.float64]
    turn: int

    def __len__(self) -> int:
        return len(self.tree)

    def select(self, which: Any) -> GrowingNodes:
        """Return some of the nodes, by a slice, numbers or a mask."""
        return GrowingNodes(
            self.tree[which], self.start[which], self.stop[which], self.path[which],
            self.bounds[which], self.turn,
        )  # fmt: skip


class ForestLane(Protocol):
    """The rows of a lane, and the lines of those that some trees draw."""

    def draw_lines(self, keys: NDArray[np.uint64], factor: NDArray[np.int64] | None) -> list[int]:
        """Draw the rows of some trees, numbered from 0; return how many lines each tree has.

        Parameters
        ----------
        keys : ndarray of uint64 of shape (n_trees,)
            Of the trees' draws.
        factor : ndarray of int64 of shape (n_trees, n_classes), or None
            More weight of each class.
        """

    def hold_lines(self, lines: NDArray[np.int64], firsts: NDArray[np.int64]) -> None:
        """Take lines that others have drawn, and where those of each tree begin."""

    def add_node_sums(
        self, nodes: GrowingNodes, sums: NDArray[np.int64], reach: NDArray[np.float64]
    ) -> None:
        """Add up the sums of nodes.

        Parameters
        ----------
        nodes : GrowingNodes
        sums : ndarray of int64 of shape (n, n_sums + 2)
            Of `forest_cuts.node_worth`, the packed total, and of what impurity is made; added to.
        reach : ndarray of float64 of shape (n, 2 * n_outputs)
            Of each output of a regression minus the smallest, and the largest target; raised.
        """

    def build_histograms(self, nodes: GrowingNodes, features: Any) -> Any:
        """Return the histograms of some features of nodes."""

    def partition_nodes(self, nodes: GrowingNodes, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Move lines that go left before the others; return where the latter begin.

        The children's lines are of one turn more.
        """

    def copy_lines(self, nodes: GrowingNodes, k: int) -> NDArray[np.int64]:
        """Return a copy of the lines of the k-th node, in host memory."""


class ForestDevice(Protocol):
    """A device on which trees of forests grow.

    Attributes
    ----------
    by_levels : bool
        Whether the nodes of a level are to be split all together, rather than one by one.
    budget : float
        Bytes of its memory that are free; infinite where the host's budget counts.
    """

    by_levels: bool

    @property
    def budget(self) -> float: ...

    def open_lane(self, binned: Any, facts: ForestFacts, allocate: Any) -> ForestLane:
        """Return the rows of a lane on the device."""

    def guard_memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Return a context that turns the device's out-of-memory error into ours, with
        its remedy.
        """

    def copy_to_host(self, hist: Any) -> Array:
        """Return histograms in host memory."""

    def copy_to_device(self, summed: Array) -> Any:
        """Return the sums of all trainers where the device keeps its arrays."""

    def draw_features(self, nodes: GrowingNodes, facts: ForestFacts, first: int, last: int) -> Any:
        """Return the features that nodes draw, of numbers `first` to `last`: (n, last - first)."""

    def find_cuts(
        self, nodes: GrowingNodes, features: Any, hist: Any, jobs: slice, sums: NDArray[np.int64],
        facts: ForestFacts, of_trees: NDArray[np.int64],
    ) -> Any:  # fmt: skip
        """Return facts of the best (or drawn) cuts of some jobs, a node and a feature each.

        Parameters
        ----------
        nodes : GrowingNodes
        features : array of int32 of shape (n, m)
        hist : array of int64 of shape (n_jobs, 256, n_sums)
            Of some of the n * m jobs, a node and a feature each; lost.
        jobs : slice
            Which these are; the others' stay zeros.
        sums : ndarray of int64 of shape (n, n_sums + 2)
            Of the nodes.
        facts : ForestFacts
        of_trees : ndarray of int64 of shape (n_trees, n_facts)
            See `forest_cuts`.
        """

    def choose_best_cuts(self, told: Any, features: Any, one: bool) -> NDArray[np.int64]:
        """Return the best cut of each node; of equal ones that of the feature drawn first."""
