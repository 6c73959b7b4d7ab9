"""Logistic regression whose penalty is chosen by fits to all folds, made together.

`_LogisticPaths` fits every candidate (a strength and a share of l1) to every split in lock step, so
that they share passes over the rows. `LogisticRegressionCV` scores the fits, chooses, refits, and
shapes the attributes as scikit-learn does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import metadata_routing
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping

from daskml_dist.data.computing import use_client
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.batched_fits.solver_rounds import (
    MAX_BATCHED_CANDIDATES,
    BatchedModels,
)
from daskml_dist.estimators.linear.base import LinearClassifier, densify, sparsify
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.linear_model._cross_validated import (
    cut_into_splits,
    open_batched_splits,
    resolve_scorer,
    route_metadata,
    score_test_rows,
    set_history_of_splits,
)
from daskml_dist.linear_model.logistic_regression import LogisticRegression
from daskml_dist.losses.base import Loss
from daskml_dist.losses.margin import LogLoss
from daskml_dist.metrics.scorers import Scorer, get_scorer
from daskml_dist.models.batched import TEST
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.checks import check_flag, check_weighed
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import SinglePassSolver, Solution
from daskml_dist.solvers.batched_gradients import SplitLabelWeights
from daskml_dist.solvers.batched_scores import CANDIDATE_SCORES, CLASS_RANKINGS, RANKINGS
from daskml_dist.solvers.batched_solver import BatchedSolver, Candidate, candidate_solution

#: Log odds against a label that no training row has: a probability of 1.5e-8.
_ABSENT_LABEL_LOG_ODDS = 18.0


class _LogisticPaths:
    """Fits of all candidates to the training rows of all splits.

    Parameters
    ----------
    batch : BatchedModels
        Its last split trains on all rows.
    column_model : LinearModel
        The model of one candidate.
    label_weights : ndarray of shape (n_splits + 1, n_classes)
        Sum of the weights of the training rows of each split and label.
    class_weight : ndarray of shape (n_classes,), or None

    Attributes
    ----------
    w : ndarray of shape (n_splits, n_candidates, n_features + fit_intercept, width)
    n_iter : ndarray of int32 of shape (n_splits, n_candidates)
    solutions : list of Solution
        By split, and then by candidate.
    """

    def __init__(
        self, batch: BatchedModels, column_model: LinearModel, label_weights: NDArray[np.float64],
        class_weight: NDArray[np.float64] | None,
    ) -> None:  # fmt: skip
        self._batch = batch
        n_splits, n_classes = label_weights.shape
        # All splits have the same class weights, which scikit-learn computes from all rows.
        weights_of_splits = None if class_weight is None else np.tile(class_weight, (n_splits, 1))
        self.model = batch.make_model(column_model, weights_of_splits)
        self._lacks_label = label_weights == 0
        self._weights = label_weights @ (
            np.ones(n_classes) if class_weight is None else class_weight
        )
        # The last split, of all rows, is only for the refit.
        self._n_splits = n_splits - 1

    def fit(self, candidates: Sequence[Any], role: int | None = None) -> None:
        """Fit all candidates to all splits; with `role`, also sum the scores of its rows."""
        fits = [
            self._make_fit(candidate, split)
            for split in range(self._n_splits)
            for candidate in candidates
        ]
        self.solutions = []
        scored = () if role is None else ((role, False, False),)
        sums = []
        # Cut into batches, each of which shares the passes over the rows.
        for start in range(0, len(fits), MAX_BATCHED_CANDIDATES):
            chunk = tuple(fits[start : start + MAX_BATCHED_CANDIDATES])
            solved = self._batch(self.model, self._batch.make_solver(chunk, scored))
            sums += [solved.extra["scores"].get(role)]
            self.solutions += [candidate_solution(solved, k) for k in range(len(chunk))]
        self._sums = {} if role is None else {role: np.concatenate(sums)}
        w = np.array([solution.w for solution in self.solutions])
        self.w = w.reshape(self._n_splits, len(candidates), *w.shape[1:])
        n_iter = np.array([solution.n_iter for solution in self.solutions], np.int32)
        self.n_iter = n_iter.reshape(self.w.shape[:2])

    def refit(self, candidate: Any, candidate_index: int) -> Solution:
        """Return the fit of a candidate to all rows, starting from the mean of its splits' fits."""
        # The optima for overlapping rows are near each other: few iterations are left.
        fit = self._make_fit(candidate, self._n_splits)
        fit = replace(fit, start=self.w[:, candidate_index].mean(axis=0))
        return candidate_solution(self._batch(self.model, BatchedSolver((fit,))), 0)

    def scores(self, name: str, role: int) -> NDArray[np.float64]:
        """Return the scores of the fits on rows of a role, of shape (n_splits, n_candidates)."""
        n_splits, n_candidates = self.w.shape[:2]
        # These sums use the rows' weights, without those of classes, like scikit-learn's scores.
        sums = self._sums[role]
        check_weighed(dict(enumerate(sums[::n_candidates, 0])))
        return CANDIDATE_SCORES["classifier"][name](sums).reshape(n_splits, n_candidates)

    def rankings(self, name: str, role: int) -> NDArray[np.float64]:
        """Return ranking scores as :meth:`scores` does; NaN if they need the raw predictions."""
        classes = self._batch.rows.classes
        names = RANKINGS if self.model.single_model.width == 1 else CLASS_RANKINGS
        # scikit-learn's average precision is that of the label 1: here it must be the second class.
        lacks_one = name == "average_precision" and (classes is None or classes[-1] != 1)
        if lacks_one or name not in names:
            return np.full(self.w.shape[:2], np.nan)
        n_splits, n_candidates = self.w.shape[:2]
        w = self.w.reshape(-1, *self.w.shape[2:])
        splits = np.repeat(np.arange(n_splits), n_candidates)
        ranked = self._batch.rankings(self.model, w, splits, role)
        return ranked[:, names.index(name)].reshape(n_splits, n_candidates)

    def make_fitted(self, candidate: Any, w: NDArray[np.float64]) -> Any:
        """Return a copy of a candidate, fitted with the parameters `w`."""
        candidate = type(candidate)(**candidate.get_params(deep=False))
        candidate._set_fitted(Solution(w), self.model.single_model, self._batch.rows)
        return candidate

    def _make_fit(self, candidate: Any, split: int) -> Candidate:
        """Return the fit of a candidate to the training rows of a split."""
        weight = float(self._weights[split])
        _, solver = candidate._problem(self._batch.describe_split(weight))
        return Candidate(split, solver, weight, self._choose_start(split))

    def _choose_start(self, split: int) -> NDArray[np.float64] | None:
        """Return the parameters to start from if training rows lack a label; None: zeros.

        The loss decreases forever as the intercept of an absent label goes to minus infinity. The
        start is far along that direction, where the gradient is nearly zero, so that the intercept
        stays there.
        """
        split_model, is_lacking = self.model.single_model, self._lacks_label[split]
        if not split_model.fit_intercept or not is_lacking.any() or is_lacking.all():
            return None
        w = np.zeros(split_model.shape)
        if split_model.width > 1:
            w[-1, is_lacking] = -_ABSENT_LABEL_LOG_ODDS
        else:  # one output, the log odds of the second of two classes
            w[-1, 0] = _ABSENT_LABEL_LOG_ODDS if is_lacking[0] else -_ABSENT_LABEL_LOG_ODDS
        return w


class LogisticRegressionCV(LinearClassifier):
    """Logistic regression whose penalty is chosen by cross-validation, with all fits made together.

    Each pair of a penalty and a split is a column of one batch of models, and one pass over the
    rows computes the gradients of all columns. The fit to all rows starts at the mean of the
    splits' fits with the chosen penalty.

    Parameters
    ----------
    Cs : int or array-like of shape (n_Cs,), default=10
        Inverse strengths to try. An int: this many, from 1e-4 to 1e4, evenly spaced on a
        logarithmic scale.
    l1_ratios : array-like of shape (n_l1_ratios,) or None, default=None
        Shares of l1 to try; None: 0, which is l2, but 1 with ``penalty="l1"``.
    fit_intercept : bool, default=True
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: 5 folds, stratified.
    dual, n_jobs, intercept_scaling, random_state
        Without effect on these solvers: `dual` must be False; all fits are made at once.
    penalty : {"auto", "l2", "l1", "elasticnet"}, default="auto"
        As in :class:`~daskml_dist.linear_model.LogisticRegression`.
    scoring : str, callable or None, default=None
        Larger is better. None: accuracy. ``"accuracy"``, ``"neg_log_loss"`` and ranking scores such
        as ``"roc_auc"`` of all fits need one pass, other scores a pass for each fit.
    solver, tol, max_iter, class_weight
        As in :class:`~daskml_dist.linear_model.LogisticRegression`. ``"balanced"`` is by the labels
        of all rows, not of each split's; class weights count in fits, and not in scores.
    refit : bool, default=True
        Whether to fit all rows with the penalty of the best mean score. False: coefficients are the
        mean over the splits, each with its own best penalty.
    use_legacy_attributes : bool, default=True
        Whether fitted attributes have the shapes of scikit-learn before its version 1.10; see
        there.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features), or (n_classes, n_features) for more than two
    intercept_ : ndarray of shape (1,) or (n_classes,)
    Cs_ : ndarray of shape (n_Cs,)
    l1_ratios_ : ndarray of shape (n_l1_ratios,)
    coefs_paths_ : dict of ndarray of shape (n_folds, n_Cs, n_dof), by label, or with `l1_ratios` \
    (n_folds, n_Cs, n_l1_ratios, n_dof)
        Coefficients of all fits, and then the intercept. Not legacy: ndarray of shape
        (n_folds, n_l1_ratios, n_Cs, n_classes, n_dof).
    scores_ : dict of ndarray of shape (n_folds, n_Cs) or (n_folds, n_Cs, n_l1_ratios)
        Not legacy: ndarray of shape (n_folds, n_l1_ratios, n_Cs).
    C_, l1_ratio_ : ndarray of shape (1,) or (n_classes,)
        Chosen. Not legacy: float.
    n_iter_ : ndarray of int of shape (1, n_folds, n_Cs) or (1, n_folds, n_Cs, n_l1_ratios)
        Not legacy: of shape (n_folds, n_l1_ratios, n_Cs).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from daskml_dist.linear_model import LogisticRegressionCV
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LogisticRegressionCV(Cs=5, scoring="neg_log_loss", use_legacy_attributes=False)
    >>> clf.fit(X, y).scores_.shape
    (5, 1, 5)
    """

    densify = densify
    sparsify = sparsify

    #: `score` does not receive `sample_weight` by routing: the scorer requests it.
    __metadata_request__score: ClassVar = {"sample_weight": metadata_routing.UNUSED}

    _run_used = BaseRounds._run_used

    def __init__(
        self,
        *,
        # The candidates, the splits, and each fit, in scikit-learn's order.
        Cs: Any = 10,
        l1_ratios: Any = None,
        fit_intercept: bool = True,
        cv: Any = None,
        dual: bool = False,
        penalty: str = "auto",
        scoring: Any = None,
        solver: str = "lbfgs",
        tol: float = 1e-4,
        max_iter: int = 100,
        class_weight: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        refit: bool = True,
        intercept_scaling: float = 1.0,
        random_state: Any = None,
        use_legacy_attributes: bool = True,
        # Beyond scikit-learn: where the fits run, and their reports.
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.Cs = Cs
        self.l1_ratios = l1_ratios
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.dual = dual
        self.penalty = penalty
        self.scoring = scoring
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.refit = refit
        self.intercept_scaling = intercept_scaling
        self.random_state = random_state
        self.use_legacy_attributes = use_legacy_attributes
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def get_metadata_routing(self) -> Any:
        """Return the routing of metadata to the splitter and to the scorer.

        Returns
        -------
        sklearn.utils.metadata_routing.MetadataRouter
        """
        scores = MethodMapping().add(caller="score", callee="score")
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(
            splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split")
        )
        scorer = resolve_scorer(self.scoring) or get_scorer("accuracy")
        return router.add(scorer=scorer, method_mapping=scores.add(caller="fit", callee="score"))

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        client: Any = None,
        **params: Any,
    ) -> Self:
        """Choose the penalty, and fit all rows with it.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`.
        groups : like `y`, optional
            For splitters that need them.
        **params
            For scikit-learn's metadata routing, if it is on: metadata that the splitter requests.
            Scores then use weights only if the scorer requests `sample_weight`.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        TrainingError
            When the fit cannot continue.
        """
        self._check_params()
        # With metadata routing on, splitter and scorer get only the metadata that they requested.
        metadata = {"sample_weight": sample_weight, "groups": groups}
        route = route_metadata(self, "fit", metadata, params)
        groups = route.splitter.split.get("groups")
        weigh = sample_weight is None or "sample_weight" in route.scorer.score
        with use_client(client):
            self._fit_splits(X, y, sample_weight, groups, client, weigh)
        return self

    def _fit_splits(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, client: Any, is_weighted: bool = True
    ) -> None:
        """Choose the penalty on the splits of `cv`, and set the fitted attributes.

        `is_weighted`: whether scores are weighted by `sample_weight`.
        """
        splits = cut_into_splits(self, X, y, sample_weight, groups)
        with open_batched_splits(self, splits, client) as batch:
            # The form of the model is the same for all penalties: any penalty gives it.
            split_model, _ = self._make_estimator(1.0, 0.0)._problem(batch.rows)
            label_weights = batch(
                batch.make_model(split_model), SinglePassSolver(SplitLabelWeights())
            ).w
            class_weight = self._resolve_class_weight(batch, label_weights[-1])
            paths = _LogisticPaths(batch, split_model, label_weights, class_weight)
            paths.fit(self._candidates(), TEST if self._is_summed(is_weighted) else None)
            scores = self._score_splits(paths, splits, is_weighted)
            model = paths.model.single_model
            # One penalty for all splits, or each split's own best, whose coefficients are averaged.
            if self.refit:
                best = int(np.argmax(scores.mean(axis=0)))
                solution = paths.refit(self._candidates()[best], best)
                best_candidates = np.full(len(scores), best)
            else:
                best_candidates = scores.argmax(axis=1)
                w = paths.w[np.arange(len(scores)), best_candidates].mean(axis=0)
                solution = Solution(w)
            self._set_fitted(solution, model, batch.rows)
            self._set_paths(paths, scores, best_candidates)
            set_history_of_splits(self, batch)
        failed = [fit for fit in (*paths.solutions, solution) if not fit.converged]
        if failed:
            warnings.warn(
                f"{len(failed)} of the fits failed to converge: {failed[0].message}. Increase "
                "max_iter, scale the features (StandardScaler), or penalise more.",
                ConvergenceWarning,
                stacklevel=user_stack_level(),
            )

    def score(self, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> float:
        """Return the score by `scoring`, in one pass over the blocks.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        **params
            For scikit-learn's metadata routing, if it is on.

        Returns
        -------
        float
        """
        scorer = resolve_scorer(self.scoring)
        route = route_metadata(self, "score", {"sample_weight": sample_weight}, params)
        weight = route.scorer.score.get("sample_weight")
        if scorer is None:
            return super().score(X, y, weight)
        self._check_fitted()
        X, y, weight = self._prepare_inputs(X, y, weight)
        weights = {} if weight is None else {"sample_weight": weight}
        return float(scorer(self, X, y, **weights))

    # -- fits -----------------------------------------------------------------------------------

    def _resolve_class_weight(
        self, batch: BatchedModels, label_weights: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Return the weight of each class, given the summed weights of all rows by label."""
        if self.class_weight is None:
            return None
        from daskml_dist.model_selection._batched_fits import weigh_classes_by_sums

        # "balanced" refers to all rows, as in scikit-learn, and not to the training rows of a
        # split.
        classes = batch.rows.classes
        assert classes is not None
        return weigh_classes_by_sums(self.class_weight, classes, lambda: label_weights)

    def _candidates(self) -> list[LogisticRegression]:
        """Return an unfitted estimator for each C and share of l1; C is the outer loop."""
        return [
            self._make_estimator(float(c), float(r)) for c in self._values for r in self._ratios
        ]

    def _make_estimator(self, C: float, l1_ratio: float) -> LogisticRegression:
        """Return an unfitted estimator with one penalty."""
        own_params, params = self._all_params(), LogisticRegression().get_params(deep=False)
        shared = {name: own_params[name] for name in own_params if name in params}
        # Class weights are those of all rows (`_resolve_class_weight`), which a candidate could not
        # compute from its split.
        shared |= {"C": C, "l1_ratio": l1_ratio, "class_weight": None, "callbacks": None}
        return LogisticRegression(**shared)

    def _is_summed(self, is_weighted: bool) -> bool:
        """Return whether the scores follow from sums that the fits' batches compute."""
        name = "accuracy" if self.scoring is None else self.scoring
        return is_weighted and isinstance(name, str) and name in CANDIDATE_SCORES["classifier"]

    def _score_splits(
        self, paths: _LogisticPaths, splits: Any, is_weighted: bool
    ) -> NDArray[np.float64]:
        """Return the scores of test rows, of shape (n_splits, n_candidates)."""
        # From the cheapest way to the most expensive: sums from the fits, one pass that ranks the
        # rows for all fits, or a pass for each fit.
        name = "accuracy" if self.scoring is None else self.scoring
        if self._is_summed(is_weighted):
            return paths.scores(name, TEST)
        if is_weighted and isinstance(name, str) and name in (*RANKINGS, *CLASS_RANKINGS):
            rankings = paths.rankings(name, TEST)
            if np.isfinite(rankings).all():
                return rankings
        candidates = self._candidates()
        estimators = {}
        for split, w_of_split in enumerate(paths.w):
            estimators[split] = [
                paths.make_fitted(candidate, w)
                for candidate, w in zip(candidates, w_of_split, strict=True)
            ]
            for estimator in estimators[split]:
                if hasattr(self, "feature_names_in_"):
                    estimator.feature_names_in_ = self.feature_names_in_
        # Test rows may lack a label that the fits know: scorers with a parameter for labels get all
        # labels.
        scorer = resolve_scorer(self.scoring) or get_scorer("accuracy")
        if hasattr(scorer, "_score_func"):
            scorer = Scorer.from_sklearn(scorer, getattr(scorer, "_name", None))
            scorer = scorer.with_labels(estimators[0][0].classes_)
        return score_test_rows(splits, estimators, scorer, is_weighted=is_weighted)

    # -- attributes -----------------------------------------------------------------------------

    def _set_paths(
        self, paths: _LogisticPaths, scores: NDArray[np.float64], best_candidates: NDArray[np.intp]
    ) -> None:
        """Set scikit-learn's attributes of the paths; `best_candidates` has one for each split."""
        values, ratios = self._values, self._ratios
        shape = len(scores), len(values), len(ratios)
        # A mean, for refit=False, where each split has its own choice; else all are equal.
        c = float(np.mean(np.repeat(values, len(ratios))[best_candidates]))
        ratio = float(np.mean(np.tile(ratios, len(values))[best_candidates]))
        self.Cs_ = values
        self.l1_ratios_ = np.array([None]) if self.l1_ratios is None else ratios
        # From (n_splits, n_candidates, n_dof, width) to (width, n_splits, n_Cs, n_ratios, n_dof).
        coefs = np.moveaxis(paths.w, 3, 0).reshape(paths.w.shape[3], *shape, -1)
        n_iter = paths.n_iter.reshape(shape)
        scores = scores.reshape(shape)
        if not self.use_legacy_attributes:
            self.coefs_paths_: Any = coefs.transpose(1, 3, 2, 0, 4)
            self.scores_: Any = scores.transpose(0, 2, 1)
            self.n_iter_ = n_iter.transpose(0, 2, 1)
            self.C_: Any = c
            self.l1_ratio_: Any = ratio
            return
        # Legacy shapes: dicts by label (for two labels, the second), without the axis of absent
        # l1_ratios.
        labels = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        if self.l1_ratios is None:
            coefs, scores, n_iter = coefs[:, :, :, 0], scores[:, :, 0], n_iter[:, :, 0]
        self.coefs_paths_ = dict(zip(labels, coefs, strict=True))
        self.scores_ = {label: scores.copy() for label in labels}
        self.n_iter_ = n_iter[None]
        self.C_ = np.full(len(labels), c)
        has_no_ratio = self.l1_ratios is None and self.refit  # as in scikit-learn
        self.l1_ratio_ = np.array([None if has_no_ratio else ratio] * len(labels))

    # -- parameters -----------------------------------------------------------------------------

    @property
    def _values(self) -> NDArray[np.float64]:
        """Return the inverse strengths to try."""
        if isinstance(self.Cs, Integral):
            return np.logspace(-4, 4, int(self.Cs))
        return np.ravel(np.asarray(self.Cs, np.float64))

    @property
    def _ratios(self) -> NDArray[np.float64]:
        """Return the shares of l1 to try."""
        ratios = self.l1_ratios
        # scikit-learn's older way: the name of the penalty.
        if ratios is None:
            return np.array([1.0 if self.penalty == "l1" else 0.0])
        return np.ravel(np.asarray(ratios, np.float64))

    def _loss(self) -> Loss:
        return LogLoss()

    def _check_params(self) -> None:
        # Each candidate checks the parameters of one fit (solver, penalty, tolerance) itself,
        # below.
        for name in ("refit", "fit_intercept", "use_legacy_attributes"):
            check_flag(name, getattr(self, name))
        if isinstance(self.Cs, bool) or (isinstance(self.Cs, Real) and not float(self.Cs) >= 1):
            raise InvalidParameterError(f"Cs={self.Cs!r}: use a number >= 1, or values > 0.")
        if self.dual:
            raise InvalidParameterError(
                "dual=True: no solver here solves the dual problem. Leave dual=False; the "
                "optimum is the same."
            )
        resolve_scorer(self.scoring)
        for name, value in (("Cs", self._values), ("l1_ratios", self._ratios)):
            if not len(value):
                raise InvalidParameterError(f"{name} is empty. Name at least one value.")
        if not ((self._ratios >= 0) & (self._ratios <= 1)).all():
            raise InvalidParameterError(
                "l1_ratios must be an array-like of numbers between 0 and 1; got "
                f"(l1_ratios={self.l1_ratios!r})."
            )
        for candidate in self._candidates():
            candidate._check_params()
