"""`LinearSVC` and `LinearSVR`: linear support vector machines with scikit-learn's parameters.

The objectives are those of liblinear (R.-E. Fan et al., "LIBLINEAR: a library for large linear
classification", 2008), solved in the primal: squared losses are differentiable, so L-BFGS can
minimise them; the epsilon-insensitive loss is smoothed, by less and less (O. Chapelle, "Training a
support vector machine in the primal", 2007). The optimum is unique under the l2 penalty, so the
result equals that of liblinear, which solves the dual.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.linear.base import LinearClassifier, LinearRegressor, densify, sparsify
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.losses.base import Loss
from daskml_dist.losses.margin import SquaredHinge
from daskml_dist.losses.residual import EpsilonInsensitive, SquaredEpsilonInsensitive
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_class_weight, check_count, check_number
from daskml_dist.parameters.run import Run
from daskml_dist.penalties import Penalty
from daskml_dist.solvers import get_solver
from daskml_dist.solvers.base import PenalisedSolver, Solver
from daskml_dist.solvers.lock_step import combine_target_problems
from daskml_dist.solvers.newton import TubeNewton
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary

#: Losses of `LinearSVR` by their names in scikit-learn.
_REGRESSION_LOSSES: dict[Any, type[EpsilonInsensitive]] = {
    "epsilon_insensitive": EpsilonInsensitive,
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
}


class BaseLinearSVM(BaseRounds):
    """Base class of estimators with the objective ``C * sum(losses)`` plus a penalty.

    As in liblinear, the penalty includes the intercept.

    Parameters
    ----------
    dual : "auto" or bool, default="auto"
        Accepted for scikit-learn's interface, without effect: both problems have the same solution.
    tol : float, default=1e-4
        Largest component of the gradient of the mean objective at which the solver stops.
    C : float, default=1.0
        Inverse strength of the penalty.
    fit_intercept : bool, default=True
    intercept_scaling : float, default=1.0
        The intercept is penalised like the coefficient of a feature with this value in each row:
        the larger this value, the smaller the penalty.
    random_state : object, default=None
        Accepted for scikit-learn's interface, without effect: there is no randomness.
    max_iter : int, default=1000
        Largest number of iterations of the solver.

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
        """Check the parameters that both estimators share."""
        for name in ("C", "tol", "intercept_scaling"):
            check_number(name, getattr(self, name), lambda value: value > 0, "> 0")
        check_count("max_iter", self.max_iter)
        is_auto = isinstance(self.dual, str) and self.dual == "auto"
        if not is_auto and not isinstance(self.dual, bool | np.bool_):
            raise InvalidParameterError(f'dual={self.dual!r}: use "auto", True or False.')

    def _failure(self, n_iter: int) -> str:
        return (
            f"{type(self).__name__}: Liblinear failed to converge, increase the number of "
            f"iterations from {n_iter}"
        )

    def _make_penalty(self, rows: DatasetInfo, name: str) -> Penalty:
        """Return the penalty of the mean objective, "l1" or "l2"."""
        # C multiplies the sum of the losses. Divided by C and by the weight of the rows, the
        # objective contains the mean loss, and the penalty has this strength.
        strength = 1.0 / (float(self.C) * rows.weight_sum)
        l1, l2 = (strength, 0.0) if name == "l1" else (0.0, strength)
        return Penalty(l1, l2, float(self.intercept_scaling))


class LinearSVC(LinearClassifier, BaseLinearSVM):
    """Linear support vector machine with the squared hinge loss, solved to the optimum by L-BFGS.

    The objective is that of liblinear: ``C * sum(max(0, 1 - y * raw) ** 2)`` plus half the squared
    norm (l2) or the absolute sum (l1) of the coefficients *and* of ``intercept /
    intercept_scaling``. More than two classes are fitted one against the rest, all together.

    Parameters
    ----------
    penalty : {"l2", "l1"}, default="l2"
    loss : {"squared_hinge"}, default="squared_hinge"
        ``"hinge"`` is refused: use :class:`~daskml_dist.linear_model.SGDClassifier` for it.
    multi_class : {"ovr"}, default="ovr"
    class_weight : dict, "balanced" or None, default=None
        A row has the weight of its class in the problems of all classes (in liblinear, with more
        than two classes, only in the problem of its own class).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features), or (n_classes, n_features) for more than two
    intercept_ : ndarray of shape (1,) or (n_classes,)

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from daskml_dist.svm import LinearSVC
    >>> X, y = load_iris(return_X_y=True)
    >>> LinearSVC().fit(X, y).score(X, y) > 0.95
    True
    """

    densify = densify
    sparsify = sparsify

    def __init__(
        self,
        penalty: str = "l2",
        loss: str = "squared_hinge",
        *,
        dual: bool | str = "auto",
        tol: float = 1e-4,
        C: float = 1.0,
        multi_class: str = "ovr",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: Any = None,
        verbose: int = 0,
        random_state: Any = None,
        max_iter: int = 1000,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.penalty = penalty
        self.loss = loss
        self.dual = dual
        self.tol = tol
        self.C = C
        self.multi_class = multi_class
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.verbose = verbose
        self.random_state = random_state
        self.max_iter = max_iter
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _loss(self) -> Loss:
        return SquaredHinge()

    def _check_params(self) -> None:
        self._check_liblinear()
        check_class_weight(self.class_weight)
        if self.loss != "squared_hinge":
            raise InvalidParameterError(
                f"Unsupported set of arguments: penalty={self.penalty!r}, loss={self.loss!r}, "
                f'dual={self.dual!r}. LinearSVC only has loss="squared_hinge"; for the hinge '
                'loss use SGDClassifier(loss="hinge").'
            )
        if self.penalty not in ("l1", "l2"):
            raise InvalidParameterError(f"penalty={self.penalty!r}: use one of ['l1', 'l2'].")
        # liblinear's alternative (Crammer and Singer) is one problem over all classes.
        if self.multi_class != "ovr":
            raise InvalidParameterError(
                f'multi_class={self.multi_class!r}: use "ovr", or LogisticRegression for one '
                "objective over all classes."
            )

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, PenalisedSolver]:
        assert rows.classes is not None
        n_features, n_classes = rows.summary.n_features, len(rows.classes)
        model = LinearModel(self._loss(), n_features, n_classes, bool(self.fit_intercept))
        penalty = self._make_penalty(rows, self.penalty)
        # With the l1 penalty this is OWL-QN, which handles the kinks at zero.
        return model, get_solver("lbfgs")(penalty, int(self.max_iter), float(self.tol))


class LinearSVR(LinearRegressor, BaseLinearSVM):
    """Linear support vector regression, solved to the optimum.

    The objective is that of liblinear: ``C * sum(max(0, |raw - y| - epsilon))``, or the sum of the
    squares, plus half the squared norm of the coefficients *and* of ``intercept /
    intercept_scaling``. The squared loss is solved by L-BFGS. The other loss has kinks: it is
    solved by Newton steps on smoothed losses, with an accuracy of about `tol` (1e-2 to 1e-5) times
    the targets' standard deviation, for up to 16,384 features; for more features use the squared
    loss or :class:`~daskml_dist.linear_model.SGDRegressor`.

    Parameters
    ----------
    epsilon : float, default=0.0
        Residuals up to this have no loss; in the unit of the target.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}, default="epsilon_insensitive"

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,), or (n_targets, n_features) for several targets
        Each target is fitted independently.
    intercept_ : ndarray of shape (1,) or (n_targets,)

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.svm import LinearSVR
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> LinearSVR(C=100).fit(X, 2 * X[:, 0] + 1).coef_.round(2)
    array([2.])
    """

    _multi_output = True

    def __init__(
        self,
        *,
        epsilon: float = 0.0,
        tol: float = 1e-4,
        C: float = 1.0,
        loss: str = "epsilon_insensitive",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        dual: bool | str = "auto",
        verbose: int = 0,
        random_state: Any = None,
        max_iter: int = 1000,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.tol = tol
        self.C = C
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.dual = dual
        self.verbose = verbose
        self.random_state = random_state
        self.max_iter = max_iter
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _loss(self) -> Loss:
        return _REGRESSION_LOSSES[self.loss](float(self.epsilon))

    def _check_params(self) -> None:
        self._check_liblinear()
        if self.loss not in _REGRESSION_LOSSES:
            raise InvalidParameterError(
                f"loss={self.loss!r}: use one of {list(_REGRESSION_LOSSES)}."
            )
        check_number("epsilon", self.epsilon)

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        # The solvers of several targets run in lock-step, so that they share passes over the rows.
        summary = rows.summary
        problems = [self._problem_of_target(rows, target) for target in summary.of_each_target]
        return combine_target_problems(problems, summary.n_targets)

    def _problem_of_target(
        self, rows: DatasetInfo, summary: DataSummary
    ) -> tuple[LinearModel, PenalisedSolver]:
        """Return the model and the solver of one target, given its summary."""
        penalty = self._make_penalty(rows, "l2")
        model = LinearModel(self._loss(), summary.n_features, 0, bool(self.fit_intercept))
        limits = int(self.max_iter), float(self.tol)
        # A loss with kinks has no gradient at its optimum, so L-BFGS could not detect convergence.
        if self.loss == "epsilon_insensitive":
            return model, TubeNewton(penalty, *limits, float(self.epsilon), summary.target_spread)
        return model, get_solver("lbfgs")(penalty, *limits)
