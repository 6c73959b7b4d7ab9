"""Dask collections before they are cut: what they are, and how their blocks are kept apart."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Alias
from dask.base import is_dask_collection
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.utils import is_dataframe_like, is_series_like
from scipy import sparse

from daskml_dist.errors import InvalidDataError

__all__ = ["is_dask", "is_dask_frame", "is_from_delayed", "join_column_chunks", "join_delayed"]

logger = logging.getLogger(__name__)

#: Beginning of the name of an array that `join_delayed` made.
_DELAYED_PREFIX = "blocks-of-delayed-"


def is_dask(value: Any) -> bool:
    """Whether a value is a lazy Dask collection, or a list of delayed blocks.

    Parameters
    ----------
    value : object

    Returns
    -------
    bool
    """
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], Delayed)
    return bool(is_dask_collection(value))


def is_dask_frame(value: Any) -> bool:
    """Whether a value is a Dask dataframe or series, told without importing dask.dataframe.

    Parameters
    ----------
    value : object

    Returns
    -------
    bool
    """
    return is_dask(value) and (is_dataframe_like(value) or is_series_like(value))


def join_delayed(values: Any, ndim: int, n_columns: float = np.nan) -> Any:
    """A list of `dask.delayed.Delayed` blocks as one dask Array of unknown chunk sizes.

    Parameters
    ----------
    values : list of Delayed, Delayed, or anything else
        The blocks may be of any kind that `make_block` takes.
    ndim : {1, 2}
    n_columns : int, optional
        Where it is known.

    Returns
    -------
    dask Array, or `values` itself where it is nothing of the kind
    """
    blocks = [values] if isinstance(values, Delayed) else values
    if not (isinstance(blocks, list | tuple) and any(isinstance(b, Delayed) for b in blocks)):
        return values
    if not all(isinstance(block, Delayed) for block in blocks):
        raise InvalidDataError(
            "A list of blocks holds delayed and other objects. Wrap each in dask.delayed(...)."
        )
    name = f"{_DELAYED_PREFIX}{uuid.uuid4().hex}"
    inner = (0,) * (ndim - 1)
    graph: dict[Any, Any] = {
        (name, i, *inner): Alias((name, i, *inner), block.key) for i, block in enumerate(blocks)
    }
    layers = HighLevelGraph.from_collections(name, graph, dependencies=blocks)
    chunks = ((np.nan,) * len(blocks), (n_columns,))[:ndim]
    # The dtype is unknown, and nobody asks for it before a block is made.
    return da.Array(layers, name, chunks, meta=np.empty((0,) * ndim))


def is_from_delayed(array: da.Array) -> bool:
    """Return whether `join_delayed` made an array, whose dtype is a guess that no user told."""
    return str(array.name).startswith(_DELAYED_PREFIX)


def join_column_chunks(X: Any) -> Any:
    """Join the column chunks of a Dask Array, so that a chunk holds whole rows.

    Parameters
    ----------
    X : dask Array of shape (n_rows, ...), or anything else, which stays as it is
        With NumPy or scipy.sparse chunks, of known or unknown row sizes.

    Returns
    -------
    dask Array
        `X` itself where a chunk holds whole rows.
    """
    if not isinstance(X, da.Array) or set(X.numblocks[1:]) <= {1}:
        return X
    logger.info(
        "X has %d column chunks, which are joined; X.rechunk({1: -1}) and persist() beforehand "
        "spare every fit this copy.",
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
    try:
        whole: da.Array = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    except ValueError as error:
        raise InvalidDataError(
            "X has several chunks of unknown sizes along a row, which cannot be joined. Call "
            "X.compute_chunk_sizes() first."
        ) from error
    return whole


def _concatenate_columns(chunks: list[Any]) -> Any:
    if any(sparse.issparse(chunk) for chunk in chunks):
        return sparse.hstack(chunks, format="csr")
    return np.hstack(chunks)
