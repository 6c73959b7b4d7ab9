"""Values of rows put into bins: by NumPy if there are few, else by a compiled loop.

Rows on a GPU are binned there (`cupy_bins`); this module provides the operations that the host
needs on such rows.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import SparseRows
from daskml_dist.backends.devices import device_memory, get_backend
from daskml_dist.backends.namespace import is_host, namespace

#: Up to this many values NumPy's searches take a few milliseconds, while compiling the loop takes
#: most of a second in the first fit on a machine. Both give the same bins.
_MAX_VALUES_IN_NUMPY = 1 << 16


def put_in_bins(
    X: NDArray[Any], table: NDArray[np.float64], n_edges: NDArray[Any],
    categorical: NDArray[np.bool_], missing: int, rows: NDArray[np.uint8],
    columns: NDArray[np.uint8], has_missing: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Put the values of some rows into bins; see `tree_predict.write_bins` for parameters."""
    if X.size > _MAX_VALUES_IN_NUMPY:
        from daskml_dist.backends.tree_predict import write_bins

        write_bins(X, table, n_edges, categorical, missing, rows, columns, has_missing)
        return
    for j, edges in enumerate(table):
        used_edges, values = edges[: n_edges[j]], X[:, j].astype(np.float64)
        # The bin of a value is the number of edges below it.
        bins = np.searchsorted(used_edges, values)
        is_missing = np.isnan(values)
        if categorical[j]:
            is_known = bins < len(used_edges)
            is_known[is_known] = used_edges[bins[is_known]] == values[is_known]
            is_missing |= ~is_known
        bins[is_missing] = missing
        if is_missing.any() or (bins == missing).any():
            has_missing[j] = 1
        rows[:, j] = columns[j] = bins


def lie_on_device(X: Any) -> bool:
    """Return whether rows of a fit are an array on a GPU."""
    return not is_host(X) and not isinstance(X, SparseRows)


def open_device_bins(bins: Any) -> Any:
    """Return a `cupy_bins.DeviceBins` on the GPU of this process."""
    from daskml_dist.backends.cupy_bins import DeviceBins

    return DeviceBins(bins, get_backend("gpu"))


def take_rows(X: Any, row_mask: NDArray[np.bool_]) -> Any:
    """Return chosen rows on their device; `X` itself if all are chosen."""
    if row_mask.all():
        return X
    if not lie_on_device(X):
        return X[row_mask]
    xp = namespace(X)
    with _guard_memory(X):
        return xp.take(X, xp.asarray(np.flatnonzero(row_mask)), axis=0)


def fetch_rows(X: Any) -> Any:
    """Return rows in host memory."""
    return get_backend("gpu").to_numpy(X) if lie_on_device(X) else X


def find_distinct_values(values: Any) -> NDArray[Any]:
    """Return the sorted distinct values of an array in host memory, computed on its device."""
    if not lie_on_device(values):
        return np.unique(values)
    with _guard_memory(values):
        return np.unique(fetch_rows(namespace(values).unique_values(values)))


def _guard_memory(X: Any) -> AbstractContextManager[None]:
    """Turn out-of-memory errors of the GPU into an error that names the data."""
    return device_memory(
        f"What is taken of {len(X):,} rows before they are put into bins",
        'Use more workers, smaller chunks, or device="cpu", whose trees are the same.',
    )
