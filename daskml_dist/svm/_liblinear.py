"""Objective of the linear support vector machines: liblinear's."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.parameters.checks import check_count, check_number
from daskml_dist.penalties import Penalty
from daskml_dist.training.plan import DatasetInfo

__all__ = ["BaseLinearSVM"]


class BaseLinearSVM(BaseRounds):
    """``C * sum(losses)`` plus a penalty that holds the intercept too.

    Parameters
    ----------
    dual : "auto" or bool, default="auto"
        For scikit-learn's sake: both problems have the same solution.
    tol : float, default=1e-4
        Largest component of the gradient of the mean objective at which the solver stops.
    C : float, default=1.0
        Inverse strength of the penalty.
    fit_intercept : bool, default=True
    intercept_scaling : float, default=1.0
        The larger, the less the penalty holds the intercept.
    random_state : object, default=None
        For scikit-learn's sake: nothing here is random.
    max_iter : int, default=1000
        Iterations of the solver at most.

    Attributes
    ----------
    n_iter_ : int
        Iterations of the solver.
    """

    C: float
    tol: float
    max_iter: int
    dual: Any
    intercept_scaling: float

    def _check_liblinear(self) -> None:
        for name in ("C", "tol", "intercept_scaling"):
            check_number(name, getattr(self, name), lambda value: value > 0, "> 0")
        check_count("max_iter", self.max_iter)
        if not isinstance(self.dual, bool) and self.dual != "auto":
            raise InvalidParameterError(f'dual={self.dual!r}: use "auto", True or False.')

    def _failure(self, n_iter: int) -> str:
        return (
            f"{type(self).__name__}: Liblinear failed to converge, increase the number of "
            f"iterations from {n_iter}"
        )

    def _strengths(self, rows: DatasetInfo, name: str) -> Penalty:
        strength = 1.0 / (float(self.C) * rows.weight_sum)
        l1, l2 = (strength, 0.0) if name == "l1" else (0.0, strength)
        return Penalty(l1, l2, float(self.intercept_scaling))
