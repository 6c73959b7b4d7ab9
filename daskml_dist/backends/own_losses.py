"""Users' functions of one row, applied to all rows: compiled if numba can, else in Python.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba.core.errors import NumbaError
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_with
from daskml_dist.errors import InvalidParameterError

Array = NDArray[Any]
#: Takes a target, a raw prediction and the loss's parameters; returns two numbers.
RowFunction = Callable[[float, float, tuple[float, ...]], tuple[float, float]]
_FLOAT64 = np.dtype(np.float64)


def map_row_function(
    function: RowFunction, y: Array, raw: Array, parameters: tuple[float, ...]
) -> tuple[Array, Array]:
    """Return the two results of a function of rows, each of the shape and dtype of `raw`."""
    first, second = np.empty_like(raw), np.empty_like(raw)
    parameters = tuple(float(value) for value in parameters)
    # Bounds of times are complex numbers (`losses.AFT`).
    dtype = np.result_type(y, np.float64)
    targets = np.ascontiguousarray(np.broadcast_to(y, raw.shape), dtype).reshape(-1)
    rows = targets, np.ascontiguousarray(raw, np.float64).reshape(-1), parameters
    compiled = _compile(function, len(parameters), dtype)
    out = np.empty((2, raw.size))
    if compiled is not None:
        compiled(*rows, out[0], out[1])
    else:
        _map_in_python(function, *rows, out)
    first[...], second[...] = out[0].reshape(raw.shape), out[1].reshape(raw.shape)
    return first, second


def write_row_gradients(
    function: RowFunction, parameters: tuple[float, ...], y: Array, raw: Array, weight: Array,
    g: Array, h: Array,
) -> bool:  # fmt: skip
    """Write weighted gradients and hessians for boosting in float32; False if not compiled.

    Parameters
    ----------
    function : RowFunction
        Returns first and second derivatives.
    parameters : tuple of float
    y, raw, weight : ndarray of float64 of shape (n,)
        `y` may be complex; `weight` is empty without weights.
    g, h : ndarray of float32 of shape (n,)
    """
    parameters = tuple(float(value) for value in parameters)
    if _compile(function, len(parameters), y.dtype) is None:
        return False
    compiled_with(_write_gradients, exact=True, _evaluate=function)(
        y, raw, weight, parameters, g, h
    )
    return True


@cache
def _compile(
    function: RowFunction, n_parameters: int, dtype: np.dtype[Any] = _FLOAT64
) -> Any | None:
    """Return the loop over rows, compiled with a function; None if numba cannot compile it."""
    row, parameters = np.zeros(1), (1.0,) * n_parameters
    try:
        loop = compiled_with(_map_rows, exact=True, _evaluate=function)
        # A trial on one row, since numba compiles at the first call.
        loop(row.astype(dtype), row, parameters, np.zeros(1), np.zeros(1))
    except (NumbaError, AttributeError, NotImplementedError):
        return None
    return loop


def _map_in_python(
    function: RowFunction, y: Array, raw: Array, parameters: tuple[float, ...], out: Array
) -> None:
    """Write the two results of a function of rows, row by row, in Python."""
    name = getattr(function, "__qualname__", repr(function))
    for i, (target, prediction) in enumerate(zip(y.tolist(), raw.tolist(), strict=True)):
        try:
            results = function(target, prediction, parameters)
        # In compiled code a division by 0 gives infinity, and the logarithm of a negative number
        # NaN.
        except (ArithmeticError, ValueError) as error:
            raise InvalidParameterError(
                f"{name} failed for the target {target!r} and the raw prediction {prediction!r}: "
                f"{error!r}. Let it return two numbers for any two, infinity and NaN among them."
            ) from error
        try:
            out[0, i], out[1, i] = results
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(
                f"{name} returned {results!r} for a row, and is to return two numbers."
            ) from error


# `_evaluate` is a placeholder for the function of a loss.
def _evaluate(y: Any, raw: Any, parameters: Any) -> Any: ...


def _map_rows(y: Any, raw: Any, parameters: Any, first: Any, second: Any) -> None:
    """Write the two results of a function of each row."""
    for i in range(len(y)):
        a, b = _evaluate(y[i], raw[i], parameters)
        first[i] = a
        second[i] = b


def _write_gradients(y: Any, raw: Any, weight: Any, parameters: Any, g: Any, h: Any) -> None:
    """Write gradients and hessians of each row, times its weight."""
    for i in range(len(y)):
        a, b = _evaluate(y[i], raw[i], parameters)
        if len(weight):
            a *= weight[i]
            b *= weight[i]
        g[i] = a
        h[i] = b
