"""`LinearSVC`."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.linear.base import LinearClassifier, densify, sparsify
from daskml_dist.losses import Loss, SquaredHinge
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_class_weight
from daskml_dist.parameters.run import Run
from daskml_dist.solvers import PenalisedSolver, get_solver
from daskml_dist.svm._liblinear import BaseLinearSVM
from daskml_dist.training.plan import DatasetInfo

__all__ = ["LinearSVC"]


class LinearSVC(LinearClassifier, BaseLinearSVM):
    """Linear support vector machine with the squared hinge loss, to the optimum, by L-BFGS.

    The objective is liblinear's: ``C * sum(max(0, 1 - y * raw) ** 2)`` plus half the squared norm
    (l2) or the absolute sum (l1) of the coefficients *and* of ``intercept / intercept_scaling``.
    More than two classes are fitted one against the rest, all at once.

    Parameters
    ----------
    penalty : {"l2", "l1"}, default="l2"
    loss : {"squared_hinge"}, default="squared_hinge"
        ``"hinge"`` is refused: :class:`~daskml_dist.linear_model.SGDClassifier` has it.
    multi_class : {"ovr"}, default="ovr"
    class_weight : dict, "balanced" or None, default=None
        A row has the weight of its class in the problems of all classes (liblinear: in that of
        its own class alone, where there are more than two).

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
                f'dual={self.dual!r}. LinearSVC has loss="squared_hinge" alone; for the hinge use '
                'SGDClassifier(loss="hinge").'
            )
        if self.penalty not in ("l1", "l2"):
            raise InvalidParameterError(f"penalty={self.penalty!r}: use one of ['l1', 'l2'].")
        if self.multi_class != "ovr":
            raise InvalidParameterError(
                f'multi_class={self.multi_class!r}: use "ovr", or LogisticRegression for one '
                "objective over all classes."
            )

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, PenalisedSolver]:
        assert rows.classes is not None
        n_features, n_classes = rows.survey.n_features, len(rows.classes)
        model = LinearModel(self._loss(), n_features, n_classes, bool(self.fit_intercept))
        penalty = self._strengths(rows, self.penalty)
        return model, get_solver("lbfgs")(penalty, int(self.max_iter), float(self.tol))
