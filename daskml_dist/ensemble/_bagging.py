"""Bagging: members fitted to rows that each has drawn, of Dask collections."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement
from sklearn.utils.validation import has_fit_parameter

from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.containers import convert_named_columns
from daskml_dist.data.conversion import as_column, convert_to_host
from daskml_dist.data.feature_names import check_feature_names, remember_dtypes
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import doing, tell
from daskml_dist.ensemble._drawn_stacks import can_be_drawn, fit_drawn
from daskml_dist.ensemble._draws import DrawnRows, Draws, weights_of
from daskml_dist.ensemble._unseen import oob_scores, unseen_answers
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.outside import outside
from daskml_dist.errors.sklearn_errors import checked_as_theirs
from daskml_dist.inference.transform import sample_rows
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.lazy_labels import encoded, labels_of
from daskml_dist.meta_estimators.members import as_array, fit_members, here, params_of, taken
from daskml_dist.model_selection._split_rows import count_rows
from daskml_dist.parameters.checks import taking_client

__all__ = ["Bagged", "Bagging"]

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
                stacklevel=outside(),
            )
            return self
        bagged = self._drawn(X, y, weight, seeds)
        self._fit_drawn(bagged, sample_rows(bagged.rows.inputs[0]), more)
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
        self.n_features_in_ = d = int(sample_rows(rows.inputs[0]).shape[1])
        counts = count_rows(rows)
        n, total = int(counts.sum()), None
        if weight is not None:
            total = float(reduce_parts(rows, _weight_of, _added))
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
                stacklevel=outside(),
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


def _added(parts: list[float]) -> float:
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
