"""numba kernels over dense rows: loss and gradient in one reading of X, without the GIL.

Rows are processed in groups that fit in the L1 cache: the products of a group with the parameters,
the losses, and the group's contribution to the gradient are computed while it is cached, and the
following rows are prefetched meanwhile. Rows may start at any byte. Sums over many rows are
float64, whatever the dtype of X, so that a full batch of float32 rows stays accurate.

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
from daskml_dist.backends.elementary_functions import CONTRACTED, curvature, log_loss
from daskml_dist.backends.intrinsics import (
    VECTOR_BYTES,
    add_vectors,
    broadcast_number,
    load_vector,
    multiply_add,
    number_at,
    prefetch,
    put_number,
    store_four_sums,
    store_vector,
    zero_vector,
)

#: Rows of a group; a multiple of 4.
_ROWS_PER_GROUP = 16
#: Bytes of the groups that are processed together.
_TILE_BYTES = 4096
#: Rows whose contributions are added up in X's dtype.
_MAX_ROWS_PER_SUM = 1024
#: Bytes that are prefetched ahead.
_BYTES_AHEAD = 4096

# The functions below are compiled in a first fit, in two seconds of CPU time. It used to be six:
# numba compiles each slice and each new array, and a function again with each enclosing function.
# So the kernel is one function, its scratch memory comes from Python, and numbers are read by
# address.
_contracted_inside = compiled_inside(forceinline=True, **CONTRACTED)
_reordered_inside = compiled_inside(forceinline=True, fastmath={"reassoc", "contract", "nsz"})


@_contracted_inside
def _multiply_group(
    rows: Any, size: Any, coef: Any, n_bytes: Any, raw: Any, item: Any, dtype: Any
) -> None:
    """Write the products of a group of rows (`size` bytes each) with `n_bytes` of coefficients."""
    for i in range(0, _ROWS_PER_GROUP, 4):
        # Four rows by a vector of features at a time: one load of the coefficients is used for four
        # rows.
        a, b, c, d = zero_vector(dtype), zero_vector(dtype), zero_vector(dtype), zero_vector(dtype)
        for k in range(0, n_bytes, VECTOR_BYTES):
            w, address = load_vector(coef + k, dtype), rows + i * size + k
            # Ahead by a tile: the hardware prefetcher stops at page boundaries.
            prefetch(address + _BYTES_AHEAD)
            prefetch(address + 2 * size + _BYTES_AHEAD)
            a = multiply_add(load_vector(address, dtype), w, a)
            b = multiply_add(load_vector(address + size, dtype), w, b)
            c = multiply_add(load_vector(address + 2 * size, dtype), w, c)
            d = multiply_add(load_vector(address + 3 * size, dtype), w, d)
        store_four_sums(raw + i * item, a, b, c, d)


@_contracted_inside
def _add_group_gradient(
    rows: Any, size: Any, slopes: Any, gradient: Any, n_bytes: Any, dtype: Any
) -> None:
    """Add the rows of a group, each times its slope, to `gradient`, which has whole vectors."""
    for k in range(0, n_bytes, VECTOR_BYTES):
        # A vector of the gradient stays in registers during the loop over the 16 rows of the group.
        a, b, c, d = (
            load_vector(gradient + k, dtype),
            zero_vector(dtype),
            zero_vector(dtype),
            zero_vector(dtype),
        )
        for i in range(0, _ROWS_PER_GROUP, 4):
            address = rows + i * size + k
            prefetch(address + size + _BYTES_AHEAD)
            prefetch(address + 3 * size + _BYTES_AHEAD)
            a = multiply_add(
                load_vector(address, dtype), broadcast_number(number_at(slopes, i, dtype)), a
            )
            b = multiply_add(
                load_vector(address + size, dtype),
                broadcast_number(number_at(slopes, i + 1, dtype)),
                b,
            )
            c = multiply_add(
                load_vector(address + 2 * size, dtype),
                broadcast_number(number_at(slopes, i + 2, dtype)),
                c,
            )
            d = multiply_add(
                load_vector(address + 3 * size, dtype),
                broadcast_number(number_at(slopes, i + 3, dtype)),
                d,
            )
        store_vector(gradient + k, add_vectors(add_vectors(a, b), add_vectors(c, d)))


@_contracted_inside
def _write_log_losses(y: Any, bias: Any, raw: Any, values: Any, n: Any, dtype: Any) -> None:
    """Write the loss of each of n rows into `values`, its derivative into `raw`."""
    for i in range(n):
        # y is -1 or +1, so y * raw is the margin.
        sign = number_at(y, i, dtype)
        value, slope = log_loss(sign * (number_at(raw, i, dtype) + bias))
        put_number(values, i, value)
        put_number(raw, i, sign * slope)


@_contracted_inside
def _write_curvature_roots(y: Any, bias: Any, raw: Any, roots: Any, dtype: Any) -> None:
    """Write the square root of the second derivative for each row of a group."""
    for i in range(_ROWS_PER_GROUP):
        margin = number_at(y, i, dtype) * (number_at(raw, i, dtype) + bias)
        put_number(roots, i, np.sqrt(curvature(margin)))


@_contracted_inside
def _multiply_weights(weight: Any, values: Any, n: Any, dtype: Any) -> None:
    """Multiply n numbers by weights."""
    for i in range(n):
        put_number(values, i, number_at(values, i, dtype) * number_at(weight, i, dtype))


@_contracted_inside
def _scale_rows(
    rows: Any, n: Any, n_features: Any, weight: Any, roots: Any, scaled: Any, n_columns: Any,
    dtype: Any,
) -> float:  # fmt: skip
    """Write n rows, each followed by a 1, times the square root of its weight and curvature.

    Return the weight of the rows without curvature; `weight` is 0 if there are no weights.
    """
    flat = 0.0
    for i in range(n):
        # Rows times the square root of their curvature: the Hessian is then X'X of the scaled rows.
        root = number_at(roots, i, dtype)
        of_row = 1.0
        if weight != 0:
            of_row = np.float64(number_at(weight, i, dtype))
        flat += of_row if root == 0 else 0.0
        if weight != 0:
            root *= np.sqrt(number_at(weight, i, dtype))
        for j in range(n_features):
            value = number_at(rows, i * n_features + j, dtype) * root
            put_number(scaled, i * n_columns + j, value)
        put_number(scaled, i * n_columns + n_features, root)
    return flat


@_reordered_inside
def _sum_numbers(values: Any, n: Any, dtype: Any) -> float:
    """Return the sum of n numbers."""
    total = 0.0
    for i in range(n):
        total += np.float64(number_at(values, i, dtype))
    return total


@_contracted_inside
def _copy_padded(destination: Any, values: Any, n: Any, n_whole: Any, dtype: Any) -> None:
    """Copy n numbers, followed by zeros up to `n_whole`."""
    for i in range(n):
        put_number(destination, i, number_at(values, i, dtype))
    for i in range(n, n_whole):
        put_number(destination, i, dtype.type(0))


def _add_log_loss_gradient(
    X: Any, y: Any, weight: Any, w: Any, out: Any, scaled: Any, scratch: Any, in_place: Any,
    n_bytes: Any,
) -> Any:  # fmt: skip
    """Add the gradient of the summed log loss to `out`.

    Parameters
    ----------
    X : C-ordered ndarray of shape (n, n_features), float32 or float64, at any address
    y : ndarray of shape (n,), -1 or +1
    weight : ndarray of shape (n,), or of shape (0,) if rows have none
    w : ndarray of shape (n_features,), or one longer with an intercept
    out : ndarray of float64 of the shape of `w`
    scaled : C-ordered ndarray of shape (n, at least n_features + 1), or None
        Receives the rows, each followed by a 1, times the square root of their weight and
        curvature: the Hessian is the product of these rows. numba compiles this part only if it is
        not None.
    scratch : ndarray of the dtype of X
        Scratch memory, of the length that `compile_kernel` computes.
    in_place : int
        Rows (in whole groups) whose vectors may be read in place. The following rows are read from
        a copy, padded with zeros to whole groups and whole vectors.
    n_bytes : int
        Bytes of the coefficients, in whole vectors.
    """
    n, n_features = X.shape
    dtype, item = w.dtype, w.itemsize
    size = n_features * item
    n_rest = (n - in_place + _ROWS_PER_GROUP - 1) // _ROWS_PER_GROUP * _ROWS_PER_GROUP
    # Addresses of arrays and copies in `scratch`. Vectors begin at cache lines. Addresses are
    # signed: numba turns the sum of a signed and an unsigned integer into a float.
    raw = (np.int64(scratch.ctypes.data) + VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES
    values = raw + _MAX_ROWS_PER_SUM * item
    roots = values + _MAX_ROWS_PER_SUM * item
    part = roots + _ROWS_PER_GROUP * item
    coef = part + n_bytes
    rest_y = coef + n_bytes
    rest_weight = rest_y + n_rest * item
    rest_rows = rest_weight + n_rest * item
    sums, of_sums = rest_rows + n_rest * size + VECTOR_BYTES, out.dtype
    X_at, y_at = np.int64(X.ctypes.data), np.int64(y.ctypes.data)
    weight_at = np.int64(weight.ctypes.data)
    weighted, bias = len(weight) > 0, dtype.type(0)
    if len(w) > n_features:
        bias = w[n_features]
    for j in range(len(w)):
        put_number(sums, j, 0.0)
    _copy_padded(coef, np.int64(w.ctypes.data), n_features, n_bytes // item, dtype)
    n_copied = n - in_place
    n_padded = n_rest * n_features + VECTOR_BYTES // item
    _copy_padded(rest_rows, X_at + in_place * size, n_copied * n_features, n_padded, dtype)
    _copy_padded(rest_y, y_at + in_place * item, n_copied, n_rest, dtype)
    if weighted:
        _copy_padded(rest_weight, weight_at + in_place * item, n_copied, n_rest, dtype)

    step = _TILE_BYTES // (_ROWS_PER_GROUP * size) * _ROWS_PER_GROUP
    if step == 0:
        step = _ROWS_PER_GROUP
    loss = flat = 0.0
    for copied in range(2):
        rows, ys, weights, n_there, n_whole = X_at, y_at, weight_at, in_place, in_place
        if copied:
            rows, ys, weights, n_there, n_whole = rest_rows, rest_y, rest_weight, n_copied, n_rest
        for start in range(0, n_whole, _MAX_ROWS_PER_SUM):
            for j in range(n_bytes // item):
                put_number(part, j, dtype.type(0))
            end = start + _MAX_ROWS_PER_SUM if start + _MAX_ROWS_PER_SUM < n_whole else n_whole
            for first in range(start, end, step):
                last = first + step if first + step < end else end
                for i in range(first, last, _ROWS_PER_GROUP):
                    _multiply_group(
                        rows + i * size, size, coef, n_bytes, raw + (i - start) * item, item, dtype
                    )
                own_raw, own_values = raw + (first - start) * item, values + (first - start) * item
                if scaled is not None:
                    for i in range(first, last, _ROWS_PER_GROUP):
                        _write_curvature_roots(
                            ys + i * item, bias, raw + (i - start) * item, roots, dtype
                        )
                        n_own = _ROWS_PER_GROUP if i + _ROWS_PER_GROUP < n_there else n_there - i
                        scaled_offset = (copied * in_place + i) * scaled.shape[1] * item
                        flat += _scale_rows(
                            rows + i * size, n_own, n_features,
                            weights + i * item if weighted else 0, roots,
                            np.int64(scaled.ctypes.data) + scaled_offset, scaled.shape[1], dtype,
                        )  # fmt: skip
                _write_log_losses(ys + first * item, bias, own_raw, own_values, last - first, dtype)
                if weighted:
                    _multiply_weights(weights + first * item, own_raw, last - first, dtype)
                    _multiply_weights(weights + first * item, own_values, last - first, dtype)
                for i in range(first, last, _ROWS_PER_GROUP):
                    _add_group_gradient(
                        rows + i * size, size, raw + (i - start) * item, part, n_bytes, dtype
                    )
            counted = (end if end < n_there else n_there) - start
            loss += _sum_numbers(values, counted, dtype)
            for j in range(n_features):
                put_number(sums, j, number_at(sums, j, of_sums) + number_at(part, j, dtype))
            if len(w) > n_features:
                slopes = number_at(sums, n_features, of_sums) + _sum_numbers(raw, counted, dtype)
                put_number(sums, n_features, slopes)
    for j in range(len(w)):
        out[j] += number_at(sums, j, of_sums)
    return loss, flat


#: Kernels by the name of the loss.
KERNELS = {"log_loss": _add_log_loss_gradient}


@cache
def compile_kernel(
    loss: str, dtype: str, curved: bool = False
) -> Callable[..., tuple[float, float]]:
    """Return the kernel of a loss compiled for rows of a dtype.

    One version accepts read-only and writable arrays; X may start at any byte.
    """
    numbers: np.dtype[Any] = np.dtype(dtype)
    scalar = numba.from_dtype(numbers)
    matrix = types.Array(scalar, 2, "C", readonly=True, aligned=False)
    row, scratch = types.Array(scalar, 1, "C", readonly=True), types.Array(scalar, 1, "C")
    scaled = types.Array(scalar, 2, "C") if curved else types.none
    sums = types.Array(types.float64, 1, "C")
    signature = types.UniTuple(types.float64, 2)(
        matrix, row, row, row, sums, scaled, scratch, types.int64, types.int64
    )
    run = compiled_in_turn(KERNELS[loss], signature)

    def add(X: Any, y: Any, weight: Any, w: Any, out: Any, scaled: Any = None) -> Any:
        in_place, n_bytes, n_scratch = _plan_scratch(*X.shape, len(w), numbers.itemsize)
        scratch = np.empty(n_scratch, numbers)
        sums: tuple[float, float] = run(X, y, weight, w, out, scaled, scratch, in_place, n_bytes)
        return sums

    return add


@lru_cache(maxsize=1024)
def _plan_scratch(n: int, n_features: int, n_parameters: int, item: int) -> tuple[int, int, int]:
    """Return the last arguments of `_add_log_loss_gradient`, and the length of its scratch."""
    size = n_features * item
    n_bytes = (size + VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES
    # The last vector of a row extends beyond the row.
    in_place = max((n * size - n_bytes) // size + 1, 0) // _ROWS_PER_GROUP * _ROWS_PER_GROUP
    n_rest = (n - in_place + _ROWS_PER_GROUP - 1) // _ROWS_PER_GROUP * _ROWS_PER_GROUP
    in_bytes = 2 * n_bytes + 2 * VECTOR_BYTES + 8 * n_parameters
    return (
        in_place,
        n_bytes,
        2 * _MAX_ROWS_PER_SUM + _ROWS_PER_GROUP + n_rest * (2 + n_features) + in_bytes // item,
    )
