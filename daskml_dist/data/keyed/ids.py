"""Ids as a user gives them, as numbers: sorted distinct ids, and positions among them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.containers import load_pandas
from daskml_dist.errors import InvalidDataError

__all__ = ["Places", "as_ids", "check_one_kind", "factorised", "merged", "positions"]

Array = NDArray[Any]

#: Integers in a range of at most so many times as many numbers are looked up in a table.
_SPREAD = 8
#: Kinds of objects that can be sorted.
_SORTED = ("string", "integer", "bytes", "boolean", "empty")
#: And of those that are times.
_TIMES = ("datetime", "datetime64", "date")
#: Integers up to which float64 holds all.
_EXACT = 2**53


def as_ids(values: Any, name: str) -> Array:
    """A column of ids as an array.

    Raises
    ------
    InvalidDataError
        An id is missing, or they are of several types.
    """
    array = np.asarray(values)
    if array.dtype.kind == "T":
        array = array.astype(object)
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
        if kind in _TIMES:
            # Those of a zone are told from others' by what time it is in Greenwich.
            return np.asarray(pandas.to_datetime(array, utc=True).tz_localize(None))
        if kind not in _SORTED:
            raise InvalidDataError(
                f"Column {name!r} holds ids of several types ({kind}), which have no order. Make "
                f"them one type: frame[{name!r}].astype(str)."
            )
        if kind == "boolean":
            return array.astype(np.uint8)
        if kind == "integer":
            return _integers(array, name)
    return array


def _integers(array: Array, name: str) -> Array:
    """Objects that are integers, as such of 64 bits."""
    for kind in (np.int64, np.uint64):
        with suppress(OverflowError):
            return array.astype(kind)
    raise InvalidDataError(
        f"Column {name!r} holds integers of more than 64 bits. Make them text: "
        f"frame[{name!r}].astype(str)."
    )


def factorised(columns: Sequence[Array]) -> tuple[Array, list[NDArray[np.int32]]]:
    """Sorted distinct ids of some columns together, and the position of each entry's among them."""
    given = [column for column in columns if len(column)]
    if not given:
        return columns[0][:0], [np.empty(0, np.int32) for _ in columns]
    check_one_kind(given)
    if (found := _narrow(given)) is not None:
        return _by_table(columns, *found)
    pandas = load_pandas()
    whole = np.concatenate(given)
    codes, ids = pandas.factorize(whole, sort=True)
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return np.asarray(ids), [part.astype(np.int32) for part in np.split(codes, ends)]


def _narrow(parts: Sequence[Array]) -> tuple[int, int] | None:
    """The smallest of some integers, and how many there are up to the largest, where few."""
    if not all(part.dtype.kind in "iu" for part in parts):
        return None
    low = min(int(part.min()) for part in parts)
    high = max(int(part.max()) for part in parts)
    if high >= 2**63:
        return None
    width = high - low + 1
    return (low, width) if width <= _SPREAD * sum(map(len, parts)) + 2**16 else None


def _seen(parts: Sequence[Array], low: int, width: int) -> NDArray[np.bool_]:
    seen = np.zeros(width, np.bool_)
    for part in parts:
        seen[part - low] = True
    return seen


def _by_table(
    columns: Sequence[Array], low: int, width: int
) -> tuple[Array, list[NDArray[np.int32]]]:
    seen = _seen(columns, low, width)
    ids = np.flatnonzero(seen) + low
    position = np.cumsum(seen, dtype=np.int32)
    position -= 1
    dtype = np.result_type(*columns)
    return ids.astype(dtype), [position[column - low] for column in columns]


def merged(parts: Sequence[Array]) -> Array:
    """Sorted distinct ids of all parts, each of which is so itself."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else parts[0]
    check_one_kind(filled)
    if (found := _narrow(filled)) is not None:
        low = found[0]
        return (np.flatnonzero(_seen(filled, *found)) + low).astype(np.result_type(*filled))
    whole = np.concatenate(filled)
    if whole.dtype.kind != "O":
        return np.unique(whole)
    return np.sort(np.asarray(load_pandas().unique(whole)))


def check_one_kind(parts: Sequence[Array]) -> None:
    """Check that ids of all parts can be compared.

    Raises
    ------
    InvalidDataError
        Some are numbers, others text; or numbers of several types, which no one type holds.
    """
    kinds = {"number" if part.dtype.kind in "iuf" else _kind(part) for part in parts}
    if len(kinds) > 1:
        raise InvalidDataError(
            f"Ids are of several types ({', '.join(sorted(kinds))}), which have no order. Make "
            "them one type, such as frame.astype({column: str})."
        )
    whole = [part for part in parts if part.dtype.kind in "iu" and len(part)]
    if kinds == {"number"} and np.result_type(*parts).kind == "f":
        if any(int(part.max()) > _EXACT or int(part.min()) < -_EXACT for part in whole):
            raise InvalidDataError(
                "Some ids are integers above 2**53, and others are of another type of numbers: "
                "different ones would become the same. Make all of one type, such as "
                "frame.astype({column: 'int64'})."
            )


def _kind(part: Array) -> str:
    if part.dtype.kind != "O":
        return {"S": "bytes", "U": "str", "M": "datetime"}.get(part.dtype.kind, part.dtype.name)
    return type(part[0]).__name__


class Places:
    """Positions in a table of sorted distinct ids, of one set of ids after another.

    Parameters
    ----------
    table : ndarray of shape (n,)
    """

    def __init__(self, table: Array) -> None:
        self._table = table
        self._low = 0
        self._place: NDArray[np.int32] | None = None
        if len(table) and (found := _narrow([table])) is not None and len(table) < 2**31:
            self._low, width = found
            self._place = np.full(width, -1, np.int32)
            self._place[table - self._low] = np.arange(len(table), dtype=np.int32)

    def __call__(self, ids: Array) -> NDArray[np.int32]:
        """Position of each id, all of which the table holds."""
        if self._place is not None and ids.dtype.kind in "iu":
            found: NDArray[np.int32] = self._place[ids - self._low]
            return found
        return positions(self._table, ids).astype(np.int32)


def positions(table: Array, ids: Array) -> NDArray[np.int64]:
    """Position of each id in a table of sorted distinct ids; -1 where it holds none such."""
    if not len(table) or not len(ids):
        return np.full(len(ids), -1)
    if table.dtype.kind == "O" or ids.dtype.kind == "O":
        found = load_pandas().Index(table).get_indexer(load_pandas().Index(ids))
        return np.asarray(found, np.int64)
    at = np.minimum(np.searchsorted(table, ids), len(table) - 1)
    return np.where(table[at] == ids, at, -1)
