"""Account of the l1 penalty that each parameter owes, which leaves the zeros of the optimum."""

from __future__ import annotations

import math
from typing import Any

from daskml_dist.backends.entries import where
from daskml_dist.optimizers.base import Array

__all__ = ["keep_account"]


def keep_account(
    w: Array, duals: Array, bounds: Array, k: int, grad: Any, rate: Any, l1: Any
) -> None:
    """Take one step in entry k, of a known size, under an l1 penalty that it owes more of."""
    dual = where(w[k] != 0, math.copysign(bounds[k], -w[k]), duals[k])
    z = grad + dual - w[k] / rate
    bound = bounds[k] + l1
    dual = max(min(z, bound), -bound)
    bounds[k] = bound
    duals[k] = dual
    w[k] = (dual - z) * rate
