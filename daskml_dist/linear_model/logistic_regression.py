"""`LogisticRegression`."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist._checks import check_class_weight, check_count, check_number
from daskml_dist._linear_classifier import LinearClassifier
from daskml_dist._rounds import BaseRounds
from daskml_dist._run import Run
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses import LogLoss, Loss
from daskml_dist.models.linear import LinearModel
from daskml_dist.penalties import Penalty, get_penalty
from daskml_dist.solvers import PenalisedSolver, Solution, get_solver
from daskml_dist.training.solver_plan import Rows

__all__ = ["LogisticRegression"]


class LogisticRegression(LinearClassifier, BaseRounds):
    """Logistic regression to the optimum: the solver asks for sums over all rows, round by round.

    The objective is scikit-learn's: ``C`` times the sum of the rows' losses, plus half the squared
    norm of the coefficients (l2) or their absolute sum (l1). The intercept is not penalised.

    Parameters
    ----------
    penalty : {"auto", "l2", "l1", "elasticnet"} or None, default="auto"
        ``"auto"`` is what `l1_ratio` says, as in scikit-learn; the other names are those of its
        older versions. An l1 part needs a solver that handles it (``"boosting"`` does; ``"lbfgs"``
        by orthant-wise steps).
    C : float, default=1.0
        Inverse strength of the penalty; infinite: no penalty.
    l1_ratio : float, default=0.0
        Share of l1 in the penalty: 0 is l2, 1 is l1.
    tol : float, default=1e-4
        Largest component of the gradient of the mean objective at which the solver stops.
    fit_intercept : bool, default=True
    class_weight : dict, "balanced" or None, default=None
    solver : {"lbfgs", "newton-cholesky", "boosting"}, default="lbfgs"
        ``"newton-cholesky"`` takes few passes and suits many rows and few features (and classes):
        its sums are the square of their number. See :mod:`daskml_dist.solvers`.
    max_iter : int, default=100
        Iterations of the solver at most.
    warm_start : bool, default=False
        Start from the last fit's coefficients instead of from zero.
    verbose, run, device, callbacks
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features), or (n_classes, n_features) for more than two
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : ndarray of int32 of shape (1,)
        Iterations of the solver.
    n_features_in_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> clf = LogisticRegression().fit((X - X.mean(0)) / X.std(0), y)
    >>> clf.score((X - X.mean(0)) / X.std(0), y) > 0.98
    True
    """

    _run_used = (*BaseRounds._run_used, "compute_dtype")

    def __init__(
        self,
        penalty: str | None = "auto",
        *,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        class_weight: Any = None,
        solver: str = "lbfgs",
        max_iter: int = 100,
        warm_start: bool = False,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.penalty = penalty
        self.C = C
        self.l1_ratio = l1_ratio
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.solver = solver
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _set_n_iter(self, solution: Solution) -> None:
        self.n_iter_ = np.array([solution.n_iter], dtype=np.int32)

    def _loss(self) -> Loss:
        return LogLoss()

    def _check_params(self) -> None:
        if not isinstance(self.C, Real) or not self.C > 0:
            raise InvalidParameterError(f"C={self.C!r}: use a number > 0.")
        check_number("tol", self.tol)
        check_count("max_iter", self.max_iter)
        check_class_weight(self.class_weight)
        solver = get_solver(self.solver)
        if self._strengths(1.0).l1 and not solver.handles_l1:
            raise InvalidParameterError(
                f"solver={self.solver!r} does not handle penalty={self.penalty!r} with "
                f'l1_ratio={self.l1_ratio!r}. Use solver="lbfgs", or the l2 penalty (l1_ratio=0).'
            )
        self._warn_of_contradictions()

    def _warn_of_contradictions(self) -> None:
        """Say which of two parameters counts."""
        name, ratio, text = self.penalty, self.l1_ratio, ""
        if name == "elasticnet" and ratio == 0:
            text = "is the l2 penalty. Set l1_ratio above 0 for an elastic net"
        elif name == "l2" and ratio != 0:
            text = 'is the l2 penalty: l1_ratio is not used. Leave penalty="auto" to use it'
        elif name == "l1" and ratio not in (0, 1):
            text = 'is the l1 penalty: l1_ratio is not used. Leave penalty="auto" to use it'
        elif name is None and self.C != 1:
            text = f"is no penalty: C={self.C!r} is not used. Leave penalty out to use it"
        if text:
            warnings.warn(f"penalty={name!r} with l1_ratio={ratio!r} {text}.", stacklevel=4)

    def _strengths(self, weight_sum: float) -> Penalty:
        alpha = 1.0 / (float(self.C) * weight_sum)
        ratio = self.l1_ratio if isinstance(self.l1_ratio, Real) else np.nan
        name = "elasticnet" if self.penalty == "auto" else self.penalty
        return get_penalty(name, alpha, float(ratio))

    def _problem(self, rows: Rows) -> tuple[LinearModel, PenalisedSolver]:
        assert rows.classes is not None
        survey = rows.survey
        model = LinearModel(
            self._loss(), survey.n_features, len(rows.classes), bool(self.fit_intercept)
        )
        penalty = self._strengths(rows.weight_sum)
        return model, get_solver(self.solver)(penalty, int(self.max_iter), float(self.tol))

    def _start(self, model: LinearModel, rows: Rows) -> NDArray[Any] | None:
        return self._last_fit(model)
