"""Criteria of splits, compiled: what a node's sums are worth, which a split is to make the most of.

Each criterion is one function of sums of whole numbers; what a split gains is the worth of its
children less that of the node. Importing this module loads numba, so it is imported at first use.

References
----------
L. Breiman, J. Friedman, R. Olshen and C. Stone, "Classification and Regression Trees", 1984.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_inside
from daskml_dist.backends.logarithm import LOG_2, logarithm

__all__ = ["ABSOLUTE", "ENTROPY", "GINI", "POISSON", "SQUARED", "middle", "worth"]

_inside = compiled_inside(error_model="numpy")

#: Numbers of the criteria; from `SQUARED` on they are of regression.
GINI, ENTROPY, SQUARED, POISSON, ABSOLUTE = 0, 1, 2, 3, 4


@_inside
def worth(kind: Any, sums: Any, total: Any, bits: Any) -> float:
    """Weight of a node times what its impurity lacks of a constant."""
    weight = np.float64(total >> bits)
    found = 0.0
    if kind == SQUARED:
        for k in range(1, len(sums)):
            s = np.float64(sums[k])
            found += s * s / weight
        return found
    if kind == POISSON:
        for k in range(1, len(sums)):
            s = np.float64(sums[k])
            found += s * logarithm(s / weight) if s > 0 else -np.inf
        return found
    if kind == GINI:
        for c in range(len(sums)):
            w = np.float64(sums[c] >> bits)
            found += w * w
        return found / weight
    for c in range(len(sums)):
        w = np.float64(sums[c] >> bits)
        if w > 0:
            found += w * (logarithm(w / weight) / LOG_2)
    return found


@_inside
def middle(kind: Any, sums: Any, total: Any, bits: Any) -> float:
    """Answer of a node, as monotonic constraints compare it.

    The mean of a regression, or the share of the second class.
    """
    s = np.float64(sums[1]) if kind >= SQUARED else np.float64(sums[1] >> bits)
    return s / np.float64(total >> bits)
