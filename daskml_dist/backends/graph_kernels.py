"""Compiled loops over the entries of graphs.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["in_rows", "pull_ranks", "pull_smallest"]

Array = NDArray[Any]

_exact = numba.njit(nogil=True, cache=True, error_model="numpy")
_fast = numba.njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"}
)


def in_rows(
    rows: Array, columns: Array, values: Array | None, shape: tuple[int, int]
) -> tuple[NDArray[np.int64], Array, Array | None]:
    """As `csr_order.in_rows`: sorted by counting, by columns first and then by rows."""
    weighted = values is not None
    given = np.empty(0) if values is None else values
    _, rows, columns, given = _counted(columns, rows, given, shape[1], weighted)
    indptr, columns, _, given = _counted(rows, columns, given, shape[0], weighted)
    return indptr, columns, given if weighted else None


@_exact
def _counted(keys: Any, others: Any, values: Any, n_keys: int, weighted: bool) -> Any:
    """Bounds of each key's entries; the others, the keys and the values in the keys' order.

    Entries of one key stay in the order in which they come.
    """
    n = len(keys)
    ends = np.zeros(n_keys + 1, np.int64)
    for i in range(n):
        ends[keys[i] + 1] += 1
    for k in range(n_keys):
        ends[k + 1] += ends[k]
    at = ends[:-1].copy()
    own, rest = np.empty(n, others.dtype), np.empty(n, keys.dtype)
    sorted_values = np.empty(len(values), values.dtype)
    for i in range(n):
        k = keys[i]
        j = at[k]
        at[k] = j + 1
        own[j] = others[i]
        rest[j] = k
        if weighted:
            sorted_values[j] = values[i]
    return ends, own, rest, sorted_values


@_fast
def pull_ranks(
    indptr: Any,
    indices: Any,
    weights: Any,
    sent: Any,
    fixed: Any,
    spread: Any,
    damping: float,
    dangling: float,
    ranks: Any,
) -> float:
    """Ranks of the targets of a block's rows, in place; the sum of their absolute changes.

    Parameters
    ----------
    indptr, indices : ndarray
        Of the rows; entries point into `sent`.
    weights : ndarray, empty where all are 1
    sent : ndarray
        Of each touched source, its rank divided by the sum of its weights.
    fixed : ndarray of shape (n,) or (1,)
        What each target gets anyhow.
    spread : ndarray of shape (n,) or (1,)
        Its share of what vertices without targets have.
    damping, dangling : float
    ranks : ndarray of shape (n,)
    """
    change = 0.0
    weighted = len(weights) > 0
    each_fixed, each_spread = len(fixed) > 1, len(spread) > 1
    for i in range(len(ranks)):
        total = 0.0
        if weighted:
            for p in range(indptr[i], indptr[i + 1]):
                total += sent[indices[p]] * weights[p]
        else:
            for p in range(indptr[i], indptr[i + 1]):
                total += sent[indices[p]]
        new = damping * (total + dangling * spread[i if each_spread else 0])
        new += fixed[i if each_fixed else 0]
        change += abs(new - ranks[i])
        ranks[i] = new
    return change


@_exact
def pull_smallest(indptr: Any, indices: Any, sent: Any, labels: Any) -> int:
    """Smallest of the own label and those that the entries point at, in place; how many changed."""
    changed = 0
    for i in range(len(labels)):
        least = labels[i]
        for p in range(indptr[i], indptr[i + 1]):
            least = min(least, sent[indices[p]])
        if least < labels[i]:
            labels[i] = least
            changed += 1
    return changed
