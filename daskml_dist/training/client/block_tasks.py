"""Tasks that workers are given for the blocks that they hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from daskml_dist.data.blocks import Block
from daskml_dist.data.bundles import Bundle
from daskml_dist.data.conversion import to_host
from daskml_dist.data.feature_scales import Scales, block_scales, merge_scales

__all__ = ["bundle_scales", "of_block", "seconds_a_row"]


def of_block(bundle: Bundle, number: int, function: Callable[..., Any], *args: Any) -> Any:
    """Result of a function of a block."""
    return function(bundle.blocks[number], *args)


def bundle_scales(bundle: Bundle) -> Scales:
    """Scales of the blocks of a bundle."""
    return merge_scales([block_scales(block) for block in bundle.blocks.values()])


def seconds_a_row(block: Block) -> float:
    """Time of two products, which a gradient takes, with up to 65,536 rows."""
    X = to_host(block.rows[: 2**16])
    if isinstance(X, np.ndarray) and (X.ndim > 2 or X.dtype.kind != "f"):
        X = X[: max(1, 2**24 // math.prod(X.shape[1:]))]
        X = X.reshape(len(X), -1).astype(np.float32)
    w, g = np.ones(X.shape[1], dtype=X.dtype), np.ones(X.shape[0], dtype=X.dtype)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        X @ w
        g @ X
        times.append(time.perf_counter() - start)
    return float(min(times) / X.shape[0])
