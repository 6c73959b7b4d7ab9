"""Logarithm that has the same bits on every machine.

Those of math libraries differ in their last bits. This one is made of additions, multiplications
and a division alone, which IEEE 754 fixes; its error is below one unit of the last place. The CUDA
kernels of forests have the same operations in the same order (``kernels/logarithm.cuh``). Importing
this module loads numba, so it is imported at first use.

References
----------
P. T. P. Tang, "Table-driven implementation of the logarithm function in IEEE floating-point
arithmetic", ACM TOMS 16, 1990: the series in f / (2 + f), here without a table.
"""

from __future__ import annotations

import math
from typing import Any

import numba

__all__ = ["LOG_2", "logarithm"]

#: log(2), and in two parts; any whole number of 11 bits times the first is exact.
LOG_2 = 0.6931471805599453
_LOG_2, _LOG_2_REST = 0.693147180369123816490, 1.90821492927058770002e-10
_ROOT_HALF = 0.7071067811865476
#: Of the powers of (f / (2 + f))**2.
_C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10 = (2.0 / (2 * k + 1) for k in range(1, 11))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def logarithm(x: Any) -> float:
    """``log(x)`` of a positive finite number of float64."""
    part, power = math.frexp(x)
    if part < _ROOT_HALF:
        part *= 2.0
        power -= 1
    f = part - 1.0
    s = f / (2.0 + f)
    z = s * s
    more = _C10 * z
    more = (more + _C9) * z
    more = (more + _C8) * z
    more = (more + _C7) * z
    more = (more + _C6) * z
    more = (more + _C5) * z
    more = (more + _C4) * z
    more = (more + _C3) * z
    more = (more + _C2) * z
    more = (more + _C1) * z
    half = 0.5 * f * f
    rest = s * (half + more) + power * _LOG_2_REST
    return power * _LOG_2 - ((half - rest) - f)
