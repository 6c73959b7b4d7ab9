"""Reading of blocks whose columns an inspection overwrites, and of their targets and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.conversion import (
    as_column,
    copy_to_host,
    densify_columns,
    describe_block,
    expand_weights,
)
from daskml_dist.errors import InvalidDataError


def read_rows(X: Any, index: int | None) -> Any:
    """Return the rows of a block in host memory, as a DataFrame or an ndarray."""
    rows = copy_to_host(X)
    if sparse.issparse(rows):
        raise InvalidDataError(
            f"{describe_block(index)}X is sparse, so its columns cannot be replaced. Convert it: "
            "X.map_blocks(lambda b: b.toarray())."
        )
    # Sparse columns of a frame are made dense, since values cannot be set in them either.
    return densify_columns(rows) if is_dataframe_like(rows) else np.asarray(rows)


def check_column(values: Any, name: str, index: int, n: int) -> NDArray[Any]:
    """Return a column's `n` numbers or labels in a block of `n` rows, after checks."""
    column = as_column(values, name=name, index=index)
    if len(column) != n:
        raise InvalidDataError(
            f"{describe_block(index)}X has {n} rows and {name} {len(column)}. Pass the same rows "
            "in each; where chunk sizes are unknown, call .compute_chunk_sizes() on each."
        )
    return column


def check_weights(values: Any, index: int, n: int) -> NDArray[np.float64]:
    """Return the weights of a block's `n` rows; 1 if none are given."""
    return check_column(expand_weights(values, n), "sample_weight", index, n).astype(np.float64)
