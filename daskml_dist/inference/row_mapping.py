"""Predictions: a function of rows applied to rows in memory, or mapped over blocks lazily.

Every estimator's ``predict`` calls `map_rows`, which has three paths: a few plain rows are passed
directly to the function (`_apply_to_few_rows`); rows in memory are cut into pieces that fit in a
CPU's cache (`iterate_results`); for a Dask collection, a task for each block does the same. A
function of rows may declare its properties by attributes:

``shows_not_finite``
    NaN or infinity in a row appears in the row's results. There are fewer results than values in
    the rows, so the results are checked instead. Such a function has a second argument: an array
    to reuse for its results.
``on_device(backend, dtype)``
    Returns the function for rows on a GPU. Its results are NumPy arrays, unless it has
``stays_on_device``
    The results are as large as the rows, and stay on the rows' device.
``hides_not_finite``
    On a GPU, results may be finite although a row has NaN or infinity, so the rows are checked too.
``makes_dense``
    On a GPU it makes sparse rows dense, and so gets them in pieces.
``keeps_dtype``
    On a GPU it gets rows in their own dtype; other functions get float32 or float64.
``for_dtype(dtype)``, ``for_each_row(dtype)``
    Return the function for few rows of one dtype, with attributes looked up in advance; results of
    the second are bit-identical to those of calls with single rows
    (:mod:`daskml_dist.inference.independent_rows`).
``rows_apart``
    Whether results of the function itself are bit-identical to those of calls with single rows.
"""

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

from daskml_dist.backends.devices import device_memory, get_backend
from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.blocks import check_finite_rows, find_first_nonfinite
from daskml_dist.data.conversion import (
    RowShape,
    as_rows,
    choose_float_dtype,
    copy_to_host,
    describe_block,
    find_device,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.plain_rows import MAX_FEW_ROWS, RowsPlaceholder, convert_few_rows
from daskml_dist.data.row_checks import check_row_shape, check_rows, name_columns_in_errors
from daskml_dist.data.row_checks import find_row_shape as shape_of_rows
from daskml_dist.inference.block_mapping import map_pieces

#: Function from rows to results, or to None if only the method itself can handle the rows.
FewRowsFunction = Callable[[NDArray[Any]], "NDArray[Any] | None"]


@dataclass(frozen=True, eq=False)
class RowFunctionCall:
    """Call of `map_rows` with a placeholder, made by a method; its parameters are described there.

    A `Predictor` calls a method once with a placeholder (`RowsPlaceholder`) in place of rows, and
    so gets the function that the method would apply to them.
    """

    function: Callable[..., NDArray[Any]]
    write_results: Callable[[NDArray[Any], NDArray[Any]], Any] | None
    dtype: np.dtype[Any]
    n_outputs: int | None
    row_shape: RowShape

    def make_few_rows_function(
        self, dtype: np.dtype[Any], function: Callable[..., NDArray[Any]] | None = None
    ) -> FewRowsFunction:
        """Return a function that predicts a few rows of one dtype, for many calls.

        `function` is applied in place of this call's, such as its form for single rows.
        """
        if function is None:
            prepare = getattr(self.function, "for_dtype", None)
            function = self.function if prepare is None else prepare(dtype)
        # Attributes are looked up once: a whole call for one row takes some microseconds.
        prepared = function
        shows_not_finite = getattr(self.function, "shows_not_finite", False)
        then, result_dtype, n_outputs = self.write_results, self.dtype, self.n_outputs
        shape = self.row_shape

        def answer(X: NDArray[Any]) -> NDArray[Any] | None:
            rows = convert_few_rows(X, shape)
            if rows is None:
                return None
            return _apply_to_few_rows(
                rows, prepared, shows_not_finite, then, result_dtype, n_outputs
            )

        return answer


def _apply_to_few_rows(
    X: NDArray[Any],
    function: Callable[..., NDArray[Any]],
    shows: bool,
    write_results: Callable[[NDArray[Any], NDArray[Any]], Any] | None,
    dtype: np.dtype[Any],
    n_outputs: int | None,
) -> NDArray[Any] | None:
    """Return the results of a few plain rows; None if a row may hold NaN or infinity.

    `shows` is the function's attribute `shows_not_finite`.
    """
    # A sum is not finite if a value is not. One of large finite values may overflow too; then the
    # caller's code for many rows checks each value.
    if shows:
        with np.errstate(invalid="ignore", over="ignore"):
            results = function(X)
            finite = _has_finite_sum(results)
        if not finite:
            return None
    else:
        with np.errstate(all="ignore"):
            finite = _has_finite_sum(X)
        if not finite:
            return None
        results = function(X)
    n_rows = len(X)
    shape = (n_rows,) if n_outputs is None else (n_rows, n_outputs)
    if write_results is not None:
        outputs = np.empty(shape, dtype)
        write_results(results, outputs)
        return outputs
    # The code for many rows reports a function that returns another number of results.
    if len(results) != n_rows:
        return None
    return np.asarray(results, dtype=dtype).reshape(shape)


def _has_finite_sum(values: NDArray[Any]) -> bool:
    """Return whether the sum of values is finite: the fastest test of few values."""
    return math.isfinite(values.item() if values.size == 1 else values.sum())


#: Limits for a piece of dense rows on a GPU: bytes, counted as float64, since rows of another dtype
#: are copied to it; and number of rows, since their results are copied to the host.
MAX_DEVICE_BYTES, MAX_DEVICE_ROWS = 2**28, 2**18


def _apply_on_device(
    function: Any, rows: Any, index: int | None
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield places and results of the rows of a block on a GPU, some dense rows at a time."""
    keeps_dtype = getattr(function, "keeps_dtype", False)
    dtype = np.dtype(rows.dtype if keeps_dtype else choose_float_dtype(rows.dtype))
    with _explain_full_device(index):
        apply = function.on_device(get_backend("gpu"), dtype)
    hides = getattr(function, "hides_not_finite", False)
    # As on the host, results are checked instead of rows; a piece is copied there only if one of
    # its results is not finite.
    for row_slice, piece in _slice_device_rows(rows, getattr(function, "makes_dense", False)):
        values = piece.data if hasattr(piece, "tocsr") else piece
        if hides and values.dtype.kind == "f" and find_first_nonfinite(values) is not None:
            check_finite_rows(copy_to_host(piece), index, row_slice.start)
        with _explain_full_device(index), np.errstate(invalid="ignore", over="ignore"):
            result = apply(piece.astype(dtype, copy=False))
        if find_first_nonfinite(result) is not None:
            check_finite_rows(copy_to_host(piece), index, row_slice.start)
        yield row_slice, result


def _slice_device_rows(rows: Any, makes_dense: bool) -> Iterator[tuple[slice, Any]]:
    """Yield places and views of dense rows, in pieces; sparse rows that stay sparse at once."""
    n_rows = rows.shape[0]
    if hasattr(rows, "tocsr") and not makes_dense:
        yield slice(0, n_rows), rows
        return
    for row_slice in row_slices(
        n_rows, min(MAX_DEVICE_BYTES // (8 * max(prod(rows.shape[1:]), 1)), MAX_DEVICE_ROWS)
    ):
        yield row_slice, rows[row_slice]


def _explain_full_device(index: int | None) -> AbstractContextManager[None]:
    """Return a context in which a GPU's memory error names the block and the remedy."""
    return device_memory(
        f"{describe_block(index)}What is made of rows of X",
        "Keep fewer blocks there, convert X to the dtype of the fit, which avoids a copy, or "
        "use NumPy arrays.",
    )


#: Most bytes of a piece of dense rows: for rows that are read twice (checked, then used), which
#: stay in a core's cache in between; for rows that are read once; and for rows that are copied to
#: be aligned.
_MAX_BYTES_READ_TWICE, _MAX_BYTES_READ_ONCE, _MAX_BYTES_COPIED = 2**18, 2**23, 2**20
#: Bounds of the rows of a piece: at least as many as one call for few rows accepts, and few enough
#: that the results of a few columns also fit in the cache.
_MIN_ROWS_AT_ONCE, _MAX_ROWS_AT_ONCE = MAX_FEW_ROWS, 15_000


def map_rows(
    function: Callable[[Any], NDArray[Any]],
    X: Any,
    *,
    dtype: DTypeLike,
    n_outputs: int | None = None,
    row_shape: RowShape = None,
    name: str = "estimator",
    tensors: bool = False,
    write_results: Callable[[NDArray[Any], NDArray[Any]], Any] | None = None,
) -> Any:
    """Apply a function of rows to X, lazily if X is a Dask collection.

    Parameters
    ----------
    function : callable
        Function of dense or CSR rows to a result for each. It may have the attributes that the
        module's docstring describes.
    X : array-like, sparse matrix, dataframe or Dask collection
    dtype : dtype
        Dtype of the results.
    n_outputs : int, optional
        Number of columns of the results; None: they have one dimension.
    row_shape : tuple of int, optional
        Shape of a row in the fit, which X is checked against.
    name : str, default="estimator"
        Name of the estimator, for errors.
    tensors : bool, default=False
        Whether rows may have more than one dimension.
    write_results : callable, optional
        ``then(results, out)`` computes final results, such as a link or labels of classes, from the
        function's results for some rows, and writes them into `out`. None: the function's results
        are final.

    Returns
    -------
    ndarray or dask Array of shape (n_rows,) or (n_rows, n_outputs)
        A `RowFunctionCall` if X is a placeholder. A CuPy array if X is one and the function
        declares that results stay there.
    """
    dtype = np.dtype(dtype)
    if isinstance(X, RowsPlaceholder):
        return RowFunctionCall(function, write_results, dtype, n_outputs, row_shape)
    if (few_rows := convert_few_rows(X, row_shape)) is not None:
        shows_not_finite = getattr(function, "shows_not_finite", False)
        results = _apply_to_few_rows(
            few_rows, function, shows_not_finite, write_results, dtype, n_outputs
        )
        if results is not None:
            return results
    X = check_rows(X, tensors=tensors)
    check_row_shape(shape_of_rows(X), row_shape, name)
    # Both functions are shared by all tasks of a collection; the other arguments are small.
    functions = _RowFunctions(function, write_results)
    apply = partial(
        _apply_to_block,
        dtype=dtype,
        n_outputs=n_outputs,
        row_shape=row_shape,
        name=name,
        tensors=tensors,
    )
    if not is_dask(X):
        return apply(X, functions)
    empty = np.empty((0,) if n_outputs is None else (0, n_outputs), dtype=dtype)
    return map_pieces(apply, functions, X, empty)


class _RowFunctions(NamedTuple):
    """Function of rows, and function that writes final results; shared by all tasks."""

    function: Callable[..., NDArray[Any]]
    write_results: Callable[[NDArray[Any], NDArray[Any]], Any] | None


def write_in_place(
    function: Callable[[NDArray[Any]], Any],
) -> Callable[[NDArray[Any], NDArray[Any]], None]:
    """Return a function that writes the results of another one into its second argument."""
    return partial(_write_result, function)


def _write_result(
    function: Callable[[NDArray[Any]], Any], values: NDArray[Any], out: NDArray[Any]
) -> None:
    """Write a function's results into `out`; at module level, since tasks pickle partials of it."""
    out[...] = np.reshape(function(values), out.shape)


def _apply_to_block(
    X: Any,
    functions: _RowFunctions,
    index: int | None = None,
    *,
    dtype: np.dtype[Any],
    n_outputs: int | None,
    row_shape: RowShape,
    name: str,
    tensors: bool,
) -> Any:
    """Return the results of one block of rows, in memory or of a collection (number `index`)."""
    on_device = hasattr(functions.function, "on_device")
    rows = as_rows(X, index=index, on_device=on_device, tensors=tensors)
    shape = (rows.shape[0],) if n_outputs is None else (rows.shape[0], n_outputs)
    stays_on_device = (
        getattr(functions.function, "stays_on_device", False) and find_device(rows) == "gpu"
    )
    if rows.shape[0] == 0:
        xp = namespace(rows.data if hasattr(rows, "tocsr") else rows) if stays_on_device else np
        return xp.zeros(shape, dtype=dtype)
    check_row_shape(rows.shape[1:], row_shape, name, index)
    if stays_on_device:
        pieces = [
            cast(results, dtype) for _, results in iterate_results(functions.function, rows, index)
        ]
        return pieces[0] if len(pieces) == 1 else namespace(pieces[0]).concatenate(pieces)
    outputs: NDArray[Any] | None = None
    for row_slice, results in _name_columns_in_errors(
        iterate_results(functions.function, rows, index), X
    ):
        # A block of one piece needs no copy.
        if functions.write_results is None and len(results) == rows.shape[0]:
            return np.asarray(results, dtype=dtype).reshape(shape)
        if outputs is None:
            outputs = np.empty(shape, dtype=dtype)
        if functions.write_results is None:
            outputs[row_slice] = results.reshape(-1, *shape[1:])
        else:
            functions.write_results(results, outputs[row_slice])
    assert outputs is not None
    return outputs


def _name_columns_in_errors(results: Iterator[Any], X: Any) -> Iterator[Any]:
    """Yield results of rows, with errors that name the columns of a dataframe."""
    with name_columns_in_errors(X):
        yield from results


def iterate_results(
    function: Callable[..., NDArray[Any]], rows: Any, index: int | None
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield places and results of the rows of a block; dense rows in pieces.

    The results of a piece are small and stay in the cache. Dask's workers return each array of 128
    KiB or more to the system when it is freed, and getting that memory again takes longer than
    filling it.
    """
    if find_device(rows) == "gpu":
        yield from _apply_on_device(function, rows, index)
        return
    if not getattr(function, "shows_not_finite", False):
        for row_slice, piece in _slice_rows(rows, _MAX_BYTES_READ_TWICE):
            check_finite_rows(piece, index, row_slice.start)
            yield row_slice, function(piece)
        return
    # Results are checked here, not the rows; rows are checked only if a result is not finite, to
    # find the cause.
    result = None
    for row_slice, piece in _slice_rows(rows, _MAX_BYTES_READ_ONCE):
        with np.errstate(invalid="ignore", over="ignore"):
            result = function(piece, result)
        if find_first_nonfinite(result) is not None:
            check_finite_rows(piece, index, row_slice.start)
        yield row_slice, result


def _slice_rows(rows: Any, n_bytes: int) -> Iterator[tuple[slice, Any]]:
    """Yield places and pieces of rows, copied if they are not aligned; sparse rows all at once.

    Memory that a message brought need not be aligned, and NumPy calls no BLAS on such rows.
    """
    n_rows = rows.shape[0]
    if not isinstance(rows, np.ndarray):
        yield slice(0, n_rows), rows
        return
    copied = not rows.flags.aligned
    size = min(n_bytes, _MAX_BYTES_COPIED if copied else n_bytes)
    size //= rows.itemsize * max(prod(rows.shape[1:]), 1)
    size = min(max(size, _MIN_ROWS_AT_ONCE), _MAX_ROWS_AT_ONCE, n_rows)
    # One buffer for all pieces: each piece is used before the next one is requested.
    buffer = np.empty((size, *rows.shape[1:]), rows.dtype) if copied else None
    for row_slice in row_slices(n_rows, size):
        piece = rows[row_slice]
        if buffer is not None:
            piece = buffer[: len(piece)]
            piece[...] = rows[row_slice]
        yield row_slice, piece
