"""Limited-memory BFGS, by SciPy, over sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize

from daskml_dist.solvers.base import Array, PenalisedSolver, Solution, Sums
from daskml_dist.solvers.objective import SmoothObjective, row_strengths
from daskml_dist.solvers.owlqn import orthant_wise

__all__ = ["LBFGS"]

#: Values nearer to each other than this share are the same to the line search, as in scikit-learn.
_FTOL = 64 * float(np.finfo(float).eps)
#: Evaluations of one line search at most, as in scikit-learn.
_MAXLS = 50


@dataclass(frozen=True)
class LBFGS(PenalisedSolver):
    """Quasi-Newton steps from the last ten gradients; each evaluation is one pass.

    It stops once no component of the gradient is larger than `tol`. A penalty with an l1 part
    takes orthant-wise steps, see :mod:`daskml_dist.solvers.owlqn`.

    References
    ----------
    D. C. Liu and J. Nocedal, "On the limited memory BFGS method for large scale optimization",
    Mathematical Programming 45, 1989.
    """

    name = "lbfgs"
    handles_l1 = True

    @property
    def max_passes(self) -> int:
        """SciPy's own bound on evaluations."""
        return 15_000

    def solve(self, model: Any, sums: Sums, start: Array) -> Solution:
        """Minimise the penalised mean loss."""
        objective = SmoothObjective(model, sums, self.penalty)
        shape = start.shape

        def evaluate(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
            value, gradient = objective.value_and_gradient(flat.reshape(shape))
            return value, gradient.ravel()

        def callback(intermediate_result: OptimizeResult) -> None:
            if sums.should_stop:
                raise StopIteration

        if self.penalty.l1:
            l1 = row_strengths(model, self.penalty.l1, self.penalty.intercept_scaling, power=1)
            return orthant_wise(
                evaluate,
                start,
                np.broadcast_to(l1, shape).ravel(),
                max_iter=self.max_iter,
                tol=self.tol,
                should_stop=lambda: sums.should_stop,
            )
        found = minimize(
            evaluate,
            start.ravel(),
            method="L-BFGS-B",
            jac=True,
            callback=callback,
            options={
                "maxiter": self.max_iter,
                "maxls": _MAXLS,
                "gtol": self.tol,
                "ftol": _FTOL,
                "maxfun": self.max_passes,
            },
        )
        n_iter = min(int(found.nit), self.max_iter)
        stopped = found.status == 0 or sums.should_stop
        return Solution(found.x.reshape(shape), n_iter, stopped, str(found.message))
