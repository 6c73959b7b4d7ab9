"""Compiled loops over nodes of a level: which may be split, which are, and what their children are.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry
from daskml_dist.backends.forest_criteria import worth
from daskml_dist.backends.forest_cuts import BITS, KIND
from daskml_dist.backends.forest_grow import halve, may_split
from daskml_dist.backends.forest_kernels import child_of

__all__ = ["may_be_split", "settled"]

_exact = compiled_entry()


@_exact
def may_be_split(facts: Any, tree: Any, sums: Any, reach: Any, depth: Any, out: Any) -> None:
    """Write of each node whether it is neither too deep, nor too small, nor pure.

    Parameters
    ----------
    facts : ndarray of int64 of shape (n_trees, n_facts)
    tree, depth : ndarray of shape (n,)
    sums : ndarray of int64 of shape (n, n_sums + 2)
    reach : ndarray of float64 of shape (n, 2 * n_outputs)
    out : ndarray of bool of shape (n,)
    """
    for q in range(len(tree)):
        out[q] = may_split(facts[tree[q]], sums[q], reach[q], depth[q])


@_exact
def settled(
    facts: Any, least: Any, tree: Any, sums: Any, best: Any, worths: Any, signs: Any, bounds: Any,
    paths: Any, gain: Any, of_children: Any, ways: Any,
) -> None:  # fmt: skip
    """Write what the splits of nodes gain, and bounds and ways of their children.

    Parameters
    ----------
    least : ndarray of float64 of shape (n_trees,)
        What a split must gain at least.
    best : ndarray of int64 of shape (n, .)
        As `forests.ForestDevice.best` tells; `worths` are the numbers of its second column.
    bounds : ndarray of float64 of shape (n, 3)
    gain : ndarray of float64 of shape (n,)
        -1 where a node is not split.
    of_children : ndarray of float64 of shape (n, 2, 3)
    ways : ndarray of uint64 of shape (n, 2)
    """
    n_sums = sums.shape[1] - 2
    work = np.zeros((2, n_sums), np.int64)
    for q in range(len(tree)):
        own, j = facts[tree[q]], best[q, 0]
        gain[q] = -1.0
        if j < 0:
            continue
        before = worth(own[KIND], sums[q, :n_sums], sums[q, n_sums], own[BITS])
        more = max(worths[q] - before, 0.0)
        if more < least[tree[q]]:
            continue
        gain[q] = more
        of_children[q, 0] = bounds[q]
        of_children[q, 1] = bounds[q]
        if bounds[q, 2] != 0:
            left = best[q, 7:]
            halve(own, sums[q], left, signs[j], bounds[q], work, of_children[q, :, :2])
        for side in range(2):
            ways[q, side] = child_of(paths[q], side)
