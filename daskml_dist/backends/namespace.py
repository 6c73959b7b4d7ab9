"""The array library of an array, by the array API standard (data-apis.org/array-api).

Maths that is written in the standard's functions runs on NumPy, on CuPy and on any other library
that follows it. Arrays of different libraries or devices are never mixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

__all__ = ["is_host", "namespace", "zeros"]


def is_host(array: Any) -> bool:
    """Whether an array (or a scalar of one) is NumPy's."""
    return isinstance(array, np.ndarray | np.generic)


def namespace(array: Any) -> Any:
    """Return the module whose functions take an array."""
    return np if is_host(array) else array.__array_namespace__()


def zeros(shape: tuple[int, ...], dtype: DTypeLike, like: Any) -> Any:
    """Zeros where another array lies.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype of NumPy, or of the library of `like`
    like : array
    """
    if is_host(like):
        return np.zeros(shape, dtype)
    xp = like.__array_namespace__()
    own = getattr(xp, np.dtype(dtype).name) if _is_numpys(dtype) else dtype
    return xp.zeros(shape, dtype=own, device=like.device)


def _is_numpys(dtype: Any) -> bool:
    return isinstance(dtype, str | type | np.dtype)
