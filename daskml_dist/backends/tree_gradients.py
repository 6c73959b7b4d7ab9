"""Compiled gradients of losses of boosting: the bits of `solvers.boosting_losses`, in one pass.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.exponential import raise_e

__all__ = ["COMPILED", "binomial"]

_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")

#: Rows that stay in the nearest cache.
_TILE = 1024
#: Of the bits of a float32 all but the sign. Of numbers without one, the larger has larger bits.
_SIZE = np.int32(0x7FFFFFFF)


@_inside
def _largest(x: Any) -> Any:
    """Bits of the largest number, without the signs; what is not a number is larger than any."""
    bits, found = x.view(np.int32), np.int32(0)
    for i in range(len(bits)):
        found = max(found, bits[i] & _SIZE)
    return found


@_exact
def binomial(y: Any, raw: Any, weight: Any, g: Any, h: Any, largest: Any) -> None:
    """Gradients and hessians of the log loss of two classes.

    Parameters
    ----------
    y, raw, weight : ndarray of float64 of shape (n,)
        `weight` is empty where there is none.
    g, h : ndarray of float32 of shape (n,)
    largest : ndarray of float32 of shape (2,)
        Of zeros. Becomes the largest of both, without their signs.
    """
    small, of = np.empty(_TILE), largest.view(np.int32)
    for start in range(0, len(y), _TILE):
        n = min(_TILE, len(y) - start)
        part = small[:n]
        for i in range(n):
            # Of the smaller of both, so that nothing overflows.
            part[i] = -abs(raw[start + i])
        raise_e(part)
        for i in range(n):
            k = start + i
            larger = 1 / (1 + part[i])
            less = part[i] * larger
            of_g = (larger if raw[k] >= 0 else less) - y[k]
            of_h = larger * less
            if len(weight):
                of_g *= weight[k]
                of_h *= weight[k]
            g[k], h[k] = of_g, of_h
        of[0] = max(of[0], _largest(g[start : start + n]))
        of[1] = max(of[1], _largest(h[start : start + n]))


#: By the name of the loss's kernel.
COMPILED: dict[str, Any] = {"binomial": binomial}
