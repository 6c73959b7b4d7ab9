"""Searches for the best parameters of an estimator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from numbers import Integral
from typing import Any, ClassVar, Self

from sklearn import model_selection
from sklearn.base import clone
from sklearn.metrics import check_scoring, get_scorer
from sklearn.utils.metaestimators import available_if

from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import doing, tell
from daskml_dist.errors import (
    InvalidParameterError,
    InvalidTypeError,
    NoCandidateError,
)
from daskml_dist.errors.sklearn_errors import translate_parameter_errors
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.estimators.transformer import answer_lazily
from daskml_dist.metrics.scorers import get_scorers
from daskml_dist.model_selection._checks import check_cv, check_target, knows_dask
from daskml_dist.model_selection._pipelines import fits_of_stacks, pipelines_stack, score_names
from daskml_dist.model_selection._results import table_of
from daskml_dist.model_selection._routing import is_routed, weighed_scores
from daskml_dist.model_selection._stacking import stacks
from daskml_dist.model_selection._validation import Fitted, Splits, beside, fitted_on
from daskml_dist.parameters.checks import (
    has_sklearns_callbacks,
    refuse_sklearns_callbacks,
    taking_client,
)

__all__ = ["GridSearchCV", "RandomizedSearchCV", "SearchOnDask", "index_of"]

Candidates = Sequence[Mapping[str, Any]]


class SearchOnDask(EstimatorMixin):
    """Base class of searches that know Dask collections, and stack what can be stacked.

    All else, of rows in memory, is scikit-learn's affair.
    """

    estimator: Any
    scoring: Any
    refit: Any
    cv: Any
    error_score: Any
    return_train_score: bool
    verbose: Any
    #: Whether scikit-learn has such a search, for rows in memory.
    _has_peer: ClassVar[bool] = True
    #: Whether the search itself keeps both sides of each split on the workers.
    _keeps_sides: ClassVar[bool] = False

    @taking_client
    def fit(self, X: Any, y: Any = None, *, groups: Any = None, **params: Any) -> Self:
        """Score every candidate by cross-validation, and fit the best to all rows.

        Parameters
        ----------
        X, y, groups : dask Array or DataFrame, or in memory, of shape (n_rows, ...)
            `y` may name a column of X.
        client : distributed.Client, optional
            That everything is computed by; by default the current one.
        **params
            Arguments of the estimator's ``fit``; `sample_weight` is cut like X.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        X, y, groups, params = beside(X, y, groups, params)
        lazy = any(map(is_dask, (X, y, groups, *params.values())))
        asks = self._has_peer and (is_routed(params) or has_sklearns_callbacks(self))
        if not lazy and (asks or not self._stacks()):
            given = params if groups is None else {**params, "groups": groups}
            found: Self = super().fit(X, y, **given)  # type: ignore[misc]
            return found
        refuse_sklearns_callbacks(self)
        self._check_refit_on_dask()
        check_target(self.estimator, y)
        check_cv(self.cv)
        with translate_parameter_errors():
            scorers = get_scorers(self.estimator, self.scoring)
            if self._has_peer:
                self._validate_params()  # type: ignore[attr-defined]
        self.multimetric_ = list(scorers) != ["score"]
        if not weighed_scores(self.estimator, scorers, params, True):
            raise InvalidParameterError(
                "Scores of a search over Dask collections count the weights of rows. Request them: "
                "set_score_request(sample_weight=True) of the estimator, or of each scorer."
            )
        with doing(type(self).__name__, self.verbose):
            tell("splitting rows")
            splits = Splits(self.estimator, X, y, groups, params, self.cv)
            self.n_splits_ = splits.n_splits
            # A stack holds the rows itself; those for fits of others are gathered in one reading.
            reads_once = (
                self._keeps_sides or stacks([self.estimator]) or not knows_dask(self.estimator)
            )
            with nullcontext(splits) if reads_once else splits.kept() as splits:
                self.cv_results_ = self._searched(splits, scorers)
                self.scorer_ = scorers if self.multimetric_ else scorers["score"]
                self._choose()
                if self.refit:
                    tell("fit of the best to all rows")
                    X, y, *cut = splits.inputs
                    self._refit(X, y, splits.params(cut))
        return self

    def _as_sklearns(self) -> Any:
        """The same search as one of scikit-learn's classes."""
        theirs: Any = next(
            kind for kind in type(self).__mro__ if kind.__module__.startswith("sklearn.")
        )
        found = theirs.__new__(theirs)
        vars(found).update(vars(self))
        if hasattr(self, "best_estimator_") and not self.multimetric_:
            found.scorer_ = check_scoring(found.best_estimator_, self.scoring)
        elif hasattr(self, "scorer_") and (names := self._names()) is not None:
            found.scorer_ = {name: get_scorer(given) for name, given in names.items()}
        return found

    def _candidates(self) -> Candidates:
        """Parameters to try."""
        raise NotImplementedError

    def _some_candidates(self) -> list[Mapping[str, Any]]:
        """Parameters to try, checked as scikit-learn does."""
        with translate_parameter_errors():
            return list(self._candidates())

    def _searched(
        self, splits: Splits, scorers: Mapping[str, Callable[..., Any]]
    ) -> dict[str, Any]:
        """Scores of all candidates, as ``cv_results_``."""
        candidates = self._some_candidates()
        fits = self._fits(splits, candidates, scorers)
        return table_of(candidates, fits, train_score=bool(self.return_train_score))

    def _fits(
        self, splits: Splits, candidates: Candidates, scorers: Mapping[str, Callable[..., Any]]
    ) -> list[list[Fitted]]:
        """One fit for each candidate and split."""
        tell(f"fits of {len(candidates)} candidates")
        estimators = [self._candidate(params) for params in candidates]
        train_score = bool(self.return_train_score)
        names = self._names()
        if names is not None:
            found = fits_of_stacks(
                estimators, splits, names, scorers, train_score=train_score,
                error_score=self.error_score,
            )  # fmt: skip
            if found is not None:
                fits, self.stacks_ = found
                return fits
        return splits.fits(
            estimators, dict(scorers), train_score=train_score,
            error_score=self.error_score, weigh_scores=True,
        )  # fmt: skip

    def _stacks(self) -> bool:
        """Return whether rows in memory are for a stack of ours rather than for scikit-learn's
        fits.

        Asked of the estimator alone: candidates that are drawn are drawn once.
        """
        alone = [self.estimator]
        return self._names() is not None and (stacks(alone) or pipelines_stack(alone))

    def _names(self) -> dict[str, Any] | None:
        """Names of the scores; None where one is a function of several scores."""
        return score_names(self.scoring)

    def _check_refit_on_dask(self) -> None:
        several = isinstance(self.scoring, list | tuple | set | dict)
        names = list(self.scoring) if several else []
        if (
            several
            and self.refit is not False
            and not callable(self.refit)
            and (self.refit not in names)
        ):
            raise InvalidParameterError(
                f"For multi-metric scoring, the parameter refit must be set to a scorer key, a "
                f"callable or False: refit={self.refit!r} is none of {names}."
            )

    def _choose(self) -> None:
        results = self.cv_results_
        if not self.refit and self.multimetric_:
            return
        name = self.refit if self.multimetric_ else "score"
        if callable(self.refit):
            self.best_index_ = index_of(self.refit(results), len(results["params"]))
        else:
            self.best_index_ = int(results[f"rank_test_{name}"].argmin())
            self.best_score_ = results[f"mean_test_{name}"][self.best_index_]
        self.best_params_ = results["params"][self.best_index_]

    def _refit(self, X: Any, y: Any, params: Mapping[str, Any]) -> None:
        begin = time.perf_counter()
        self.best_estimator_ = fitted_on(self._candidate(self.best_params_), X, y, params)
        self.refit_time_ = time.perf_counter() - begin
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def _candidate(self, params: Mapping[str, Any]) -> Any:
        """The estimator with some parameters, unfitted."""
        return clone(self.estimator).set_params(**clone(params, safe=False))


def _of_the_best(name: str) -> Any:
    """Make a method of rows, whose answers to a Dask collection are lazy whatever the best is."""

    def method(self: Any, X: Any) -> Any:
        best = vars(self).get("best_estimator_")
        if best is not None and is_dask(X) and not knows_dask(best):
            return answer_lazily(best, name, X, {})
        return getattr(super(SearchOnDask, self), name)(X)

    def is_there(self: Any) -> bool:
        try:
            getattr(super(SearchOnDask, self), name)
        except AttributeError as error:
            # scikit-learn tells why there is none in the cause.
            raise (error.__cause__ or error) from None
        return True

    method.__name__ = name
    method.__qualname__ = f"SearchOnDask.{name}"
    method.__doc__ = f"""Call `{name}` of the best estimator; lazily where X is a Dask collection.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray, or lazy dask Array
        """
    return available_if(is_there)(method)


for _name in ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform"):
    setattr(SearchOnDask, _name, _of_the_best(_name))


def index_of(best: Any, n_candidates: int) -> int:
    """Number that a function chose, checked in scikit-learn's words."""
    if not isinstance(best, Integral):
        raise InvalidTypeError(
            f"best_index_ returned is not an integer: refit returned {best!r}. Return the number "
            "of a candidate, for example int(results['mean_test_score'].argmax())."
        )
    if not 0 <= int(best) < n_candidates:
        raise NoCandidateError(
            f"best_index_ index out of range: refit returned {best}. Return the number of one of "
            f"the {n_candidates} candidates."
        )
    return int(best)


class GridSearchCV(SearchOnDask, model_selection.GridSearchCV):
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

    def _candidates(self) -> Candidates:
        return list(model_selection.ParameterGrid(self.param_grid))


class RandomizedSearchCV(SearchOnDask, model_selection.RandomizedSearchCV):
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

    def _candidates(self) -> Candidates:
        return list(
            model_selection.ParameterSampler(
                self.param_distributions, self.n_iter, random_state=self.random_state
            )
        )
