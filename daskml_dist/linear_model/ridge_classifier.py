"""Classification by ridge regression to the signs of labels.

Least squares to targets of +1 and -1 is as fast as a regression, from the same moments of the rows,
for any number of classes: `RidgeClassifier` uses `Ridge` for all but the targets.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.linear.base import LinearClassifier
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._least_squares import check_memory
from daskml_dist.linear_model.ridge import Ridge
from daskml_dist.losses.base import Loss
from daskml_dist.losses.residual import SquaredError
from daskml_dist.models.linear import LinearModel, SignedClasses, SignedLabels
from daskml_dist.parameters.checks import check_class_weight
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary


def check_weights_of_labels(class_weight: Any, n_columns: int | None) -> None:
    """Raise for class weights if rows have several labels (`n_columns` is not None)."""
    if n_columns is not None and class_weight is not None:
        raise InvalidParameterError(
            f"class_weight={class_weight!r}: rows with several labels have no single class. "
            "Leave class_weight=None, and pass sample_weight."
        )


def make_sign_model(rows: DatasetInfo, fit_intercept: bool) -> LinearModel:
    """Return the model of least squares to targets of 1 for a row's label and -1 for the others."""
    assert rows.classes is not None
    n_features, n_classes = rows.summary.n_features, len(rows.classes)
    check_memory(n_features)
    # With several labels in a row, each column of y is a target.
    if rows.summary.n_targets is not None:
        return SignedLabels(SquaredError(), n_features, 0, fit_intercept, n_classes)
    n_targets = n_classes if n_classes > 2 else None  # two classes share a target, the second's
    return SignedClasses(SquaredError(), n_features, 0, fit_intercept, n_targets)


class RidgeClassifier(LinearClassifier, BaseRounds):
    """Classification by ridge regression to the signs of labels, in one pass over the rows.

    Each class has a target, 1 for its rows and -1 for others (two classes share one); the label of
    the largest prediction is predicted. Rows may have several labels: then `y` and predictions have
    a column of 0 and 1 for each.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty.
    fit_intercept : bool, default=True
    copy_X, max_iter, tol, random_state
        Without effect, as rows are never changed and solvers do not iterate over them.
    class_weight : dict, "balanced" or None, default=None
        Must be None if rows have several labels.
    solver : {"auto", "cholesky", "svd", "lbfgs"}, default="auto"
        As in :class:`~daskml_dist.linear_model.Ridge`.
    positive : bool, default=False
        No coefficient is negative.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (n_features,), or (n_classes, n_features) for more than two
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : None
        As in scikit-learn for solvers that do not iterate.
    solver_ : str
        The solver that was used.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import RidgeClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> RidgeClassifier().fit(X, y).score(X, y) > 0.95
    True
    """

    _multi_output = True
    _multi_label = True
    _flat_coef = True

    def __init__(
        self,
        # The parameters of `Ridge`, which does the work, and `class_weight`.
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        copy_X: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-4,
        class_weight: Any = None,
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
        self.class_weight = class_weight
        self.solver = solver
        self.positive = positive
        self.random_state = random_state
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _loss(self) -> Loss:
        return SquaredError()

    def _find_classes(self, summary: DataSummary, classes: Any) -> NDArray[Any]:
        # Checked here, where the number of label columns is known.
        check_weights_of_labels(self.class_weight, summary.n_targets)
        return super()._find_classes(summary, classes)

    def _set_n_iter(self, solution: Solution) -> None:
        # `Ridge` knows the solver that was used, and its scikit-learn name.
        ridge = self._ridge()
        ridge._set_n_iter(solution)
        self.n_iter_, self.solver_ = ridge.n_iter_, ridge.solver_

    def _check_params(self) -> None:
        check_class_weight(self.class_weight)
        self._ridge()._check_params()

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        return self._ridge()._problem(rows)

    def _ridge(self) -> Ridge:
        """Return an unfitted ridge regression with the same parameters, which does the work."""
        ridge_params = Ridge().get_params(deep=False)
        # Without `class_weight`, which is in the weights of the rows already.
        params = self._all_params()
        return _SignRidge(**{name: value for name, value in params.items() if name in ridge_params})


class _SignRidge(Ridge):
    """Ridge regression whose targets are signs of labels."""

    def _model(self, rows: DatasetInfo) -> LinearModel:
        return make_sign_model(rows, bool(self.fit_intercept))
