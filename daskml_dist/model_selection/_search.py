"""Searches for the best parameters of an estimator: over a grid, drawn, and by successive halving.

Over Dask collections `DaskSearch` fits all candidates on all splits as one batch if the estimator
allows it (`_batched_fits.py`), and otherwise one by one or as tasks. Rows in memory are left to
scikit-learn's search, from which each class here derives, except that candidates which can be
batched are batched for them too.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import ceil, floor, log
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn import model_selection
from sklearn.base import clone, is_classifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.metrics import check_scoring, get_scorer
from sklearn.utils.metaestimators import available_if

from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.operation_progress import report_operation, report_phase, report_rung
from daskml_dist.errors import (
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
    NoCandidateError,
)
from daskml_dist.errors.sklearn_errors import translate_parameter_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.estimators.transformer import answer_lazily
from daskml_dist.metrics.scorers import get_scorers
from daskml_dist.model_selection._batched_fits import (
    can_batch_pipelines,
    can_fit_batched,
    fit_batched_or_pipelines,
    name_scores,
)
from daskml_dist.model_selection._validation import (
    SplitFit,
    Splits,
    check_cv,
    check_splitter,
    check_target,
    is_routing_metadata,
    prepare_inputs,
    resolve_score_weights,
    takes_dask_collections,
)
from daskml_dist.parameters.checks import (
    check_number,
    has_sklearns_callbacks,
    refuse_sklearns_callbacks,
    taking_client,
)

#: Parameters to try, one mapping for each candidate.
Candidates = Sequence[Mapping[str, Any]]


class DaskSearch(EstimatorMixin):
    """Base class of searches over Dask collections, with batched fits if candidates allow them.

    Precedes one of scikit-learn's searches among the bases, which searches over rows in memory.
    """

    estimator: Any
    scoring: Any
    refit: Any
    cv: Any
    error_score: Any
    return_train_score: bool
    verbose: Any
    #: Whether scikit-learn has a search of this kind, which can do the search of rows in memory.
    _has_sklearn_peer: ClassVar[bool] = True
    #: Whether the search itself keeps both sides of each split in the workers' memory.
    _keeps_sides: ClassVar[bool] = False

    @taking_client
    def fit(self, X: Any, y: Any = None, *, groups: Any = None, **params: Any) -> Self:
        """Score every candidate by cross-validation, and fit the best to all rows.

        Parameters
        ----------
        X, y, groups : dask Array or DataFrame, or in memory, of shape (n_rows, ...)
            `y` may name a column of X.
        client : distributed.Client, optional
            Client to compute with; the current one by default.
        **params
            Arguments of the estimator's ``fit``; `sample_weight` is split like X.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        X, y, groups, params = prepare_inputs(X, y, groups, params)
        lazy = any(map(is_dask, (X, y, groups, *params.values())))
        # Only scikit-learn's fits support routed metadata and scikit-learn's callbacks.
        needs_sklearn = self._has_sklearn_peer and (
            is_routing_metadata(params) or has_sklearns_callbacks(self)
        )
        if not lazy and (needs_sklearn or not self._can_batch()):
            fit_params = params if groups is None else {**params, "groups": groups}
            fitted: Self = super().fit(X, y, **fit_params)  # type: ignore[misc]
            return fitted
        # All checks come before the first pass over the rows.
        refuse_sklearns_callbacks(self)
        self._check_refit()
        check_target(self.estimator, y)
        check_cv(self.cv)
        with translate_parameter_errors():
            scorers = get_scorers(self.estimator, self.scoring)
            if self._has_sklearn_peer:
                self._validate_params()  # type: ignore[attr-defined]
        self.multimetric_ = list(scorers) != ["score"]  # the name that a single score is given
        if not resolve_score_weights(self.estimator, scorers, params, True):
            raise InvalidParameterError(
                "A search over Dask collections weights its scores by sample_weight. Request "
                "it: set_score_request(sample_weight=True) of the estimator, or of each scorer."
            )
        with report_operation(type(self).__name__, self.verbose):
            report_phase("splitting rows")
            splits = Splits(self.estimator, X, y, groups, params, self.cv)
            self.n_splits_ = splits.n_splits
            # Each fit of this package reads the rows, so the cluster keeps them for all fits if its
            # memory allows it. A batched fit holds the rows itself, and rows for other packages'
            # fits are gathered once.
            reads_once = (
                self._keeps_sides
                or can_fit_batched([self.estimator])
                or not takes_dask_collections(self.estimator)
            )
            with nullcontext(splits) if reads_once else splits.persist_rows() as splits:
                self.cv_results_ = self._search(splits, scorers)
                self.scorer_ = scorers if self.multimetric_ else scorers["score"]
                self._choose_best()
                if self.refit:
                    report_phase("fit of the best to all rows")
                    self._refit_best(splits)
        return self

    def _as_sklearns(self) -> Any:
        """Return the same search as an object of scikit-learn's class."""
        sklearn_class: Any = next(
            base for base in type(self).__mro__ if base.__module__.startswith("sklearn.")
        )
        search = sklearn_class.__new__(sklearn_class)
        vars(search).update(vars(self))
        # Scorers of this package are replaced by scikit-learn's of the same names.
        if hasattr(self, "best_estimator_") and not self.multimetric_:
            search.scorer_ = check_scoring(search.best_estimator_, self.scoring)
        elif hasattr(self, "scorer_") and (names := name_scores(self.scoring)) is not None:
            search.scorer_ = {name: get_scorer(score) for name, score in names.items()}
        return search

    def _list_candidates(self) -> Candidates:
        """Return the parameters to try."""
        raise NotImplementedError

    def _check_candidates(self) -> list[Mapping[str, Any]]:
        """Return the parameters to try, checked as by scikit-learn."""
        with translate_parameter_errors():
            candidates = list(self._list_candidates())
        if not candidates:
            raise InvalidParameterError(
                "No fits were performed: there are no candidates. Give some parameters to try."
            )
        return candidates

    def _search(self, splits: Splits, scorers: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        """Return the scores of all candidates, as ``cv_results_``."""
        candidates = self._check_candidates()
        fits = self._fit_candidates(splits, candidates, scorers)
        return make_cv_results(candidates, fits, train_score=bool(self.return_train_score))

    def _fit_candidates(
        self, splits: Splits, candidates: Candidates, scorers: Mapping[str, Callable[..., Any]]
    ) -> list[list[SplitFit]]:
        """Return one fit for each candidate and split, batched if possible."""
        report_phase(f"fits of {len(candidates)} candidates")
        estimators = [self._make_candidate(params) for params in candidates]
        train_score = bool(self.return_train_score)
        names = name_scores(self.scoring)
        if names is not None:
            batched = fit_batched_or_pipelines(
                estimators, splits, names, scorers, train_score=train_score,
                error_score=self.error_score,
            )  # fmt: skip
            if batched is not None:
                fits, self.stacks_ = batched
                return fits
        return splits.fit_splits(
            # `fit` has refused scorers that do not support weights.
            estimators, dict(scorers), train_score=train_score,
            error_score=self.error_score, weigh_scores=True,
        )  # fmt: skip

    def _can_batch(self) -> bool:
        """Return whether rows in memory are for a batched fit rather than for scikit-learn's fits.

        Judged only by the estimator: inspecting the candidates would draw them, which changes the
        state of a `random_state` that is a generator.
        """
        estimators = [self.estimator]
        return name_scores(self.scoring) is not None and (
            can_fit_batched(estimators) or can_batch_pipelines(estimators)
        )

    def _check_refit(self) -> None:
        """Raise an error if `refit` does not name the score that selects the best of several."""
        has_several_scores = isinstance(self.scoring, list | tuple | set | dict)
        names = list(self.scoring) if has_several_scores else []
        chooses = self.refit is False or callable(self.refit) or self.refit in names
        if has_several_scores and not chooses:
            raise InvalidParameterError(
                "For multi-metric scoring, the parameter refit must be set to a scorer key, a "
                f"callable or False: refit={self.refit!r} is not one of {names}."
            )

    def _choose_best(self) -> None:
        """Set the attributes of the best candidate; none for several scores without a refit."""
        results = self.cv_results_
        if not self.refit and self.multimetric_:
            return
        name = self.refit if self.multimetric_ else "score"
        if callable(self.refit):
            # A function selects a candidate, not a score: there is no `best_score_`, as in
            # scikit-learn.
            self.best_index_ = check_best_index(self.refit(results), len(results["params"]))
        else:
            # argmin returns the first of candidates with equal scores.
            self.best_index_ = int(results[f"rank_test_{name}"].argmin())
            self.best_score_ = results[f"mean_test_{name}"][self.best_index_]
        self.best_params_ = results["params"][self.best_index_]

    def _refit_best(self, splits: Splits) -> None:
        """Set `best_estimator_`, fitted to all rows."""
        begin = time.perf_counter()
        self.best_estimator_ = self._fit_best(splits, self._make_candidate(self.best_params_))
        self.refit_time_ = time.perf_counter() - begin
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def _fit_best(self, splits: Splits, best: Any) -> Any:
        """Return the best candidate, fitted to all rows."""
        return splits.fit_to_all_rows(best)

    def _make_candidate(self, params: Mapping[str, Any]) -> Any:
        """Return an unfitted clone of the estimator with a candidate's parameters."""
        # Values are cloned too: a parameter may be an estimator, which candidates must not share.
        return clone(self.estimator).set_params(**clone(params, safe=False))


def _make_best_method(name: str) -> Any:
    """Return a method that calls the best estimator's, lazily for Dask collections.

    Also if the best estimator is of another package, whose own method would compute the rows.
    """

    def method(self: Any, X: Any) -> Any:
        best = vars(self).get("best_estimator_")
        if best is not None and is_dask(X) and not takes_dask_collections(best):
            return answer_lazily(best, name, X, {})
        return getattr(super(DaskSearch, self), name)(X)

    def is_there(self: Any) -> bool:
        try:
            getattr(super(DaskSearch, self), name)
        except AttributeError as error:
            # The cause is scikit-learn's error with the reason why the method is missing.
            raise (error.__cause__ or error) from None
        return True

    method.__name__ = name
    method.__qualname__ = f"DaskSearch.{name}"
    method.__doc__ = f"""Call `{name}` of the best estimator; lazily where X is a Dask collection.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray, or lazy dask Array
        """
    return available_if(is_there)(method)


# Set after the class, since their calls of `super(DaskSearch, self)` need its name.
for _name in ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform"):
    setattr(DaskSearch, _name, _make_best_method(_name))


def check_best_index(best: Any, n_candidates: int) -> int:
    """Return the candidate's number that a function given as `refit` chose, checked."""
    if not isinstance(best, Integral):
        raise InvalidTypeError(
            f"best_index_ returned is not an integer: refit returned {best!r}. Return the index "
            "of a candidate, for example int(results['mean_test_score'].argmax())."
        )
    if not 0 <= int(best) < n_candidates:
        raise NoCandidateError(
            f"best_index_ index out of range: refit returned {best}. Return the index of one of "
            f"the {n_candidates} candidates."
        )
    return int(best)


class GridSearchCV(DaskSearch, model_selection.GridSearchCV):
    """Search over every combination of given values.

    Parameters
    ----------
    estimator, param_grid, scoring, refit, cv, error_score, return_train_score
        scikit-learn's; so is `verbose`. `n_jobs` and `pre_dispatch` are for rows in memory.

    Attributes
    ----------
    cv_results_, best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, \
refit_time_, multimetric_
        scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import GridSearchCV
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> search = GridSearchCV(LogisticRegression(), {'C': [0.01, 1.0, 100.0]}, cv=3).fit(X, y)
    >>> search.best_params_
    {'C': 1.0}
    >>> round(float(search.best_score_), 2)
    0.97
    """

    def _list_candidates(self) -> Candidates:
        return list(model_selection.ParameterGrid(self.param_grid))


class RandomizedSearchCV(DaskSearch, model_selection.RandomizedSearchCV):
    """Search over combinations drawn from given values or distributions.

    Parameters
    ----------
    estimator, param_distributions, n_iter, scoring, refit, cv, random_state, error_score, \
return_train_score
        scikit-learn's; so is `verbose`. `n_jobs` and `pre_dispatch` are for rows in memory.

    Attributes
    ----------
    cv_results_, best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, \
refit_time_, multimetric_
        scikit-learn's.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import RandomizedSearchCV
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> search = RandomizedSearchCV(
    ...     LogisticRegression(), {'C': [0.01, 1.0, 100.0]}, n_iter=2, cv=3, random_state=0
    ... )
    >>> len(search.fit(X, y).cv_results_['params'])
    2
    """

    def _list_candidates(self) -> Candidates:
        return list(
            model_selection.ParameterSampler(
                self.param_distributions, self.n_iter, random_state=self.random_state
            )
        )


# --- successive halving ------------------------------------------------------------------------


class _HalvingSearch(DaskSearch):
    """Base class of searches by successive halving.

    A rung scores its candidates with a budget of resources (rows, or a parameter such as
    `max_iter`), and one in `factor` of them is promoted to the next rung, with `factor` times the
    resources. Each rung is a separate search, with one batched fit if candidates allow it.

    References
    ----------
    Z. Karnin, T. Koren and O. Somekh, "Almost optimal exploration in multi-armed bandits",
    ICML 2013, Algorithm 1. K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification
    and hyperparameter optimization", AISTATS 2016.
    """

    factor: Any
    resource: str
    max_resources: Any
    min_resources: Any
    aggressive_elimination: bool
    random_state: Any
    verbose: Any

    @taking_client
    def fit(self, X: Any, y: Any = None, *, groups: Any = None, **params: Any) -> Self:
        """Score ever fewer candidates with ever more resources, and fit the best to all rows.

        Parameters
        ----------
        X, y, groups : dask Array or DataFrame, or in memory, of shape (n_rows, ...)
            `y` may name a column of X.
        client : distributed.Client, optional
            Client to compute with; the current one by default.
        **params
            Arguments of the estimator's ``fit``; `sample_weight` is split like X.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        check_number("factor", self.factor, lambda v: v > 1, "> 1, such as 3")
        X, y, groups = convert_foreign(X, y, groups)
        lazy = any(map(is_dask, (X, y, groups, *params.values())))
        # Otherwise scikit-learn does the search, and checks these itself.
        if lazy or self._can_batch():
            self._check_halving_options(y)
        return super().fit(X, y, groups=groups, **params)

    def _search(self, splits: Splits, scorers: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        self._resolve_resources(splits)
        candidates = [dict(params) for params in self._check_candidates()]
        if self.resource != "n_samples" and any(self.resource in c for c in candidates):
            raise InvalidParameterError(
                f"Cannot use parameter {self.resource} as the resource since it is part of the "
                "searched parameters."
            )
        self._plan_rungs(len(candidates))
        self.n_resources_: list[int] = []
        self.n_candidates_: list[int] = []
        # A row of the results for each candidate at each rung.
        tried_candidates: list[dict[str, Any]] = []
        fits: list[list[SplitFit]] = []
        columns: dict[str, list[int]] = {"iter": [], "n_resources": []}
        # Numbers of the remaining candidates, which identify them in the records of rungs.
        n_batches, numbers = 0, list(range(len(candidates)))
        n_rows = splits.count_rows() if self.resource == "n_samples" else 0
        for rung in range(self.n_iterations_):
            n_resources = self._count_resources(rung)
            self.n_resources_.append(n_resources)
            self.n_candidates_.append(len(candidates))
            rung_splits = splits
            if self.resource == "n_samples":
                rung_splits = splits.thin(n_resources / n_rows, self.random_state)
            else:
                candidates = [{**params, self.resource: n_resources} for params in candidates]
            vars(self).pop("stacks_", None)  # set again by a rung that is batched
            name = f"rung {rung + 1} of {self.n_iterations_}, {self.resource}={n_resources}"
            report_phase(f"{name}: {len(candidates)} candidates")
            rung_fits = self._fit_candidates(rung_splits, candidates, scorers)
            n_batches += vars(self).get("stacks_", 0)
            tried_candidates, fits = tried_candidates + candidates, fits + rung_fits
            columns["iter"] += [rung] * len(candidates)
            columns["n_resources"] += [n_resources] * len(candidates)
            # NaN (the default `error_score`) if the fit of any split has failed.
            scores = np.mean([[fit.test["score"] for fit in row] for row in rung_fits], axis=1)
            facts = {"bracket": 0, "resource": n_resources}
            scored = zip(numbers, scores, strict=True)
            report_rung(name, [facts | {"candidate": i, "score": float(s)} for i, s in scored])
            # argsort puts NaN, the scores of failed fits, last; rolled to the front they are
            # dropped first. scikit-learn keeps the same candidates in the same order.
            order = np.roll(np.argsort(scores), np.count_nonzero(np.isnan(scores)))
            # Karnin et al. keep half of them, which is a factor of 2.
            n_kept = ceil(len(candidates) / self.factor)
            self.n_remaining_candidates_ = n_kept
            candidates = [candidates[i] for i in order[-n_kept:]]
            numbers = [numbers[i] for i in order[-n_kept:]]
        if n_batches:
            self.stacks_ = n_batches
        train_score = bool(self.return_train_score)
        return make_cv_results(
            tried_candidates, fits, train_score=train_score, extra_columns=columns
        )

    def _choose_best(self) -> None:
        """Set the attributes of the best candidate of the last rung."""
        results = self.cv_results_
        # Scores of earlier rungs are from fewer resources, and not comparable.
        last = np.flatnonzero(results["iter"] == np.max(results["iter"]))
        scores = results["mean_test_score"][last]
        best = 0 if np.isnan(scores).all() else int(np.nanargmax(scores))  # NaN: a failed fit
        if callable(self.refit):
            # A function selects a candidate, not a score: there is no `best_score_`, as in
            # scikit-learn.
            self.best_index_ = check_best_index(self.refit(results), len(results["params"]))
        else:
            self.best_index_ = int(last[best])
            self.best_score_ = results["mean_test_score"][self.best_index_]
        self.best_params_ = results["params"][self.best_index_]

    def _check_halving_options(self, y: Any) -> None:
        """Raise scikit-learn's errors for parameters that halving cannot use."""
        if isinstance(self.scoring, list | tuple | set | dict):
            raise InvalidParameterError(
                f"scoring={self.scoring!r}: halving keeps candidates by one score. Name one."
            )
        # A splitter that shuffles again at each call would score the rungs on different folds.
        cv = check_splitter(self.cv, self.estimator, y)
        # A splitter without `random_state` is assumed to give the same splits at each call, like
        # one that does not shuffle.
        is_repeatable = isinstance(getattr(cv, "random_state", 0), Integral)
        if not is_repeatable and getattr(cv, "shuffle", True):
            raise InvalidParameterError(
                "The cv parameter must yield consistent folds across calls to split(). Set its "
                "random_state to an int, or set shuffle=False."
            )
        params = self.estimator.get_params()
        if self.resource != "n_samples" and self.resource not in params:
            raise InvalidParameterError(
                f"Cannot use resource={self.resource} which is not supported by estimator "
                f"{type(self.estimator).__name__}. Use 'n_samples', or the name of a parameter of "
                "it that counts, such as 'max_iter'."
                f"{suggest_nearest(self.resource, ['n_samples', *params])}"
            )
        if self.max_resources == "auto" and self.resource != "n_samples":
            raise InvalidParameterError(
                "resource can only be 'n_samples' when max_resources='auto'"
            )

    def _resolve_resources(self, splits: Splits) -> None:
        """Set the resources of the first rung and the most of any, as scikit-learn does."""
        min_resources, max_resources = self.min_resources, self.max_resources
        if min_resources in ("smallest", "exhaust"):
            min_resources = 1
            if self.resource == "n_samples":
                # scikit-learn's rule: two rows for each split and, for a classifier, each label.
                min_resources = 2 * splits.n_splits
                min_resources *= len(splits.find_labels()) if is_classifier(self.estimator) else 1
        self.min_resources_ = min_resources
        self.max_resources_ = splits.count_rows() if max_resources == "auto" else max_resources
        if self.min_resources_ > self.max_resources_:
            raise InvalidParameterError(
                f"min_resources_={self.min_resources_} is greater than "
                f"max_resources_={self.max_resources_}."
            )
        if self.min_resources_ == 0:
            raise InvalidDataError("min_resources_=0: X holds no rows.")

    def _plan_rungs(self, n_candidates: int) -> None:
        """Set the numbers of rungs that candidates require and resources allow.

        As in scikit-learn, whose attributes they are.
        """
        # As many rungs as leave at most `factor` candidates at the last one.
        self.n_required_iterations_ = 1 + floor(log(n_candidates, self.factor))
        if self.min_resources == "exhaust":
            # Increased so that the last rung uses nearly all resources.
            last = self.n_required_iterations_ - 1
            self.min_resources_ = max(
                self.min_resources_, int(self.max_resources_ // self.factor**last)
            )
        ratio = self.max_resources_ // self.min_resources_
        self.n_possible_iterations_ = 1 + floor(log(ratio, self.factor))
        self.n_iterations_ = self.n_required_iterations_
        if not self.aggressive_elimination:
            self.n_iterations_ = min(self.n_possible_iterations_, self.n_required_iterations_)

    def _count_resources(self, rung: int) -> int:
        """Return the resources of a rung: the least, times `factor` to the power of its number."""
        power = rung
        if self.aggressive_elimination:
            # If more rungs are required than resources allow, the first ones all use the least.
            power = max(0, rung - self.n_required_iterations_ + self.n_possible_iterations_)
        return min(int(self.factor**power * self.min_resources_), int(self.max_resources_))


class HalvingGridSearchCV(_HalvingSearch, model_selection.HalvingGridSearchCV):
    """Search over every combination of given values, by successive halving.

    Parameters
    ----------
    estimator, param_grid, factor, resource, max_resources, min_resources, \
aggressive_elimination, cv, scoring, refit, error_score, return_train_score, random_state
        scikit-learn's. `n_jobs` is for rows in memory.

    Attributes
    ----------
    n_resources_, n_candidates_, n_remaining_candidates_, max_resources_, min_resources_, \
n_iterations_, n_possible_iterations_, n_required_iterations_
        scikit-learn's, of the rungs.
    cv_results_, best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, \
refit_time_, multimetric_
        scikit-learn's; ``cv_results_`` has columns ``iter`` and ``n_resources``.
    stacks_ : int
        Number of rungs that were one fit each; absent if there was none.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import HalvingGridSearchCV
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> search = HalvingGridSearchCV(
    ...     LogisticRegression(), {'C': [0.01, 1.0, 100.0]}, cv=2, min_resources=20, random_state=0
    ... )
    >>> search.fit(X, y).n_resources_
    [20, 60]
    """

    def _list_candidates(self) -> Candidates:
        return list(model_selection.ParameterGrid(self.param_grid))


class HalvingRandomSearchCV(_HalvingSearch, model_selection.HalvingRandomSearchCV):
    """Search over combinations drawn from given values or distributions, by successive halving.

    Parameters
    ----------
    estimator, param_distributions, n_candidates, factor, resource, max_resources, \
min_resources, aggressive_elimination, cv, scoring, refit, error_score, return_train_score, \
random_state
        scikit-learn's. `n_jobs` is for rows in memory.

    Attributes
    ----------
    n_resources_, n_candidates_, n_remaining_candidates_, max_resources_, min_resources_, \
n_iterations_, n_possible_iterations_, n_required_iterations_
        scikit-learn's, of the rungs.
    cv_results_, best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, \
refit_time_, multimetric_
        scikit-learn's; ``cv_results_`` has columns ``iter`` and ``n_resources``.
    stacks_ : int
        Number of rungs that were one fit each; absent if there was none.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import HalvingRandomSearchCV
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> search = HalvingRandomSearchCV(
    ...     LogisticRegression(), {'C': [0.01, 1.0, 100.0]}, n_candidates=3, cv=2, min_resources=20,
    ...     random_state=0,
    ... )
    >>> search.fit(X, y).n_resources_
    [20, 60]
    """

    def _check_halving_options(self, y: Any) -> None:
        super()._check_halving_options(y)
        if self.min_resources == self.n_candidates == "exhaust":
            raise InvalidParameterError(
                "n_candidates and min_resources cannot be both set to 'exhaust'."
            )

    def _list_candidates(self) -> Candidates:
        n = self.n_candidates
        if n == "exhaust":
            # As many as let the last rung use all resources: scikit-learn's rule.
            n = self.max_resources_ // self.min_resources_
        candidates: Sequence[Mapping[str, Any]] = list(
            model_selection.ParameterSampler(
                self.param_distributions, n, random_state=self.random_state
            )
        )
        return candidates


# --- the table of results ----------------------------------------------------------------------


def make_cv_results(
    candidates: Sequence[Mapping[str, Any]],
    fits: Sequence[Sequence[SplitFit]],
    *,
    train_score: bool,
    extra_columns: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Return the scores of candidates in the layout of scikit-learn's ``cv_results_``.

    `fits` holds a list for each candidate, one fit for each split; `extra_columns` holds further
    columns.
    """
    table: dict[str, Any] = {
        key: np.asarray(values) for key, values in (extra_columns or {}).items()
    }
    for name in ("fit_time", "score_time"):
        _store_scores(table, name, [[getattr(fit, name) for fit in row] for row in fits])
    for name in sorted({name for params in candidates for name in params}):
        column = [params.get(name, _ABSENT_VALUE) for params in candidates]
        table[f"param_{name}"] = _make_param_column(column)
    table["params"] = [dict(params) for params in candidates]
    for name in fits[0][0].test:
        scores = [[fit.test[name] for fit in row] for row in fits]
        _store_scores(table, f"test_{name}", scores, splits=True)
        means = table[f"mean_test_{name}"]
        table[f"rank_test_{name}"] = _rank_means(means)
        if not np.isfinite(means).all():
            warnings.warn(
                f"One or more of the test scores are non-finite: {means}",
                stacklevel=user_stack_level(),
            )
        if train_score:
            trained = [[fit.train[name] for fit in row] for row in fits]
            _store_scores(table, f"train_{name}", trained, splits=True)
    return table


#: Placeholder for a parameter that a candidate does not set.
_ABSENT_VALUE = object()


def _store_scores(
    table: dict[str, Any], name: str, rows: list[list[float]], splits: bool = False
) -> None:
    """Store means and deviations over the splits, and with `splits` a column for each split."""
    values = np.array(rows)
    if splits:
        for i, column in enumerate(values.T):
            table[f"split{i}_{name}"] = column
    table[f"mean_{name}"], table[f"std_{name}"] = values.mean(axis=1), values.std(axis=1)


def _rank_means(means: NDArray[np.float64]) -> NDArray[np.int32]:
    """Return the rank of each mean, 1 for the best; NaN gets the last rank."""
    if np.isnan(means).all():
        return np.ones(len(means), np.int32)
    lowest = np.nanmin(means) - 1  # failed candidates share the rank after all others
    ranks = rankdata(-np.where(np.isnan(means), lowest, means), method="min")
    return np.asarray(ranks, np.int32)


def _make_param_column(values: list[Any]) -> Any:
    """Return a parameter's values as a masked array: of a number dtype, or of objects."""
    mask = np.array([value is _ABSENT_VALUE for value in values])
    present_values = [value for value in values if value is not _ABSENT_VALUE]
    dtype: Any = object
    # bool is an int in Python, but a column of True and 0.5 would become floats.
    if present_values and all(
        isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in present_values
    ):
        dtype = np.result_type(*map(np.asarray, present_values))
    column: Any = np.ma.array(np.empty(len(values), dtype=dtype))
    for i, value in enumerate(values):
        if value is not _ABSENT_VALUE:
            column[i] = value
    column.mask = mask if mask.any() else np.zeros(len(values), bool)
    return column
