"""Growth of trees by all trainers together, each on its own rows.

Level by level: histograms are reduced by ranges of (node, feature), whose owners find the best
cuts. Nodes of few rows are sent to one trainer, that finishes them alone.

References
----------
B. Panda et al., "PLANET: Massively parallel learning of tree ensembles with MapReduce", VLDB 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.grown_tree import GrownTree, joined
from daskml_dist.models.trees import Tree
from daskml_dist.solvers.forest_grow import Growing
from daskml_dist.solvers.forest_parts import flat, part_of
from daskml_dist.solvers.forest_rows import ForestRows
from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["Together"]

Array = NDArray[Any]

#: Bytes of the histograms of some nodes.
_BYTES = 2**25
#: Rows of a node that one trainer finishes, and bytes of those that travel together.
SMALL, _SENT = 2**14, 2**27


@dataclass(eq=False)
class _Node:
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
    best: float = -np.inf
    feature: int = -1
    varies: bool = False
    told: Array = field(default_factory=lambda: np.empty(0))


class Together:
    """Grows trees on the rows of all trainers.

    Parameters
    ----------
    rows : OwnRows
    rooms : sequence of ForestRows
        Of the own lanes.
    growing : Growing
    """

    def __init__(self, rows: OwnRows, rooms: Sequence[ForestRows], growing: Growing) -> None:
        self._rows, self._rooms, self._growing = rows, rooms, growing
        self._growth = growing.growth
        #: Of each lane: room for the lines of the trees that grow together, and for a partition's.
        self._spaces: list[list[Array]] = [[] for _ in rooms]

    def grow(self, numbers: range) -> list[tuple[Tree, Array]]:
        """Some trees, and the impurity of their nodes."""
        growing = self._growing
        self._lines = [self._drawn(k, t) for k, t in enumerate(numbers)]
        self._tops = [_Top(growing) for _ in numbers]
        self._facts: list[tuple[Array, float]] = []
        level = [
            _Node(k, 0, 0, growing.keys(t)[1], [slice(0, len(part)) for part in self._lines[k]],
                  growing.bounds())
            for k, t in enumerate(numbers)
        ]  # fmt: skip
        for node in level:
            self._tops[node.tree].add(node)
        small: list[_Node] = []
        while level:
            level = self._level(level, small)
        parts = self._finished(small)
        return [growing.done(joined(top.made(), parts[k])) for k, top in enumerate(self._tops)]

    def _drawn(self, k: int, tree: int) -> list[Array]:
        """The lines of the rows that the k-th tree draws of each own lane."""
        growing = self._growing

        def lines(i: int) -> Array:
            return growing.lines(self._rooms[i], tree, factor, self._space(i, k + 1))

        factor, lanes = None, range(len(self._rooms))
        drawn = self._rows.map(lines, lanes)
        if not self._growth.balanced:
            return drawn
        weights = np.sum([growing.class_weights(part) for part in drawn], axis=0)
        factor = growing.factor(self._rows.sum(weights))
        return self._rows.map(lines, lanes)

    def _space(self, i: int, number: int) -> Array:
        """Room for the lines of a lane; the first is for what partitions put aside."""
        held, shape = self._spaces[i], (len(self._rooms[i].numbers), self._growth.n_line)
        while len(held) <= number:
            held.append(self._rows.room(shape, np.int64))
        return held[number]

    # -- a level -------------------------------------------------------------------------------

    def _level(self, level: list[_Node], small: list[_Node]) -> list[_Node]:
        """Split the nodes of a level; their children."""
        from daskml_dist.backends.forest_grow import may_split

        reach = self._totals(level)
        if not self._facts:
            self._facts = [
                self._growing.facts(int(node.sums[-2] >> self._growing.scales.bits))
                for node in level
            ]
        mask = (1 << self._growing.scales.bits) - 1
        open_ = []
        for node, of in zip(level, reach, strict=True):
            facts = self._facts[node.tree][0]
            if not may_split(facts, node.sums, of, node.depth):
                continue
            if int(node.sums[-2]) & mask <= SMALL:
                small.append(node)
            else:
                open_.append(node)
        self._find(open_)
        children: list[_Node] = []
        for node in open_:
            if node.feature >= 0:
                children += self._split(node)
        return children

    def _totals(self, level: list[_Node]) -> Array:
        """Add up the sums of nodes; their reaches."""
        from daskml_dist.backends.forest_kernels import node_sums

        growth = self._growth
        sums = np.zeros((len(level), growth.n_sums + 2), np.int64)
        reach = np.full((len(level), 2 * growth.n_outputs), -np.inf)
        for node, own, of in zip(level, sums, reach, strict=True):
            for lines, at in zip(self._lines[node.tree], node.at, strict=True):
                node_sums(lines[at], own, of)
        if self._rows.size > 1:
            sums = self._rows.sum(sums)
            if not growth.classes:
                reach = self._rows.largest(reach.ravel()).reshape(reach.shape)
        for node, own in zip(level, sums, strict=True):
            node.sums = own
            self._tops[node.tree].sums[node.number] = own
        return reach

    def _find(self, nodes: list[_Node]) -> None:
        """Find the best splits of nodes."""
        d, m = self._growing.bins.n_features, self._growth.max_features
        first, last = 0, m
        while nodes and first < d:
            jobs = [
                (node, int(j)) for node in nodes for j in self._features(node, first, min(last, d))
            ]
            size = max(1, _BYTES // (256 * 8 * self._growth.n_sums))
            for start in range(0, len(jobs), size):
                self._cut(jobs[start : start + size], first > 0)
            # Where no feature varied so far, more are looked at.
            nodes = [node for node in nodes if not node.varies]
            first, last = min(last, d), min(last, d) + max(m, 8)

    def _features(self, node: _Node, first: int, last: int) -> Array:
        from daskml_dist.backends.forest_jobs import features_of

        found = np.empty(last - first, np.int64)
        features_of(node.path, first, last, self._growing.bins.n_features, found)
        return found

    def _cut(self, jobs: list[tuple[_Node, int]], one: bool) -> None:
        """Take note of better cuts; with `one`, of the first feature that varies alone."""
        from daskml_dist.backends.forest_jobs import TOLD, add_jobs, cut_jobs

        growing, growth, n = self._growing, self._growth, len(jobs)
        features = np.array([j for _, j in jobs])
        hist = np.zeros((n, 256, growth.n_sums), np.int64)
        for tree in {node.tree for node, _ in jobs}:
            which = [q for q, (node, _) in enumerate(jobs) if node.tree == tree]
            at = slice(which[0], which[-1] + 1)
            for i, lines in enumerate(self._lines[tree]):
                bounds = np.array([[jobs[q][0].at[i].start, jobs[q][0].at[i].stop] for q in which])
                add_jobs(
                    self._rooms[i].rows, lines, bounds[:, 0], bounds[:, 1], features[at], hist[at]
                )
        own = self._rows.ranges(n)[self._rows.rank]
        mine = jobs[own]
        told = np.zeros((n, TOLD + growth.n_sums + 1), np.int64)
        summed = self._rows.sum_own(hist) if self._rows.size > 1 else hist
        if mine:
            cut_jobs(
                np.array([self._facts[node.tree][0] for node, _ in mine]), summed,
                np.array([node.sums for node, _ in mine]), growth.signs,
                np.array([node.bounds for node, _ in mine]), growing.low, growing.high,
                np.array([node.path for node, _ in mine], np.uint64), features[own], told[own],
            )  # fmt: skip
        if self._rows.size > 1:
            told = self._rows.sum(told)
        worths = np.ascontiguousarray(told[:, 0]).view(np.float64)
        for (node, j), of, worth in zip(jobs, told, worths.tolist(), strict=True):
            if not of[2] or (one and node.varies):
                continue
            node.varies = True
            if worth > node.best:
                node.best, node.feature, node.told = worth, j, of

    def _split(self, node: _Node) -> list[_Node]:
        """Split a node, if that is worth it; its children."""
        from daskml_dist.backends.forest_criteria import worth
        from daskml_dist.backends.forest_grow import halve
        from daskml_dist.backends.forest_jobs import TOLD
        from daskml_dist.backends.forest_kernels import child_of, part_lines

        growing, growth = self._growing, self._growth
        facts, least = self._facts[node.tree]
        bits = growing.scales.bits
        before = worth(growth.criterion.kind, node.sums[:-2], node.sums[-2], bits)
        gain = max(node.best - before, 0.0)
        if gain < least:
            return []
        last, _, missing_left = node.told[3:TOLD].tolist()
        bounds = np.stack([node.bounds, node.bounds])
        if growing.bounded:
            work = np.zeros((2, growth.n_sums), np.int64)
            sign = growth.signs[node.feature]
            halve(facts, node.sums, node.told[TOLD:], sign, node.bounds, work, bounds[:, :2])
        left, right = (
            _Node(
                node.tree, 0, node.depth + 1, np.uint64(child_of(node.path, side)), [], bounds[side]
            )
            for side in (0, 1)
        )
        for i, lines in enumerate(self._lines[node.tree]):
            at = node.at[i]
            some = lines[at]
            n_left = part_lines(
                self._rooms[i].rows, some, node.feature, last, growing.bins.max_bins, missing_left,
                self._space(i, 0)[: len(some)],
            )  # fmt: skip
            left.at.append(slice(at.start, at.start + n_left))
            right.at.append(slice(at.start + n_left, at.stop))
        top = self._tops[node.tree]
        top.split(node, gain)
        top.add(left)
        top.add(right)
        return [left, right]

    # -- small nodes ---------------------------------------------------------------------------

    def _finished(self, small: list[_Node]) -> list[list[tuple[int, GrownTree]]]:
        """Parts of each tree that grow of small nodes."""
        found: list[list[tuple[int, GrownTree]]] = [[] for _ in self._tops]
        for some in self._groups(small):
            for node, part in zip(some, self._parts(some), strict=True):
                found[node.tree].append((node.number, part))
        return found

    def _groups(self, small: list[_Node]) -> Iterator[list[_Node]]:
        """Nodes whose rows travel together."""
        mask = (1 << self._growing.scales.bits) - 1
        each = self._rooms[0].rows.shape[1] + 8 * self._growth.n_line
        some, nbytes = [], 0
        for node in small:
            some.append(node)
            nbytes += each * (int(node.sums[-2]) & mask)
            if nbytes >= _SENT:
                yield some
                some, nbytes = [], 0
        if some:
            yield some

    def _parts(self, small: list[_Node]) -> list[GrownTree]:
        """What grows of some small nodes."""
        size, rank = self._rows.size, self._rows.rank
        given = [self._sent(small[to::size]) for to in range(size)]
        if size > 1:
            taken = [self._rows.deal(list(arrays)) for arrays in zip(*given, strict=True)]
        else:
            taken = [[array] for (arrays,) in [given] for array in arrays]
        grown = self._grown(small[rank::size], *taken)
        if size == 1:
            return grown
        every = self._rows.gather(flat(grown, self._growing))
        return [part_of(every[k % size], k // size) for k in range(len(small))]

    def _sent(self, nodes: list[_Node]) -> tuple[Array, Array, Array]:
        """The own rows of some nodes: how many of each, bins and lines."""
        counts, bins, lines = [], [], []
        for node in nodes:
            n = 0
            for room, of, at in zip(self._rooms, self._lines[node.tree], node.at, strict=True):
                some = of[at].copy()
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

    def _grown(
        self, nodes: list[_Node], counts: list[Array], bins: list[Array], lines: list[Array]
    ) -> list[GrownTree]:
        """Finish some nodes of which all trainers have sent their rows."""
        ends = [np.append(0, of.cumsum()) for of in counts]

        def finish(k: int) -> GrownTree:
            of_bins, of_lines, n = [], [], 0
            for rank, end in enumerate(ends):
                at = slice(end[k], end[k + 1])
                of_bins.append(bins[rank][at])
                some = lines[rank][at].copy()
                some[:, 0] += n
                n += len(some)
                of_lines.append(some)
            node = nodes[k]
            facts, least = self._facts[node.tree]
            return self._growing.part(
                facts, least, np.concatenate(of_bins), np.concatenate(of_lines), node.path,
                node.depth, node.bounds,
            )  # fmt: skip

        return self._rows.map(finish, range(len(nodes)))


class _Top:
    """The nodes that all trainers have made of a tree."""

    def __init__(self, growing: Growing) -> None:
        self._growing = growing
        self._nodes: list[_Node] = []
        self._left: list[int] = []
        self._gain: list[float] = []
        self.sums: list[Array] = []

    def add(self, node: _Node) -> None:
        """Add a node."""
        node.number = len(self._nodes)
        self._nodes.append(node)
        self._left.append(node.number)
        self._gain.append(0.0)
        self.sums.append(np.empty(0))

    def split(self, node: _Node, gain: float) -> None:
        """Note a split, whose children come next."""
        self._left[node.number], self._gain[node.number] = len(self._nodes), gain

    def made(self) -> GrownTree:
        """The tree so far."""
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
