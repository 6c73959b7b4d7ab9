"""Predictions for many rows in one call, each bit-identical to a call with that row alone.

Functions that compare and look up (trees), or compute with each number separately (scalers), have
this property by themselves; `declare_independent_rows` marks them with an attribute ``rows_apart``.

Matrix products do not: BLAS chooses its kernel, and with it the order of the sums, by the number of
rows. `multiply_each_row` computes one product for each row in NumPy (``numpy.matmul`` over a
stack): the same BLAS calls as for single rows, without a loop in Python. A function of the
products, such as a link, is then called once if it works on single numbers, else once for each row:
the sums of a softmax over columns are computed in another order for many rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.inference.row_mapping import FewRowsFunction, RowFunctionCall, write_in_place
from daskml_dist.losses.base import Loss
from daskml_dist.losses.deviance import Poisson
from daskml_dist.losses.margin import LogLoss

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Methods of losses that work on single numbers if raw predictions have a single column.
_ELEMENTWISE_METHODS = (LogLoss.write_proba, Loss.inverse_link, Poisson.inverse_link)
#: Function of the partials that `write_in_place` returns, whose first argument is the function.
_WRITES: Any = getattr(write_in_place(np.exp), "func")  # noqa: B009
#: Rows begin at multiples of this many bytes, as NumPy's memory of a single row does.
_ALIGNMENT = 16


def declare_independent_rows(function: _Function) -> _Function:
    """Mark a function of rows, or raw predictions, whose results depend on one row each."""
    function.rows_apart = True  # type: ignore[attr-defined]
    return function


# A link works on single numbers, for any number of columns.
for _link in (Loss.inverse_link, Poisson.inverse_link):
    declare_independent_rows(_link)


def has_independent_rows(call: RowFunctionCall) -> bool:
    """Return whether the bits of a row's answer never depend on the other rows."""
    return _is_marked_independent(call.function) and (
        call.write_results is None or _is_marked_independent(call.write_results)
    )


def _is_marked_independent(function: Any) -> bool:
    """Return whether a function, or the one within a partial, is marked or a ufunc of NumPy."""
    if isinstance(function, partial):
        return _is_marked_independent(
            function.args[0] if function.func is _WRITES else function.func
        )
    return isinstance(function, np.ufunc) or getattr(function, "rows_apart", False) is True


def make_each_row_function(call: RowFunctionCall, dtype: np.dtype[Any]) -> FewRowsFunction | None:
    """Return a function for a few rows of one dtype, with the same bits as single calls.

    None if the function of rows is not independent and has no form for single rows
    (``for_each_row``).
    """
    prepare = getattr(call.function, "for_each_row", None)
    if prepare is None and not _is_marked_independent(call.function):
        return None
    then = call.write_results
    if then is not None and not _is_marked_independent(then):
        call = replace(call, write_results=_write_row_by_row(then))
    return call.make_few_rows_function(dtype, None if prepare is None else prepare(dtype))


def _write_row_by_row(write_results: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that writes results of raw predictions, row by row unless elementwise."""
    inner = (
        write_results.args[0]
        if isinstance(write_results, partial) and write_results.func is _WRITES
        else write_results
    )
    is_elementwise = getattr(inner, "__func__", None) in _ELEMENTWISE_METHODS

    def write(raw: NDArray[Any], out: NDArray[Any]) -> None:
        if is_elementwise and raw.ndim == 1:
            write_results(raw, out)
            return
        for index in range(len(out)):
            write_results(raw[index : index + 1], out[index : index + 1])

    return write


def multiply_each_row(X: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """Return ``X[i : i + 1] @ w`` of each row, rounded as if each were multiplied alone."""
    n_rows, width = X.shape
    # BLAS may choose its kernel by the alignment of a row: each row is copied to an aligned
    # address, like that of a single row, with unused columns in between.
    if width * X.itemsize % _ALIGNMENT:
        n_unused = -width % (_ALIGNMENT // X.itemsize)
        aligned = np.empty((n_rows, width + n_unused), X.dtype)[:, :width]
        aligned[...] = X
        X = aligned
    products: NDArray[Any] = np.matmul(X[:, None, :], w)
    return products[:, 0]
