"""Orthant-wise L-BFGS: quasi-Newton steps for a smooth function plus weighted absolute values.

G. Andrew and J. Gao, "Scalable training of L1-regularized log-linear models", ICML 2007.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from daskml_dist.solvers.base import Array, Solution

__all__ = ["orthant_wise", "pseudo_gradient"]

#: Pairs of steps and changes of the gradient that are remembered.
_MEMORY = 10
#: Values nearer to each other than this share are the same, as in `solvers.lbfgs`.
_FTOL = 64 * float(np.finfo(float).eps)
#: Share of the expected decrease that a step must bring (Armijo).
_SUFFICIENT = 1e-4
#: Halvings of a step at most.
_MAX_HALVINGS = 50


def orthant_wise(
    evaluate: Callable[[Array], tuple[float, Array]],
    start: Array,
    l1: Array,
    *,
    max_iter: int,
    tol: float,
    should_stop: Callable[[], bool],
) -> Solution:
    """Minimise ``evaluate(w) + sum(l1 * |w|)``; what the l1 part holds at zero is exactly 0.

    Parameters
    ----------
    evaluate : callable
        Value and gradient of the smooth part at a flat `w`.
    start : ndarray
        Parameters to start from, of any shape.
    l1 : ndarray of shape (start.size,)
        Strengths, 0 where a parameter is not penalised.
    max_iter : int
    tol : float
        Largest component of the pseudo-gradient at which it stops.
    should_stop : callable
        Asked after each iteration.

    Returns
    -------
    Solution
        With `w` in the shape of `start`.
    """
    w = start.ravel().copy()
    pairs: deque[tuple[Array, Array]] = deque(maxlen=_MEMORY)
    smooth, gradient = evaluate(w)
    value = smooth + float(l1 @ np.abs(w))
    n_iter, message = 0, ""
    while True:
        pseudo = pseudo_gradient(w, gradient, l1)
        if float(np.abs(pseudo).max(initial=0.0)) <= tol or should_stop():
            break
        if n_iter == max_iter:
            message = f"the limit of {max_iter} iterations was reached"
            break
        found = _search(evaluate, w, value, pseudo, pairs, l1)
        if found is None and pairs:
            # What is remembered misleads: go on along the gradient.
            pairs.clear()
            continue
        if found is None:
            message = "no step along the gradient lowers the objective any more"
            break
        n_iter += 1
        new, new_value, new_gradient = found
        step, change = new - w, new_gradient - gradient
        if step @ change > np.finfo(float).eps * (change @ change):
            pairs.append((step, change))
        gain = (value - new_value) / max(abs(value), abs(new_value), 1.0)
        w, value, gradient = new, new_value, new_gradient
        if gain <= _FTOL:
            break
    return Solution(w.reshape(start.shape), n_iter, not message, message)


def pseudo_gradient(w: Array, gradient: Array, l1: Array) -> Array:
    """The subgradient nearest to zero of the sum; where it is 0, zero is the best value."""
    right, left = gradient + l1, gradient - l1
    at_zero = np.where(right < 0, right, np.where(left > 0, left, 0.0))
    return np.where(w == 0, at_zero, gradient + l1 * np.sign(w))


def _search(
    evaluate: Callable[[Array], tuple[float, Array]],
    w: Array,
    value: float,
    pseudo: Array,
    pairs: deque[tuple[Array, Array]],
    l1: Array,
) -> tuple[Array, float, Array] | None:
    """A point along the quasi-Newton direction, inside the orthant; None where none is lower."""
    direction = -_times_inverse_hessian(pseudo, pairs)
    # Steps against the pseudo-gradient come of the curvature of other orthants.
    direction[direction * pseudo >= 0] = 0.0
    if not direction.any():
        return None
    penalised = l1 > 0
    orthant = np.where(w == 0, -np.sign(pseudo), np.sign(w))
    t = 1.0 if pairs else 1.0 / float(np.linalg.norm(pseudo))
    for _ in range(_MAX_HALVINGS):
        new = w + t * direction
        new[penalised & (new * orthant <= 0)] = 0.0
        smooth, gradient = evaluate(new)
        new_value = smooth + float(l1 @ np.abs(new))
        if new_value <= value + _SUFFICIENT * float(pseudo @ (new - w)):
            return new, new_value, gradient
        t /= 2
    return None


def _times_inverse_hessian(vector: Array, pairs: deque[tuple[Array, Array]]) -> Array:
    """The two loops of L-BFGS (Nocedal and Wright 2006, algorithm 7.4)."""
    result = vector.copy()
    shares = []
    for step, change in reversed(pairs):
        share = (step @ result) / (step @ change)
        result -= share * change
        shares.append(share)
    if pairs:
        step, change = pairs[-1]
        result *= (step @ change) / (change @ change)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        result += step * (share - (change @ result) / (step @ change))
    return result
