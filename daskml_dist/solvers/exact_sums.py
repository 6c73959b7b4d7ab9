"""Sums of real numbers over all rows that depend on no order of these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["exact_totals"]


def exact_totals(rows: OwnRows, parts: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """Sums of columns over the rows of all trainers, rounded to whole numbers of a small unit.

    Parameters
    ----------
    rows : OwnRows
    parts : iterable of ndarray of shape (n, m)

    Returns
    -------
    ndarray of float64 of shape (m,)
        NaN where something is not finite.
    """
    own = list(parts)
    largest = rows.largest(np.max([np.abs(p).max(axis=0, initial=0.0) for p in own], axis=0))
    if not np.isfinite(largest).all():
        return np.full(len(largest), np.nan)
    # So many bits that no sum of so many numbers overflows.
    bits = 61 - int(rows.n_rows).bit_length()
    scales = np.ldexp(1.0, bits - np.frexp(largest)[1])
    total = np.sum([np.rint(p * scales).astype(np.int64).sum(axis=0) for p in own], axis=0)
    return np.asarray(rows.sum(total) / scales)
