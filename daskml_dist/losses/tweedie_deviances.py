"""Deviance of targets from means under a Tweedie distribution, with its digits near the mean.

References
----------
B. Jorgensen, "Exponential dispersion models", Journal of the Royal Statistical Society B 49(2),
1987.
"""

from __future__ import annotations

from typing import Any

from daskml_dist.backends.namespace import namespace

#: Relative error up to which a deviance is summed as a series: beyond it the definition has 11
#: digits, but for powers that are almost 1 or 2.
_NEAR_MEAN = 0.01

#: Terms of the series after the first: the next is below the precision of float64 for powers from 0
#: to 3, and leaves 13 digits for those from -10 to 10.
_N_SERIES_TERMS = 9


def compute_tweedie_deviances(y: Any, mean: Any, errors: Any, power: float) -> Any:
    """Return the deviance of each y from a mean; `errors` are ``y - mean``, in all their digits."""
    if power == 0:  # normal distribution
        return errors**2
    xp = namespace(y)
    if power < 0:  # see `_compute_potential`; a mean of rows may be negative, a prediction not
        mean = xp.maximum(mean, 0.0)
    # Near the mean the terms of the definition cancel to a square of the small relative error, of
    # which no digit may be left. There the binomial series of y**a about the mean is summed, with
    # a = 2 - power; it has no pole at the powers 1 and 2, where y**a becomes a logarithm.
    is_near = abs(errors) < _NEAR_MEAN * mean
    ratios = xp.where(is_near, errors, 0.0) / xp.where(is_near, mean, 1.0)
    exponent, series = 2.0 - power, 0.0
    for k in range(_N_SERIES_TERMS + 1, 2, -1):
        series = (1.0 + series) * ratios * ((exponent - k + 1) / k)
    near = xp.where(is_near, mean, 1.0) ** exponent * ratios**2 * (1.0 + series)
    # Rows that are near are replaced by 1, so that nothing overflows or is divided by 0.
    y, mean = xp.where(is_near, 1.0, y), xp.where(is_near, 1.0, mean)
    if power == 1:
        far = 2 * (_multiply_by_log(y, y / mean) - y + mean)
    elif power == 2:
        far = 2 * (xp.log(mean / y) + y / mean - 1)
    else:
        slopes = y * mean ** (1 - power) / (1 - power)
        far = 2 * (_compute_potential(y, power) - slopes + mean ** (2 - power) / (2 - power))
    return xp.where(is_near, near, far)


def _multiply_by_log(y: Any, values: Any) -> Any:
    """Return ``y * log(values)``, and 0 where y is 0."""
    xp = namespace(y)
    return xp.where(y > 0, y * xp.log(xp.where(y > 0, values, 1.0)), 0.0)


def _compute_potential(y: Any, power: float) -> Any:
    """Return the convex function whose Bregman divergence is half the Tweedie deviance.

    For the powers 0, 1 and 2 it is a square, ``y log y`` and ``-log y`` instead.
    """
    # Negative powers allow y <= 0, where the deviance takes max(y, 0) in its place.
    positive = namespace(y).maximum(y, 0.0) if power < 0 else y
    return positive ** (2 - power) / ((1 - power) * (2 - power))
