"""The array library of an array, by the array API standard (data-apis.org/array-api).

Code written with the standard's functions runs on NumPy, CuPy and any other library that follows
it. Arrays of different libraries or devices are never mixed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Types of arrays, and of scalars, in host memory.
_HOST = (np.ndarray, np.generic)


def is_host(array: Any) -> bool:
    """Return whether an array (or a scalar of one) is NumPy's."""
    return isinstance(array, _HOST)


def namespace(array: Any) -> Any:
    """Return the module with the functions for an array."""
    if isinstance(array, _HOST):
        return np
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    # CuPy has the standard's functions, but its arrays lack `__array_namespace__`.
    return sys.modules[type(array).__module__.partition(".")[0]]


def zeros(shape: tuple[int, ...], dtype: DTypeLike, like: Any) -> Any:
    """Return zeros on the device of another array."""
    return _created("zeros", shape, dtype, like)


def ones(shape: tuple[int, ...], dtype: DTypeLike, like: Any) -> Any:
    """Return ones on the device of another array; see :func:`zeros`."""
    return _created("ones", shape, dtype, like)


def numbers(values: Sequence[float] | NDArray[np.float64], like: Any) -> Any:
    """Return numbers as an array with the dtype and device of another one."""
    xp = namespace(like)
    place = {} if xp is np else _place(like)
    return xp.asarray(list(values), dtype=like.dtype, **place)


def cast(array: Any, dtype: Any) -> Any:
    """Return an array in a dtype of its library; unchanged if it has it."""
    # NumPy's functions take microseconds longer than its methods; here and in `total`.
    if is_host(array):
        return array.astype(dtype, copy=False)
    return namespace(array).astype(array, dtype, copy=False)


def total(array: Any, axis: int | None = None, dtype: Any = None) -> Any:
    """Return the sum of an array, over an axis or all, in its dtype or another."""
    if is_host(array):
        return array.sum(axis, dtype)
    return namespace(array).sum(array, axis=axis, dtype=dtype)


def one_hot(codes: Any, width: int, dtype: Any) -> Any:
    """Return an array (n, width) with 1 in the column of a row's code, 0 elsewhere."""
    if is_host(codes):
        out = np.zeros((len(codes), width), dtype)
        out[np.arange(len(codes)), codes] = 1
        return out
    columns = namespace(codes).arange(width, dtype=codes.dtype, **_place(codes))
    return cast(codes[:, None] == columns, dtype)


def item_bytes(array: Any) -> int:
    """Return the bytes of an entry of an array, or of rows that have a dtype."""
    dtype = array.dtype
    # Dtypes of the standard have no item size.
    size = dtype.itemsize if hasattr(dtype, "itemsize") else namespace(array).finfo(dtype).bits // 8
    return int(size)


def arithmetic_dtype(rows: Any) -> Any:
    """Return the dtype in which rows are computed: float32 if they are stored in fewer bits."""
    return np.dtype(np.float32) if item_bytes(rows) < 4 else rows.dtype


def scalar(value: Any) -> Any:
    """Return a NumPy scalar as a float; a device's unchanged, since conversion would wait."""
    return float(value) if is_host(value) else value


def _created(function: str, shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    """Return an array made by a function of another array's library, on its device."""
    xp = namespace(like)
    if xp is np:
        return getattr(np, function)(shape, dtype)
    library_dtype = (
        getattr(xp, np.dtype(dtype).name) if isinstance(dtype, str | type | np.dtype) else dtype
    )
    return getattr(xp, function)(shape, dtype=library_dtype, **_place(like))


def _place(like: Any) -> dict[str, Any]:
    """Return the keywords that create an array on the device of another.

    CuPy's functions have none: they use the current device, which holds a thread's arrays.
    """
    xp = namespace(like)
    return {} if xp.__name__ == "cupy" else {"device": like.device}


def stream_of(array: Any) -> int:
    """Return the pointer of the stream on which a device array's library now computes."""
    library = namespace(array)
    return int(library.cuda.get_current_stream().ptr)
