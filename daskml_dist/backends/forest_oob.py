"""Compiled loop of rows through the trees that did not draw them.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

from daskml_dist.backends.compiled import compiled_entry
from daskml_dist.backends.forest_kernels import drawn

__all__ = ["add_out_of_bag"]

#: Rows that go through all trees together.
_ROWS = 4096


@compiled_entry()
def add_out_of_bag(
    rows: Any, numbers: Any, keys: Any, table: Any, roots: Any, feature: Any, last: Any, left: Any,
    missing_left: Any, missing: Any, value: Any, sums: Any, times: Any,
) -> None:  # fmt: skip
    """Add the answers of trees to binned rows that they did not draw, tree by tree.

    Parameters
    ----------
    rows : ndarray of uint8 of shape (n, width)
    numbers : ndarray of int64 of shape (n,)
    keys : ndarray of uint64 of shape (n_trees,)
    table : ndarray of uint64
        See `forest_kernels.draw_rows`.
    roots, feature, last, left, missing_left, value
        Of the trees.
    missing : int
        Bin of missing values.
    sums : ndarray of float64 of shape (n, n_values)
    times : ndarray of int64 of shape (n,)
    """
    for start in range(0, len(numbers), _ROWS):
        for t in range(len(keys)):
            for i in range(start, min(start + _ROWS, len(numbers))):
                if drawn(numbers[i], keys[t], table):
                    continue
                k = roots[t]
                while feature[k] >= 0:
                    b = rows[i, feature[k]]
                    if b == missing:
                        k = left[k] + 1 - missing_left[k]
                    else:
                        k = left[k] + (b > last[k])
                times[i] += 1
                for v in range(value.shape[1]):
                    sums[i, v] += value[k, v]
