"""Prediction over collections: a function of rows mapped over blocks, lazily where X is lazy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.blocks import check_finite_rows, find_first_nonfinite
from daskml_dist.data.conversion import as_rows, find_device
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.plain_rows import MAX_FEW_ROWS, RowsPlaceholder
from daskml_dist.data.row_checks import (
    RowShape,
    check_row_shape,
    check_rows,
    name_columns_in_errors,
)
from daskml_dist.data.row_checks import find_row_shape as shape_of_rows
from daskml_dist.inference.few_rows import AppliedToRows, few_answers
from daskml_dist.inference.on_device import results_on_device
from daskml_dist.inference.transform import map_pieces

__all__ = ["map_rows", "results_of_rows", "written"]

#: Bytes of dense rows that are worked on at once where they are read twice, and stay in a cache
#: between, or once, or are copied to be aligned; and how many rows that is, so that what is made of
#: them stays there too.
_READ_TWICE, _READ_ONCE, _COPIED = 2**18, 2**23, 2**20
_FEWEST_ROWS, _MOST_ROWS = MAX_FEW_ROWS, 15_000


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
        return AppliedToRows(function, then, dtype, n_outputs, row_shape)
    few = few_answers(X, function, then, dtype, n_outputs, row_shape)
    if few is not None:
        return few
    X = check_rows(X, tensors=tensors)
    check_row_shape(shape_of_rows(X), row_shape, name)
    both = _Composed(function, then)
    apply = partial(
        _apply,
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


class _Composed(NamedTuple):
    """A function of rows, and one of what it returns."""

    function: Callable[..., NDArray[Any]]
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None


def written(
    function: Callable[[NDArray[Any]], Any],
) -> Callable[[NDArray[Any], NDArray[Any]], None]:
    """A function that returns an array, as one that writes it to its second argument."""
    return partial(_write, function)


def _write(
    function: Callable[[NDArray[Any]], Any], values: NDArray[Any], out: NDArray[Any]
) -> None:
    out[...] = np.reshape(function(values), out.shape)


def _apply(
    X: Any,
    both: _Composed,
    index: int | None = None,
    *,
    dtype: np.dtype[Any],
    n_outputs: int | None,
    row_shape: RowShape,
    name: str,
    tensors: bool,
) -> NDArray[Any]:
    """Result of one block."""
    on_device = hasattr(both.function, "on_device")
    rows = as_rows(X, index=index, on_device=on_device, tensors=tensors)
    shape = (rows.shape[0],) if n_outputs is None else (rows.shape[0], n_outputs)
    if rows.shape[0] == 0:
        return np.empty(shape, dtype=dtype)
    check_row_shape(rows.shape[1:], row_shape, name, index)
    out: NDArray[Any] | None = None
    for at, found in _named(results_of_rows(both.function, rows, index), X):
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


def _named(results: Iterator[Any], X: Any) -> Iterator[Any]:
    """Results of rows, and errors that name the columns of a dataframe."""
    with name_columns_in_errors(X):
        yield from results


def results_of_rows(
    function: Callable[..., NDArray[Any]], rows: Any, index: int | None
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Apply a function to a block, a few rows at a time where they are dense.

    What is made of them then stays in cache; and is never large: Dask has its workers give every
    array of 128 KiB back to the system, which takes longer than to fill it.
    """
    if find_device(rows) == "gpu":
        yield from results_on_device(function, rows, index)
        return
    if not getattr(function, "shows_not_finite", False):
        for at, piece in _pieces(rows, _READ_TWICE):
            check_finite_rows(piece, index, at.start)
            yield at, function(piece)
        return
    result = None
    for at, piece in _pieces(rows, _READ_ONCE):
        with np.errstate(invalid="ignore", over="ignore"):
            result = function(piece, result)
        if find_first_nonfinite(result) is not None:
            check_finite_rows(piece, index, at.start)
        yield at, result


def _pieces(rows: Any, n_bytes: int) -> Iterator[tuple[slice, Any]]:
    """Rows aligned in memory, as what came over a network need not be; sparse ones all at once."""
    n_rows = rows.shape[0]
    if not isinstance(rows, np.ndarray):
        yield slice(0, n_rows), rows
        return
    copied = not rows.flags.aligned
    size = min(n_bytes, _COPIED if copied else n_bytes)
    size //= rows.itemsize * max(prod(rows.shape[1:]), 1)
    size = min(max(size, _FEWEST_ROWS), _MOST_ROWS, n_rows)
    place = np.empty((size, *rows.shape[1:]), rows.dtype) if copied else None
    for at in row_slices(n_rows, size):
        piece = rows[at]
        if place is not None:
            piece = place[: len(piece)]
            piece[...] = rows[at]
        yield at, piece
