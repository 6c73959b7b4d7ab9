"""Solvers that work in rounds: each requests sums over all rows, and updates parameters by them.

:mod:`daskml_dist.solvers.base` has the interface of solvers and of the sums ("statistics") that
they request. Two other kinds run on every trainer: solvers on its own rows (`own_rows`: trees)
and solvers over keys (`keyed`: graphs, factors).
"""

from __future__ import annotations

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.solvers.base import (
    PenalisedSolver,
    RangedSolver,
    ReduceScatterStatistic,
    RowState,
    Solution,
    Solver,
    Statistic,
    Sums,
)
from daskml_dist.solvers.lbfgs import LBFGS
from daskml_dist.solvers.least_squares import (
    CoordinateDescent,
    OrdinaryLeastSquares,
    RidgeLeastSquares,
)
from daskml_dist.solvers.newton import NewtonCholesky
from daskml_dist.solvers.parallel_coordinate_boosting import Boosting

__all__ = [
    "LBFGS",
    "SOLVERS",
    "Boosting",
    "CoordinateDescent",
    "OrdinaryLeastSquares",
    "PenalisedSolver",
    "RangedSolver",
    "ReduceScatterStatistic",
    "RidgeLeastSquares",
    "RowState",
    "Solution",
    "Solver",
    "Statistic",
    "Sums",
    "get_solver",
]

#: Solvers of penalised losses, by the names that estimators take.
SOLVERS: dict[str, type[PenalisedSolver]] = {
    solver.name: solver for solver in (LBFGS, NewtonCholesky, Boosting)
}


def get_solver(name: str) -> type[PenalisedSolver]:
    """Return the solver of a name.

    Raises
    ------
    InvalidParameterError
        For another name; the message lists the valid ones.

    Examples
    --------
    >>> from daskml_dist.solvers import get_solver
    >>> get_solver('lbfgs').__name__
    'LBFGS'
    """
    if isinstance(name, str) and name in SOLVERS:
        return SOLVERS[name]
    raise InvalidParameterError(
        f"solver={name!r}: use one of {list(SOLVERS)}.{suggest_nearest(name, SOLVERS)}"
    )
