"""Newton's method over sums: iteratively reweighted least squares with an exact Hessian.

:class:`NewtonCholesky` minimises smooth losses. :class:`TubeNewton` minimises the
epsilon-insensitive loss by continuation: its kinks are rounded off, less and less.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses.base import Loss
from daskml_dist.losses.residual import EpsilonInsensitive
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import add_curvature
from daskml_dist.penalties import Penalty
from daskml_dist.solvers.base import (
    Array,
    PenalisedSolver,
    Solution,
    Statistic,
    Sums,
    initial_parameters,
)
from daskml_dist.solvers.lbfgs import LBFGS
from daskml_dist.solvers.objective import SmoothObjective
from daskml_dist.solvers.rows import to_rows_dtype

#: Widths of the rounding, in units of the targets' spread: from 1 to 1e-5 by factors of sqrt(10).
#: With larger factors Newton's method fails: after a step, the rows inside the parabola differ from
#: those that contributed to the Hessian.
_ROUNDING_WIDTHS = [10.0 ** -(k / 2) for k in range(11)]
#: Largest width at the end, whatever the tolerance: predictions off by a hundredth of the spread.
_LARGEST_LAST_WIDTH = 1e-2
#: Most iterations for each width but the last: only its solution must be exact.
_MAX_STEPS_PER_WIDTH = 10
#: Share of the expected decrease that a step must bring (Armijo), as in scikit-learn.
_ARMIJO_SHARE = 2.0**-11
#: Most steps of a line search, each half the one before, as in scikit-learn.
_MAX_LINE_SEARCH = 21
#: Losses whose relative difference is smaller count as equal, since rows may be float32. Whether a
#: step helped then follows from the gradient, for float64 rows too.
_LOSS_RESOLUTION = 16 * float(np.finfo(np.float32).eps)
#: Share of rows without curvature above which the Hessian is useless, as in scikit-learn.
_MAX_FLAT_SHARE = 0.25
#: Most parameters: the Hessian of more takes over 2 GiB on every worker.
_MAX_PARAMETERS = 2**14


@dataclass(frozen=True, eq=False)
class LossHessian(Statistic):
    """Sum of the losses at `w`, its gradient and its Hessian.

    Flat: ``[loss, weight of rows without curvature, *gradient.ravel(), *hessian.ravel()]``. A
    `loss`, if given, replaces that of the model.
    """

    w: Array
    loss: Loss | None = None
    in_parts: ClassVar[bool] = True

    @property
    def shows_not_finite(self) -> bool:
        """Return whether `w` is zero, as `LossGradient` does."""
        return not self.w.any()

    def shape(self, model: Any) -> tuple[int, ...]:
        return (2 + self.w.size + self.w.size**2,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        xp, w = namespace(out), to_rows_dtype(self.w, rows.X, backend)
        if self.loss is not None:
            model = replace(model, loss=self.loss)
        gradient = xp.reshape(out[2 : 2 + w.size], w.shape)
        hessian = xp.reshape(out[2 + w.size :], w.shape * 2)
        # A step that a line search tries may be far too long; the search detects it from the loss.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            loss, flat = add_curvature(model, w, rows, gradient, hessian, backend)
        out[0] += loss
        out[1] += flat
        return loss


@dataclass
class _NewtonPoint:
    """Objective, gradient and Hessian at some parameters; no Hessian if it was not requested."""

    w: Array
    value: float
    gradient: Array
    hessian: Array | None = None
    flat: float = 0.0

    @property
    def slope(self) -> float:
        """Return the largest absolute component of the gradient."""
        return float(np.abs(self.gradient).max())


class _NewtonTroubleError(Exception):
    """Reason why no further Newton step can be taken."""


@dataclass(frozen=True)
class _NewtonRun:
    """Result of Newton's steps: solved, in trouble (why), or at the limit of iterations."""

    w: Array
    n_iter: int
    solved: bool
    trouble: str = ""


@dataclass(frozen=True)
class NewtonCholesky(PenalisedSolver):
    """Newton's method by a Cholesky factor of the Hessian; each evaluation is one pass.

    A pass sums loss, gradient and Hessian together, so a step of full length costs one pass. It
    suits many rows and few features: the Hessian has the square of the number of parameters. It
    stops once neither a component of the gradient nor half the squared Newton decrement is larger
    than `tol`. If the Hessian is singular or useless, or no step lowers the objective, L-BFGS
    continues from there, with a warning.

    References
    ----------
    J. Nocedal and S. J. Wright, "Numerical Optimization", 2nd edition, 2006, chapter 3.
    S. Boyd and L. Vandenberghe, "Convex Optimization", 2004, section 9.5.
    """

    name = "newton-cholesky"

    @property
    def max_passes(self) -> int:
        """Return the passes of full line searches, and of L-BFGS after them."""
        return 1 + _MAX_LINE_SEARCH * self.max_iter + 15_000

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise the penalised mean loss."""
        steps = _NewtonSteps(model, sums, self.penalty, self.tol)
        if (snapshot := sums.kept) is None:
            run = steps.run(initial_parameters(model, start), self.max_iter)
        else:
            run = steps.run(
                snapshot["w"], self.max_iter, int(snapshot["n_iter"]), float(snapshot["before"])
            )
        if run.trouble:
            return self._continue_by_lbfgs(model, sums, run)
        message = f"the limit of {self.max_iter} iterations was reached"
        return Solution(run.w, run.n_iter, run.solved or sums.should_stop, message)

    def _continue_by_lbfgs(self, model: Any, sums: Sums, run: _NewtonRun) -> Solution:
        """Return the solution of L-BFGS from where Newton's method failed."""
        n_left = max(1, self.max_iter - run.n_iter)
        solution = LBFGS(self.penalty, n_left, self.tol).solve(model, sums, run.w)
        text = (
            f"Newton's method met {run.trouble} in iteration {run.n_iter + 1}, so L-BFGS "
            "continued from there. Remove collinear features, penalise more, or use "
            "solver='lbfgs'."
        )
        extra = {**solution.extra, "warnings": [text]}
        return replace(solution, n_iter=run.n_iter + solution.n_iter, extra=extra)


class _NewtonSteps:
    """Newton steps on one objective.

    A softmax does not change when a number is added to the raw predictions of all classes, so the
    Hessian is singular in these directions, except for parameters that are penalised. The other
    parameters of the last class are fixed at zero.

    Parameters
    ----------
    model : LinearModel
    sums : Sums
    penalty : Penalty
    tol : float
    loss : Loss or None
        Replaces the model's loss.
    many_flat : float
        Share of rows without curvature above which the Hessian counts as useless.

    Raises
    ------
    InvalidParameterError
        For too many parameters.
    """

    def __init__(
        self,
        model: Any,
        sums: Sums,
        penalty: Penalty,
        tol: float,
        loss: Loss | None = None,
        many_flat: float = _MAX_FLAT_SHARE,
    ) -> None:
        size = int(np.prod(model.shape))
        if size > _MAX_PARAMETERS:
            raise InvalidParameterError(
                f"Newton's method needs a matrix of {size:,} x {size:,} numbers on every worker. "
                f'Use solver="lbfgs" (LinearSVR: loss="squared_epsilon_insensitive") for more than '
                f"{_MAX_PARAMETERS:,} parameters."
            )
        self._model, self._sums, self._loss = model, sums, loss
        self._tol, self._many_flat = tol, many_flat
        self._objective = SmoothObjective(model, sums, penalty)
        softmax = model.width > 1 and model.loss.multiclass == "softmax"
        # Rows of the parameters that all classes can be shifted by at no cost.
        self._shiftable = softmax & (self._objective.l2[:, 0] == 0)
        is_free = np.ones(model.shape, dtype=bool)
        is_free[self._shiftable, -1] = False
        self._free_parameters = np.flatnonzero(is_free)

    def run(
        self,
        start: Array,
        max_iter: int,
        n_iter: int = 0,
        before: float = np.inf,
        **extra_scalars: float,
    ) -> _NewtonRun:
        """Take steps until the objective is solved, or none can be taken.

        `n_iter` and `before` (the largest component of the last gradient) are those of a snapshot;
        snapshots have the numbers `extra_scalars` too.
        """
        w = start.copy()
        # Shift all classes so that the last one is at zero.
        w[self._shiftable] -= w[self._shiftable, -1:]
        point = self._evaluate(w)
        while n_iter < max_iter and not self._sums.should_stop:
            # Quadratic convergence: the next gradient is likely about slope**2 / before. If that is
            # small enough, the next point needs no Hessian.
            is_last = n_iter > 0 and point.slope**2 <= self._tol * before
            before = point.slope
            try:
                step = self._compute_step(point)
                new_point = self._search_line(point, step, is_last)
            except _NewtonTroubleError as trouble:
                # A minimum, even of a loss without curvature, is a solution, not a failure.
                solved = point.slope <= self._tol
                reason = "" if solved else str(trouble)
                return _NewtonRun(self._centre_classes(point.w), n_iter, solved, reason)
            n_iter += 1
            state = partial(
                _pack_newton_state, new_point.w, n_iter=n_iter, before=before, **extra_scalars
            )
            solved = self._has_converged(new_point, point.hessian, step)
            # A run resumed here first requests the sum at the new point: the last one of the log
            # (`again=1`), unless it was requested without a Hessian.
            is_whole = new_point.hessian is not None
            resumable = state if is_whole and not solved else None
            self._sums.keep(self._centre_classes(new_point.w), resumable, again=1)
            if solved:
                return _NewtonRun(self._centre_classes(new_point.w), n_iter, True)
            point = new_point if is_whole else self._evaluate(new_point.w)
        return _NewtonRun(self._centre_classes(point.w), n_iter, False)

    def _centre_classes(self, w: Array) -> Array:
        """Return `w` with mean zero over the classes, for parameters without a penalty."""
        w = w.copy()
        if self._shiftable.any():
            w[self._shiftable] -= w[self._shiftable].mean(axis=1, keepdims=True)
        return w

    def _evaluate(self, w: Array, is_last: bool = False) -> _NewtonPoint:
        """Evaluate the objective in one pass, with the Hessian unless it is not needed."""
        size = w.size
        # A Hessian costs n_features times as much as a gradient.
        if is_last and self._loss is None:
            value, gradient = self._objective.value_and_gradient(w)
            return _NewtonPoint(w, value, gradient.ravel())
        total = self._sums(LossHessian(w, self._loss)) / self._sums.n_rows
        gradient = total[2 : 2 + size].reshape(w.shape)
        value, gradient = self._objective.penalised(float(total[0]), gradient, w)
        hessian = total[2 + size :].reshape(size, size)
        # The Hessian of the l2 part.
        hessian[np.diag_indices(size)] += np.repeat(self._objective.l2, w.shape[1])
        return _NewtonPoint(w, value, gradient.ravel(), hessian, float(total[1]))

    def _compute_step(self, point: _NewtonPoint) -> Array:
        """Return the flat Newton step, zero for parameters that are fixed."""
        # If many rows have no curvature (far outside of Huber's bounds), the Hessian describes
        # the loss poorly.
        if point.flat > self._many_flat:
            raise _NewtonTroubleError("a loss without curvature in many rows")
        assert point.hessian is not None
        free = self._free_parameters
        step = np.zeros(point.w.size)
        hessian = point.hessian[np.ix_(free, free)]
        step[free] = -_solve_scaled(hessian, point.gradient[free])
        if point.gradient @ step > 0:
            raise _NewtonTroubleError("a step uphill")
        return step

    def _search_line(self, point: _NewtonPoint, step: Array, is_last: bool) -> _NewtonPoint:
        """Return the first point along the step that is low enough (backtracking by halves)."""
        slope = float(point.gradient @ step)
        t = 1.0
        for _ in range(_MAX_LINE_SEARCH):
            new_point = self._evaluate(point.w + t * step.reshape(point.w.shape), is_last)
            gain = new_point.value - point.value
            # Armijo's condition: a small share of the decrease that the slope predicts.
            if gain <= t * _ARMIJO_SHARE * slope:
                return new_point
            # Near the optimum losses differ by rounding alone: compare the gradients instead.
            is_same_loss = abs(gain) <= _LOSS_RESOLUTION * abs(point.value)
            if is_same_loss and np.abs(new_point.gradient).sum() < np.abs(point.gradient).sum():
                return new_point
            t /= 2
        raise _NewtonTroubleError("a direction in which no step lowers the loss")

    def _has_converged(self, point: _NewtonPoint, hessian: Array | None, step: Array) -> bool:
        """Return whether gradient and Newton decrement are small."""
        if hessian is None or point.slope > self._tol:
            return False
        # Half the squared Newton decrement estimates how far the objective is above its minimum
        # (Boyd and Vandenberghe, section 9.5.1).
        return float(step @ hessian @ step) / 2 <= self._tol


def _pack_newton_state(w: Array, **scalars: float) -> dict[str, Array]:
    """Return a snapshot of an iteration as arrays by name."""
    return {"w": w, **{name: np.array(float(number)) for name, number in scalars.items()}}


def _solve_scaled(hessian: Array, gradient: Array) -> NDArray[Any]:
    """Solve ``hessian @ x = gradient``, scaled to a unit diagonal."""
    # Scaled to a unit diagonal, so that features of very different sizes do not look collinear.
    diagonal = np.diag(hessian)
    if not np.isfinite(hessian).all() or not (diagonal > 0).all():
        raise _NewtonTroubleError("a singular Hessian")
    scale = np.sqrt(diagonal)
    with warnings.catch_warnings():
        warnings.simplefilter("error", scipy.linalg.LinAlgWarning)
        try:
            x = scipy.linalg.solve(
                hessian / (scale * scale[:, None]), gradient / scale, assume_a="pos"
            )
        except (np.linalg.LinAlgError, scipy.linalg.LinAlgWarning) as error:
            raise _NewtonTroubleError("a singular Hessian") from error
    return np.asarray(x / scale)


@dataclass(frozen=True)
class RoundedTube(EpsilonInsensitive):
    """Epsilon-insensitive loss whose kinks are rounded by parabolas of some width.

    Parameters
    ----------
    epsilon, width : float
        In the unit of the target.
    """

    name = "rounded_tube"
    has_hessian = True
    width: float = 1.0

    def value_gradient_hessian(self, y: Any, raw: Any) -> tuple[Any, Any, Any]:
        """Return losses, gradients and curvatures as `Loss` does, of raw predictions (n,)."""
        xp, residual = namespace(raw), raw - cast(y, raw.dtype)
        excess = self._residual_beyond_epsilon(residual)
        # The slope grows from 0 to 1 in the parabola, and is 1 beyond it.
        share = xp.minimum(excess / self.width, 1)
        values = (excess - self.width * share / 2) * share
        # Inside the tube there is no curvature; without a tube the parabola includes 0.
        is_inside = share < 1
        if self.epsilon > 0:
            is_inside &= excess > 0
        return values, xp.copysign(share, residual), cast(is_inside, raw.dtype) / self.width


@dataclass(frozen=True)
class TubeNewton(PenalisedSolver):
    """Newton's method for the epsilon-insensitive loss, through a sequence of less rounded losses.

    The last rounding is a share `tol` of the targets' spread, but at least 1e-5, and the solution's
    error is about as large.

    Parameters
    ----------
    epsilon : float
        Half the width of the tube.
    spread : float
        Standard deviation of the targets.

    References
    ----------
    O. Chapelle, "Training a support vector machine in the primal", Neural Computation 19, 2007.
    """

    name = "tube-newton"
    epsilon: float = 0.0
    spread: float = 1.0

    @property
    def max_passes(self) -> int:
        """Return the passes of full line searches."""
        return _MAX_LINE_SEARCH * (self.max_iter + len(self._widths))

    @property
    def _widths(self) -> list[float]:
        """Return the widths of the rounding, the last of which is as exact as `tol` asks for."""
        # A narrow parabola contains so few rows that each step finds others inside: the last two
        # widths take most of the time.
        last_width = min(max(self.tol, _ROUNDING_WIDTHS[-1]), _LARGEST_LAST_WIDTH)
        return [width for width in _ROUNDING_WIDTHS if width > last_width / 2]

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise the penalised mean loss."""
        w, n_done, first = initial_parameters(model, start), 0, 0
        # Progress at the width that a snapshot was taken at.
        resumed: dict[str, Any] = {}
        if (snapshot := sums.kept) is not None:
            w, n_done, first = snapshot["w"], int(snapshot["n_done"]), int(snapshot["width"])
            resumed = {"n_iter": int(snapshot["n_iter"]), "before": float(snapshot["before"])}
        # Continuation: each solution starts Newton's steps on the next, less rounded loss.
        widths = self._widths
        for number, width in enumerate(widths[first:], first):
            loss = RoundedTube(self.epsilon, width * self.spread)
            steps = _NewtonSteps(model, sums, self.penalty, self.tol, loss, many_flat=1.0)
            n_left = self.max_iter - n_done
            max_steps = n_left if width == widths[-1] else min(n_left, _MAX_STEPS_PER_WIDTH)
            run = steps.run(w, max_steps, **resumed, width=number, n_done=n_done)
            w, n_done, resumed = run.w, n_done + run.n_iter, {}
        message = run.trouble or f"the limit of {self.max_iter} iterations was reached"
        return Solution(w, n_done, run.solved or sums.should_stop, message)
