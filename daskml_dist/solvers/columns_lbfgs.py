"""L-BFGS of many small problems side by side, whose functions are evaluated together.

Source: J. Nocedal and S. J. Wright, "Numerical Optimization" (2006), algorithms 7.4 and 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["minimised"]

Array = NDArray[Any]

#: Pairs that are remembered; trials of a line search at most; share of the slope to be gained.
_PAIRS, _TRIALS, _ARMIJO = 10, 20, 1e-4
#: Share of the first loss that a step must gain, and of the largest first slope that is none.
_FTOL, _GTOL = 1e-5, 1e-4


def minimised(
    function: Callable[[Array, NDArray[np.intp]], tuple[Array, Array]],
    start: Array,
    max_iter: int,
    tols: tuple[Array, Array] | None = None,
    share: float = 1.0,
) -> tuple[Array, tuple[Array, Array]]:
    """Minima of smooth functions.

    Parameters
    ----------
    function : callable
        Takes points of shape (n, n_parameters) and the numbers of the n functions; returns their
        values, of shape (n,), and gradients.
    start : ndarray of float64 of shape (n_functions, n_parameters)
    max_iter : int
    tols : tuple of two ndarray of shape (n_functions,), optional
        A function is at its end where a step gains less than the first, or no slope is larger than
        the second; None: small shares of the value and of the slopes at the start.
    share : float, default=1.0
        Factor on these.

    Returns
    -------
    points : ndarray of float64 of shape (n_functions, n_parameters)
    tols : tuple of two ndarray
    """
    v = start.astype(np.float64)
    value, slope = function(v, np.arange(len(v)))
    unit, norm = np.where(value == 0, 1.0, np.abs(value)), (slope**2).sum(axis=1)
    if tols is None:
        tols = _FTOL * unit, _GTOL * np.abs(slope).max(axis=1)
    ftol, gtol = (tol * share for tol in tols)
    # So long a step along the first gradient is worth about the value itself.
    scale = unit / np.where(norm > 0, norm, 1.0)
    pairs: list[tuple[Array, Array, Array]] = []
    going = np.flatnonzero(np.isfinite(value) & (np.abs(slope).max(axis=1) > gtol))
    for _ in range(max_iter):
        if not len(going):
            break
        way = -_product(pairs, going, scale, slope[going])
        moved, new_value, new_slope = _searched(function, going, v, value, slope, way)
        s, y = moved - v[going], new_slope - slope[going]
        bent = (s * y).sum(axis=1)
        good = bent > 1e-10 * (y * y).sum(axis=1) * scale[going]
        of_all = [np.zeros_like(v), np.zeros_like(v), np.zeros(len(v))]
        of_all[0][going], of_all[1][going] = s, y
        of_all[2][going] = np.where(good, 1 / np.where(good, bent, 1.0), 0.0)
        pairs = [*pairs, (of_all[0], of_all[1], of_all[2])][-_PAIRS:]
        squares = (y * y).sum(axis=1)
        scale[going] = np.where(good, bent / np.where(good, squares, 1.0), scale[going])
        gain = value[going] - new_value
        v[going], value[going], slope[going] = moved, new_value, new_slope
        going = going[(gain >= ftol[going]) & (np.abs(new_slope).max(axis=1) > gtol[going])]
    return v, tols


def _product(pairs: list[tuple[Array, Array, Array]], at: Any, scale: Array, q: Array) -> Array:
    """Product of the inverse curvature, as far as pairs tell it, with gradients."""
    q, known = q.copy(), []
    for s, y, rho in reversed(pairs):
        share = rho[at] * (s[at] * q).sum(axis=1)
        q -= share[:, None] * y[at]
        known.append(share)
    q *= scale[at][:, None]
    for s, y, rho in pairs:
        share = known.pop() - rho[at] * (y[at] * q).sum(axis=1)
        q += share[:, None] * s[at]
    return q


def _searched(
    function: Any, at: Any, v: Array, value: Array, slope: Array, way: Array
) -> tuple[Array, Array, Array]:
    """Points along ways that gain enough, or where the ways begin; values and gradients there."""
    moved, new_value, new_slope = v[at], value[at], slope[at]
    down, step = (slope[at] * way).sum(axis=1), np.ones(len(at))
    left = np.flatnonzero(down < 0)
    for _ in range(_TRIALS):
        if not len(left):
            break
        tried = v[at[left]] + step[left, None] * way[left]
        found, slopes = function(tried, at[left])
        enough = found <= value[at[left]] + _ARMIJO * step[left] * down[left]
        some = left[enough]
        moved[some], new_value[some], new_slope[some] = tried[enough], found[enough], slopes[enough]
        over, left, t = found[~enough], left[~enough], step[left[~enough]]
        # The lowest point of the parabola through both values and the slope.
        with np.errstate(all="ignore"):
            lowest = -down[left] * t**2 / (2 * (over - value[at[left]] - down[left] * t))
        step[left] = np.clip(np.where(np.isfinite(lowest), lowest, 0.0), 0.1 * t, 0.5 * t)
    return moved, new_value, new_slope
