"""Distinct rows of the parameters among those that a batch names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["distinct"]


def distinct(numbers: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Sorted distinct numbers of some arrays, and the place of each entry's among them.

    Parameters
    ----------
    numbers : sequence of ndarray of int
        Of any shapes; numbers from 0 on.

    Returns
    -------
    index : ndarray of int64 of shape (n_distinct,)
    places : list of ndarray of int
        Of the shapes of the arrays: ``index[places[i]]`` is ``numbers[i]``.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import distinct
    >>> numbers, places = distinct([np.array([5, 2]), np.array([2, 9])])
    >>> numbers.tolist(), [place.tolist() for place in places]
    ([2, 5, 9], [[1, 0], [0, 2]])
    """
    from daskml_dist.backends import pair_kernels  # loads numba

    return pair_kernels.distinct(numbers)
