"""Forests of trees, grown on the rows of all trainers: the same trees on any number of workers.

Decisions follow from sums of integers alone; random draws are hashed from the seed, the tree, and
the row's number or the path to a node. So it does not matter which trainer grows a tree, or on
which rows. If all rows fit on each trainer, trainers grow trees of their own (`forest_growth`, or
on a device, level by level); else they grow each tree together (`forest_joint_growth`).

References
----------
L. Breiman, "Random forests", Machine Learning 45, 2001. P. Geurts, D. Ernst and L. Wehenkel,
"Extremely randomized trees", Machine Learning 63, 2006 (random thresholds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from daskml_dist.backends.forests import open_forest_device
from daskml_dist.models.bins import Bins, compute_forest_bin_edges
from daskml_dist.models.trees import Tree, Trees
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.binning import find_bins
from daskml_dist.solvers.forest_growth import ForestContext, ForestParams
from daskml_dist.solvers.forest_joint_growth import JointGrower, grow_whole_trees
from daskml_dist.solvers.forest_rows import (
    ForestRows,
    bin_forest_rows,
    gather_forest_rows,
    scale_to_integers,
)
from daskml_dist.solvers.own_rows import Array, OwnRows, RowSolver, gather_to_first

#: Names of the arrays in which trees are sent, in this order.
_TREE_ARRAYS = (
    *(f.name for f in fields(Tree)), "roots", "edges", "n_edges", "categorical", "facts", "impurity"
)  # fmt: skip
#: Share of a device's free memory that all rows and the lines of a tree may take.
_DEVICE_SHARE = 0.8
#: Most trees of a trainer between two checkpoints: a loss costs no more than these.
_TREES_PER_REPORT = 4


@dataclass(frozen=True, eq=False)
class ForestSolver(RowSolver):
    """Solver that grows a forest.

    Parameters
    ----------
    growth : ForestParams
    n_trees : int
    max_bins : int
    seed : int
    decomposition : {"functional", "data", "auto"}
        "functional": each trainer grows trees of its own, on all rows; "data": all grow each tree
        together, each on its own rows; "auto": the first if all rows fit on each trainer.
    out_of_bag : bool
        Whether out-of-bag predictions are made: of each row, by the trees that did not draw it.
    begin : mapping of str to ndarray, or None
        State of a forest to which trees are added (a warm start).
    class_weight : tuple of ndarray of float64
        Weights of the classes of each output; empty: none.
    """

    growth: ForestParams
    n_trees: int
    max_bins: int
    seed: int
    decomposition: str = "auto"
    out_of_bag: bool = False
    begin: Mapping[str, Array] | None = None
    class_weight: tuple[Array, ...] = ()

    # Threads grow trees of their own, and each reads all rows many times.
    bytes_per_lane = 1 << 16

    @property
    def max_passes(self) -> int:
        """Return a bound: one report a tree."""
        return max(self.n_trees, 1)

    def solve(self, model: Any, rows: OwnRows) -> Solution:
        """Grow the trees."""
        return _ForestRun(self, rows).run()


class _ForestRun:
    """Growth of a forest on one trainer's rows."""

    def __init__(self, solver: ForestSolver, rows: OwnRows) -> None:
        self._solver, self._rows = solver, rows
        snapshot = rows.kept or solver.begin
        bins = None
        self._tree_batches: list[tuple[Trees, Array]] = []
        if snapshot is not None:
            trees = Trees.unpacked(snapshot)
            bins = trees.bins
            self._tree_batches = [(trees, snapshot["impurity"])]
        growth = solver.growth
        self._binned_lanes, self._bins = self._bin_own_rows(bins)
        self._scales = scale_to_integers(
            rows, self._binned_lanes, growth.criterion, growth.classes, growth.rate is not None,
            growth.balanced,
        )  # fmt: skip
        first = self._binned_lanes[0]
        # Only the host computes medians.
        self._device = open_forest_device("cpu" if growth.criterion.needs_rows else rows.device)
        self._context = ForestContext(
            growth, self._bins, self._scales, first.low, first.high, solver.seed
        )

    def _bin_own_rows(self, known_bins: Bins | None) -> tuple[list[ForestRows], Bins]:
        """Return the binned rows of the own lanes, and the bins (`known_bins` in a warm start)."""
        rows, solver = self._rows, self._solver
        # After a loss of another trainer, rows that were binned before are used again.
        binned_by_lane: dict[int, ForestRows] = rows.memory.setdefault("binned", {})
        bins: Any = known_bins or rows.memory.get("bins")
        # Finding bins is collective: if one trainer lacks them, since it is new, all find them.
        if rows.max_trainers(np.array([float(bins is None)]))[0]:
            n = solver.growth.monotonic_signs
            bins = find_bins(
                rows, solver.max_bins, (None,) * len(n), solver.seed, None, rows.n_rows,
                compute_forest_bin_edges,
            )  # fmt: skip
        rows.memory["bins"] = bins
        for lane in set(binned_by_lane) - set(rows.lanes):
            del binned_by_lane[lane]
        new_lanes = [lane for lane in rows.lanes if lane not in binned_by_lane]
        n_outputs, class_weight = solver.growth.n_outputs, solver.class_weight
        binned = rows.map_lanes(
            lambda lane: bin_forest_rows(rows, lane, bins, n_outputs, class_weight), new_lanes
        )
        binned_by_lane.update(zip(new_lanes, binned, strict=True))
        return [binned_by_lane[lane] for lane in rows.lanes], bins

    @property
    def _grows_apart(self) -> bool:
        """Return whether each trainer grows trees of its own on all rows; the same in all."""
        solver = self._solver
        # Medians are no sums: a tree by absolute error needs all rows of a node in one place.
        if solver.growth.criterion.needs_rows:
            return True
        if solver.decomposition != "auto":
            return solver.decomposition == "functional"
        rows, growth = self._rows, solver.growth
        n_bytes = int(
            rows.sum_trainers(np.array([sum(binned.n_bytes for binned in self._binned_lanes)]))[0]
        )
        # The gathered parts and their concatenation; and the lines (int64) of a tree for each
        # lane's thread, with as much spare memory to partition them.
        drawn_bytes = 16 * growth.n_line * rows.n_rows
        needed_bytes = 2 * n_bytes + drawn_bytes * len(rows.lanes)
        # A device holds all rows too, and the lines of a tree.
        lacks = (
            needed_bytes > rows.budget
            or n_bytes + drawn_bytes > _DEVICE_SHARE * self._device.budget
        )
        return not rows.max_trainers(np.array([float(lacks)]))[0]

    def run(self) -> Solution:
        """Grow the trees in lots of a few for each trainer, with a checkpoint after each lot."""
        n_trees, n = self._solver.n_trees, sum(len(trees) for trees, _ in self._tree_batches)
        grow = self._make_apart_grower() if self._grows_apart else self._make_joint_grower()
        while n < n_trees and not self._rows.should_stop:
            numbers = range(n, min(n_trees, n + _TREES_PER_REPORT * self._rows.size))
            # A new list, since the checkpoint of an earlier lot may be packed later.
            self._tree_batches = [*self._tree_batches, grow(numbers)]
            n = numbers.stop
            # A collective call, which updates `should_stop` alike in all trainers.
            self._rows.max_trainers(np.zeros(1))
            self._rows.keep(n, partial(_pack_forest_state, self._tree_batches))
        state = _pack_forest_state(self._tree_batches)
        if self._solver.out_of_bag:
            trees = Trees.unpacked(state)
            state |= _predict_out_of_bag(self._rows, self._binned_lanes, self._context, trees)
        return Solution(np.empty(0), n, extra=state)

    def _make_apart_grower(self) -> Any:
        """Return a function by which each trainer grows trees of its own on all rows."""
        all_rows = gather_forest_rows(self._rows, self._binned_lanes)
        device, growing = self._device, self._context
        lane = (
            device.open_lane(all_rows, growing.shared, self._rows.allocate_zeros)
            if device.by_levels
            else None
        )

        def grow(tree_indices: range) -> tuple[Trees, Array]:
            # A device grows several trees at once, the host one in each thread.
            own_numbers = tree_indices[self._rows.split_ranges(len(tree_indices))[self._rows.rank]]
            if lane is not None:
                trees = grow_whole_trees(device, lane, growing, own_numbers, len(all_rows.numbers))
            else:
                trees = self._rows.map_lanes(
                    lambda t: growing.grow_whole_tree(all_rows, t), own_numbers
                )
            return self._exchange_trees(trees)

        return grow

    def _exchange_trees(self, own_trees: Sequence[tuple[Tree, Array]]) -> tuple[Trees, Array]:
        """Return the trees of all trainers, in the order of their numbers."""
        parts = [_pack_trees(own_trees, self._bins)] if own_trees else []
        if self._rows.size > 1:
            # With more trainers than trees, some trainers send nothing.
            arrays = [parts[0][name] for name in _TREE_ARRAYS] if parts else []
            gathered = self._rows.gather_arrays(arrays)
            parts = [
                dict(zip(_TREE_ARRAYS, tree_arrays, strict=True))
                for tree_arrays in gathered
                if tree_arrays
            ]
        return _concatenate_trees([(Trees.unpacked(part), part["impurity"]) for part in parts])

    def _make_joint_grower(self) -> Any:
        """Return a function by which all trainers grow each tree together."""
        joint_grower = JointGrower(self._rows, self._binned_lanes, self._context, self._device)

        def grow(tree_indices: range) -> tuple[Trees, Array]:
            packed = _pack_trees(joint_grower.grow(tree_indices), self._bins)
            return Trees.unpacked(packed), packed["impurity"]

        return grow


def _pack_trees(trees: Sequence[tuple[Tree, Array]], bins: Bins) -> dict[str, Array]:
    packed = Trees.from_trees([tree for tree, _ in trees], 1, bins).packed()
    return {**packed, "impurity": np.concatenate([impurity for _, impurity in trees])}


def _concatenate_trees(tree_batches: Sequence[tuple[Trees, Array]]) -> tuple[Trees, Array]:
    """Return several lots of trees, with their nodes' impurities, as one."""
    if len(tree_batches) == 1:
        return tree_batches[0]
    first = tree_batches[0][0]
    # `Trees.from_trees` takes the nodes of a lot for one tree: set the roots of all trees.
    merged = Trees.from_trees([trees.nodes for trees, _ in tree_batches], 1, first.bins)
    n_nodes = np.concatenate([np.diff(trees.roots) for trees, _ in tree_batches])
    merged.roots = np.append(0, n_nodes.cumsum()).astype(np.int64)
    return merged, np.concatenate([impurity for _, impurity in tree_batches])


def _pack_forest_state(tree_batches: Sequence[tuple[Trees, Array]]) -> dict[str, Array]:
    """Return all trees as arrays by name."""
    if not tree_batches:
        return {}
    trees, impurity = _concatenate_trees(tree_batches)
    return {**trees.packed(), "impurity": impurity}


def _predict_out_of_bag(
    rows: OwnRows, binned_lanes: Sequence[ForestRows], context: ForestContext, trees: Trees
) -> dict[str, Array]:
    """Return sums of out-of-bag predictions, numbers of trees, and targets, in row order.

    The first trainer gets those of all rows; the others get empty arrays.
    """
    keys = np.array([context.make_tree_keys(t)[0] for t in range(len(trees))], np.uint64)
    parts = rows.map_lanes(lambda binned: _predict_lane(binned, keys, context, trees), binned_lanes)
    numbers, sums, times, y = (gather_to_first(rows, arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(numbers, kind="stable")
    return {"oob_sums": sums[order], "oob_times": times[order], "oob_y": y[order]}


def _predict_lane(
    binned: ForestRows, keys: Array, context: ForestContext, trees: Trees
) -> list[Array]:
    """Return the row numbers of a lane, sums of predictions, numbers of trees, and targets."""
    from daskml_dist.backends.forest_kernels import add_out_of_bag_answers

    nodes = trees.nodes
    sums = np.zeros((len(binned.y), nodes.value.shape[1]))
    times = np.zeros(len(binned.y), np.int64)
    add_out_of_bag_answers(
        binned.rows, binned.numbers, keys, context.table, trees.roots, nodes.feature, nodes.bin,
        nodes.left, nodes.missing_left, context.bins.max_bins, nodes.value, sums, times,
    )  # fmt: skip
    return [binned.numbers, sums, times, binned.y]
