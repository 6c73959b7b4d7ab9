"""Ridge regression from one reduction of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.linear_model._least_squares import BaseLeastSquares, moments_of
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_accepted, check_flag, check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.least_squares import RidgeLeastSquares
from daskml_dist.training.dataset_info import DatasetInfo

#: Methods for the reduced problem, which has as many rows as features, by the names of
#: scikit-learn's solvers. All are exact, since an iterative one would save nothing at this size;
#: "lbfgs" is scikit-learn's name for `positive`.
_SOLVERS = {
    "auto": "auto",
    "svd": "svd",
    "cholesky": "cholesky",
    "lsqr": "auto",
    "sparse_cg": "auto",
    "sag": "auto",
    "saga": "auto",
    "lbfgs": "auto",
}


class Ridge(BaseLeastSquares):
    """Least squares with a squared-norm penalty, in one pass over the rows.

    Minimises ``|X w - y|^2 + alpha |w|^2``; the intercept is not penalised. As in
    :class:`~daskml_dist.linear_model.LinearRegression`, the rows are read again if the first pass,
    in their own dtype, leaves too few digits.

    Parameters
    ----------
    alpha : float or ndarray of shape (n_targets,), default=1.0
        Strength of the penalty; an array has one for each target.
    fit_intercept : bool, default=True
    copy_X, max_iter, tol, random_state
        Accepted for scikit-learn's interface, without effect: rows are never written to, and
        nothing here iterates or is random.
    solver : {"auto", "svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga", "lbfgs"}, \
            default="auto"
        Solution of the problem after its rows are reduced to the number of features. ``"auto"``:
        Cholesky, and singular values if the rows had to be read again. The names of scikit-learn's
        iterative solvers have the same effect, and are exact. ``"lbfgs"`` is for ``positive=True``,
        solved by an active set.
    positive : bool, default=False
        No coefficient is negative.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), or (n_targets, n_features) for y of two dimensions
    intercept_ : float or ndarray of shape (n_targets,)
    n_iter_ : None
        As in scikit-learn for solvers that do not iterate.
    solver_ : str
        `solver`; the one that was used if that is ``"auto"``, or with `positive`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.linear_model import Ridge
    >>> X = np.array([[1.0, 1.0], [1.0, 2.0], [2.0, 2.0], [2.0, 3.0]])
    >>> Ridge(alpha=0.5).fit(X, X @ [1.0, 2.0] + 3).coef_.round(3)
    array([0.909, 1.636])
    """

    _accepted = ("copy_X", "max_iter", "tol", "random_state")

    def __init__(
        self,
        # The objective.
        alpha: float | NDArray[Any] = 1.0,
        *,
        fit_intercept: bool = True,
        # The solution; all but `solver` and `positive` have no effect.
        copy_X: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-4,
        solver: str = "auto",
        positive: bool = False,
        random_state: Any = None,
        # Reports of the fit, and where it runs.
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.max_iter = max_iter
        self.tol = tol
        self.solver = solver
        self.positive = positive
        self.random_state = random_state
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _set_n_iter(self, solution: Solution) -> None:
        self.n_iter_ = None  # as in scikit-learn for solvers that do not iterate
        used = solution.extra["solver"]
        self.solver_ = used if self.solver == "auto" or self.positive else self.solver

    def _check_params(self) -> None:
        check_accepted(self)
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("positive", self.positive)
        # One for all targets, or one for each; their number is known in `_problem`.
        for alpha in np.ravel(np.asarray(self.alpha, dtype=object)):
            check_number("alpha", alpha)
        if self.solver not in _SOLVERS:
            raise InvalidParameterError(
                f"solver={self.solver!r}: use one of {list(_SOLVERS)}; each of these is exact."
                f"{suggest_nearest(self.solver, _SOLVERS)}"
            )
        if self.positive and self.solver not in ("auto", "lbfgs"):
            raise InvalidParameterError(
                f"solver={self.solver!r} does not support positive fitting. Set solver to "
                '"auto" or "lbfgs", or positive=False.'
            )
        if self.solver == "lbfgs" and not self.positive:
            raise InvalidParameterError(
                'solver="lbfgs" can be used only when positive=True. Use solver="auto".'
            )

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        model = self._model(rows)
        alpha = np.ravel(np.asarray(self.alpha, dtype=np.float64))
        if len(alpha) not in (1, model.width):
            raise InvalidParameterError(
                "Number of targets and number of penalties do not correspond: "
                f"{len(alpha)} != {model.width}. Pass one alpha, or one for each target."
            )
        # The fit scales weights to a mean of 1, and so the sum over rows: alpha is scaled in the
        # same way.
        alpha = np.broadcast_to(alpha * (rows.summary.n_rows / rows.weight_sum), model.width)
        return model, RidgeLeastSquares(
            alpha=alpha,
            method=_SOLVERS[self.solver],
            positive=bool(self.positive),
            **moments_of(rows),
        )
