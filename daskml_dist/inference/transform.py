"""Transforming over collections: a function of a block mapped over blocks, lazily."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from dask.utils import is_dataframe_like, is_series_like
from scipy import sparse

from daskml_dist.data.collection import join_column_chunks, keep_partitions
from daskml_dist.errors import DaskMLDistError, InvalidDataError

__all__ = ["is_lazy", "map_blocks", "sample_rows"]


def is_lazy(X: Any) -> bool:
    """Whether X is a Dask Array, DataFrame, Series or Bag."""
    return bool(is_dask_collection(X))


def map_blocks(function: Callable[[Any], Any], X: Any, meta: Any) -> Any:
    """Apply a function to every block of rows, lazily.

    Parameters
    ----------
    function : callable
        From a block of rows, as the user has it, to as many rows: an array, CSR matrix or
        pandas.DataFrame. Picklable. Not called for empty blocks.
    X : dask Array, DataFrame, Series or Bag
        A dask Array of two dimensions is cut by rows alone.
    meta : ndarray, CSR matrix or pandas.DataFrame
        What the function makes of some rows: tells type, dtype and columns.

    Returns
    -------
    dask Array or DataFrame
        A DataFrame where `meta` is one. Chunk sizes are those of `X`, unknown for all but arrays.

    Raises
    ------
    InvalidDataError
        When computed: the function raised ValueError for a block, which is named.
    """
    empty = meta[:0]
    apply: Any = partial(_apply, function, empty)
    if is_dataframe_like(meta):
        return _as_frame(apply, X, empty)
    if isinstance(X, da.Array):
        rows = join_column_chunks(X) if X.ndim == 2 else X
        chunks = (rows.chunks[0], *((n,) for n in meta.shape[1:]))
        options: dict[str, Any] = {"dtype": meta.dtype, "meta": empty, "chunks": chunks}
        if rows.ndim == 1 and meta.ndim == 2:
            options["new_axis"] = 1
        elif rows.ndim == 2 and meta.ndim == 1:
            options["drop_axis"] = 1
        return rows.map_blocks(apply, **options)
    if is_dataframe_like(X) or is_series_like(X):
        return _frame_to_array(apply, X, empty)
    return _bag_to_array(X.map_partitions(_apply_to_list, apply), empty)


def _as_frame(apply: Callable[..., Any], X: Any, empty: Any) -> Any:
    if is_dataframe_like(X) or is_series_like(X):
        return X.map_partitions(apply, meta=empty, enforce_metadata=False)
    import dask.dataframe as dd

    rows = join_column_chunks(X) if getattr(X, "ndim", 1) == 2 else X
    task = delayed(apply, pure=False)
    pieces = np.ravel(rows.to_delayed(optimize_graph=False))
    return dd.from_delayed([task(piece) for piece in pieces], meta=empty, verify_meta=False)


def _frame_to_array(apply: Callable[..., Any], X: Any, empty: Any) -> da.Array:
    """A chunk for each partition; `map_partitions` may join some, and y would not match."""
    frame = keep_partitions(X)
    name = f"transform-{uuid.uuid4().hex}"
    inner = (0,) * (empty.ndim - 1)
    graph: dict[Any, Any] = {
        (name, i, *inner): (apply, key, [i]) for i, key in enumerate(frame.__dask_keys__())
    }
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[frame])
    chunks = ((np.nan,) * frame.npartitions, *((n,) for n in empty.shape[1:]))
    return da.Array(layers, name, chunks, meta=empty)


def _bag_to_array(bag: Any, empty: Any) -> da.Array:
    shape = (np.nan, *empty.shape[1:])
    pieces = bag.to_delayed(optimize_graph=False)
    blocks = [da.from_delayed(p, shape, meta=empty) for p in pieces]
    joined: da.Array = da.concatenate(blocks, allow_unknown_chunksizes=True)
    return joined


def _apply_to_list(rows: Any, apply: Callable[[Any], Any]) -> Any:
    return apply(list(rows))


def _apply(
    function: Callable[[Any], Any],
    empty: Any,
    rows: Any,
    block_id: Sequence[int] | None = None,
) -> Any:
    """Result of one block; `map_blocks` fills in the block's number."""
    if (rows.shape[0] if hasattr(rows, "shape") else len(rows)) == 0:
        return empty
    try:
        return function(rows)
    except DaskMLDistError:
        raise
    except ValueError as error:
        place = f"Block {block_id[0]}" if block_id else "A block"
        raise InvalidDataError(f"{place} of X: {error}") from error


def sample_rows(X: Any) -> Any:
    """Make one row that looks like those of X, without computing anything.

    Parameters
    ----------
    X : dask Array, DataFrame or Series

    Returns
    -------
    ndarray, CSR matrix, pandas.DataFrame or pandas.Series
        Of one row.
    """
    if not isinstance(X, da.Array):
        return X._meta_nonempty.iloc[:1]
    row = np.ones((1, *X.shape[1:]), dtype=X.dtype)
    return sparse.csr_array(row) if sparse.issparse(X._meta) else row
