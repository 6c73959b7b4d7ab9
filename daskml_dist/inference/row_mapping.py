"""Prediction over collections: a function of rows mapped over blocks, lazily where X is lazy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.backends import get_backend
from daskml_dist.backends.devices import device_memory
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.blocks import check_finite_rows, find_first_nonfinite
from daskml_dist.data.conversion import (
    as_rows,
    choose_float_dtype,
    copy_to_host,
    describe_block,
    find_device,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.plain_rows import MAX_FEW_ROWS, RowsPlaceholder, convert_few_rows
from daskml_dist.data.row_checks import (
    RowShape,
    check_row_shape,
    check_rows,
    name_columns_in_errors,
)
from daskml_dist.data.row_checks import find_row_shape as shape_of_rows
from daskml_dist.inference.block_mapping import map_pieces

#: From rows to answers; to None where only the method itself should answer.
FewRowsFunction = Callable[[NDArray[Any]], "NDArray[Any] | None"]


@dataclass(frozen=True, eq=False)
class RowFunctionCall:
    """The call of `map_rows` that rows to come led to; its parameters are described there."""

    function: Callable[..., NDArray[Any]]
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None
    dtype: np.dtype[Any]
    n_outputs: int | None
    row_shape: RowShape

    def few(
        self, dtype: np.dtype[Any], function: Callable[..., NDArray[Any]] | None = None
    ) -> FewRowsFunction:
        """Return a function that answers few rows of one dtype; look-ups are made here."""
        if function is None:
            prepare = getattr(self.function, "for_dtype", None)
            function = self.function if prepare is None else prepare(dtype)
        made = function
        shows = getattr(self.function, "shows_not_finite", False)
        then, of_results, n_outputs = self.then, self.dtype, self.n_outputs
        shape = self.row_shape

        def answer(X: NDArray[Any]) -> NDArray[Any] | None:
            rows = convert_few_rows(X, shape)
            if rows is None:
                return None
            return _apply_to_few_rows(rows, made, shows, then, of_results, n_outputs)

        return answer


def answer_few_rows(
    X: Any,
    function: Callable[..., NDArray[Any]],
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None,
    dtype: np.dtype[Any],
    n_outputs: int | None,
    row_shape: RowShape,
) -> NDArray[Any] | None:
    """Return answers to few rows that are plain and finite; None for all others."""
    rows = convert_few_rows(X, row_shape)
    if rows is None:
        return None
    shows = getattr(function, "shows_not_finite", False)
    return _apply_to_few_rows(rows, function, shows, then, dtype, n_outputs)


def _apply_to_few_rows(
    X: NDArray[Any],
    function: Callable[..., NDArray[Any]],
    shows: bool,
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None,
    dtype: np.dtype[Any],
    n_outputs: int | None,
) -> NDArray[Any] | None:
    # Sums tell: of finite numbers one may be infinite too, and `map_rows` looks closer.
    if shows:
        with np.errstate(invalid="ignore", over="ignore"):
            found = function(X)
            finite = _has_finite_sum(found)
        if not finite:
            return None
    else:
        with np.errstate(all="ignore"):
            finite = _has_finite_sum(X)
        if not finite:
            return None
        found = function(X)
    n_rows = len(X)
    shape = (n_rows,) if n_outputs is None else (n_rows, n_outputs)
    if then is not None:
        out = np.empty(shape, dtype)
        then(found, out)
        return out
    if len(found) != n_rows:
        return None
    return np.asarray(found, dtype=dtype).reshape(shape)


def _has_finite_sum(values: NDArray[Any]) -> bool:
    return math.isfinite(values.item() if values.size == 1 else values.sum())


#: Bytes of dense float64 rows that are worked on at once, since some are copied to be so; and
#: how many rows, since the host goes on with what is made of them.
MAX_DEVICE_BYTES, MAX_DEVICE_ROWS = 2**28, 2**18


def apply_on_device(
    function: Any, rows: Any, index: int | None
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Apply a function to a block where it lies, some dense rows at a time."""
    dtype = np.dtype(choose_float_dtype(rows.dtype))
    with _device_room(index):
        apply = function.on_device(get_backend("gpu"), dtype)
    for at, piece in _slice_device_rows(rows):
        with _device_room(index), np.errstate(invalid="ignore", over="ignore"):
            result = apply(piece.astype(dtype, copy=False))
        if find_first_nonfinite(result) is not None:
            check_finite_rows(copy_to_host(piece), index, at.start)
        yield at, result


def _slice_device_rows(rows: Any) -> Iterator[tuple[slice, Any]]:
    """Yield places and views of dense rows, some at a time; sparse ones all at once."""
    n_rows = rows.shape[0]
    if hasattr(rows, "tocsr"):
        yield slice(0, n_rows), rows
        return
    for at in row_slices(
        n_rows, min(MAX_DEVICE_BYTES // (8 * max(prod(rows.shape[1:]), 1)), MAX_DEVICE_ROWS)
    ):
        yield at, rows[at]


def _device_room(index: int | None) -> AbstractContextManager[None]:
    return device_memory(
        f"{describe_block(index)}What is made of rows of X",
        "Keep fewer blocks there, make X of the dtype of the fit, which needs no copy, or make it "
        "NumPy.",
    )


#: Bytes of dense rows that are worked on at once where they are read twice, and stay in a cache
#: between, or once, or are copied to be aligned; and how many rows that is, so that what is made of
#: them stays there too.
MAX_BYTES_READ_TWICE, MAX_BYTES_READ_ONCE, MAX_BYTES_COPIED = 2**18, 2**23, 2**20
MIN_ROWS_AT_ONCE, MAX_ROWS_AT_ONCE = MAX_FEW_ROWS, 15_000


def map_rows(
    function: Callable[[Any], NDArray[Any]],
    X: Any,
    *,
    dtype: DTypeLike,
    n_outputs: int | None = None,
    row_shape: RowShape = None,
    name: str = "estimator",
    tensors: bool = False,
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None = None,
) -> Any:
    """Apply a function of rows to X."""
    dtype = np.dtype(dtype)
    if isinstance(X, RowsPlaceholder):
        return RowFunctionCall(function, then, dtype, n_outputs, row_shape)
    few = answer_few_rows(X, function, then, dtype, n_outputs, row_shape)
    if few is not None:
        return few
    X = check_rows(X, tensors=tensors)
    check_row_shape(shape_of_rows(X), row_shape, name)
    both = _RowFunctions(function, then)
    apply = partial(
        _apply_to_block,
        dtype=dtype,
        n_outputs=n_outputs,
        row_shape=row_shape,
        name=name,
        tensors=tensors,
    )
    if not is_dask(X):
        return apply(X, both)
    empty = np.empty((0,) if n_outputs is None else (0, n_outputs), dtype=dtype)
    return map_pieces(apply, both, X, empty)


class _RowFunctions(NamedTuple):
    """A function of rows, and one of what it returns."""

    function: Callable[..., NDArray[Any]]
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None


def write_in_place(
    function: Callable[[NDArray[Any]], Any],
) -> Callable[[NDArray[Any], NDArray[Any]], None]:
    """Return a function that writes the results of another one to its second argument."""
    return partial(_write_result, function)


def _write_result(
    function: Callable[[NDArray[Any]], Any], values: NDArray[Any], out: NDArray[Any]
) -> None:
    out[...] = np.reshape(function(values), out.shape)


def _apply_to_block(
    X: Any,
    both: _RowFunctions,
    index: int | None = None,
    *,
    dtype: np.dtype[Any],
    n_outputs: int | None,
    row_shape: RowShape,
    name: str,
    tensors: bool,
) -> NDArray[Any]:
    """Return the result of one block."""
    on_device = hasattr(both.function, "on_device")
    rows = as_rows(X, index=index, on_device=on_device, tensors=tensors)
    shape = (rows.shape[0],) if n_outputs is None else (rows.shape[0], n_outputs)
    if rows.shape[0] == 0:
        return np.empty(shape, dtype=dtype)
    check_row_shape(rows.shape[1:], row_shape, name, index)
    out: NDArray[Any] | None = None
    for at, found in _name_columns_in_errors(iterate_results(both.function, rows, index), X):
        if both.then is None and len(found) == rows.shape[0]:
            return np.asarray(found, dtype=dtype).reshape(shape)
        if out is None:
            out = np.empty(shape, dtype=dtype)
        if both.then is None:
            out[at] = found.reshape(-1, *shape[1:])
        else:
            both.then(found, out[at])
    assert out is not None
    return out


def _name_columns_in_errors(results: Iterator[Any], X: Any) -> Iterator[Any]:
    """Yield results of rows, with errors that name the columns of a dataframe."""
    with name_columns_in_errors(X):
        yield from results


def iterate_results(
    function: Callable[..., NDArray[Any]], rows: Any, index: int | None
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Apply a function to a block, a few rows at a time where they are dense.

    What is made of them then stays in cache; and is never large: Dask has its workers give every
    array of 128 KiB back to the system, which takes longer than to fill it.
    """
    if find_device(rows) == "gpu":
        yield from apply_on_device(function, rows, index)
        return
    if not getattr(function, "shows_not_finite", False):
        for at, piece in _slice_rows(rows, MAX_BYTES_READ_TWICE):
            check_finite_rows(piece, index, at.start)
            yield at, function(piece)
        return
    result = None
    for at, piece in _slice_rows(rows, MAX_BYTES_READ_ONCE):
        with np.errstate(invalid="ignore", over="ignore"):
            result = function(piece, result)
        if find_first_nonfinite(result) is not None:
            check_finite_rows(piece, index, at.start)
        yield at, result


def _slice_rows(rows: Any, n_bytes: int) -> Iterator[tuple[slice, Any]]:
    """Yield places and rows, copied where memory from a network is not aligned; sparse at once."""
    n_rows = rows.shape[0]
    if not isinstance(rows, np.ndarray):
        yield slice(0, n_rows), rows
        return
    copied = not rows.flags.aligned
    size = min(n_bytes, MAX_BYTES_COPIED if copied else n_bytes)
    size //= rows.itemsize * max(prod(rows.shape[1:]), 1)
    size = min(max(size, MIN_ROWS_AT_ONCE), MAX_ROWS_AT_ONCE, n_rows)
    place = np.empty((size, *rows.shape[1:]), rows.dtype) if copied else None
    for at in row_slices(n_rows, size):
        piece = rows[at]
        if place is not None:
            piece = place[: len(piece)]
            piece[...] = rows[at]
        yield at, piece
