"""Elementary functions for compiled loops: exp, log, and the log loss of a margin.

`log_loss` and `curvature` are written so that LLVM vectorises the loops around them. `exponential`
and `logarithm` use only additions, multiplications and a division, which IEEE 754 defines exactly:
unlike the functions of math libraries and NumPy they have the same bits on every machine, with
errors below two units in the last place. The CUDA kernels of trees and forests repeat their
operations in the same order.

Importing this module loads numba (about half a second), so it is imported at first use.

References
----------
P. T. P. Tang, "Table-driven implementation of the exponential function in IEEE floating-point
arithmetic", ACM TOMS 15, 1989, and "... of the logarithm function ...", ACM TOMS 16, 1990: the
reductions of the argument, here without tables.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_entry, compiled_inside

#: log(2); and log(2) in two parts (Cody and Waite). The first part ends in enough zero bits that
#: its product with any 11-bit integer, such as an exponent, is exact.
LOG_2 = 0.6931471805599453
_LOG_2, _LOG_2_REST = 0.693147180369123816490, 1.90821492927058770002e-10
#: Bits of sqrt(1/2) as an integer: mantissas are reduced to [sqrt(1/2), sqrt(2)), so that their
#: logarithm is near 0.
_ROOT_HALF = int(np.array(0.7071067811865476).view(np.int64))
#: Coefficients 2 / (2 k + 1) of the powers of s**2 in the series of log(1 + f), s = f / (2 + f).
_L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9, _L10 = (2.0 / (2 * k + 1) for k in range(1, 11))


@compiled_inside(error_model="numpy")
def logarithm(x: Any) -> float:
    """Return ``log(x)`` of a positive normal float64."""
    # x is 2**power times a number that is at least sqrt(1/2), whose bits remain.
    bits = np.float64(x).view(np.int64)
    power = (bits - _ROOT_HALF) >> 52
    f = np.int64(bits - (power << 52)).view(np.float64) - 1.0
    # log(1 + f) = 2 atanh(f / (2 + f)), an odd series in s.
    s = f / (2.0 + f)
    z = s * s
    # The even and the odd terms separately: a processor computes both in parallel.
    w = z * z
    odd = ((((_L9 * w + _L7) * w + _L5) * w + _L3) * w + _L1) * z
    even = ((((_L10 * w + _L8) * w + _L6) * w + _L4) * w + _L2) * w
    half = 0.5 * f * f
    remainder = s * (half + (even + odd)) + power * _LOG_2_REST
    return power * _LOG_2 - ((half - remainder) - f)


_exact = compiled_entry()

#: Numbers of a tile: three arrays of 8 KiB stay in the L1 cache between passes over them.
_TILE_NUMBERS = 1024
#: Up to this many numbers NumPy's operations take about 50 microseconds: compiling the loop, which
#: takes most of a second in the first fit on a machine, is not worth it.
_MAX_NUMBERS_IN_NUMPY = 1 << 10
#: log2(e) = 1 / log(2): rounding x times it gives the power of two nearest to exp(x).
_LOG2_E = 1.4426950408889634
#: Adding it rounds a float64 to an integer, which is then in the lowest bits.
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = int(np.array(_SHIFT).view(np.int64))
#: Arguments below and above which exp is 0 or infinite in float64: clipped there, so that the power
#: of two can be split into two exponents.
_MIN_POWER, _MAX_POWER = -746.0, 710.0
#: Taylor coefficients 1 / n! of exp; those of lower degree are 1/2, 1 and 1.
(_C13, _C12, _C11, _C10, _C9, _C8, _C7, _C6, _C5, _C4, _C3) = (
    1.0 / factorial(n) for n in range(13, 2, -1)
)


def exponential(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``exp(x)`` in a new array."""
    out = np.array(x, np.float64, order="C")
    if out.size > _MAX_NUMBERS_IN_NUMPY:
        exponentiate_in_place(out.reshape(-1))
    else:
        _exponentiate_few(out)
    return out


def _exponentiate_few(x: NDArray[np.float64]) -> None:
    """Compute ``exp(x)`` in place by NumPy, with the same roundings as `exponentiate_in_place`."""
    # NaN stays NaN, whatever the power; the largest powers are infinite.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.minimum(np.maximum(x, _MIN_POWER, out=x), _MAX_POWER, out=x)
        shifted = x * _LOG2_E + _SHIFT
        power = shifted.view(np.int64) - _SHIFT_BITS
        half = ((power + 2048).view(np.uint64) >> np.uint64(1)).view(np.int64)
        first, second = ((half - 1) << 52).view(float), ((power - half + 2047) << 52).view(float)
        shifted -= _SHIFT
        reduced = x - shifted * _LOG_2 - shifted * _LOG_2_REST
        total = np.full_like(reduced, _C13)
        for term in (_C12, _C11, _C10, _C9, _C8, _C7, _C6, _C5, _C4, _C3, 0.5, 1.0, 1.0):
            total *= reduced
            total += term
        np.multiply(total * first, second, out=x)


@_exact
def exponentiate_in_place(x: Any) -> None:
    """Compute ``exp(x)`` of numbers, of shape (n,), in place."""
    shifted = np.empty(_TILE_NUMBERS)
    first, second = np.empty(_TILE_NUMBERS), np.empty(_TILE_NUMBERS)
    for start in range(0, len(x), _TILE_NUMBERS):
        part = x[start : start + _TILE_NUMBERS]
        for i in range(len(part)):
            # Written so that NaN fails both comparisons, and stays NaN.
            value = part[i]
            value = _MIN_POWER if value < _MIN_POWER else value
            value = _MAX_POWER if value > _MAX_POWER else value
            part[i] = value
            shifted[i] = value * _LOG2_E + _SHIFT
        for i in range(len(part)):
            # By two powers of two, neither of which overflows.
            exponent = np.float64(shifted[i]).view(np.int64) - _SHIFT_BITS
            half = np.int64(np.uint64(exponent + 2048) >> np.uint64(1))
            of_first = np.int64((half - 1) << 52).view(np.float64)
            of_second = np.int64((exponent - half + 2047) << 52).view(np.float64)
            first[i], second[i] = of_first, of_second
        for i in range(len(part)):
            exponent = shifted[i] - _SHIFT
            # Reduction of the argument, then a Taylor polynomial of degree 13.
            reduced = part[i] - exponent * _LOG_2 - exponent * _LOG_2_REST
            total = ((_C13 * reduced + _C12) * reduced + _C11) * reduced + _C10
            total = (((total * reduced + _C9) * reduced + _C8) * reduced + _C7) * reduced + _C6
            total = (((total * reduced + _C5) * reduced + _C4) * reduced + _C3) * reduced + 0.5
            total = (total * reduced + 1.0) * reduced + 1.0
            part[i] = total * first[i] * second[i]


# Only contraction to fused multiply-adds is allowed: the error terms below depend on the order of
# operations, which reassociation would change.
CONTRACTED: Any = {"fastmath": {"contract"}, "error_model": "numpy"}
# LLVM inlines these: inlining by numba (inline="always") takes several times as long.
_INLINED: Any = {"forceinline": True, **CONTRACTED}
_inlined = compiled_inside(**_INLINED)


_f4, _f8 = np.float32, np.float64
_i4, _i8 = np.int32, np.int64


@_inlined
def _exp_float32(x: Any) -> Any:
    """Return ``exp(x)`` for x <= 0: a power of two times a Taylor polynomial of degree 7."""
    x = _f4(-87) if x < _f4(-87) else x  # NaN stays NaN
    # Adding 1.5 * 2**23 leaves the nearest integer in the last bits.
    shifted = x * _f4(1.4426950408889634) + _f4(12582912)
    # x = k log(2) + r with |r| <= log(2) / 2; log(2) in two parts keeps r exact.
    k = shifted - _f4(12582912)
    r = (x - k * _f4(0.693359375)) - k * _f4(-2.12194440e-4)
    p = ((_f4(1 / 5040) * r + _f4(1 / 720)) * r + _f4(1 / 120)) * r + _f4(1 / 24)
    p = (((p * r + _f4(1 / 6)) * r + _f4(0.5)) * r + _f4(1)) * r + _f4(1)
    # 2**k by its exponent bits.
    return p * _i4((_f4(shifted).view(np.int32) + _i4(127)) << _i4(23)).view(np.float32)


@_inlined
def _exp_float64(x: Any) -> Any:
    """Return ``exp(x)`` for x <= 0, as `_exp_float32`, by a polynomial of degree 13."""
    x = -708.0 if x < -708.0 else x
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    k = shifted - 6755399441055744.0
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = ((_C13 * r + _C12) * r + _C11) * r + _C10
    p = (((p * r + _C9) * r + _C8) * r + _C7) * r + _C6
    p = (((p * r + _C5) * r + _C4) * r + _C3) * r + 0.5
    p = (p * r + 1.0) * r + 1.0
    return p * _i8((_f8(shifted).view(np.int64) + _i8(1023)) << _i8(52)).view(np.float64)


@_inlined
def _log1p_float32(e: Any) -> Any:
    """Return ``log(1 + e)`` for 0 <= e <= 1: the series of ``2 atanh(e / (2 + e))``."""
    s = e / (_f4(2) + e)
    q = s * s
    p = ((_f4(1 / 15) * q + _f4(1 / 13)) * q + _f4(1 / 11)) * q + _f4(1 / 9)
    p = (((p * q + _f4(1 / 7)) * q + _f4(1 / 5)) * q + _f4(1 / 3)) * q + _f4(1)
    return _f4(2) * s * p


@_inlined
def _log1p_float64(e: Any) -> Any:
    """Return ``log(1 + e)`` for 0 <= e <= 1: 17 terms of the series of `_log1p_float32`."""
    s = e / (2.0 + e)
    q = s * s
    p = (((1 / 33 * q + 1 / 31) * q + 1 / 29) * q + 1 / 27) * q + 1 / 25
    p = (((p * q + 1 / 23) * q + 1 / 21) * q + 1 / 19) * q + 1 / 17
    p = (((p * q + 1 / 15) * q + 1 / 13) * q + 1 / 11) * q + 1 / 9
    p = (((p * q + 1 / 7) * q + 1 / 5) * q + 1 / 3) * q + 1.0
    return 2.0 * s * p


def log_loss(margin: Any) -> Any:
    """Return the log loss of a margin, and its derivative."""


def _log_loss_float32(margin: Any) -> Any:
    """Return the log loss of a float32 margin, and its derivative."""
    # log(1 + exp(-m)) = log1p(exp(-|m|)) - min(m, 0): nothing overflows.
    e = _exp_float32(-abs(margin))
    right = margin > _f4(0)
    value = _log1p_float32(e) - (_f4(0) if right else margin)
    return value, -(e if right else _f4(1)) / (_f4(1) + e)


def _log_loss_float64(margin: Any) -> Any:
    """Return the log loss of a float64 margin, and its derivative."""
    e = _exp_float64(-abs(margin))
    right = margin > 0.0
    value = _log1p_float64(e) - (0.0 if right else margin)
    return value, -(e if right else 1.0) / (1.0 + e)


@overload(log_loss, jit_options=_INLINED)
def _choose_log_loss(margin: Any) -> Any:
    """Return the implementation of `log_loss` for the type of a margin."""
    return _log_loss_float32 if margin == types.float32 else _log_loss_float64


@compiled_entry(inline="always", **CONTRACTED)
def _evaluate_log_loss_of_row(y: Any, raw: Any, parameters: Any) -> Any:
    """Return the log loss of a row whose y is -1 or 1, and its derivative by the raw prediction."""
    value, slope = log_loss(y * raw)
    return value, y * slope


def curvature(margin: Any) -> Any:
    """Return the second derivative of the log loss at a margin; zero where exp underflows."""


def _curvature_float32(margin: Any) -> Any:
    """Return ``p (1 - p)`` of a float32 margin, p its sigmoid."""
    e = _exp_float32(-abs(margin))
    return e / ((_f4(1) + e) * (_f4(1) + e)) if abs(margin) < _f4(87) else _f4(0)


def _curvature_float64(margin: Any) -> Any:
    """Return ``p (1 - p)`` of a float64 margin, p its sigmoid."""
    e = _exp_float64(-abs(margin))
    return e / ((1.0 + e) * (1.0 + e)) if abs(margin) < 708.0 else 0.0


@overload(curvature, jit_options=CONTRACTED, inline="always")
def _choose_curvature(margin: Any) -> Any:
    """Return the implementation of `curvature` for the type of a margin."""
    return _curvature_float32 if margin == types.float32 else _curvature_float64


#: Functions that replace an `evaluate_row` without a vectorised form, by the loss's kernel.
ROW_LOSSES: dict[str | None, Any] = {"log_loss": _evaluate_log_loss_of_row}
