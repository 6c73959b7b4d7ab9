"""Bagging: members fitted to rows and columns that each draws."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray
from scipy import sparse, stats
from sklearn import ensemble
from sklearn.base import is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement
from sklearn.utils.validation import has_fit_parameter

from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.data.containers import convert_named_columns
from daskml_dist.data.conversion import as_column, convert_to_host
from daskml_dist.data.feature_names import check_feature_names, remember_dtypes
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.permutations import Permutation, hash_numbers
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import doing, tell
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import checked_as_theirs
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.batched_fits.solver_rounds import (
    Fits,
    NotStackedError,
    can_stack,
    open_stack,
)
from daskml_dist.inference.block_mapping import make_sample_row, share_in_graph
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.lazy_labels import encoded, labels_of
from daskml_dist.meta_estimators.members import as_array, fit_members, here, params_of, taken
from daskml_dist.model_selection._split_rows import count_rows
from daskml_dist.models.stacked import FoldAssignment
from daskml_dist.parameters.checks import taking_client
from daskml_dist.solvers.batched_scores import ScoreParts
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor

__all__ = ["BaggingClassifier", "BaggingRegressor", "Draws"]

_BITS = np.uint64(11)
#: Draws of a row, the most that a table of their chances has.
_MOST = 64


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of each row by each member, which follow from the row's number among all.

    Parameters
    ----------
    seeds : ndarray of int64 of shape (n_members,)
    n_rows : int
        Of all blocks.
    n_drawn : int
        Rows that a member draws: exactly so many without replacement, else on average.
    replace : bool
        Whether a row may be drawn again.
    weight : float or None
        Sum of the weights of all rows, which these are drawn by; None: all alike.

    Notes
    -----
    With replacement the draws of a row are Poisson-distributed, which is what n draws of n rows
    come to for many rows, and what rows that do not know of each other can draw (N. Oza and
    S. Russell, "Online bagging and boosting", AISTATS 2001). Without, rows are ranked by a
    permutation.
    """

    seeds: NDArray[np.int64]
    n_rows: int
    n_drawn: int
    replace: bool
    weight: float | None = None

    def of(
        self, member: int, first: int, n: int, weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.int64]:
        """Draws of the `n` rows from number `first` on, of these weights."""
        return self.of_rows(member, np.arange(first, first + n), weights)

    def of_rows(
        self, member: int, rows: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.int64]:
        """Draws of the rows of these numbers, and weights."""
        n, seed = len(rows), int(self.seeds[member])
        if not self.replace:
            if self.n_drawn >= self.n_rows:
                return np.ones(n, np.int64)
            return (Permutation(self.n_rows, (seed,))(rows) < self.n_drawn).astype(np.int64)
        key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        chance = hash_numbers(hash_numbers(rows.astype(np.uint64), key[0]), key[1]) >> _BITS
        uniform = chance.astype(np.float64) * 2.0**-53
        if weights is None or self.weight is None:
            chances = stats.poisson.cdf(np.arange(_MOST), self.n_drawn / self.n_rows)
            return np.searchsorted(chances, uniform, side="right").astype(np.int64)
        rates = self.n_drawn * weights / self.weight
        return np.asarray(np.maximum(stats.poisson.ppf(uniform, rates), 0), np.int64)


def weights_of(n: int, given: Any) -> NDArray[np.float64] | None:
    """Weights of a block's rows, of which there may be one for all."""
    if given is None:
        return None
    return np.full(n, float(given)) if np.ndim(given) == 0 else np.asarray(given, np.float64)


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Draws of a fit, told without its rows.

    Parameters
    ----------
    draws : Draws
    starts : ndarray of int64 of shape (n_blocks,)
    weights : list of Delayed or float, or None
        Of the rows of each block, where they are drawn by these.
    """

    draws: Draws
    starts: NDArray[np.int64]
    weights: list[Any] | None

    def of(self, member: int) -> da.Array:
        """Numbers of the rows that a member has drawn, lazy."""
        number = delayed(partial(_numbers, self.draws, member), pure=False)
        stops = np.append(self.starts[1:], self.draws.n_rows)
        weights = self.weights or [None] * len(stops)
        pieces = [
            number(int(start), int(stop), weight)
            for start, stop, weight in zip(self.starts, stops, weights, strict=True)
        ]
        numbers: da.Array = da.concatenate(
            [da.from_delayed(piece, (np.nan,), dtype=np.int64) for piece in pieces]
        )
        return numbers


def _numbers(draws: Draws, member: int, start: int, stop: int, weight: Any) -> NDArray[np.int64]:
    counts = draws.of(member, start, stop - start, weights_of(stop - start, weight))
    return np.repeat(np.arange(start, stop), counts)


@dataclass(frozen=True, eq=False)
class DrawnRoles(FoldAssignment):
    """Draws of rows, whose codes are their numbers; a split is a member.

    Parameters
    ----------
    draws : Draws
        By no weights.
    """

    draws: Draws
    counted: ClassVar[bool] = True

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Number of members."""
        return len(self.draws.seeds)

    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int64]:
        """Draws of each row."""
        return self.draws.of_rows(split, codes)


def can_be_drawn(members: Sequence[Any], classes: NDArray[Any] | None) -> bool:
    """Return whether members can be one fit, as far as they and the labels tell."""
    return len(members) > 1 and (classes is None or len(classes) > 1) and can_stack(members)


def fit_drawn(
    members: Sequence[Any], draws: Draws, X: Any, y: Any, classes: NDArray[Any] | None
) -> list[Any] | None:
    """Fit clones of members, each to the rows that it draws, in one fit."""
    # Codes of a stack's rows begin with 1.
    collection = as_collection(X, y + np.array([0.0, 1.0]), None, multi_output=True)
    for member in members:
        member._check_params()
    own = [(k, k) for k in range(len(members))]
    try:
        with open_stack(members[0], collection, DrawnRoles(draws), classes, False) as stack:
            fitted = [fit.estimator for fit in Fits(stack, members, own, (), ScoreParts()).found()]
            for one in fitted:
                one.history_ = stack.job.make_history(*stack.last)
                remember_dtypes(one, X)
    except NotStackedError:
        return None
    return fitted


def unseen_answers(bagged: Any, fitted: list[Any], n_classes: int | None) -> list[Delayed]:
    """Of each block, sums of what members say of rows they have not drawn, and who says it."""
    once = share_in_graph(partial(_given, fitted, bagged.features, bagged.draws, n_classes))
    ask = delayed(_asked, pure=False)
    each = zip(bagged.rows.parts, bagged.starts, strict=True)
    return [ask(once, int(start), X, weight) for (X, _, weight), start in each]


def _given(*values: Any) -> tuple[Any, ...]:
    return values


def _asked(once: Any, first: int, X: Any, weight: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    fitted, each_features, draws, n_classes = once()
    n = X.shape[0]
    rows = X if sparse.issparse(X) else np.asarray(X)
    sums = np.zeros(n if n_classes is None else (n, n_classes))
    n_members = np.zeros(n, np.int64)
    weight = weights_of(n, weight)
    for member, (one, features) in enumerate(zip(fitted, each_features, strict=True)):
        at = np.flatnonzero(draws.of(member, first, n, weight) == 0)
        if not len(at):
            continue
        some = rows[at][:, features]
        n_members[at] += 1
        if n_classes is None:
            sums[at] += one.predict(some)
        elif hasattr(one, "predict_proba"):
            sums[np.ix_(at, np.asarray(one.classes_, np.int64))] += one.predict_proba(some)
        else:
            sums[at, np.asarray(one.predict(some), np.int64)] += 1
    return sums, n_members


def oob_scores(bagged: Any, answers: list[Delayed], n_classes: int | None) -> tuple[float, int]:
    """Accuracy, or R^2, of the answers; and how many rows nobody answers."""
    parts = [(one, y, None) for one, (_, y, _) in zip(answers, bagged.rows.parts, strict=True)]
    rows = replace(bagged.rows, parts=parts, inputs=(None, None, None))  # answers are no rows
    sums = reduce_parts(rows, partial(_sums, n_classes), _add_oob_sums)
    if n_classes is not None:
        n, without, hits = sums
        return float(hits / n), int(without)
    spread, (without, errors) = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        return float((1 - errors / spread.squares).item()), int(without)


def _sums(n_classes: int | None, index: int, answers: Any, y: Any, weight: Any) -> Any:
    found, n_members = answers
    y = as_column(y, name="y", index=index)
    if not len(y):
        return None
    without = (n_members == 0).sum()
    if n_classes is not None:
        return np.array([len(y), without, (found.argmax(axis=1) == y).sum()])
    predicted = found / np.maximum(n_members, 1)
    values = y.astype(np.float64)
    return WeightedMoments.of(values, np.ones(len(y))), np.array(
        [without, ((values - predicted) ** 2).sum()]
    )


def _add_oob_sums(parts: list[Any]) -> Any:
    filled = [part for part in parts if part is not None]
    if not filled:
        return None
    if not isinstance(filled[0], tuple):
        return np.sum(filled, axis=0)
    spread, sums = filled[0]
    for other, more in filled[1:]:
        spread, sums = spread + other, sums + more
    return spread, sums


_MOST_SEED = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Bagged:
    """Rows of a fit, what members draw of them, and pieces for each member.

    Parameters
    ----------
    rows : Collection
        With targets and, where rows are drawn by them, weights.
    starts : ndarray of int64 of shape (n_blocks,)
        Number of each block's first row.
    draws : Draws
    features : list of ndarray of int
        Columns of each member.
    whole : bool
        Whether every member has all columns, in their order.
    """

    rows: Collection
    starts: NDArray[np.int64]
    draws: Draws
    features: list[NDArray[np.int64]]
    whole: bool

    def counts(self, member: int) -> list[Delayed]:
        """Draws of the rows of each block."""
        count = delayed(partial(_counted, self.draws, member), pure=False)
        each = zip(self.rows.parts, self.starts, strict=True)
        return [count(int(start), X, weight) for (X, _, weight), start in each]

    def inputs(self, member: int, sample: Any, by_weight: bool) -> tuple[Any, Any, Any]:
        """X, y and weights of a member's fit; without weights, rows are repeated."""
        X, y, given = self.rows.inputs[0], self._targets(), None
        counts = self.counts(member)
        features = None if self.whole else self.features[member]
        if not (by_weight and self.whole and not hasattr(X, "columns")):
            take = delayed(partial(_columns, features), pure=False)
            X = as_array(
                [take(part[0]) for part in self.rows.parts], self.rows, _columns(features, sample)
            )
        if by_weight:
            as_floats = delayed(_as_floats, pure=False)
            given = as_array([as_floats(one) for one in counts], self.rows, np.empty(0))
            return X, y, given
        unknown = Collection(**{**vars(self.rows), "row_counts": None})
        repeat = delayed(_repeated, pure=False)
        samples = _columns(features, sample), np.empty(0, y.dtype)
        repeated = []
        for value, like in zip((X, y), samples, strict=True):
            pieces = zip(value.to_delayed().ravel(), counts, strict=True)
            repeated.append(as_array([repeat(one, count) for one, count in pieces], unknown, like))
        return repeated[0], repeated[1], None

    def numbered(self, sample: Any) -> tuple[Any, Any]:
        """X, and targets with the numbers of the rows behind them."""
        X = self.rows.inputs[0]
        if hasattr(X, "columns"):
            take = delayed(partial(_columns, None), pure=False)
            X = as_array([take(part[0]) for part in self.rows.parts], self.rows, sample)
        number = delayed(_with_numbers, pure=False)
        each = zip(self.rows.parts, self.starts, strict=True)
        pieces = [number(part[1], int(start)) for part, start in each]
        return X, as_array(pieces, self.rows, np.empty((0, 2)))

    def _targets(self) -> Any:
        column = delayed(partial(as_column, name="y"), pure=False)
        dtype = getattr(self.rows.inputs[1], "dtype", np.dtype(np.float64))
        return as_array(
            [column(part[1]) for part in self.rows.parts], self.rows, np.empty(0, dtype)
        )


class Bagging(OnBlocks):
    """Mixin of the bagged ensembles, put before scikit-learn's class."""

    _reads_rows = True

    estimator_: Any
    estimators_: list[Any]
    estimators_features_: list[Any]
    n_estimators: int
    max_samples: Any
    max_features: Any
    bootstrap: bool
    bootstrap_features: bool
    oob_score: bool
    warm_start: bool
    random_state: Any
    n_features_in_: int
    _drawn_rows: DrawnRows | None = None

    @taking_client
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit each member to rows that it draws.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
        y : dask Array or Series, or in memory, of shape (n_rows,), or the name of a column of X
        sample_weight : like `y`, optional
            Chances of rows to be drawn, as scikit-learn's newest versions have it.
        client : distributed.Client, optional
            That everything is computed by; by default the current one.
        **fit_params
            What scikit-learn's metadata routing sends to members.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        self._drawn_rows = None
        X, y, sample_weight = convert_named_columns(*convert_to_host(X, y, sample_weight))
        if not is_dask(X):
            X, y, given = here(
                X, y, {**fit_params, "sample_weight": sample_weight}, labels=is_classifier(self)
            )
            found: Self = super().fit(X, y, **given)  # type: ignore[misc]
            remember_dtypes(self, X)
            return found
        with checked_as_theirs():
            self._validate_params()  # type: ignore[attr-defined]
            self._validate_estimator(self._get_estimator())  # type: ignore[attr-defined]
        X, y, params = taken(X, y, {"sample_weight": sample_weight})
        (more,) = params_of(self, [("estimator", self.estimator_)], fit_params)
        if is_classifier(self):
            self.classes_ = labels_of(y)
            self.n_classes_ = len(self.classes_)
            y = encoded(y, self.classes_)
        weight = params.get("sample_weight")
        seeds = self._seeds_of_new()
        if not len(seeds):
            warnings.warn(
                "Warm-start fitting without increasing n_estimators does not fit new trees.",
                stacklevel=user_stack_level(),
            )
            return self
        bagged = self._drawn(X, y, weight, seeds)
        self._fit_drawn(bagged, make_sample_row(bagged.rows.inputs[0]), more)
        return self

    def _seeds_of_new(self) -> NDArray[np.int64]:
        """Seeds of the members that are to be fitted."""
        if self.warm_start and self.oob_score:
            raise InvalidParameterError(
                "Out of bag estimate only available if warm_start=False. Set one of them so."
            )
        if not self.bootstrap and self.oob_score:
            raise InvalidParameterError(
                "Out of bag estimation only available if bootstrap=True. Set it, or leave "
                "oob_score out."
            )
        known = len(self.estimators_) if self.warm_start and hasattr(self, "estimators_") else 0
        if known > self.n_estimators:
            raise InvalidParameterError(
                f"n_estimators={self.n_estimators} must be larger or equal to "
                f"len(estimators_)={known} when warm_start==True. Raise it."
            )
        state = check_random_state(self.random_state)
        if not known:
            self.estimators_, self.estimators_features_ = [], []
        else:
            state.randint(_MOST_SEED, size=known)
        seeds: NDArray[np.int64] = state.randint(_MOST_SEED, size=self.n_estimators - known)
        return seeds

    def _drawn(self, X: Any, y: Any, weight: Any, seeds: NDArray[np.int64]) -> Bagged:
        rows = as_collection(X, y, weight, numeric=False)
        check_feature_names(self, X, reset=True)
        self.n_features_in_ = d = int(make_sample_row(rows.inputs[0]).shape[1])
        counts = count_rows(rows)
        n, total = int(counts.sum()), None
        if weight is not None:
            total = float(reduce_parts(rows, _weight_of, _add_weights))
            if not self.bootstrap:
                raise InvalidParameterError(
                    "On Dask collections rows are drawn by their sample_weight with replacement "
                    "alone. Use bootstrap=True, or leave the weights out."
                )
        m = self._n_drawn(n, total)
        if not self.bootstrap and m > n:
            raise InvalidParameterError(
                f"Effective max_samples={m} must be <= n_samples={n} to be able to sample without "
                "replacement. Lower max_samples."
            )
        k = self._n_features(d)
        self._max_samples, self._max_features, self._seeds = m, k, seeds
        features = [_features(int(seed), d, k, self.bootstrap_features) for seed in seeds]
        whole = k == d and not self.bootstrap_features
        if whole:
            features = [np.arange(d)] * len(seeds)
        draws = Draws(seeds, n, m, self.bootstrap, total)
        return Bagged(rows, counts.cumsum() - counts, draws, features, whole)

    def _n_drawn(self, n: int, weight: float | None) -> int:
        given = self.max_samples
        if given is None:
            return n
        if isinstance(given, Integral):
            return int(given)
        return max(int(float(given) * (n if weight is None else weight)), 1)

    def _n_features(self, d: int) -> int:
        given = self.max_features
        k = int(given) if isinstance(given, Integral) else int(given * d)
        if k > d:
            raise InvalidParameterError(
                f"max_features must be <= n_features: {given} of {d}. Lower it."
            )
        return max(k, 1)

    def _fit_drawn(self, bagged: Bagged, sample: Any, params: dict[str, Any]) -> None:
        by_weight = has_fit_parameter(self.estimator_, "sample_weight")
        members = [
            self._make_estimator(append=False, random_state=int(seed))  # type: ignore[attr-defined]
            for seed in bagged.draws.seeds
        ]
        with doing(type(self).__name__, getattr(self, "verbose", 0)):
            tell(f"one fit of {len(members)} members")
            fitted = None if params else self._fit_stacked(bagged, sample, members)
            if fitted is None:
                fitted = self._fit_apart(bagged, sample, members, by_weight, params)
        self.estimators_ = self.estimators_ + fitted
        self.estimators_features_ = self.estimators_features_ + bagged.features
        weights = [part[2] for part in bagged.rows.parts] if bagged.draws.weight else None
        self._drawn_rows = DrawnRows(bagged.draws, bagged.starts, weights)
        self.__dict__.pop("oob_score_", None)
        if self.oob_score:
            self._set_unseen(bagged)

    def _fit_stacked(self, bagged: Bagged, sample: Any, members: list[Any]) -> list[Any] | None:
        """Members as columns of one fit; None where they cannot be."""
        classes = np.arange(self.n_classes_) if is_classifier(self) else None
        if not (bagged.whole and bagged.draws.weight is None and can_be_drawn(members, classes)):
            return None
        return fit_drawn(members, bagged.draws, *bagged.numbered(sample), classes)

    @staticmethod
    def _fit_apart(
        bagged: Bagged, sample: Any, members: list[Any], by_weight: bool, params: dict[str, Any]
    ) -> list[Any]:
        jobs = []
        for i, member in enumerate(members):
            X, y, weight = bagged.inputs(i, sample, by_weight)
            given = params if weight is None else {**params, "sample_weight": weight}
            jobs.append((member, X, y, given))
        return fit_members(jobs)

    def _set_unseen(self, bagged: Bagged) -> None:
        n_classes = self.n_classes_ if is_classifier(self) else None
        answers = unseen_answers(bagged, self.estimators_, n_classes)
        self.oob_score_, n_without = oob_scores(bagged, answers, n_classes)
        if n_without:
            warnings.warn(
                f"Some inputs ({n_without}) do not have OOB scores. This probably means too few "
                "estimators were used to compute any reliable oob estimates.",
                stacklevel=user_stack_level(),
            )
        width = () if n_classes is None else (n_classes,)
        table = as_array(
            [delayed(_shares, pure=False)(one) for one in answers],
            bagged.rows,
            np.empty((0, *width)),
        )
        name = "oob_prediction_" if n_classes is None else "oob_decision_function_"
        setattr(self, name, table)

    @property
    def estimators_samples_(self) -> list[Any]:
        """Numbers of the rows that each member has drawn; lazy after a fit to a Dask collection."""
        drawn = self._drawn_rows
        if drawn is None:
            found: list[Any] = super().estimators_samples_  # type: ignore[misc]
            return found
        return [drawn.of(i) for i in range(len(drawn.draws.seeds))]

    def __getstate__(self) -> dict[str, Any]:
        # Lazy attributes go with their collection.
        state: Any = super().__getstate__()
        if self._drawn_rows is not None and self._drawn_rows.weights is not None:
            state.pop("_drawn_rows")
        return {name: value for name, value in state.items() if not is_dask(value)}


def _features(seed: int, d: int, k: int, replace: bool) -> NDArray[np.int64]:
    state = check_random_state(seed)
    if replace:
        return np.asarray(state.randint(0, d, k), np.int64)
    return np.asarray(sample_without_replacement(d, k, random_state=state), np.int64)


def _weight_of(index: int, X: Any, y: Any, weight: Any) -> float:
    values = np.full(X.shape[0], weight) if np.ndim(weight) == 0 else np.asarray(weight, np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise InvalidDataError(
            f"Weights of block {index} are negative or not finite. Drop these rows."
        )
    return float(values.sum())


def _counted(draws: Draws, member: int, first: int, X: Any, weight: Any) -> NDArray[np.int64]:
    return draws.of(member, first, X.shape[0], weights_of(X.shape[0], weight))


def _with_numbers(y: Any, start: int) -> NDArray[np.float64]:
    targets = as_column(y, name="y")
    return np.column_stack([targets, np.arange(start, start + len(targets))]).astype(np.float64)


def _add_weights(parts: list[float]) -> float:
    return float(sum(parts))


def _as_floats(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return counts.astype(np.float64)


def _columns(features: NDArray[np.int64] | None, X: Any) -> Any:
    rows = X if sparse.issparse(X) else np.asarray(X)
    return rows if features is None else rows[:, features]


def _repeated(rows: Any, counts: NDArray[np.int64]) -> Any:
    return rows[np.repeat(np.arange(len(counts)), counts)]


def _shares(answers: tuple[Any, Any]) -> NDArray[np.float64]:
    """Out-of-bag answers of a block: shares of the classes, or means."""
    sums, n_members = answers
    with np.errstate(divide="ignore", invalid="ignore"):
        if sums.ndim == 2:
            return np.asarray(sums / sums.sum(axis=1)[:, None])
        return np.asarray(sums / np.maximum(n_members, 1))


class BaggingClassifier(Bagging, ensemble.BaggingClassifier):
    """Classifier by the mean probabilities, or votes, of members that each draw rows and columns.

    Rows in memory are scikit-learn's affair. On a Dask collection a row's draws follow from the
    seed, the member and the row's number among all, so the ensemble is the same on any number of
    workers. Members that take weights are given the draws as such, and no row is copied; for others
    rows are repeated where they lie. Linear ones of a solver are one fit; others of this package
    are fitted one after the other, each on the whole cluster; any others side by side, on rows
    gathered in a worker.

    Parameters
    ----------
    estimator, n_estimators, max_samples, max_features, bootstrap, bootstrap_features, oob_score, \
warm_start, random_state
        scikit-learn's. `estimator` is this package's `DecisionTreeClassifier` by default. On a Dask
        collection `max_samples` rows are drawn on average with replacement, and exactly without.
        `n_jobs` is for rows in memory.

    Attributes
    ----------
    estimator_, estimators_, estimators_features_, estimators_samples_, classes_, n_classes_, \
n_features_in_, feature_names_in_, oob_score_, oob_decision_function_
        scikit-learn's. After a fit to a Dask collection the samples and `oob_decision_function_`
        are lazy dask Arrays, which are not pickled.

    References
    ----------
    L. Breiman, "Bagging predictors", Machine Learning 24 (1996). N. Oza and S. Russell, "Online
    bagging and boosting", AISTATS (2001).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import BaggingClassifier
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> BaggingClassifier(GaussianNB(), n_estimators=3, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def _get_estimator(self) -> Any:
        return DecisionTreeClassifier() if self.estimator is None else self.estimator


class BaggingRegressor(Bagging, ensemble.BaggingRegressor):
    """Regressor by the mean of what members predict that each draw rows and columns.

    Rows in memory are scikit-learn's affair; Dask collections as in :class:`BaggingClassifier`.

    Parameters
    ----------
    estimator, n_estimators, max_samples, max_features, bootstrap, bootstrap_features, oob_score, \
warm_start, random_state
        As in :class:`BaggingClassifier`; `estimator` is this package's `DecisionTreeRegressor` by
        default.

    Attributes
    ----------
    estimator_, estimators_, estimators_features_, estimators_samples_, n_features_in_, \
feature_names_in_, oob_score_, oob_prediction_
        scikit-learn's; lazy ones as in :class:`BaggingClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import BaggingRegressor
    >>> from daskml_dist.linear_model import LinearRegression, Ridge
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = X @ np.array([1.0, 2.0])
    >>> BaggingRegressor(Ridge(), n_estimators=3, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def _get_estimator(self) -> Any:
        return DecisionTreeRegressor() if self.estimator is None else self.estimator
