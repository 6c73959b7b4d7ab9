"""Ridge models whose penalty is chosen by leave-one-out in closed form, or by folds.

One reduction of the rows gives a problem with the size of the features, whose singular value
decomposition solves ridge for every penalty. Leave-one-out needs no further fits: the error of a
row by the model without it is its error by the model of all rows divided by (1 - its leverage) (R.
M. Rifkin and R. A. Lippert, "Notes on regularized least squares", 2007; here in
`LeaveOneOutErrors`). With folds, the moments of each fold are summed in the same pass, and those of
a split's training rows are sums of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from daskml_dist.backends.devices import get_backend
from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import Collection, join_lazy_blocks
from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels
from daskml_dist.estimators.linear.base import BaseLinear, LinearClassifier
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._cross_validated import (
    cut_into_splits,
    fit_by_splits,
    open_batched_splits,
    resolve_scorer,
    score_test_rows,
    set_history_of_splits,
)
from daskml_dist.linear_model._least_squares import BaseLeastSquares, check_memory, moments_of
from daskml_dist.linear_model.ridge import Ridge
from daskml_dist.linear_model.ridge_classifier import (
    RidgeClassifier,
    check_weights_of_labels,
    make_sign_model,
)
from daskml_dist.losses.base import Loss
from daskml_dist.losses.residual import SquaredError
from daskml_dist.models.batched import TEST
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import (
    check_class_weight,
    check_flag,
    check_one_of,
    check_weighed,
)
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import SinglePassSolver, Solution, Solver
from daskml_dist.solvers.least_squares import RidgeLeastSquares
from daskml_dist.solvers.penalty_paths import (
    PATH_SCORES,
    FoldedReduction,
    LeaveOneOutErrors,
    LeaveOneOutRidge,
    PathErrorSums,
    PathHits,
    append_intercepts,
    solve_ridge_path,
)
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary


def _map_left_out_values(
    collection: Collection, left_out: LeaveOneOutErrors, model: LinearModel, rows: DatasetInfo,
    *, squares: bool,
) -> Any:  # fmt: skip
    """Return leave-one-out predictions, or with `squares` the weighted squared errors.

    They have the shape (n_rows, n_targets, n_alphas), without the axis of targets if `y` has one
    dimension, and are lazy if the rows are a Dask collection.
    """
    # Tasks contain only these facts: the summary in `rows` grows with the number of blocks.
    compute_block = partial(
        _compute_block_values, left_out, model, rows.classes, rows.weight_scale,
        rows.class_weight, squares,
    )  # fmt: skip
    values: Any
    if collection.kind == "memory":
        values = compute_block(collection.block_maker(0, *collection.parts[0]))
    else:
        compute_lazily = delayed(compute_block, pure=False)  # impure: nothing is hashed for a name
        pieces = list(map(compute_lazily, collection.delayed_blocks()))
        values = join_lazy_blocks(pieces, collection, np.empty((0, model.width, len(left_out.w))))
    return values[:, 0] if model.n_targets is None and rows.classes is None else values


def _compute_block_values(
    left_out: LeaveOneOutErrors,
    model: LinearModel,
    classes: Any,
    weight_scale: float | None,
    class_weight: Any,
    squares: bool,
    block: Block,
) -> NDArray[np.float64]:
    """Return a block's values in float64, of shape (n_rows, n_targets, n_alphas)."""
    assert block.y is not None
    backend = get_backend("cpu")
    y = model.encode(block.y, classes, np.float64)
    # Leverages use the weights of the fit, which have a mean of 1.
    weight = None
    if weight_scale is not None:
        weight = np.full(block.n_rows, weight_scale)
        if block.sample_weight is not None:
            weight *= block.sample_weight
        if class_weight is not None:
            weight *= class_weight[np.searchsorted(classes, block.y)]
    X = backend.rows(block.rows, slice(0, block.n_rows))
    errors = left_out.errors(X, y, weight, backend)
    if squares:
        # Errors are weighted by the user's weights, not by those that the fit scaled to a mean of
        # 1.
        values = errors**2
        if weight is not None:
            values *= (weight / weight_scale)[:, None, None]
    else:
        # The prediction is the target minus the error, in the user's units: unshifted.
        shift = np.array(model.target_shift) if model.target_shift else 0.0
        values = (y.reshape(len(y), -1) + shift)[:, None, :] - errors
    return np.ascontiguousarray(values.transpose(0, 2, 1))


# Scorers need an estimator and rows, but leave-one-out predicts each row by another model. These
# stand-ins accept the predictions as "rows", and return them.


class _PrecomputedRegressor(RegressorMixin, BaseEstimator):
    """Regressor for scorers, whose "rows" are predictions."""

    def predict(self, predicted: Any) -> Any:
        return predicted


class _PrecomputedClassifier(ClassifierMixin, BaseEstimator):
    """Classifier for scorers, whose "rows" are raw predictions (values of the decision function).

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
    is_multilabel : bool
        Whether rows have several labels.
    """

    def __init__(self, classes: NDArray[Any], is_multilabel: bool) -> None:
        self.classes_, self._is_multilabel = classes, is_multilabel

    def decision_function(self, raw: Any) -> Any:
        return raw

    def predict(self, raw: Any) -> Any:
        if isinstance(raw, da.Array):
            drop: Any = {"drop_axis": 1} if raw.ndim == 2 and not self._is_multilabel else {}
            map_blocks: Any = raw.map_blocks
            labels: da.Array = map_blocks(self._decide, dtype=self.classes_.dtype, **drop)
            return labels
        return self._decide(raw)

    def _decide(self, raw: NDArray[np.float64]) -> NDArray[Any]:
        """Return the labels of raw predictions in memory."""
        # Ridge classifiers regress signs of labels, +1 and -1: the boundary is at 0.
        if self._is_multilabel:
            return (raw > 0).astype(self.classes_.dtype)
        best = (raw > 0).astype(int) if raw.ndim == 1 else raw.argmax(axis=1)
        return np.asarray(self.classes_[best])


class BaseRidgeCV(BaseLinear, BaseRounds):
    """Base class of ridge models that choose their penalty.

    The fits for all penalties and splits follow from one reduction of the rows.

    Parameters
    ----------
    alphas : array-like of shape (n_alphas,), default=(0.1, 1.0, 10.0)
        Strengths to try.
    fit_intercept : bool, default=True
    store_cv_results : bool, default=False
        Whether to set ``cv_results_``; only without `cv`.
    """

    alphas: Any
    cv: Any
    scoring: Any
    fit_intercept: bool
    store_cv_results: bool
    alpha_per_target: bool = False
    #: Whether rows have several labels.
    _several = False
    #: Name of the score of folds if `scoring` is None.
    _default_scoring = "r2"
    #: Makes the linear model for the rows of a fit.
    _model: Callable[[DatasetInfo], LinearModel]

    @abstractmethod
    def _make_estimator(self, alpha: float) -> Any:
        """Return an unfitted estimator with one penalty, for scoring."""

    @abstractmethod
    def _score_left_out(self, scorer: Any, y: Any, predicted: Any, weight: Any) -> Any:
        """Return the score of leave-one-out predictions.

        It is a list of scores, one for each target, with ``alpha_per_target=True``.
        """

    def _name_classes(self, values: NDArray[Any], n_columns: int | None) -> NDArray[Any]:
        """Return the class labels, given the values of `y` and its number of columns."""
        return values

    fit = fit_by_splits

    def _fit_splits(self, X: Any, y: Any, sample_weight: Any, groups: Any, client: Any) -> None:
        """Fit by folds, or without `cv` by leave-one-out."""
        self._clear_fitted()
        if self.cv is None:
            self._fit_left_out(X, y, sample_weight, client)
        else:
            self._fit_folds(X, y, sample_weight, groups, client)

    # -- leave-one-out --------------------------------------------------------------------------

    def _fit_left_out(self, X: Any, y: Any, sample_weight: Any, client: Any) -> None:
        """Fit by squared leave-one-out errors; with `scoring`, choose again by that score."""
        self._fit(X, y, sample_weight, client)
        # Set by `_set_fitted`, which `_fit` calls; not to be pickled with the estimator.
        left_out, model, rows = self._left_out_fit
        del self._left_out_fit
        scorer = resolve_scorer(self.scoring)
        if scorer is None and not self.store_cv_results:
            return
        # Another pass over the rows: a score of the user's needs all predictions, not their sums.
        X, y, weight = self._prepare_inputs(X, y, sample_weight)
        collection = self._align_inputs(X, y, weight)
        values = _map_left_out_values(collection, left_out, model, rows, squares=scorer is None)
        if scorer is not None:
            scores = [
                self._score_left_out(scorer, y, values[..., i], weight)
                for i in range(len(left_out.w))
            ]
            self._choose_alpha(np.array(scores), left_out.w, model, rows)
        if self.store_cv_results:
            self.cv_results_ = np.asarray(values)  # computes a dask Array

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        # The fit scales weights to a mean of 1, and so the sum over rows: alphas are scaled in the
        # same way.
        alphas = self._alphas * (rows.weight_scale or 1.0)
        return self._model(rows), LeaveOneOutRidge(alphas=alphas, **moments_of(rows))

    def _set_fitted(self, solution: Solution, model: LinearModel, rows: DatasetInfo) -> None:
        left_out, squares = solution.extra["left_out"], solution.extra["squares"]
        self._left_out_fit = left_out, model, rows
        # As in scikit-learn, the errors are weighted by the user's weights, of which the fit's are
        # multiples, and are averaged over the rows.
        errors = squares / (rows.summary.n_rows * (rows.weight_scale or 1.0))
        scores = -errors if self.alpha_per_target else -errors.mean(axis=1)
        self._choose_alpha(scores, left_out.w, model, rows)

    def _choose_alpha(
        self,
        scores: NDArray[np.float64],
        w: NDArray[np.float64],
        model: LinearModel,
        rows: DatasetInfo,
    ) -> None:
        """Set the fitted attributes for the alpha with the best score.

        Scores are of shape (n_alphas,), or (n_alphas, n_targets) for an alpha for each target;
        the parameters `w` are of shape (n_alphas, n_parameters, n_targets).
        """
        best = np.argmax(scores, axis=0)
        if scores.ndim == 2 and scores.shape[1] > 1:
            # Each target's coefficients at its own alpha, of shape (n_parameters, n_targets).
            targets = np.arange(scores.shape[1])
            self.alpha_, self.best_score_ = self._alphas[best], scores[best, targets]
            best_w = w[best, :, targets].T
        else:
            best = int(np.ravel(best)[0])
            self.alpha_ = float(self._alphas[best])
            self.best_score_ = float(np.ravel(scores[best])[0])
            best_w = w[best]
        super()._set_fitted(Solution(best_w), model, rows)

    def _set_n_iter(self, solution: Solution) -> None:
        """Set nothing: these solvers do not iterate."""

    # -- folds ----------------------------------------------------------------------------------

    def _fit_folds(self, X: Any, y: Any, sample_weight: Any, groups: Any, client: Any) -> None:
        """Fit all folds and all rows from one reduction, score the folds, and choose."""
        splits = cut_into_splits(self, X, y, sample_weight, groups)
        class_weight = self._params()["class_weight"]
        with open_batched_splits(self, splits, client, class_weight, self._name_classes) as batch:
            model = self._model(batch.rows)
            check_memory(model.n_features, batch.roles.n_splits)
            alphas = self._alphas * (batch.rows.weight_scale or 1.0)
            moments = moments_of(batch.rows)
            # 1. Sum the moments of each fold in one pass (more passes if digits would be lost).
            reduction = batch(
                batch.make_model(model),
                FoldedReduction(l2=float(alphas.min()), of_mean=False, **moments),
            ).extra
            # 2. Solve the small problem of each split's training rows for every penalty.
            *split_problems, full_problem = reduction["reduced"]
            coefs = np.array([solve_ridge_path(problem, alphas) for problem in split_problems])
            if model.fit_intercept:
                pairs = zip(split_problems, coefs, strict=True)
                coefs = np.array([append_intercepts(problem, w) for problem, w in pairs])
            # 3. Score the test rows. A NaN score ranks last, as in a grid search.
            scores = self._score_folds(batch, splits, model, coefs).mean(axis=0)
            best = int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))
            self.alpha_, self.best_score_ = float(self._alphas[best]), float(scores[best])
            # 4. Refit from the moments of all rows, without another pass.
            solver = RidgeLeastSquares(
                alpha=np.full(model.width, alphas[best]), method="auto", positive=False, **moments
            )
            solution = solver.of_reduced(model, full_problem, reduction["n_rows"][-1])
            super()._set_fitted(solution, model, batch.rows)
            set_history_of_splits(self, batch)

    def _score_folds(
        self, batch: BatchedModels, splits: Any, model: LinearModel, w: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the scores of test rows, of shape (n_splits, n_alphas).

        The parameters `w` are of shape (n_splits, n_alphas, n_parameters, n_targets).
        """
        name, batched_model = self.scoring or self._default_scoring, batch.make_model(model)
        # Accuracy and the scores of squared or absolute errors are sums over the rows, which one
        # pass computes for all fits. Other scores read the test rows once for each fit.
        if self._classification and name == "accuracy":
            hits = batch(batched_model, SinglePassSolver(PathHits(w, TEST, self._several))).w
            check_weighed(dict(enumerate(hits[:, 0, 0])))
            return np.asarray(hits[..., 1] / hits[..., 0])
        if not self._classification and isinstance(name, str) and name in PATH_SCORES:
            statistic = PathErrorSums(w, TEST, absolute=name == "neg_mean_absolute_error")
            sums = batch(batched_model, SinglePassSolver(statistic)).w
            check_weighed(dict(enumerate(sums[:, 0, 0, 0])))
            return PATH_SCORES[name](sums)
        # Any other score: scorers need a fitted estimator for each split and penalty.
        estimators = {
            split: [
                self._make_fitted(alpha, w_of_alpha, model, batch.rows)
                for alpha, w_of_alpha in zip(self._alphas, w_of_split, strict=True)
            ]
            for split, w_of_split in enumerate(w)
        }
        return score_test_rows(splits, estimators, resolve_scorer(self.scoring))

    def _make_fitted(
        self, alpha: float, w: NDArray[np.float64], model: LinearModel, rows: DatasetInfo
    ) -> Any:
        """Return an estimator of one penalty, fitted with the parameters `w`."""
        estimator = self._make_estimator(float(alpha))
        estimator._several = self._several
        estimator._set_fitted(Solution(w), model, rows)
        if hasattr(self, "feature_names_in_"):
            estimator.feature_names_in_ = self.feature_names_in_
        return estimator

    # -- parameters -----------------------------------------------------------------------------

    @property
    def _alphas(self) -> NDArray[np.float64]:
        """Return the strengths to try, in the user's order."""
        return np.ravel(np.asarray(self.alphas, dtype=np.float64))

    def _check_params(self) -> None:
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("store_cv_results", self.store_cv_results)
        check_flag("alpha_per_target", self.alpha_per_target)
        check_class_weight(self._params()["class_weight"])
        resolve_scorer(self.scoring)
        alphas = np.ravel(np.asarray(self.alphas, dtype=object))
        if not len(alphas):
            raise InvalidParameterError("alphas is empty. Name at least one strength.")
        for i, alpha in enumerate(alphas):
            name = "alphas" if len(alphas) == 1 else f"alphas[{i}]"
            if isinstance(alpha, bool) or not isinstance(alpha, Real):
                raise InvalidParameterError(
                    f"{name} must be an instance of float, not {type(alpha).__name__}: {alpha!r}. "
                    "Use numbers."
                )
            value = float(alpha)
            # Without a penalty the leverage of a row may be 1, and its leave-one-out error 0 / 0.
            if not (value > 0 or (value == 0 and self.cv is not None)) or not value < np.inf:
                bound = ">= 0.0" if self.cv is not None else "> 0.0"
                raise InvalidParameterError(
                    f"{name} == {alpha}, must be {bound}. Leave-one-out (cv=None) needs a "
                    "penalty; without one, use LinearRegression."
                )
        for name in ("store_cv_results", "alpha_per_target"):
            if self.cv is not None and getattr(self, name):
                raise InvalidParameterError(
                    f"cv!=None and {name}=True are incompatible. Leave cv=None."
                )


class RidgeCV(BaseRidgeCV, BaseLeastSquares):
    """Ridge regression whose penalty is chosen by cross-validation, in two passes over the rows.

    Without `cv` each row is left out once, in closed form [1]_: one pass sums the moments, and one
    the errors of all rows under all penalties. With folds, the first pass sums the moments of each
    fold, from which all fits follow, and the second scores them.

    Parameters
    ----------
    scoring : str, callable or None, default=None
        Larger is better. None: without `cv` the negative mean squared error, with it R^2.
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: each row is left out once.
    gcv_mode : {"auto", "svd", "eigen"} or None, default=None
        Without effect: the number of passes over the rows depends on the digits that the result
        needs.
    alpha_per_target : bool, default=False
        Whether each target has its own penalty; only without `cv`.

    Attributes
    ----------
    alpha_ : float or ndarray of shape (n_targets,)
    best_score_ : float or ndarray of shape (n_targets,)
    cv_results_ : ndarray of shape (n_rows, n_alphas) or (n_rows, n_targets, n_alphas)
        Squared errors of rows left out (times their weights), or with `scoring` their predictions.
    coef_, intercept_
        As in :class:`~daskml_dist.linear_model.Ridge`.

    References
    ----------
    .. [1] R. M. Rifkin and R. A. Lippert, "Notes on regularized least squares", MIT technical
       report, 2007.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from daskml_dist.linear_model import RidgeCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> RidgeCV(alphas=[1e-3, 1e-2, 1e-1, 1]).fit(X, y).alpha_
    0.01
    """

    def __init__(
        self,
        # The candidates and their comparison, in scikit-learn's order.
        alphas: Any = (0.1, 1.0, 10.0),
        *,
        fit_intercept: bool = True,
        scoring: Any = None,
        cv: Any = None,
        gcv_mode: str | None = None,
        store_cv_results: bool = False,
        alpha_per_target: bool = False,
        # Reports of the fit, and where it runs.
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.scoring = scoring
        self.cv = cv
        self.gcv_mode = gcv_mode
        self.store_cv_results = store_cv_results
        self.alpha_per_target = alpha_per_target
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        super()._check_params()
        check_one_of("gcv_mode", self.gcv_mode, (None, "auto", "svd", "eigen"))

    def _make_estimator(self, alpha: float) -> Any:
        return Ridge(alpha=alpha, fit_intercept=self.fit_intercept)

    def _score_left_out(self, scorer: Any, y: Any, predicted: Any, weight: Any) -> Any:
        weights = {} if weight is None else {"sample_weight": weight}
        if self.alpha_per_target and predicted.ndim == 2:
            targets = np.asarray(y) if isinstance(y, list) else y
            return [
                scorer(
                    _PrecomputedRegressor(), predicted[:, j],
                    targets[targets.columns[j]] if hasattr(targets, "columns") else targets[:, j],
                    **weights,
                )
                for j in range(predicted.shape[1])
            ]  # fmt: skip
        return scorer(_PrecomputedRegressor(), predicted, y, **weights)


class RidgeClassifierCV(BaseRidgeCV, LinearClassifier):
    """Ridge classifier whose penalty is chosen by cross-validation, in two passes over the rows.

    It is a :class:`~daskml_dist.linear_model.RidgeClassifier` whose penalty is chosen as in
    :class:`~daskml_dist.linear_model.RidgeCV`. Rows may have several labels.

    Parameters
    ----------
    scoring : str, callable or None, default=None
        Larger is better. None: without `cv` the negative mean squared error of the signs of labels,
        with it the accuracy (for several labels in a row: the share of rows whose labels are all
        predicted).
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: each row is left out once. A number of folds: stratified.
    class_weight : dict, "balanced" or None, default=None
        Must be None if rows have several labels.

    Attributes
    ----------
    alpha_, best_score_ : float
    cv_results_ : ndarray of shape (n_rows, n_targets, n_alphas)
        Squared errors of rows left out (times their weights), or with `scoring` their predictions.
        Each class or label is a target; two classes are one target.
    classes_, coef_, intercept_
        As in :class:`~daskml_dist.linear_model.RidgeClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import RidgeClassifierCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> RidgeClassifierCV(alphas=[1e-3, 1e-2, 1e-1, 1]).fit(X, y).score(X, y) > 0.96
    True
    """

    _multi_output = True
    _multi_label = True
    _flat_coef = True
    _default_scoring = "accuracy"

    def __init__(
        self,
        alphas: Any = (0.1, 1.0, 10.0),
        *,
        fit_intercept: bool = True,
        scoring: Any = None,
        cv: Any = None,
        class_weight: Any = None,
        store_cv_results: bool = False,
        # Reports of the fit, and where it runs.
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.scoring = scoring
        self.cv = cv
        self.class_weight = class_weight
        self.store_cv_results = store_cv_results
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _loss(self) -> Loss:
        return SquaredError()

    def _model(self, rows: DatasetInfo) -> LinearModel:
        return make_sign_model(rows, bool(self.fit_intercept))

    def _find_classes(self, summary: DataSummary, classes: Any) -> NDArray[Any]:
        check_weights_of_labels(self.class_weight, summary.n_targets)
        return super()._find_classes(summary, classes)

    def _make_estimator(self, alpha: float) -> Any:
        return RidgeClassifier(alpha=alpha, fit_intercept=self.fit_intercept)

    def _name_classes(self, values: NDArray[Any], n_columns: int | None) -> NDArray[Any]:
        self._several = n_columns is not None
        check_weights_of_labels(self.class_weight, n_columns)
        return values if n_columns is None else self._number_label_columns(values, n_columns)

    def _score_left_out(self, scorer: Any, y: Any, predicted: Any, weight: Any) -> Any:
        weights = {} if weight is None else {"sample_weight": weight}
        raw = predicted[:, 0] if predicted.shape[1] == 1 else predicted
        return scorer(_PrecomputedClassifier(self.classes_, self._several), raw, y, **weights)
