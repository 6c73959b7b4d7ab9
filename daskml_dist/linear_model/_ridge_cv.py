"""Base class of ridge models that choose their penalty: by leaving rows out, or by folds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.computing import use_client
from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.batched_fits.solver_rounds import BatchedModels
from daskml_dist.estimators.linear.base import BaseLinear
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._cross_validated import (
    cut_into_splits,
    open_batched_splits,
    resolve_scorer,
    score_test_rows,
    set_history_of_splits,
)
from daskml_dist.linear_model._least_squares import check_memory, moments_of
from daskml_dist.linear_model._rows_left_out import values_left_out
from daskml_dist.models.batched import TEST
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_class_weight, check_flag, check_weighed
from daskml_dist.solvers import RidgeLeastSquares, Solution, Solver
from daskml_dist.solvers.base import SinglePassSolver
from daskml_dist.solvers.penalty_paths import (
    PATH_SCORES,
    FoldedReduction,
    LeaveOneOutRidge,
    PathErrorSums,
    PathHits,
    append_intercepts,
    solve_ridge_path,
)
from daskml_dist.training.plan import DatasetInfo

__all__ = ["BaseRidgeCV"]


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
