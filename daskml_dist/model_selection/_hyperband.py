"""Searches that train candidates pass by pass, and stop most of them early: Hyperband and others.

How candidates are trained on is in `_candidate_training.py`; here is which of them, and how far.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn import model_selection, naive_bayes
from sklearn.base import is_classifier

from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import tell, tell_rung
from daskml_dist.errors import InvalidParameterError
from daskml_dist.model_selection._candidate_training import (
    AsyncTraining,
    Bracket,
    CandidateTraining,
    PartialFitTraining,
    ResumableModel,
    begin_batched_training,
    find_best_scores,
    has_plateaued,
    plan_brackets,
    plan_decaying_bracket,
    train_by_passes,
)
from daskml_dist.model_selection._fold_rows import TRAIN
from daskml_dist.model_selection._search import DaskSearch, make_cv_results
from daskml_dist.model_selection._validation import (
    SplitFit,
    Splits,
    takes_dask_collections,
)
from daskml_dist.parameters.checks import check_count, check_number

#: scikit-learn's models whose ``partial_fit`` adds up counts of rows.
_COUNTING_MODELS = (
    naive_bayes.BernoulliNB,
    naive_bayes.CategoricalNB,
    naive_bayes.ComplementNB,
    naive_bayes.GaussianNB,
    naive_bayes.MultinomialNB,
)


class HyperbandSearchCV(DaskSearch, model_selection.RandomizedSearchCV):
    """Search by Hyperband: brackets of successive halving over passes, from daring to patient.

    Candidates are trained on from where they were. Those of
    :class:`~daskml_dist.linear_model.SGDClassifier` and
    :class:`~daskml_dist.linear_model.SGDRegressor` are columns of one fit, all brackets side by
    side; others with ``partial_fit`` are trained one after the other where they know Dask
    collections, and as tasks on the workers where they do not: these are promoted as soon as they
    are among the best of their rung (ASHA), so that no worker waits.

    Parameters
    ----------
    estimator : estimator
        Linear by gradient steps, or with ``partial_fit``, a call of which is a pass; not naive
        Bayes, which learns all in one pass.
    param_distributions : dict or list of dict
        Lists of values, or distributions, by parameter.
    max_iter : int, default=27
        Passes of a candidate at most; with `factor` it says how many candidates there are.
    factor : float, default=3
        Of so many candidates one goes on, for so many times the passes.
    scoring : str, callable or None
        One score.
    cv : int, splitter, iterable of (train, test) row numbers, or None
        None: 5 folds, stratified for a classifier.
    refit : bool, default=True
        Fit the best to all rows, for as many passes as it was scored after.
    random_state : int, RandomState or None
        Draws the candidates.
    error_score : "raise" or float, default=nan
        What a failed fit scores.
    return_train_score : bool, default=False
    patience : int or False, default=False
        A candidate whose score, at a rung, is no better than it was at least so many passes before
        does not go on.
    tol : float, default=0.001
        What a score must have risen by in `patience` passes.
    verbose : int, default=0
        1: a live line of progress, and one of summary; 2 or more: a line a rung too.

    Attributes
    ----------
    cv_results_ : dict of str to ndarray or list
        scikit-learn's columns, where each candidate came to, with ``bracket`` and
        ``partial_fit_calls``, the passes that it made.
    best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, refit_time_, \
multimetric_
        scikit-learn's. The best is the one of the best score after whatever passes.
    stacks_ : int
        Fits that all candidates were; absent where each had its own.
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

    _has_sklearn_peer = False
    _keeps_sides = True

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        max_iter: int = 27,
        factor: float = 3,
        scoring: Any = None,
        cv: Any = None,
        refit: Any = True,
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        patience: Any = False,
        tol: float = 0.001,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.max_iter = max_iter
        self.factor = factor
        self.patience = patience
        self.tol = tol
        self.scoring = scoring
        self.cv = cv
        self.refit = refit
        self.random_state = random_state
        self.error_score = error_score
        self.return_train_score = return_train_score
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
        check_count("max_iter", self.max_iter)
        check_number("factor", self.factor, lambda v: v > 1, "> 1")
        self._check_patience()
        return plan_brackets(int(self.max_iter), float(self.factor))

    @property
    def _promotion_factor(self) -> float | None:
        """Return the number of candidates of which one is promoted; None: as the rungs have it."""
        return float(self.factor)

    def _stops_at(self, scores: Mapping[int, float]) -> bool:
        """Return whether a candidate with these scores, by passes, is trained no further."""
        return bool(self.patience) and has_plateaued(scores, int(self.patience), float(self.tol))

    def _check_patience(self) -> None:
        check_number("tol", self.tol)
        if self.patience is not False and self.patience is not None:
            check_count("patience", self.patience, also="or False")

    def _can_batch(self) -> bool:
        """Return True: whatever the rows, scikit-learn has no such search."""
        return True

    def _check_refit(self) -> None:
        if isinstance(self.scoring, list | tuple | set | dict):
            raise InvalidParameterError(
                f"scoring={self.scoring!r}: Hyperband keeps candidates by one score. Name one."
            )

    def _list_candidates(self) -> Sequence[Mapping[str, Any]]:
        n = sum(bracket.n_models for bracket in self._plan_brackets())
        with warnings.catch_warnings():
            # Where there are fewer candidates than brackets ask for, some are tried again.
            warnings.filterwarnings("ignore", "The total space of parameters")
            drawn = list(
                model_selection.ParameterSampler(
                    self.param_distributions, n, random_state=self.random_state
                )
            )
        return [drawn[i % len(drawn)] for i in range(n)]

    def _make_candidate(self, params: Mapping[str, Any]) -> Any:
        estimator = super()._make_candidate(params)
        if takes_dask_collections(estimator) and "max_iter" in estimator.get_params(deep=False):
            # Schedules of learning rates are made for the longest training.
            estimator.set_params(max_iter=int(self.max_iter))
        return estimator

    def _search(self, splits: Splits, scorers: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        candidates, brackets = self._check_candidates(), self._plan_brackets()
        if any("max_iter" in params for params in candidates):
            raise InvalidParameterError(
                "param_distributions names max_iter, which Hyperband decides. Leave it out."
            )
        self._check_learns_by_passes()
        self._classes = splits.find_labels() if is_classifier(self.estimator) else None
        of_bracket, first = [], 0
        for bracket in brackets:
            of_bracket.append((bracket, list(range(first, first + bracket.n_models))))
            first += bracket.n_models
        fits = self._train_candidates(splits, candidates, of_bracket, dict(scorers))
        passes = [0] * len(candidates)
        for told in self.history_:
            passes[told["candidate"]] = told["passes"]
        numbers = [bracket.number for bracket, some in of_bracket for _ in some]
        self.metadata_ = {
            "n_models": len(candidates),
            "partial_fit_calls": self._calls,
            "brackets": [bracket.describe() for bracket in brackets],
        }
        return make_cv_results(
            candidates, [fits[i] for i in range(len(candidates))],
            train_score=bool(self.return_train_score),
            more={"bracket": numbers, "partial_fit_calls": passes},
        )  # fmt: skip

    def _check_learns_by_passes(self) -> None:
        """Raise `InvalidParameterError` for models that further passes over the same rows skew.

        Naive Bayes adds up counts: after k passes it is the fit of every row k times, in which
        the smoothing that candidates differ by weighs a k-th.
        """
        model = self.estimator
        if getattr(model, "_adds_up_rows", False) or isinstance(model, _COUNTING_MODELS):
            raise InvalidParameterError(
                f"{type(self).__name__} trains candidates on, pass by pass, and "
                f"{type(model).__name__} learns all in one: a further pass counts the same rows "
                "again. Use RandomizedSearchCV, or HalvingRandomSearchCV, which gives candidates "
                "more rows."
            )

    def _train_candidates(
        self, splits: Splits, candidates: Sequence[Mapping[str, Any]],
        brackets: list[tuple[Bracket, list[int]]], scorers: dict[str, Any],
    ) -> dict[int, list[SplitFit]]:  # fmt: skip
        """Return the fits of each candidate after its last pass, one a split."""
        estimators = [self._make_candidate(params) for params in candidates]
        options = {"train_score": bool(self.return_train_score), "error_score": self.error_score}
        names = self._name_scores()
        if names is not None and (
            stacks := begin_batched_training(estimators, splits, names, scorers, **options)
        ):
            with stacks:
                self.stacks_ = stacks.n_stacks
                return self._train_in_turns(stacks, brackets)
        if not hasattr(estimators[0], "partial_fit"):
            raise InvalidParameterError(
                f"Hyperband trains candidates on, pass by pass, and {type(estimators[0]).__name__} "
                "has no partial_fit. Use HalvingRandomSearchCV with a resource."
            )
        lazy = splits.codes is None
        if lazy and not all(map(takes_dask_collections, estimators)):
            if (client := _find_client()) is not None:
                training = AsyncTraining(
                    client, estimators, brackets, self._promotion_factor, splits, scorers,
                    self._classes, **options, stops=self._stops_at,
                )  # fmt: skip
                training.run()
                self.history_, self._calls = training.history, training.calls
                return training.fits
            splits = _gather_splits(splits)
        by_passes = PartialFitTraining(estimators, splits, scorers, self._classes, **options)
        return self._train_in_turns(by_passes, brackets)

    def _train_in_turns(
        self, training: CandidateTraining, brackets: list[tuple[Bracket, list[int]]]
    ) -> dict[int, list[SplitFit]]:
        """Train all brackets side by side: at each number of passes, some reach their next rung."""
        left = {bracket.number: candidates for bracket, candidates in brackets}
        fits: dict[int, list[SplitFit]] = {}
        self.history_, self._calls = [], 0
        for passes in sorted({passes for bracket, _ in brackets for _, passes in bracket.rungs}):
            going = [i for candidates in left.values() for i in candidates]
            if not going:
                break
            tell(f"rung at pass {passes}/{self.max_iter}, {len(going)} candidates")
            self._calls += training.advance(going, passes)
            at_rung = [b for b, _ in brackets if passes in [p for _, p in b.rungs]]
            at_rung = [bracket for bracket in at_rung if left[bracket.number]]
            scored = [i for bracket in at_rung for i in left[bracket.number]]
            fits.update(zip(scored, training.score(scored), strict=True))
            for bracket in at_rung:
                left[bracket.number] = self._drop_candidates(
                    bracket, passes, left[bracket.number], fits
                )
        return fits

    def _drop_candidates(
        self, bracket: Bracket, passes: int, candidates: list[int], fits: dict[int, list[SplitFit]]
    ) -> list[int]:
        """Return the candidates of a rung that are trained on, and record the scores of all."""
        scores = [float(np.mean([fit.test["score"] for fit in fits[i]])) for i in candidates]
        told = []
        for i, score in zip(candidates, scores, strict=True):
            facts: dict[str, Any] = {"candidate": i, "bracket": bracket.number}
            self.history_.append({**facts, "passes": passes, "mean_test_score": score})
            told.append({**facts, "resource": passes, "score": score})
        tell_rung(f"bracket {bracket.number} at pass {passes}", told)
        later = [n for n, more in bracket.rungs if more > passes]
        best = find_best_scores(np.array(scores), later[0] if later else 0)
        known: dict[int, dict[int, float]] = {i: {} for i in candidates}
        for one in self.history_:
            if one["candidate"] in known:
                known[one["candidate"]][one["passes"]] = one["mean_test_score"]
        kept = [candidates[k] for k in best if not np.isnan(scores[k])]
        return [i for i in kept if not self._stops_at(known[i])]

    def _refit_best(self, X: Any, y: Any, params: Mapping[str, Any]) -> None:
        begin = time.perf_counter()
        passes = int(self.cv_results_["partial_fit_calls"][self.best_index_])
        estimator = self._make_candidate(self.best_params_)
        if hasattr(self, "stacks_"):
            found = estimator.set_params(max_iter=passes).fit(X, y, **params)
        elif takes_dask_collections(estimator) or not any(map(is_dask, (X, y, *params.values()))):
            found = _train_to_pass(estimator, X, y, dict(params), self._classes, passes)
        else:
            task = delayed(_train_to_pass, pure=False)
            found = task(estimator, X, y, dict(params), self._classes, passes).compute()
        self.best_estimator_ = found
        self.refit_time_ = time.perf_counter() - begin
        if hasattr(found, "feature_names_in_"):
            self.feature_names_in_ = found.feature_names_in_

    def _as_sklearns(self) -> Any:
        """Return a search of scikit-learn's with the same results."""
        twin = model_selection.RandomizedSearchCV(
            self.estimator, self.param_distributions, n_iter=len(self._list_candidates()),
            scoring=self.scoring, cv=self.cv, refit=self.refit, random_state=self.random_state,
            error_score=self.error_score, return_train_score=self.return_train_score,
        )  # fmt: skip
        own = super()._as_sklearns()
        fitted = {name: value for name, value in vars(own).items() if name.endswith("_")}
        vars(twin).update(fitted)
        return twin


class IncrementalSearchCV(HyperbandSearchCV):
    """Search by passes: candidates are trained side by side, scored, and ever fewer go on.

    Each pass fewer candidates go on, by `decay_rate`; and one whose score has not risen for
    `patience` passes is stopped. How candidates are trained is told by
    :class:`HyperbandSearchCV`, which needs no such choice.

    Parameters
    ----------
    estimator : estimator
        Linear by gradient steps, or with ``partial_fit``, a call of which is a pass; not naive
        Bayes, which learns all in one pass.
    param_distributions : dict or list of dict
        Lists of values, or distributions, by parameter.
    n_initial_parameters : int, default=10
        Candidates, which are drawn.
    decay_rate : float or None, default=1.0
        After k scores ``n_initial_parameters * (1 + k)**-decay_rate`` candidates go on; None: all.
    patience : int or False, default=False
        Passes after which a candidate whose score has not risen is stopped.
    tol : float, default=0.001
        What a score must have risen by in `patience` passes.
    fits_per_score : int, default=1
        Passes from score to score.
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
    Names and meaning are those of ``dask_ml.model_selection.IncrementalSearchCV``, but that
    candidates are scored by cross-validation, not by one held-out part of the rows.

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

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_initial_parameters: int = 10,
        decay_rate: float | None = 1.0,
        patience: Any = False,
        tol: float = 0.001,
        fits_per_score: int = 1,
        max_iter: int = 100,
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
                f"patience={self.patience} passes are less than there are from score to score, "
                f"fits_per_score={self.fits_per_score}. Raise it."
            )
        decay = 0.0 if self.decay_rate is None else float(self.decay_rate)
        n_models, every = int(self.n_initial_parameters), int(self.fits_per_score)
        return [plan_decaying_bracket(n_models, int(self.max_iter), decay, every)]

    @property
    def _promotion_factor(self) -> float | None:
        return None


def _train_to_pass(
    estimator: Any, X: Any, y: Any, params: dict[str, Any], classes: NDArray[Any] | None, last: int
) -> Any:
    """Return an estimator trained for `last` passes over some rows."""
    model = ResumableModel(estimator)
    train_by_passes(model, X, y, params, classes, last)
    if model.error is not None:
        raise model.error
    return model.estimator


def _gather_splits(splits: Splits) -> Splits:
    """Return splits of lazy rows that do not lie on a cluster, in memory."""
    n = splits.n_splits
    try:
        found = compute(*[splits.rows.gather_split(split) for split in range(n)])
    except Exception as error:
        raise splits.rows.make_unread_error(error) from error
    return _GatheredSplits(splits, found)  # type: ignore[return-value]


class _GatheredSplits:
    """Both sides of all splits, in memory.

    Parameters
    ----------
    splits : Splits
    sides : sequence of ((X, y, ...), (X, y, ...))
    """

    def __init__(self, splits: Splits, sides: Sequence[Any]) -> None:
        self.n_splits, self._make_params = splits.n_splits, splits.make_params
        self._sides = sides

    def side(self, split: int, role: int) -> tuple[Any, Any, dict[str, Any]]:
        """Return the rows, targets and arguments of ``fit`` of one side of a split."""
        X, y, *cut = self._sides[split][0 if role == TRAIN else 1]
        return X, y, self._make_params(cut)


def _find_client() -> Any | None:
    """Return the current client of a cluster, if there is one."""
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None
