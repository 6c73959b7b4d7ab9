"""Rows of which each is asked for alone, in one call: each gets to the bit what it would get alone.

Functions that compare rows and look up, or reckon with each number by itself, do so anyhow, and say
so: they have an attribute ``declare_independent_rows``.

BLAS may round a row by how many rows it has beside it, so a matrix of rows is another question than
its rows one by one. A stack of products of one row (``numpy.matmul`` over the first axis) is the
same calls of BLAS, one after the other, without Python between them. What follows the products is
one call where it is NumPy's functions of single numbers, which know nothing of their neighbours,
else a call a row: sums over columns, as in a softmax, are added in another order of many rows.
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

#: Methods of losses that are such functions of a single column of raw predictions.
_OF_SINGLE_NUMBERS = (LogLoss.write_proba, Loss.inverse_link, Poisson.inverse_link)
_WRITES: Any = getattr(write_in_place(np.exp), "func")  # noqa: B009
#: Bytes at whose multiples rows begin, as the memory of a row alone does.
_ALIGNED = 16


def declare_independent_rows(function: _Function) -> _Function:
    """Mark a function of rows, or raw predictions, whose results are the same beside any others."""
    function.rows_apart = True  # type: ignore[attr-defined]
    return function


def has_independent_rows(asked: RowFunctionCall) -> bool:
    """Return whether each answer is the same to the bit whatever rows there are beside its row."""
    return _is_marked_independent(asked.function) and (
        asked.then is None or _is_marked_independent(asked.then)
    )


def _is_marked_independent(function: Any) -> bool:
    if isinstance(function, partial):
        return _is_marked_independent(
            function.args[0] if function.func is _WRITES else function.func
        )
    return isinstance(function, np.ufunc) or getattr(function, "rows_apart", False) is True


def make_each_row_function(asked: RowFunctionCall, dtype: np.dtype[Any]) -> FewRowsFunction | None:
    """Return a function from few rows of one dtype to answers with the bits of single calls."""
    prepare = getattr(asked.function, "for_each_row", None)
    if prepare is None and not _is_marked_independent(asked.function):
        return None
    then = asked.then
    if then is not None and not _is_marked_independent(then):
        asked = replace(asked, then=_write_row_by_row(then))
    return asked.few(dtype, None if prepare is None else prepare(dtype))


def _write_row_by_row(then: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that writes results of raw predictions, one row at a time if need be."""
    inner = then.args[0] if isinstance(then, partial) and then.func is _WRITES else then
    of_numbers = getattr(inner, "__func__", None) in _OF_SINGLE_NUMBERS

    def write(raw: NDArray[Any], out: NDArray[Any]) -> None:
        if of_numbers and raw.ndim == 1:
            then(raw, out)
            return
        for at in range(len(out)):
            then(raw[at : at + 1], out[at : at + 1])

    return write


def multiply_each_row(X: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """Return ``X[i : i + 1] @ w`` of each row, rounded as if each were multiplied alone."""
    n_rows, width = X.shape
    if width * X.itemsize % _ALIGNED:  # BLAS may go by where a row begins
        more = -width % (_ALIGNED // X.itemsize)
        apart = np.empty((n_rows, width + more), X.dtype)[:, :width]
        apart[...] = X
        X = apart
    products: NDArray[Any] = np.matmul(X[:, None, :], w)
    return products[:, 0]
