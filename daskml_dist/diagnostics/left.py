"""Time that is left until the last pass, where the bound of passes tells of it."""

from __future__ import annotations

import math

__all__ = ["seconds_left"]

#: Share of the passes before which their bound says nothing: that of a solver counts every
#: line search that could fail, and is a hundred times what it takes.
_TELLING = 0.01


def seconds_left(n_passes: int, most: int, seconds: float) -> float:
    """Seconds until a last pass at most; NaN where nobody can tell.

    Parameters
    ----------
    n_passes : int
        Passes that are made.
    most : int
        Passes at most.
    seconds : float
        Of a pass.
    """
    if not n_passes or n_passes < _TELLING * most:
        return math.nan
    return seconds * max(0, most - n_passes)
