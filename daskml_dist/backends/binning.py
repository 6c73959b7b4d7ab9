"""Values of rows put into bins: by NumPy where they are few, else by a compiled loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Values up to which NumPy's searches take a few milliseconds, and the loop most of a second to
#: compile in the first fit on a machine. Both give the same bins.
_MAX_VALUES_IN_NUMPY = 1 << 16


def put_in_bins(
    X: NDArray[Any], table: NDArray[np.float64], n_edges: NDArray[Any],
    categorical: NDArray[np.bool_], missing: int, rows: NDArray[np.uint8],
    columns: NDArray[np.uint8], seen: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Put the values of some rows into bins; the parameters are those of
    `tree_predict.write_bins`.
    """
    if X.size > _MAX_VALUES_IN_NUMPY:
        from daskml_dist.backends.tree_predict import write_bins

        write_bins(X, table, n_edges, categorical, missing, rows, columns, seen)
        return
    for j, edges in enumerate(table):
        own, values = edges[: n_edges[j]], X[:, j].astype(np.float64)
        # The bin of a value is the number of edges below it.
        bins = np.searchsorted(own, values)
        is_missing = np.isnan(values)
        if categorical[j]:
            known = bins < len(own)
            known[known] = own[bins[known]] == values[known]
            is_missing |= ~known
        bins[is_missing] = missing
        if is_missing.any() or (bins == missing).any():
            seen[j] = 1
        rows[:, j] = columns[j] = bins
