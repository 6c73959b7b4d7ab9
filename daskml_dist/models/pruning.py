"""Minimal cost-complexity pruning: the order in which a tree's subtrees are cut.

References
----------
L. Breiman, J. Friedman, R. Olshen and C. Stone, "Classification and Regression Trees", 1984, 3.3.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["weakest_links"]

Array = NDArray[Any]


def weakest_links(left: Array, right: Array, cost: Array) -> Iterator[tuple[float, int, float]]:
    """Cut the subtree that lowers the cost by the least for each of its leaves, again and again.

    Parameters
    ----------
    left, right : ndarray of int of shape (n_nodes,)
        Children, which come behind their parents; negative at leaves.
    cost : ndarray of float64 of shape (n_nodes,)
        Impurity of each node times its share of the rows.

    Yields
    ------
    alpha : float
        What the subtree lowers the cost by, a leaf.
    node : int
        That becomes a leaf.
    whole : float
        Cost of the tree's leaves then.
    """
    n = len(left)
    inner = np.flatnonzero(left >= 0)
    parent = np.full(n, -1)
    parent[left[inner]] = parent[right[inner]] = inner
    below, leaves = cost.astype(np.float64), np.ones(n, np.int64)
    for node in inner[::-1]:
        below[node] = below[left[node]] + below[right[node]]
        leaves[node] = leaves[left[node]] + leaves[right[node]]
    alive = left >= 0

    def alpha_of(node: int) -> float:
        return float((cost[node] - below[node]) / (leaves[node] - 1))

    # An ancestor's alpha never falls, so that one out of date is found when its turn comes.
    heap = [(alpha_of(node), node) for node in inner.tolist()]
    heapq.heapify(heap)
    while heap:
        alpha, node = heapq.heappop(heap)
        if not alive[node]:
            continue
        if alpha_of(node) > alpha:
            heapq.heappush(heap, (alpha_of(node), node))
            continue
        _end(alive, left, right, node)
        less, fewer, above = cost[node] - below[node], leaves[node] - 1, node
        while above >= 0:
            below[above] += less
            leaves[above] -= fewer
            above = int(parent[above])
        yield alpha, node, float(below[0])


def _end(alive: Array, left: Array, right: Array, node: int) -> None:
    """Note that nothing below a node is split."""
    waiting = [node]
    while waiting:
        at = waiting.pop()
        alive[at] = False
        waiting += [int(child) for child in (left[at], right[at]) if alive[child]]
