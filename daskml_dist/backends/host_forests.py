"""Growing the trees of forests in host memory: compiled loops over the lines of nodes.

A line is a drawn row of a tree: its number and its contributions to the sums of a node. Lines of a
node are contiguous, so that histograms read them sequentially, and a split moves them within the
node's range, like quicksort's partition.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.forests import N_CUT_FACTS, ForestFacts, GrowingNodes

Array = NDArray[Any]


class HostForests:
    """CPU on which trees of forests grow."""

    by_levels = False
    budget = math.inf

    def open_lane(self, binned: Any, settings: ForestFacts, allocate: Any) -> HostLane:
        """Return the rows of a lane."""
        return HostLane(binned, settings, allocate)

    def guard_memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Return a context that does nothing: the host's error is not changed."""
        return nullcontext()

    def copy_to_host(self, hist: Any) -> Array:
        """Return the histograms themselves."""
        return np.asarray(hist)

    def copy_to_device(self, summed: Array) -> Array:
        """Return the sums of all trainers unchanged."""
        return summed

    def draw_features(
        self, nodes: GrowingNodes, settings: ForestFacts, first: int, last: int
    ) -> Array:
        """Return the features that nodes draw."""
        from daskml_dist.backends.forest_grow import draw_node_features

        drawn = np.empty((len(nodes), last - first), np.int32)
        draw_node_features(nodes.path, first, last, settings.n_features, drawn)
        return drawn

    def find_cuts(
        self, nodes: GrowingNodes, features: Any, hist: Any, jobs: slice, sums: NDArray[np.int64],
        settings: ForestFacts, tree_settings: NDArray[np.int64],
    ) -> Array:  # fmt: skip
        """Return facts about the cuts of some jobs."""
        from daskml_dist.backends.forest_grow import find_job_cuts

        # A job is a feature of a node; this trainer has the histograms of `jobs`.
        n, m = features.shape
        cuts = np.zeros((n, m, N_CUT_FACTS + settings.n_sums + 1), np.int64)
        node = np.arange(jobs.start, jobs.stop) // m
        if len(node):
            find_job_cuts(
                tree_settings[nodes.tree[node]], hist, sums[node], settings.monotonic_signs,
                nodes.bounds[node], settings.low, settings.high, nodes.path[node],
                features.reshape(-1)[jobs],
                cuts.reshape(n * m, -1)[jobs],
            )  # fmt: skip
        return cuts

    def choose_best_cuts(self, cuts: Any, features: Any, first_only: bool) -> NDArray[np.int64]:
        """Return the best cut of each node."""
        from daskml_dist.backends.forest_grow import choose_best_cuts

        # The gains, stored as the bits of float64 among integers, are read as float64 again.
        best = np.zeros((len(features), 1 + cuts.shape[2]), np.int64)
        choose_best_cuts(
            cuts, np.ascontiguousarray(cuts[:, :, 0]).view(np.float64), features, first_only, best
        )
        return best


def draw_lane_lines(
    binned: Any,
    settings: ForestFacts,
    key: np.uint64,
    factor: NDArray[np.int64] | None,
    lines: Array,
) -> Array:
    """Write the lines of the rows that a tree draws into `lines`; return the used part."""
    from daskml_dist.backends.forest_kernels import draw_tree_rows

    n = draw_tree_rows(
        binned.numbers, key, settings.table, binned.weight,
        np.empty(0, np.int64) if factor is None else factor, binned.slot, binned.more,
        settings.bits, lines,
    )  # fmt: skip
    drawn: Array = lines[:n]
    return drawn


class HostLane:
    """Rows of a lane, and the lines of rows that some trees draw.

    Parameters
    ----------
    binned : solvers.forest_rows.ForestRows
    settings : ForestFacts
    allocate : callable
        As `OwnRows.allocate_zeros`.
    """

    def __init__(self, binned: Any, settings: ForestFacts, allocate: Any) -> None:
        self._binned, self._settings, self._allocate = binned, settings, allocate
        #: Memory for lines that partitions set aside (the first), and for those of each tree that
        #: grows at the same time; kept, since new pages cost more than writing them.
        self._spaces: list[Array] = []
        #: Lines of each tree.
        self._lines: list[Array] = []

    def _line_memory(self, buffer_index: int) -> Array:
        """Return the memory with a number, for as many lines as the lane has rows."""
        while len(self._spaces) <= buffer_index:
            shape = len(self._binned.numbers), self._settings.n_line
            self._spaces.append(self._allocate(shape, np.int64))
        return self._spaces[buffer_index]

    def draw_lines(self, keys: NDArray[np.uint64], factor: NDArray[np.int64] | None) -> list[int]:
        """Draw the rows of some trees; return the number of lines of each."""
        self._lines = [
            draw_lane_lines(
                self._binned, self._settings, key, None if factor is None else factor[k],
                self._line_memory(k + 1),
            )
            for k, key in enumerate(keys)
        ]  # fmt: skip
        return [len(lines) for lines in self._lines]

    def hold_lines(self, lines: NDArray[np.int64], firsts: NDArray[np.int64]) -> None:
        """Store lines that were drawn elsewhere."""
        ends = [*firsts[1:].tolist(), len(lines)]
        self._lines = [lines[a:b] for a, b in zip(firsts.tolist(), ends, strict=True)]

    def add_node_sums(
        self, nodes: GrowingNodes, sums: NDArray[np.int64], target_ranges: NDArray[np.float64]
    ) -> None:
        """Add up the sums of nodes."""
        from daskml_dist.backends.forest_kernels import add_node_sums

        for k, (node_sums, node_reach) in enumerate(zip(sums, target_ranges, strict=True)):
            add_node_sums(self._view_lines(nodes, k), node_sums, node_reach)

    def _view_lines(self, nodes: GrowingNodes, k: int) -> Array:
        """Return a view of the lines of the k-th node."""
        of_tree: Array = self._lines[nodes.tree[k]]
        return of_tree[nodes.start[k] : nodes.stop[k]]

    def build_histograms(self, nodes: GrowingNodes, features: Any) -> Array:
        """Return the histograms of some features of nodes."""
        from daskml_dist.backends.forest_grow import add_job_histograms

        n, m = features.shape
        hist = np.zeros((n, m, 256, self._settings.n_sums), np.int64)
        # Lines are stored by tree; one call for each tree's nodes.
        for tree in np.unique(nodes.tree):
            (node_numbers,) = np.nonzero(nodes.tree == tree)
            tree_nodes = slice(
                node_numbers[0], node_numbers[-1] + 1
            )  # nodes of a tree are contiguous
            add_job_histograms(
                self._binned.rows, self._lines[tree], nodes.start[tree_nodes],
                nodes.stop[tree_nodes], features[tree_nodes], hist[tree_nodes],
            )  # fmt: skip
        return hist

    def partition_nodes(self, nodes: GrowingNodes, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Move lines that go left before the others; return where the latter begin."""
        from daskml_dist.backends.forest_kernels import partition_lines

        middles, spare = nodes.start.copy(), self._line_memory(0)
        for k, (feature, last, missing_left) in enumerate(cuts.tolist()):
            node_lines = self._view_lines(nodes, k)
            middles[k] += partition_lines(
                self._binned.rows, node_lines, feature, last, self._settings.missing, missing_left,
                spare[: len(node_lines)],
            )  # fmt: skip
        return middles

    def copy_lines(self, nodes: GrowingNodes, k: int) -> NDArray[np.int64]:
        """Return a copy of the lines of the k-th node."""
        return self._view_lines(nodes, k).copy()
