"""Log loss of a margin, its derivatives, and exp and log, as LLVM makes vectors of them.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from daskml_dist.backends.compiled import compiled_entry, compiled_inside

__all__ = ["AT_ROW", "CONTRACTED", "curvature", "log_loss"]

# No reassociation where digits are won from the order of operations.
CONTRACTED: Any = {"fastmath": {"contract"}, "error_model": "numpy"}
# LLVM inlines these: where numba does (inline="always"), it takes several times as long.
_INLINED: Any = {"forceinline": True, **CONTRACTED}
_inlined = compiled_inside(**_INLINED)


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


def log_loss(margin: Any) -> Any:
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


@overload(log_loss, jit_options=_INLINED)
def _log_loss_of(margin: Any) -> Any:
    return _log_loss_f4 if margin == types.float32 else _log_loss_f8


@compiled_entry(inline="always", **CONTRACTED)
def _log_loss_at_row(y: Any, raw: Any, parameters: Any) -> Any:
    value, slope = log_loss(y * raw)
    return value, y * slope


def curvature(margin: Any) -> Any:
    """Second derivative of the log loss at a margin; zero where it is next to nothing."""


def _curvature_f4(margin: Any) -> Any:
    e = _exp_f4(-abs(margin))
    return e / ((_f4(1) + e) * (_f4(1) + e)) if abs(margin) < _f4(87) else _f4(0)


def _curvature_f8(margin: Any) -> Any:
    e = _exp_f8(-abs(margin))
    return e / ((1.0 + e) * (1.0 + e)) if abs(margin) < 708.0 else 0.0


@overload(curvature, jit_options=CONTRACTED, inline="always")
def _curvature_of(margin: Any) -> Any:
    return _curvature_f4 if margin == types.float32 else _curvature_f8


#: Of losses whose `at_row` calls functions that have no vector form: what takes their place.
AT_ROW: dict[str | None, Any] = {"log_loss": _log_loss_at_row}
