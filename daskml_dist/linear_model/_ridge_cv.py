"""`RidgeCV` and `RidgeClassifierCV`: the penalty is chosen by leaving rows out, or by folds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Self

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from daskml_dist.backends import get_backend
from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import Collection
from daskml_dist.data.computing import use_client
from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels
from daskml_dist.estimators.linear.base import BaseLinear, LinearClassifier
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._cross_validated import (
    cut_into_splits,
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
from daskml_dist.losses import Loss, SquaredError
from daskml_dist.models.batched import TEST
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import (
    check_class_weight,
    check_flag,
    check_one_of,
    check_weighed,
)
from daskml_dist.parameters.run import Run
from daskml_dist.solvers import RidgeLeastSquares, Solution, Solver
from daskml_dist.solvers.base import SinglePassSolver
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

__all__ = ["BaseRidgeCV", "RidgeCV", "RidgeClassifierCV"]


@dataclass(frozen=True, eq=False)
class Values:
    """Values of each row under each penalty.

    Parameters
    ----------
    array : ndarray or dask Array of shape (n_rows, n_targets, n_alphas)
    flat : bool
        Whether targets have one dimension.
    """

    array: Any
    flat: bool

    def of_penalty(self, i: int) -> Any:
        """Values of shape (n_rows,) or (n_rows, n_targets)."""
        found = self.array[:, :, i]
        return found[:, 0] if self.flat else found

    def gathered(self) -> NDArray[np.float64]:
        """All of them, of shape (n_rows, n_alphas) or (n_rows, n_targets, n_alphas)."""
        array = self.array.compute() if isinstance(self.array, da.Array) else self.array
        return np.asarray(array[:, 0] if self.flat else array)


def values_left_out(
    collection: Collection,
    left_out: LeaveOneOutErrors,
    model: LinearModel,
    rows: DatasetInfo,
    *,
    squares: bool,
) -> Values:
    """Predictions of rows, or their squared errors times their weights."""
    one = partial(_of_block, left_out, model, rows.classes, _weigher(rows), squares)
    flat = model.n_targets is None and rows.classes is None
    if collection.kind == "memory":
        block = collection.block_maker(0, *collection.parts[0])
        return Values(one(block), flat)
    shape = model.width, len(left_out.w)
    counts: list[Any] = collection.row_counts or [np.nan] * len(collection.parts)
    lazily = delayed(one, pure=False)
    pieces = [
        da.from_delayed(lazily(block), (n, *shape), dtype=np.float64)
        for n, block in zip(counts, collection.delayed_blocks(), strict=True)
    ]
    return Values(da.concatenate(pieces), flat)


def _weigher(rows: DatasetInfo) -> Any:
    if rows.weight_scale is None:
        return None
    return partial(_weights, rows.weight_scale, rows.class_weight, rows.classes)


def _weights(scale: float, of_class: Any, classes: Any, block: Block) -> NDArray[np.float64]:
    """Weights as the fit has them."""
    weight = np.full(block.n_rows, scale)
    if block.sample_weight is not None:
        weight *= block.sample_weight
    if of_class is not None and block.y is not None:
        weight *= of_class[np.searchsorted(classes, block.y)]
    return weight


def _of_block(
    left_out: LeaveOneOutErrors,
    model: LinearModel,
    classes: Any,
    weigh: Any,
    squares: bool,
    block: Block,
) -> NDArray[np.float64]:
    assert block.y is not None
    backend = get_backend("cpu")
    y = model.encode(block.y, classes, np.float64)
    weight = None if weigh is None else weigh(block)
    X = backend.rows(block.rows, slice(0, block.n_rows))
    errors = left_out.errors(X, y, weight, backend)
    if squares:
        scale = 1.0 if weigh is None else weigh.args[0]
        found = errors**2 if weight is None else errors**2 * (weight / scale)[:, None, None]
    else:
        shift = np.array(model.target_shift) if model.target_shift else 0.0
        found = (y.reshape(len(y), -1) + shift)[:, None, :] - errors
    return np.ascontiguousarray(found.transpose(0, 2, 1))


def _column(y: Any, j: int) -> Any:
    return y[y.columns[j]] if hasattr(y, "columns") else y[:, j]


class _Predicted(RegressorMixin, BaseEstimator):
    """Stands for an estimator whose predictions are there already."""

    def predict(self, predicted: Any) -> Any:
        return predicted


class _Decided(ClassifierMixin, BaseEstimator):
    """Stands for a classifier whose raw predictions are there already."""

    def __init__(self, classes: NDArray[Any], several: bool) -> None:
        self.classes_, self._several = classes, several

    def decision_function(self, raw: Any) -> Any:
        return raw

    def predict(self, raw: Any) -> Any:
        if isinstance(raw, da.Array):
            drop: Any = {"drop_axis": 1} if raw.ndim == 2 and not self._several else {}
            lazily: Any = raw.map_blocks
            found: da.Array = lazily(self._labels, dtype=self.classes_.dtype, **drop)
            return found
        return self._labels(raw)

    def _labels(self, raw: NDArray[np.float64]) -> NDArray[Any]:
        if self._several:
            return (raw > 0).astype(self.classes_.dtype)
        best = (raw > 0).astype(int) if raw.ndim == 1 else raw.argmax(axis=1)
        return np.asarray(self.classes_[best])


class BaseRidgeCV(BaseLinear, BaseRounds):
    """Base class of ridge models that choose their penalty: one model for all penalties.

    Parameters
    ----------
    alphas : array-like of shape (n_alphas,), default=(0.1, 1.0, 10.0)
        Strengths to be tried.
    fit_intercept : bool, default=True
    store_cv_results : bool, default=False
        Whether to set ``cv_results_``; without `cv` alone.
    """

    alphas: Any
    cv: Any
    scoring: Any
    fit_intercept: bool
    store_cv_results: bool
    alpha_per_target: bool = False
    #: Whether rows may have several labels.
    _several = False
    #: Name of the score where none is asked for.
    _own_score = "r2"
    #: Makes the model of some rows.
    _model: Callable[[DatasetInfo], LinearModel]

    @abstractmethod
    def _plain(self, alpha: float) -> Any:
        """An estimator of one penalty, unfitted, to be scored."""

    @abstractmethod
    def _left_out_score(self, scorer: Any, y: Any, predicted: Any, weight: Any) -> Any:
        """Score of predictions of rows that were left out."""

    def _name_classes(self, values: NDArray[Any], n_columns: int | None) -> NDArray[Any]:
        """Return the labels of the values in columns of y."""
        return values

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        client: Any = None,
    ) -> Self:
        """Choose the penalty, and fit all rows with it.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`.
        groups : like `y`, optional
            For splitters that need them.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        TrainingError
            When the fit cannot go on.
        """
        self._check_params()
        with use_client(client):
            self._fit_splits(X, y, sample_weight, groups, client)
        return self

    def _fit_splits(self, X: Any, y: Any, sample_weight: Any, groups: Any, client: Any) -> None:
        self._clear_fitted()
        if self.cv is None:
            self._leave_out(X, y, sample_weight, client)
        else:
            self._fit_folds(X, y, sample_weight, groups, client)

    # -- leaving each row out -------------------------------------------------------------------

    def _leave_out(self, X: Any, y: Any, sample_weight: Any, client: Any) -> None:
        self._fit(X, y, sample_weight, client)
        left_out, model, rows = self._found
        del self._found
        scorer = resolve_scorer(self.scoring)
        if scorer is None and not self.store_cv_results:
            return
        X, y, weight = self._prepare_inputs(X, y, sample_weight)
        collection = self._align_inputs(X, y, weight)
        values = values_left_out(collection, left_out, model, rows, squares=scorer is None)
        if scorer is not None:
            scores = [
                self._left_out_score(scorer, y, values.of_penalty(i), weight)
                for i in range(len(left_out.w))
            ]
            self._choose(np.array(scores), left_out.w, model, rows)
        if self.store_cv_results:
            self.cv_results_ = values.gathered()

    def _problem(self, rows: DatasetInfo) -> tuple[LinearModel, Solver]:
        # Rows' weights have mean 1 in the fit.
        alphas = self._alphas * (rows.weight_scale or 1.0)
        return self._model(rows), LeaveOneOutRidge(alphas=alphas, **moments_of(rows))

    def _set_fitted(self, solution: Solution, model: LinearModel, rows: DatasetInfo) -> None:
        left_out, squares = solution.extra["left_out"], solution.extra["squares"]
        self._found = left_out, model, rows
        errors = squares / (rows.survey.n_rows * (rows.weight_scale or 1.0))
        self._choose(
            -errors if self.alpha_per_target else -errors.mean(axis=1), left_out.w, model, rows
        )

    def _choose(
        self,
        scores: NDArray[np.float64],
        w: NDArray[np.float64],
        model: LinearModel,
        rows: DatasetInfo,
    ) -> None:
        """Set what follows from the scores of penalties, or of these for each target."""
        best = np.argmax(scores, axis=0)
        if scores.ndim == 2 and scores.shape[1] > 1:
            targets = np.arange(scores.shape[1])
            self.alpha_, self.best_score_ = self._alphas[best], scores[best, targets]
            chosen = w[best, :, targets].T
        else:
            best = int(np.ravel(best)[0])
            self.alpha_ = float(self._alphas[best])
            self.best_score_ = float(np.ravel(scores[best])[0])
            chosen = w[best]
        super()._set_fitted(Solution(chosen), model, rows)

    def _set_n_iter(self, solution: Solution) -> None:
        """Nothing: these solvers do not iterate."""

    # -- folds ----------------------------------------------------------------------------------

    def _fit_folds(self, X: Any, y: Any, sample_weight: Any, groups: Any, client: Any) -> None:
        splits = cut_into_splits(self, X, y, sample_weight, groups)
        class_weight = self._params()["class_weight"]
        with open_batched_splits(self, splits, client, class_weight, self._name_classes) as stack:
            model = self._model(stack.rows)
            check_memory(model.n_features, stack.roles.n_splits)
            alphas = self._alphas * (stack.rows.weight_scale or 1.0)
            facts = moments_of(stack.rows)
            found = stack(
                stack.model(model), FoldedReduction(l2=float(alphas.min()), of_mean=False, **facts)
            ).extra
            *reduced, last = found["reduced"]
            coefs = np.array([solve_ridge_path(one, alphas) for one in reduced])
            if model.fit_intercept:
                coefs = np.array(
                    [append_intercepts(one, w) for one, w in zip(reduced, coefs, strict=True)]
                )
            scores = self._fold_scores(stack, splits, model, coefs).mean(axis=0)
            # As in a search: what is NaN comes last.
            best = int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))
            self.alpha_, self.best_score_ = float(self._alphas[best]), float(scores[best])
            solver = RidgeLeastSquares(
                alpha=np.full(model.width, alphas[best]), method="auto", positive=False, **facts
            )
            solution = solver.of_reduced(model, last, found["n_rows"][-1])
            super()._set_fitted(solution, model, stack.rows)
            set_history_of_splits(self, stack)

    def _fold_scores(
        self, stack: BatchedModels, splits: Any, model: LinearModel, w: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Scores of test rows, of shape (n_splits, n_alphas)."""
        name, stacked = self.scoring or self._own_score, stack.model(model)
        if self._classification and name == "accuracy":
            hits = stack(stacked, SinglePassSolver(PathHits(w, TEST, self._several))).w
            check_weighed(dict(enumerate(hits[:, 0, 0])))
            return np.asarray(hits[..., 1] / hits[..., 0])
        if not self._classification and isinstance(name, str) and name in PATH_SCORES:
            statistic = PathErrorSums(w, TEST, absolute=name == "neg_mean_absolute_error")
            sums = stack(stacked, SinglePassSolver(statistic)).w
            check_weighed(dict(enumerate(sums[:, 0, 0, 0])))
            return PATH_SCORES[name](sums)
        estimators = {
            split: [
                self._with(alpha, one, model, stack.rows)
                for alpha, one in zip(self._alphas, of_split, strict=True)
            ]
            for split, of_split in enumerate(w)
        }
        return score_test_rows(splits, estimators, resolve_scorer(self.scoring))

    def _with(
        self, alpha: float, w: NDArray[np.float64], model: LinearModel, rows: DatasetInfo
    ) -> Any:
        """An estimator that has these parameters."""
        estimator = self._plain(float(alpha))
        estimator._several = self._several
        estimator._set_fitted(Solution(w), model, rows)
        if hasattr(self, "feature_names_in_"):
            estimator.feature_names_in_ = self.feature_names_in_
        return estimator

    # -- parameters -----------------------------------------------------------------------------

    @property
    def _alphas(self) -> NDArray[np.float64]:
        return np.ravel(np.asarray(self.alphas, dtype=np.float64))

    def _check_params(self) -> None:
        check_flag("fit_intercept", self.fit_intercept)
        check_flag("store_cv_results", self.store_cv_results)
        check_flag("alpha_per_target", self.alpha_per_target)
        check_class_weight(self._params()["class_weight"])
        resolve_scorer(self.scoring)
        given = np.ravel(np.asarray(self.alphas, dtype=object))
        if not len(given):
            raise InvalidParameterError("alphas is empty. Name at least one strength.")
        for i, alpha in enumerate(given):
            name = "alphas" if len(given) == 1 else f"alphas[{i}]"
            if isinstance(alpha, bool) or not isinstance(alpha, Real):
                raise InvalidParameterError(
                    f"{name} must be an instance of float, not {type(alpha).__name__}: {alpha!r}. "
                    "Use numbers."
                )
            value = float(alpha)
            if not (value > 0 or (value == 0 and self.cv is not None)) or not value < np.inf:
                least = ">= 0.0" if self.cv is not None else "> 0.0"
                raise InvalidParameterError(
                    f"{name} == {alpha}, must be {least}. Leaving rows out (cv=None) needs a "
                    "penalty; use LinearRegression for none."
                )
        for name in ("store_cv_results", "alpha_per_target"):
            if self.cv is not None and getattr(self, name):
                raise InvalidParameterError(
                    f"cv!=None and {name}=True are incompatible. Leave cv=None."
                )


class RidgeCV(BaseRidgeCV, BaseLeastSquares):
    """Ridge regression whose penalty is chosen by cross-validation, in two passes over the rows.

    Without `cv` each row is left out once, in closed form (Rifkin and Lippert 2007): a pass for
    the moments, and one for the errors of all rows under all penalties. With folds, the first pass
    makes the moments of each fold, of which all fits follow, and the second scores them.

    Parameters
    ----------
    scoring : str, callable or None, default=None
        Larger is better. None: without `cv` the negative mean squared error, with it R^2.
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: each row is left out once.
    gcv_mode : {"auto", "svd", "eigen"} or None, default=None
        Without effect: the way is chosen by the digits that are needed.
    alpha_per_target : bool, default=False
        Whether each target has a penalty of its own; without `cv` alone.

    Attributes
    ----------
    alpha_ : float or ndarray of shape (n_targets,)
    best_score_ : float or ndarray of shape (n_targets,)
    cv_results_ : ndarray of shape (n_rows, n_alphas) or (n_rows, n_targets, n_alphas)
        Squared errors of rows left out (times their weights), or with `scoring` their predictions.
    coef_, intercept_
        As in :class:`~daskml_dist.linear_model.Ridge`.

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
        alphas: Any = (0.1, 1.0, 10.0),
        *,
        fit_intercept: bool = True,
        scoring: Any = None,
        cv: Any = None,
        gcv_mode: str | None = None,
        store_cv_results: bool = False,
        alpha_per_target: bool = False,
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

    def _plain(self, alpha: float) -> Any:
        return Ridge(alpha=alpha, fit_intercept=self.fit_intercept)

    def _left_out_score(self, scorer: Any, y: Any, predicted: Any, weight: Any) -> Any:
        more = {} if weight is None else {"sample_weight": weight}
        if self.alpha_per_target and predicted.ndim == 2:
            columns = np.asarray(y) if isinstance(y, list) else y
            return [
                scorer(_Predicted(), predicted[:, j], _column(columns, j), **more)
                for j in range(predicted.shape[1])
            ]
        return scorer(_Predicted(), predicted, y, **more)


class RidgeClassifierCV(BaseRidgeCV, LinearClassifier):
    """Ridge classifier whose penalty is chosen by cross-validation, in two passes over the rows.

    To :class:`~daskml_dist.linear_model.RidgeClassifier` as
    :class:`~daskml_dist.linear_model.RidgeCV` is to ridge regression. Rows may have several labels.

    Parameters
    ----------
    scoring : str, callable or None, default=None
        Larger is better. None: without `cv` the negative mean squared error of the signs of
        labels, with it the accuracy (of several labels a row, the share of rows with all right).
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: each row is left out once. A number of folds: stratified.
    class_weight : dict, "balanced" or None, default=None
        None where rows have several labels.

    Attributes
    ----------
    alpha_, best_score_ : float
    cv_results_ : ndarray of shape (n_rows, n_targets, n_alphas)
        Squared errors of rows left out (times their weights), or with `scoring` their predictions;
        a target a class or label, or one for two classes.
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
    _own_score = "accuracy"

    def __init__(
        self,
        alphas: Any = (0.1, 1.0, 10.0),
        *,
        fit_intercept: bool = True,
        scoring: Any = None,
        cv: Any = None,
        class_weight: Any = None,
        store_cv_results: bool = False,
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _loss(self) -> Loss:
        return SquaredError()

    def _model(self, rows: DatasetInfo) -> LinearModel:
        return make_sign_model(rows, bool(self.fit_intercept))

    def _find_classes(self, survey: DataSummary, classes: Any) -> NDArray[Any]:
        check_weights_of_labels(self.class_weight, survey.n_targets)
        return super()._find_classes(survey, classes)

    def _plain(self, alpha: float) -> Any:
        return RidgeClassifier(alpha=alpha, fit_intercept=self.fit_intercept)

    def _name_classes(self, values: NDArray[Any], n_columns: int | None) -> NDArray[Any]:
        self._several = n_columns is not None
        check_weights_of_labels(self.class_weight, n_columns)
        return values if n_columns is None else self._number_label_columns(values, n_columns)

    def _left_out_score(self, scorer: Any, y: Any, predicted: Any, weight: Any) -> Any:
        more = {} if weight is None else {"sample_weight": weight}
        raw = predicted[:, 0] if predicted.shape[1] == 1 else predicted
        return scorer(_Decided(self.classes_, self._several), raw, y, **more)
