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

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_inside

__all__ = ["LOG_2", "logarithm"]

#: log(2), and in two parts; any whole number of 11 bits times the first is exact.
LOG_2 = 0.6931471805599453
_LOG_2, _LOG_2_REST = 0.693147180369123816490, 1.90821492927058770002e-10
#: The bits of the root of a half.
_ROOT_HALF = int(np.array(0.7071067811865476).view(np.int64))
#: Of the powers of (f / (2 + f))**2.
_C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10 = (2.0 / (2 * k + 1) for k in range(1, 11))


@compiled_inside(error_model="numpy")
def logarithm(x: Any) -> float:
    """``log(x)`` of a positive normal number of float64."""
    # x is 2**power times a number from the root of a half on, whose bits are what is left.
    bits = np.float64(x).view(np.int64)
    power = (bits - _ROOT_HALF) >> 52
    f = np.int64(bits - (power << 52)).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    # The even and the odd terms side by side: a processor makes both at once.
    w = z * z
    odd = ((((_C9 * w + _C7) * w + _C5) * w + _C3) * w + _C1) * z
    even = ((((_C10 * w + _C8) * w + _C6) * w + _C4) * w + _C2) * w
    half = 0.5 * f * f
    rest = s * (half + (even + odd)) + power * _LOG_2_REST
    return power * _LOG_2 - ((half - rest) - f)
