"""Limited-memory BFGS over sums: by SciPy, orthant-wise for l1 penalties, and batched.

:class:`LBFGS` is the solver. :func:`minimize_orthant_wise` takes an l1 part, and vectors of which
each process holds a range; :func:`minimize_side_by_side` minimises many small functions that are
evaluated together. :class:`HuberScale` finds the coefficients under Huber's loss and its scale
together.

References
----------
J. Nocedal and S. J. Wright, "Numerical Optimization", 2006, algorithms 7.4 and 3.1. G. Andrew and
J. Gao, "Scalable training of L1-regularized log-linear models", ICML 2007.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import namespace, scalar, total
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import slice_for_curvature
from daskml_dist.solvers.base import (
    Array,
    PenalisedSolver,
    RangedSolver,
    RangedSums,
    Solution,
    Solver,
    State,
    Statistic,
    Sums,
    VectorSpace,
    initial_parameters,
)
from daskml_dist.solvers.objective import (
    LossGradient,
    SmoothObjective,
    check_gradient_overflow,
    penalty_row_strengths,
)
from daskml_dist.solvers.rows import to_float64

__all__ = [
    "LBFGS",
    "HuberScale",
    "HuberSums",
    "minimize_lbfgsb",
    "minimize_orthant_wise",
    "minimize_side_by_side",
    "pseudo_gradient",
]


#: Pairs of a step and its change of the gradient that are kept: SciPy's default.
_MAX_PAIRS = 10
#: Share of the expected decrease that a step must bring (Armijo).
_ARMIJO_SHARE = 1e-4
#: Halvings of a step at most; a direction that needs more is no descent within rounding.
_MAX_HALVINGS = 50
#: Of batched L-BFGS: pairs that are kept, trials of a line search at most, and Armijo's share.
_MAX_BATCH_PAIRS, _MAX_BATCH_TRIALS, _BATCH_ARMIJO = 10, 20, 1e-4
#: Of batched L-BFGS: a function ends where a step gains less than this share of its first value, or
#: its gradient is below this share of the first one.
_BATCH_FTOL, _BATCH_GTOL = 1e-5, 1e-4
#: Values nearer to each other than this share are the same to the line search, as in scikit-learn.
_RELATIVE_TOLERANCE = 64 * float(np.finfo(float).eps)
#: Evaluations of one line search at most, as in scikit-learn.
_MAX_LINE_SEARCH = 50


@dataclass(frozen=True)
class LBFGS(PenalisedSolver, RangedSolver):
    """Quasi-Newton solver with the last ten gradients; each evaluation is one pass.

    It stops once no component of the gradient is larger than `tol`. A penalty with an l1 part
    takes orthant-wise steps, see :func:`minimize_orthant_wise`.

    Parameters
    ----------
    penalty, max_iter, tol
        As of :class:`PenalisedSolver`.
    max_fun : int, default=15_000
        Evaluations at most (but for an l1 part): SciPy's own bound.

    References
    ----------
    D. C. Liu and J. Nocedal, "On the limited memory BFGS method for large scale optimization",
    Mathematical Programming 45, 1989.

    Examples
    --------
    >>> from daskml_dist.penalties import Penalty
    >>> from daskml_dist.solvers import LBFGS
    >>> LBFGS(Penalty(0.0, 1.0), max_iter=100, tol=1e-4).max_passes > 0
    True
    """

    name = "lbfgs"
    handles_l1 = True
    max_fun: int = 15_000

    @property
    def max_passes(self) -> int:
        """Return the most evaluations: SciPy checks their number only after each line search."""
        return self.max_fun + _MAX_LINE_SEARCH

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise the penalised mean loss."""
        objective = SmoothObjective(model, sums, self.penalty)
        begin = last = initial_parameters(model, start)
        shape = begin.shape

        def evaluate(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
            nonlocal last
            last = flat.reshape(shape)
            value, gradient = objective.value_and_gradient(last)
            return value, gradient.ravel()

        # SciPy's L-BFGS-B knows no l1 part: orthant-wise steps keep what is zero exactly zero.
        if self.penalty.l1:
            l1 = penalty_row_strengths(
                model, self.penalty.l1, self.penalty.intercept_scaling, power=1
            )
            return minimize_orthant_wise(
                evaluate,
                begin,
                np.broadcast_to(l1, shape).ravel(),
                max_iter=self.max_iter,
                tol=self.tol,
                should_stop=lambda: sums.should_stop,
                on_step=lambda _, state: sums.keep(last, state),
                kept=sums.kept,
            )
        found = minimize_lbfgsb(
            evaluate,
            begin.ravel(),
            sums,
            on_step=lambda flat: sums.keep(flat.reshape(shape)),
            maxiter=self.max_iter,
            maxls=_MAX_LINE_SEARCH,
            gtol=self.tol,
            ftol=_RELATIVE_TOLERANCE,
            maxfun=self.max_fun,
        )
        return dataclasses.replace(found, w=found.w.reshape(shape))

    def solve_in_ranges(self, model: Any, ranges: RangedSums, start: Array) -> Solution:
        """Minimise with vectors of which each process holds a range.

        The steps are those of :func:`minimize_orthant_wise`, with or without an l1 part.

        References
        ----------
        J. Dean et al., "Large scale distributed deep networks", NIPS 2012 (Sandblaster).
        """
        shape = model.parameters.shape
        l1, l2 = (
            np.broadcast_to(
                penalty_row_strengths(model, strength, self.penalty.intercept_scaling, power), shape
            ).ravel()[ranges.own]
            for power, strength in ((1, self.penalty.l1), (2, self.penalty.l2))
        )

        def evaluate(w: Array) -> tuple[float, Array]:
            # Every process needs all of w to read its rows; gradients come back as the own range
            # alone.
            loss, *_ = total = ranges(LossGradient(ranges.whole(w).reshape(shape)))
            # The l2 part, of the own range; `dot` sums it over the processes.
            pull = l2 * w
            gradient = total[1:] / ranges.n_rows + pull
            return loss / ranges.n_rows + ranges.dot(pull, w) / 2, gradient

        found = minimize_orthant_wise(
            evaluate,
            start,
            l1,
            max_iter=self.max_iter - ranges.n_done,
            tol=self.tol,
            should_stop=lambda: ranges.should_stop,
            space=ranges,
            on_step=lambda n_iter, _: ranges.keep(n_iter),
        )
        return dataclasses.replace(found, n_iter=found.n_iter + ranges.n_done)


def minimize_lbfgsb(
    evaluate: Callable[[NDArray[Any]], tuple[float, NDArray[Any]]],
    start: NDArray[Any],
    sums: Sums,
    *,
    maxiter: int,
    bounds: list[tuple[float | None, float | None]] | None = None,
    on_step: Callable[[NDArray[Any]], None] = lambda flat: None,
    **options: Any,
) -> Solution:
    """Minimise by SciPy's L-BFGS-B, which also stops where the user ends the fit."""

    def callback(intermediate_result: OptimizeResult) -> None:
        on_step(intermediate_result.x)
        if sums.should_stop:
            raise StopIteration

    found = minimize(
        evaluate,
        start,
        method="L-BFGS-B",
        jac=True,
        bounds=bounds,
        callback=callback,
        options={"maxiter": maxiter, **options},
    )
    # A fit that the user stops counts as converged: there is nothing to warn of.
    return Solution(
        found.x,
        min(int(found.nit), maxiter),
        found.status == 0 or sums.should_stop,
        str(found.message),
        {"value": float(found.fun)},
    )


def minimize_orthant_wise(
    evaluate: Callable[[Array], tuple[float, Array]],
    start: Array,
    l1: Array,
    *,
    max_iter: int,
    tol: float,
    should_stop: Callable[[], bool],
    space: VectorSpace | None = None,
    on_step: Callable[[int, State | None], None] = lambda n_iter, state: None,
    kept: dict[str, Array] | None = None,
) -> Solution:
    """Minimise ``evaluate(w) + sum(l1 * |w|)``; what the l1 part holds at zero is exactly 0.

    Everything but the two functions of `space` is elementwise, so that several processes may each
    run this on a range of every vector: numbers, and with them decisions, are the same in all.
    """
    space = space or _WholeVectors()
    pairs: deque[_CurvaturePair] = deque(maxlen=_MAX_PAIRS)
    if kept is None:
        w, n_iter = start.ravel().copy(), 0
        smooth, gradient = evaluate(w)
        value = smooth + space.dot(l1, np.abs(w))
    else:
        w, gradient, value, n_iter = _restore_orthant_state(kept, pairs)
    message = ""
    while True:
        # The subgradient of least norm: the optimality measure and the search direction's source.
        pseudo = pseudo_gradient(w, gradient, l1)
        if space.largest(pseudo) <= tol or should_stop():
            break
        if n_iter == max_iter:
            message = f"the limit of {max_iter} iterations was reached"
            break
        found = _search_orthant(space, evaluate, w, value, pseudo, pairs, l1)
        if found is None and pairs:
            # What is remembered misleads: go on along the gradient.
            pairs.clear()
            continue
        if found is None:
            message = "no step along the gradient lowers the objective any more"
            break
        n_iter += 1
        new, new_value, new_gradient = found
        # Keep the pair only if its curvature is positive, so that the inverse Hessian stays so.
        step, change = new - w, new_gradient - gradient
        curvature, square = space.dot(step, change), space.dot(change, change)
        if curvature > np.finfo(float).eps * square:
            pairs.append(_CurvaturePair(step, change, curvature, square))
        # Relative decrease, as SciPy's `ftol` measures it.
        gain = (value - new_value) / max(abs(value), abs(new_value), 1.0)
        w, value, gradient = new, new_value, new_gradient
        if gain <= _RELATIVE_TOLERANCE:
            on_step(n_iter, None)
            break
        on_step(n_iter, partial(_pack_orthant_state, w, gradient, value, n_iter, pairs))
    return Solution(w.reshape(start.shape), n_iter, not message, message)


def pseudo_gradient(w: Array, gradient: Array, l1: Array) -> Array:
    """Return the subgradient of least norm of the penalised objective."""
    right, left = gradient + l1, gradient - l1
    at_zero = np.where(right < 0, right, np.where(left > 0, left, 0.0))
    return np.where(w == 0, at_zero, gradient + l1 * np.sign(w))


class _WholeVectors:
    """Vector space of a process that holds whole vectors."""

    def dot(self, a: Array, b: Array) -> float:
        return float(a @ b)

    def largest(self, a: Array) -> float:
        return float(np.abs(a).max(initial=0.0))


class _CurvaturePair(NamedTuple):
    """A step, the change of the gradient along it, and their dot products."""

    step: Array
    change: Array
    curvature: float
    square: float


def _pack_orthant_state(
    w: Array, gradient: Array, value: float, n_iter: int, pairs: deque[_CurvaturePair]
) -> dict[str, Array]:
    """Return the checkpoint of an iteration."""
    return {
        "w": w,
        "gradient": gradient,
        "numbers": np.array([value, n_iter]),
        "steps": np.array([pair.step for pair in pairs]),
        "changes": np.array([pair.change for pair in pairs]),
        "products": np.array([[pair.curvature, pair.square] for pair in pairs]),
    }


def _restore_orthant_state(
    kept: dict[str, Array], pairs: deque[_CurvaturePair]
) -> tuple[Array, Array, float, int]:
    """Undo `_pack_orthant_state`: point, gradient, value and iterations; `pairs` is filled."""
    rows = zip(kept["steps"], kept["changes"], kept["products"].tolist(), strict=True)
    pairs.extend(_CurvaturePair(step, change, *products) for step, change, products in rows)
    value, n_iter = kept["numbers"].tolist()
    return kept["w"], kept["gradient"], value, int(n_iter)


def _search_orthant(
    space: VectorSpace,
    evaluate: Callable[[Array], tuple[float, Array]],
    w: Array,
    value: float,
    pseudo: Array,
    pairs: deque[_CurvaturePair],
    l1: Array,
) -> tuple[Array, float, Array] | None:
    """Return a lower point along the quasi-Newton direction inside the orthant, or None."""
    direction = -_multiply_inverse_hessian(space, pseudo, pairs)
    penalised = l1 > 0
    # Steps against the pseudo-gradient come of the curvature of other orthants.
    direction[penalised & (direction * pseudo >= 0)] = 0.0
    if not space.largest(direction):
        return None
    # The orthant of the step: that of w, or where w is 0 the one that the slope points into.
    orthant = np.where(w == 0, -np.sign(pseudo), np.sign(w))
    # Without curvature the first step has length 1.
    t = 1.0 if pairs else 1.0 / math.sqrt(space.dot(pseudo, pseudo))
    for _ in range(_MAX_HALVINGS):
        new = w + t * direction
        # Project onto the orthant: components that would change their sign become exactly 0.
        new[penalised & (new * orthant <= 0)] = 0.0
        smooth, gradient = evaluate(new)
        new_value = smooth + space.dot(l1, np.abs(new))
        if new_value <= value + _ARMIJO_SHARE * space.dot(pseudo, new - w):
            return new, new_value, gradient
        t /= 2
    return None


def _multiply_inverse_hessian(
    space: VectorSpace, vector: Array, pairs: deque[_CurvaturePair]
) -> Array:
    """Apply the two-loop recursion of L-BFGS (Nocedal and Wright 2006, algorithm 7.4)."""
    result = vector.copy()
    shares = []
    # First loop: from the newest pair to the oldest.
    for pair in reversed(pairs):
        share = space.dot(pair.step, result) / pair.curvature
        result -= share * pair.change
        shares.append(share)
    # Initial inverse Hessian: the newest pair's curvature, times the identity.
    if pairs:
        result *= pairs[-1].curvature / pairs[-1].square
    # Second loop: from the oldest pair to the newest.
    for pair, share in zip(pairs, reversed(shares), strict=True):
        result += pair.step * (share - space.dot(pair.change, result) / pair.curvature)
    return result


def minimize_side_by_side(
    function: Callable[[Array, NDArray[np.intp]], tuple[Array, Array]],
    start: Array,
    max_iter: int,
    tols: tuple[Array, Array] | None = None,
    share: float = 1.0,
) -> tuple[Array, tuple[Array, Array]]:
    """Minimise many smooth functions by L-BFGS, evaluating them together.

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
    """
    v = start.astype(np.float64)
    value, slope = function(v, np.arange(len(v)))
    unit, norm = np.where(value == 0, 1.0, np.abs(value)), (slope**2).sum(axis=1)
    if tols is None:
        tols = _BATCH_FTOL * unit, _BATCH_GTOL * np.abs(slope).max(axis=1)
    ftol, gtol = (tol * share for tol in tols)
    # So long a step along the first gradient is worth about the value itself.
    scale = unit / np.where(norm > 0, norm, 1.0)
    pairs: list[tuple[Array, Array, Array]] = []
    going = np.flatnonzero(np.isfinite(value) & (np.abs(slope).max(axis=1) > gtol))
    for _ in range(max_iter):
        if not len(going):
            break
        # Quasi-Newton directions of the functions that are not at their end yet.
        way = -_multiply_batch_inverse(pairs, going, scale, slope[going])
        moved, new_value, new_slope = _search_batch(function, going, v, value, slope, way)
        s, y = moved - v[going], new_slope - slope[going]
        bent = (s * y).sum(axis=1)
        # Pairs without clear positive curvature count as none: their `rho` is 0.
        good = bent > 1e-10 * (y * y).sum(axis=1) * scale[going]
        # Pairs are stored for all functions, so that they stay aligned as functions end.
        of_all = [np.zeros_like(v), np.zeros_like(v), np.zeros(len(v))]
        of_all[0][going], of_all[1][going] = s, y
        of_all[2][going] = np.where(good, 1 / np.where(good, bent, 1.0), 0.0)
        pairs = [*pairs, (of_all[0], of_all[1], of_all[2])][-_MAX_BATCH_PAIRS:]
        squares = (y * y).sum(axis=1)
        scale[going] = np.where(good, bent / np.where(good, squares, 1.0), scale[going])
        gain = value[going] - new_value
        v[going], value[going], slope[going] = moved, new_value, new_slope
        going = going[(gain >= ftol[going]) & (np.abs(new_slope).max(axis=1) > gtol[going])]
    return v, tols


def _multiply_batch_inverse(
    pairs: list[tuple[Array, Array, Array]], at: Any, scale: Array, q: Array
) -> Array:
    """Apply the two-loop recursion of L-BFGS to the gradient of each function."""
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


def _search_batch(
    function: Any, at: Any, v: Array, value: Array, slope: Array, way: Array
) -> tuple[Array, Array, Array]:
    """Backtrack along each direction until Armijo's condition holds; return points and values."""
    moved, new_value, new_slope = v[at], value[at], slope[at]
    down, step = (slope[at] * way).sum(axis=1), np.ones(len(at))
    left = np.flatnonzero(down < 0)
    for _ in range(_MAX_BATCH_TRIALS):
        if not len(left):
            break
        tried = v[at[left]] + step[left, None] * way[left]
        found, slopes = function(tried, at[left])
        # Armijo's condition, function by function.
        enough = found <= value[at[left]] + _BATCH_ARMIJO * step[left] * down[left]
        some = left[enough]
        moved[some], new_value[some], new_slope[some] = tried[enough], found[enough], slopes[enough]
        over, left, t = found[~enough], left[~enough], step[left[~enough]]
        # The lowest point of the parabola through both values and the slope.
        with np.errstate(all="ignore"):
            lowest = -down[left] * t**2 / (2 * (over - value[at[left]] - down[left] * t))
        # Keep the step between a tenth and a half of the last one.
        step[left] = np.clip(np.where(np.isfinite(lowest), lowest, 0.0), 0.1 * t, 0.5 * t)
    return moved, new_value, new_slope


#: The scale at least, as in scikit-learn: at zero the objective has no gradient.
_MIN_SCALE = 10 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class HuberSums(Statistic):
    """``[loss, its derivative by the scale, *its gradient by w]``, of residuals r.

    The loss is ``r**2 / scale`` for ``|r| <= epsilon * scale``, and goes on as a line. Some rows at
    a time are made float64: near the optimum a line search needs more digits than float32 has.
    """

    w: Array
    scale: float
    epsilon: float
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (2 + self.w.size,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        xp, w = namespace(out), backend.to_device(self.w)
        gradient = xp.reshape(out[2:], self.w.shape)
        loss = 0.0
        for at in slice_for_curvature(rows.X, backend):
            part = rows.part(at, backend)
            X = to_float64(part.X)
            residual = part.y - model.raw_prediction(w, X, backend)
            with np.errstate(over="ignore"):
                losses, by_scale, g = self._at(residual)
            if part.weight is not None:
                losses, by_scale, g = (each * part.weight for each in (losses, by_scale, g))
            backend.add_tdot(X, g, gradient[: model.n_features, ...])
            if model.fit_intercept:
                gradient[-1, ...] += total(g, dtype=xp.float64)
            loss += scalar(total(losses, dtype=xp.float64))
            out[1] += total(by_scale, dtype=xp.float64)
        out[0] += loss
        return loss

    def _at(self, residual: Any) -> tuple[Any, Any, Any]:
        """Return each row's loss, and its derivatives by the scale and by the raw prediction."""
        bound = self.epsilon * self.scale
        # Residuals within `bound` count by their square, others linearly.
        inside = namespace(residual).clip(residual, -bound, bound)
        ratio = inside / self.scale
        losses = (2 * residual - inside) * ratio
        return losses, -ratio * ratio, -2 * ratio


@dataclass(frozen=True)
class HuberScale(Solver):
    """L-BFGS on the coefficients and the scale, which stays positive; a pass an evaluation.

    Like scikit-learn it stops by SciPy's own bound on small gains too: with a perfect fit the
    scale goes to zero for ever.

    The objective is ``sum(weight * (scale + loss)) + alpha * |coef|^2``.

    Parameters
    ----------
    epsilon : float
        Residuals of more scales than this are outliers.
    alpha : float
    max_iter : int
    tol : float
        Largest component of the gradient at which it stops.
    weight_sum : float
        Sum of the users' row weights.
    scale : float
        To start from.

    References
    ----------
    P. J. Huber and E. M. Ronchetti, "Robust Statistics", concomitant scale estimates.
    A. B. Owen, "A robust hybrid of lasso and ridge regression", 2007.
    """

    epsilon: float
    alpha: float
    max_iter: int
    tol: float
    weight_sum: float
    scale: float = 1.0

    name = "huber"

    @property
    def max_passes(self) -> int:
        """Return SciPy's own bound on evaluations."""
        return 15_000

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise; ``extra["scale"]`` is the scale."""
        begin, begun = initial_parameters(model, start), False
        shape = begin.shape

        def evaluate(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
            nonlocal begun
            found = self._objective(model, sums, flat[:-1].reshape(shape), float(flat[-1]))
            if not begun:
                check_gradient_overflow(found[1])
                begun = True
            return found

        found = minimize_lbfgsb(
            evaluate,
            np.append(begin.ravel(), self.scale),
            sums,
            maxiter=self.max_iter,
            bounds=[*[(None, None)] * begin.size, (_MIN_SCALE, None)],
            gtol=self.tol,
            maxfun=self.max_passes,
        )
        w, scale = found.w[:-1].reshape(shape), float(found.w[-1])
        return dataclasses.replace(found, w=w, extra={"scale": scale})

    def _objective(
        self, model: Any, sums: Sums, w: Array, scale: float
    ) -> tuple[float, NDArray[Any]]:
        total = sums(HuberSums(w, scale, self.epsilon)) * (self.weight_sum / sums.n_rows)
        coef = w[: model.n_penalised]
        # The scale's own term keeps it from growing, the loss from zero (Owen 2007).
        value = self.weight_sum * scale + float(total[0] + self.alpha * np.vdot(coef, coef))
        gradient = total[2:].reshape(w.shape)
        gradient[: len(coef)] += 2 * self.alpha * coef
        return value, np.append(gradient.ravel(), self.weight_sum + total[1])
