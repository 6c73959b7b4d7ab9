"""Limited-memory BFGS over sums: by SciPy, orthant-wise for l1 penalties, and batched.

:class:`LBFGS` is the solver of penalised losses, by SciPy's L-BFGS-B or, with an l1 penalty or
sharded vectors, by :func:`minimize_orthant_wise` (OWL-QN). :func:`minimize_side_by_side` minimises
many small functions that are evaluated in one batch. :class:`HuberScale` minimises Huber's loss
over the coefficients and the scale jointly.

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

from daskml_dist.backends.base import Backend
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

#: Curvature pairs (step, change of the gradient) that are kept: SciPy's default.
_MAX_PAIRS = 10
#: Constant c1 of the Armijo condition (Nocedal and Wright 2006, chapter 3.1).
_ARMIJO_SHARE = 1e-4
#: Most halvings of a step: 2**-50 is near the rounding error of float64.
_MAX_HALVINGS = 50
#: Batched L-BFGS: curvature pairs, most trials of a line search, and Armijo's c1.
_MAX_BATCH_PAIRS, _MAX_BATCH_TRIALS, _BATCH_ARMIJO = 10, 20, 1e-4
#: Batched L-BFGS: a function has converged if a step decreases it by less than this share of its
#: first value, or its gradient's largest component is below this share of the first gradient's.
_BATCH_FTOL, _BATCH_GTOL = 1e-5, 1e-4
#: Relative decrease of the objective at which a fit has converged (`ftol`), as in scikit-learn.
_RELATIVE_TOLERANCE = 64 * float(np.finfo(float).eps)
#: Most evaluations of one line search (`maxls`), as in scikit-learn.
_MAX_LINE_SEARCH = 50


@dataclass(frozen=True)
class LBFGS(PenalisedSolver, RangedSolver):
    """Limited-memory BFGS, a quasi-Newton method; each evaluation is one pass over the data.

    It stops if no component of the gradient is larger than `tol`, or if the objective decreases by
    no more than rounding errors. With an l1 penalty the steps are those of OWL-QN, see
    :func:`minimize_orthant_wise`.

    Parameters
    ----------
    penalty, max_iter, tol
        As of :class:`PenalisedSolver`.
    max_fun : int, default=15_000
        Most evaluations, without an l1 penalty; SciPy's default.

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
        """Return the largest number of evaluations; SciPy checks it only after a line search."""
        return self.max_fun + _MAX_LINE_SEARCH

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise the penalised mean loss."""
        objective = SmoothObjective(model, sums, self.penalty)
        first = last = initial_parameters(model, start)
        shape = first.shape

        def evaluate(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
            nonlocal last
            last = flat.reshape(shape)
            value, gradient = objective.value_and_gradient(last)
            return value, gradient.ravel()

        # SciPy's L-BFGS-B has no l1 penalty; orthant-wise steps set coefficients to exactly 0.
        if self.penalty.l1:
            l1 = penalty_row_strengths(
                model, self.penalty.l1, self.penalty.intercept_scaling, power=1
            )
            return minimize_orthant_wise(
                evaluate,
                first,
                np.broadcast_to(l1, shape).ravel(),
                max_iter=self.max_iter,
                tol=self.tol,
                should_stop=lambda: sums.should_stop,
                on_step=lambda _, state: sums.keep(last, state),
                snapshot=sums.kept,
            )
        solution = _minimize_lbfgsb(
            evaluate,
            first.ravel(),
            sums,
            on_step=lambda flat: sums.keep(flat.reshape(shape)),
            maxiter=self.max_iter,
            maxls=_MAX_LINE_SEARCH,
            gtol=self.tol,
            ftol=_RELATIVE_TOLERANCE,
            maxfun=self.max_fun,
        )
        return dataclasses.replace(solution, w=solution.w.reshape(shape))

    def solve_in_ranges(self, model: Any, ranges: RangedSums, start: Array) -> Solution:
        """Minimise with sharded vectors: each process holds a range of every vector.

        The steps are those of :func:`minimize_orthant_wise`, with or without an l1 part.

        References
        ----------
        J. Dean et al., "Large scale distributed deep networks", NIPS 2012 (Sandblaster).
        """
        shape = model.parameters.shape
        l1, l2 = (
            np.broadcast_to(
                penalty_row_strengths(model, strength, self.penalty.intercept_scaling, power), shape
            ).ravel()[ranges.own_range]
            for power, strength in ((1, self.penalty.l1), (2, self.penalty.l2))
        )

        def evaluate(w: Array) -> tuple[float, Array]:
            # All-gather w, since rows need all of it; the gradient is reduce-scattered.
            loss, *_ = total = ranges(LossGradient(ranges.gather(w).reshape(shape)))
            # The l2 penalty of the own range; `dot` sums over the processes.
            pull = l2 * w
            gradient = total[1:] / ranges.n_rows + pull
            return loss / ranges.n_rows + ranges.dot(pull, w) / 2, gradient

        solution = minimize_orthant_wise(
            evaluate,
            start,
            l1,
            max_iter=self.max_iter - ranges.n_done,
            tol=self.tol,
            should_stop=lambda: ranges.should_stop,
            vector_space=ranges,
            on_step=lambda n_iter, _: ranges.keep(n_iter),
        )
        return dataclasses.replace(solution, n_iter=solution.n_iter + ranges.n_done)


def _minimize_lbfgsb(
    evaluate: Callable[[NDArray[Any]], tuple[float, NDArray[Any]]],
    start: NDArray[Any],
    sums: Sums,
    *,
    maxiter: int,
    bounds: list[tuple[float | None, float | None]] | None = None,
    on_step: Callable[[NDArray[Any]], None] = lambda flat: None,
    **options: Any,
) -> Solution:
    """Minimise by SciPy's L-BFGS-B; stop early if the user ends the fit (`sums.should_stop`)."""

    def callback(intermediate_result: OptimizeResult) -> None:
        on_step(intermediate_result.x)
        if sums.should_stop:
            raise StopIteration

    result = minimize(
        evaluate,
        start,
        method="L-BFGS-B",
        jac=True,
        bounds=bounds,
        callback=callback,
        options={"maxiter": maxiter, **options},
    )
    # A fit that the user stops counts as converged: no warning is due.
    return Solution(
        result.x,
        min(int(result.nit), maxiter),
        result.status == 0 or sums.should_stop,
        str(result.message),
        {"value": float(result.fun)},
    )


def minimize_orthant_wise(
    evaluate: Callable[[Array], tuple[float, Array]],
    start: Array,
    l1: Array,
    *,
    max_iter: int,
    tol: float,
    should_stop: Callable[[], bool],
    vector_space: VectorSpace | None = None,
    on_step: Callable[[int, State | None], None] = lambda n_iter, state: None,
    snapshot: dict[str, Array] | None = None,
) -> Solution:
    """Minimise ``evaluate(w) + sum(l1 * |w|)`` by OWL-QN (Andrew and Gao 2007).

    All operations but those of `vector_space` are elementwise. Processes that hold a range of every
    vector can therefore each run it on their range, and take the same decisions, since scalars are
    the same in all.

    Parameters
    ----------
    evaluate : callable
        Returns value and gradient of the smooth part at a point.
    start : ndarray
    l1 : ndarray of shape (start.size,)
        Strength of the l1 penalty on each component.
    max_iter : int
    tol : float
        Largest component of the pseudo-gradient at which it has converged.
    should_stop : callable
    vector_space : VectorSpace, optional
        None: vectors are whole.
    on_step : callable
        Called after each iteration with its number, and with a function that returns a snapshot
        (None: after the last).
    snapshot : dict of str to ndarray, optional
        Snapshot to resume from.
    """
    vector_space = vector_space or _WholeVectors()
    pairs: deque[_CurvaturePair] = deque(maxlen=_MAX_PAIRS)
    if snapshot is None:
        w, n_iter = start.ravel().copy(), 0
        smooth, gradient = evaluate(w)
        value = smooth + vector_space.dot(l1, np.abs(w))
    else:
        w, gradient, value, n_iter = _restore_orthant_state(snapshot, pairs)
    message = ""
    while True:
        # It is 0 at the minimum, and takes the place of the gradient in the search direction.
        pseudo = pseudo_gradient(w, gradient, l1)
        if vector_space.largest(pseudo) <= tol or should_stop():
            break
        if n_iter == max_iter:
            message = f"the limit of {max_iter} iterations was reached"
            break
        lower = _search_orthant(vector_space, evaluate, w, value, pseudo, pairs, l1)
        if lower is None and pairs:
            # No descent along the quasi-Newton direction: restart from steepest descent.
            pairs.clear()
            continue
        if lower is None:
            message = "no step along the gradient lowers the objective further"
            break
        n_iter += 1
        new_w, new_value, new_gradient = lower
        # Positive curvature keeps the approximate inverse Hessian positive definite.
        step, change = new_w - w, new_gradient - gradient
        curvature, square = vector_space.dot(step, change), vector_space.dot(change, change)
        if curvature > np.finfo(float).eps * square:
            pairs.append(_CurvaturePair(step, change, curvature, square))
        # Relative decrease, as SciPy's `ftol` measures it.
        gain = (value - new_value) / max(abs(value), abs(new_value), 1.0)
        w, value, gradient = new_w, new_value, new_gradient
        if gain <= _RELATIVE_TOLERANCE:
            on_step(n_iter, None)
            break
        on_step(n_iter, partial(_pack_orthant_state, w, gradient, value, n_iter, pairs))
    return Solution(w.reshape(start.shape), n_iter, not message, message)


def pseudo_gradient(w: Array, gradient: Array, l1: Array) -> Array:
    """Return the pseudo-gradient: the subgradient of least norm of the penalised objective."""
    right_slope, left_slope = gradient + l1, gradient - l1
    at_zero = np.where(right_slope < 0, right_slope, np.where(left_slope > 0, left_slope, 0.0))
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
    """Return a snapshot of an iteration as arrays by name, for checkpoints."""
    return {
        "w": w,
        "gradient": gradient,
        "numbers": np.array([value, n_iter]),
        "steps": np.array([pair.step for pair in pairs]),
        "changes": np.array([pair.change for pair in pairs]),
        "products": np.array([[pair.curvature, pair.square] for pair in pairs]),
    }


def _restore_orthant_state(
    snapshot: dict[str, Array], pairs: deque[_CurvaturePair]
) -> tuple[Array, Array, float, int]:
    """Return point, gradient, value and iterations of a snapshot, and fill `pairs`."""
    rows = zip(snapshot["steps"], snapshot["changes"], snapshot["products"].tolist(), strict=True)
    pairs.extend(_CurvaturePair(step, change, *products) for step, change, products in rows)
    value, n_iter = snapshot["numbers"].tolist()
    return snapshot["w"], snapshot["gradient"], value, int(n_iter)


def _search_orthant(
    vector_space: VectorSpace,
    evaluate: Callable[[Array], tuple[float, Array]],
    w: Array,
    value: float,
    pseudo: Array,
    pairs: deque[_CurvaturePair],
    l1: Array,
) -> tuple[Array, float, Array] | None:
    """Return a lower point along the quasi-Newton direction inside the orthant, or None."""
    direction = -_multiply_inverse_hessian(vector_space, pseudo, pairs)
    penalised = l1 > 0
    # Constrain the direction to the signs of steepest descent: the approximate Hessian does not
    # include the l1 penalty.
    direction[penalised & (direction * pseudo >= 0)] = 0.0
    if not vector_space.largest(direction):
        return None
    # The orthant of w; for components at 0 the one that steepest descent enters.
    orthant = np.where(w == 0, -np.sign(pseudo), np.sign(w))
    # Without curvature pairs the first trial step has length 1.
    t = 1.0 if pairs else 1.0 / math.sqrt(vector_space.dot(pseudo, pseudo))
    for _ in range(_MAX_HALVINGS):
        new_w = w + t * direction
        # Project onto the orthant: penalised components that would change their sign become 0.
        new_w[penalised & (new_w * orthant <= 0)] = 0.0
        smooth, gradient = evaluate(new_w)
        new_value = smooth + vector_space.dot(l1, np.abs(new_w))
        if new_value <= value + _ARMIJO_SHARE * vector_space.dot(pseudo, new_w - w):
            return new_w, new_value, gradient
        t /= 2
    return None


def _multiply_inverse_hessian(
    vector_space: VectorSpace, vector: Array, pairs: deque[_CurvaturePair]
) -> Array:
    """Return the approximate inverse Hessian times a vector.

    The two-loop recursion of L-BFGS (Nocedal and Wright 2006, algorithm 7.4).
    """
    result = vector.copy()
    alphas = []
    # First loop: from the newest pair to the oldest.
    for pair in reversed(pairs):
        alpha = vector_space.dot(pair.step, result) / pair.curvature
        result -= alpha * pair.change
        alphas.append(alpha)
    # Initial inverse Hessian: the identity times s'y / y'y of the newest pair (equation 7.20).
    if pairs:
        result *= pairs[-1].curvature / pairs[-1].square
    # Second loop: from the oldest pair to the newest.
    for pair, alpha in zip(pairs, reversed(alphas), strict=True):
        result += pair.step * (alpha - vector_space.dot(pair.change, result) / pair.curvature)
    return result


def minimize_side_by_side(
    function: Callable[[Array, NDArray[np.intp]], tuple[Array, Array]],
    start: Array,
    max_iter: int,
    tols: tuple[Array, Array] | None = None,
    tol_factor: float = 1.0,
) -> tuple[Array, tuple[Array, Array]]:
    """Minimise many smooth functions by L-BFGS, evaluating them together.

    Parameters
    ----------
    function : callable
        Takes points of shape (n, n_parameters) and the indices of n functions; returns their
        values, of shape (n,), and gradients.
    start : ndarray of float64 of shape (n_functions, n_parameters)
    max_iter : int
    tols : tuple of two ndarray of shape (n_functions,), optional
        Absolute `ftol` and `gtol` of each function: it has converged if a step decreases it by less
        than the first, or if no component of its gradient is larger than the second. None:
        relative to value and gradient at the start.
    tol_factor : float, default=1.0
        Factor on `tols`.

    Returns
    -------
    points : ndarray of shape (n_functions, n_parameters)
    tols : tuple of two ndarray
        The tolerances before the factor `tol_factor`, for a later call.
    """
    v = start.astype(np.float64)
    value, slope = function(v, np.arange(len(v)))
    unit, norm = np.where(value == 0, 1.0, np.abs(value)), (slope**2).sum(axis=1)
    if tols is None:
        tols = _BATCH_FTOL * unit, _BATCH_GTOL * np.abs(slope).max(axis=1)
    ftol, gtol = (tol * tol_factor for tol in tols)
    # A first step whose expected decrease is the value itself.
    scale = unit / np.where(norm > 0, norm, 1.0)
    #: Steps s, changes of the gradient y, and rho = 1 / s'y, of all functions.
    pairs: list[tuple[Array, Array, Array]] = []
    active = np.flatnonzero(np.isfinite(value) & (np.abs(slope).max(axis=1) > gtol))
    for _ in range(max_iter):
        if not len(active):
            break
        # Quasi-Newton directions of the functions that have not converged.
        direction = -_multiply_batch_inverse(pairs, active, scale, slope[active])
        new_v, new_value, new_slope = _search_batch(function, active, v, value, slope, direction)
        s, y = new_v - v[active], new_slope - slope[active]
        curvature = (s * y).sum(axis=1)
        # A pair without clearly positive curvature is disabled by rho = 0.
        is_curved = curvature > 1e-10 * (y * y).sum(axis=1) * scale[active]
        # Pairs are stored for all functions, so that they stay aligned as functions end.
        pair = [np.zeros_like(v), np.zeros_like(v), np.zeros(len(v))]
        pair[0][active], pair[1][active] = s, y
        pair[2][active] = np.where(is_curved, 1 / np.where(is_curved, curvature, 1.0), 0.0)
        pairs = [*pairs, (pair[0], pair[1], pair[2])][-_MAX_BATCH_PAIRS:]
        squares = (y * y).sum(axis=1)
        scale[active] = np.where(
            is_curved, curvature / np.where(is_curved, squares, 1.0), scale[active]
        )
        gain = value[active] - new_value
        v[active], value[active], slope[active] = new_v, new_value, new_slope
        active = active[(gain >= ftol[active]) & (np.abs(new_slope).max(axis=1) > gtol[active])]
    return v, tols


def _multiply_batch_inverse(
    pairs: list[tuple[Array, Array, Array]], function_indices: Any, scale: Array, q: Array
) -> Array:
    """Return inverse Hessians times gradients of some functions, by the two-loop recursion."""
    q, alphas = q.copy(), []
    for s, y, rho in reversed(pairs):
        alpha = rho[function_indices] * (s[function_indices] * q).sum(axis=1)
        q -= alpha[:, None] * y[function_indices]
        alphas.append(alpha)
    q *= scale[function_indices][:, None]
    for s, y, rho in pairs:
        difference = alphas.pop() - rho[function_indices] * (y[function_indices] * q).sum(axis=1)
        q += difference[:, None] * s[function_indices]
    return q


def _search_batch(
    function: Any, function_indices: Any, v: Array, value: Array, slope: Array, direction: Array
) -> tuple[Array, Array, Array]:
    """Backtrack until Armijo's condition holds; return the points, values and gradients.

    If it finds no such step, a function's point is unchanged.
    """
    new_v, new_value, new_slope = (
        v[function_indices],
        value[function_indices],
        slope[function_indices],
    )
    derivative, step = (
        (slope[function_indices] * direction).sum(axis=1),
        np.ones(len(function_indices)),
    )
    active = np.flatnonzero(derivative < 0)
    for _ in range(_MAX_BATCH_TRIALS):
        if not len(active):
            break
        trial = v[function_indices[active]] + step[active, None] * direction[active]
        values, slopes = function(trial, function_indices[active])
        # Armijo's condition, function by function.
        enough = (
            values
            <= value[function_indices[active]] + _BATCH_ARMIJO * step[active] * derivative[active]
        )
        accepted = active[enough]
        new_v[accepted], new_value[accepted], new_slope[accepted] = (
            trial[enough],
            values[enough],
            slopes[enough],
        )
        rejected, active, t = values[~enough], active[~enough], step[active[~enough]]
        # Minimum of the quadratic interpolation (Nocedal and Wright 2006, equation 3.58), clipped
        # to between a tenth and a half of the last step.
        with np.errstate(all="ignore"):
            lowest = (
                -derivative[active]
                * t**2
                / (2 * (rejected - value[function_indices[active]] - derivative[active] * t))
            )
        step[active] = np.clip(np.where(np.isfinite(lowest), lowest, 0.0), 0.1 * t, 0.5 * t)
    return new_v, new_value, new_slope


#: Least scale, as in scikit-learn: at 0 the objective has no gradient.
_MIN_SCALE = 10 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class HuberSums(Statistic):
    """Huber's loss of the residuals r: ``[loss, derivative by the scale, *gradient by w]``.

    The loss is ``r**2 / scale`` for ``|r| <= epsilon * scale``, and continues linearly. It is
    computed in float64, a tile of rows at a time: near the optimum the line search needs more
    digits than float32 has.
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
        for tile in slice_for_curvature(rows.X, backend):
            part = rows.part(tile, backend)
            X = to_float64(part.X)
            residual = part.y - model.raw_prediction(w, X, backend)
            with np.errstate(over="ignore"):
                losses, by_scale, g = self._compute_derivatives(residual)
            if part.weight is not None:
                losses, by_scale, g = (values * part.weight for values in (losses, by_scale, g))
            backend.add_tdot(X, g, gradient[: model.n_features, ...])
            if model.fit_intercept:
                gradient[-1, ...] += total(g, dtype=xp.float64)
            loss += scalar(total(losses, dtype=xp.float64))
            out[1] += total(by_scale, dtype=xp.float64)
        out[0] += loss
        return loss

    def _compute_derivatives(self, residual: Any) -> tuple[Any, Any, Any]:
        """Return each row's loss, and its derivatives by the scale and by the raw prediction."""
        bound = self.epsilon * self.scale
        # (2 r - c) * c / scale with c = clip(r): r**2 / scale inside the bound, linear outside.
        clipped = namespace(residual).clip(residual, -bound, bound)
        ratio = clipped / self.scale
        losses = (2 * residual - clipped) * ratio
        return losses, -ratio * ratio, -2 * ratio


@dataclass(frozen=True)
class HuberScale(Solver):
    """Solver of Huber regression: L-BFGS-B on the coefficients and the positive scale.

    The objective is ``sum(weight * (scale + loss)) + alpha * |coef|^2``. Like scikit-learn's, the
    solver also stops by SciPy's default `ftol`: with a perfect fit the scale would decrease for
    ever.

    Parameters
    ----------
    epsilon : float
        Residuals larger than `epsilon` times the scale are outliers.
    alpha : float
    max_iter : int
    tol : float
        Largest component of the gradient at which it stops.
    weight_sum : float
        Sum of the users' row weights.
    scale : float
        Initial scale.

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
    #: SciPy's default for the largest number of evaluations.
    max_passes = 15_000

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise; ``extra["scale"]`` is the scale."""
        first, begun = initial_parameters(model, start), False
        shape = first.shape

        def evaluate(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
            nonlocal begun
            evaluated = self._objective(model, sums, flat[:-1].reshape(shape), float(flat[-1]))
            if not begun:
                check_gradient_overflow(evaluated[1])
                begun = True
            return evaluated

        solution = _minimize_lbfgsb(
            evaluate,
            np.append(first.ravel(), self.scale),
            sums,
            maxiter=self.max_iter,
            bounds=[*[(None, None)] * first.size, (_MIN_SCALE, None)],
            gtol=self.tol,
            maxfun=self.max_passes,
        )
        w, scale = solution.w[:-1].reshape(shape), float(solution.w[-1])
        return dataclasses.replace(solution, w=w, extra={"scale": scale})

    def _objective(
        self, model: Any, sums: Sums, w: Array, scale: float
    ) -> tuple[float, NDArray[Any]]:
        """Return value and gradient of the objective; the last component is that of the scale."""
        # The engine scales weights to a mean of 1: scale the sums back to the user's weights.
        total = sums(HuberSums(w, scale, self.epsilon)) * (self.weight_sum / sums.n_rows)
        coef = w[: model.n_penalised]
        # The term of the scale keeps it from growing, the loss from going to 0 (Owen 2007).
        value = self.weight_sum * scale + float(total[0] + self.alpha * np.vdot(coef, coef))
        gradient = total[2:].reshape(w.shape)
        gradient[: len(coef)] += 2 * self.alpha * coef
        return value, np.append(gradient.ravel(), self.weight_sum + total[1])
