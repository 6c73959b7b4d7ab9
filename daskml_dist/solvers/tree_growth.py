"""Growth of a boosted tree, leaf by leaf or level by level, on the rows of all trainers.

Histograms are integers, so their sums do not depend on the order. Each trainer owns a range of the
features: it gets their summed histograms and finds their best split; then all trainers exchange the
best split of all features, and grow the same tree. Of two children only the smaller one's histogram
is computed from rows: the other one is the difference from the parent's.

References
----------
G. Ke et al., "LightGBM: A highly efficient gradient boosting decision tree", NIPS 2017 (leaf-wise
growth). T. Chen and C. Guestrin, "XGBoost: A scalable tree boosting system", KDD 2016 (values of
leaves and gains of splits, equations 5 to 7). Z. Zhang and C. Jung, "GBDT-MO: Gradient-boosted
decision trees for multiple outputs", IEEE Transactions on Neural Networks and Learning Systems 32,
2021 (one tree of several outputs: a leaf holds a value of each, and gains are summed over them).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.host_trees import HostTrees
from daskml_dist.backends.trees import (
    CONSTANT,
    VECTOR,
    LeafPartition,
    SplitFacts,
    SplitLeaf,
    TreeDevice,
    TreeRows,
    count_channels,
)
from daskml_dist.models.bins import Bins, draw_by_hash
from daskml_dist.models.trees import Tree, goes_left
from daskml_dist.solvers.binning import BinnedRows
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Hashed with the seed, so that these draws are independent of other kinds of draws.
_NODE_DRAW, _TREE_DRAW, _LEVEL_DRAW = 3, 9, 10
#: First numbers of `Leaf.best_split` for a node that is not split.
_NO_SPLIT = [-1] * 3
#: int64 numbers of a best split in addition to the sums of the left child: the bits of its gain, 4
#: of `Leaf.best_split`, and 4 of categories.
_SPLIT_FIELDS = 9
#: Bins are bytes.
_BIN_NUMBERS = np.arange(256)
#: Stands for no limit on leaves or on depth.
_NO_LIMIT = 2**31
#: With a limit on leaves, the children of the best leaves are computed together, though some may
#: not become part of the tree: for 8 leaves, or for 1 / 16 of the remaining splits if that is more,
#: most of which will be made.
_MIN_SPLITS_AT_ONCE, _LIKELY_SHARE = 8, 16
#: Near the limit, children are computed for at most half of the remaining splits, or for 4 leaves:
#: a sum over all trainers, or a reply from a GPU, takes longer than partitioning a few rows in
#: vain.
_MIN_SPECULATIVE_SPLITS = 4
#: Maximum bytes of the histograms that are computed together (4 MiB): a processor's cache holds
#: them.
_HISTOGRAM_BYTES = 2**22


@dataclass(frozen=True, eq=False)
class TreeParams:
    """Parameters of a tree's growth; see `HistGradientBoostingRegressor`.

    Parameters
    ----------
    max_leaf_nodes, max_depth : int or None
    min_samples_leaf : int
    l2_regularization : float
    max_features : float
        Share of the features that a split may use, drawn for each node.
    monotonic_signs : ndarray of int8 of shape (n_features,)
        Monotonic constraints: 1 rising, -1 falling, 0 none.
    interaction_groups : tuple of tuple of int, or None
        Groups of features that may occur together on a path from the root to a leaf.
    min_hessian : float
        Least sum of hessians in a leaf.
    by_level : bool
        Whether leaves are split level by level; otherwise the leaf with the largest gain is split
        first.
    tree_features, level_features : float
        Share of the features that a tree may use, and share of those that a level may use.
    """

    max_leaf_nodes: int | None
    max_depth: int | None
    min_samples_leaf: int
    l2_regularization: float
    max_features: float
    monotonic_signs: NDArray[np.int8]
    interaction_groups: tuple[tuple[int, ...], ...] | None = None
    min_hessian: float = 1e-3
    by_level: bool = False
    tree_features: float = 1.0
    level_features: float = 1.0


@dataclass(eq=False, slots=True)
class Leaf:
    """Node of a growing tree.

    Parameters
    ----------
    depth : int
    row_ranges : list of slice
        Range of its rows in each of `TreeGrower.lanes`.
    totals : ndarray of int64 of shape (2 * n_outputs + 1,)
        Sums of the gradients and of the hessians of each output, and the number of rows.
    value : float, or list of float of several outputs
        Its prediction.
    low, high : float
        Bounds of its children's predictions.
    groups : tuple of int
        Indices of the interaction groups that may still be used.
    path : int
        Path from the root, as binary digits after a leading 1: 0 left, 1 right.
    hist : ndarray of int64 of shape (m, n_bins, n_channels) or None
        Histograms of the features that this trainer owns.
    gain : float
    best_split : list of int
        Best split: feature, last bin on the left, whether missing values go left, sums of the left
        child as in `totals`, and whether the split is by categories.
    bitset : ndarray of uint64 of shape (4,) or None
        Categories that go left.
    children : tuple of Leaf
        Empty until they are computed. They are part of the tree once it is split.
    splittable : list of bool
        Whether the children may be split.
    node_index : int
        Index among the tree's nodes.
    level : int
        Its depth if a tree grows level by level, else 0.
    """

    depth: int
    row_ranges: list[slice]
    totals: NDArray[np.int64]
    value: Any
    low: float = -math.inf
    high: float = math.inf
    groups: tuple[int, ...] = ()
    path: int = 1
    hist: Array | None = None
    gain: float = -1.0
    best_split: list[int] = field(default_factory=list)
    bitset: NDArray[np.uint64] | None = None
    children: tuple[Leaf, ...] = ()
    splittable: list[bool] = field(default_factory=list)
    node_index: int = -1
    level: int = 0

    @property
    def smaller(self) -> int:
        """Return the index (0 left, 1 right) of the child that has fewer rows."""
        left, right = self.children
        return 0 if left.totals[-1] < right.totals[-1] else 1

    def __lt__(self, other: Leaf) -> bool:
        """Order leaves for a heap by level and decreasing gain; of equal ones, older first."""
        return (self.level, -self.gain, self.node_index) < (
            other.level,
            -other.gain,
            other.node_index,
        )


class _TreeBuilder:
    """Builder of a `Tree` from the nodes of a growing one, in the order of their addition."""

    def __init__(self, bins: Bins) -> None:
        self._bins = bins
        self._nodes: list[Leaf] = []
        self._left_children: list[int] = []

    def add_leaf(self, leaf: Leaf) -> None:
        """Number a node, and add it as a leaf."""
        leaf.node_index = len(self._nodes)
        self._nodes.append(leaf)
        self._left_children.append(leaf.node_index)

    def split_leaf(self, leaf: Leaf) -> None:
        """Make a leaf an inner node, and add its children."""
        self._left_children[leaf.node_index] = len(self._nodes)
        for child in leaf.children:
            self.add_leaf(child)

    def build_tree(self, leaves: Sequence[Leaf]) -> Tree:
        """Return the finished tree."""
        nodes, n = self._nodes, len(self._nodes)
        is_leaf = np.zeros(n, bool)
        is_leaf[[leaf.node_index for leaf in leaves]] = True
        # A leaf may have a best split that was not made.
        inner = [None if a else leaf for a, leaf in zip(is_leaf, nodes, strict=True)]
        splits = np.array([_NO_SPLIT if leaf is None else leaf.best_split[:3] for leaf in inner]).T
        bitsets = [None if leaf is None else leaf.bitset for leaf in inner]
        inner_bitsets = [bitset for bitset in bitsets if bitset is not None]
        has_bitset = np.array([bitset is not None for bitset in bitsets])
        totals = np.array([leaf.totals for leaf in nodes])
        threshold_of = self._bins.threshold
        thresholds = [
            np.inf if leaf is None else threshold_of(*leaf.best_split[:2]) for leaf in inner
        ]
        return Tree(
            feature=splits[0].astype(np.int32),
            bin=splits[1].astype(np.int32),
            threshold=np.array(thresholds),
            left=np.array(self._left_children, np.int32),
            missing_left=splits[2] > 0,
            category=np.where(has_bitset, has_bitset.cumsum() - 1, -1).astype(np.int32),
            value=np.array([leaf.value for leaf in nodes]).reshape(n, -1),
            gain=np.array([-1.0 if leaf is None else leaf.gain for leaf in inner]),
            count=totals[:, -1],
            weight=totals[:, totals.shape[1] // 2 : -1].sum(axis=1).astype(np.float64),
            depth=np.array([leaf.depth for leaf in nodes], np.int32),
            bitsets=np.array(inner_bitsets, np.uint64).reshape(-1, 4),
        )


class TreeGrower:
    """Grower of trees on the same binned rows.

    Parameters
    ----------
    rows : OwnRows
    binned_lanes : sequence of BinnedRows
        Rows of each own lane, with gradients in ``extra["packed"]``
        (`tree_kernels.pack_gradients`).
    bins : Bins
    growth : TreeParams
    missing : ndarray of uint8 of shape (n_features,)
        Whether a feature has missing values.
    constant : bool
        Whether all hessians are 1; their sums are then the numbers of rows.
    device : TreeDevice
    n_outputs : int, default=1
        Number of outputs that a leaf predicts.

    Attributes
    ----------
    lanes : sequence of TreeRows
        The rows of the own lanes on the device, ordered by the leaves of the last tree.
    """

    def __init__(
        self, rows: OwnRows, binned_lanes: Sequence[BinnedRows], bins: Bins, growth: TreeParams,
        missing: NDArray[np.uint8], constant: bool, device: TreeDevice, n_outputs: int = 1,
    ) -> None:  # fmt: skip
        self._rows, self._bins, self._growth, self._device = rows, bins, growth, device
        self._n_outputs = n_outputs
        d = bins.n_features
        self._own_features = rows.split_ranges(d)[rows.rank]
        #: Whether histograms stay on the device that computed them; otherwise trainers exchange
        #: them in host memory, and splits are found there.
        self._histograms_stay = rows.size == 1 or rows.sums_on_device
        self._finder = device if self._histograms_stay else HostTrees()
        self._constant = constant
        #: If rows are only partitioned, without a histogram, the packing of gradients does not
        #: matter.
        self._parting_mode = CONSTANT if n_outputs == 1 else VECTOR
        self._missing = missing
        self._split_facts = SplitFacts(
            bins.counts, missing, bins.categorical.astype(np.uint8), growth.monotonic_signs,
            growth.l2_regularization, growth.min_hessian, growth.min_samples_leaf,
        )  # fmt: skip
        # A spare bin for vectors: without it, the same bin of all features would be at multiples of
        # 4 KiB, and map to the same few cache sets.
        n_bins = bins.n_bins + (n_outputs > 1)
        shape = d, n_bins, count_channels(n_outputs, constant)
        self.lanes = device.open_rows(binned_lanes, shape)
        self._all = np.ones(d, np.uint8)
        self._max_splits_at_once = max(
            _MIN_SPLITS_AT_ONCE, _HISTOGRAM_BYTES // (8 * math.prod(shape))
        )

    def grow(
        self, output: int, mode: int, scales: Any, seed: int, tree_index: int
    ) -> tuple[Tree, list[Leaf]]:
        """Grow a tree on the chosen rows, from the gradients of one output or of all.

        `scales` are the units of gradients and hessians: two numbers, or two arrays with a number
        for each output. Return the tree before shrinkage, and its leaves.
        """
        self._packed, self._scales, self._seed = (
            (mode, output),
            np.array(scales),
            (seed, tree_index),
        )
        self._of_tree = self._draw_features(
            self._all, self._growth.tree_features, _TREE_DRAW, tree_index
        )
        with self._device.guard_memory(sum(lane.n for lane in self.lanes)):
            return self._grow_best_first()

    def place_rows(self, tree: Tree, *, only_unchosen: bool = False) -> list[list[slice]]:
        """Partition the rows of the own lanes by a finished tree.

        Parameters
        ----------
        tree : Tree
        only_unchosen : bool, default=False
            Whether to place only the rows that the tree was not grown on; the others stay in its
            leaves.

        Returns
        -------
        list of list of slice
            For each lane, the range of rows of each node.
        """
        # By partitions without histograms: the loops and kernels that partition the rows of a
        # growing tree.
        tables = [tree.goes_left(node, self._bins) for node in range(len(tree.feature))]

        def place(lane: TreeRows) -> list[slice]:
            if not only_unchosen:
                lane.order_rows()
            ranges = [slice(0, 0)] * len(tree.feature)
            ranges[0] = slice(lane.n_chosen if only_unchosen else 0, lane.n)
            level = [0]
            while level := [
                i for i in level if tree.feature[i] >= 0 and ranges[i].start < ranges[i].stop
            ]:
                parts = [
                    LeafPartition(int(tree.feature[i]), tables[i], ranges[i], requested_side=-1)
                    for i in level
                ]
                _, middles = lane.partition_leaves(parts, self._parting_mode, 0)
                for i, middle in zip(level, middles, strict=True):
                    left = int(tree.left[i])
                    ranges[left] = slice(ranges[i].start, middle)
                    ranges[left + 1] = slice(middle, ranges[i].stop)
                level = [child for i in level for child in (tree.left[i], tree.left[i] + 1)]
            return ranges

        return self._rows.map_lanes(place, self.lanes)

    def add_tree(self, tree: Tree, output: int, sign: float = 1.0) -> None:
        """Add the values of a finished tree to an output of all rows, or subtract them."""
        leaves = np.flatnonzero(tree.feature < 0)
        values = sign * tree.value[leaves, 0]

        def add(lane: TreeRows, leaf_ranges: list[slice]) -> None:
            lane.add_leaf_values(output, [leaf_ranges[leaf] for leaf in leaves], values)

        pairs = list(zip(self.lanes, self.place_rows(tree), strict=True))
        self._rows.map_lanes(lambda pair: add(*pair), pairs)

    def _grow_best_first(self) -> tuple[Tree, list[Leaf]]:
        self._tree = _TreeBuilder(self._bins)
        open_leaves = [self._make_root()]
        leaves: list[Leaf] = []
        max_leaves = self._growth.max_leaf_nodes or _NO_LIMIT
        # Without a limit, every split with a gain is made: the order only affects the numbers of
        # nodes.
        if max_leaves == _NO_LIMIT:
            self._split_all_leaves(open_leaves[0])
        while open_leaves:
            # The leaf with the largest gain.
            leaf = heapq.heappop(open_leaves)
            n_splits_left = max_leaves - len(open_leaves) - len(leaves) - 1
            if leaf.gain <= 0 or not n_splits_left:
                leaves.append(leaf)
                continue
            if not leaf.children:
                # One sum over trainers also includes the children of other leaves that are likely
                # to be split.
                self._split_leaves(
                    self._choose_likely_splits([leaf, *open_leaves], n_splits_left), n_splits_left
                )
            self._tree.split_leaf(leaf)
            for child in leaf.children:
                heapq.heappush(open_leaves, child)
        return self._tree.build_tree(leaves), leaves

    def _split_all_leaves(self, root: Leaf) -> None:
        """Compute the children of all leaves whose split has a gain, without a limit on leaves."""
        waiting = [root] if root.gain > 0 else []
        while waiting:
            # Depth first: the newest leaves are split first, so that few histograms are kept.
            newest = waiting[-self._max_splits_at_once :]
            del waiting[-len(newest) :]
            self._split_leaves(newest, _NO_LIMIT)
            waiting += [child for leaf in newest for child in leaf.children if child.gain > 0]

    def _choose_likely_splits(self, leaves: Iterable[Leaf], n_splits_left: int) -> list[Leaf]:
        """Return leaves that will probably be split next; the first of them certainly is.

        `n_splits_left` is the number of splits that the tree may still make.
        """
        candidates = [leaf for leaf in leaves if leaf.gain > 0 and not leaf.children]
        if self._growth.by_level:
            # All leaves of a level are split before those of the next one.
            candidates = [leaf for leaf in candidates if leaf.level == candidates[0].level]
            return heapq.nsmallest(min(n_splits_left, self._max_splits_at_once), candidates)
        n_chosen = min(
            n_splits_left,
            max(_MIN_SPECULATIVE_SPLITS, n_splits_left // 2),
            max(_MIN_SPLITS_AT_ONCE, n_splits_left // _LIKELY_SHARE),
            self._max_splits_at_once,
        )
        return heapq.nsmallest(n_chosen, candidates)

    # -- nodes ---------------------------------------------------------------------------------

    def _make_root(self) -> Leaf:
        """Return the root with its best split."""
        ranges = [slice(0, lane.n_chosen) for lane in self.lanes]
        hist = self._sum_histograms(
            self._rows.map_lanes(lambda lane: lane.build_root_histogram(*self._packed), self.lanes)
        )
        # The bins of any one feature sum to the totals of all these rows.
        sums = self._rows.sum_trainers(self._device.copy_to_host(hist[0, 0].sum(axis=0)))
        k = self._n_outputs
        n = int(sums[k if self._constant else 2 * k])
        h = np.full(k, n) if self._constant else sums[k : 2 * k]
        leaf = Leaf(0, ranges, np.array([*sums[:k], *h, n]), 0.0 if k == 1 else [0.0] * k)
        growth = self._growth
        if growth.interaction_groups is not None:
            leaf.groups = tuple(range(len(growth.interaction_groups)))
        h_sum = (h * self._scales[1]).sum()
        if n >= 2 * growth.min_samples_leaf and h_sum >= growth.min_hessian:
            # Reduce-scatter: each trainer gets the summed histograms of its own features.
            leaf.hist = self._rows.sum_own_range(hist)[:, 0]
            self._find_best_splits([leaf])
        self._tree.add_leaf(leaf)
        return leaf

    def _split_leaves(self, leaves: Sequence[Leaf], n_splits_left: int) -> None:
        """Compute the children of some leaves, and find the children's best splits.

        `n_splits_left` is the number of splits that the tree may still make: after the last one the
        children's own splits are not needed.
        """
        growth, depths = self._growth, self._growth.max_depth or _NO_LIMIT
        self._make_children(leaves)
        tables = self._make_bin_tables(leaves)
        # If all rows are in one lane, the sums of a split include the number of rows that go left.
        has_all_rows = self._rows.size == len(self.lanes) == 1
        tasks = []
        for leaf, table in zip(leaves, tables, strict=True):
            deeper = n_splits_left > 1 and leaf.depth + 1 < depths
            leaf.splittable = [
                deeper and int(child.totals[-1]) >= 2 * growth.min_samples_leaf
                for child in leaf.children
            ]
            # The histogram of the smaller child is computed from rows.
            side = leaf.smaller if any(leaf.splittable) else -1
            n_left = int(leaf.children[0].totals[-1]) if has_all_rows else None
            tasks.append((leaf.best_split[0], table, leaf.row_ranges, side, n_left))
        parts = self._rows.map_lanes(
            lambda i: self._partition_lane(i, tasks), range(len(self.lanes))
        )
        for number, leaf in enumerate(leaves):
            for i, lane_range in enumerate(leaf.row_ranges):
                middle = parts[i][1][number]
                leaf.children[0].row_ranges.append(slice(lane_range.start, middle))
                leaf.children[1].row_ranges.append(slice(middle, lane_range.stop))
        searched = [leaf for leaf in leaves if any(leaf.splittable)]
        if searched:
            own_histograms = self._rows.sum_own_range(
                self._sum_histograms([hist for hist, _ in parts])
            )
            for number, leaf in enumerate(searched):
                assert leaf.hist is not None
                smaller, larger = leaf.children[leaf.smaller], leaf.children[1 - leaf.smaller]
                smaller.hist, larger.hist = own_histograms[:, number], leaf.hist
                # In place: the parent's histogram is no longer needed.
                larger.hist -= smaller.hist
            self._find_best_splits(
                [
                    child
                    for leaf in searched
                    for child, may in zip(leaf.children, leaf.splittable, strict=True)
                    if may
                ]
            )
        for leaf in leaves:
            leaf.hist = None

    def _partition_lane(
        self, i: int, tasks: Sequence[tuple[int, NDArray[np.uint8], list[slice], int, int | None]]
    ) -> tuple[Array, list[int]]:
        """Partition a lane's rows of some leaves; return histograms and right children's starts."""
        partitions = [
            LeafPartition(feature, table, lane_ranges[i], side, n)
            for feature, table, lane_ranges, side, n in tasks
        ]
        return self.lanes[i].partition_leaves(partitions, *self._packed)

    def _sum_histograms(self, lane_histograms: Sequence[Any]) -> Any:
        """Return the sum of all lanes' histograms, in host memory if trainers sum them there."""
        total, *others = lane_histograms
        for part in others:
            total += part
        return total if self._histograms_stay else self._device.copy_to_host(total)

    def _make_children(self, leaves: Sequence[Leaf]) -> None:
        """Create the children of leaves, with the values that follow from the splits alone."""
        k = self._n_outputs
        totals = np.empty((len(leaves), 2, 2 * k + 1), np.int64)
        totals[:, 0] = [leaf.best_split[3:-1] for leaf in leaves]
        totals[:, 1] = np.array([leaf.totals for leaf in leaves]) - totals[:, 0]
        bounds = np.array([(leaf.low, leaf.high) for leaf in leaves])[:, :, None]
        g_units, h_units = self._scales.reshape(2, k)
        g, h = totals[:, :, :k] * g_units, totals[:, :, k : 2 * k] * h_units
        # Newton step of a leaf: -G / (H + l2) (Chen and Guestrin, equation 5), within the monotonic
        # bounds. As in scikit-learn, 1e-15 avoids a division by zero.
        values = -g / (h + self._growth.l2_regularization + 1e-15)
        values = np.minimum(np.maximum(values, bounds[:, :1]), bounds[:, 1:])
        if k == 1:
            values = values[:, :, 0]
        else:
            # An output that is nearly certain in a leaf has no curvature for a step, and is not
            # changed; with one output, no split makes such a leaf.
            values[h < self._growth.min_hessian] = 0.0
        for leaf, child_totals, child_values in zip(leaves, totals, values.tolist(), strict=True):
            depth, path = leaf.depth + 1, 2 * leaf.path
            level = depth if self._growth.by_level else 0
            left, right = (
                Leaf(
                    depth, [], child_totals[side], child_values[side], leaf.low, leaf.high,
                    path=path + side, level=level,
                )
                for side in (0, 1)
            )  # fmt: skip
            leaf.children = left, right
            feature = leaf.best_split[0]
            if sign := int(self._growth.monotonic_signs[feature]):
                # Monotonic constraint: the descendants' values stay on their side of the middle.
                middle = (left.value + right.value) / 2
                lower, upper = (left, right) if sign > 0 else (right, left)
                lower.high, upper.low = middle, middle
            if self._growth.interaction_groups is not None:
                groups = tuple(
                    i for i in leaf.groups if feature in self._growth.interaction_groups[i]
                )
                left.groups = right.groups = groups
            if not self._missing[feature]:
                # The feature has no missing values in training: later ones go to the child with
                # more rows.
                leaf.best_split[2] = int(left.totals[-1] > right.totals[-1])

    def _make_bin_tables(self, leaves: Sequence[Leaf]) -> NDArray[np.uint8]:
        """Return, for each leaf, a table of which bins of its split feature go left."""
        cuts = np.array([leaf.best_split[1:3] for leaf in leaves])
        tables = (_BIN_NUMBERS <= cuts[:, :1]).astype(np.uint8)
        # The bin after the last one holds missing values.
        tables[:, self._bins.max_bins] = cuts[:, 1]
        for table, leaf in zip(tables, leaves, strict=True):
            if leaf.bitset is not None:
                table[:] = goes_left(
                    leaf.best_split[1], bool(leaf.best_split[2]), leaf.bitset, self._bins.max_bins
                )
        return tables

    # -- splits --------------------------------------------------------------------------------

    def _find_best_splits(self, open_leaves: Sequence[Leaf]) -> None:
        """Find the best split of some leaves over all trainers' features."""
        n_fields = _SPLIT_FIELDS + 2 * self._n_outputs + 1
        splits = np.zeros((self._rows.size, len(open_leaves), n_fields), np.int64)
        leaves = [
            SplitLeaf(
                leaf.hist,
                self._allowed_features(leaf),
                leaf.totals,
                leaf.value,
                leaf.low,
                leaf.high,
            )
            for leaf in open_leaves
        ]
        own_splits = splits[self._rows.rank]
        self._finder.find_best_splits(
            leaves, self._own_features.start, self._split_facts, self._scales, own_splits
        )
        # All-gather as a sum: each rank fills its own row of a table of zeros.
        if self._rows.size > 1:
            splits = self._rows.sum_trainers(splits)
        gains = np.ascontiguousarray(splits[:, :, 0]).view(np.float64)
        # Of equal gains, the first feature's is chosen: ranges are in the order of the ranks.
        best = gains.argmax(axis=0)
        for i, leaf in enumerate(open_leaves):
            split = splits[best[i], i]
            leaf.gain, leaf.best_split = float(gains[best[i], i]), split[1:-4].tolist()
            leaf.bitset = split[-4:].copy().view(np.uint64) if leaf.best_split[-1] else None

    def _allowed_features(self, leaf: Leaf) -> NDArray[np.uint8]:
        """Return a mask of the features that may split a leaf."""
        growth, number = self._growth, self._seed[1]
        # Nested shares, as in XGBoost: of the tree, of the level, of the node.
        allowed = self._draw_features(
            self._of_tree, growth.level_features, _LEVEL_DRAW, number, leaf.depth
        )
        if growth.interaction_groups is not None:
            in_groups = np.zeros_like(allowed)
            for i in leaf.groups:
                in_groups[list(growth.interaction_groups[i])] = 1
            allowed = allowed & in_groups
        return self._draw_features(allowed, growth.max_features, _NODE_DRAW, number, leaf.path)

    def _draw_features(
        self, allowed: NDArray[np.uint8], fraction: float, *draw_key: int
    ) -> NDArray[np.uint8]:
        """Return a mask of a share of some features, at least one, drawn for a place in a tree."""
        if fraction == 1 or not allowed.any():
            return allowed
        (features,) = np.nonzero(allowed)
        n = max(1, math.ceil(fraction * len(features)))
        # Hashed from the seed, the tree and the position in it: the same on any trainer.
        draws = draw_by_hash(features, self._seed[0], *draw_key)
        mask = np.zeros_like(allowed)
        mask[features[np.argsort(draws, kind="stable")[:n]]] = 1
        return mask
