"""Compiled loops of rows through trees.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry

__all__ = ["add_binned", "add_trees"]

_exact = compiled_entry()

#: Rows that go through all trees together.
_ROWS = 256


@_exact
def add_binned(rows: Any, feature: Any, left: Any, tables: Any, value: Any, out: Any) -> None:
    """Add a tree's values of binned rows to `out`; `tables`: of each node, which bins go left."""
    for i in range(len(out)):
        k = 0
        while feature[k] >= 0:
            k = left[k] + 1 - tables[k, rows[i, feature[k]]]
        out[i] += value[k]


@_exact
def add_trees(
    X: Any, roots: Any, first: int, last: int, n_outputs: int, feature: Any, threshold: Any,
    left: Any, missing_left: Any, category: Any, bitsets: Any, value: Any, out: Any,
) -> None:  # fmt: skip
    """Add the values of trees `first` to `last` to raw predictions.

    Parameters
    ----------
    X : ndarray of float32 or float64 of shape (n, n_features)
        Categories by their numbers, NaN where they are missing or unknown.
    out : ndarray of float64 of shape (n, n_outputs)
    """
    for start in range(0, len(X), _ROWS):
        stop = min(len(X), start + _ROWS)
        for t in range(first, last):
            root, output = roots[t], (t - first) % n_outputs
            for i in range(start, stop):
                k = root
                while feature[k] >= 0:
                    x = np.float64(X[i, feature[k]])
                    if x != x:
                        goes = missing_left[k]
                    elif category[k] >= 0:
                        c = np.uint64(x)
                        goes = (bitsets[category[k], c >> 6] >> (c & 63)) & 1 == 1
                    else:
                        goes = x <= threshold[k]
                    k = left[k] + 1 - goes
                out[i, output] += value[k]
