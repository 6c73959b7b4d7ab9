"""Limited-memory BFGS, by SciPy, over sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize

from daskml_dist.solvers.base import (
    Array,
    PenalisedSolver,
    RangedSolver,
    Ranges,
    Solution,
    Sums,
    start_of,
)
from daskml_dist.solvers.objective import LossGradient, SmoothObjective, row_strengths
from daskml_dist.solvers.owlqn import orthant_wise

__all__ = ["LBFGS", "quasi_newton"]

#: Values nearer to each other than this share are the same to the line search, as in scikit-learn.
_FTOL = 64 * float(np.finfo(float).eps)
#: Evaluations of one line search at most, as in scikit-learn.
_MAXLS = 50


@dataclass(frozen=True)
class LBFGS(PenalisedSolver, RangedSolver):
    """Quasi-Newton steps from the last ten gradients; each evaluation is one pass.

    It stops once no component of the gradient is larger than `tol`. A penalty with an l1 part
    takes orthant-wise steps, see :mod:`daskml_dist.solvers.owlqn`.

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
        """Evaluations at most: SciPy looks at their number after each line search."""
        return self.max_fun + _MAXLS

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise the penalised mean loss."""
        objective = SmoothObjective(model, sums, self.penalty)
        begin = last = start_of(model, start)
        shape = begin.shape

        def evaluate(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
            nonlocal last
            last = flat.reshape(shape)
            value, gradient = objective.value_and_gradient(last)
            return value, gradient.ravel()

        if self.penalty.l1:
            l1 = row_strengths(model, self.penalty.l1, self.penalty.intercept_scaling, power=1)
            return orthant_wise(
                evaluate,
                begin,
                np.broadcast_to(l1, shape).ravel(),
                max_iter=self.max_iter,
                tol=self.tol,
                should_stop=lambda: sums.should_stop,
                on_step=lambda _, state: sums.keep(last, state),
                kept=sums.kept,
            )
        found = quasi_newton(
            evaluate,
            begin.ravel(),
            sums,
            on_step=lambda flat: sums.keep(flat.reshape(shape)),
            maxiter=self.max_iter,
            maxls=_MAXLS,
            gtol=self.tol,
            ftol=_FTOL,
            maxfun=self.max_fun,
        )
        return dataclasses.replace(found, w=found.w.reshape(shape))

    def solve_in_ranges(self, model: Any, ranges: Ranges, start: Array) -> Solution:
        """Minimise with vectors of which each process holds a range.

        The steps are those of :mod:`daskml_dist.solvers.owlqn`, with or without an l1 part.

        References
        ----------
        J. Dean et al., "Large scale distributed deep networks", NIPS 2012 (Sandblaster).
        """
        shape = model.parameters.shape
        l1, l2 = (
            np.broadcast_to(
                row_strengths(model, strength, self.penalty.intercept_scaling, power), shape
            ).ravel()[ranges.own]
            for power, strength in ((1, self.penalty.l1), (2, self.penalty.l2))
        )

        def evaluate(w: Array) -> tuple[float, Array]:
            loss, *_ = total = ranges(LossGradient(ranges.whole(w).reshape(shape)))
            pull = l2 * w
            gradient = total[1:] / ranges.n_rows + pull
            return loss / ranges.n_rows + ranges.dot(pull, w) / 2, gradient

        found = orthant_wise(
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


def quasi_newton(
    evaluate: Callable[[NDArray[Any]], tuple[float, NDArray[Any]]],
    start: NDArray[Any],
    sums: Sums,
    *,
    maxiter: int,
    bounds: list[tuple[float | None, float | None]] | None = None,
    on_step: Callable[[NDArray[Any]], None] = lambda flat: None,
    **options: Any,
) -> Solution:
    """SciPy's L-BFGS-B, which also stops between iterations where the fit is to.

    Parameters
    ----------
    evaluate : callable
        Value and gradient at a flat vector.
    start : ndarray of shape (n,)
    sums : Sums
        Knows whether the fit is to stop.
    maxiter : int
    bounds : list of (low, high), optional
    on_step : callable, optional
        Takes the vector at which an iteration ended.
    **options
        Of SciPy's method.
    """

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
    return Solution(
        found.x,
        min(int(found.nit), maxiter),
        found.status == 0 or sums.should_stop,
        str(found.message),
        {"value": float(found.fun)},
    )
