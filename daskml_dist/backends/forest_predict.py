"""Compiled loops of rows through the trees of a forest.

Rows go through a tree some at a time, so that the memory's answers to one are waited for together
with the others'. Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside

__all__ = ["add_answers", "leaves_of"]

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Rows that go through all trees together, and those that go through a tree side by side.
_ROWS, _SIDE = 512, 8


@_inside
def _next(X: Any, i: Any, k: Any, threshold: Any, facts: Any) -> Any:
    """The node that a row comes to after another; a leaf's is itself."""
    x = X[i, facts[k, 0]]
    left = facts[k, 1]
    if x != x:
        return left + 1 - facts[k, 2]
    return left + np.int32(x > threshold[k])


@_exact
def add_answers(
    X: Any, roots: Any, threshold: Any, facts: Any, depths: Any, values: Any, out: Any
) -> None:
    """Add the answers of all trees, in their order.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
    roots : ndarray of int64 of shape (n_trees + 1,)
    threshold : ndarray of shape (n_nodes,)
        In the dtype of the rows.
    facts : ndarray of int32 of shape (n_nodes, 3)
        Feature, left child, whether missing values go left.
    depths : ndarray of int64 of shape (n_trees,)
    values : ndarray of float64 of shape (n_nodes, n_values)
    out : ndarray of float64 of shape (n, n_values)
    """
    n, n_values = len(X), values.shape[1]
    at = np.empty(_ROWS, np.int32)
    for start in range(0, n, _ROWS):
        stop = min(n, start + _ROWS)
        for t in range(len(roots) - 1):
            _descend(X, start, stop, roots[t], depths[t], threshold, facts, at)
            for i in range(start, stop):
                k = at[i - start]
                for v in range(n_values):
                    out[i, v] += values[k, v]


@_inside
def _descend(
    X: Any, start: Any, stop: Any, root: Any, depth: Any, threshold: Any, facts: Any, at: Any
) -> None:
    """Write the leaves that rows end in."""
    i = start
    while i + _SIDE <= stop:
        a: Any = np.int64(root)
        b = c = d = e = f = g = h = a
        for _ in range(depth):
            a1 = _next(X, i, a, threshold, facts)
            b1 = _next(X, i + 1, b, threshold, facts)
            c1 = _next(X, i + 2, c, threshold, facts)
            d1 = _next(X, i + 3, d, threshold, facts)
            e1 = _next(X, i + 4, e, threshold, facts)
            f1 = _next(X, i + 5, f, threshold, facts)
            g1 = _next(X, i + 6, g, threshold, facts)
            h1 = _next(X, i + 7, h, threshold, facts)
            moved = (a1 ^ a) | (b1 ^ b) | (c1 ^ c) | (d1 ^ d)
            moved |= (e1 ^ e) | (f1 ^ f) | (g1 ^ g) | (h1 ^ h)
            a, b, c, d, e, f, g, h = a1, b1, c1, d1, e1, f1, g1, h1
            if moved == 0:
                break
        k = i - start
        at[k], at[k + 1], at[k + 2], at[k + 3] = a, b, c, d
        at[k + 4], at[k + 5], at[k + 6], at[k + 7] = e, f, g, h
        i += _SIDE
    while i < stop:
        last: Any = np.int64(root)
        for _ in range(depth):
            last = _next(X, i, last, threshold, facts)
        at[i - start] = last
        i += 1


@_exact
def leaves_of(X: Any, roots: Any, threshold: Any, facts: Any, numbers: Any, out: Any) -> None:
    """Write the leaf of each tree that rows end in, as its number in the tree."""
    for i in range(len(X)):
        for t in range(len(roots) - 1):
            k: Any = np.int64(roots[t])
            while True:
                after = _next(X, i, k, threshold, facts)
                if after == k:
                    break
                k = after
            out[i, t] = numbers[k]
