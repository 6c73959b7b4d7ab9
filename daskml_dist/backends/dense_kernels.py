"""numba kernels over dense rows: loss and gradient in one reading of X, the GIL released.

Rows are taken in blocks that the second-level cache holds: the products of a block with the
parameters, the loss, and the block's share of the gradient follow each other while it is there.
Sums over blocks are float64, whatever X is, so that a full batch of float32 rows stays accurate.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

__all__ = ["AT_ROW", "KERNELS", "curved", "kernel"]

#: Bytes of X in a block: half of a usual second-level cache.
_BLOCK = 1 << 18
#: Rows of a block at most: BLAS adds them in X's own dtype.
_MOST_ROWS = 1024
# No reassociation where digits are won from the order of operations.
_ROWS: Any = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy", "cache": True}
_SUMS: Any = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "cache": True}
_F = TypeVar("_F", bound=Callable[..., Any])


def _rows(function: _F) -> _F:
    return cast("_F", numba.njit(**_ROWS)(function))


def _inlined(function: _F) -> _F:
    return cast("_F", numba.njit(inline="always", **_ROWS)(function))


def _sums(function: _F) -> _F:
    return cast("_F", numba.njit(**_SUMS)(function))


_f4, _f8 = np.float32, np.float64
_i4, _i8 = np.int32, np.int64


@_inlined
def _exp_f4(x: Any) -> Any:
    """exp(x) for x <= 0: a power of two times a Taylor polynomial; LLVM makes vectors of it."""
    x = _f4(-87) if x < _f4(-87) else x  # NaN stays NaN
    # Adding 1.5 * 2**23 leaves the nearest integer in the last bits.
    shifted = x * _f4(1.4426950408889634) + _f4(12582912)
    k = shifted - _f4(12582912)
    r = (x - k * _f4(0.693359375)) - k * _f4(-2.12194440e-4)
    p = _f4(1 / 5040) * r + _f4(1 / 720)
    p = p * r + _f4(1 / 120)
    p = p * r + _f4(1 / 24)
    p = p * r + _f4(1 / 6)
    p = p * r + _f4(0.5)
    p = p * r + _f4(1)
    p = p * r + _f4(1)
    return p * _i4((_f4(shifted).view(np.int32) + _i4(127)) << _i4(23)).view(np.float32)


@_inlined
def _exp_f8(x: Any) -> Any:
    x = -708.0 if x < -708.0 else x
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    k = shifted - 6755399441055744.0
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = 1 / 6227020800 * r + 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _i8((_f8(shifted).view(np.int64) + _i8(1023)) << _i8(52)).view(np.float64)


@_inlined
def _log1p_f4(e: Any) -> Any:
    """log(1 + e) for 0 <= e <= 1: the series of 2 atanh(e / (2 + e))."""
    s = e / (_f4(2) + e)
    q = s * s
    p = _f4(1 / 15) * q + _f4(1 / 13)
    p = p * q + _f4(1 / 11)
    p = p * q + _f4(1 / 9)
    p = p * q + _f4(1 / 7)
    p = p * q + _f4(1 / 5)
    p = p * q + _f4(1 / 3)
    p = p * q + _f4(1)
    return _f4(2) * s * p


@_inlined
def _log1p_f8(e: Any) -> Any:
    s = e / (2.0 + e)
    q = s * s
    p = 1 / 33 * q + 1 / 31
    p = p * q + 1 / 29
    p = p * q + 1 / 27
    p = p * q + 1 / 25
    p = p * q + 1 / 23
    p = p * q + 1 / 21
    p = p * q + 1 / 19
    p = p * q + 1 / 17
    p = p * q + 1 / 15
    p = p * q + 1 / 13
    p = p * q + 1 / 11
    p = p * q + 1 / 9
    p = p * q + 1 / 7
    p = p * q + 1 / 5
    p = p * q + 1 / 3
    p = p * q + 1.0
    return 2.0 * s * p


def _log_loss(margin: Any) -> Any:
    """Log loss of a margin and its derivative."""


def _log_loss_f4(margin: Any) -> Any:
    e = _exp_f4(-abs(margin))
    right = margin > _f4(0)
    value = _log1p_f4(e) - (_f4(0) if right else margin)
    return value, -(e if right else _f4(1)) / (_f4(1) + e)


def _log_loss_f8(margin: Any) -> Any:
    e = _exp_f8(-abs(margin))
    right = margin > 0.0
    value = _log1p_f8(e) - (0.0 if right else margin)
    return value, -(e if right else 1.0) / (1.0 + e)


@overload(_log_loss, jit_options=_ROWS, inline="always")
def _log_loss_of(margin: Any) -> Any:
    return _log_loss_f4 if margin == types.float32 else _log_loss_f8


@_inlined
def _log_loss_at_row(y: Any, raw: Any, parameters: Any) -> Any:
    value, slope = _log_loss(y * raw)
    return value, y * slope


@_rows
def _log_loss_rows(y: Any, raw: Any, values: Any) -> None:
    """Loss of each row into `values`, its derivative into `raw`."""
    for i in range(len(raw)):
        values[i], slope = _log_loss(y[i] * raw[i])
        raw[i] = y[i] * slope


@_sums
def _weigh(weight: Any, values: Any, g: Any) -> None:
    for i in range(len(g)):
        values[i] *= weight[i]
        g[i] *= weight[i]


@_sums
def _totals(values: Any, g: Any) -> Any:
    loss, slope = 0.0, 0.0
    for i in range(len(g)):
        loss += np.float64(values[i])
        slope += np.float64(g[i])
    return loss, slope


def _in_tile(X: Any, start: Any, stop: Any, tile: Any) -> Any:
    """Neighbouring rows, aligned."""


def _bytes_copied(typing: Any, source: Any, to: Any) -> Any:
    """Copy a C-ordered array to one of its size, wherever it begins."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, to = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        cgutils.raw_memcpy(builder, to.data, source.data, source.nitems, source.itemsize)
        return context.get_dummy_value()

    return types.void(source, to), codegen


_copy_bytes: Any = intrinsic(_bytes_copied)


@overload(_in_tile, inline="always")
def _in_tile_of(X: Any, start: Any, stop: Any, tile: Any) -> Any:
    def view(X: Any, start: Any, stop: Any, tile: Any) -> Any:
        return X[start:stop]

    def copy(X: Any, start: Any, stop: Any, tile: Any) -> Any:
        rows = tile[: stop - start]
        _copy_bytes(X[start:stop], rows)
        return rows

    return view if X.aligned else copy


def _add_log_loss(X: Any, y: Any, weight: Any, w: Any, out: Any) -> float:
    """Add the gradient of the summed log loss to `out`; return the summed loss.

    Parameters
    ----------
    X : C-ordered ndarray of shape (n, n_features), float32 or float64
        What starts at any byte is copied to a tile that the second-level cache holds.
    y : ndarray of shape (n,), -1 or +1
    weight : ndarray of shape (n,), or of shape (0,) where rows have none
    w : ndarray of shape (n_features,), or one longer with an intercept
    out : ndarray of the shape of `w`, of its dtype or float64
    """
    n, n_features = X.shape
    size = min(n, _MOST_ROWS, max(16, _BLOCK // (n_features * X.itemsize)))
    raw, values = np.empty(size, X.dtype), np.empty(size, X.dtype)
    tile = np.empty((size, n_features), X.dtype)
    part, sums = np.empty(n_features, X.dtype), np.zeros(len(w))
    coef, loss = w[:n_features], 0.0
    for start in range(0, n, size):
        stop = min(start + size, n)
        rows = _in_tile(X, start, stop, tile)
        g, v = raw[: stop - start], values[: stop - start]
        np.dot(rows, coef, g)
        if len(w) > n_features:
            g += w[n_features]
        _log_loss_rows(y[start:stop], g, v)
        if len(weight):
            _weigh(weight[start:stop], v, g)
        total, slope = _totals(v, g)
        loss += total
        np.dot(g, rows, part)
        for j in range(n_features):
            sums[j] += part[j]
        if len(w) > n_features:
            sums[n_features] += slope
    for j in range(len(w)):
        out[j] += sums[j]
    return loss


def _curvature(margin: Any) -> Any:
    """Second derivative of the log loss at a margin; zero where it is next to nothing."""


def _curvature_f4(margin: Any) -> Any:
    e = _exp_f4(-abs(margin))
    return e / ((_f4(1) + e) * (_f4(1) + e)) if abs(margin) < _f4(87) else _f4(0)


def _curvature_f8(margin: Any) -> Any:
    e = _exp_f8(-abs(margin))
    return e / ((1.0 + e) * (1.0 + e)) if abs(margin) < 708.0 else 0.0


@overload(_curvature, jit_options=_ROWS, inline="always")
def _curvature_of(margin: Any) -> Any:
    return _curvature_f4 if margin == types.float32 else _curvature_f8


@_rows
def _log_curvature_rows(y: Any, raw: Any, values: Any, roots: Any) -> None:
    """As `_log_loss_rows`, and the root of the second derivative of each row into `roots`."""
    for i in range(len(raw)):
        margin = y[i] * raw[i]
        values[i], slope = _log_loss(margin)
        raw[i] = y[i] * slope
        roots[i] = np.sqrt(_curvature(margin))


@_rows
def _weight_of_flat(weight: Any, roots: Any) -> float:
    """Weight of the rows without curvature; the others' roots are weighted."""
    flat = 0.0
    for i in range(len(roots)):
        of_row = np.float64(weight[i]) if len(weight) else 1.0
        flat += of_row if roots[i] == 0 else 0.0
        if len(weight):
            roots[i] *= np.sqrt(weight[i])
    return flat


@_rows
def _scale_rows(rows: Any, roots: Any, scaled: Any) -> None:
    """Each row, and a 1 behind it where there is room, times its root."""
    n_features = rows.shape[1]
    for i in range(len(rows)):
        for j in range(n_features):
            scaled[i, j] = rows[i, j] * roots[i]
        scaled[i, n_features] = roots[i]


def _add_log_curvature(
    X: Any, y: Any, weight: Any, w: Any, out: Any, scaled: Any, tile: Any
) -> Any:
    """As `_add_log_loss`, and the rows times the root of their curvature, for the Hessian.

    Parameters
    ----------
    scaled : C-ordered ndarray of shape (n, at least n_features + 1), of X's dtype
        Gets the rows, each with a 1 behind it, times the root of their weight and curvature.
    tile : C-ordered ndarray of shape (m, n_features), of X's dtype
        Memory for `m` rows, which are worked on together.

    Returns
    -------
    loss, flat : float
        Sum of the losses, and the weight of rows without curvature.
    """
    (n, n_features), size = X.shape, min(len(tile), _MOST_ROWS)
    raw, values, roots = np.empty(size, X.dtype), np.empty(size, X.dtype), np.empty(size, X.dtype)
    part = np.empty(n_features, X.dtype)
    coef, loss, flat = w[:n_features], 0.0, 0.0
    for start in range(0, n, size):
        stop = min(start + size, n)
        rows, m = _in_tile(X, start, stop, tile), stop - start
        g, v, r = raw[:m], values[:m], roots[:m]
        np.dot(rows, coef, g)
        if len(w) > n_features:
            g += w[n_features]
        _log_curvature_rows(y[start:stop], g, v, r)
        if len(weight):
            _weigh(weight[start:stop], v, g)
        flat += _weight_of_flat(weight[start:stop], r)
        _scale_rows(rows, r, scaled[start:stop])
        total, slope = _totals(v, g)
        loss += total
        np.dot(g, rows, part)
        for j in range(n_features):
            out[j] += part[j]
        if len(w) > n_features:
            out[n_features] += slope
    return loss, flat


#: By the name of the loss.
KERNELS = {"log_loss": _add_log_loss}
#: Of the same losses: with their curvature.
CURVED = {"log_loss": _add_log_curvature}


#: Of losses whose `at_row` calls functions that have no vector form: what takes their place.
AT_ROW: dict[str | None, Any] = {"log_loss": _log_loss_at_row}


@cache
def kernel(loss: str, dtype: str, out: str, aligned: bool = True) -> Any:
    """The kernel of a loss compiled for rows and sums of these dtypes.

    One version takes arrays that are read-only and others; only X may be unaligned.
    """
    matrix, row, sums = _kinds(dtype, out, aligned)
    signature = types.float64(matrix, row, row, row, sums)
    return numba.njit(signature, nogil=True, cache=True)(KERNELS[loss])


@cache
def curved(loss: str, dtype: str, aligned: bool) -> Any:
    """The kernel of a loss with its curvature, compiled as :func:`kernel`; sums are float64."""
    matrix, row, sums = _kinds(dtype, "d", aligned)
    room = types.Array(matrix.dtype, 2, "C")
    signature = types.UniTuple(types.float64, 2)(matrix, row, row, row, sums, room, room)
    return numba.njit(signature, nogil=True, cache=True)(CURVED[loss])


def _kinds(dtype: str, out: str, aligned: bool) -> tuple[Any, Any, Any]:
    """Types of X, of what each row has one of, and of sums."""
    scalar = numba.from_dtype(np.dtype(dtype))
    matrix = types.Array(scalar, 2, "C", readonly=True, aligned=aligned)
    sums = types.Array(numba.from_dtype(np.dtype(out)), 1, "C")
    return matrix, types.Array(scalar, 1, "C", readonly=True), sums
