"""Levels of quantiles that lie closer towards both ends of the values.

A tree of exact thresholds cuts the few rows of a long tail as finely as any others, and what these
rows answer may weigh most: with bins of as many rows each, a tail is one bin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["tail_levels"]


def tail_levels() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of rows, and what share of the edges lies below: half of these evenly over the rows,
    half by the arcsine law, whose density rises towards both ends.
    """
    shares = np.sin(np.pi * np.linspace(0, 1, 4097) / 2) ** 2
    return shares, (shares + 2 / np.pi * np.arcsin(np.sqrt(shares))) / 2
