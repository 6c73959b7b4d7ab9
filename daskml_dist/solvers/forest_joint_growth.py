"""Growth of a forest's trees by all trainers together, each on its own rows.

Trees grow level by level. The histograms of a level are reduce-scattered by ranges of (node,
feature) pairs, whose owners find the best cuts. The rows of a node that has become small are sent
to one trainer, which grows the subtree below it alone (:class:`JointGrower`). A device that holds
all rows of its nodes takes one call of each kernel a level, for any number of nodes and trees
(:class:`_LevelGrower`).

A row in a tree's bootstrap sample is a *line* of integers: the index and the class of the row, its
weight in the sample (with a 1 in the low bits, so that sums count rows too), and the numbers that
the criterion sums. A node's lines are a range of the lane's, which a split partitions in place.

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

from daskml_dist.backends.forests import (
    N_CUT_FACTS,
    ForestDevice,
    ForestFacts,
    ForestLane,
    GrowingNodes,
)
from daskml_dist.models.grown_tree import GrownTree, join_subtrees
from daskml_dist.models.trees import Tree
from daskml_dist.solvers.forest_growth import ForestContext
from daskml_dist.solvers.forest_rows import ForestRows
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Share of the device's free memory for the lines of trees that grow at the same time.
_LINES_SHARE = 0.3
#: Takes indices of nodes, a slice of the features that each draws, and whether to stop at the first
#: one that varies; returns the best cut of each node.
_FindCuts = Callable[[Array, slice, bool], Array]
#: Most bytes of the histograms that are built at once (256 MiB).
_HISTOGRAM_BYTES = 2**28
#: Further features tried at once for nodes in which none of the drawn features varies.
_MORE_FEATURES = 8
#: Column of a tree's facts with the number of features that a node draws (`forest_cuts.FEATURES`;
#: importing that module loads numba).
_DRAWN_FEATURES_COLUMN = 7


def _find_best_cuts(
    find_cuts: _FindCuts, n: int, forest_facts: ForestFacts, n_drawn: int, max_bytes: int
) -> NDArray[np.int64]:
    """Return the best cut of each of `n` nodes, by histograms of `max_bytes` bytes at once.

    Rows of `ForestDevice.choose_best_cuts`: the feature (-1: no cut), the facts of the cut
    (`N_CUT_FACTS`), and the sums of the left child.
    """
    best_cuts = np.zeros((n, 1 + N_CUT_FACTS + forest_facts.n_sums + 1), np.int64)
    best_cuts[:, 0] = -1
    # As in scikit-learn, a node in which none of its `n_drawn` features varies draws more, up to
    # the first that does.
    first, last, pending = 0, n_drawn, np.arange(n)
    while len(pending) and first < last:
        for positions, features in _iterate_batches(
            len(pending), last - first, forest_facts.n_sums, max_bytes
        ):
            batch, only_unvaried = pending[positions], first > 0
            batch_cuts = find_cuts(
                batch, slice(first + features.start, first + features.stop), only_unvaried
            )
            _merge_cuts(best_cuts, batch, batch_cuts, only_unvaried)
        # Column 3: whether any feature varied in the node.
        pending = pending[best_cuts[pending, 3] == 0]
        first, last = last, min(last + _MORE_FEATURES, forest_facts.n_features)
    return best_cuts


def _merge_cuts(
    best_cuts: Array, node_indices: Array, batch_cuts: Array, only_unvaried: bool
) -> None:
    """Replace cuts by better ones; with `only_unvaried`, only in nodes where no feature varied."""
    current = best_cuts[node_indices]
    # Column 1 has the bits of the cut's criterion, a float64. Of equal cuts the first drawn stays.
    criteria, current_criteria = (
        np.ascontiguousarray(b[:, 1]).view(np.float64) for b in (batch_cuts, current)
    )
    is_better = (batch_cuts[:, 0] >= 0) & ((current[:, 0] < 0) | (criteria > current_criteria))
    if only_unvaried:
        is_better &= current[:, 3] == 0
    varies = batch_cuts[:, 3] | current[:, 3]
    current[is_better] = batch_cuts[is_better]
    current[:, 3] = varies
    best_cuts[node_indices] = current


def _iterate_batches(
    n_nodes: int, n_features: int, n_sums: int, max_bytes: int
) -> Iterator[tuple[slice, slice]]:
    """Yield slices of nodes and features whose histograms take at most `max_bytes` bytes."""
    # A histogram has n_sums integers of 8 bytes in each of 256 bins.
    nbytes = 256 * 8 * n_sums
    features_at_once = max(1, min(n_features, max_bytes // nbytes))
    nodes_at_once = max(1, max_bytes // (nbytes * features_at_once))
    for a in range(0, n_nodes, nodes_at_once):
        for b in range(0, n_features, features_at_once):
            yield slice(a, a + nodes_at_once), slice(b, min(n_features, b + features_at_once))


@dataclass
class _LevelStore:
    """Nodes of all levels so far, as lists of arrays, one a level.

    A node's `left_children` is the index of its left child among all nodes; the right child follows
    it. The `left_children` of a leaf is its own index. `best` has rows of `_find_best_cuts`.
    """

    tree: list[Array] = field(default_factory=list)
    depth: list[Array] = field(default_factory=list)
    sums: list[Array] = field(default_factory=list)
    bounds: list[Array] = field(default_factory=list)
    left_children: list[Array] = field(default_factory=list)
    gain: list[Array] = field(default_factory=list)
    best: list[Array] = field(default_factory=list)
    n: int = 0

    def add(self, nodes: GrowingNodes, depth: Array, sums: Array, n_columns: int) -> None:
        """Add a level of leaves; `best` has `n_columns` columns."""
        n = len(nodes)
        self.tree.append(nodes.tree)
        self.depth.append(depth)
        self.sums.append(sums)
        self.bounds.append(nodes.bounds[:, :2])
        self.left_children.append(np.arange(self.n, self.n + n))
        self.gain.append(np.zeros(n))
        self.best.append(np.full((n, n_columns), -1, np.int64))
        self.n += n

    def split(self, node_indices: Array, gain: Array, best: Array) -> None:
        """Split some nodes of the last level; the next level must be their children, in order."""
        self.left_children[-1][node_indices] = self.n + 2 * np.arange(len(node_indices))
        self.gain[-1][node_indices] = gain
        self.best[-1][node_indices] = best

    def build_trees(self, n_trees: int, bounded: bool) -> list[GrownTree]:
        """Return the tree that has grown from each root."""
        lists = (
            self.tree,
            self.depth,
            self.sums,
            self.bounds,
            self.left_children,
            self.gain,
            self.best,
        )
        tree, depth, sums, bounds, left, gain, best = map(np.concatenate, lists)
        # Sort the nodes by tree.
        order = np.argsort(tree, kind="stable")
        ends = np.searchsorted(tree[order], np.arange(n_trees + 1))
        index_in_tree = np.empty(self.n, np.int64)
        index_in_tree[order] = np.arange(self.n) - ends[tree[order]]

        def of_tree(node_indices: Array) -> GrownTree:
            inner, threshold = (
                left[node_indices] != node_indices,
                np.ascontiguousarray(best[node_indices, 2]),
            )
            return GrownTree(
                feature=best[node_indices, 0].astype(np.int32),
                cut=np.where(inner[:, None], best[node_indices, 4:7], 0),
                threshold=np.where(inner, threshold.view(np.float64), np.nan),
                left=index_in_tree[left[node_indices]].astype(np.int32),
                depth=depth[node_indices],
                sums=sums[node_indices],
                gain=gain[node_indices],
                bounds=bounds[node_indices] if bounded else np.empty((0, 2)),
            ).compacted()

        return [of_tree(order[a:b]) for a, b in pairwise(ends.tolist())]


class _LevelGrower:
    """Grower of the subtrees below some nodes, a level of all of them at a time.

    Parameters
    ----------
    device : ForestDevice
    lane : ForestLane
        Holds the lines of all rows of the nodes.
    forest_facts : ForestFacts
    of_trees : ndarray of int64 of shape (n, n_facts)
        Settings of each node's tree, with the columns of `forest_cuts`.
    least : ndarray of float64 of shape (n,)
        Least gain of a split in each tree.
    """

    def __init__(
        self, device: ForestDevice, lane: ForestLane, forest_facts: ForestFacts, of_trees: Array,
        least: Array,
    ) -> None:  # fmt: skip
        self._device, self._lane, self._forest_facts = device, lane, forest_facts
        self._of_trees, self._least = of_trees, least

    def grow(self, nodes: GrowingNodes, depth: Array) -> list[GrownTree]:
        """Return the subtree below each node, given the depth of each in its tree."""
        store, n_trees = _LevelStore(), len(nodes)
        while len(nodes):
            splittable, sums = self._open_nodes(nodes, depth, store)
            nodes, split = self._split_nodes(nodes.select(splittable), sums, splittable, store)
            depth = (depth[split] + 1).repeat(2)
        return store.build_trees(n_trees, self._forest_facts.bounded)

    def _open_nodes(
        self, nodes: GrowingNodes, depth: Array, store: _LevelStore
    ) -> tuple[Array, Array]:
        """Store the nodes of a level; return indices of those that may be split, and their sums."""
        from daskml_dist.backends.forest_grow import write_splittable

        facts = self._forest_facts
        sums = np.zeros((len(nodes), facts.n_sums + 2), np.int64)
        reach = np.full((len(nodes), 2 * facts.n_outputs), -np.inf)
        self._lane.add_node_sums(nodes, sums, reach)
        store.add(nodes, depth, sums, 1 + N_CUT_FACTS + facts.n_sums + 1)
        splittable = np.zeros(len(nodes), np.bool_)
        write_splittable(self._of_trees, nodes.tree, sums, reach, depth, splittable)
        (open_nodes,) = np.nonzero(splittable)
        return open_nodes, sums[open_nodes]

    def _split_nodes(
        self, nodes: GrowingNodes, sums: Array, node_indices: Array, store: _LevelStore
    ) -> tuple[GrowingNodes, Array]:
        """Split nodes whose gain is large enough; return children, and indices of the split nodes.

        `node_indices` has the nodes' indices in their level.
        """
        from daskml_dist.backends.forest_grow import settle_splits

        if not len(nodes):
            return nodes, node_indices
        best = self._find_cuts(nodes, sums)
        gain, bounds = np.empty(len(nodes)), np.empty((len(nodes), 2, 3))
        paths = np.empty((len(nodes), 2), np.uint64)
        criteria = np.ascontiguousarray(best[:, 1]).view(np.float64)
        settle_splits(
            self._of_trees, self._least, nodes.tree, sums, best, criteria,
            self._forest_facts.monotonic_signs,
            nodes.bounds, nodes.path, gain, bounds, paths,
        )  # fmt: skip
        (split,) = np.nonzero(gain >= 0)
        split_nodes, best, node_indices = nodes.select(split), best[split], node_indices[split]
        if not len(split):
            return split_nodes, node_indices
        store.split(node_indices, gain[split], best)
        # By feature, last bin on the left, and whether missing values go left.
        middles = self._lane.partition_nodes(split_nodes, best[:, [0, 4, 6]])
        # The two children of a node are adjacent: its lines up to the middle, and those after it.
        children = GrowingNodes(
            split_nodes.tree.repeat(2), np.column_stack([split_nodes.start, middles]).reshape(-1),
            np.column_stack([middles, split_nodes.stop]).reshape(-1), paths[split].reshape(-1),
            bounds[split].reshape(-1, 3), split_nodes.n_partitions + 1,
        )  # fmt: skip
        return children, node_indices

    def _find_cuts(self, nodes: GrowingNodes, sums: Array) -> Array:
        """Return the best cut of each node."""
        device, facts = self._device, self._forest_facts

        def find_cuts(node_indices: Array, feature_slice: slice, only_unvaried: bool) -> Array:
            chosen_nodes, node_sums = nodes.select(node_indices), sums[node_indices]
            features = device.draw_features(
                chosen_nodes, facts, feature_slice.start, feature_slice.stop
            )
            hist = self._lane.build_histograms(chosen_nodes, features)
            # All (node, feature) pairs are this device's.
            jobs = slice(0, len(node_indices) * (feature_slice.stop - feature_slice.start))
            hist = hist.reshape(jobs.stop, 256, facts.n_sums)
            cuts = device.find_cuts(
                chosen_nodes, features, hist, jobs, node_sums, facts, self._of_trees
            )
            return device.choose_best_cuts(cuts, features, only_unvaried)

        n_drawn = int(self._of_trees[0, _DRAWN_FEATURES_COLUMN])
        return _find_best_cuts(find_cuts, len(nodes), facts, n_drawn, _HISTOGRAM_BYTES)


def grow_whole_trees(
    device: ForestDevice,
    lane: ForestLane,
    context: ForestContext,
    tree_indices: Sequence[int],
    n_rows: int,
) -> list[tuple[Tree, Array]]:
    """Grow some trees on a lane that has all rows; return them with their nodes' impurity."""
    trees: list[tuple[Tree, Array]] = []
    # Bytes of a tree's lines (int64), and of as much spare memory to partition them.
    tree_bytes = 2 * 8 * context.growth.n_line * max(n_rows, 1)
    while len(trees) < len(tree_indices):
        # As many trees at once as there is memory for their lines.
        n_remaining = len(tree_indices) - len(trees)
        n_at_once = int(min(n_remaining, max(1.0, _LINES_SHARE * device.budget / tree_bytes)))
        batch = tree_indices[len(trees) : len(trees) + n_at_once]
        keys = [context.make_tree_keys(t) for t in batch]
        row_keys, paths = (np.array(values, np.uint64) for values in zip(*keys, strict=True))
        with device.guard_memory(n_rows):
            n = lane.draw_lines(row_keys, None)
            sums = _sum_root_lines(lane, context, n)
            if context.growth.balanced:
                # class_weight="balanced_subsample": the weights depend on the classes drawn.
                n = lane.draw_lines(row_keys, context.balance_classes(sums))
                sums = _sum_root_lines(lane, context, n)
            facts, min_gains = context.pack_all_settings(sums[:, -2])
            grower = _LevelGrower(device, lane, context.shared, facts, min_gains)
            grown = grower.grow(_make_roots(context, n, paths), np.zeros(len(n), np.int32))
        trees += [context.finish_tree(tree) for tree in grown]
    return trees


def _sum_root_lines(
    lane: ForestLane, context: ForestContext, n: Sequence[int]
) -> NDArray[np.int64]:
    """Return the sums of all lines of some trees, given the number of lines of each."""
    growth = context.growth
    sums = np.zeros((len(n), growth.n_sums + 2), np.int64)
    reach = np.full((len(n), 2 * growth.n_outputs), -np.inf)
    lane.add_node_sums(_make_roots(context, n, np.zeros(len(n), np.uint64)), sums, reach)
    return sums


def _make_roots(
    context: ForestContext, n: Sequence[int], paths: NDArray[np.uint64]
) -> GrowingNodes:
    """Return the roots of some trees, given the number of lines of each."""
    start = np.zeros(len(n), np.int64)
    bounds = np.tile(context.root_bounds(), (len(n), 1))
    return GrowingNodes(np.arange(len(n)), start, np.array(n, np.int64), paths, bounds, 0)


#: Most bytes of the histograms that are summed over trainers at once (32 MiB).
_MESSAGE_BYTES = 2**25
#: Most rows of a node whose subtree one trainer grows alone: they are sent once, instead of the
#: histograms of every level below the node.
SMALL_NODE_ROWS = 2**14
#: Bytes of rows after which an exchange is full (128 MiB).
_SENT_BYTES = 2**27


@dataclass(eq=False)
class _JointNode:
    """Node of a tree that all trainers grow together.

    Parameters
    ----------
    tree : int
        Index among the trees that grow together.
    node_index : int
        Index among the tree's nodes.
    depth : int
    path : uint64
        Hash of the path from the root, as of `GrowingNodes`.
    line_ranges : list of slice
        Range of the node's lines on each own lane.
    bounds : ndarray of float64 of shape (3,)
        As of `GrowingNodes`.

    Attributes
    ----------
    sums : ndarray of int64 of shape (n_sums + 2,)
        Sums over the node's rows, of all trainers.
    feature : int
        Feature of the cut; -1: none yet.
    cut : ndarray of int64
        The other columns of the best cut (`_find_best_cuts`).
    """

    tree: int
    node_index: int
    depth: int
    path: np.uint64
    line_ranges: list[slice]
    bounds: Array
    sums: Array = field(default_factory=lambda: np.empty(0))
    feature: int = -1
    cut: Array = field(default_factory=lambda: np.empty(0))


class JointGrower:
    """Grower of trees by all trainers together.

    Parameters
    ----------
    rows : OwnRows
    binned_lanes : sequence of ForestRows
        Rows of each own lane.
    context : ForestContext
    device : ForestDevice
    """

    def __init__(
        self,
        rows: OwnRows,
        binned_lanes: Sequence[ForestRows],
        context: ForestContext,
        device: ForestDevice,
    ) -> None:
        self._rows, self._binned_lanes = rows, binned_lanes
        self._context, self._device = context, device
        self._growth = context.growth
        self._lanes = rows.map_lanes(
            lambda binned: device.open_lane(binned, context.shared, rows.allocate_zeros),
            binned_lanes,
        )

    def grow(self, tree_indices: range) -> list[tuple[Tree, Array]]:
        """Grow some trees; return them with the impurity of their nodes."""
        with self._device.guard_memory(sum(len(binned.numbers) for binned in self._binned_lanes)):
            return self._grow_from_roots(tree_indices)

    def _grow_from_roots(self, tree_indices: range) -> list[tuple[Tree, Array]]:
        growing = self._context
        n_lines = self._draw_lines(tree_indices)
        self._tops = [_TopNodes(growing) for _ in tree_indices]
        level = [
            _JointNode(
                k,
                0,
                0,
                growing.make_tree_keys(t)[1],
                [slice(0, lane_counts[k]) for lane_counts in n_lines],
                growing.root_bounds(),
            )
            for k, t in enumerate(tree_indices)
        ]
        for node in level:
            self._tops[node.tree].add(node)
        # First the tops of all trees, level by level; then the subtrees below their small nodes.
        small_nodes: list[_JointNode] = []
        depth = 0
        while level:
            level = self._grow_level(level, small_nodes, depth)
            depth += 1
        parts = self._finish_small_nodes(small_nodes)
        return [
            growing.finish_tree(join_subtrees(top.build_tree(), parts[k]))
            for k, top in enumerate(self._tops)
        ]

    def _draw_lines(self, tree_indices: range) -> list[list[int]]:
        """Draw the trees' bootstrap samples; return the number of lines of each lane and tree."""
        growing, factor = self._context, None
        keys = np.array([growing.make_tree_keys(t)[0] for t in tree_indices], np.uint64)
        n_lines = self._rows.map_lanes(lambda lane: lane.draw_lines(keys, factor), self._lanes)
        if not self._growth.balanced:
            return n_lines
        # class_weight="balanced_subsample": the weights depend on the classes drawn.
        sums = sum(
            _sum_root_lines(lane, growing, n) for lane, n in zip(self._lanes, n_lines, strict=True)
        )
        factor = growing.balance_classes(self._rows.sum_trainers(np.asarray(sums)))
        return self._rows.map_lanes(lambda lane: lane.draw_lines(keys, factor), self._lanes)

    def _nodes(self, nodes: Sequence[_JointNode], i: int) -> GrowingNodes:
        """Return nodes of a level, with the ranges of their lines on the i-th own lane."""
        return GrowingNodes(
            np.array([node.tree for node in nodes]),
            np.array([node.line_ranges[i].start for node in nodes]),
            np.array([node.line_ranges[i].stop for node in nodes]),
            np.array([node.path for node in nodes], np.uint64),
            np.array([node.bounds for node in nodes]),
            nodes[0].depth,
        )

    # -- a level -------------------------------------------------------------------------------

    def _grow_level(
        self, level: list[_JointNode], small_nodes: list[_JointNode], depth: int
    ) -> list[_JointNode]:
        """Split a level's nodes; return their children, and append small ones to a list."""
        from daskml_dist.backends.forest_grow import write_splittable

        sums, reach = self._sum_nodes(level)
        # Limits that are shares of a tree's weight are known once its root is summed.
        if not depth:
            self._settings, self._least = self._context.pack_all_settings(sums[:, -2])
        tree, splittable = np.array([node.tree for node in level]), np.zeros(len(level), np.bool_)
        write_splittable(self._settings, tree, sums, reach, np.full(len(level), depth), splittable)
        # The low bits of the column before the last count rows; the high bits sum their weights.
        mask = (1 << self._context.scales.bits) - 1
        # Small nodes wait until the top of all trees has grown.
        is_small = (sums[:, -2] & mask) <= SMALL_NODE_ROWS
        small_nodes += [level[k] for k in np.flatnonzero(splittable & is_small)]
        open_nodes = [level[k] for k in np.flatnonzero(splittable & ~is_small)]
        return self._split_nodes(open_nodes, self._find_cuts(open_nodes)) if open_nodes else []

    def _sum_nodes(self, level: list[_JointNode]) -> tuple[Array, Array]:
        """Return the sums of nodes over all trainers, and their targets' -minimum and maximum."""
        growth = self._growth
        sums = np.zeros((len(level), growth.n_sums + 2), np.int64)
        reach = np.full((len(level), 2 * growth.n_outputs), -np.inf)
        for i, lane in enumerate(self._lanes):
            lane.add_node_sums(self._nodes(level, i), sums, reach)
        if self._rows.size > 1:
            sums = self._rows.sum_trainers(sums)
            if not growth.classes:
                reach = self._rows.max_trainers(reach.ravel()).reshape(reach.shape)
        for node, node_sums in zip(level, sums, strict=True):
            node.sums = node_sums
            self._tops[node.tree].sums[node.node_index] = node_sums
        return sums, reach

    def _find_cuts(self, nodes: list[_JointNode]) -> Array:
        """Return the best cuts of nodes, as `_find_best_cuts` does."""

        def find_cuts(node_indices: Array, feature_slice: slice, only_unvaried: bool) -> Array:
            return self._find_feature_cuts(
                [nodes[k] for k in node_indices], feature_slice, only_unvaried
            )

        return _find_best_cuts(
            find_cuts, len(nodes), self._context.shared, self._growth.max_features, _MESSAGE_BYTES
        )

    def _find_feature_cuts(
        self, nodes: list[_JointNode], feature_slice: slice, only_unvaried: bool
    ) -> Array:
        """Return the best cuts of nodes by some of the features that they draw."""
        device, facts, rows = self._device, self._context.shared, self._rows
        first_nodes, *other_nodes = (self._nodes(nodes, i) for i in range(len(self._lanes)))
        # Hashed from the nodes' paths, so every trainer draws the same features.
        features = device.draw_features(first_nodes, facts, feature_slice.start, feature_slice.stop)
        total = self._lanes[0].build_histograms(first_nodes, features)
        for lane, lane_nodes in zip(self._lanes[1:], other_nodes, strict=True):
            total += lane.build_histograms(lane_nodes, features)
        n, m = features.shape
        total, jobs = total.reshape(n * m, 256, facts.n_sums), slice(0, n * m)
        if rows.size > 1:
            # Reduce-scatter: each trainer owns a range of (node, feature) pairs and finds its cuts.
            jobs = rows.split_ranges(n * m)[rows.rank]
            if rows.sums_on_device:
                total = rows.sum_own_range(total)
            else:
                total = device.copy_to_device(rows.sum_own_range(device.copy_to_host(total)))
        sums = np.array([node.sums for node in nodes])
        cuts = device.find_cuts(first_nodes, features, total, jobs, sums, facts, self._settings)
        if rows.size > 1:
            # All-gather as a sum: the cuts of other trainers' pairs are zeros.
            cuts = (
                rows.sum_trainers(cuts)
                if rows.sums_on_device
                else device.copy_to_device(rows.sum_trainers(device.copy_to_host(cuts)))
            )
        return device.choose_best_cuts(cuts, features, only_unvaried)

    def _split_nodes(self, nodes: list[_JointNode], best: Array) -> list[_JointNode]:
        """Split nodes whose gain is large enough; return their children."""
        from daskml_dist.backends.forest_grow import settle_splits

        gain, child_bounds = np.empty(len(nodes)), np.empty((len(nodes), 2, 3))
        paths = np.empty((len(nodes), 2), np.uint64)
        settle_splits(
            self._settings, self._least, np.array([node.tree for node in nodes]),
            np.array([node.sums for node in nodes]), best,
            np.ascontiguousarray(best[:, 1]).view(np.float64), self._growth.monotonic_signs,
            np.array([node.bounds for node in nodes]), np.array([n.path for n in nodes], np.uint64),
            gain, child_bounds, paths,
        )  # fmt: skip
        # The gain of a node without a cut, or with too small a gain, is -1: it stays a leaf.
        split = np.flatnonzero(gain >= 0)
        children: list[_JointNode] = []
        for k in split.tolist():
            node = nodes[k]
            node.feature, node.cut = int(best[k, 0]), best[k, 1:]
            top = self._tops[node.tree]
            top.split(node, float(gain[k]))
            for path, bounds in zip(paths[k], child_bounds[k], strict=True):
                children.append(_JointNode(node.tree, 0, node.depth + 1, path, [], bounds))
                top.add(children[-1])
        if len(split):
            self._partition_lines([nodes[k] for k in split], best[split], children)
        return children

    def _partition_lines(
        self, nodes: list[_JointNode], best: Array, children: list[_JointNode]
    ) -> None:
        """Partition the lines of split nodes, and set the `line_ranges` of their children."""
        cuts = np.ascontiguousarray(best[:, [0, 4, 6]])
        middles = self._rows.map_lanes(
            lambda i: self._lanes[i].partition_nodes(self._nodes(nodes, i), cuts),
            range(len(self._lanes)),
        )
        for i, lane_middles in enumerate(middles):
            for k, (node, middle) in enumerate(zip(nodes, lane_middles.tolist(), strict=True)):
                children[2 * k].line_ranges.append(slice(node.line_ranges[i].start, middle))
                children[2 * k + 1].line_ranges.append(slice(middle, node.line_ranges[i].stop))

    # -- small nodes ---------------------------------------------------------------------------

    def _finish_small_nodes(
        self, small_nodes: list[_JointNode]
    ) -> list[list[tuple[int, GrownTree]]]:
        """Return, for each tree, the numbers of its small nodes and the subtrees below them."""
        subtrees: list[list[tuple[int, GrownTree]]] = [[] for _ in self._tops]
        for group in self._group_small_nodes(small_nodes):
            for node, subtree in zip(group, self._grow_small_nodes(group), strict=True):
                subtrees[node.tree].append((node.node_index, subtree))
        return subtrees

    def _group_small_nodes(self, small_nodes: list[_JointNode]) -> Iterator[list[_JointNode]]:
        """Yield groups of small nodes whose rows are sent in one exchange.

        All trainers form the same groups, since the numbers of rows are sums over all of them.
        """
        mask = (1 << self._context.scales.bits) - 1
        line_bytes = self._binned_lanes[0].width + 8 * self._growth.n_line
        group, nbytes = [], 0
        for node in small_nodes:
            group.append(node)
            nbytes += line_bytes * (int(node.sums[-2]) & mask)
            if nbytes >= _SENT_BYTES:
                yield group
                group, nbytes = [], 0
        if group:
            yield group

    def _grow_small_nodes(self, small_nodes: list[_JointNode]) -> list[GrownTree]:
        """Grow the subtrees below some small nodes, each on one trainer, and gather them."""
        size, rank = self._rows.size, self._rows.rank
        # Node k goes to trainer k % size, with its rows of all trainers.
        outgoing = [self._own_node_rows(small_nodes[trainer::size]) for trainer in range(size)]
        if size == 1:
            return self._finish_nodes(small_nodes, *([array] for array in outgoing[0]))
        received = [
            self._rows.exchange_arrays(list(arrays)) for arrays in zip(*outgoing, strict=True)
        ]
        own_subtrees = self._finish_nodes(small_nodes[rank::size], *received)
        gathered = self._rows.gather_arrays(_flatten_parts(own_subtrees, self._context))
        return [_unpack_part(gathered[k % size], k // size) for k in range(len(small_nodes))]

    def _own_node_rows(self, nodes: list[_JointNode]) -> tuple[Array, Array, Array]:
        """Return the lines of some nodes on this trainer: counts by node, bins and lines."""
        counts, bins, lines = [], [], []
        for node in nodes:
            n = 0
            for i, binned in enumerate(self._binned_lanes):
                node_lines = self._lanes[i].copy_lines(self._nodes([node], i), 0)
                # The low 32 bits of a line's first number are the row's index in the lane: replace
                # it by the index in the bins that are sent along.
                index = node_lines[:, 0] & 0xFFFFFFFF
                node_lines[:, 0] ^= index
                node_lines[:, 0] |= np.arange(n, n + len(node_lines))
                n += len(node_lines)
                bins.append(binned.rows[index])
                lines.append(node_lines)
            counts.append(n)
        width, n_line = self._binned_lanes[0].width, self._growth.n_line
        return (
            np.array(counts, np.int64),
            np.concatenate([np.empty((0, width), np.uint8), *bins]),
            np.concatenate([np.empty((0, n_line), np.int64), *lines]),
        )

    def _finish_nodes(
        self, nodes: list[_JointNode], counts: list[Array], bins: list[Array], lines: list[Array]
    ) -> list[GrownTree]:
        """Return the subtrees below some nodes, given each rank's counts, bins and lines."""
        ends = [np.append(0, rank_counts.cumsum()) for rank_counts in counts]

        def joined_rows(k: int) -> tuple[Array, Array]:
            bin_parts, line_parts, n = [], [], 0
            for rank, end in enumerate(ends):
                positions = slice(end[k], end[k + 1])
                bin_parts.append(bins[rank][positions])
                # Each rank's indices count from 0 for a node; the bins are concatenated.
                node_lines = lines[rank][positions].copy()
                node_lines[:, 0] += n
                n += len(node_lines)
                line_parts.append(node_lines)
            return np.concatenate(bin_parts), np.concatenate(line_parts)

        def finish(k: int) -> GrownTree:
            node = nodes[k]
            facts, min_gain = self._settings[node.tree], float(self._least[node.tree])
            return self._context.grow_tree_part(
                facts, min_gain, *joined_rows(k), node.path, node.depth, node.bounds
            )

        if not self._device.by_levels:
            return self._rows.map_lanes(finish, range(len(nodes)))
        return self._finish_by_levels(nodes, [joined_rows(k) for k in range(len(nodes))])

    def _finish_by_levels(
        self, nodes: list[_JointNode], bins_and_lines: list[tuple[Array, Array]]
    ) -> list[GrownTree]:
        """Return the subtrees below some nodes, grown together from the bins and lines of each."""
        if not nodes:
            return []
        device, growing = self._device, self._context
        ends = np.append(0, np.cumsum([len(lines) for _, lines in bins_and_lines]))
        for (_, lines), first in zip(bins_and_lines, ends.tolist(), strict=False):
            lines[:, 0] += first
        bins, lines = (np.concatenate(arrays) for arrays in zip(*bins_and_lines, strict=True))
        # A lane of the lines that were received: bins, and no rows to draw from.
        n, empty = len(nodes), np.empty(0, np.int64)
        binned = ForestRows(
            bins, empty, np.empty(0), None, growing.low, growing.high, empty,
            empty.astype(np.int32), np.empty((0, lines.shape[1] - 2), np.int64),
        )  # fmt: skip
        # Each node is the root of a "tree" of its own, with the settings of the tree it is in.
        roots = GrowingNodes(
            np.arange(n), np.zeros(n, np.int64), np.diff(ends),
            np.array([node.path for node in nodes], np.uint64),
            np.array([node.bounds for node in nodes]), 0,
        )  # fmt: skip
        trees = np.array([node.tree for node in nodes])
        with device.guard_memory(len(lines)):
            lane = device.open_lane(binned, growing.shared, np.zeros)
            lane.hold_lines(lines, np.ascontiguousarray(ends[:-1]))
            grower = _LevelGrower(
                device, lane, growing.shared, self._settings[trees], self._least[trees]
            )
            return grower.grow(roots, np.array([node.depth for node in nodes], np.int32))


class _TopNodes:
    """Top of a tree: the nodes that all trainers grow together."""

    def __init__(self, context: ForestContext) -> None:
        self._context = context
        self._nodes: list[_JointNode] = []
        self._left_children: list[int] = []
        self._gain: list[float] = []
        self.sums: list[Array] = []

    def add(self, node: _JointNode) -> None:
        """Add a leaf, and number it."""
        node.node_index = len(self._nodes)
        self._nodes.append(node)
        self._left_children.append(node.node_index)
        self._gain.append(0.0)
        self.sums.append(np.empty(0))

    def split(self, node: _JointNode, gain: float) -> None:
        """Record the split of a node, whose two children must be added next."""
        self._left_children[node.node_index], self._gain[node.node_index] = len(self._nodes), gain

    def build_tree(self) -> GrownTree:
        """Return the top of the tree; small nodes are still leaves."""
        left, nodes = np.array(self._left_children, np.int32), self._nodes
        n_sums = self._context.growth.n_sums
        tree = GrownTree.empty(len(nodes), n_sums, self._context.bounded)
        for k, node in enumerate(nodes):
            inner = left[k] != k
            tree.feature[k] = node.feature if inner else -1
            # Without the feature, the second column of a cut has the bits of its threshold.
            tree.cut[k] = node.cut[3:6] if inner else 0
            tree.threshold[k] = node.cut[1:2].view(np.float64)[0] if inner else np.nan
            tree.depth[k] = node.depth
            tree.sums[k] = self.sums[k]
            if len(tree.bounds):
                tree.bounds[k] = node.bounds[:2]
        tree.left[:] = left
        tree.gain[:] = self._gain
        return tree


def _flatten_parts(subtrees: list[GrownTree], context: ForestContext) -> list[Array]:
    """Return the offsets of several subtrees, and their concatenated arrays."""
    empty = GrownTree.empty(0, context.growth.n_sums, context.bounded)
    n = np.array([0, *(len(subtree.left) for subtree in subtrees)], np.int64)
    arrays = zip(empty.arrays, *(subtree.arrays for subtree in subtrees), strict=True)
    return [n.cumsum(), *(np.concatenate(parts) for parts in arrays)]


def _unpack_part(arrays: list[Array], k: int) -> GrownTree:
    """Return the k-th of several subtrees that :func:`_flatten_parts` concatenated."""
    ends, *joined = arrays
    positions = slice(ends[k], ends[k + 1])
    return GrownTree(*(array[positions] for array in joined))
