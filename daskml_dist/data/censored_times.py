"""Times until an event, some of which are known only by bounds, as targets of a fit.

Users give signed times (negative: no event until that time), pairs of event and time, or columns of
bounds. :func:`read_bounds` converts a block of any of these to bounds; :func:`encode_times` lazily
converts them to the targets of a loss in `daskml_dist.losses`, block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray

from daskml_dist.data.conversion import (
    check_no_missing,
    convert_to_array,
    convert_to_numbers,
    copy_to_host,
    describe_block,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError
from daskml_dist.losses.base import Loss
from daskml_dist.losses.survival import AFT

Array = NDArray[Any]
#: Column names of a frame of bounds, encoded or not.
_COLUMNS = ("time", "bound")
_FORMS = (
    "Pass signed times (negative: no event up to then), an array or frame of (event, time), "
    "where event is boolean, or two columns of bounds (lower, upper)"
)


def read_bounds(y: Any, index: int | None = None) -> tuple[Array, Array]:
    """Return the lower and upper bounds of the times of a block; equal bounds are events.

    Parameters
    ----------
    y : array-like
        Signed times of shape (n,); a structured array or a frame of (event, time); or bounds of
        shape (n, 2), whose upper one may be infinite.
    index : int or None, default=None
        Number of the block, for errors.

    Returns
    -------
    lower, upper : ndarray of float64 of shape (n,)

    Raises
    ------
    InvalidDataError
        Times are missing, negative or zero, or an upper bound is below the lower one.
    """
    y = copy_to_host(y)
    names = getattr(getattr(y, "dtype", None), "names", None)
    if names is not None or is_dataframe_like(y):
        columns = [y[name] for name in (y.columns if names is None else names)]
        if len(columns) != 2:
            raise InvalidDataError(
                f"{describe_block(index)}y has {len(columns)} columns, but times need two. "
                f"{_FORMS}."
            )
        first, second = (convert_to_array(column, "y", index) for column in columns)
    else:
        if isinstance(y, list | tuple) and y and isinstance(y[0], list | tuple):
            # Objects, since NumPy would make numbers of the booleans beside the times.
            y = convert_to_array([np.array(row, object) for row in y], "y", index)
        array = convert_to_array(y, "y", index)
        if array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1):
            return _read_signed(_read_numbers(array.reshape(-1), index), index)
        if array.ndim != 2 or array.shape[1] != 2:
            raise InvalidDataError(
                f"{describe_block(index)}y holds times and has the shape {array.shape}. {_FORMS}."
            )
        first, second = array.T
        # A frame of booleans and numbers becomes an array of objects.
        if first.dtype == object and all(isinstance(event, bool | np.bool_) for event in first):
            first = first.astype(np.bool_)
    # A boolean column distinguishes pairs of event and time from pairs of bounds, which are both
    # numeric.
    if first.dtype.kind == "b":
        times = _read_numbers(second, index)
        _refuse(times <= 0, times, "is not positive", index)
        return times, np.where(first, times, np.inf)
    if names is not None:
        raise InvalidDataError(
            f"{describe_block(index)}The first field of y, {names[0]!r}, has dtype "
            f"{first.dtype}, but must be boolean (whether there was an event). {_FORMS}."
        )
    low, high = _read_numbers(first, index), _read_numbers(second, index)
    # Lower bound 0 means none, and upper bound infinity means none; a row with both carries no
    # information.
    _refuse(low < 0, low, "is a negative lower bound", index)
    _refuse(np.isinf(low), low, "is an infinite lower bound", index)
    _refuse(high < low, high, "is an upper bound below the lower one", index)
    _refuse(high == 0, high, "is an upper bound that is not positive", index)
    _refuse(
        (low == 0) & np.isinf(high), high, "with the lower bound 0 carries no information", index
    )
    return low, high


def _read_numbers(values: Array, index: int | None) -> Array:
    """Return numbers as float64; raise for missing ones."""
    check_no_missing(values, "y", index)
    numbers = convert_to_numbers(values, "float64", "y", index)
    _refuse(np.isnan(numbers), numbers, "is missing", index)
    return numbers


def _read_signed(times: Array, index: int | None) -> tuple[Array, Array]:
    """Return the bounds of signed times."""
    _refuse(times == 0, times, "is neither positive (event) nor negative (censored)", index)
    low = np.abs(times)
    _refuse(np.isinf(low), times, "is an infinite time", index)
    return low, np.where(times > 0, low, np.inf)


def _refuse(is_wrong: Array, values: Array, reason: str, index: int | None) -> None:
    """Raise if any row is wrong, naming the first one."""
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise InvalidDataError(
            f"{describe_block(index)}Input y holds an impossible time: {values[row]:g} {reason} "
            f"(row {row} of the block). {_FORMS}; drop or correct such rows."
        )


def encode_times(y: Any, loss: Loss) -> Any:
    """Return times encoded for a loss, lazily if they are lazy.

    Parameters
    ----------
    y : dask Array, DataFrame or Series, or in memory
        In a form that :func:`read_bounds` accepts.
    loss : AFT or Cox

    Returns
    -------
    array-like of float64 of shape (n, 2) of `AFT`, or (n,), of signed times
    """
    if isinstance(loss, AFT):
        return _map_times(y, _encode_intervals, True)
    return _map_times(y, _encode_signed, False)


def find_bounds(y: Any) -> Any:
    """Return the bounds of times, of shape (n, 2), lazily if they are lazy.

    `y` has a form that :func:`read_bounds` accepts.
    """
    return _map_times(y, _stack_bounds, True)


def _map_times(y: Any, of_block: Callable[[Any], Array], has_two: bool) -> Any:
    """Apply a function to each block; results are (n, 2) if it `has_two` columns, else (n,)."""
    if not is_dask(y):
        return of_block(y)
    if isinstance(y, da.Array):
        # Both numbers of a row must be in one chunk.
        y = y.rechunk({1: -1}) if y.ndim == 2 else y
        axes = {
            "new_axis": 1 if has_two and y.ndim == 1 else None,
            "drop_axis": 1 if not has_two and y.ndim == 2 else None,
        }
        chunks = (y.chunks[0], (2,)) if has_two else (y.chunks[0],)
        return da.map_blocks(
            of_block, y, dtype=np.float64, chunks=chunks, meta=np.empty((0, 2)[: len(chunks)]),
            **axes,
        )  # fmt: skip
    return y.map_partitions(partial(_map_partition, of_block), meta=_make_meta(y, has_two))


def _make_meta(y: Any, has_two: bool) -> Any:
    """Return an empty frame or series of encoded times."""
    import pandas as pd

    index = y._meta.index
    if has_two:
        return pd.DataFrame(dict.fromkeys(_COLUMNS, np.empty(0)), index=index)
    return pd.Series(np.empty(0), index=index, name=y.name if is_series_like(y) else _COLUMNS[0])


def _map_partition(of_block: Callable[[Any], Array], y: Any) -> Any:
    """Apply the function to a partition, and keep its index."""
    import pandas as pd

    result = of_block(y)
    if result.ndim == 2:
        return pd.DataFrame(result, columns=list(_COLUMNS), index=y.index)
    return pd.Series(result, index=y.index, name=y.name if is_series_like(y) else _COLUMNS[0])


def _stack_bounds(y: Any) -> Array:
    """Return the bounds of a block."""
    return np.stack(read_bounds(y), axis=1)


def _encode_intervals(y: Any) -> Array:
    """Return the bounds of a block, encoded for `AFT`."""
    encoded: Array = AFT.encode(*read_bounds(y))
    return encoded


def _encode_signed(y: Any) -> Array:
    """Return the times of a block, encoded for `Cox`."""
    low, high = read_bounds(y)
    is_event = low == high
    # A time between two finite bounds cannot be placed in the order of events.
    if (np.isfinite(high) & ~is_event).any():
        raise InvalidDataError(
            "y holds times between two bounds, but Cox's partial likelihood only supports "
            "events and right-censored times. Use daskml_dist.losses.AFT, or the upper bounds."
        )
    return np.where(is_event, low, -low)
