"""numba kernels over dense rows: loss and gradient in one reading of X, the GIL released.

Rows are taken in groups that the first-level cache holds: the products of a group with the
parameters, the losses, and the group's share of the gradient follow each other while it is there,
and memory is asked for the rows behind it meanwhile. Rows may start at any byte. Sums over many
rows are float64, whatever X is, so that a full batch of float32 rows stays accurate.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types

from daskml_dist.backends.margins import ROWS, curvature, log_loss
from daskml_dist.backends.pointers import array_at, pointer, prefetch
from daskml_dist.backends.vectors import (
    LINE,
    load,
    multiply_add,
    plus,
    spread,
    store,
    store_sums,
    zeros,
)

__all__ = ["KERNELS", "kernel"]

#: Rows of a group; a multiple of 4.
_GROUP = 16
#: Bytes of the groups that are worked on together.
_TILE = 4096
#: Rows whose shares are added up in X's own dtype.
_MOST_ROWS = 1024
#: Bytes that memory is asked for ahead.
_AHEAD = 4096
_SUMS: Any = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "cache": True}
_F = TypeVar("_F", bound=Callable[..., Any])


def _rows(function: _F) -> _F:
    return cast("_F", numba.njit(forceinline=True, **ROWS)(function))


def _once(function: _F) -> _F:
    return cast("_F", numba.njit(**ROWS)(function))


def _sums(function: _F) -> _F:
    return cast("_F", numba.njit(**_SUMS)(function))


@_rows
def _zeros(n: Any, dtype: Any) -> Any:
    """Zeros; numba takes two seconds to compile its own."""
    numbers = np.empty(n, dtype)
    for i in range(n):
        numbers[i] = 0
    return numbers


@_rows
def _in_vectors(w: Any, n_features: Any) -> Any:
    """Coefficients, with zeros behind them that make the last vector whole."""
    n = LINE // w.itemsize
    coef = _zeros((n_features + n - 1) // n * n, w.dtype)
    for j in range(n_features):
        coef[j] = w[j]
    return coef


@_rows
def _n_in_place(n: Any, size: Any, coef: Any) -> Any:
    """Number of rows, in groups, of which vectors may be read: the last ends behind its row."""
    return max((n * size - coef.nbytes) // size + 1, 0) // _GROUP * _GROUP


@_rows
def _rest_of(X: Any) -> Any:
    """Copy of rows, with zeros behind them that make groups and the last vector whole."""
    n, size = len(X), X.shape[1] * X.itemsize
    rest = _zeros((n + _GROUP - 1) // _GROUP * _GROUP * size + LINE, np.uint8)
    given = array_at(pointer(X.ctypes.data), n * size, np.uint8)
    for i in range(n * size):
        rest[i] = given[i]
    return rest


@_rows
def _rest_of_numbers(numbers: Any, start: Any) -> Any:
    """Copy of what rows have one number of, likewise; of no numbers none."""
    n = max(len(numbers) - start, 0)
    rest = _zeros((n + _GROUP - 1) // _GROUP * _GROUP, numbers.dtype)
    for i in range(n):
        rest[i] = numbers[start + i]
    return rest


@_rows
def _products(rows: Any, size: Any, coef: Any, raw: Any) -> None:
    """Products of a group of rows, `size` bytes each, with the coefficients."""
    dtype, w_at, raw_at = coef.dtype, coef.ctypes.data, raw.ctypes.data
    for i in range(0, _GROUP, 4):
        a, b, c, d = zeros(dtype), zeros(dtype), zeros(dtype), zeros(dtype)
        for k in range(0, coef.nbytes, LINE):
            w, at = load(w_at + k, dtype), rows + i * size + k
            prefetch(at + _AHEAD)
            prefetch(at + 2 * size + _AHEAD)
            a = multiply_add(load(at, dtype), w, a)
            b = multiply_add(load(at + size, dtype), w, b)
            c = multiply_add(load(at + 2 * size, dtype), w, c)
            d = multiply_add(load(at + 3 * size, dtype), w, d)
        store_sums(raw_at + i * coef.itemsize, a, b, c, d)


@_rows
def _add_shares(rows: Any, size: Any, g: Any, part: Any) -> None:
    """Add the rows of a group, each times its number, to `part`, which is in whole vectors."""
    dtype, part_at = part.dtype, part.ctypes.data
    for k in range(0, part.nbytes, LINE):
        a, b, c, d = load(part_at + k, dtype), zeros(dtype), zeros(dtype), zeros(dtype)
        for i in range(0, _GROUP, 4):
            at = rows + i * size + k
            prefetch(at + size + _AHEAD)
            prefetch(at + 3 * size + _AHEAD)
            a = multiply_add(load(at, dtype), spread(g[i]), a)
            b = multiply_add(load(at + size, dtype), spread(g[i + 1]), b)
            c = multiply_add(load(at + 2 * size, dtype), spread(g[i + 2]), c)
            d = multiply_add(load(at + 3 * size, dtype), spread(g[i + 3]), d)
        store(part_at + k, plus(plus(a, b), plus(c, d)))


@_rows
def _log_losses(y: Any, bias: Any, raw: Any, values: Any) -> None:
    """Loss of each row of a group into `values`, its derivative into `raw`."""
    for i in range(_GROUP):
        values[i], slope = log_loss(y[i] * (raw[i] + bias))
        raw[i] = y[i] * slope


@_rows
def _curvatures(y: Any, bias: Any, raw: Any, roots: Any) -> None:
    """Root of the second derivative of each row of a group."""
    for i in range(_GROUP):
        roots[i] = np.sqrt(curvature(y[i] * (raw[i] + bias)))


@_rows
def _weigh(weight: Any, numbers: Any) -> None:
    for i in range(_GROUP):
        numbers[i] *= weight[i]


@_rows
def _scale_rows(rows: Any, weight: Any, roots: Any, scaled: Any) -> float:
    """Each row, and a 1 behind it, times the root of its weight and curvature.

    Returns the weight of the rows without curvature.
    """
    flat, n_features = 0.0, rows.shape[1]
    for i in range(len(rows)):
        of_row = np.float64(weight[i]) if len(weight) else 1.0
        flat += of_row if roots[i] == 0 else 0.0
        root = roots[i] * np.sqrt(weight[i]) if len(weight) else roots[i]
        for j in range(n_features):
            scaled[i, j] = rows[i, j] * root
        scaled[i, n_features] = root
    return flat


@_sums
def _total(numbers: Any) -> float:
    total = 0.0
    for i in range(len(numbers)):
        total += np.float64(numbers[i])
    return total


@_rows
def _in_tile(
    X: Any, rows: Any, size: Any, y: Any, weight: Any, bias: Any, coef: Any, raw: Any, values: Any,
    roots: Any, part: Any, scaled: Any,
) -> float:  # fmt: skip
    """Losses of a few groups of rows, their derivatives, and their share of the gradient.

    Returns the weight of the rows without curvature.
    """
    flat = 0.0
    for i in range(0, len(raw), _GROUP):
        _products(rows + i * size, size, coef, raw[i:])
    for i in range(0, len(raw), _GROUP):
        if len(scaled):
            some = slice(i, i + _GROUP)
            _curvatures(y[i:], bias, raw[i:], roots)
            flat += _scale_rows(X[some], weight[i:], roots, scaled[some])
        _log_losses(y[i:], bias, raw[i:], values[i:])
        if len(weight):
            _weigh(weight[i:], raw[i:])
            _weigh(weight[i:], values[i:])
    for i in range(0, len(raw), _GROUP):
        _add_shares(rows + i * size, size, raw[i:], part)
    return flat


@_once
def _in_groups(
    X: Any, read: Any, y: Any, weight: Any, bias: Any, coef: Any, sums: Any, scaled: Any
) -> Any:
    """Add the gradient of some rows; return their loss, and the weight of those without curvature.

    What is read is the bytes of `X` itself or of a copy; `y` and `weight` are of whole groups.
    """
    (n, n_features), size, dtype = X.shape, X.shape[1] * X.itemsize, coef.dtype
    raw, values = np.empty(_MOST_ROWS, dtype), np.empty(_MOST_ROWS, dtype)
    roots, part = np.empty(_GROUP, dtype), np.empty(len(coef), dtype)
    rows, step = read.ctypes.data, max(1, _TILE // (_GROUP * size)) * _GROUP
    loss = flat = 0.0
    for start in range(0, len(y), _MOST_ROWS):
        for j in range(len(part)):
            part[j] = 0
        end = min(start + _MOST_ROWS, len(y))
        for i in range(start, end, step):
            some = slice(i, min(i + step, end))
            here = slice(some.start - start, some.stop - start)
            flat += _in_tile(
                X[some], rows + i * size, size, y[some], weight[some], bias, coef, raw[here],
                values[here], roots, part, scaled[some],
            )  # fmt: skip
        counted = min(end, n) - start
        loss += _total(values[:counted])
        for j in range(n_features):
            sums[j] += part[j]
        if len(sums) > n_features:
            sums[n_features] += _total(raw[:counted])
    return loss, flat


def _add_log_loss(X: Any, y: Any, weight: Any, w: Any, out: Any, scaled: Any) -> Any:
    """Add the gradient of the summed log loss to `out`.

    Parameters
    ----------
    X : C-ordered ndarray of shape (n, n_features), float32 or float64, at any address
    y : ndarray of shape (n,), -1 or +1
    weight : ndarray of shape (n,), or of shape (0,) where rows have none
    w : ndarray of shape (n_features,), or one longer with an intercept
    out : ndarray of float64 of the shape of `w`
    scaled : C-ordered ndarray of shape (n, at least n_features + 1), or (0, 0)
        Gets the rows, each with a 1 behind it, times the root of their weight and curvature: of
        their products is the Hessian.

    Returns
    -------
    loss, flat : float
        Sum of the losses; weight of the rows without curvature, where `scaled` is asked for.
    """
    (n, n_features), size = X.shape, X.shape[1] * X.itemsize
    sums, coef = _zeros(len(w), np.float64), _in_vectors(w, n_features)
    bias = w[n_features] if len(w) > n_features else w.dtype.type(0)
    m = _n_in_place(n, size, coef)
    # Arrays of the same types as those of the rest: compiling takes seconds for each other one.
    read = array_at(pointer(X.ctypes.data), m * size, np.uint8)
    ys = array_at(pointer(y.ctypes.data), m, y.dtype)
    weights = array_at(pointer(weight.ctypes.data), min(m, len(weight)), y.dtype)
    first, flat = _in_groups(X[:m], read, ys, weights, bias, coef, sums, scaled[:m])
    read, ys, weights = _rest_of(X[m:]), _rest_of_numbers(y, m), _rest_of_numbers(weight, m)
    last, more = _in_groups(X[m:], read, ys, weights, bias, coef, sums, scaled[m:])
    for j in range(len(w)):
        out[j] += sums[j]
    return first + last, flat + more


#: By the name of the loss.
KERNELS = {"log_loss": _add_log_loss}


@cache
def kernel(loss: str, dtype: str) -> Any:
    """The kernel of a loss compiled for rows of a dtype.

    One version takes arrays that are read-only and others; X may start at any byte.
    """
    scalar = numba.from_dtype(np.dtype(dtype))
    matrix = types.Array(scalar, 2, "C", readonly=True, aligned=False)
    row, room = types.Array(scalar, 1, "C", readonly=True), types.Array(scalar, 2, "C")
    sums = types.Array(types.float64, 1, "C")
    signature = types.UniTuple(types.float64, 2)(matrix, row, row, row, sums, room)
    return numba.njit(signature, nogil=True, cache=True)(KERNELS[loss])
