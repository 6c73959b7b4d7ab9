"""Dask collections before they become blocks: their kinds, their chunks, the order of their rows.

`align_partitions` cuts several collections so that their blocks hold the same rows in the same
order, or raises an error that explains why that is impossible.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.utils import is_dataframe_like, is_series_like
from scipy import sparse

from daskml_dist.dask_internals.expressions import (
    lower_all_partitions,
    lower_or_fall_back,
    lower_partitions,
    lower_separately,
    lower_together,
    split_partitions,
)
from daskml_dist.dask_internals.task_graphs import Alias, find_shuffles
from daskml_dist.errors import InvalidDataError

logger = logging.getLogger(__name__)

#: Name prefix of arrays made by `join_delayed`.
_DELAYED_PREFIX = "blocks-of-delayed-"


def is_dask(value: Any) -> bool:
    """Return whether a value is a lazy Dask collection, or a list of delayed blocks."""
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], Delayed)
    return bool(is_dask_collection(value))


def is_dask_frame(value: Any) -> bool:
    """Return whether a value is a Dask dataframe or series, without importing dask.dataframe."""
    return is_dask(value) and (is_dataframe_like(value) or is_series_like(value))


def join_delayed(values: Any, ndim: int, n_columns: float = np.nan) -> Any:
    """Return a list of `dask.delayed.Delayed` blocks as one Dask Array of unknown chunk sizes."""
    if isinstance(values, da.Array) and is_from_delayed(values) and values.ndim == ndim == 2:
        # Joined before by a caller that did not know the number of columns.
        if np.isnan(values.shape[1]) and not np.isnan(n_columns):
            sizes = (values.chunks[0], (n_columns,))
            return da.Array(values.dask, values.name, sizes, meta=values._meta)
    # A single delayed object is one block.
    blocks = [values] if isinstance(values, Delayed) else values
    if not (isinstance(blocks, list | tuple) and any(isinstance(b, Delayed) for b in blocks)):
        return values
    if not all(isinstance(block, Delayed) for block in blocks):
        raise InvalidDataError(
            "A list of blocks holds delayed and other objects. Wrap each in dask.delayed(...)."
        )
    name = f"{_DELAYED_PREFIX}{uuid.uuid4().hex}"
    inner = (0,) * (ndim - 1)
    # Only aliases: the blocks' own tasks stay unchanged.
    graph: dict[Any, Any] = {
        (name, i, *inner): Alias((name, i, *inner), block.key) for i, block in enumerate(blocks)
    }
    layers = HighLevelGraph.from_collections(name, graph, dependencies=blocks)
    chunks = ((np.nan,) * len(blocks), (n_columns,))[:ndim]
    # The dtype is unknown here, and is not used before a block is made.
    return da.Array(layers, name, chunks, meta=np.empty((0,) * ndim))


def is_from_delayed(array: da.Array) -> bool:
    """Return whether `join_delayed` made an array, whose dtype is then only a guess."""
    return str(array.name).startswith(_DELAYED_PREFIX)


def join_column_chunks(X: Any) -> Any:
    """Join the column chunks of a Dask Array, so that a chunk holds whole rows."""
    if not isinstance(X, da.Array) or set(X.numblocks[1:]) <= {1}:
        return X
    logger.info(
        "X has %d column chunks, which every fit has to join: X.rechunk({1: -1}) and persist() "
        "avoid this copy.",
        X.numblocks[1],
    )
    if X.ndim > 2:
        return _rechunk_whole_rows(X)
    # rechunk() cannot concatenate sparse chunks.
    joined: da.Array = da.blockwise(
        _concatenate_columns,
        "ik",
        X,
        "ij",
        new_axes={"k": (X.shape[1],)},
        concatenate=False,
        dtype=X.dtype,
        meta=X._meta,
    )
    return joined


def _rechunk_whole_rows(X: da.Array) -> da.Array:
    """Return an array of more than two dimensions whose chunks hold whole rows."""
    try:
        rechunked: da.Array = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    except ValueError as error:
        raise InvalidDataError(
            "X has several chunks of unknown sizes along a row, which cannot be joined. Call "
            "X.compute_chunk_sizes() first."
        ) from error
    return rechunked


def _concatenate_columns(chunks: list[Any]) -> Any:
    """Return neighbouring column chunks as one."""
    # NumPy would make an object array of sparse chunks.
    if any(sparse.issparse(chunk) for chunk in chunks):
        return sparse.hstack(chunks, format="csr")
    return np.hstack(chunks)


# --- alignment -------------------------------------------------------------------------------


def align_partitions(
    inputs: dict[str, Any], in_memory: Sequence[str] = ()
) -> dict[str, list[Delayed]]:
    """Cut lazy collections so that their blocks hold the same rows in the same order."""
    frames = {name: value for name, value in inputs.items() if is_dask_frame(value)}
    pieces = {name: _split_chunks(value) for name, value in inputs.items() if name not in frames}
    orders = {name: _find_row_order(chunks) for name, chunks in pieces.items()}
    orders.update({name: frozenset() for name in in_memory})
    # The first method reads least; each further one gives up an optimisation that may cause frames
    # to differ.
    for lower in (lower_together, lower_separately, lower_all_partitions):
        exprs = [frame.expr for frame in frames.values()]
        frame_pieces = split_partitions(lower_or_fall_back(lower, exprs)) if frames else []
        pieces.update(zip(frames, frame_pieces, strict=True))
        orders.update({name: _find_row_order(pieces[name]) for name in frames})
        counts = {name: len(pieces[name]) for name in inputs}
        if len(set(counts.values())) == len(set(orders.values())) == 1:
            return pieces
        if not frames:
            break
    if len(set(counts.values())) > 1:
        raise _make_block_count_error(counts)
    raise _make_row_order_error([name for name in inputs if orders[name]])


def has_fixed_row_order(value: Any) -> bool:
    """Return whether a Dask Array, DataFrame or Series always has the same row order."""
    pieces = lower_partitions(value) if is_dask_frame(value) else _split_chunks(value)
    return not _find_row_order(pieces)


def _split_chunks(array: Any) -> list[Delayed]:
    """Return the chunks of a Dask Array as delayed objects."""
    return list(array.to_delayed(optimize_graph=False).ravel())


def _find_row_order(chunks: list[Delayed]) -> frozenset[Any]:
    """Return the shuffles that determine the row order; empty if it is always the same."""
    return find_shuffles(chunks[0].dask, [piece.key for piece in chunks])


def _make_block_count_error(counts: dict[str, int]) -> InvalidDataError:
    """Return the error for inputs whose blocks do not match."""
    block_counts = ", ".join(f"{name} has {n} blocks" for name, n in counts.items())
    return InvalidDataError(
        f"The rows cannot be aligned: {block_counts}, with unknown chunk sizes. Call "
        ".compute_chunk_sizes() on the Dask Array first, or convert a dataframe with "
        ".to_dask_array(lengths=True)."
    )


def _make_row_order_error(names: list[str]) -> InvalidDataError:
    """Return the error for inputs whose rows may be in different orders."""
    return InvalidDataError(
        f"The rows cannot be aligned: {' and '.join(names)} come from a shuffle (shuffle, merge, "
        "sort_values, set_index...) that the other input does not share, and a shuffle does not "
        "keep a fixed order of rows. Pass columns of one Dask DataFrame, or call df = "
        "df.persist() before you take arrays, columns or predictions from it."
    )
