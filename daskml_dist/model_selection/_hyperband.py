"""Hyperband: how long to try a candidate before others, without knowing how soon they differ."""

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
from daskml_dist.model_selection._brackets import Bracket, best_of, brackets_of, has_plateaued
from daskml_dist.model_selection._checks import knows_dask
from daskml_dist.model_selection._results import table_of
from daskml_dist.model_selection._resumed import (
    ByPasses,
    ResumableModel,
    Resumed,
    pass_over,
    resumed_stacks,
)
from daskml_dist.model_selection._search import SearchOnDask
from daskml_dist.model_selection._thinning import labels_of
from daskml_dist.model_selection._validation import Fitted, Splits
from daskml_dist.parameters.checks import check_count, check_number

__all__ = ["HyperbandSearchCV"]

#: scikit-learn's models whose ``partial_fit`` adds up counts of rows.
_NAIVE_BAYES = (
    naive_bayes.BernoulliNB,
    naive_bayes.CategoricalNB,
    naive_bayes.ComplementNB,
    naive_bayes.GaussianNB,
    naive_bayes.MultinomialNB,
)


class HyperbandSearchCV(SearchOnDask, model_selection.RandomizedSearchCV):
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

    _has_peer = False
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
        brackets = self._brackets()
        return {
            "n_models": sum(bracket.n_models for bracket in brackets),
            "partial_fit_calls": sum(bracket.calls for bracket in brackets),
            "brackets": [bracket.facts() for bracket in brackets],
        }

    def _brackets(self) -> list[Bracket]:
        check_count("max_iter", self.max_iter)
        check_number("factor", self.factor, lambda v: v > 1, "> 1")
        self._check_patience()
        return brackets_of(int(self.max_iter), float(self.factor))

    @property
    def _promoted_of(self) -> float | None:
        """Of so many candidates one is promoted; None: as the rungs have it."""
        return float(self.factor)

    def _stops(self, scores: Mapping[int, float]) -> bool:
        """Return whether a candidate of such scores, by passes, is trained on no more."""
        return bool(self.patience) and has_plateaued(scores, int(self.patience), float(self.tol))

    def _check_patience(self) -> None:
        check_number("tol", self.tol)
        if self.patience is not False and self.patience is not None:
            check_count("patience", self.patience, also="or False")

    def _stacks(self) -> bool:
        """True: whatever the rows, scikit-learn has no such search."""
        return True

    def _check_refit_on_dask(self) -> None:
        if isinstance(self.scoring, list | tuple | set | dict):
            raise InvalidParameterError(
                f"scoring={self.scoring!r}: Hyperband keeps candidates by one score. Name one."
            )

    def _candidates(self) -> Sequence[Mapping[str, Any]]:
        n = sum(bracket.n_models for bracket in self._brackets())
        with warnings.catch_warnings():
            # Where there are not so many, some are drawn again.
            warnings.filterwarnings("ignore", "The total space of parameters")
            drawn = list(
                model_selection.ParameterSampler(
                    self.param_distributions, n, random_state=self.random_state
                )
            )
        return [drawn[i % len(drawn)] for i in range(n)]

    def _candidate(self, params: Mapping[str, Any]) -> Any:
        estimator = super()._candidate(params)
        if knows_dask(estimator) and "max_iter" in estimator.get_params(deep=False):
            # What schedules know of the end.
            estimator.set_params(max_iter=int(self.max_iter))
        return estimator

    def _searched(
        self, splits: Splits, scorers: Mapping[str, Callable[..., Any]]
    ) -> dict[str, Any]:
        candidates, brackets = self._some_candidates(), self._brackets()
        if any("max_iter" in params for params in candidates):
            raise InvalidParameterError(
                "param_distributions names max_iter, which Hyperband decides. Leave it out."
            )
        self._check_learns_by_passes()
        self._classes = labels_of(splits) if is_classifier(self.estimator) else None
        of_bracket, first = [], 0
        for bracket in brackets:
            of_bracket.append((bracket, list(range(first, first + bracket.n_models))))
            first += bracket.n_models
        fits = self._trained(splits, candidates, of_bracket, dict(scorers))
        passes = [0] * len(candidates)
        for told in self.history_:
            passes[told["candidate"]] = told["passes"]
        numbers = [bracket.number for bracket, some in of_bracket for _ in some]
        self.metadata_ = {
            "n_models": len(candidates),
            "partial_fit_calls": self._calls,
            "brackets": [bracket.facts() for bracket in brackets],
        }
        return table_of(
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
        if getattr(model, "_adds_up_rows", False) or isinstance(model, _NAIVE_BAYES):
            raise InvalidParameterError(
                f"{type(self).__name__} trains candidates on, pass by pass, and "
                f"{type(model).__name__} learns all in one: a further pass counts the same rows "
                "again. Use RandomizedSearchCV, or HalvingRandomSearchCV, which gives candidates "
                "more rows."
            )

    def _trained(
        self, splits: Splits, candidates: Sequence[Mapping[str, Any]],
        brackets: list[tuple[Bracket, list[int]]], scorers: dict[str, Any],
    ) -> dict[int, list[Fitted]]:  # fmt: skip
        """Fits of each candidate where it came to, one a split."""
        estimators = [self._candidate(params) for params in candidates]
        options = {"train_score": bool(self.return_train_score), "error_score": self.error_score}
        names = self._names()
        if names is not None and (
            stacks := resumed_stacks(estimators, splits, names, scorers, **options)
        ):
            with stacks:
                self.stacks_ = stacks.n_stacks
                return self._halved(stacks, brackets)
        if not hasattr(estimators[0], "partial_fit"):
            raise InvalidParameterError(
                f"Hyperband trains candidates on, pass by pass, and {type(estimators[0]).__name__} "
                "has no partial_fit. Use HalvingRandomSearchCV with a resource."
            )
        lazy = splits.codes is None
        if lazy and not all(map(knows_dask, estimators)):
            if (client := _client()) is not None:
                from daskml_dist.model_selection._asha import Climb

                climb = Climb(
                    client, estimators, brackets, self._promoted_of, splits, scorers,
                    self._classes, **options, stops=self._stops,
                )  # fmt: skip
                climb.run()
                self.history_, self._calls = climb.told, climb.calls
                return climb.fits
            splits = _gathered(self.estimator, splits)
        by_passes = ByPasses(estimators, splits, scorers, self._classes, **options)
        return self._halved(by_passes, brackets)

    def _halved(
        self, runs: Resumed, brackets: list[tuple[Bracket, list[int]]]
    ) -> dict[int, list[Fitted]]:
        """All brackets side by side: at each number of passes, some come to their rung."""
        left = {bracket.number: candidates for bracket, candidates in brackets}
        fits: dict[int, list[Fitted]] = {}
        self.history_, self._calls = [], 0
        for passes in sorted({passes for bracket, _ in brackets for _, passes in bracket.rungs}):
            going = [i for candidates in left.values() for i in candidates]
            if not going:
                break
            tell(f"rung at pass {passes}/{self.max_iter}, {len(going)} candidates")
            self._calls += runs.advance(going, passes)
            at_rung = [b for b, _ in brackets if passes in [p for _, p in b.rungs]]
            at_rung = [bracket for bracket in at_rung if left[bracket.number]]
            scored = [i for bracket in at_rung for i in left[bracket.number]]
            fits.update(zip(scored, runs.scored(scored), strict=True))
            for bracket in at_rung:
                left[bracket.number] = self._kept(bracket, passes, left[bracket.number], fits)
        return fits

    def _kept(
        self, bracket: Bracket, passes: int, candidates: list[int], fits: dict[int, list[Fitted]]
    ) -> list[int]:
        """Candidates of a rung that go on."""
        scores = [float(np.mean([fit.test["score"] for fit in fits[i]])) for i in candidates]
        self.history_ += [
            {"candidate": i, "bracket": bracket.number, "passes": passes, "mean_test_score": score}
            for i, score in zip(candidates, scores, strict=True)
        ]
        told = [
            {"candidate": i, "bracket": bracket.number, "resource": passes, "score": score}
            for i, score in zip(candidates, scores, strict=True)
        ]
        tell_rung(f"bracket {bracket.number} at pass {passes}", told)
        later = [n for n, more in bracket.rungs if more > passes]
        best = best_of(np.array(scores), later[0] if later else 0)
        known: dict[int, dict[int, float]] = {i: {} for i in candidates}
        for one in self.history_:
            if one["candidate"] in known:
                known[one["candidate"]][one["passes"]] = one["mean_test_score"]
        kept = [candidates[k] for k in best if not np.isnan(scores[k])]
        return [i for i in kept if not self._stops(known[i])]

    def _refit(self, X: Any, y: Any, params: Mapping[str, Any]) -> None:
        begin = time.perf_counter()
        passes = int(self.cv_results_["partial_fit_calls"][self.best_index_])
        estimator = self._candidate(self.best_params_)
        if hasattr(self, "stacks_"):
            found = estimator.set_params(max_iter=passes).fit(X, y, **params)
        elif knows_dask(estimator) or not any(map(is_dask, (X, y, *params.values()))):
            found = _passed(estimator, X, y, dict(params), self._classes, passes)
        else:
            task = delayed(_passed, pure=False)
            found = task(estimator, X, y, dict(params), self._classes, passes).compute()
        self.best_estimator_ = found
        self.refit_time_ = time.perf_counter() - begin
        if hasattr(found, "feature_names_in_"):
            self.feature_names_in_ = found.feature_names_in_

    def _as_sklearns(self) -> Any:
        """A search of scikit-learn's that has found the same."""
        twin = model_selection.RandomizedSearchCV(
            self.estimator, self.param_distributions, n_iter=len(self._candidates()),
            scoring=self.scoring, cv=self.cv, refit=self.refit, random_state=self.random_state,
            error_score=self.error_score, return_train_score=self.return_train_score,
        )  # fmt: skip
        own = super()._as_sklearns()
        fitted = {name: value for name, value in vars(own).items() if name.endswith("_")}
        vars(twin).update(fitted)
        return twin


def _passed(
    estimator: Any, X: Any, y: Any, params: dict[str, Any], classes: NDArray[Any] | None, last: int
) -> Any:
    """An estimator after so many passes over some rows."""
    model = ResumableModel(estimator)
    pass_over(model, X, y, params, classes, last)
    if model.error is not None:
        raise model.error
    return model.estimator


def _gathered(estimator: Any, splits: Splits) -> Splits:
    """Splits of lazy rows that do not lie on a cluster, in memory."""
    n = splits.n_splits
    try:
        found = compute(*[splits.rows.gathered(split) for split in range(n)])
    except Exception as error:
        raise splits.rows.unread(error) from error
    return _InMemory(splits, found)  # type: ignore[return-value]


class _InMemory:
    """Both sides of all splits, in memory.

    Parameters
    ----------
    splits : Splits
    sides : sequence of ((X, y, ...), (X, y, ...))
    """

    def __init__(self, splits: Splits, sides: Sequence[Any]) -> None:
        self.n_splits, self._params, self._sides = splits.n_splits, splits.params, sides

    def side(self, split: int, role: int) -> tuple[Any, Any, dict[str, Any]]:
        """As of :class:`Splits`."""
        X, y, *cut = self._sides[split][role - 1]
        return X, y, self._params(cut)


def _client() -> Any | None:
    """The current client of a cluster, if there is one."""
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None
