"""Ids as a user gives them, as numbers: sorted distinct ids, and positions among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.optional import load_pandas
from daskml_dist.errors import InvalidDataError

__all__ = ["as_ids", "check_one_kind", "factorised", "merged", "positions"]

Array = NDArray[Any]

#: Integers in a range of at most so many times as many numbers are looked up in a table.
_SPREAD = 8
#: Kinds of objects that can be sorted.
_SORTED = ("string", "integer", "bytes", "boolean", "empty")


def as_ids(values: Any, name: str) -> Array:
    """A column of ids as an array.

    Raises
    ------
    InvalidDataError
        An id is missing, or they are of several types.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise InvalidDataError(f"Column {name!r} has the shape {array.shape}. Give one id a row.")
    if array.dtype.kind in "biuSU":
        return array.astype(np.uint8) if array.dtype.kind == "b" else array
    pandas = load_pandas()
    missing = pandas.isna(array)
    if missing.any():
        raise InvalidDataError(
            f"Column {name!r} holds a missing id (NaN or None; {int(missing.sum())} of "
            f"{len(array)} rows). Drop such rows: frame.dropna(subset=[{name!r}])."
        )
    if array.dtype.kind == "f" and np.isinf(array).any():
        raise InvalidDataError(f"Column {name!r} holds an infinite id. Drop such rows.")
    if array.dtype.kind == "O":
        kind = pandas.api.types.infer_dtype(array, skipna=False)
        if kind not in _SORTED:
            raise InvalidDataError(
                f"Column {name!r} holds ids of several types ({kind}), which have no order. Make "
                f"them one type: frame[{name!r}].astype(str)."
            )
        if kind == "integer":
            return array.astype(np.int64)
    return array


def factorised(columns: Sequence[Array]) -> tuple[Array, list[NDArray[np.int32]]]:
    """Sorted distinct ids of some columns together, and the position of each entry's among them."""
    given = [column for column in columns if len(column)]
    if not given:
        return columns[0][:0], [np.empty(0, np.int32) for _ in columns]
    check_one_kind(given)
    n_entries = sum(map(len, given))
    if all(column.dtype.kind in "iu" for column in given):
        low = min(int(column.min()) for column in given)
        width = max(int(column.max()) for column in given) - low + 1
        if width <= _SPREAD * n_entries + 2**16:
            return _by_table(columns, low, width)
    pandas = load_pandas()
    whole = np.concatenate(given)
    codes, ids = pandas.factorize(whole, sort=True)
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return np.asarray(ids), [part.astype(np.int32) for part in np.split(codes, ends)]


def _by_table(
    columns: Sequence[Array], low: int, width: int
) -> tuple[Array, list[NDArray[np.int32]]]:
    seen = np.zeros(width, np.bool_)
    for column in columns:
        seen[column - low] = True
    dtype = np.result_type(*columns)
    ids = np.flatnonzero(seen) + low
    position = np.cumsum(seen, dtype=np.int32)
    position -= 1
    return ids.astype(dtype), [position[column - low] for column in columns]


def merged(parts: Sequence[Array]) -> Array:
    """Sorted distinct ids of all parts, each of which is so itself."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else parts[0]
    check_one_kind(filled)
    whole = np.concatenate(filled)
    if whole.dtype.kind != "O":
        return np.unique(whole)
    return np.sort(np.asarray(load_pandas().unique(whole)))


def check_one_kind(parts: Sequence[Array]) -> None:
    """Check that ids of all parts can be compared.

    Raises
    ------
    InvalidDataError
        Some are numbers, others text.
    """
    kinds = {"number" if part.dtype.kind in "iuf" else _kind(part) for part in parts}
    if len(kinds) > 1:
        raise InvalidDataError(
            f"Ids are of several types ({', '.join(sorted(kinds))}), which have no order. Make "
            "them one type, such as frame.astype({column: str})."
        )


def _kind(part: Array) -> str:
    if part.dtype.kind != "O":
        return {"S": "bytes", "U": "str", "M": "datetime"}.get(part.dtype.kind, part.dtype.name)
    return type(part[0]).__name__


def positions(table: Array, ids: Array) -> NDArray[np.int64]:
    """Position of each id in a table of sorted distinct ids; -1 where it holds none such."""
    if not len(table) or not len(ids):
        return np.full(len(ids), -1)
    if table.dtype.kind == "O" or ids.dtype.kind == "O":
        found = load_pandas().Index(table).get_indexer(load_pandas().Index(ids))
        return np.asarray(found, np.int64)
    at = np.minimum(np.searchsorted(table, ids), len(table) - 1)
    return np.where(table[at] == ids, at, -1)
