"""Robust regression: the coefficients under Huber's loss and its scale, found together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import namespace, scalar, total
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import slice_for_curvature
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums, initial_parameters
from daskml_dist.solvers.lbfgs import minimize_lbfgsb
from daskml_dist.solvers.objective import check_gradient_overflow
from daskml_dist.solvers.rows import to_float64

__all__ = ["HuberScale", "HuberSums"]

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
