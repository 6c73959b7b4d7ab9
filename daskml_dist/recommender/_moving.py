"""State of a fit moved to the ids of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.keyed.ids import find_positions
from daskml_dist.ps.shard_state import ShardState

__all__ = ["moved"]


def moved(
    state: ShardState, fresh: ShardState, before: Sequence[NDArray[Any]],
    now: Sequence[NDArray[Any]],
) -> ShardState:  # fmt: skip
    """State with the rows of ids that were there before; all others are fresh."""
    first, start = 0, 0
    for old, new in zip(before, now, strict=True):
        at = find_positions(old, new)
        known = np.flatnonzero(at >= 0)
        fresh.w[first + known] = state.w[start + at[known]]
        for name, array in fresh.opt_state.items():
            array[first + known] = state.opt_state[name][start + at[known]]
        first, start = first + len(new), start + len(old)
    return replace(state, w=fresh.w, opt_state=fresh.opt_state)
