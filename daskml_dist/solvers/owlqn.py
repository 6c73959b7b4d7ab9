"""Orthant-wise L-BFGS: quasi-Newton steps for a smooth function plus weighted absolute values.

G. Andrew and J. Gao, "Scalable training of L1-regularized log-linear models", ICML 2007.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from daskml_dist.solvers.base import Array, Solution, Space, State

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
    space: Space | None = None,
    on_step: Callable[[int, State | None], None] = lambda n_iter, state: None,
    kept: dict[str, Array] | None = None,
) -> Solution:
    """Minimise ``evaluate(w) + sum(l1 * |w|)``; what the l1 part holds at zero is exactly 0.

    Everything but the two functions of `space` is elementwise, so that several processes may each
    run this on a range of every vector: numbers, and with them decisions, are the same in all.

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
    space : Space, optional
        Dot products and largest components; by default of whole vectors.
    on_step : callable, optional
        Takes the number of iterations after each, and what makes the state to go on from (None
        after the last); the last point evaluated is where it ended.
    kept : dict from str to ndarray, or None
        A state to go on from; None: from `start`.

    Returns
    -------
    Solution
        With `w` in the shape of `start`.
    """
    space = space or _Whole()
    pairs: deque[_Pair] = deque(maxlen=_MEMORY)
    if kept is None:
        w, n_iter = start.ravel().copy(), 0
        smooth, gradient = evaluate(w)
        value = smooth + space.dot(l1, np.abs(w))
    else:
        w, gradient, value, n_iter = _restored(kept, pairs)
    message = ""
    while True:
        pseudo = pseudo_gradient(w, gradient, l1)
        if space.largest(pseudo) <= tol or should_stop():
            break
        if n_iter == max_iter:
            message = f"the limit of {max_iter} iterations was reached"
            break
        found = _search(space, evaluate, w, value, pseudo, pairs, l1)
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
        curvature, square = space.dot(step, change), space.dot(change, change)
        if curvature > np.finfo(float).eps * square:
            pairs.append(_Pair(step, change, curvature, square))
        gain = (value - new_value) / max(abs(value), abs(new_value), 1.0)
        w, value, gradient = new, new_value, new_gradient
        if gain <= _FTOL:
            on_step(n_iter, None)
            break
        on_step(n_iter, partial(_state, w, gradient, value, n_iter, pairs))
    return Solution(w.reshape(start.shape), n_iter, not message, message)


def pseudo_gradient(w: Array, gradient: Array, l1: Array) -> Array:
    """The subgradient nearest to zero of the sum; where it is 0, zero is the best value."""
    right, left = gradient + l1, gradient - l1
    at_zero = np.where(right < 0, right, np.where(left > 0, left, 0.0))
    return np.where(w == 0, at_zero, gradient + l1 * np.sign(w))


class _Whole:
    """Vectors that are all here."""

    def dot(self, a: Array, b: Array) -> float:
        return float(a @ b)

    def largest(self, a: Array) -> float:
        return float(np.abs(a).max(initial=0.0))


class _Pair(NamedTuple):
    """A step, the change of the gradient along it, and their dot products."""

    step: Array
    change: Array
    curvature: float
    square: float


def _state(
    w: Array, gradient: Array, value: float, n_iter: int, pairs: deque[_Pair]
) -> dict[str, Array]:
    """All that the next iterations need."""
    return {
        "w": w,
        "gradient": gradient,
        "numbers": np.array([value, n_iter]),
        "steps": np.array([pair.step for pair in pairs]),
        "changes": np.array([pair.change for pair in pairs]),
        "products": np.array([[pair.curvature, pair.square] for pair in pairs]),
    }


def _restored(kept: dict[str, Array], pairs: deque[_Pair]) -> tuple[Array, Array, float, int]:
    """Undo `_state`: point, gradient, value and iterations; `pairs` is filled."""
    rows = zip(kept["steps"], kept["changes"], kept["products"].tolist(), strict=True)
    pairs.extend(_Pair(step, change, *products) for step, change, products in rows)
    value, n_iter = kept["numbers"].tolist()
    return kept["w"], kept["gradient"], value, int(n_iter)


def _search(
    space: Space,
    evaluate: Callable[[Array], tuple[float, Array]],
    w: Array,
    value: float,
    pseudo: Array,
    pairs: deque[_Pair],
    l1: Array,
) -> tuple[Array, float, Array] | None:
    """A point along the quasi-Newton direction, inside the orthant; None where none is lower."""
    direction = -_times_inverse_hessian(space, pseudo, pairs)
    penalised = l1 > 0
    # Steps against the pseudo-gradient come of the curvature of other orthants.
    direction[penalised & (direction * pseudo >= 0)] = 0.0
    if not space.largest(direction):
        return None
    orthant = np.where(w == 0, -np.sign(pseudo), np.sign(w))
    t = 1.0 if pairs else 1.0 / math.sqrt(space.dot(pseudo, pseudo))
    for _ in range(_MAX_HALVINGS):
        new = w + t * direction
        new[penalised & (new * orthant <= 0)] = 0.0
        smooth, gradient = evaluate(new)
        new_value = smooth + space.dot(l1, np.abs(new))
        if new_value <= value + _SUFFICIENT * space.dot(pseudo, new - w):
            return new, new_value, gradient
        t /= 2
    return None


def _times_inverse_hessian(space: Space, vector: Array, pairs: deque[_Pair]) -> Array:
    """The two loops of L-BFGS (Nocedal and Wright 2006, algorithm 7.4)."""
    result = vector.copy()
    shares = []
    for pair in reversed(pairs):
        share = space.dot(pair.step, result) / pair.curvature
        result -= share * pair.change
        shares.append(share)
    if pairs:
        result *= pairs[-1].curvature / pairs[-1].square
    for pair, share in zip(pairs, reversed(shares), strict=True):
        result += pair.step * (share - space.dot(pair.change, result) / pair.curvature)
    return result
