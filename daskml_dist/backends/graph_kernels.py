"""Compiled loops over the entries of graphs.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.csr_order import Entries

__all__ = ["in_rows", "pull_ranks", "pull_smallest"]

Array = NDArray[Any]

_exact = numba.njit(nogil=True, cache=True, error_model="numpy")
_fast = numba.njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"}
)


def in_rows(
    some: Sequence[Entries],
    indptr: NDArray[np.int64],
    uses: NDArray[np.int64],
    place: NDArray[np.int32],
    dtype: Any,
) -> tuple[NDArray[np.int32], Array | None]:
    """As `csr_order.in_rows`, of known `indptr`: sorted by columns first and then by rows."""
    n, kind = int(indptr[-1]), np.float64 if dtype is None else dtype
    weighted = dtype is not None
    rows, values = np.empty(n, np.int32), np.empty(n if weighted else 0, kind)
    at = np.cumsum(uses) - uses
    for part in some:
        given = values[:0] if part.values is None else part.values.astype(kind, copy=False)
        codes = _plain(part.rows), _plain(part.columns)
        _by_columns(*codes, _plain(given), part.row_of, part.column_of, at, rows, values)
    indices, sorted_values = np.empty(n, np.int32), np.empty_like(values)
    _by_rows(uses, rows, values, place, indptr[:-1].copy(), indices, sorted_values)
    return indices, sorted_values if weighted else None


def _plain(array: Array) -> Array:
    """An array of the one kind that loops are compiled for: what was sent is of other ones."""
    return array if array.flags.aligned and array.flags.writeable else array.copy()


@_exact
def _by_columns(
    rows: Any, columns: Any, given: Any, row_of: Any, column_of: Any, at: Any, found: Any,
    values: Any,
) -> None:  # fmt: skip
    """Put the rows and values of entries where the next of their columns belong, `at`."""
    for i in range(len(rows)):
        k = column_of[columns[i]]
        j = at[k]
        at[k] = j + 1
        found[j] = row_of[rows[i]]
        if len(values):
            values[j] = given[i]


@_exact
def _by_rows(
    uses: Any, rows: Any, given: Any, place: Any, at: Any, indices: Any, values: Any
) -> None:
    """Put entries, which are in the order of their columns, where the next of their rows belong."""
    j = 0
    for k in range(len(uses)):
        for _ in range(uses[k]):
            i = at[rows[j]]
            at[rows[j]] = i + 1
            indices[i] = place[k]
            if len(values):
                values[i] = given[j]
            j += 1


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
