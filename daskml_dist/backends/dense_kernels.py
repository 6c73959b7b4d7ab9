"""numba kernels over dense rows: loss and gradient in one reading of X, the GIL released.

Rows are taken in groups that the first-level cache holds: the products of a group with the
parameters, the losses, and the group's share of the gradient follow each other while it is there,
and memory is asked for the rows behind it meanwhile. Rows may start at any byte. Sums over many
rows are float64, whatever X is, so that a full batch of float32 rows stays accurate.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np
from numba import types

from daskml_dist.backends.compiled import compiled_in_turn, compiled_inside
from daskml_dist.backends.intrinsics import (
    LINE,
    load,
    multiply_add,
    number_at,
    plus,
    prefetch,
    put_number,
    spread,
    store,
    store_sums,
    zeros,
)
from daskml_dist.backends.margins import CONTRACTED, curvature, log_loss

__all__ = ["KERNELS", "kernel"]

#: Rows of a group; a multiple of 4.
_GROUP = 16
#: Bytes of the groups that are worked on together.
_TILE = 4096
#: Rows whose shares are added up in X's own dtype.
_MOST_ROWS = 1024
#: Bytes that memory is asked for ahead.
_AHEAD = 4096

# What follows is compiled in a first fit, for two seconds of CPU. It took six: numba compiles each
# slice and each new array, and a function once more with each function around it. So the kernel is
# one function, its scratch comes from Python, and numbers are read by their addresses.
_part = compiled_inside(forceinline=True, **CONTRACTED)
_sums = compiled_inside(forceinline=True, fastmath={"reassoc", "contract", "nsz"})


@_part
def _products(rows: Any, size: Any, coef: Any, n_bytes: Any, raw: Any, item: Any, of: Any) -> None:
    """Write the products of a group of rows, `size` bytes each, with `n_bytes` of coefficients."""
    for i in range(0, _GROUP, 4):
        a, b, c, d = zeros(of), zeros(of), zeros(of), zeros(of)
        for k in range(0, n_bytes, LINE):
            w, at = load(coef + k, of), rows + i * size + k
            prefetch(at + _AHEAD)
            prefetch(at + 2 * size + _AHEAD)
            a = multiply_add(load(at, of), w, a)
            b = multiply_add(load(at + size, of), w, b)
            c = multiply_add(load(at + 2 * size, of), w, c)
            d = multiply_add(load(at + 3 * size, of), w, d)
        store_sums(raw + i * item, a, b, c, d)


@_part
def _add_shares(rows: Any, size: Any, slopes: Any, part: Any, n_bytes: Any, of: Any) -> None:
    """Add the rows of a group, each times its slope, to `part`, which is in whole vectors."""
    for k in range(0, n_bytes, LINE):
        a, b, c, d = load(part + k, of), zeros(of), zeros(of), zeros(of)
        for i in range(0, _GROUP, 4):
            at = rows + i * size + k
            prefetch(at + size + _AHEAD)
            prefetch(at + 3 * size + _AHEAD)
            a = multiply_add(load(at, of), spread(number_at(slopes, i, of)), a)
            b = multiply_add(load(at + size, of), spread(number_at(slopes, i + 1, of)), b)
            c = multiply_add(load(at + 2 * size, of), spread(number_at(slopes, i + 2, of)), c)
            d = multiply_add(load(at + 3 * size, of), spread(number_at(slopes, i + 3, of)), d)
        store(part + k, plus(plus(a, b), plus(c, d)))


@_part
def _log_losses(y: Any, bias: Any, raw: Any, values: Any, n: Any, of: Any) -> None:
    """Write the loss of each of n rows into `values`, its derivative into `raw`."""
    for i in range(n):
        sign = number_at(y, i, of)
        value, slope = log_loss(sign * (number_at(raw, i, of) + bias))
        put_number(values, i, value)
        put_number(raw, i, sign * slope)


@_part
def _curvatures(y: Any, bias: Any, raw: Any, roots: Any, of: Any) -> None:
    """Write the root of the second derivative of each row of a group."""
    for i in range(_GROUP):
        margin = number_at(y, i, of) * (number_at(raw, i, of) + bias)
        put_number(roots, i, np.sqrt(curvature(margin)))


@_part
def _weigh(weight: Any, numbers: Any, n: Any, of: Any) -> None:
    """Multiply n numbers by weights."""
    for i in range(n):
        put_number(numbers, i, number_at(numbers, i, of) * number_at(weight, i, of))


@_part
def _scale_rows(
    rows: Any, n: Any, n_features: Any, weight: Any, roots: Any, scaled: Any, n_columns: Any,
    of: Any,
) -> float:  # fmt: skip
    """Write each of n rows, and a 1 behind it, times the root of its weight and curvature.

    Returns the weight of the rows without curvature; `weight` is 0 where there are none.
    """
    flat = 0.0
    for i in range(n):
        root = number_at(roots, i, of)
        of_row = 1.0
        if weight != 0:
            of_row = np.float64(number_at(weight, i, of))
        flat += of_row if root == 0 else 0.0
        if weight != 0:
            root *= np.sqrt(number_at(weight, i, of))
        for j in range(n_features):
            value = number_at(rows, i * n_features + j, of) * root
            put_number(scaled, i * n_columns + j, value)
        put_number(scaled, i * n_columns + n_features, root)
    return flat


@_sums
def _total(numbers: Any, n: Any, of: Any) -> float:
    """Return the sum of n numbers."""
    total = 0.0
    for i in range(n):
        total += np.float64(number_at(numbers, i, of))
    return total


@_part
def _copy(to: Any, numbers: Any, n: Any, n_whole: Any, of: Any) -> None:
    """Copy n numbers, with zeros behind them up to `n_whole`."""
    for i in range(n):
        put_number(to, i, number_at(numbers, i, of))
    for i in range(n, n_whole):
        put_number(to, i, of.type(0))


def _add_log_loss(
    X: Any, y: Any, weight: Any, w: Any, out: Any, scaled: Any, room: Any, in_place: Any,
    n_bytes: Any,
) -> Any:  # fmt: skip
    """Add the gradient of the summed log loss to `out`.

    Parameters
    ----------
    X : C-ordered ndarray of shape (n, n_features), float32 or float64, at any address
    y : ndarray of shape (n,), -1 or +1
    weight : ndarray of shape (n,), or of shape (0,) where rows have none
    w : ndarray of shape (n_features,), or one longer with an intercept
    out : ndarray of float64 of the shape of `w`
    scaled : C-ordered ndarray of shape (n, at least n_features + 1), or None
        Gets the rows, each with a 1 behind it, times the root of their weight and curvature: of
        their products is the Hessian. numba then compiles this, and else does not.
    room : ndarray of the dtype of X
        Scratch, as long as `kernel` makes it.
    in_place : int
        Rows, in whole groups, of which vectors may be read where they are. Of the rows behind them
        a copy is read, with zeros behind it that make groups and the last vector whole.
    n_bytes : int
        Of the coefficients, in whole vectors.
    """
    n, n_features = X.shape
    of, item = w.dtype, w.itemsize
    size = n_features * item
    n_rest = (n - in_place + _GROUP - 1) // _GROUP * _GROUP
    # Addresses in the room, of scratch and of the copies. Vectors begin where cache lines do. They
    # have a sign: of a sum of numbers with and without one numba makes a float.
    raw = (np.int64(room.ctypes.data) + LINE - 1) // LINE * LINE
    values = raw + _MOST_ROWS * item
    roots = values + _MOST_ROWS * item
    part = roots + _GROUP * item
    coef = part + n_bytes
    rest_y = coef + n_bytes
    rest_weight = rest_y + n_rest * item
    rest = rest_weight + n_rest * item
    sums, of_sums = rest + n_rest * size + LINE, out.dtype
    X_at, y_at = np.int64(X.ctypes.data), np.int64(y.ctypes.data)
    weight_at = np.int64(weight.ctypes.data)
    weighted, bias = len(weight) > 0, of.type(0)
    if len(w) > n_features:
        bias = w[n_features]
    for j in range(len(w)):
        put_number(sums, j, 0.0)
    _copy(coef, np.int64(w.ctypes.data), n_features, n_bytes // item, of)
    left = n - in_place
    whole = n_rest * n_features + LINE // item
    _copy(rest, X_at + in_place * size, left * n_features, whole, of)
    _copy(rest_y, y_at + in_place * item, left, n_rest, of)
    if weighted:
        _copy(rest_weight, weight_at + in_place * item, left, n_rest, of)

    step = _TILE // (_GROUP * size) * _GROUP
    if step == 0:
        step = _GROUP
    loss = flat = 0.0
    for copied in range(2):
        rows, ys, weights, n_there, n_whole = X_at, y_at, weight_at, in_place, in_place
        if copied:
            rows, ys, weights, n_there, n_whole = rest, rest_y, rest_weight, left, n_rest
        for start in range(0, n_whole, _MOST_ROWS):
            for j in range(n_bytes // item):
                put_number(part, j, of.type(0))
            end = start + _MOST_ROWS if start + _MOST_ROWS < n_whole else n_whole
            for first in range(start, end, step):
                last = first + step if first + step < end else end
                for i in range(first, last, _GROUP):
                    _products(
                        rows + i * size, size, coef, n_bytes, raw + (i - start) * item, item, of
                    )
                own_raw, own_values = raw + (first - start) * item, values + (first - start) * item
                if scaled is not None:
                    for i in range(first, last, _GROUP):
                        _curvatures(ys + i * item, bias, raw + (i - start) * item, roots, of)
                        n_own = _GROUP if i + _GROUP < n_there else n_there - i
                        to = (copied * in_place + i) * scaled.shape[1] * item
                        flat += _scale_rows(
                            rows + i * size, n_own, n_features,
                            weights + i * item if weighted else 0, roots,
                            np.int64(scaled.ctypes.data) + to, scaled.shape[1], of,
                        )  # fmt: skip
                _log_losses(ys + first * item, bias, own_raw, own_values, last - first, of)
                if weighted:
                    _weigh(weights + first * item, own_raw, last - first, of)
                    _weigh(weights + first * item, own_values, last - first, of)
                for i in range(first, last, _GROUP):
                    _add_shares(rows + i * size, size, raw + (i - start) * item, part, n_bytes, of)
            counted = (end if end < n_there else n_there) - start
            loss += _total(values, counted, of)
            for j in range(n_features):
                put_number(sums, j, number_at(sums, j, of_sums) + number_at(part, j, of))
            if len(w) > n_features:
                slopes = number_at(sums, n_features, of_sums) + _total(raw, counted, of)
                put_number(sums, n_features, slopes)
    for j in range(len(w)):
        out[j] += number_at(sums, j, of_sums)
    return loss, flat


#: By the name of the loss.
KERNELS = {"log_loss": _add_log_loss}


@cache
def kernel(loss: str, dtype: str, curved: bool = False) -> Callable[..., tuple[float, float]]:
    """Return the kernel of a loss compiled for rows of a dtype.

    One version takes arrays that are read-only and others; X may start at any byte.
    """
    numbers: np.dtype[Any] = np.dtype(dtype)
    scalar = numba.from_dtype(numbers)
    matrix = types.Array(scalar, 2, "C", readonly=True, aligned=False)
    row, room = types.Array(scalar, 1, "C", readonly=True), types.Array(scalar, 1, "C")
    scaled = types.Array(scalar, 2, "C") if curved else types.none
    sums = types.Array(types.float64, 1, "C")
    signature = types.UniTuple(types.float64, 2)(
        matrix, row, row, row, sums, scaled, room, types.int64, types.int64
    )
    run = compiled_in_turn(KERNELS[loss], signature)

    def add(X: Any, y: Any, weight: Any, w: Any, out: Any, scaled: Any = None) -> Any:
        in_place, n_bytes, n_room = _layout(*X.shape, len(w), numbers.itemsize)
        room = np.empty(n_room, numbers)
        found: tuple[float, float] = run(X, y, weight, w, out, scaled, room, in_place, n_bytes)
        return found

    return add


@lru_cache(maxsize=1024)
def _layout(n: int, n_features: int, n_parameters: int, item: int) -> tuple[int, int, int]:
    """Return the last arguments of `_add_log_loss`, and how long its room is."""
    size = n_features * item
    n_bytes = (size + LINE - 1) // LINE * LINE
    # The last vector of a row ends behind the row.
    in_place = max((n * size - n_bytes) // size + 1, 0) // _GROUP * _GROUP
    n_rest = (n - in_place + _GROUP - 1) // _GROUP * _GROUP
    in_bytes = 2 * n_bytes + 2 * LINE + 8 * n_parameters
    return in_place, n_bytes, 2 * _MOST_ROWS + _GROUP + n_rest * (2 + n_features) + in_bytes // item
