"""Exponential that has the same bits on every machine.

Those of math libraries differ in their last bits from version to version, and so do NumPy's from
processor to processor. This one is made of additions and multiplications alone, which IEEE 754
fixes; its error is below two units of the last place. The CUDA kernels of trees have the same
operations in the same order. Importing this module loads numba, so it is imported at first use.

References
----------
P. T. P. Tang, "Table-driven implementation of the exponential function in IEEE floating-point
arithmetic", ACM TOMS 15, 1989: the reduction of the argument, here without a table.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_entry

__all__ = ["exponential", "raise_e"]

_exact = compiled_entry()

#: Numbers that stay in the nearest cache.
_TILE = 1024
#: Numbers up to which NumPy's operations take some 50 microseconds, which is not worth compiling
#: the loop for most of a second in the first fit on a machine.
_SMALL = 1 << 10
_LOG2_E = 1.4426950408889634
#: log(2) in two parts; any whole number of 11 bits times the first is exact.
_LOG_2, _LOG_2_REST = 0.693147180369123816490, 1.90821492927058770002e-10
#: Adding it rounds to a whole number, which the lowest bits then hold.
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = int(np.array(_SHIFT).view(np.int64))
_LEAST, _MOST = -746.0, 710.0
(_C13, _C12, _C11, _C10, _C9, _C8, _C7, _C6, _C5, _C4, _C3) = (
    1.0 / factorial(n) for n in range(13, 2, -1)
)


def exponential(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """``exp(x)``, in an array of its own."""
    out = np.array(x, np.float64, order="C")
    if out.size > _SMALL:
        raise_e(out.reshape(-1))
    else:
        _raise_few(out)
    return out


def _raise_few(x: NDArray[np.float64]) -> None:
    """Make ``exp(x)`` in place by NumPy, which rounds each operation as `raise_e` does."""
    # What is not a number stays so, whatever its powers are; the largest powers are infinite.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.minimum(np.maximum(x, _LEAST, out=x), _MOST, out=x)
        shifted = x * _LOG2_E + _SHIFT
        power = shifted.view(np.int64) - _SHIFT_BITS
        half = ((power + 2048).view(np.uint64) >> np.uint64(1)).view(np.int64)
        first, second = ((half - 1) << 52).view(float), ((power - half + 2047) << 52).view(float)
        shifted -= _SHIFT
        rest = x - shifted * _LOG_2 - shifted * _LOG_2_REST
        total = np.full_like(rest, _C13)
        for term in (_C12, _C11, _C10, _C9, _C8, _C7, _C6, _C5, _C4, _C3, 0.5, 1.0, 1.0):
            total *= rest
            total += term
        np.multiply(total * first, second, out=x)


@_exact
def raise_e(x: Any) -> None:
    """Make ``exp(x)`` of numbers, of shape (n,), in their place."""
    shifted, first, second = np.empty(_TILE), np.empty(_TILE), np.empty(_TILE)
    for start in range(0, len(x), _TILE):
        part = x[start : start + _TILE]
        for i in range(len(part)):
            # What is not a number stays so, whatever its powers are.
            value = part[i]
            value = _LEAST if value < _LEAST else value
            value = _MOST if value > _MOST else value
            part[i] = value
            shifted[i] = value * _LOG2_E + _SHIFT
        for i in range(len(part)):
            # By two powers of two, neither of which overflows.
            whole = np.float64(shifted[i]).view(np.int64) - _SHIFT_BITS
            half = np.int64(np.uint64(whole + 2048) >> np.uint64(1))
            of_first = np.int64((half - 1) << 52).view(np.float64)
            of_second = np.int64((whole - half + 2047) << 52).view(np.float64)
            first[i], second[i] = of_first, of_second
        for i in range(len(part)):
            whole = shifted[i] - _SHIFT
            rest = part[i] - whole * _LOG_2 - whole * _LOG_2_REST
            total = _C13 * rest + _C12
            total = total * rest + _C11
            total = total * rest + _C10
            total = total * rest + _C9
            total = total * rest + _C8
            total = total * rest + _C7
            total = total * rest + _C6
            total = total * rest + _C5
            total = total * rest + _C4
            total = total * rest + _C3
            total = total * rest + 0.5
            total = total * rest + 1.0
            total = total * rest + 1.0
            part[i] = total * first[i] * second[i]
