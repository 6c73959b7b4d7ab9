"""Compiled loops over chosen rows of CSR blocks: products, sums, and gradients.

Rows are chosen by their numbers (`rows`), so that a batch needs no copy of its entries. If few
columns are used, `position` maps columns to the rows of compact parameters. Sums are over the rows
in order, and so have the same bits however blocks are split.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from daskml_dist.backends.compiled import compiled_and_kept, compiled_with
from daskml_dist.backends.elementary_functions import ROW_LOSSES
from daskml_dist.backends.intrinsics import prefetch


# A placeholder: `compiled_with` compiles the loop with a loss's function in its place.
def _evaluate_row(y: Any, raw: Any, parameters: Any) -> Any: ...


def _add_row_gradients(
    indptr: Any,
    indices: Any,
    data: Any,
    rows: Any,
    position: Any,
    y: Any,
    weight: Any,
    w: Any,
    out: Any,
    intercept: Any,
    parameters: Any,
) -> Any:
    """Add the gradient of rows to `out`; return the sum of their losses.

    Parameters
    ----------
    indptr, indices, data
        Arrays of the block.
    rows : (n,) integers
    position : (n_features,) integers
        Row in `w` and `out` of each column that the rows use.
    y, weight : (n,) floats
        Empty: all weights are 1.
    w, out : (n_touched,) floats
        The intercept, if any, is the last.
    intercept : bool
        Whether there is one.
    parameters : tuple of float
        Parameters of the loss.
    """
    number, last = data.dtype.type, len(w) - 1
    total, slopes = 0.0, 0.0
    for i in range(len(rows)):
        row = rows[i]
        # Unsigned indices: for signed ones, numba adds a test for negative values.
        first, stop = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        raw, other = number(0), number(0)
        k = first
        # Two sums: an addition takes several cycles, and two independent sums overlap.
        while k + np.uint64(1) < stop:
            raw += data[k] * w[np.uint64(position[np.uint64(indices[k])])]
            other += (
                data[k + np.uint64(1)]
                * w[np.uint64(position[np.uint64(indices[k + np.uint64(1)])])]
            )
            k += np.uint64(2)
        if k < stop:
            raw += data[k] * w[np.uint64(position[np.uint64(indices[k])])]
        raw += other
        if intercept:
            raw += w[last]
        value, slope = _evaluate_row(y[i], raw, parameters)
        if len(weight):
            value, slope = value * weight[i], slope * weight[i]
        total += value
        slopes += slope  # in float64, for the intercept
        # The second pass over the row's entries, which are still in the L1 cache: the gradient of
        # loss(x'w) is slope * x.
        g = number(slope)
        k = first
        while k < stop:
            out[np.uint64(position[np.uint64(indices[k])])] += data[k] * g
            k += np.uint64(1)
    if intercept:
        out[last] += number(slopes)
    return total


def compile_row_gradients(kernel: str) -> Any:
    """Return the gradient loop for a kernel's loss; `compiled_with` caches it."""
    return compiled_with(_add_row_gradients, _evaluate_row=ROW_LOSSES[kernel])


F = TypeVar("F", bound=Callable[..., Any])

#: Rows whose entries are prefetched ahead. Rows of a batch are scattered in a block, so the
#: hardware prefetcher cannot predict them.
_ROWS_AHEAD = 8


def _compile_gradient(function: F) -> F:
    """Decorate a loop to be compiled at its first call, kept on disk, and run without the GIL."""
    return compiled_and_kept(nogil=True)(function)


@_compile_gradient
def multiply_rows(indptr: Any, indices: Any, data: Any, rows: Any, w: Any, out: Any) -> None:
    """Write ``out[i] += X[rows[i]] @ w``."""
    for i in range(len(rows)):
        row = rows[i]
        # A view of a row: vector instructions need its length.
        out_row = out[i]
        for k in range(indptr[row], indptr[row + 1]):
            value, of_column = data[k], w[indices[k]]
            for c in range(len(out_row)):
                out_row[c] += value * of_column[c]


@_compile_gradient
def multiply_rows_at(
    indptr: Any, indices: Any, data: Any, rows: Any, position: Any, w: Any, out: Any
) -> None:
    """Write the same as `multiply_rows`, where column j of X is row ``position[j]`` of w."""
    width = w.shape[1]
    for i in range(len(rows)):
        row = rows[i]
        # A single output is summed in a register instead of in memory.
        if width == 1:
            total = out[i, 0]
            for k in range(indptr[row], indptr[row + 1]):
                total += data[k] * w[position[indices[k]], 0]
            out[i, 0] = total
            continue
        for k in range(indptr[row], indptr[row + 1]):
            w_row = position[indices[k]]
            for c in range(width):
                out[i, c] += data[k] * w[w_row, c]


@_compile_gradient
def add_transposed_product(
    indptr: Any, indices: Any, data: Any, rows: Any, g: Any, out: Any
) -> None:
    """Add ``X[rows].T @ g`` to `out`."""
    for i in range(len(rows)):
        row = rows[i]
        if g.shape[1] == 1:
            for k in range(indptr[row], indptr[row + 1]):
                out[indices[k], 0] += data[k] * g[i, 0]
            continue
        of_row = g[i]
        for k in range(indptr[row], indptr[row + 1]):
            value, out_row = data[k], out[indices[k]]
            for c in range(len(of_row)):
                out_row[c] += value * of_row[c]


@_compile_gradient
def add_transposed_product_at(
    indptr: Any, indices: Any, data: Any, rows: Any, position: Any, g: Any, out: Any
) -> None:
    """Add ``X[rows].T @ g`` where column j of X is row ``position[j]`` of `out`."""
    width = g.shape[1]
    for i in range(len(rows)):
        row = rows[i]
        for k in range(indptr[row], indptr[row + 1]):
            out_row = position[indices[k]]
            for c in range(width):
                out[out_row, c] += data[k] * g[i, c]


@_compile_gradient
def add_weighted_gram(
    indptr: Any, indices: Any, data: Any, rows: Any, weight: Any, out: Any
) -> None:
    """Add ``X[rows].T @ diag(weight) @ X[rows]`` to `out`."""
    # Sparse outer products, row by row: products of all pairs of a row's entries.
    for i in range(len(rows)):
        row = rows[i]
        for a in range(indptr[row], indptr[row + 1]):
            scaled = np.float64(weight[i]) * data[a]
            for b in range(indptr[row], indptr[row + 1]):
                out[indices[a], indices[b]] += scaled * data[b]


@_compile_gradient
def add_sparse_rows(
    indptr: Any, indices: Any, data: Any, rows: Any, target_rows: Any, weight: Any, out: Any
) -> None:
    """Add ``weight[i] * X[rows[i]]`` to ``out[target_rows[i]]``; an empty `weight` is all ones."""
    for i in range(len(rows)):
        row, target_row = rows[i], target_rows[i]
        scale = np.float64(weight[i]) if len(weight) else 1.0
        for k in range(indptr[row], indptr[row + 1]):
            out[target_row, indices[k]] += scale * data[k]


@_compile_gradient
def add_dense_rows(X: Any, target_rows: Any, weight: Any, out: Any) -> None:
    """Add ``weight[i] * X[i]`` of dense rows to ``out[target_rows[i]]``; no `weight`: all ones."""
    for i in range(len(X)):
        scale = np.float64(weight[i]) if len(weight) else 1.0
        row, out_row = X[i], out[target_rows[i]]
        for j in range(len(row)):
            out_row[j] += scale * row[j]


@_compile_gradient
def add_dense_squares(X: Any, target_rows: Any, weight: Any, mean: Any, out: Any) -> None:
    """Add weighted ``(X[i] - mean[r]) ** 2`` of dense rows to ``out[r]``, r = `target_rows[i]`."""
    for i in range(len(X)):
        scale = np.float64(weight[i]) if len(weight) else 1.0
        row, centre, out_row = X[i], mean[target_rows[i]], out[target_rows[i]]
        for j in range(len(row)):
            deviation = row[j] - centre[j]
            out_row[j] += scale * (deviation * deviation)


@_compile_gradient
def add_sparse_squares(
    indptr: Any, indices: Any, data: Any, rows: Any, target_rows: Any, weight: Any, mean: Any,
    out: Any, stored: Any,
) -> None:  # fmt: skip
    """Add ``weight[i] * (x - mean[r]) ** 2`` of stored entries to ``out[r]``, r = `target_rows[i]`.

    The weights of the entries are added to ``stored[target_rows[i]]``.
    """
    for i in range(len(rows)):
        row, target_row = rows[i], target_rows[i]
        scale = np.float64(weight[i]) if len(weight) else 1.0
        for k in range(indptr[row], indptr[row + 1]):
            column = indices[k]
            deviation = data[k] - mean[target_row, column]
            out[target_row, column] += scale * (deviation * deviation)
            stored[target_row, column] += scale


@_compile_gradient
def find_new_columns(indptr: Any, indices: Any, data: Any, rows: Any, is_seen: Any) -> Any:
    """Return the columns of rows that `is_seen` does not mark, in order of appearance; mark them.

    The entries are prefetched as well: the caller reads them next.
    """
    # Bounded by the number of entries and of columns.
    capacity, n_rows = 0, len(rows)
    for i in range(n_rows):
        capacity += indptr[rows[i] + 1] - indptr[rows[i]]
    new_columns = np.empty(min(capacity, len(is_seen)), dtype=np.int64)
    columns, entries = indices.ctypes.data, data.ctypes.data
    n = 0
    for i in range(n_rows):
        # A prefetch for each cache line (64 bytes) of the columns and of the values.
        if i + _ROWS_AHEAD < n_rows:
            first, stop = indptr[rows[i + _ROWS_AHEAD]], indptr[rows[i + _ROWS_AHEAD] + 1]
            for address in range(
                columns + first * indices.itemsize, columns + stop * indices.itemsize, 64
            ):
                prefetch(address)
            for address in range(
                entries + first * data.itemsize, entries + stop * data.itemsize, 64
            ):
                prefetch(address)
        row = rows[i]
        for k in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            column = np.uint64(indices[k])
            if not is_seen[column]:
                is_seen[column] = True
                new_columns[n] = column
                n += 1
    return new_columns[:n]
