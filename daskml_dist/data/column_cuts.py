"""Rows cut along their columns, for fits whose lanes hold some columns of all rows each."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like

from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.errors import InvalidDataError, InvalidParameterError

__all__ = ["in_columns"]

#: A cut moves to the edge of a chunk that is nearer than this share of a part.
_SNAP = 0.25


def in_columns(collection: Collection, n_parts: int) -> Collection:
    """Cut rows along their columns; y and the weights go with each part.

    Chunks of a Dask Array which hold what a part is to hold stay as they are, and where they are.

    Parameters
    ----------
    collection : Collection
    n_parts : int

    Returns
    -------
    Collection
        All parts of the first columns, then those of the next, and so on.

    Raises
    ------
    InvalidParameterError
        There are fewer columns than parts.
    InvalidDataError
        X, y or sample_weight is a Dask dataframe, or X has an unknown number of columns.
    """
    X, y, weight = collection.inputs
    n_features = _width(collection)
    if n_parts > n_features:
        raise InvalidParameterError(
            f'shard="features" with {n_parts} lanes, and X has {n_features} columns. Use '
            f'Run(n_lanes={n_features}) at most, or shard="rows".'
        )
    bounds = _bounds(X, n_features, n_parts)
    parts = [
        as_collection(
            _between(X, start, stop),
            y,
            weight,
            multi_output=collection.multi_output,
            classification=collection.classification,
        ).parts
        for start, stop in pairwise(bounds)
    ]
    return replace(collection, parts=[part for same in parts for part in same], columns=bounds)


def _width(collection: Collection) -> int:
    """Columns of X."""
    if any(map(is_dask_frame, collection.inputs)):
        raise InvalidDataError(
            'shard="features" cuts X along its columns, and may read a dataframe again for each '
            "part, in another order of rows. Give Dask Arrays: X.to_dask_array(lengths=True), and "
            "y likewise."
        )
    n_features = collection.n_features
    if n_features is None or len(collection.row_shape or ()) != 1:
        raise InvalidDataError(
            'shard="features" needs to know the number of columns of X, which is '
            f"{collection.row_shape}. Give a Dask Array that knows it, such as "
            "da.from_delayed(block, shape=(n_rows, n_columns), dtype=float)."
        )
    return n_features


def _bounds(X: Any, n_features: int, n_parts: int) -> tuple[int, ...]:
    """First column of each part, and the number of columns; at edges of chunks that are near."""
    even = [n_features * part // n_parts for part in range(n_parts + 1)]
    if not isinstance(X, da.Array):
        return tuple(even)
    edges = np.cumsum([0, *X.chunks[1]])
    near = [int(edges[np.abs(edges - cut).argmin()]) for cut in even]
    most = _SNAP * n_features / n_parts
    return tuple(
        edge if abs(edge - cut) <= most else cut for cut, edge in zip(even, near, strict=True)
    )


def _between(X: Any, start: int, stop: int) -> Any:
    """Some neighbouring columns of X."""
    if is_dataframe_like(X):
        return X.iloc[:, start:stop]
    if isinstance(X, da.Array):
        edges = np.cumsum([0, *X.chunks[1]])
        first, last = np.searchsorted(edges, [start, stop]).tolist()
        if edges[first] == start and edges[last] == stop:
            return X.blocks[:, first:last]
        return X[:, start:stop]
    return (X.tocsr() if hasattr(X, "tocsr") else X)[:, start:stop]
