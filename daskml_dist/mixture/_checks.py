"""Checks of the components that a user gives a mixture to begin with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError

__all__ = ["given_covariances", "given_means", "given_weights"]

Array = NDArray[np.float64]


def given_weights(weights: Any, k: int) -> Array:
    """Weights of the components."""
    found = _numbers("weights", weights, (k,))
    if (found < 0).any() or (found > 1).any():
        raise InvalidParameterError(
            "The parameter 'weights' should be in the range [0, 1], but got max value "
            f"{found.max():.5f}, min value {found.min():.5f}. Give shares of 1."
        )
    if not np.isclose(found.sum(), 1.0):
        raise InvalidParameterError(
            "The parameter 'weights' should be normalized, but got sum(weights) = "
            f"{found.sum():.5f}. Divide them by their sum."
        )
    return found


def given_means(means: Any, k: int, d: int) -> Array:
    """Means of the components."""
    return _numbers("means", means, (k, d))


def given_covariances(precisions: Any, kind: str, k: int, d: int) -> Array:
    """Covariances of given precisions."""
    shape = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}[kind]
    found = _numbers(f"{kind} precision", precisions, shape)
    if kind in ("diag", "spherical"):
        if not (found > 0).all():
            raise InvalidParameterError(f"'{kind} precision' should be positive. Give all above 0.")
        return np.asarray(1 / found)
    for one in found.reshape(-1, d, d):
        if not (np.allclose(one, one.T) and (np.linalg.eigvalsh(one) > 0).all()):
            raise InvalidParameterError(
                f"'{kind} precision' should be symmetric, positive-definite. Give inverses of "
                "covariances."
            )
    return np.asarray(np.linalg.inv(found))


def _numbers(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(
            f"The parameter '{name}' is no array of numbers. Give one of shape {shape}."
        ) from error
    if found.shape != shape:
        raise InvalidParameterError(
            f"The parameter '{name}' should have the shape of {shape}, but got {found.shape}. Give "
            "as much for each component."
        )
    if not np.isfinite(found).all():
        raise InvalidParameterError(
            f"The parameter '{name}' holds NaN or infinity. Give numbers, or None."
        )
    return found
