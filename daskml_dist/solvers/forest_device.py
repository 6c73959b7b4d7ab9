"""Trees of forests on a device that splits the nodes of a level all together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.forests import ForestDevice, ForestLane, Nodes
from daskml_dist.models.grown_tree import GrownTree
from daskml_dist.models.trees import Tree
from daskml_dist.solvers.forest_grow import Growing
from daskml_dist.solvers.forest_levels import grown_by_levels
from daskml_dist.solvers.forest_rows import ForestRows

__all__ = ["grown_parts", "root_sums", "whole_trees"]

Array = NDArray[Any]

#: Share of the device's free memory for the lines of trees that grow together.
_SHARE = 0.3


def _drawn_lines(lane: ForestLane, growing: Growing, numbers: Sequence[int]) -> list[int]:
    """Let a lane that has all rows draw those of some trees; how many each has."""
    keys = np.array([growing.keys(t)[0] for t in numbers], np.uint64)
    n = lane.draw(keys, None)
    if growing.growth.balanced:
        sums, _ = root_sums(lane, growing, n)
        n = lane.draw(keys, growing.factors(sums))
    return n


def root_sums(
    lane: ForestLane, growing: Growing, n: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Sums and reaches of all lines of some trees."""
    growth = growing.growth
    sums = np.zeros((len(n), growth.n_sums + 2), np.int64)
    reach = np.full((len(n), 2 * growth.n_outputs), -np.inf)
    lane.sums(_roots(growing, n, np.zeros(len(n), np.uint64)), sums, reach)
    return sums, reach


def _roots(growing: Growing, n: Sequence[int], paths: NDArray[np.uint64]) -> Nodes:
    start = np.zeros(len(n), np.int64)
    bounds = np.tile(growing.bounds(), (len(n), 1))
    return Nodes(np.arange(len(n)), start, np.array(n, np.int64), paths, bounds, 0)


def whole_trees(
    device: ForestDevice, lane: ForestLane, growing: Growing, numbers: Sequence[int], n_rows: int
) -> list[tuple[Tree, Array]]:
    """Some trees, and the impurity of their nodes, of rows that a lane has all."""
    found: list[tuple[Tree, Array]] = []
    each = 2 * 8 * growing.growth.n_line * max(n_rows, 1)
    while len(found) < len(numbers):
        left = len(numbers) - len(found)
        many = int(min(left, max(1.0, _SHARE * device.budget / each)))
        some = numbers[len(found) : len(found) + many]
        with device.memory(n_rows):
            n = _drawn_lines(lane, growing, some)
            sums, _ = root_sums(lane, growing, n)
            facts, least = growing.all_facts(sums[:, -2])
            paths = np.array([growing.keys(t)[1] for t in some], np.uint64)
            grown = grown_by_levels(
                device, lane, growing.shared, facts, least, _roots(growing, n, paths),
                np.zeros(len(n), np.int32),
            )  # fmt: skip
        found += [growing.done(tree) for tree in grown]
    return found


def grown_parts(
    device: ForestDevice, growing: Growing, bins: Array, lines: Array, ends: NDArray[np.int64],
    facts: Array, least: Array, paths: NDArray[np.uint64], depths: NDArray[np.int32],
    bounds: NDArray[np.float64],
) -> list[GrownTree]:  # fmt: skip
    """Parts of trees that grow of nodes whose rows are all here.

    Parameters
    ----------
    device : ForestDevice
    growing : Growing
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
        return grown_by_levels(device, lane, growing.shared, facts, least, nodes, depths)
