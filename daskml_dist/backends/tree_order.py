"""Compiled walks over the nodes of trees.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry

__all__ = ["depth_first", "walk_of"]

_exact = compiled_entry()


@_exact
def depth_first(roots: Any, left: Any) -> Any:
    """Number of each node in its tree where a left child follows its parent, as scikit-learn's.

    Parameters
    ----------
    roots : ndarray of int64 of shape (n_trees + 1,)
    left : ndarray of int32 of shape (n_nodes,)
        Left children, behind their parents; a leaf's is itself.
    """
    n = len(left)
    size, number = np.ones(n, np.int64), np.zeros(n, np.int64)
    for k in range(n - 1, -1, -1):
        if left[k] != k:
            size[k] += size[left[k]] + size[left[k] + 1]
    for k in range(n):
        if left[k] != k:
            number[left[k]] = number[k] + 1
            number[left[k] + 1] = number[k] + 1 + size[left[k]]
    return number


@_exact
def walk_of(left: Any, root: int) -> Any:
    """Nodes from a root: both children of a node behind each other, the left one's first."""
    order = np.empty(len(left), np.int64)
    stack = np.empty(len(left), np.int64)
    order[0], stack[0], n, n_stack = root, root, 1, 1
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        child = left[node]
        if child != node:
            order[n], order[n + 1] = child, child + 1
            stack[n_stack], stack[n_stack + 1] = child + 1, child
            n, n_stack = n + 2, n_stack + 2
    return order[:n]
