"""Queries of rows, as ids, sizes or column names, joined to the targets of the rows.

Ranking is within queries, but a fit takes rows, targets and weights. So the query of each row
becomes two more columns of its target (`models.query_codes`), by a lazy function of each block; the
rows of a query may be in any blocks.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray

from daskml_dist.data.blocks import check_length
from daskml_dist.data.collection import count_blocks, find_length
from daskml_dist.data.conversion import (
    as_column,
    check_no_missing,
    convert_foreign,
    convert_to_numbers,
    describe_block,
)
from daskml_dist.data.lazy import is_dask, join_delayed
from daskml_dist.errors import InvalidDataError, InvalidTypeError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.models.query_codes import N_COLUMNS, attach_codes

#: Column names of a frame of targets with their queries.
_COLUMNS = ("label", "query_upper", "query_lower")
#: Integers up to here are exact in float64.
_MAX_WHOLE = 2.0**53
#: Queries given by sizes get negative codes from here on, so that they differ from the queries of a
#: set with small integer ids.
_FIRST_OF_SIZES = -(2**62)
#: Types of numeric ids among objects.
_NUMERIC_TYPES: Any = (Real, Decimal, np.bool_)
#: Raises an error for labels that cannot be ranked.
CheckLabels = Callable[[NDArray[np.float64]], None]


def encode_query_ids(ids: Any, index: int | None = None) -> NDArray[np.int64]:
    """Return the ids of a block's queries as 64-bit codes: integers are their own codes.

    Texts and other objects are hashed (64 bits of BLAKE2 of their text).
    """
    values = as_column(ids, name="group", index=index)
    check_no_missing(values, "group", index)
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    if values.dtype.kind in "mM":
        return values.view(np.int64)
    if values.dtype.kind == "f":
        numbers = values.astype(np.float64)
        if not np.isfinite(numbers).all():
            raise InvalidDataError(
                f"{describe_block(index)}Input group contains NaN or infinity (row "
                f"{int((~np.isfinite(numbers)).argmax())} of the block). Each row needs a query "
                "id: drop such rows, or give them one."
            )
        # Whole floats denote the same queries as integers of another dtype.
        is_whole = (numbers == np.trunc(numbers)) & (np.abs(numbers) < _MAX_WHOLE)
        bits = (numbers + 0.0).view(np.int64)
        return np.where(is_whole, np.where(is_whole, numbers, 0.0).astype(np.int64), bits)
    if values.dtype.kind == "O":
        # By value, not by text: another block of the column may hold only integers.
        try:
            codes = {value: _encode_id(value) for value in set(values.tolist())}
        except TypeError as error:  # for example, lists
            raise InvalidTypeError(
                f"{describe_block(index)}group holds objects that cannot be ids: {error}. Give "
                "one number, string or date per row."
            ) from error
        return np.array([codes[value] for value in values.tolist()], np.int64)
    distinct, places = np.unique(values.astype(str), return_inverse=True)
    return np.array([_hash_text(text) for text in distinct.tolist()], np.int64)[places]


def _encode_id(value: Any) -> int:
    """Return the code of an id in a column of mixed types."""
    if isinstance(value, _NUMERIC_TYPES) and math.isfinite(value):
        number = int(value)
        if number != value:
            return int(np.float64(value).view(np.int64))
        # Unsigned 64-bit integers get the same code as in an unsigned array.
        if -(2**63) <= number < 2**64:
            return number - 2**64 if number >= 2**63 else number
    return _hash_text(str(value))


def _hash_text(text: str) -> int:
    """Return a 64-bit hash of a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, sys.byteorder, signed=True)


def take_group_column(X: Any, group: Any, default: str | None) -> tuple[Any, Any]:
    """Return X without its column of queries, and the queries.

    `group` is a name, values or None; if None, the column named `default` is used if present.
    """
    X = join_delayed(convert_foreign(X), 2)
    is_named = isinstance(group, str)
    name = group if is_named else default
    has_column = is_dataframe_like(X) and name is not None and name in X.columns
    if group is not None and not is_named:
        # The column with this name is not a feature, even if queries are given separately.
        return (X.drop(columns=[name]) if has_column else X), join_delayed(
            convert_foreign(group), 1
        )
    if has_column:
        return X.drop(columns=[name]), X[name]
    if is_named and is_dataframe_like(X):
        raise InvalidDataError(
            f"group={name!r} names no column of X: its columns are {list(X.columns)}. Name a "
            f"column, or pass the queries themselves.{suggest_nearest(name, X.columns)}"
        )
    raise InvalidDataError(
        "Ranking needs to know which rows belong to one query: fit(X, y, group=...) takes the "
        "name of a dataframe column, one id per row, or the sizes of queries whose rows are "
        f"consecutive. A dataframe column named {default!r} is used by default."
    )


def resolve_sizes(group: Any, n_rows: int | None, weight: Any, set_index: int) -> tuple[Any, Any]:
    """Convert query sizes to ids of rows, and weights of queries to weights of rows.

    Sizes are recognised by being fewer than the rows; then there may be as many weights as sizes.
    `set_index` distinguishes sets of rows. Values given by row are unchanged.
    """
    if is_dask(group) or n_rows is None:
        return group, weight
    sizes = np.asarray(group)
    if sizes.ndim != 1 or len(sizes) == n_rows:
        return group, weight
    are_counts = sizes.dtype.kind in "iu" and not (sizes < 0).any()
    if not are_counts or int(sizes.sum()) != n_rows:
        detail = f"here it is {sizes.sum()}" if are_counts else f"here they are of {sizes.dtype}"
        raise InvalidDataError(
            f"group has {len(sizes)} values for {n_rows} rows, so it holds the sizes of queries: "
            f"whole numbers from 0 whose sum is {n_rows}; {detail}. Give the sizes of queries with "
            "consecutive rows, or one id per row, in any order."
        )
    ids = np.repeat(_FIRST_OF_SIZES + (set_index << 40) + np.arange(len(sizes)), sizes)
    n_weights = None if weight is None else find_length(weight)
    if n_weights == len(sizes) and not is_dask(weight):
        weight = np.repeat(np.asarray(weight), sizes)
    return ids, weight


def join_queries(y: Any, group: Any, check: CheckLabels) -> Any:
    """Return targets with the codes of their queries, of shape (n_rows, 3), lazy if either is.

    Parameters
    ----------
    y, group : array-like, dask Array or Series of shape (n_rows,)
        In memory, or Dask Arrays or Series with the same blocks.
    check : callable
        Raises an error for labels that cannot be ranked.
    """
    if not is_dask(y) and not is_dask(group):
        targets = _join_block(y, group, check)
        return _as_frame(targets, y) if hasattr(y, "iloc") else targets
    if is_dask(y) and is_dask(group) and is_series_like(y) and is_series_like(group):
        # Columns of one frame: both result from the same reads and shuffles.
        import pandas as pd

        meta = pd.DataFrame(dict.fromkeys(_COLUMNS, np.empty(0)), index=y._meta.index)
        return y.map_partitions(
            partial(_join_partition, check=check), group, meta=meta, align_dataframes=False
        )
    arrays = _align_chunks(*map(_as_lazy_or_array, (y, group), ("y", "group")))
    joined: Any = da.map_blocks(
        _join_chunk, *arrays, check, dtype=np.float64, new_axis=1,
        chunks=(arrays[0].chunks[0], (N_COLUMNS,)), meta=np.empty((0, N_COLUMNS)),
    )  # fmt: skip
    return joined


def _as_lazy_or_array(values: Any, name: str) -> Any:
    """Return a Dask Array, or values in memory as an array."""
    if not is_dask(values):
        # One-dimensional, as chunks are: words, or numbers in a table of one column.
        return as_column(values, name=name)
    if isinstance(values, da.Array):
        return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    column = values if is_series_like(values) else values[values.columns[0]]
    return column.to_dask_array()


def _align_chunks(y: Any, group: Any) -> tuple[da.Array, da.Array]:
    """Return targets and queries as Dask Arrays with the same chunks."""
    lazy = y if is_dask(y) else group
    chunks = lazy.chunks[0]
    sizes_known = not np.isnan(chunks).any()
    # Both lazy: chunks of known sizes are made equal; else blocks are paired by their number.
    if is_dask(y) and is_dask(group):
        others_known = not np.isnan(group.chunks[0]).any()
        if count_blocks(y) != count_blocks(group) and not (sizes_known and others_known):
            raise InvalidDataError(
                f"y has {count_blocks(y)} blocks and group {count_blocks(group)}, of unknown "
                "sizes. Call compute_chunk_sizes() on both, or take both from one dataframe."
            )
        if sizes_known and others_known:
            if sum(chunks) != sum(group.chunks[0]):
                raise InvalidDataError(
                    f"y has {sum(chunks)} rows and group has {sum(group.chunks[0])}. Give group "
                    "one id per row."
                )
            return y, group.rechunk((chunks,))
        return _forget_sizes(y), _forget_sizes(group)
    if not sizes_known:
        raise InvalidDataError(
            "One of y and group is in memory, and the sizes of the chunks of the other are not "
            "known. Call compute_chunk_sizes() on it, or name a column: group='qid'."
        )
    # One in memory: it is cut into the chunks of the other.
    in_memory = group if is_dask(y) else y
    if len(in_memory) != sum(chunks):
        raise InvalidDataError(
            f"y and group have {len(in_memory)} and {sum(chunks)} rows. Give group one id per row."
        )
    cut_array = da.from_array(in_memory, (chunks,))
    return (y, cut_array) if is_dask(y) else (cut_array, group)


def _forget_sizes(array: da.Array) -> da.Array:
    """Return a Dask Array with the same blocks, but unknown sizes."""
    unknown = ((np.nan,) * array.numblocks[0],)
    return da.Array(array.dask, array.name, unknown, dtype=array.dtype)


def _join_chunk(y: Any, group: Any, check: CheckLabels) -> NDArray[np.float64]:
    """Return the joined columns of a block; an empty array when Dask infers the dtype."""
    return _join_block(y, group, check)


def _join_partition(y: Any, group: Any, check: CheckLabels) -> Any:
    """Return the joined columns of a partition."""
    return _as_frame(_join_block(y, group, check), y)


def _as_frame(joined: NDArray[np.float64], y: Any) -> Any:
    """Return joined columns as a frame with the index of `y`."""
    import pandas as pd

    return pd.DataFrame(joined, columns=list(_COLUMNS), index=y.index)


def _join_block(y: Any, group: Any, check: CheckLabels) -> NDArray[np.float64]:
    """Return labels with the codes of their queries."""
    labels = as_column(y, name="y")
    check_no_missing(labels, "y")
    labels = convert_to_numbers(labels, "float64", "y", None)
    codes = encode_query_ids(group)
    check_length(len(labels), codes, "group", 0)
    check(labels)
    return attach_codes(labels, codes)
