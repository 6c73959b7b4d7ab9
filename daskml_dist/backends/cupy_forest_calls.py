"""From arrays on a device to launches of the kernels of forests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends import kernels
from daskml_dist.backends.cupy_calls import Calls
from daskml_dist.backends.forests import TOLD, ForestFacts, Nodes

__all__ = ["TILE", "ForestCalls", "Table"]

#: Lines, or rows, that a warp takes; the word of forest_nodes.cuh.
TILE = 512
#: Numbers of a node there.
_NODE = 10
#: Entries of room for the draws of features, of all threads.
_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """Nodes as a device is told of them.

    Parameters
    ----------
    nodes : array of int64 of shape (n, 10)
        As forest_nodes.cuh has them.
    n_tiles : int
        Of their lines.
    """

    nodes: Any
    n_tiles: int

    @property
    def n(self) -> int:
        """Nodes."""
        return int(self.nodes.shape[0])


class ForestCalls(Calls):
    """Calls of the kernels that forests grow by, on one device."""

    #: The nodes that the device was told of last.
    _told: tuple[Any, Any, Table] | None = None

    def table(self, nodes: Nodes, firsts: Any = None, cuts: Any = None) -> Table:
        """Tell the device of some nodes; what it was told last is there already.

        Parameters
        ----------
        nodes : Nodes
        firsts : ndarray of int64 of shape (n_trees,), or None
            Where the lines of the trees begin; None where nobody asks.
        cuts : ndarray of int64 of shape (n, 3), or None
            As `ForestLane.part` takes them.
        """
        told = self._told
        if told and told[0] is nodes and cuts is None and (firsts is None or told[1] is firsts):
            return told[2]
        firsts = np.zeros(nodes.tree.max(initial=0) + 1, np.int64) if firsts is None else firsts
        table = np.zeros((len(nodes), _NODE), np.int64)
        first = firsts[nodes.tree]
        table[:, 0], table[:, 1] = nodes.start + first, nodes.stop + first
        table[:, 2], table[:, 3] = nodes.path.view(np.int64), nodes.tree
        tiles = -(-(nodes.stop - nodes.start) // TILE)
        table[1:, 4] = tiles[:-1].cumsum()
        table[:, 5:7] = np.ascontiguousarray(nodes.bounds[:, :2]).view(np.int64)
        if cuts is not None:
            table[:, 7:] = cuts
        found = Table(self.cupy.asarray(table), int(tiles.sum()))
        if cuts is None:
            self._told = nodes, firsts, found
        return found

    def count(self, numbers: Any, weight: Any, keys: Any, table: Any, counts: Any) -> None:
        """Count the rows of each tile that trees draw."""
        (n,), (n_trees, n_tiles) = numbers.shape, counts.shape
        self._forest(
            "forest_lines", "forest_count", counts.size, numbers, weight, keys, table, counts, n,
            n_trees, n_tiles, len(table),
        )  # fmt: skip

    def draw(
        self, rows: tuple[Any, Any, Any, Any], keys: Any, table: Any, factor: Any, ends: Any,
        lines: Any, bits: int,
    ) -> None:  # fmt: skip
        """Write the lines of the rows that trees draw.

        `rows`: numbers, weights, classes and the rest of the lines.
        """
        (numbers, weight, slot, more), (n_trees, n_tiles) = rows, ends.shape
        n_classes = 0 if factor is None else factor.shape[1]
        self._forest(
            "forest_lines", "forest_draw", ends.size, numbers, weight, keys, table, factor, slot,
            more, ends, lines, len(numbers), n_trees, n_tiles, len(table), n_classes, bits,
            lines.shape[1],
        )  # fmt: skip

    def sums(self, lines: Any, table: Table, sums: Any, reach: Any) -> None:
        """Add up the sums of nodes."""
        numbers = table.n, table.n_tiles, lines.shape[1], sums.shape[1] - 2, reach.shape[1] // 2
        arrays = lines, table.nodes, sums, reach
        self._forest("forest_lines", "forest_sums", table.n_tiles, *arrays, *numbers)

    def part(
        self, bins: Any, lines: Any, table: Table, parted: Any, ends: Any, missing: int
    ) -> None:
        """Bring lines that go left before the others, to other memory."""
        numbers = table.n, table.n_tiles, bins.shape[1], lines.shape[1], missing
        arrays = bins, lines, table.nodes, parted, ends
        self._forest("forest_lines", "forest_part", table.n_tiles, *arrays, *numbers)

    def features(self, table: Table, d: int, first: int, last: int) -> Any:
        """The features that nodes draw."""
        cp, found = self.cupy, self.cupy.empty((table.n, last - first), np.int32)
        most = max(1, _ENTRIES // (d + last))
        at = kernels.launch("forest_features", min(table.n, most), 1, "float32", self._n_sms)
        assert at is not None
        n_threads = min(table.n, most, at.grid * at.block[0])
        order = cp.empty((d, n_threads), np.int32)
        order[...] = cp.arange(d, dtype=np.int32)[:, None]
        swaps = cp.empty((last, n_threads), np.int32)
        self._forest(
            "forest_splits", "forest_features", n_threads, table.nodes, order, swaps, found,
            table.n, n_threads, d, first, last,
        )  # fmt: skip
        return found

    def histograms(self, bins: Any, lines: Any, table: Table, features: Any, hist: Any) -> None:
        """Add the histograms of some features of nodes."""
        _, m, _, n_sums = hist.shape
        numbers = table.n, table.n_tiles, m, bins.shape[1], lines.shape[1], n_sums
        arrays = bins, lines, table.nodes, features, hist
        self._forest("forest_splits", "forest_histograms", table.n_tiles * m, *arrays, *numbers)

    def cuts(
        self, table: Table, features: Any, hist: Any, jobs: slice, sums: Any, of_trees: Any,
        facts: ForestFacts, of_features: tuple[Any, Any, Any],
    ) -> Any:  # fmt: skip
        """Facts of the cuts of some jobs; see `ForestDevice.cuts`.

        `of_features`: signs, smallest and largest values of bins.
        """
        n, m = features.shape
        told = self.cupy.zeros((n, m, TOLD + facts.n_sums + 1), np.int64)
        n_jobs = jobs.stop - jobs.start
        if n_jobs > 0:
            self._forest(
                "forest_splits", "forest_cuts", n_jobs, table.nodes, features, hist, sums, of_trees,
                *of_features, told, jobs.start, jobs.stop, m, facts.n_sums, of_trees.shape[1],
                int(facts.bounded),
            )  # fmt: skip
        return told

    def best(self, told: Any, features: Any, one: bool) -> Any:
        """The best cut of each node."""
        n, m, width = told.shape
        best = self.cupy.empty((n, 1 + width), np.int64)
        self._forest("forest_splits", "forest_best", n, told, features, best, n, m, width, int(one))
        return best

    def _forest(self, source: str, function: str, n: int, *arguments: Any) -> None:
        at = kernels.launch(function, n, 1, "float32", self._n_sms)
        self._call(source, "float32", function, at, *arguments)()
