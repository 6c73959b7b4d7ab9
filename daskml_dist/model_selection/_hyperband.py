"""Searches that train candidates pass by pass, and stop most of them early, such as Hyperband.

These classes draw the candidates and plan the brackets. How brackets are made and candidates are
trained on is in `_candidate_training.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from dask.base import compute
from numpy.typing import NDArray
from sklearn import model_selection, naive_bayes
from sklearn.base import is_classifier

from daskml_dist.diagnostics.operation_progress import report_phase, report_rung
from daskml_dist.errors import InvalidParameterError
from daskml_dist.inference.block_mapping import current_client
from daskml_dist.model_selection._batched_fits import name_scores
from daskml_dist.model_selection._candidate_training import (
    AsyncTraining,
    Bracket,
    CandidateTraining,
    PartialFitTraining,
    ResumableModel,
    SplitSides,
    begin_batched_training,
    find_best_scores,
    has_plateaued,
    plan_brackets,
    plan_decaying_bracket,
    train_by_passes,
)
from daskml_dist.model_selection._search import DaskSearch, make_cv_results
from daskml_dist.model_selection._validation import SplitFit, Splits, takes_dask_collections
from daskml_dist.models.batched import TRAIN
from daskml_dist.parameters.checks import check_count, check_number

#: scikit-learn's models whose ``partial_fit`` adds up counts of rows, all in one pass.
_COUNTING_MODELS = (
    naive_bayes.BernoulliNB,
    naive_bayes.CategoricalNB,
    naive_bayes.ComplementNB,
    naive_bayes.GaussianNB,
    naive_bayes.MultinomialNB,
)


class HyperbandSearchCV(DaskSearch, model_selection.RandomizedSearchCV):
    """Search by Hyperband: brackets of successive halving over passes.

    The first bracket has the most candidates and stops most of them after few passes; the last
    trains few candidates to the end. A candidate's training continues from its last state. Those of
    :class:`~daskml_dist.linear_model.SGDClassifier` and
    :class:`~daskml_dist.linear_model.SGDRegressor` are trained in one batched fit with all brackets
    together. Others with ``partial_fit`` are trained one after the other if they take Dask
    collections, and else as tasks on the workers: these are promoted as soon as they are among the
    best of their rung (ASHA), so that no worker waits.

    Parameters
    ----------
    estimator : estimator
        Linear by gradient steps, or with ``partial_fit``, a call of which is a pass; not naive
        Bayes, which learns all in one pass.
    param_distributions : dict or list of dict
        Lists of values, or distributions, by parameter.
    max_iter : int, default=27
        Passes of a candidate at most; with `factor` it determines the number of candidates.
    factor : float, default=3
        One in `factor` candidates of a rung is promoted, to `factor` times the passes; > 1.
    scoring : str, callable or None
        One score.
    cv : int, splitter, iterable of (train, test) row numbers, or None
        None: 5 folds, stratified for a classifier.
    refit : bool, default=True
        Fit the best to all rows, for the number of passes after which it was scored.
    random_state : int, RandomState or None
        Seed of the draw of candidates.
    error_score : "raise" or float, default=nan
        Score of a failed fit; "raise" raises its error.
    return_train_score : bool, default=False
    patience : int or False, default=False
        A candidate is stopped at a rung if its score has not risen for `patience` passes.
    tol : float, default=0.001
        Rise of the score within `patience` passes below which it counts as not risen.
    verbose : int, default=0
        1: a live line of progress, and a summary; 2 or more: also a line for each rung.

    Attributes
    ----------
    cv_results_ : dict of str to ndarray or list
        scikit-learn's columns, with the scores of each candidate after its last pass, and
        ``bracket`` and ``partial_fit_calls``, the passes that it made.
    best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, refit_time_, \
multimetric_
        scikit-learn's. The best candidate has the best score, after any number of passes.
    stacks_ : int
        Number of batched fits that trained all candidates; absent if each had its own fits.
    metadata_ : dict
        ``n_models`` (candidates), ``partial_fit_calls`` (passes of all candidates, of one split),
        and ``brackets``.
    history_ : list of dict
        ``candidate``, ``bracket``, ``passes`` and ``mean_test_score`` of each rung reached.

    Notes
    -----
    L. Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization",
    JMLR 18, 2018; "A system for massively parallel hyperparameter tuning", MLSys 2020.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> from daskml_dist.model_selection import HyperbandSearchCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> values = {"alpha": loguniform(1e-6, 1e-1)}
    >>> clf = SGDClassifier(tol=None, random_state=0)
    >>> search = HyperbandSearchCV(clf, values, max_iter=9, random_state=0).fit(X, y)
    >>> search.metadata["n_models"], bool(search.best_score_ > 0.95)
    (17, True)
    """

    param_distributions: Any
    max_iter: int
    factor: float
    random_state: Any
    patience: Any
    tol: float
    _has_sklearn_peer = False
    _keeps_sides = True

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        # R and eta of Hyperband's paper, which determine the brackets.
        max_iter: int = 27,
        factor: float = 3,
        # Scores, splits and the refit, as in the other searches.
        scoring: Any = None,
        cv: Any = None,
        refit: Any = True,
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        # Stops a candidate that no longer improves, in addition to the brackets.
        patience: Any = False,
        tol: float = 0.001,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.max_iter = max_iter
        self.factor = factor
        self.scoring = scoring
        self.cv = cv
        self.refit = refit
        self.random_state = random_state
        self.error_score = error_score
        self.return_train_score = return_train_score
        self.patience = patience
        self.tol = tol
        self.verbose = verbose

    @property
    def metadata(self) -> dict[str, Any]:
        """Plan of a fit: ``n_models``, ``partial_fit_calls`` at most, and ``brackets``."""
        brackets = self._plan_brackets()
        return {
            "n_models": sum(bracket.n_models for bracket in brackets),
            "partial_fit_calls": sum(bracket.calls for bracket in brackets),
            "brackets": [bracket.describe() for bracket in brackets],
        }

    def _plan_brackets(self) -> list[Bracket]:
        """Return the brackets, after a check of the parameters that determine them."""
        check_count("max_iter", self.max_iter)
        check_number("factor", self.factor, lambda v: v > 1, "> 1")
        self._check_patience()
        return plan_brackets(int(self.max_iter), float(self.factor))

    @property
    def _promotion_factor(self) -> float | None:
        """Return the `factor` of `PromotionLadder`: one in `factor` candidates is promoted."""
        return float(self.factor)

    def _stops_at(self, scores: Mapping[int, float]) -> bool:
        """Return whether to stop a candidate, given its scores by passes."""
        return bool(self.patience) and has_plateaued(scores, int(self.patience), float(self.tol))

    def _check_patience(self) -> None:
        check_number("tol", self.tol)
        if self.patience is not False and self.patience is not None:
            check_count("patience", self.patience, also="or False")

    def _can_batch(self) -> bool:
        """Return True: scikit-learn has no such search, not even for rows in memory."""
        return True

    def _check_refit(self) -> None:
        """Raise an error for several scores: brackets keep candidates by one score."""
        if isinstance(self.scoring, list | tuple | set | dict):
            raise InvalidParameterError(
                f"scoring={self.scoring!r}: Hyperband keeps candidates by one score. Name one."
            )

    def _list_candidates(self) -> Sequence[Mapping[str, Any]]:
        """Return the parameters of the candidates of all brackets, in the order of these."""
        # One draw for all brackets: from lists of values, no combination is drawn twice until all
        # have been.
        n = sum(bracket.n_models for bracket in self._plan_brackets())
        with warnings.catch_warnings():
            # A grid with fewer candidates than the brackets need: some are repeated below.
            warnings.filterwarnings("ignore", "The total space of parameters")
            candidates = list(
                model_selection.ParameterSampler(
                    self.param_distributions, n, random_state=self.random_state
                )
            )
        return [candidates[i % len(candidates)] for i in range(n)]

    def _make_candidate(self, params: Mapping[str, Any]) -> Any:
        estimator = super()._make_candidate(params)
        if takes_dask_collections(estimator) and "max_iter" in estimator.get_params(deep=False):
            # A schedule of learning rates depends on the number of passes: the same for all rungs.
            estimator.set_params(max_iter=int(self.max_iter))
        return estimator

    def _search(self, splits: Splits, scorers: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        candidates, brackets = self._check_candidates(), self._plan_brackets()
        if any("max_iter" in params for params in candidates):
            raise InvalidParameterError(
                "param_distributions names max_iter, which Hyperband decides. Leave it out."
            )
        self._check_learns_by_passes()
        # The first partial_fit needs all labels as an argument: a block may not contain each of
        # them.
        self._classes = splits.find_labels() if is_classifier(self.estimator) else None
        # Brackets with the numbers of their candidates, which are consecutive.
        assigned, first = [], 0
        for bracket in brackets:
            assigned.append((bracket, list(range(first, first + bracket.n_models))))
            first += bracket.n_models
        fits = self._train_candidates(splits, candidates, assigned, dict(scorers))
        passes = [0] * len(candidates)
        for record in self.history_:  # in order of time: the last rung that each reached stays
            passes[record["candidate"]] = record["passes"]
        numbers = [
            bracket.number for bracket, bracket_candidates in assigned for _ in bracket_candidates
        ]
        self.metadata_ = {
            "n_models": len(candidates),
            "partial_fit_calls": self._calls,
            "brackets": [bracket.describe() for bracket in brackets],
        }
        return make_cv_results(
            candidates, [fits[i] for i in range(len(candidates))],
            train_score=bool(self.return_train_score),
            extra_columns={"bracket": numbers, "partial_fit_calls": passes},
        )  # fmt: skip

    def _check_learns_by_passes(self) -> None:
        """Raise `InvalidParameterError` for models that further passes over the same rows skew.

        Naive Bayes adds up counts: after k passes it is the fit of every row k times, in which
        the smoothing that candidates differ by weighs a k-th.
        """
        model = self.estimator
        if getattr(model, "_adds_up_rows", False) or isinstance(model, _COUNTING_MODELS):
            raise InvalidParameterError(
                f"{type(self).__name__} trains candidates pass by pass, but "
                f"{type(model).__name__} learns from a single pass: another pass would count the "
                "same rows again. Use RandomizedSearchCV, or HalvingRandomSearchCV, which gives "
                "candidates more rows."
            )

    def _train_candidates(
        self, splits: Splits, candidates: Sequence[Mapping[str, Any]],
        brackets: list[tuple[Bracket, list[int]]], scorers: dict[str, Any],
    ) -> dict[int, list[SplitFit]]:  # fmt: skip
        """Return the fits of each candidate after its last pass, one for each split.

        In a batched fit if possible, else as tasks if estimators need gathered rows and there is a
        cluster, else one after the other.
        """
        estimators = [self._make_candidate(params) for params in candidates]
        options = {"train_score": bool(self.return_train_score), "error_score": self.error_score}
        names = name_scores(self.scoring)
        if names is not None and (
            batched := begin_batched_training(estimators, splits, names, scorers, **options)
        ):
            with batched:
                self.stacks_ = batched.n_batches
                return self._train_in_turns(batched, brackets)
        if not hasattr(estimators[0], "partial_fit"):
            raise InvalidParameterError(
                f"Hyperband trains candidates pass by pass, but {type(estimators[0]).__name__} "
                "has no partial_fit. Use HalvingRandomSearchCV with a resource."
            )
        # Estimators of other packages need the rows of a side in one piece: on a worker, by tasks,
        # or, without a cluster, in this process.
        lazy = splits.codes is None
        if lazy and not all(map(takes_dask_collections, estimators)):
            if (client := current_client()) is not None:
                # ASHA (algorithm 2 of the MLSys paper): no candidate waits for others of its rung.
                training = AsyncTraining(
                    client, estimators, brackets, self._promotion_factor, splits, scorers,
                    self._classes, **options, stops=self._stops_at,
                )  # fmt: skip
                training.run()
                self.history_, self._calls = training.history, training.calls
                return training.fits
            sides: SplitSides = _gather_splits(splits)
        else:
            sides = splits
        by_passes = PartialFitTraining(estimators, sides, scorers, self._classes, **options)
        return self._train_in_turns(by_passes, brackets)

    def _train_in_turns(
        self, training: CandidateTraining, brackets: list[tuple[Bracket, list[int]]]
    ) -> dict[int, list[SplitFit]]:
        """Train all brackets side by side, and return the last fits of each candidate."""
        # Candidates of each bracket that no rung has dropped yet.
        candidates_left = {bracket.number: candidates for bracket, candidates in brackets}
        fits: dict[int, list[SplitFit]] = {}
        self.history_, self._calls = [], 0
        # At each number of passes at which any bracket has a rung, candidates of all brackets are
        # trained up to it, so that each pass of a batched fit trains as many candidates as
        # possible.
        for passes in sorted({passes for bracket, _ in brackets for _, passes in bracket.rungs}):
            in_training = [i for candidates in candidates_left.values() for i in candidates]
            if not in_training:
                break
            report_phase(f"rung at pass {passes}/{self.max_iter}, {len(in_training)} candidates")
            self._calls += training.advance(in_training, passes)
            at_rung = [
                bracket
                for bracket, _ in brackets
                if candidates_left[bracket.number] and any(passes == p for _, p in bracket.rungs)
            ]
            scored = [i for bracket in at_rung for i in candidates_left[bracket.number]]
            # Replaces the fits of earlier rungs: those after a candidate's last pass remain.
            fits.update(zip(scored, training.score(scored), strict=True))
            for bracket in at_rung:
                candidates_left[bracket.number] = self._drop_candidates(
                    bracket, passes, candidates_left[bracket.number], fits
                )
        return fits

    def _drop_candidates(
        self, bracket: Bracket, passes: int, candidates: list[int], fits: dict[int, list[SplitFit]]
    ) -> list[int]:
        """Record the scores of a rung's candidates; return the best, which continue training."""
        scores = [float(np.mean([fit.test["score"] for fit in fits[i]])) for i in candidates]
        records = []
        for i, score in zip(candidates, scores, strict=True):
            facts: dict[str, Any] = {"candidate": i, "bracket": bracket.number}
            self.history_.append({**facts, "passes": passes, "mean_test_score": score})
            records.append({**facts, "resource": passes, "score": score})
        report_rung(f"bracket {bracket.number} at pass {passes}", records)
        # top_k of Hyperband's algorithm 1. After a bracket's last rung no candidate continues.
        later = [n for n, n_passes in bracket.rungs if n_passes > passes]
        best = find_best_scores(np.array(scores), later[0] if later else 0)
        # From the whole history, since `patience` may span several rungs.
        so_far: dict[int, dict[int, float]] = {i: {} for i in candidates}
        for record in self.history_:
            if record["candidate"] in so_far:
                so_far[record["candidate"]][record["passes"]] = record["mean_test_score"]
        numbers = [candidates[k] for k in best if not np.isnan(scores[k])]  # NaN: a failed fit
        return [i for i in numbers if not self._stops_at(so_far[i])]

    def _fit_best(self, splits: Splits, best: Any) -> Any:
        """Return the best candidate, trained on all rows for the passes when it was scored."""
        # With another number of passes it would not be the model that had the best score.
        passes = int(self.cv_results_["partial_fit_calls"][self.best_index_])
        if hasattr(self, "stacks_"):
            # Candidates of batched fits count passes by max_iter.
            return splits.fit_to_all_rows(best.set_params(max_iter=passes))
        return splits.fit_to_all_rows(
            best, partial(_train_to_pass, classes=self._classes, last=passes)
        )

    def _as_sklearns(self) -> Any:
        """Return a search of scikit-learn's with the same results."""
        # scikit-learn has no Hyperband; its randomised search can hold the results.
        twin = model_selection.RandomizedSearchCV(
            self.estimator, self.param_distributions, n_iter=len(self._list_candidates()),
            scoring=self.scoring, cv=self.cv, refit=self.refit, random_state=self.random_state,
            error_score=self.error_score, return_train_score=self.return_train_score,
        )  # fmt: skip
        search = super()._as_sklearns()
        fitted = {name: value for name, value in vars(search).items() if name.endswith("_")}
        vars(twin).update(fitted)
        return twin


class IncrementalSearchCV(HyperbandSearchCV):
    """Search that trains candidates in parallel, and continues with fewer and fewer of them.

    Candidates are scored after every `fits_per_score` passes, and the best continue, their number
    falling by `decay_rate`; one whose score has not risen for `patience` passes is stopped.
    Candidates are trained as by :class:`HyperbandSearchCV`, without a choice of brackets.

    Parameters
    ----------
    estimator : estimator
        Linear by gradient steps, or with ``partial_fit``, a call of which is a pass; not naive
        Bayes, which learns all in one pass.
    param_distributions : dict or list of dict
        Lists of values, or distributions, by parameter.
    n_initial_parameters : int, default=10
        Number of candidates that are drawn.
    decay_rate : float or None, default=1.0
        After k scores ``n_initial_parameters * (1 + k)**-decay_rate`` candidates remain; None: all.
    patience : int or False, default=False
        Passes after which a candidate whose score has not risen is stopped.
    tol : float, default=0.001
        Rise of the score within `patience` passes below which it counts as not risen.
    fits_per_score : int, default=1
        Number of passes between scores.
    max_iter : int, default=100
        Passes of a candidate at most.
    scoring, cv, refit, random_state, error_score, return_train_score, verbose
        As in :class:`HyperbandSearchCV`.

    Attributes
    ----------
    cv_results_, best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, \
refit_time_, multimetric_, stacks_, metadata_, history_
        As in :class:`HyperbandSearchCV`; there is one bracket.

    Notes
    -----
    Parameters have the names and meaning of ``dask_ml.model_selection.IncrementalSearchCV``, except
    that candidates are scored by cross-validation instead of one held-out part of the rows.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> from daskml_dist.model_selection import IncrementalSearchCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> clf, values = SGDClassifier(tol=None, random_state=0), {"alpha": loguniform(1e-6, 1e-1)}
    >>> search = IncrementalSearchCV(clf, values, max_iter=5, cv=3, random_state=0).fit(X, y)
    >>> [n for n, passes in search.metadata_["brackets"][0]["rungs"]]
    [10, 5, 4, 3, 2]
    """

    n_initial_parameters: int
    decay_rate: float | None
    fits_per_score: int
    #: The number of candidates falls from rung to rung, not by one factor.
    _promotion_factor = None

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        # Number of candidates, and how fast it falls.
        n_initial_parameters: int = 10,
        decay_rate: float | None = 1.0,
        # When a candidate is stopped, or scored.
        patience: Any = False,
        tol: float = 0.001,
        fits_per_score: int = 1,
        max_iter: int = 100,
        # Scores, splits and the refit, as in the other searches.
        scoring: Any = None,
        cv: Any = None,
        refit: Any = True,
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.n_initial_parameters = n_initial_parameters
        self.decay_rate = decay_rate
        self.patience = patience
        self.tol = tol
        self.fits_per_score = fits_per_score
        self.max_iter = max_iter
        self.scoring = scoring
        self.cv = cv
        self.refit = refit
        self.random_state = random_state
        self.error_score = error_score
        self.return_train_score = return_train_score
        self.verbose = verbose

    def _plan_brackets(self) -> list[Bracket]:
        for name in ("n_initial_parameters", "fits_per_score", "max_iter"):
            check_count(name, getattr(self, name))
        if self.decay_rate is not None:
            check_number("decay_rate", self.decay_rate)
        self._check_patience()
        if self.patience and self.patience < self.fits_per_score:
            raise InvalidParameterError(
                f"patience={self.patience} passes is less than the number of passes between "
                f"scores, fits_per_score={self.fits_per_score}. Raise it."
            )
        decay = 0.0 if self.decay_rate is None else float(self.decay_rate)  # 0: all continue
        n_models, every = int(self.n_initial_parameters), int(self.fits_per_score)
        return [plan_decaying_bracket(n_models, int(self.max_iter), decay, every)]


def _train_to_pass(
    estimator: Any, X: Any, y: Any, params: dict[str, Any], classes: NDArray[Any] | None, last: int
) -> Any:
    """Return an estimator trained for `last` passes over some rows."""
    model = ResumableModel(estimator)
    train_by_passes(model, X, y, params, classes, last)
    if model.error is not None:
        raise model.error
    return model.estimator


def _gather_splits(splits: Splits) -> _GatheredSplits:
    """Return splits of lazy rows, computed into memory: for estimators that need gathered rows."""
    try:
        # One call for all sides, so that each block is read once.
        sides = compute(*map(splits.rows.gather_split, range(splits.n_splits)))
    except Exception as error:
        raise splits.rows.make_unread_error(error) from error
    return _GatheredSplits(splits, sides)


class _GatheredSplits:
    """Both sides of all splits in memory, as `PartialFitTraining` takes them (`SplitSides`).

    Parameters
    ----------
    splits : Splits
    split_sides : sequence of ((X, y, ...), (X, y, ...))
        Training and test side of each split.
    """

    def __init__(self, splits: Splits, split_sides: Sequence[Any]) -> None:
        self.n_splits, self._make_params = splits.n_splits, splits.make_params
        self._split_sides = split_sides

    def select_side(self, split: int, role: int) -> tuple[Any, Any, dict[str, Any]]:
        """Return the rows, targets and arguments of ``fit`` of one side of a split."""
        X, y, *cut = self._split_sides[split][0 if role == TRAIN else 1]
        return X, y, self._make_params(cut)
