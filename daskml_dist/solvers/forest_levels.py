"""Growth of a forest's trees level by level on a device that has all rows of their nodes.

Each level takes one call of each kernel, whatever the number of nodes and trees. A drawn row is a
*line*: its number, its weight and what the criterion sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.forests import N_CUT_FACTS, ForestDevice, ForestFacts, ForestLane, Nodes
from daskml_dist.models.grown_tree import GrownTree
from daskml_dist.models.trees import Tree
from daskml_dist.solvers.forest_growth import ForestContext
from daskml_dist.solvers.forest_rows import ForestRows
from daskml_dist.solvers.own_rows import Array

__all__ = [
    "find_best_cuts",
    "grow_by_levels",
    "grow_tree_parts",
    "grow_whole_trees",
    "sum_root_lines",
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
    between: list[Array] = field(default_factory=list)
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
        self.between.append(nodes.bounds[:, :2])
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
        lists = self.tree, self.depth, self.sums, self.between, self.left, self.gain, self.best
        tree, depth, sums, between, left, gain, best = map(np.concatenate, lists)
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
                between=between[own] if bounded else np.empty((0, 2)),
            ).walked()

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
        self._lane.sums(nodes, sums, reach)
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
            self._of_trees, self._least, nodes.tree, sums, best, worths, self._facts.signs,
            nodes.bounds, nodes.path, gain, bounds, ways,
        )  # fmt: skip
        (split,) = np.nonzero(gain >= 0)
        some, best, number = nodes.some(split), best[split], number[split]
        if not len(split):
            return some, number
        store.split(number, gain[split], best)
        middles = self._lane.part(some, best[:, [0, 4, 6]])
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
            features = device.features(some, facts, of.start, of.stop)
            hist = self._lane.histograms(some, features)
            jobs = slice(0, len(which) * (of.stop - of.start))
            hist = hist.reshape(jobs.stop, 256, facts.n_sums)
            told = device.cuts(some, features, hist, jobs, own, facts, self._of_trees)
            return device.best(told, features, one)

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
        with device.memory(n_rows):
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
    with device.memory(len(lines)):
        lane = device.lane(room, growing.shared, np.zeros)
        lane.hold(lines, np.ascontiguousarray(ends[:-1]))
        nodes = Nodes(np.arange(n), np.zeros(n, np.int64), np.diff(ends), paths, bounds, 0)
        return grow_by_levels(device, lane, growing.shared, facts, least, nodes, depths)


def sum_root_lines(
    lane: ForestLane, growing: ForestContext, n: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the sums and target ranges of all lines of some trees."""
    growth = growing.growth
    sums = np.zeros((len(n), growth.n_sums + 2), np.int64)
    reach = np.full((len(n), 2 * growth.n_outputs), -np.inf)
    lane.sums(_make_roots(growing, n, np.zeros(len(n), np.uint64)), sums, reach)
    return sums, reach


def _draw_tree_lines(lane: ForestLane, growing: ForestContext, numbers: Sequence[int]) -> list[int]:
    """Let a lane that has all rows draw those of some trees; how many each has."""
    keys = np.array([growing.make_tree_keys(t)[0] for t in numbers], np.uint64)
    n = lane.draw(keys, None)
    if growing.growth.balanced:
        sums, _ = sum_root_lines(lane, growing, n)
        n = lane.draw(keys, growing.balance_classes(sums))
    return n


def _make_roots(growing: ForestContext, n: Sequence[int], paths: NDArray[np.uint64]) -> Nodes:
    start = np.zeros(len(n), np.int64)
    bounds = np.tile(growing.root_bounds(), (len(n), 1))
    return Nodes(np.arange(len(n)), start, np.array(n, np.int64), paths, bounds, 0)
