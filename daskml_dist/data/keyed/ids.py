"""Ids as given by users, converted to numbers: sorted distinct ids, and positions among them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import load_pandas
from daskml_dist.errors import InvalidDataError

Array = NDArray[Any]

#: Integers are looked up in a table over their range if it is at most this many times as long as
#: the ids: a look-up is one memory read, a binary search about twenty.
_MAX_TABLE_RATIO = 8
#: Kinds of objects that can be sorted, as named by pandas' `infer_dtype`.
_SORTABLE_KINDS = ("string", "integer", "bytes", "boolean", "empty")
#: Kinds of objects that are times, by the same names.
_TIME_KINDS = ("datetime", "datetime64", "date")
#: Largest integer up to which float64 is exact.
_LARGEST_EXACT_FLOAT = 2**53


def convert_ids(values: Any, name: str) -> Array:
    """Return a column of ids as a sortable array."""
    array = np.asarray(values)
    if array.dtype.kind == "T":
        array = array.astype(object)
    if array.ndim != 1:
        raise InvalidDataError(f"Column {name!r} has the shape {array.shape}. Give one id per row.")
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
        if kind in _TIME_KINDS:
            # Times with a time zone are compared as UTC.
            return np.asarray(pandas.to_datetime(array, utc=True).tz_localize(None))
        if kind not in _SORTABLE_KINDS:
            raise InvalidDataError(
                f"Column {name!r} holds ids of several types ({kind}), which cannot be sorted. "
                f"Convert them to one type: frame[{name!r}].astype(str)."
            )
        if kind == "boolean":
            return array.astype(np.uint8)
        if kind == "integer":
            return _convert_integers(array, name)
    return array


def _convert_integers(array: Array, name: str) -> Array:
    """Return integer objects as an array of 64-bit integers."""
    for kind in (np.int64, np.uint64):
        with suppress(OverflowError):
            return array.astype(kind)
    raise InvalidDataError(
        f"Column {name!r} holds integers of more than 64 bits. Convert them to strings: "
        f"frame[{name!r}].astype(str)."
    )


def factorize_columns(columns: Sequence[Array]) -> tuple[Array, list[NDArray[np.int32]]]:
    """Return the sorted distinct ids of several columns, and the position of each entry."""
    filled = [column for column in columns if len(column)]
    if not filled:
        return columns[0][:0], [np.empty(0, np.int32) for _ in columns]
    check_one_kind(filled)
    if (narrow_range := _find_narrow_range(filled)) is not None:
        return _factorize_by_table(columns, *narrow_range)
    pandas = load_pandas()
    all_ids = np.concatenate(filled, dtype=_find_common_dtype(filled), casting="unsafe")
    # pandas hashes ids of any type and sorts only the distinct ones, which are often few.
    codes, ids = pandas.factorize(all_ids, sort=True)
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return np.asarray(ids), [part.astype(np.int32) for part in np.split(codes, ends)]


def _find_narrow_range(id_arrays: Sequence[Array]) -> tuple[int, int] | None:
    """Return the minimum of integers and the width of their range, if it is narrow; else None."""
    if not all(part.dtype.kind in "iu" for part in id_arrays):
        return None
    low = min(int(part.min()) for part in id_arrays)
    high = max(int(part.max()) for part in id_arrays)
    if high >= 2**63:
        return None
    width = high - low + 1
    # A table over the whole range is worth it if not much larger than the ids themselves.
    return (low, width) if width <= _MAX_TABLE_RATIO * sum(map(len, id_arrays)) + 2**16 else None


def _find_common_dtype(id_arrays: Sequence[Array]) -> np.dtype[Any]:
    """Return the dtype of ids of one kind together; integers do not become floats."""
    dtype = np.result_type(*id_arrays)
    # NumPy has no integers for both int64 and uint64; `check_one_kind` admits small ones only.
    are_integers = all(part.dtype.kind in "iu" for part in id_arrays)
    return np.dtype(np.int64) if are_integers and dtype.kind == "f" else dtype


def _mark_seen(id_arrays: Sequence[Array], low: int, width: int) -> NDArray[np.bool_]:
    """Return which numbers of a range occur."""
    occurs = np.zeros(width, np.bool_)
    for part in id_arrays:
        occurs[_subtract_low(part, low)] = True
    return occurs


def _subtract_low(ids: Array, low: int) -> NDArray[np.int64]:
    """Return the distance of integers of a narrow range from its minimum."""
    # In their own dtype int8 would overflow, and unsigned integers have no negative minimum.
    return ids.astype(np.int64, copy=False) - low


def _factorize_by_table(
    columns: Sequence[Array], low: int, width: int
) -> tuple[Array, list[NDArray[np.int32]]]:
    """Return the result of `factorize_columns` for integers in a narrow range, by a table."""
    # A table over the range: marks of occurring values, whose running sum numbers the ids in order.
    occurs = _mark_seen(columns, low, width)
    ids = np.flatnonzero(occurs) + low
    position = np.cumsum(occurs, dtype=np.int32)
    position -= 1
    dtype = _find_common_dtype([column for column in columns if len(column)])
    return ids.astype(dtype), [position[_subtract_low(column, low)] for column in columns]


def merge_ids(id_arrays: Sequence[Array]) -> Array:
    """Return the sorted distinct ids of all parts, which are each sorted and distinct."""
    filled = [part for part in id_arrays if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else id_arrays[0]
    check_one_kind(filled)
    if (narrow_range := _find_narrow_range(filled)) is not None:
        low = narrow_range[0]
        return (np.flatnonzero(_mark_seen(filled, *narrow_range)) + low).astype(
            _find_common_dtype(filled)
        )
    all_ids = np.concatenate(filled, dtype=_find_common_dtype(filled), casting="unsafe")
    if all_ids.dtype.kind != "O":
        return np.unique(all_ids)
    return np.sort(np.asarray(load_pandas().unique(all_ids)))


def check_one_kind(id_arrays: Sequence[Array]) -> None:
    """Check that ids of all parts can be compared with each other."""
    # Numbers of different widths can be compared; numbers and texts cannot.
    kinds = {"number" if part.dtype.kind in "iuf" else _describe_kind(part) for part in id_arrays}
    if len(kinds) > 1:
        raise InvalidDataError(
            f"Ids are of several types ({', '.join(sorted(kinds))}), which cannot be sorted. "
            "Convert them to one type, such as frame.astype({column: str})."
        )
    integers = [part for part in id_arrays if part.dtype.kind in "iu" and len(part)]
    if kinds == {"number"} and np.result_type(*id_arrays).kind == "f":
        if any(
            int(part.max()) > _LARGEST_EXACT_FLOAT or int(part.min()) < -_LARGEST_EXACT_FLOAT
            for part in integers
        ):
            raise InvalidDataError(
                "Some ids are integers above 2**53, and others are floats or integers of the other "
                "kind (int64, uint64), so that different ids could become equal. Convert all to "
                "one type, such as "
                "frame.astype({column: 'int64'})."
            )


def _describe_kind(ids: Array) -> str:
    """Return the type of some ids, for an error message."""
    if ids.dtype.kind != "O":
        return {"S": "bytes", "U": "str", "M": "datetime"}.get(ids.dtype.kind, ids.dtype.name)
    return type(ids[0]).__name__


class IdLookup:
    """Look-up of positions in a table of sorted distinct ids, for one set of ids after another.

    Parameters
    ----------
    table : ndarray of shape (n,)
    """

    def __init__(self, table: Array) -> None:
        self._table = table
        self._low = 0
        self._positions: NDArray[np.int32] | None = None
        if (
            len(table)
            and (narrow_range := _find_narrow_range([table])) is not None
            and len(table) < 2**31
        ):
            self._low, width = narrow_range
            self._positions = np.full(width, -1, np.int32)
            self._positions[_subtract_low(table, self._low)] = np.arange(len(table), dtype=np.int32)

    def __call__(self, ids: Array) -> NDArray[np.int32]:
        """Return the position of each id; all must be in the table."""
        if self._positions is not None and ids.dtype.kind in "iu":
            positions: NDArray[np.int32] = self._positions[_subtract_low(ids, self._low)]
            return positions
        return find_positions(self._table, ids).astype(np.int32)


def find_positions(table: Array, ids: Array) -> NDArray[np.int64]:
    """Return the position of each id in a table of sorted distinct ids; -1 if absent."""
    if not len(table) or not len(ids):
        return np.full(len(ids), -1)
    if table.dtype.kind == "O" or ids.dtype.kind == "O":
        positions = load_pandas().Index(table).get_indexer(load_pandas().Index(ids))
        return np.asarray(positions, np.int64)
    kinds, wanted = {table.dtype.kind, ids.dtype.kind}, ids
    if kinds == {"i", "u"}:
        # The search would compare int64 and uint64 as floats; the comparison below is exact.
        wanted = ids.astype(np.int64 if table.dtype.kind == "i" else np.uint64)
    elif kinds in ({"i", "f"}, {"u", "f"}):
        check_one_kind([table, ids])
    # Binary search, then a comparison of the id found with the one searched for.
    indices = np.minimum(np.searchsorted(table, wanted), len(table) - 1)
    return np.where(table[indices] == ids, indices, -1)
