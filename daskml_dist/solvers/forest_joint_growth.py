"""Growth of a forest's trees by all trainers together, each on its own rows.

Trees grow level by level: histograms are reduced by ranges of (node, feature), whose owners find
the best cuts. A node of few rows is sent to one trainer, which finishes it alone.

References
----------
B. Panda et al., "PLANET: Massively parallel learning of tree ensembles with MapReduce", VLDB
2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from daskml_dist.backends.forests import ForestDevice, Nodes
from daskml_dist.models.grown_tree import GrownTree, join_subtrees
from daskml_dist.models.trees import Tree
from daskml_dist.solvers.forest_growth import ForestContext
from daskml_dist.solvers.forest_levels import find_best_cuts, grow_tree_parts, sum_root_lines
from daskml_dist.solvers.forest_rows import ForestRows
from daskml_dist.solvers.own_rows import Array, OwnRows

__all__ = ["JointGrower", "flatten_parts", "unpack_part"]

#: Bytes of the histograms that are summed over trainers at once: one message of 32 MiB.
_HISTOGRAM_BYTES = 2**25
#: A node of at most so many rows is finished by one trainer; bytes of rows in one exchange.
SMALL_NODE_ROWS, _SENT_BYTES = 2**14, 2**27


@dataclass(eq=False)
class _JointNode:
    """Node of a growing tree.

    Parameters
    ----------
    tree : int
        Among those that grow together.
    number : int
        Among the tree's nodes.
    depth : int
    path : uint64
    at : list of slice
        Of the lines of each own lane.
    bounds : ndarray of float64 of shape (3,)
    """

    tree: int
    number: int
    depth: int
    path: np.uint64
    at: list[slice]
    bounds: Array
    sums: Array = field(default_factory=lambda: np.empty(0))
    feature: int = -1
    told: Array = field(default_factory=lambda: np.empty(0))


class JointGrower:
    """Grower of trees by all trainers together.

    Parameters
    ----------
    rows : OwnRows
    rooms : sequence of ForestRows
        Of the own lanes.
    growing : ForestContext
    device : ForestDevice
    """

    def __init__(
        self,
        rows: OwnRows,
        rooms: Sequence[ForestRows],
        growing: ForestContext,
        device: ForestDevice,
    ) -> None:
        self._rows, self._rooms, self._growing, self._device = rows, rooms, growing, device
        self._growth = growing.growth
        self._lanes = rows.map_lanes(
            lambda room: device.lane(room, growing.shared, rows.allocate_zeros), rooms
        )

    def grow(self, numbers: range) -> list[tuple[Tree, Array]]:
        """Grow some trees; return them with the impurity of their nodes."""
        with self._device.memory(sum(len(room.numbers) for room in self._rooms)):
            return self._grow_all_levels(numbers)

    def _grow_all_levels(self, numbers: range) -> list[tuple[Tree, Array]]:
        growing = self._growing
        drawn = self._draw_lines(numbers)
        self._tops = [_TopNodes(growing) for _ in numbers]
        level = [
            _JointNode(
                k,
                0,
                0,
                growing.make_tree_keys(t)[1],
                [slice(0, n[k]) for n in drawn],
                growing.root_bounds(),
            )
            for k, t in enumerate(numbers)
        ]
        for node in level:
            self._tops[node.tree].add(node)
        small: list[_JointNode] = []
        depth = 0
        while level:
            level = self._grow_level(level, small, depth)
            depth += 1
        parts = self._finish_small_nodes(small)
        return [
            growing.finish_tree(join_subtrees(top.made(), parts[k]))
            for k, top in enumerate(self._tops)
        ]

    def _draw_lines(self, numbers: range) -> list[list[int]]:
        """Let trees draw the rows of each own lane; how many lines each has."""
        growing, factor = self._growing, None
        keys = np.array([growing.make_tree_keys(t)[0] for t in numbers], np.uint64)
        drawn = self._rows.map_lanes(lambda lane: lane.draw(keys, factor), self._lanes)
        if not self._growth.balanced:
            return drawn
        sums = sum(
            sum_root_lines(lane, growing, n)[0] for lane, n in zip(self._lanes, drawn, strict=True)
        )
        factor = growing.balance_classes(self._rows.sum_trainers(np.asarray(sums)))
        return self._rows.map_lanes(lambda lane: lane.draw(keys, factor), self._lanes)

    def _nodes(self, nodes: Sequence[_JointNode], i: int) -> Nodes:
        """Return the nodes of a level as one lane holds them."""
        return Nodes(
            np.array([node.tree for node in nodes]),
            np.array([node.at[i].start for node in nodes]),
            np.array([node.at[i].stop for node in nodes]),
            np.array([node.path for node in nodes], np.uint64),
            np.array([node.bounds for node in nodes]),
            nodes[0].depth,
        )

    # -- a level -------------------------------------------------------------------------------

    def _grow_level(
        self, level: list[_JointNode], small: list[_JointNode], depth: int
    ) -> list[_JointNode]:
        """Split the nodes of a level; their children."""
        from daskml_dist.backends.forest_grow import write_splittable

        sums, reach = self._sum_nodes(level)
        if not depth:
            self._facts, self._least = self._growing.pack_all_settings(sums[:, -2])
        tree, may = np.array([node.tree for node in level]), np.zeros(len(level), np.bool_)
        write_splittable(self._facts, tree, sums, reach, np.full(len(level), depth), may)
        mask = (1 << self._growing.scales.bits) - 1
        # Nodes of few rows wait: one trainer finishes each of them alone.
        few = (sums[:, -2] & mask) <= SMALL_NODE_ROWS
        small += [level[k] for k in np.flatnonzero(may & few)]
        open_ = [level[k] for k in np.flatnonzero(may & ~few)]
        return self._split_nodes(open_, self._find_cuts(open_)) if open_ else []

    def _sum_nodes(self, level: list[_JointNode]) -> tuple[Array, Array]:
        """Add up the sums of nodes, and find their reaches."""
        growth = self._growth
        sums = np.zeros((len(level), growth.n_sums + 2), np.int64)
        reach = np.full((len(level), 2 * growth.n_outputs), -np.inf)
        for i, lane in enumerate(self._lanes):
            lane.sums(self._nodes(level, i), sums, reach)
        if self._rows.size > 1:
            sums = self._rows.sum_trainers(sums)
            if not growth.classes:
                reach = self._rows.max_trainers(reach.ravel()).reshape(reach.shape)
        for node, own in zip(level, sums, strict=True):
            node.sums = own
            self._tops[node.tree].sums[node.number] = own
        return sums, reach

    def _find_cuts(self, nodes: list[_JointNode]) -> Array:
        """Return the best cuts of nodes."""

        def look(which: Array, of: slice, one: bool) -> Array:
            return self._find_feature_cuts([nodes[k] for k in which], of, one)

        return find_best_cuts(
            look, len(nodes), self._growing.shared, self._growth.max_features, _HISTOGRAM_BYTES
        )

    def _find_feature_cuts(self, nodes: list[_JointNode], of: slice, one: bool) -> Array:
        """Return the best cuts of nodes by some of the features that they draw."""
        device, facts, rows = self._device, self._growing.shared, self._rows
        first, *others = (self._nodes(nodes, i) for i in range(len(self._lanes)))
        features = device.features(first, facts, of.start, of.stop)
        total = self._lanes[0].histograms(first, features)
        for lane, own in zip(self._lanes[1:], others, strict=True):
            total += lane.histograms(own, features)
        n, m = features.shape
        total, jobs = total.reshape(n * m, 256, facts.n_sums), slice(0, n * m)
        if rows.size > 1:
            # Each trainer owns a range of (node, feature) and finds its cuts.
            jobs = rows.split_ranges(n * m)[rows.rank]
            if rows.sums_on_device:
                total = rows.sum_own_range(total)
            else:
                total = device.to_device(rows.sum_own_range(device.to_host(total)))
        sums = np.array([node.sums for node in nodes])
        told = device.cuts(first, features, total, jobs, sums, facts, self._facts)
        if rows.size > 1:
            there = rows.sums_on_device
            told = (
                rows.sum_trainers(told)
                if there
                else device.to_device(rows.sum_trainers(device.to_host(told)))
            )
        return device.best(told, features, one)

    def _split_nodes(self, nodes: list[_JointNode], best: Array) -> list[_JointNode]:
        """Split nodes, where that is worth it; their children."""
        from daskml_dist.backends.forest_grow import settle_splits

        gain, of_children = np.empty(len(nodes)), np.empty((len(nodes), 2, 3))
        ways = np.empty((len(nodes), 2), np.uint64)
        settle_splits(
            self._facts, self._least, np.array([node.tree for node in nodes]),
            np.array([node.sums for node in nodes]), best,
            np.ascontiguousarray(best[:, 1]).view(np.float64), self._growth.signs,
            np.array([node.bounds for node in nodes]), np.array([n.path for n in nodes], np.uint64),
            gain, of_children, ways,
        )  # fmt: skip
        split = np.flatnonzero(gain >= 0)
        children: list[_JointNode] = []
        for k in split.tolist():
            node = nodes[k]
            node.feature, node.told = int(best[k, 0]), best[k, 1:]
            top = self._tops[node.tree]
            top.split(node, float(gain[k]))
            for way, bounds in zip(ways[k], of_children[k], strict=True):
                children.append(_JointNode(node.tree, 0, node.depth + 1, way, [], bounds))
                top.add(children[-1])
        if len(split):
            self._partition_lines([nodes[k] for k in split], best[split], children)
        return children

    def _partition_lines(
        self, some: list[_JointNode], best: Array, children: list[_JointNode]
    ) -> None:
        """Partition the lines of split nodes, and tell the children where theirs are."""
        cuts = np.ascontiguousarray(best[:, [0, 4, 6]])
        middles = self._rows.map_lanes(
            lambda i: self._lanes[i].part(self._nodes(some, i), cuts), range(len(self._lanes))
        )
        for i, of_lane in enumerate(middles):
            for k, (node, middle) in enumerate(zip(some, of_lane.tolist(), strict=True)):
                children[2 * k].at.append(slice(node.at[i].start, middle))
                children[2 * k + 1].at.append(slice(middle, node.at[i].stop))

    # -- small nodes ---------------------------------------------------------------------------

    def _finish_small_nodes(self, small: list[_JointNode]) -> list[list[tuple[int, GrownTree]]]:
        """Return the parts of each tree that grow below small nodes."""
        found: list[list[tuple[int, GrownTree]]] = [[] for _ in self._tops]
        for some in self._group_small_nodes(small):
            for node, part in zip(some, self._grow_small_nodes(some), strict=True):
                found[node.tree].append((node.number, part))
        return found

    def _group_small_nodes(self, small: list[_JointNode]) -> Iterator[list[_JointNode]]:
        """Yield groups of small nodes whose rows travel in one message."""
        mask = (1 << self._growing.scales.bits) - 1
        each = self._rooms[0].rows.shape[1] + 8 * self._growth.n_line
        some, nbytes = [], 0
        for node in small:
            some.append(node)
            nbytes += each * (int(node.sums[-2]) & mask)
            if nbytes >= _SENT_BYTES:
                yield some
                some, nbytes = [], 0
        if some:
            yield some

    def _grow_small_nodes(self, small: list[_JointNode]) -> list[GrownTree]:
        """Grow the parts below some small nodes, each on one trainer, and exchange them."""
        size, rank = self._rows.size, self._rows.rank
        # Small nodes are dealt to trainers in turn, with all rows of theirs.
        given = [self._own_node_rows(small[to::size]) for to in range(size)]
        if size > 1:
            taken = [
                self._rows.exchange_arrays(list(arrays)) for arrays in zip(*given, strict=True)
            ]
        else:
            taken = [[array] for (arrays,) in [given] for array in arrays]
        grown = self._finish_nodes(small[rank::size], *taken)
        if size == 1:
            return grown
        every = self._rows.gather_arrays(flatten_parts(grown, self._growing))
        return [unpack_part(every[k % size], k // size) for k in range(len(small))]

    def _own_node_rows(self, nodes: list[_JointNode]) -> tuple[Array, Array, Array]:
        """Return this trainer's rows of some nodes: how many of each, bins and lines."""
        counts, bins, lines = [], [], []
        for node in nodes:
            n = 0
            for i, room in enumerate(self._rooms):
                some = self._lanes[i].lines(self._nodes([node], i), 0)
                index = some[:, 0] & 0xFFFFFFFF
                some[:, 0] ^= index
                some[:, 0] |= np.arange(n, n + len(some))
                n += len(some)
                bins.append(room.rows[index])
                lines.append(some)
            counts.append(n)
        width, n_line = self._rooms[0].rows.shape[1], self._growth.n_line
        return (
            np.array(counts, np.int64),
            np.concatenate([np.empty((0, width), np.uint8), *bins]),
            np.concatenate([np.empty((0, n_line), np.int64), *lines]),
        )

    def _finish_nodes(
        self, nodes: list[_JointNode], counts: list[Array], bins: list[Array], lines: list[Array]
    ) -> list[GrownTree]:
        """Finish some nodes of which all trainers have sent their rows."""
        ends = [np.append(0, of.cumsum()) for of in counts]

        def joined_rows(k: int) -> tuple[Array, Array]:
            of_bins, of_lines, n = [], [], 0
            for rank, end in enumerate(ends):
                at = slice(end[k], end[k + 1])
                of_bins.append(bins[rank][at])
                some = lines[rank][at].copy()
                some[:, 0] += n
                n += len(some)
                of_lines.append(some)
            return np.concatenate(of_bins), np.concatenate(of_lines)

        def finish(k: int) -> GrownTree:
            node = nodes[k]
            facts, least = self._facts[node.tree], float(self._least[node.tree])
            return self._growing.grow_tree_part(
                facts, least, *joined_rows(k), node.path, node.depth, node.bounds
            )

        if not self._device.by_levels:
            return self._rows.map_lanes(finish, range(len(nodes)))
        return self._finish_by_levels(nodes, [joined_rows(k) for k in range(len(nodes))])

    def _finish_by_levels(
        self, nodes: list[_JointNode], given: list[tuple[Array, Array]]
    ) -> list[GrownTree]:
        """Finish some nodes together, each of its bins and lines."""
        if not nodes:
            return []
        ends = np.append(0, np.cumsum([len(lines) for _, lines in given]))
        for (_, lines), first in zip(given, ends.tolist(), strict=False):
            lines[:, 0] += first
        trees = np.array([node.tree for node in nodes])
        return grow_tree_parts(
            self._device, self._growing, np.concatenate([bins for bins, _ in given]),
            np.concatenate([lines for _, lines in given]), ends, self._facts[trees],
            self._least[trees],
            np.array([node.path for node in nodes], np.uint64),
            np.array([node.depth for node in nodes], np.int32),
            np.array([node.bounds for node in nodes]),
        )  # fmt: skip


class _TopNodes:
    """The upper nodes of a tree, which all trainers grow together."""

    def __init__(self, growing: ForestContext) -> None:
        self._growing = growing
        self._nodes: list[_JointNode] = []
        self._left: list[int] = []
        self._gain: list[float] = []
        self.sums: list[Array] = []

    def add(self, node: _JointNode) -> None:
        """Add a node."""
        node.number = len(self._nodes)
        self._nodes.append(node)
        self._left.append(node.number)
        self._gain.append(0.0)
        self.sums.append(np.empty(0))

    def split(self, node: _JointNode, gain: float) -> None:
        """Note a split, whose children come next."""
        self._left[node.number], self._gain[node.number] = len(self._nodes), gain

    def made(self) -> GrownTree:
        """Return the part of the tree that all trainers have grown together."""
        left, nodes = np.array(self._left, np.int32), self._nodes
        n_sums = self._growing.growth.n_sums
        made = GrownTree.room(len(nodes), n_sums, self._growing.bounded)
        for k, node in enumerate(nodes):
            inner = left[k] != k
            made.feature[k] = node.feature if inner else -1
            made.cut[k] = node.told[3:6] if inner else 0
            made.threshold[k] = node.told[1:2].view(np.float64)[0] if inner else np.nan
            made.depth[k] = node.depth
            made.sums[k] = self.sums[k]
            if len(made.between):
                made.between[k] = node.bounds[:2]
        made.left[:] = left
        made.gain[:] = self._gain
        return made


def flatten_parts(grown: list[GrownTree], growing: ForestContext) -> list[Array]:
    """Return the concatenated arrays of several tree parts, and where each part ends."""
    empty = GrownTree.room(0, growing.growth.n_sums, growing.bounded)
    n = np.array([0, *(len(part.left) for part in grown)], np.int64)
    arrays = zip(empty.arrays, *(part.arrays for part in grown), strict=True)
    return [n.cumsum(), *(np.concatenate(parts) for parts in arrays)]


def unpack_part(arrays: list[Array], k: int) -> GrownTree:
    """Return the k-th of several flattened tree parts."""
    ends, *of = arrays
    at = slice(ends[k], ends[k + 1])
    return GrownTree(*(array[at] for array in of))
