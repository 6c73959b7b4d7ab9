"""Compiled loops over the entries of graphs.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_entry

Array = NDArray[Any]

#: Entries of rows that are sorted together.
_MAX_SORTED_ENTRIES = 1 << 24

_exact = compiled_entry()
_fast = compiled_entry(fastmath={"contract", "reassoc", "nsz"})


def sort_entries(
    read_entries: Any,
    indptr: NDArray[np.int64],
    uses: NDArray[np.int64],
    column_ids: NDArray[np.int32],
    dtype: Any,
) -> tuple[NDArray[np.int32], Array | None]:
    """Return entries in CSR order by two counting sorts; see `csr_order.sort_into_csr`."""
    n, weighted = int(indptr[-1]), dtype is not None
    kind = np.dtype(np.float64 if dtype is None else dtype)
    indices, values = np.empty(n, np.int32), np.empty(n if weighted else 0, kind)
    row_positions, row = indptr[:-1].copy(), 0
    # Slices of rows with at most `_MAX_SORTED_ENTRIES` entries, which bounds the scratch memory.
    while row < len(row_positions):
        stop = max(
            int(np.searchsorted(indptr, indptr[row] + _MAX_SORTED_ENTRIES, side="right")) - 1,
            row + 1,
        )
        m = int(indptr[stop] - indptr[row])
        # If all rows fit, the columns' counts are known already, and need no further pass.
        all_fit = m == n
        starts = np.zeros(len(uses) + 1, np.int64)
        if all_fit:
            np.cumsum(uses, out=starts[1:])
        for part in () if all_fit else read_entries():
            codes = _make_plain(part.rows), _make_plain(part.columns)
            _count_columns(*codes, part.row_of, part.column_of, row, stop, starts[1:])
        if not all_fit:
            np.cumsum(starts, out=starts)
        rows, sorted_values = np.empty(m, np.int32), np.empty(m if weighted else 0, kind)
        for part in read_entries():
            codes = _make_plain(part.rows), _make_plain(part.columns)
            part_values = (
                sorted_values[:0] if part.values is None else part.values.astype(kind, copy=False)
            )
            plain = _make_plain(part_values)
            _sort_by_column(
                *codes, plain, part.row_of, part.column_of, row, stop, starts, rows, sorted_values
            )
        _sort_by_row(starts, rows, sorted_values, column_ids, row_positions, indices, values)
        row = stop
    return indices, values if weighted else None


def _make_plain(array: Array) -> Array:
    """Return an aligned, writable array: the loops are compiled only for this kind."""
    return array if array.flags.aligned and array.flags.writeable else array.copy()


@_exact
def _count_columns(
    rows: Any, columns: Any, row_of: Any, column_of: Any, first: int, stop: int, counts: Any
) -> None:
    """Count the entries of each column, only for rows from `first` to `stop`."""
    for i in range(len(rows)):
        if first <= row_of[rows[i]] < stop:
            counts[column_of[columns[i]]] += 1


@_exact
def _sort_by_column(
    rows: Any, columns: Any, source_values: Any, row_of: Any, column_of: Any, first: int, stop: int,
    free_positions: Any, sorted_rows: Any, values: Any,
) -> None:  # fmt: skip
    """Write rows and values of entries to the next free position of their column."""
    for i in range(len(rows)):
        row = row_of[rows[i]]
        if first <= row < stop:
            k = column_of[columns[i]]
            # Second pass of a counting sort: `free_positions` has the next free position of each
            # column.
            j = free_positions[k]
            free_positions[k] = j + 1
            sorted_rows[j] = row
            if len(values):
                values[j] = source_values[i]


@_exact
def _sort_by_row(
    column_ends: Any,
    rows: Any,
    source_values: Any,
    column_ids: Any,
    free_positions: Any,
    indices: Any,
    values: Any,
) -> None:
    """Write entries, sorted by column, to the next free position of their row."""
    j = 0
    for k in range(len(column_ids)):
        while j < column_ends[k]:
            i = free_positions[rows[j]]
            free_positions[rows[j]] = i + 1
            indices[i] = column_ids[k]
            if len(values):
                values[i] = source_values[j]
            j += 1


@_fast
def update_ranks(
    indptr: Any,
    indices: Any,
    weights: Any,
    rank_shares: Any,
    fixed: Any,
    spread: Any,
    damping: float,
    dangling: float,
    ranks: Any,
) -> float:
    """Update the PageRanks of a block's targets, in place; return the sum of absolute changes.

    Parameters
    ----------
    indptr, indices : ndarray
        CSR arrays of the rows; entries are positions in `rank_shares`.
    weights : ndarray, empty if all are 1
    rank_shares : ndarray
        For each used source, its rank divided by the sum of its weights.
    fixed : ndarray of shape (n,) or (1,)
        Rank that each target gets independently of edges.
    spread : ndarray of shape (n,) or (1,)
        Its share of the rank of vertices without outgoing edges.
    damping, dangling : float
    ranks : ndarray of shape (n,)
    """
    change = 0.0
    weighted = len(weights) > 0
    each_fixed, each_spread = len(fixed) > 1, len(spread) > 1
    # One iteration of the power method: PageRank = damping * (in-links + share of dangling ranks) +
    # teleport.
    for i in range(len(ranks)):
        total = 0.0
        if weighted:
            for p in range(indptr[i], indptr[i + 1]):
                total += rank_shares[indices[p]] * weights[p]
        else:
            for p in range(indptr[i], indptr[i + 1]):
                total += rank_shares[indices[p]]
        new_rank = damping * (total + dangling * spread[i if each_spread else 0])
        new_rank += fixed[i if each_fixed else 0]
        change += abs(new_rank - ranks[i])
        ranks[i] = new_rank
    return change


@_exact
def update_smallest_labels(indptr: Any, indices: Any, source_labels: Any, labels: Any) -> int:
    """Set labels to the smallest of their own and their neighbours'; return how many changed."""
    changed = 0
    # Connected components: every vertex takes the smallest label around it, until none changes.
    for i in range(len(labels)):
        least = labels[i]
        for p in range(indptr[i], indptr[i + 1]):
            least = min(least, source_labels[indices[p]])
        if least < labels[i]:
            labels[i] = least
            changed += 1
    return changed
