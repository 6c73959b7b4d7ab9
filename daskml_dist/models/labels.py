"""Labels as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["label_codes"]


def label_codes(y: NDArray[Any], classes: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Position of each label among sorted classes.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Of `classes` alone.
    classes : ndarray of shape (n_classes,)
    dtype : dtype
        Of the result, of integers.

    Returns
    -------
    ndarray of shape (n,)
    """
    if classes.dtype.kind in "iu" and y.dtype.kind in "iu":
        first, last = int(classes[0]), int(classes[-1])
        if last - first == len(classes) - 1 and last <= np.iinfo(np.int64).max:
            return (y.astype(np.int64) - first).astype(dtype, copy=False)
    return np.searchsorted(classes, y).astype(dtype)
