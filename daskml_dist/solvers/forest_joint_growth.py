"""Growth of a forest's trees by all trainers together, each on its own rows.

Trees grow level by level: histograms are reduced by ranges of (node, feature), whose owners find
the best cuts. A node of few rows is sent to one trainer, which finishes it alone.
On a device that has all rows of its nodes, each level takes one call of each kernel, whatever the
number of nodes and trees. A drawn row is a *line*: its number, its weight and what the criterion
sums.

References
----------
B. Panda et al., "PLANET: Massively parallel learning of tree ensembles with MapReduce", VLDB
2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.forests import N_CUT_FACTS, ForestDevice, ForestFacts, ForestLane, Nodes
from daskml_dist.models.grown_tree import GrownTree, join_subtrees
from daskml_dist.models.trees import Tree
from daskml_dist.solvers.forest_growth import ForestContext
from daskml_dist.solvers.forest_rows import ForestRows
from daskml_dist.solvers.own_rows import Array, OwnRows

__all__ = [
    "JointGrower",
    "find_best_cuts",
    "flatten_parts",
    "grow_by_levels",
    "grow_tree_parts",
    "grow_whole_trees",
    "sum_root_lines",
    "unpack_part",
]

#: Share of the device's free memory for the lines of trees that grow at the same time.
_LINES_SHARE = 0.3
#: What `find_best_cuts` asks.
FindCuts = Callable[[Array, slice, bool], Array]
#: Bytes of the histograms that are made at once (256 MiB).
_HISTOGRAM_BYTES = 2**28
#: Features that are tried at once where none of a node's drawn features varied.
_MORE_FEATURES = 8
#: Where the features that a node looks at stand in the facts of a tree; see `forest_cuts`.
_N_FEATURES_FACT = 7


def grow_by_levels(
    device: ForestDevice, lane: ForestLane, facts: ForestFacts, of_trees: NDArray[np.int64],
    least: NDArray[np.float64], roots: Nodes, depth: NDArray[np.int32],
) -> list[GrownTree]:  # fmt: skip
    """Grow the parts of trees below some nodes, level by level.

    Parameters
    ----------
    device : ForestDevice
    lane : ForestLane
        Has the lines of all rows of the nodes.
    facts : ForestFacts
    of_trees : ndarray of int64 of shape (n, n_facts)
        See `forest_cuts`: of each node, whose number is that of its tree in `roots`.
    least : ndarray of float64 of shape (n,)
        What a split must gain at least.
    roots : Nodes
    depth : ndarray of int32 of shape (n,)
    """
    return _LevelGrower(device, lane, facts, of_trees, least).grow(roots, depth)


def find_best_cuts(
    look: FindCuts, n: int, facts: ForestFacts, m: int, most: int
) -> NDArray[np.int64]:
    """Return the best cut of each of some nodes, as `ForestDevice.best` tells.

    Where none of the first features of a node varies, it looks at more, up to the first that does.
    """
    found = np.zeros((n, 1 + N_CUT_FACTS + facts.n_sums + 1), np.int64)
    found[:, 0] = -1
    first, last, which = 0, m, np.arange(n)
    while len(which) and first < last:
        for at, of in _iterate_batches(len(which), last - first, facts.n_sums, most):
            some, one = which[at], first > 0
            best = look(some, slice(first + of.start, first + of.stop), one)
            _merge_cuts(found, some, best, one)
        # Nodes of which no drawn feature varied look at more features.
        which = which[found[which, 3] == 0]
        first, last = last, min(last + _MORE_FEATURES, facts.n_features)
    return found


def _merge_cuts(found: Array, which: Array, best: Array, one: bool) -> None:
    """Take note of better cuts; with `one`, of nodes of which nothing varied before."""
    before = found[which]
    worths, old = (np.ascontiguousarray(b[:, 1]).view(np.float64) for b in (best, before))
    better = (best[:, 0] >= 0) & ((before[:, 0] < 0) | (worths > old))
    if one:
        better &= before[:, 3] == 0
    varies = best[:, 3] | before[:, 3]
    before[better] = best[better]
    before[:, 3] = varies
    found[which] = before


def _iterate_batches(
    n_nodes: int, n_features: int, n_sums: int, most: int
) -> Iterator[tuple[slice, slice]]:
    """Yield slices of nodes and features whose histograms take at most `most` bytes."""
    of_one = 256 * 8 * n_sums
    wide = max(1, min(n_features, most // of_one))
    many = max(1, most // (of_one * wide))
    for a in range(0, n_nodes, many):
        for b in range(0, n_features, wide):
            yield slice(a, a + many), slice(b, min(n_features, b + wide))


@dataclass
class _LevelStore:
    """Nodes of all levels so far, as lists of arrays, one a level."""

    tree: list[Array] = field(default_factory=list)
    depth: list[Array] = field(default_factory=list)
    sums: list[Array] = field(default_factory=list)
    bounds: list[Array] = field(default_factory=list)
    left: list[Array] = field(default_factory=list)
    gain: list[Array] = field(default_factory=list)
    best: list[Array] = field(default_factory=list)
    n: int = 0

    def add(self, nodes: Nodes, depth: Array, sums: Array, n_told: int) -> None:
        """Add a level, of which nothing is split yet."""
        n = len(nodes)
        self.tree.append(nodes.tree)
        self.depth.append(depth)
        self.sums.append(sums)
        self.bounds.append(nodes.bounds[:, :2])
        self.left.append(np.arange(self.n, self.n + n))
        self.gain.append(np.zeros(n))
        self.best.append(np.full((n, n_told), -1, np.int64))
        self.n += n

    def split(self, which: Array, gain: Array, best: Array) -> None:
        """Split some nodes of the last level; their children come next, in this order."""
        self.left[-1][which] = self.n + 2 * np.arange(len(which))
        self.gain[-1][which] = gain
        self.best[-1][which] = best

    def made(self, n_trees: int, bounded: bool) -> list[GrownTree]:
        """Return the tree that has grown from each root."""
        lists = self.tree, self.depth, self.sums, self.bounds, self.left, self.gain, self.best
        tree, depth, sums, bounds, left, gain, best = map(np.concatenate, lists)
        order = np.argsort(tree, kind="stable")
        ends = np.searchsorted(tree[order], np.arange(n_trees + 1))
        place = np.empty(self.n, np.int64)
        place[order] = np.arange(self.n) - ends[tree[order]]

        def of_tree(own: Array) -> GrownTree:
            inner, threshold = left[own] != own, np.ascontiguousarray(best[own, 2])
            return GrownTree(
                feature=best[own, 0].astype(np.int32),
                cut=np.where(inner[:, None], best[own, 4:7], 0),
                threshold=np.where(inner, threshold.view(np.float64), np.nan),
                left=place[left[own]].astype(np.int32),
                depth=depth[own],
                sums=sums[own],
                gain=gain[own],
                bounds=bounds[own] if bounded else np.empty((0, 2)),
            ).compacted()

        return [of_tree(order[a:b]) for a, b in pairwise(ends.tolist())]


class _LevelGrower:
    """Grower of the trees below some nodes, a level at a time."""

    def __init__(
        self, device: ForestDevice, lane: ForestLane, facts: ForestFacts, of_trees: Array,
        least: Array,
    ) -> None:  # fmt: skip
        self._device, self._lane, self._facts = device, lane, facts
        self._of_trees, self._least = of_trees, least

    def grow(self, nodes: Nodes, depth: Array) -> list[GrownTree]:
        """Grow the trees below some nodes."""
        store, n_trees = _LevelStore(), len(nodes)
        while len(nodes):
            open_, sums = self._open_nodes(nodes, depth, store)
            nodes, split = self._split_nodes(nodes.some(open_), sums, open_, store)
            depth = (depth[split] + 1).repeat(2)
        return store.made(n_trees, self._facts.bounded)

    def _open_nodes(self, nodes: Nodes, depth: Array, store: _LevelStore) -> tuple[Array, Array]:
        """Store nodes; which may be split, and the sums of these."""
        from daskml_dist.backends.forest_grow import write_splittable

        facts = self._facts
        sums = np.zeros((len(nodes), facts.n_sums + 2), np.int64)
        reach = np.full((len(nodes), 2 * facts.n_outputs), -np.inf)
        self._lane.add_node_sums(nodes, sums, reach)
        store.add(nodes, depth, sums, 1 + N_CUT_FACTS + facts.n_sums + 1)
        may = np.zeros(len(nodes), np.bool_)
        write_splittable(self._of_trees, nodes.tree, sums, reach, depth, may)
        (open_,) = np.nonzero(may)
        return open_, sums[open_]

    def _split_nodes(
        self, nodes: Nodes, sums: Array, number: Array, store: _LevelStore
    ) -> tuple[Nodes, Array]:
        """Split nodes, where that is worth it; their children, and the numbers of those split."""
        from daskml_dist.backends.forest_grow import settle_splits

        if not len(nodes):
            return nodes, number
        best = self._find_cuts(nodes, sums)
        gain, bounds = np.empty(len(nodes)), np.empty((len(nodes), 2, 3))
        ways = np.empty((len(nodes), 2), np.uint64)
        worths = np.ascontiguousarray(best[:, 1]).view(np.float64)
        settle_splits(
            self._of_trees, self._least, nodes.tree, sums, best, worths,
            self._facts.monotonic_signs,
            nodes.bounds, nodes.path, gain, bounds, ways,
        )  # fmt: skip
        (split,) = np.nonzero(gain >= 0)
        some, best, number = nodes.some(split), best[split], number[split]
        if not len(split):
            return some, number
        store.split(number, gain[split], best)
        middles = self._lane.partition_nodes(some, best[:, [0, 4, 6]])
        children = Nodes(
            some.tree.repeat(2), np.column_stack([some.start, middles]).reshape(-1),
            np.column_stack([middles, some.stop]).reshape(-1), ways[split].reshape(-1),
            bounds[split].reshape(-1, 3), some.turn + 1,
        )  # fmt: skip
        return children, number

    def _find_cuts(self, nodes: Nodes, sums: Array) -> Array:
        """Return the best cut of each node."""
        device, facts = self._device, self._facts

        def look(which: Array, of: slice, one: bool) -> Array:
            some, own = nodes.some(which), sums[which]
            features = device.draw_features(some, facts, of.start, of.stop)
            hist = self._lane.build_histograms(some, features)
            jobs = slice(0, len(which) * (of.stop - of.start))
            hist = hist.reshape(jobs.stop, 256, facts.n_sums)
            told = device.find_cuts(some, features, hist, jobs, own, facts, self._of_trees)
            return device.choose_best_cuts(told, features, one)

        return find_best_cuts(
            look, len(nodes), facts, int(self._of_trees[0, _N_FEATURES_FACT]), _HISTOGRAM_BYTES
        )


def grow_whole_trees(
    device: ForestDevice,
    lane: ForestLane,
    growing: ForestContext,
    numbers: Sequence[int],
    n_rows: int,
) -> list[tuple[Tree, Array]]:
    """Grow some trees on a lane that has all rows; return them with their nodes' impurity."""
    found: list[tuple[Tree, Array]] = []
    each = 2 * 8 * growing.growth.n_line * max(n_rows, 1)
    while len(found) < len(numbers):
        left = len(numbers) - len(found)
        many = int(min(left, max(1.0, _LINES_SHARE * device.budget / each)))
        some = numbers[len(found) : len(found) + many]
        with device.guard_memory(n_rows):
            n = _draw_tree_lines(lane, growing, some)
            sums, _ = sum_root_lines(lane, growing, n)
            facts, least = growing.pack_all_settings(sums[:, -2])
            paths = np.array([growing.make_tree_keys(t)[1] for t in some], np.uint64)
            grown = grow_by_levels(
                device, lane, growing.shared, facts, least, _make_roots(growing, n, paths),
                np.zeros(len(n), np.int32),
            )  # fmt: skip
        found += [growing.finish_tree(tree) for tree in grown]
    return found


def grow_tree_parts(
    device: ForestDevice,
    growing: ForestContext,
    bins: Array,
    lines: Array,
    ends: NDArray[np.int64],
    facts: Array,
    least: Array,
    paths: NDArray[np.uint64],
    depths: NDArray[np.int32],
    bounds: NDArray[np.float64],
) -> list[GrownTree]:
    """Grow the parts of trees below nodes whose rows are all on this trainer.

    Parameters
    ----------
    device : ForestDevice
    growing : ForestContext
    bins : ndarray of uint8 of shape (n_lines, width)
    lines : ndarray of int64 of shape (n_lines, n_line)
        Of the nodes, behind each other.
    ends : ndarray of int64 of shape (n_nodes + 1,)
        Where they end, and 0.
    facts, least, paths, depths, bounds
        Of each node.
    """
    n, none = len(paths), np.empty(0, np.int64)
    room = ForestRows(
        bins, none, np.empty(0), None, growing.low, growing.high, none, none.astype(np.int32),
        np.empty((0, lines.shape[1] - 2), np.int64),
    )  # fmt: skip
    with device.guard_memory(len(lines)):
        lane = device.open_lane(room, growing.shared, np.zeros)
        lane.hold_lines(lines, np.ascontiguousarray(ends[:-1]))
        nodes = Nodes(np.arange(n), np.zeros(n, np.int64), np.diff(ends), paths, bounds, 0)
        return grow_by_levels(device, lane, growing.shared, facts, least, nodes, depths)


def sum_root_lines(
    lane: ForestLane, growing: ForestContext, n: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the sums and target ranges of all lines of some trees."""
    growth = growing.growth
    sums = np.zeros((len(n), growth.n_sums + 2), np.int64)
    reach = np.full((len(n), 2 * growth.n_outputs), -np.inf)
    lane.add_node_sums(_make_roots(growing, n, np.zeros(len(n), np.uint64)), sums, reach)
    return sums, reach


def _draw_tree_lines(lane: ForestLane, growing: ForestContext, numbers: Sequence[int]) -> list[int]:
    """Let a lane that has all rows draw those of some trees; how many each has."""
    keys = np.array([growing.make_tree_keys(t)[0] for t in numbers], np.uint64)
    n = lane.draw_lines(keys, None)
    if growing.growth.balanced:
        sums, _ = sum_root_lines(lane, growing, n)
        n = lane.draw_lines(keys, growing.balance_classes(sums))
    return n


def _make_roots(growing: ForestContext, n: Sequence[int], paths: NDArray[np.uint64]) -> Nodes:
    start = np.zeros(len(n), np.int64)
    bounds = np.tile(growing.root_bounds(), (len(n), 1))
    return Nodes(np.arange(len(n)), start, np.array(n, np.int64), paths, bounds, 0)


#: Bytes of the histograms that are summed over trainers at once: one message of 32 MiB.
_MESSAGE_BYTES = 2**25
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
            lambda room: device.open_lane(room, growing.shared, rows.allocate_zeros), rooms
        )

    def grow(self, numbers: range) -> list[tuple[Tree, Array]]:
        """Grow some trees; return them with the impurity of their nodes."""
        with self._device.guard_memory(sum(len(room.numbers) for room in self._rooms)):
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
        drawn = self._rows.map_lanes(lambda lane: lane.draw_lines(keys, factor), self._lanes)
        if not self._growth.balanced:
            return drawn
        sums = sum(
            sum_root_lines(lane, growing, n)[0] for lane, n in zip(self._lanes, drawn, strict=True)
        )
        factor = growing.balance_classes(self._rows.sum_trainers(np.asarray(sums)))
        return self._rows.map_lanes(lambda lane: lane.draw_lines(keys, factor), self._lanes)

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
            lane.add_node_sums(self._nodes(level, i), sums, reach)
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
            look, len(nodes), self._growing.shared, self._growth.max_features, _MESSAGE_BYTES
        )

    def _find_feature_cuts(self, nodes: list[_JointNode], of: slice, one: bool) -> Array:
        """Return the best cuts of nodes by some of the features that they draw."""
        device, facts, rows = self._device, self._growing.shared, self._rows
        first, *others = (self._nodes(nodes, i) for i in range(len(self._lanes)))
        features = device.draw_features(first, facts, of.start, of.stop)
        total = self._lanes[0].build_histograms(first, features)
        for lane, own in zip(self._lanes[1:], others, strict=True):
            total += lane.build_histograms(own, features)
        n, m = features.shape
        total, jobs = total.reshape(n * m, 256, facts.n_sums), slice(0, n * m)
        if rows.size > 1:
            # Each trainer owns a range of (node, feature) and finds its cuts.
            jobs = rows.split_ranges(n * m)[rows.rank]
            if rows.sums_on_device:
                total = rows.sum_own_range(total)
            else:
                total = device.copy_to_device(rows.sum_own_range(device.copy_to_host(total)))
        sums = np.array([node.sums for node in nodes])
        told = device.find_cuts(first, features, total, jobs, sums, facts, self._facts)
        if rows.size > 1:
            there = rows.sums_on_device
            told = (
                rows.sum_trainers(told)
                if there
                else device.copy_to_device(rows.sum_trainers(device.copy_to_host(told)))
            )
        return device.choose_best_cuts(told, features, one)

    def _split_nodes(self, nodes: list[_JointNode], best: Array) -> list[_JointNode]:
        """Split nodes, where that is worth it; their children."""
        from daskml_dist.backends.forest_grow import settle_splits

        gain, of_children = np.empty(len(nodes)), np.empty((len(nodes), 2, 3))
        ways = np.empty((len(nodes), 2), np.uint64)
        settle_splits(
            self._facts, self._least, np.array([node.tree for node in nodes]),
            np.array([node.sums for node in nodes]), best,
            np.ascontiguousarray(best[:, 1]).view(np.float64), self._growth.monotonic_signs,
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
            lambda i: self._lanes[i].partition_nodes(self._nodes(some, i), cuts),
            range(len(self._lanes)),
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
                some = self._lanes[i].copy_lines(self._nodes([node], i), 0)
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
        made = GrownTree.empty(len(nodes), n_sums, self._growing.bounded)
        for k, node in enumerate(nodes):
            inner = left[k] != k
            made.feature[k] = node.feature if inner else -1
            made.cut[k] = node.told[3:6] if inner else 0
            made.threshold[k] = node.told[1:2].view(np.float64)[0] if inner else np.nan
            made.depth[k] = node.depth
            made.sums[k] = self.sums[k]
            if len(made.bounds):
                made.bounds[k] = node.bounds[:2]
        made.left[:] = left
        made.gain[:] = self._gain
        return made


def flatten_parts(grown: list[GrownTree], growing: ForestContext) -> list[Array]:
    """Return the concatenated arrays of several tree parts, and where each part ends."""
    empty = GrownTree.empty(0, growing.growth.n_sums, growing.bounded)
    n = np.array([0, *(len(part.left) for part in grown)], np.int64)
    arrays = zip(empty.arrays, *(part.arrays for part in grown), strict=True)
    return [n.cumsum(), *(np.concatenate(parts) for parts in arrays)]


def unpack_part(arrays: list[Array], k: int) -> GrownTree:
    """Return the k-th of several flattened tree parts."""
    ends, *of = arrays
    at = slice(ends[k], ends[k + 1])
    return GrownTree(*(array[at] for array in of))
