"""Logistic regression by round solvers over sums of all rows.

All solvers reach the optimum of one convex objective, the mean log loss plus the penalty, so that
scikit-learn's solver names affect the computation but not the result; L-BFGS replaces solvers that
are not implemented here.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.numpy_backend import has_few_entries
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.estimators.linear.base import LinearClassifier, densify, sparsify
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._summary import summarize_fit
from daskml_dist.losses.base import Loss
from daskml_dist.losses.margin import LogLoss
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import (
    check_accepted,
    check_class_weight,
    check_count,
    check_number,
)
from daskml_dist.parameters.run import Run
from daskml_dist.penalties import Penalty, get_penalty
from daskml_dist.solvers import SOLVERS, get_solver
from daskml_dist.solvers.base import PenalisedSolver, Solution
from daskml_dist.training.dataset_info import DatasetInfo

#: Names of scikit-learn's solvers for which L-BFGS is used.
_SERVED = ("liblinear", "newton-cg", "sag", "saga")
#: scikit-learn's messages for a lack of convergence, by solver: {0} is its name, {1} the number of
#: iterations.
_FAILURES = {
    "liblinear": "Liblinear failed to converge, increase the number of iterations",
    "newton-cholesky": "Newton solver did not converge after {1} iterations",
    "sag": "The max_iter was reached which means the coef_ did not converge",
    "saga": "The max_iter was reached which means the coef_ did not converge",
}
#: Names among `_SERVED` that support no l1 penalty, as in scikit-learn.
_L2_ALONE = ("newton-cg", "sag")


class LogisticRegression(LinearClassifier, BaseRounds):
    """Logistic regression to the optimum, by solvers that sum over all rows in each round.

    The objective is scikit-learn's: ``C`` times the sum of the rows' losses, plus half the squared
    norm of the coefficients (l2) or their absolute sum (l1). The intercept is not penalised.

    Parameters
    ----------
    penalty : {"auto", "l2", "l1", "elasticnet"} or None, default="auto"
        ``"auto"`` follows `l1_ratio`, as in scikit-learn (which calls it ``"deprecated"``); the
        other names are those of its older versions. An l1 part needs a solver that supports it
        (``"boosting"`` does; ``"lbfgs"`` by orthant-wise steps).
    C : float, default=1.0
        Inverse strength of the penalty; infinite: no penalty.
    l1_ratio : float, default=0.0
        Share of l1 in the penalty: 0 is l2, 1 is l1; None is 0.
    dual : bool, default=False
        True is only valid for ``solver="liblinear"``, and has no effect: both problems have the
        same solution.
    tol : float, default=1e-4
        Largest component of the gradient of the mean objective at which the solver stops.
    fit_intercept : bool, default=True
    intercept_scaling : float, default=1.0
        Only for ``solver="liblinear"``: the larger, the less the penalty shrinks the intercept.
    class_weight : dict, "balanced" or None, default=None
    random_state, n_jobs
        Accepted for scikit-learn's interface, without effect: nothing here is random, and workers
        have the threads that the cluster gives them.
    solver : {"lbfgs", "newton-cholesky", "boosting", "liblinear", "newton-cg", "sag", "saga"}, \
            default="lbfgs"
        ``"newton-cholesky"`` needs few passes and suits many rows and few features (and classes):
        its sums grow with the square of their number. See :mod:`daskml_dist.solvers`. The last four
        are scikit-learn's names: ``"lbfgs"`` replaces them, with the same optimum. The penalty of
        ``"liblinear"``, for two classes only, includes the intercept.
    max_iter : int, default=100
        Iterations of the solver at most.
    warm_start : bool, default=False
        Start from the last fit's coefficients instead of from zero.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features), or (n_classes, n_features) for more than two
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : ndarray of int32 of shape (1,)
        Iterations of the solver.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> clf = LogisticRegression().fit((X - X.mean(0)) / X.std(0), y)
    >>> clf.score((X - X.mean(0)) / X.std(0), y) > 0.98
    True
    """

    densify = densify
    sparsify = sparsify
    summary = summarize_fit

    _run_used = (*BaseRounds._run_used, "compute_dtype")
    _accepted = ("dual", "intercept_scaling", "random_state", "n_jobs")

    def __init__(
        self,
        # The objective and the solver, in scikit-learn's order.
        penalty: str | None = "auto",
        *,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        dual: bool = False,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: Any = None,
        random_state: Any = None,
        solver: str = "lbfgs",
        max_iter: int = 100,
        verbose: int = 0,
        warm_start: bool = False,
        n_jobs: int | None = None,
        # Beyond scikit-learn: where the fit runs, and its reports.
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.penalty = penalty
        self.C = C
        self.l1_ratio = l1_ratio
        self.dual = dual
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.random_state = random_state
        self.solver = solver
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _set_n_iter(self, solution: Solution) -> None:
        self.n_iter_ = np.array([solution.n_iter], dtype=np.int32)  # an array, as in scikit-learn

    def _loss(self) -> Loss:
        return LogLoss()

    def _check_params(self) -> None:
        check_accepted(self)
        if not isinstance(self.C, Real) or not self.C > 0:
            raise InvalidParameterError(f"C={self.C!r}: use a number > 0.")
        check_number("tol", self.tol)
        check_count("max_iter", self.max_iter, min_value=0)
        check_class_weight(self.class_weight)
        # After the other checks: it divides by C.
        self._check_solver()
        self._warn_of_contradictions()

    def _check_solver(self) -> None:
        """Raise for a penalty that the solver does not support, with scikit-learn's words first."""
        if self.penalty == "elasticnet" and self.l1_ratio is None:
            raise InvalidParameterError(
                "l1_ratio must be specified when penalty is elasticnet. Use a number from 0 to 1."
            )
        name, penalty = self.solver, self._strengths(1.0)
        if name not in _SERVED and name not in SOLVERS:
            names = [*SOLVERS, *_SERVED]
            raise InvalidParameterError(
                f"solver={name!r}: use one of {names}.{suggest_nearest(name, names)}"
            )
        # Options that scikit-learn refuses for a solver are refused, though L-BFGS would support
        # them.
        if self.dual and name != "liblinear":
            raise InvalidParameterError(
                f"Solver {name} supports only dual=False, got dual=True. Leave dual out: both "
                "problems have the same solution."
            )
        if penalty.l1 and (name in _L2_ALONE or not self._solver().handles_l1):
            raise InvalidParameterError(
                f"Solver {name} supports only 'l2' or None penalties, got "
                f"penalty={self.penalty!r} with l1_ratio={self.l1_ratio!r}. Use "
                'solver="lbfgs", or the l2 penalty (l1_ratio=0).'
            )
        if name != "liblinear":
            return
        if penalty.l1 and penalty.l2:
            raise InvalidParameterError(
                "Only 'saga' solver supports elasticnet penalty, got solver=liblinear. Use "
                'solver="saga" or "lbfgs".'
            )
        if not (penalty.l1 or penalty.l2):
            raise InvalidParameterError(
                "penalty=None is not supported for the liblinear solver. Use "
                'solver="lbfgs", or a finite C.'
            )

    def _solver(self) -> type[PenalisedSolver]:
        """Return the class of the solver that is used."""
        return get_solver("lbfgs" if self.solver in _SERVED else self.solver)

    def _warn_of_contradictions(self) -> None:
        """Warn if `penalty` contradicts `l1_ratio` or `C`, with the one that is used."""
        # 1. The contradiction, in the package's words.
        name, ratio, text = self.penalty, self.l1_ratio or 0.0, ""
        if name == "elasticnet" and ratio == 0:
            text = "is the l2 penalty. Set l1_ratio above 0 for an elastic net"
        elif name == "l2" and ratio != 0:
            text = 'is the l2 penalty: l1_ratio is not used. Leave penalty="auto" to use it'
        elif name == "l1" and ratio not in (0, 1):
            text = 'is the l1 penalty: l1_ratio is not used. Leave penalty="auto" to use it'
        elif name is None and self.C != 1:
            text = f"is no penalty: C={self.C!r} is not used. Leave penalty out to use it"
        if not text:
            return
        text = f"penalty={name} with l1_ratio={ratio} {text}."
        # 2. scikit-learn's words before them, since users filter warnings by these.
        if name is None:
            text = f"Setting penalty=None will ignore the C and l1_ratio parameters: {text}"
        elif name != "elasticnet":
            text = f"Inconsistent values: {text}"
        if 0 < ratio < 1:
            text = (
                "l1_ratio parameter is only used when penalty is 'elasticnet'. Got "
                f"(penalty={name}). {text}"
            )
        warnings.warn(text, stacklevel=user_stack_level())

    def _strengths(self, weight_sum: float) -> Penalty:
        """Return the penalty of the mean objective, given the sum of the rows' weights."""
        # C multiplies the sum of the losses: divided by C and the weights, the objective has their
        # mean, and the penalty this strength.
        alpha = 1.0 / (float(self.C) * weight_sum)
        ratio = 0.0 if self.l1_ratio is None else self.l1_ratio
        name = "elasticnet" if self.penalty in ("auto", "deprecated") else self.penalty
        penalty = get_penalty(name, alpha, float(ratio) if isinstance(ratio, Real) else np.nan)
        if self.solver != "liblinear":
            return penalty
        # LIBLINEAR treats the intercept as the weight of one more feature with this constant value,
        # and includes it in the penalty (Fan et al., JMLR 2008).
        return replace(penalty, intercept_scaling=float(self.intercept_scaling))

    def _failure(self, n_iter: int) -> str:
        # By the name that the user chose, even if L-BFGS replaced it.
        template = _FAILURES.get(self.solver, "{} failed to converge after {} iteration(s)")
        return f"{type(self).__name__}: {template.format(self.solver, n_iter)}"

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, PenalisedSolver]:
        assert rows.classes is not None
        summary = rows.summary
        if self.solver == "liblinear" and len(rows.classes) > 2:
            raise InvalidDataError(
                "The 'liblinear' solver does not support multiclass classification "
                '(n_classes >= 3). Use solver="lbfgs", or wrap the estimator in a '
                "OneVsRestClassifier."
            )
        # `few_entries` follows from the shape of all rows, so that results are bit-identical for
        # any number of workers.
        model = LinearModel(
            self._loss(), summary.n_features, len(rows.classes), bool(self.fit_intercept),
            few_entries=has_few_entries(summary.n_rows, summary.n_features),
        )  # fmt: skip
        penalty = self._strengths(rows.weight_sum)
        return model, self._solver()(penalty, int(self.max_iter), float(self.tol))

    def _starting_parameters(self, model: LinearModel, rows: DatasetInfo) -> NDArray[Any] | None:
        return self._find_warm_start(model)
