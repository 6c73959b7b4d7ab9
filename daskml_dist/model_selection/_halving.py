"""Successive halving: many candidates on little, the best of them on more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log
from numbers import Integral
from typing import Any, Self

import numpy as np

# scikit-learn gives these two to whoever asks for them alone.
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

from sklearn import model_selection  # isort: skip
from sklearn.base import is_classifier

from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import tell, tell_rung
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.model_selection._checks import check_splitter
from daskml_dist.model_selection._results import table_of
from daskml_dist.model_selection._search import Candidates, SearchOnDask, index_of
from daskml_dist.model_selection._thinning import count_of_rows, labels_of, thinned_splits
from daskml_dist.model_selection._validation import Fitted, Splits
from daskml_dist.parameters.checks import check_number, taking_client

__all__ = ["HalvingGridSearchCV", "HalvingOnDask", "HalvingRandomSearchCV"]


class HalvingOnDask(SearchOnDask):
    """Base class of searches by successive halving (Karnin, Koren and Somekh, ICML 2013).

    Each rung is a search of its own over the candidates that are left: a stack, where they stack.
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
        """Score candidates on ever more, fewer of them each time, and fit the best to all rows.

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
        check_number("factor", self.factor, lambda v: v > 1, "> 1, such as 3")
        X, y, groups = convert_foreign(X, y, groups)
        lazy = any(map(is_dask, (X, y, groups, *params.values())))
        if lazy or self._stacks():
            self._check_halving(y)
        return super().fit(X, y, groups=groups, **params)

    def _searched(
        self, splits: Splits, scorers: Mapping[str, Callable[..., Any]]
    ) -> dict[str, Any]:
        self._set_resources(splits)
        candidates = [dict(params) for params in self._some_candidates()]
        if self.resource != "n_samples" and any(self.resource in c for c in candidates):
            raise InvalidParameterError(
                f"Cannot use parameter {self.resource} as the resource since it is part of the "
                "searched parameters."
            )
        self._plan(len(candidates))
        self.n_resources_: list[int] = []
        self.n_candidates_: list[int] = []
        tried: list[dict[str, Any]] = []
        fits: list[list[Fitted]] = []
        more: dict[str, list[int]] = {"iter": [], "n_resources": []}
        stacks, numbers = 0, list(range(len(candidates)))
        for rung in range(self.n_iterations_):
            n_resources = self._resources_of(rung)
            self.n_resources_.append(n_resources)
            self.n_candidates_.append(len(candidates))
            of_rung = splits
            if self.resource == "n_samples":
                n_rows = count_of_rows(splits)
                of_rung = thinned_splits(splits, n_resources / n_rows, self.random_state)
            else:
                candidates = [{**params, self.resource: n_resources} for params in candidates]
            vars(self).pop("stacks_", None)
            name = f"rung {rung + 1} of {self.n_iterations_}, {self.resource}={n_resources}"
            tell(f"{name}: {len(candidates)} candidates")
            found = self._fits(of_rung, candidates, scorers)
            stacks += vars(self).get("stacks_", 0)
            tried, fits = tried + candidates, fits + found
            more["iter"] += [rung] * len(candidates)
            more["n_resources"] += [n_resources] * len(candidates)
            scores = np.mean([[fit.test["score"] for fit in row] for row in found], axis=1)
            known = {"bracket": 0, "resource": n_resources}
            told = zip(numbers, scores, strict=True)
            tell_rung(name, [known | {"candidate": i, "score": float(s)} for i, s in told])
            order = np.roll(np.argsort(scores), np.count_nonzero(np.isnan(scores)))
            keep = ceil(len(candidates) / self.factor)
            self.n_remaining_candidates_ = keep
            candidates = [candidates[i] for i in order[-keep:]]
            numbers = [numbers[i] for i in order[-keep:]]
        if stacks:
            self.stacks_ = stacks
        return table_of(tried, fits, train_score=bool(self.return_train_score), more=more)

    def _choose(self) -> None:
        """The best of the last rung."""
        results = self.cv_results_
        last = np.flatnonzero(results["iter"] == np.max(results["iter"]))
        scores = results["mean_test_score"][last]
        best = 0 if np.isnan(scores).all() else int(np.nanargmax(scores))
        if callable(self.refit):
            self.best_index_ = index_of(self.refit(results), len(results["params"]))
        else:
            self.best_index_ = int(last[best])
            self.best_score_ = results["mean_test_score"][self.best_index_]
        self.best_params_ = results["params"][self.best_index_]

    def _check_halving(self, y: Any) -> None:
        if isinstance(self.scoring, list | tuple | set | dict):
            raise InvalidParameterError(
                f"scoring={self.scoring!r}: halving keeps candidates by one score. Name one."
            )
        cv = check_splitter(self.cv, self.estimator, y)
        fixed = isinstance(getattr(cv, "random_state", 0), Integral)
        if not fixed and getattr(cv, "shuffle", True):
            raise InvalidParameterError(
                "The cv parameter must yield consistent folds across calls to split(). Set its "
                "random_state to an int, or set shuffle=False."
            )
        own = self.estimator.get_params()
        if self.resource != "n_samples" and self.resource not in own:
            raise InvalidParameterError(
                f"Cannot use resource={self.resource} which is not supported by estimator "
                f"{type(self.estimator).__name__}. Use 'n_samples', or the name of a parameter of "
                f"it that counts, such as 'max_iter'."
                f"{suggest_nearest(self.resource, ['n_samples', *own])}"
            )
        if self.max_resources == "auto" and self.resource != "n_samples":
            raise InvalidParameterError(
                "resource can only be 'n_samples' when max_resources='auto'"
            )

    def _set_resources(self, splits: Splits) -> None:
        least, most = self.min_resources, self.max_resources
        if least in ("smallest", "exhaust"):
            least = 1
            if self.resource == "n_samples":
                least = 2 * splits.n_splits
                least *= len(labels_of(splits)) if is_classifier(self.estimator) else 1
        self.min_resources_ = least
        self.max_resources_ = count_of_rows(splits) if most == "auto" else most
        if self.min_resources_ > self.max_resources_:
            raise InvalidParameterError(
                f"min_resources_={self.min_resources_} is greater than "
                f"max_resources_={self.max_resources_}."
            )
        if self.min_resources_ == 0:
            raise InvalidDataError("min_resources_=0: X holds no rows.")

    def _plan(self, n_candidates: int) -> None:
        """Numbers of rungs, as scikit-learn counts them."""
        self.n_required_iterations_ = 1 + floor(log(n_candidates, self.factor))
        if self.min_resources == "exhaust":
            # The last rung has as much as there is.
            last = self.n_required_iterations_ - 1
            self.min_resources_ = max(
                self.min_resources_, int(self.max_resources_ // self.factor**last)
            )
        ratio = self.max_resources_ // self.min_resources_
        self.n_possible_iterations_ = 1 + floor(log(ratio, self.factor))
        self.n_iterations_ = self.n_required_iterations_
        if not self.aggressive_elimination:
            self.n_iterations_ = min(self.n_possible_iterations_, self.n_required_iterations_)

    def _resources_of(self, rung: int) -> int:
        power = rung
        if self.aggressive_elimination:
            # The first rungs repeat, on the least.
            power = max(0, rung - self.n_required_iterations_ + self.n_possible_iterations_)
        return min(int(self.factor**power * self.min_resources_), int(self.max_resources_))


class HalvingGridSearchCV(HalvingOnDask, model_selection.HalvingGridSearchCV):
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
        Rungs that were one fit each; absent where none was.

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

    def _candidates(self) -> Candidates:
        return list(model_selection.ParameterGrid(self.param_grid))


class HalvingRandomSearchCV(HalvingOnDask, model_selection.HalvingRandomSearchCV):
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
        Rungs that were one fit each; absent where none was.

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

    def _check_halving(self, y: Any) -> None:
        super()._check_halving(y)
        if self.min_resources == self.n_candidates == "exhaust":
            raise InvalidParameterError(
                "n_candidates and min_resources cannot be both set to 'exhaust'."
            )

    def _candidates(self) -> Candidates:
        n = self.n_candidates
        if n == "exhaust":
            # So many that the last rung has as much as there is.
            n = self.max_resources_ // self.min_resources_
        drawn: Sequence[Mapping[str, Any]] = list(
            model_selection.ParameterSampler(
                self.param_distributions, n, random_state=self.random_state
            )
        )
        return drawn
