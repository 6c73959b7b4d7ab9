"""Blocks as inspections read them: rows with columns, and a number for each row."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.conversion import as_column, copy_to_host, densify_columns, describe_block
from daskml_dist.errors import InvalidDataError

__all__ = ["column_of", "read_rows", "weights_of"]


def read_rows(X: Any, index: int | None) -> Any:
    """Rows of a block: a frame, or an ndarray."""
    rows = copy_to_host(X)
    if sparse.issparse(rows):
        raise InvalidDataError(
            f"{describe_block(index)}X is sparse, and its columns cannot be changed as such. "
            "Convert it: X.map_blocks(lambda b: b.toarray())."
        )
    return densify_columns(rows) if is_dataframe_like(rows) else np.asarray(rows)


def column_of(values: Any, name: str, index: int, n: int) -> NDArray[Any]:
    """A number or label for each of n rows of a block."""
    found = as_column(values, name=name, index=index)
    if len(found) != n:
        raise InvalidDataError(
            f"{describe_block(index)}X has {n} rows and {name} {len(found)}. Pass the same rows in "
            "each; where chunk sizes are unknown, call .compute_chunk_sizes() on each."
        )
    return found


def weights_of(values: Any, index: int, n: int) -> NDArray[np.float64]:
    """Weights of n rows of a block: 1 where there are none."""
    if values is None or isinstance(values, Real):
        return np.full(n, 1.0 if values is None else float(values))
    return column_of(values, "sample_weight", index, n).astype(np.float64)
