"""numba kernels of many linear models of the same rows.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from daskml_dist.backends.margins import ROWS, log_loss

__all__ = ["log_losses", "log_scores"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    return cast("_F", numba.njit(**ROWS)(function))


@_compiled
def log_losses(raw: Any, y: Any, mask: Any, stops: Any, losses: Any) -> None:
    """Log losses of raw predictions, added up; their derivatives take the predictions' place.

    Parameters
    ----------
    raw : ndarray of shape (n, n_columns)
        Columns of the same split are neighbours.
    y : ndarray of shape (n,), -1 or +1
    mask : ndarray of shape (n, n_splits)
        Weight of each row to each split; of 0 the row is not its.
    stops : ndarray of int64 of shape (n_splits,)
        Where the columns of each split end.
    losses : ndarray of float64 of shape (n_columns,)
        Sums; added to.
    """
    part, weight = np.empty(raw.shape[1], raw.dtype), np.empty(raw.shape[1], raw.dtype)
    part[:] = 0
    for i in range(len(raw)):
        _spread(mask[i], stops, weight)
        _of_row(raw[i], y[i], weight, part)
    for j in range(len(part)):
        losses[j] += part[j]


@_compiled
def log_scores(raw: Any, y: Any, mask: Any, stops: Any, least: Any, sums: Any) -> None:
    """Weights, right signs and log losses (of at most `least`) of raw predictions, added up.

    Parameters
    ----------
    raw, y, mask, stops
        As of :func:`log_losses`.
    least : float
    sums : ndarray of float64 of shape (3, n_columns)
        Added to.
    """
    for i in range(len(raw)):
        first = 0
        for split in range(len(stops)):
            weight, last = mask[i, split], stops[split]
            if weight != 0:
                _score_row(raw[i, first:last], y[i], weight, least, sums[:, first:last])
            first = last


@_compiled
def _spread(mask: Any, stops: Any, weight: Any) -> None:
    """The weight of a row to each column, of that to each split."""
    first = 0
    for split in range(len(stops)):
        some, value = weight[first : stops[split]], mask[split]
        for j in range(len(some)):
            some[j] = value
        first = stops[split]


@_compiled
def _of_row(raw: Any, sign: Any, weight: Any, losses: Any) -> None:
    """Of a row and all columns: wide enough that the checks for vectors cost little."""
    for j in range(len(raw)):
        value, slope = log_loss(sign * raw[j])
        raw[j] = weight[j] * sign * slope
        losses[j] += weight[j] * value


@_compiled
def _score_row(raw: Any, sign: Any, weight: Any, least: Any, sums: Any) -> None:
    for j in range(len(raw)):
        value, _ = log_loss(sign * np.float64(raw[j]))
        sums[0, j] += weight
        sums[1, j] += weight if (raw[j] > 0) == (sign > 0) else 0.0
        sums[2, j] += weight * min(value, least)
