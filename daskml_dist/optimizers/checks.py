"""Checks of the numbers that optimizers are given."""

from __future__ import annotations

import numpy as np

from daskml_dist.errors import InvalidParameterError

__all__ = ["check_decay", "check_positive"]


def check_decay(name: str, value: float) -> None:
    """Raise InvalidParameterError for a number outside [0, 1)."""
    if not 0 <= value < 1:
        raise InvalidParameterError(f"{name}={value!r}: use a number >= 0 and < 1.")


def check_positive(name: str, value: float) -> None:
    """Raise InvalidParameterError for a number that is not positive, or not finite."""
    if not 0 < value < np.inf:
        raise InvalidParameterError(f"{name}={value!r}: use a finite number > 0.")
