"""Time that is left until the last pass, where a plan of passes tells of it."""

from __future__ import annotations

import math

__all__ = ["seconds_left"]

#: Share of the passes before which their bound says nothing: most fits end long before a thousand.
_TELLING = 0.01


def seconds_left(n_passes: int, most: int | None, seconds: float) -> float:
    """Seconds until a last pass at most; NaN where nobody can tell.

    Parameters
    ----------
    n_passes : int
        Passes that are made.
    most : int or None
        Passes at most, where that is planned.
    seconds : float
        Of a pass.
    """
    if most is None or not n_passes or n_passes < _TELLING * most:
        return math.nan
    return seconds * max(0, most - n_passes)
