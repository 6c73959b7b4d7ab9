"""Growing the trees of forests on a GPU, where rows and the lines of drawn rows stay.

For each level, the host gets only the sums and best cuts of its nodes, and decides which are split.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import kernels
from daskml_dist.backends.cupy_bins import from_ordered_integers, join_bins, to_ordered_integers
from daskml_dist.backends.cupy_calls import KernelCalls
from daskml_dist.backends.devices import device_memory
from daskml_dist.backends.forests import N_CUT_FACTS, ForestFacts, GrowingNodes

#: Lines, or rows, processed by a warp; as in forest_nodes.cuh.
LINES_PER_TILE = 512
#: Numbers (int64) per node in the table; as in forest_nodes.cuh.
_NUMBERS_PER_NODE = 10
#: Scratch entries in which all threads together draw features (int32, 64 MiB).
_MAX_DRAW_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False, slots=True)
class NodeTable:
    """Description of nodes on a device.

    Parameters
    ----------
    nodes : array of int64 of shape (n, 10)
        Columns as in forest_nodes.cuh.
    n_tiles : int
        Number of tiles of their lines.
    """

    nodes: Any
    n_tiles: int

    @property
    def n(self) -> int:
        """Return the number of nodes."""
        return int(self.nodes.shape[0])


class ForestCalls(KernelCalls):
    """Calls of the kernels that grow forests, on one device."""

    #: The nodes that were last copied to the device.
    _last_table: tuple[Any, Any, NodeTable] | None = None

    def table(self, nodes: GrowingNodes, firsts: Any = None, cuts: Any = None) -> NodeTable:
        """Copy the description of some nodes to the device, unless it is there already.

        Parameters
        ----------
        nodes : GrowingNodes
        firsts : ndarray of int64 of shape (n_trees,), or None
            Position at which the lines of each tree begin; None if not needed.
        cuts : ndarray of int64 of shape (n, 3), or None
            As for `ForestLane.partition_nodes`.
        """
        # Several consecutive kernels use the same nodes: the last table is kept on the device.
        last = self._last_table
        if last and last[0] is nodes and cuts is None and (firsts is None or last[1] is firsts):
            return last[2]
        firsts = np.zeros(nodes.tree.max(initial=0) + 1, np.int64) if firsts is None else firsts
        table = np.zeros((len(nodes), _NUMBERS_PER_NODE), np.int64)
        first = firsts[nodes.tree]
        # Columns as named in forest_nodes.cuh: lines, path, tree, first tile, bounds, cut.
        table[:, 0], table[:, 1] = nodes.start + first, nodes.stop + first
        table[:, 2], table[:, 3] = nodes.path.view(np.int64), nodes.tree
        # A warp processes a tile of lines; the number of its first tile locates a node's tiles.
        tiles = -(-(nodes.stop - nodes.start) // LINES_PER_TILE)
        table[1:, 4] = tiles[:-1].cumsum()
        table[:, 5:7] = np.ascontiguousarray(nodes.bounds[:, :2]).view(np.int64)
        if cuts is not None:
            table[:, 7:] = cuts
        node_table = NodeTable(self.cupy.asarray(table), int(tiles.sum()))
        # A table with cuts is used for one partition only, after which the nodes change.
        if cuts is None:
            self._last_table = nodes, firsts, node_table
        return node_table

    def count(self, row_numbers: Any, weight: Any, keys: Any, table: Any, counts: Any) -> None:
        """Count the drawn rows of each tile, for each tree."""
        (n,), (n_trees, n_tiles) = row_numbers.shape, counts.shape
        self._forest(
            "forest_lines", "forest_count", counts.size, row_numbers, weight, keys, table, counts,
            n, n_trees, n_tiles, len(table),
        )  # fmt: skip

    def draw(
        self, rows: tuple[Any, Any, Any, Any], keys: Any, table: Any, factor: Any, tile_ends: Any,
        lines: Any, bits: int,
    ) -> None:  # fmt: skip
        """Write the lines of the rows that trees draw.

        `rows`: numbers, weights, classes, and the remaining columns of the lines.
        """
        (numbers, weight, slot, columns), (n_trees, n_tiles) = rows, tile_ends.shape
        n_classes = 0 if factor is None else factor.shape[1]
        self._forest(
            "forest_lines", "forest_draw", tile_ends.size, numbers, weight, keys, table, factor,
            slot, columns, tile_ends, lines, len(numbers), n_trees, n_tiles, len(table), n_classes,
            bits, lines.shape[1],
        )  # fmt: skip

    def sums(self, lines: Any, table: NodeTable, sums: Any, target_ranges: Any) -> None:
        """Add up the sums of nodes."""
        numbers = (
            table.n,
            table.n_tiles,
            lines.shape[1],
            sums.shape[1] - 2,
            target_ranges.shape[1] // 2,
        )
        arrays = lines, table.nodes, sums, target_ranges
        self._forest("forest_lines", "forest_sums", table.n_tiles, *arrays, *numbers)

    def partition_lines(
        self, bins: Any, lines: Any, table: NodeTable, parted: Any, node_ends: Any, missing: int
    ) -> None:
        """Move lines that go left before the others, into other memory."""
        numbers = table.n, table.n_tiles, bins.shape[1], lines.shape[1], missing
        arrays = bins, lines, table.nodes, parted, node_ends
        self._forest("forest_lines", "forest_part", table.n_tiles, *arrays, *numbers)

    def features(self, table: NodeTable, d: int, first: int, last: int) -> Any:
        """Return the features that nodes draw."""
        cp, drawn = self.cupy, self.cupy.empty((table.n, last - first), np.int32)
        # Each thread permutes a list of its own; their memory limits the number of threads.
        most = max(1, _MAX_DRAW_ENTRIES // (d + last))
        launch = kernels.launch("forest_features", min(table.n, most), 1, "float32", self._n_sms)
        assert launch is not None
        n_threads = min(table.n, most, launch.grid * launch.block[0])
        order = cp.empty((d, n_threads), np.int32)
        order[...] = cp.arange(d, dtype=np.int32)[:, None]
        swaps = cp.empty((last, n_threads), np.int32)
        self._forest(
            "forest_splits", "forest_features", n_threads, table.nodes, order, swaps, drawn,
            table.n, n_threads, d, first, last,
        )  # fmt: skip
        return drawn

    def histograms(self, bins: Any, lines: Any, table: NodeTable, features: Any, hist: Any) -> None:
        """Add the histograms of some features of nodes."""
        _, m, _, n_sums = hist.shape
        numbers = table.n, table.n_tiles, m, bins.shape[1], lines.shape[1], n_sums
        arrays = bins, lines, table.nodes, features, hist
        self._forest("forest_splits", "forest_histograms", table.n_tiles * m, *arrays, *numbers)

    def cuts(
        self, table: NodeTable, features: Any, hist: Any, jobs: slice, sums: Any,
        tree_settings: Any, settings: ForestFacts, of_features: tuple[Any, Any, Any],
    ) -> Any:  # fmt: skip
        """Return facts about the cuts of some jobs; see `ForestDevice.find_cuts`.

        `of_features`: signs, smallest and largest values of bins.
        """
        n, m = features.shape
        cuts = self.cupy.zeros((n, m, N_CUT_FACTS + settings.n_sums + 1), np.int64)
        n_jobs = jobs.stop - jobs.start
        if n_jobs > 0:
            self._forest(
                "forest_splits", "forest_cuts", n_jobs, table.nodes, features, hist, sums,
                tree_settings, *of_features, cuts, jobs.start, jobs.stop, m, settings.n_sums,
                tree_settings.shape[1], int(settings.bounded),
            )  # fmt: skip
        return cuts

    def best(self, cuts: Any, features: Any, first_only: bool) -> Any:
        """Return the best cut of each node."""
        n, m, width = cuts.shape
        best = self.cupy.empty((n, 1 + width), np.int64)
        self._forest(
            "forest_splits", "forest_best", n, cuts, features, best, n, m, width, int(first_only)
        )
        return best

    def _forest(self, source: str, function: str, n: int, *arguments: Any) -> None:
        """Launch a kernel over n tiles, threads or jobs."""
        launch = kernels.launch(function, n, 1, "float32", self._n_sms)
        self._call(source, "float32", function, launch, *arguments)()


Array = NDArray[Any]


class CupyForests:
    """GPU on which trees of forests grow.

    Parameters
    ----------
    backend : CupyBackend
    """

    by_levels = True

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._calls = ForestCalls(backend.calls.cupy, backend.calls.address)
        self._device_settings: tuple[ForestFacts, Any] | None = None

    def open_lane(self, binned: Any, settings: ForestFacts, allocate: Any) -> CupyLane:
        """Return the rows of a lane on the GPU."""
        on_device = binned.device_bins is not None
        with self.guard_memory(len(binned.numbers if on_device else binned.rows)):
            return CupyLane(binned, settings, self._backend, self._calls)

    def guard_memory(self, n_rows: int) -> AbstractContextManager[None]:
        """Turn out-of-memory errors of the GPU into an error that names the data."""
        return device_memory(
            f"What trees grow of on {n_rows:,} rows",
            'Use decomposition="data" and more workers, or device="cpu", whose trees are the same.',
        )

    @property
    def budget(self) -> float:
        """Return the free bytes of the GPU's memory."""
        cp = self._calls.cupy
        free, _ = cp.cuda.Device().mem_info
        return float(free + cp.get_default_memory_pool().free_bytes())

    def copy_to_host(self, hist: Any) -> Array:
        """Return histograms in host memory."""
        on_host: Array = self._backend.to_numpy(hist)
        return on_host

    def copy_to_device(self, summed: Array) -> Any:
        """Return the sums of all trainers on the GPU."""
        return self._backend.to_device(summed)

    def draw_features(
        self, nodes: GrowingNodes, settings: ForestFacts, first: int, last: int
    ) -> Any:
        """Return the features that nodes draw."""
        return self._calls.features(self._calls.table(nodes), settings.n_features, first, last)

    def find_cuts(
        self, nodes: GrowingNodes, features: Any, hist: Any, jobs: slice, sums: NDArray[np.int64],
        settings: ForestFacts, tree_settings: NDArray[np.int64],
    ) -> Any:  # fmt: skip
        """Return facts about the cuts of some jobs."""
        to_device = self._backend.to_device
        if self._device_settings is None or self._device_settings[0] is not settings:
            self._device_settings = (
                settings,
                tuple(map(to_device, (settings.monotonic_signs, settings.low, settings.high))),
            )
        return self._calls.cuts(
            self._calls.table(nodes), features, hist, jobs, to_device(sums),
            to_device(tree_settings), settings, self._device_settings[1],
        )  # fmt: skip

    def choose_best_cuts(self, cuts: Any, features: Any, first_only: bool) -> NDArray[np.int64]:
        """Return the best cut of each node."""
        best_on_device = self._calls.best(cuts, features, first_only)
        best: NDArray[np.int64] = self._backend.to_numpy(best_on_device)
        return best


class CupyLane:
    """Rows of a lane on a GPU, and the lines of rows that some trees draw.

    There are two copies of the memory for lines: partitioning moves a node's lines from one to the
    other. Nodes do not overlap, so the lines of a node that is not split stay where they are.

    Parameters
    ----------
    binned : solvers.forest_rows.ForestRows
    settings : ForestFacts
    backend : CupyBackend
    calls : ForestCalls
    """

    def __init__(
        self, binned: Any, settings: ForestFacts, backend: Any, calls: ForestCalls
    ) -> None:
        self._settings, self._backend, self._calls = settings, backend, calls
        to_device = backend.to_device
        self._bins = join_bins([binned], backend)
        self._rows = tuple(
            to_device(np.ascontiguousarray(a))
            for a in (binned.numbers, binned.weight, binned.slot, binned.more)
        )
        self._table = to_device(settings.table)
        self._firsts = np.zeros(1, np.int64)
        self._lines: list[Any] = []

    def draw_lines(self, keys: NDArray[np.uint64], factor: NDArray[np.int64] | None) -> list[int]:
        """Draw the rows of some trees."""
        cp, facts, to_device = self._calls.cupy, self._settings, self._backend.to_device
        numbers, weight, *_ = self._rows
        n_tiles = max(1, -(-len(numbers) // LINES_PER_TILE))
        counts, keys = cp.empty((len(keys), n_tiles), np.int64), to_device(keys)
        self._calls.count(numbers, weight, keys, self._table, counts)
        # Counts per tile become positions: lines are written without gaps, in the order of the
        # rows.
        ends = cp.cumsum(counts.reshape(-1)).reshape(counts.shape)
        last: NDArray[np.int64] = self._backend.to_numpy(ends[:, -1])
        self._firsts = np.append(0, last[:-1]).astype(np.int64)
        shape = int(last[-1]), facts.n_line
        self._lines = []  # frees memory before the next allocation
        self._lines = [cp.empty(shape, np.int64), cp.empty(shape, np.int64)]
        factor = None if factor is None else to_device(factor)
        self._calls.draw(self._rows, keys, self._table, factor, ends, self._lines[0], facts.bits)
        n_lines: list[int] = (last - self._firsts).tolist()
        return n_lines

    def hold_lines(self, lines: NDArray[np.int64], firsts: NDArray[np.int64]) -> None:
        """Store lines that were drawn elsewhere, and where those of each tree begin."""
        on_device = self._backend.to_device(lines)
        self._lines, self._firsts = [on_device, self._calls.cupy.empty_like(on_device)], firsts

    def _get_lines(self, n_partitions: int) -> Any:
        """Return the memory of the lines after a number of partitions; two buffers alternate."""
        return self._lines[n_partitions % 2]

    def add_node_sums(
        self, nodes: GrowingNodes, sums: NDArray[np.int64], target_ranges: NDArray[np.float64]
    ) -> None:
        """Add up the sums of nodes."""
        device_sums = self._calls.cupy.zeros(sums.shape, np.int64)
        # CUDA's atomic maximum takes integers: floats are converted to integers of the same order.
        device_reach = self._backend.to_device(to_ordered_integers(target_ranges))
        table = self._calls.table(nodes, self._firsts)
        self._calls.sums(self._get_lines(nodes.n_partitions), table, device_sums, device_reach)
        sums += self._backend.to_numpy(device_sums)
        if self._settings.n_line % 2:  # classification has no range of targets
            target_ranges[...] = from_ordered_integers(self._backend.to_numpy(device_reach))

    def build_histograms(self, nodes: GrowingNodes, features: Any) -> Any:
        """Return the histograms of some features of nodes."""
        n, m = features.shape
        hist = self._calls.cupy.zeros((n, m, 256, self._settings.n_sums), np.int64)
        table = self._calls.table(nodes, self._firsts)
        self._calls.histograms(
            self._bins, self._get_lines(nodes.n_partitions), table, features, hist
        )
        return hist

    def partition_nodes(self, nodes: GrowingNodes, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Move lines that go left before the others; return where the latter begin."""
        # Kernels count left lines from the front and right ones from the back; `ends` then holds
        # the boundaries.
        first = self._firsts[nodes.tree]
        ends = self._backend.to_device(np.column_stack([nodes.start + first, nodes.stop + first]))
        table, turn = self._calls.table(nodes, self._firsts, cuts), nodes.n_partitions
        self._calls.partition_lines(
            self._bins,
            self._get_lines(turn),
            table,
            self._get_lines(turn + 1),
            ends,
            self._settings.missing,
        )
        middles: NDArray[np.int64] = self._backend.to_numpy(ends)[:, 0] - first
        return middles

    def copy_lines(self, nodes: GrowingNodes, k: int) -> NDArray[np.int64]:
        """Return a copy of the lines of the k-th node, in host memory."""
        first = self._firsts[nodes.tree[k]]
        node_lines = self._get_lines(nodes.n_partitions)[
            first + nodes.start[k] : first + nodes.stop[k]
        ]
        return np.array(self._backend.to_numpy(node_lines))
