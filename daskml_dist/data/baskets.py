"""Sparse rows of baskets, from a long frame with one entry of a basket per row.

Frequent patterns are mined from a matrix with a row for each basket and a column for each item. In
a long frame, the entries of a basket may be in any rows; `make_baskets` finds all items in one
reduction, shuffles the frame by basket, and makes a CSR matrix of each part.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import delayed
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.dask_internals.expressions import lower_partitions
from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import load_pandas
from daskml_dist.data.keyed.ids import convert_ids, factorize_columns, find_positions, merge_ids
from daskml_dist.data.lazy import is_dask, is_dask_frame
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError, InvalidParameterError


def make_baskets(
    frame: Any, basket: Any, item: Any, client: Any = None
) -> tuple[Any, NDArray[Any]]:
    """Group the entries of each basket, and make a sparse row of them."""
    _check_basket_columns(frame, basket, item)
    rows = frame[[basket, item]]
    # An object that is not a client is refused later by the fit, with its own error.
    with client.as_current() if hasattr(client, "as_current") else nullcontext():
        items = reduce_parts(
            as_collection(rows, numeric=False), partial(_find_items, item), merge_ids
        )
        if not len(items):
            raise InvalidDataError(
                "The frame has no rows. Check the file or the filter that it comes from."
            )
        matrix = partial(_build_baskets, basket, item)
        if not is_dask_frame(rows):
            return matrix(rows, items), items
        # Dask's default shuffle may need a cluster ("p2p") or a disk; "tasks" works on any
        # scheduler. With a cluster, the user's setting is used.
        method = "tasks" if client is None and not _has_client() else None
        # All entries of a basket must be in one partition, where they become one row.
        shuffled = rows.shuffle(on=basket, shuffle_method=method)
        make, delayed_items = delayed(matrix, pure=False), delayed(items, pure=False)
        return [make(part, delayed_items) for part in lower_partitions(shuffled)], items


def _check_basket_columns(frame: Any, basket: Any, item: Any) -> None:
    """Raise if a frame does not have the columns of baskets and items."""
    if not is_dataframe_like(frame):
        raise InvalidDataError(
            f"{type(frame).__name__} is not a dataframe. Give a pandas or Dask dataframe with "
            f"one row per entry: columns {basket!r} and {item!r}."
        )
    if missing := [name for name in (basket, item) if name not in frame.columns]:
        raise InvalidDataError(
            f"The frame has no column {' and '.join(map(repr, missing))}; it has "
            f"{list(frame.columns)}. Name the columns that hold the baskets and the items."
        )
    if basket == item:
        raise InvalidParameterError(f"basket and item are both {basket!r}. Name two columns.")


def _has_client() -> bool:
    """Return whether there is a current client, without loading `distributed` to find out."""
    if "distributed" not in sys.modules:
        return False
    from distributed import Client

    try:
        Client.current(allow_global=True)
    except ValueError:
        return False
    return True


def _find_items(item: Any, index: int, part: Any, *_: Any) -> NDArray[Any]:
    """Return the sorted distinct items of a part."""
    return factorize_columns([convert_ids(part[item], str(item))])[0]


def _build_baskets(basket: Any, item: Any, part: Any, items: NDArray[Any]) -> Any:
    """Return a CSR matrix of the baskets of a part, which holds all entries of each."""
    baskets, (rows,) = factorize_columns([convert_ids(part[basket], str(basket))])
    columns = find_positions(items, convert_ids(part[item], str(item)))
    # An item that occurs several times in a basket is one entry: sums of bools are bools.
    entries = np.ones(len(rows), np.bool_), (rows, columns)
    return sparse.csr_matrix(entries, shape=(len(baskets), len(items)))


def mark_known(X: Any) -> Any:
    """Return baskets with two columns per item: "is present" of all items, then "is known"."""
    if hasattr(getattr(X, "_meta", X), "tocsr"):
        raise InvalidDataError(
            "X is sparse, and entries that are not stored count as zero. Leave null_values out, "
            "or give dense rows: X.toarray()."
        )
    if is_dask_frame(X):
        mark = delayed(_mark_block, pure=False)
        return [mark(part) for part in lower_partitions(X)]
    if not is_dask(X):
        return _mark_block(X if hasattr(X, "shape") else np.asarray(X))
    _check_table(X)
    X = X.rechunk({1: -1})
    chunks = X.chunks[0], (2 * X.shape[1],)
    return X.map_blocks(_mark_block, dtype=np.bool_, chunks=chunks, meta=np.empty((0, 0), np.bool_))


def _mark_block(block: Any) -> NDArray[np.bool_]:
    """Return which entries of rows in memory are above zero, and which are not missing."""
    _check_table(block)
    # pandas recognises every kind of missing value in object arrays.
    if not is_dataframe_like(block) and block.dtype.kind == "O":
        block = load_pandas().DataFrame(block)
    try:
        if is_dataframe_like(block):
            values = block.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            values = block.astype(np.float64, copy=False)
    except (ValueError, TypeError) as error:
        raise InvalidDataError(
            f"X holds values that are not numbers ({error}). An entry tells whether an item is "
            "in a basket: give 0, 1, or NaN for unknown."
        ) from error
    if (values < 0).any() or np.isinf(values).any():
        raise InvalidDataError(
            "X holds entries below zero or infinite. An entry tells whether, or how much of, an "
            "item is in a basket: make it zero or more, or NaN for unknown."
        )
    # Two columns per item: present (and known), and known.
    is_known = ~np.isnan(values)
    return np.hstack([is_known & (values != 0), is_known])


def _check_table(X: Any) -> None:
    """Raise if rows are not two-dimensional."""
    if X.ndim != 2:
        raise InvalidDataError(
            f"X has {X.ndim} dimensions. Give one row per basket and one column per item."
        )
