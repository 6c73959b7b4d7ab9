"""Bagging of any estimator: each member is fitted to rows and columns that it draws.

L. Breiman, "Bagging predictors", Machine Learning 24 (1996). Rows in memory are left to
scikit-learn. On a Dask collection `BaggingMixin.fit` draws rows by hashing their numbers
(`RowDraws`), so a draw needs no message between blocks, and can be repeated on any worker:
out-of-bag scores recompute which rows a member has drawn, and nothing is stored. Members are fitted
as one batched fit if possible, else one by one. A member that takes weights gets its counts of
draws as weights; for others the drawn rows are repeated, block by block.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from numbers import Integral
from operator import add, methodcaller
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray
from scipy import sparse, stats
from sklearn import ensemble
from sklearn.base import is_classifier, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement
from sklearn.utils.validation import has_fit_parameter

from daskml_dist.data.collection import Collection, as_collection, join_lazy_blocks
from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.data.conversion import (
    as_column,
    convert_named_columns,
    convert_to_host,
    expand_weights,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.permutations import Permutation, hash_numbers
from daskml_dist.data.reduce import count_rows, reduce_parts
from daskml_dist.data.row_checks import (
    check_feature_names,
    check_row_shape,
    make_no_rows_error,
    remember_dtypes,
)
from daskml_dist.diagnostics.operation_progress import report_operation, report_phase
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import translate_parameter_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.batched_fits.solver_rounds import (
    CandidateFits,
    NotBatchableError,
    can_batch,
    open_batched_models,
)
from daskml_dist.inference.block_mapping import make_sample_row, share_in_graph
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.members import (
    encode_labels,
    find_labels,
    find_numpy_dtype,
    fit_members,
    prepare_in_memory,
    prepare_lazy_inputs,
    route_member_params,
)
from daskml_dist.models.base import r2_of_sums
from daskml_dist.models.batched import FoldAssignment
from daskml_dist.parameters.checks import taking_client
from daskml_dist.solvers.batched_scores import ScoreParts
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor

#: Bits of a 64-bit hash beyond the 53 that a float64 holds, which are shifted out.
_SURPLUS_HASH_BITS = np.uint64(11)
#: Entries of the table of cumulative Poisson probabilities, which limits draws of one row to 64: at
#: an average of 10 draws per row, more have a probability below 1e-28.
_POISSON_TABLE_SIZE = 64
#: Seeds of members are below this number, as in scikit-learn.
_SEED_LIMIT = np.iinfo(np.int32).max


# --- draws of rows ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowDraws:
    """Number of times that each member draws each row, computed from the row's global number.

    Parameters
    ----------
    seeds : ndarray of int64 of shape (n_members,)
    n_rows : int
        Number of rows of all blocks.
    n_drawn : int
        Number of rows that a member draws: exactly without replacement, on average with it.
    replace : bool
        Whether a row may be drawn again.
    weight : float or None
        Sum of the weights of all rows, if rows are drawn in proportion to their weights; None: all
        rows are drawn with the same probability.

    Notes
    -----
    With replacement the number of draws of a row is Poisson-distributed, the limit of n draws from
    n rows for many rows, and independent of all other rows (N. Oza and S. Russell, "Online bagging
    and boosting", AISTATS 2001). Without, rows are ranked by a pseudorandom permutation that can be
    computed for any single row, and the first ones are used.
    """

    seeds: NDArray[np.int64]
    n_rows: int
    n_drawn: int
    replace: bool
    weight: float | None = None

    def count_range(
        self, member: int, first: int, n: int, weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.int64]:
        """Return the draws of `n` rows, starting at row number `first`."""
        return self.count_rows(member, np.arange(first, first + n), weights)

    def count_rows(
        self, member: int, rows: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> NDArray[np.int64]:
        """Return the draws of the rows with these global numbers."""
        n, seed = len(rows), int(self.seeds[member])
        if not self.replace:
            if self.n_drawn >= self.n_rows:
                return np.ones(n, np.int64)
            return (Permutation(self.n_rows, (seed,))(rows) < self.n_drawn).astype(np.int64)
        # Hash the row's number twice, with two keys from the member's seed, to a uniform number in
        # [0, 1); then invert the Poisson distribution at it.
        key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        hashes = hash_numbers(hash_numbers(rows.astype(np.uint64), key[0]), key[1])
        uniform = (hashes >> _SURPLUS_HASH_BITS).astype(np.float64) * 2.0**-53
        if weights is None or self.weight is None:
            # All rows have one rate: a lookup in a table is several times as fast as `ppf`.
            table = stats.poisson.cdf(np.arange(_POISSON_TABLE_SIZE), self.n_drawn / self.n_rows)
            return np.searchsorted(table, uniform, side="right").astype(np.int64)
        rates = self.n_drawn * weights / self.weight
        # `ppf` is -1 if the rate is 0.
        return np.asarray(np.maximum(stats.poisson.ppf(uniform, rates), 0), np.int64)


@dataclass(frozen=True, eq=False)
class DrawnSamples:
    """Draws of a finished fit, stored without its rows.

    Parameters
    ----------
    draws : RowDraws
    starts : ndarray of int64 of shape (n_blocks,)
        Global number of each block's first row.
    weights : list or None
        Weights of the rows of each block, lazy or a float for all.
    """

    draws: RowDraws
    starts: NDArray[np.int64]
    weights: list[Any] | None

    def find_rows(self, member: int) -> da.Array:
        """Return the lazy numbers of the rows that a member drew, with repetitions."""
        find = delayed(partial(_repeat_row_numbers, self.draws, member), pure=False)
        stops = np.append(self.starts[1:], self.draws.n_rows)
        weights = self.weights or [None] * len(stops)
        pieces = [
            find(int(start), int(stop), weight)
            for start, stop, weight in zip(self.starts, stops, weights, strict=True)
        ]
        numbers: da.Array = da.concatenate(
            [da.from_delayed(piece, (np.nan,), dtype=np.int64) for piece in pieces]
        )
        return numbers


def _repeat_row_numbers(
    draws: RowDraws, member: int, start: int, stop: int, weight: Any
) -> NDArray[np.int64]:
    """Return the drawn rows' numbers among those of a block, from `start` to `stop`."""
    counts = draws.count_range(member, start, stop - start, _expand_weights(stop - start, weight))
    return np.repeat(np.arange(start, stop), counts)


def _expand_weights(n: int, weight: Any) -> NDArray[np.float64] | None:
    """Return a weight for each of a block's `n` rows, also from a single one; None stays None."""
    return None if weight is None else np.asarray(expand_weights(weight, n), np.float64)


@dataclass(frozen=True, eq=False)
class BaggedRows:
    """Rows of a fit and the draws of its members, from which the members' inputs are made.

    Parameters
    ----------
    rows : Collection
        Rows with targets and, if rows are drawn by them, weights.
    starts : ndarray of int64 of shape (n_blocks,)
        Global number of each block's first row.
    draws : RowDraws
    features : list of ndarray of int
        Columns that each member draws.
    all_features : bool
        Whether every member uses all columns, in order.
    """

    rows: Collection
    starts: NDArray[np.int64]
    draws: RowDraws
    features: list[NDArray[np.int64]]
    all_features: bool

    def draw_counts(self, member: int) -> list[Delayed]:
        """Return the lazy numbers of draws of the rows of each block."""
        count = delayed(partial(_count_block_draws, self.draws, member), pure=False)
        blocks = zip(self.rows.parts, self.starts, strict=True)
        return [count(int(start), X, weight) for (X, _, weight), start in blocks]

    def member_inputs(self, member: int, sample: Any, by_weight: bool) -> tuple[Any, Any, Any]:
        """Return X, y and weights for a member's fit; without weights, drawn rows are repeated.

        `sample` has some rows, with the container and dtype of the result.
        """
        X = self.rows.inputs[0]
        dtype = find_numpy_dtype(self.rows.inputs[1])
        y = self._map_parts(1, partial(as_column, name="y"), np.empty(0, dtype))
        counts = self.draw_counts(member)
        features = None if self.all_features else self.features[member]
        # Columns are selected per block; an array whose columns are all used is passed on
        # unchanged.
        if not (by_weight and self.all_features and not hasattr(X, "columns")):
            X = self._map_parts(0, partial(_select_columns, features), sample)
        if by_weight:
            # A row with weight k trains like k equal rows, and no row is copied.
            as_floats = delayed(methodcaller("astype", np.float64), pure=False)
            weights = [as_floats(block_counts) for block_counts in counts]
            return X, y, join_lazy_blocks(weights, self.rows, np.empty(0))
        # The number of rows of a block after its draws is unknown before it is computed.
        unknown = Collection(**{**vars(self.rows), "row_counts": None})
        repeat = delayed(_repeat_rows, pure=False)
        samples = _select_columns(features, sample), np.empty(0, y.dtype)
        repeated = []
        for value, sample_block in zip((X, y), samples, strict=True):
            blocks = zip(value.to_delayed().ravel(), counts, strict=True)
            drawn_blocks = [repeat(block, block_counts) for block, block_counts in blocks]
            repeated.append(join_lazy_blocks(drawn_blocks, unknown, sample_block))
        return repeated[0], repeated[1], None

    def numbered_inputs(self, sample: Any) -> tuple[Any, Any]:
        """Return X, and targets with the global numbers of the rows as a second column."""
        X = self.rows.inputs[0]
        if hasattr(X, "columns"):
            X = self._map_parts(0, partial(_select_columns, None), sample)
        number = delayed(_append_row_numbers, pure=False)
        blocks = zip(self.rows.parts, self.starts, strict=True)
        pieces = [number(part[1], int(start)) for part, start in blocks]
        return X, join_lazy_blocks(pieces, self.rows, np.empty((0, 2)))

    def _map_parts(self, input_index: int, function: Any, sample: Any) -> da.Array:
        """Apply a function to X (0) or y (1) of each block; `sample` is rows, or an empty y."""
        lazy = delayed(function, pure=False)
        sample_block = function(sample) if input_index == 0 else sample
        return join_lazy_blocks(
            [lazy(part[input_index]) for part in self.rows.parts], self.rows, sample_block
        )


def _count_block_draws(
    draws: RowDraws, member: int, first: int, X: Any, weight: Any
) -> NDArray[np.int64]:
    """Return how often a member draws each row of a block, whose first row has number `first`."""
    n = X.shape[0]
    return draws.count_range(member, first, n, _expand_weights(n, weight))


def _append_row_numbers(y: Any, start: int) -> NDArray[np.float64]:
    """Return columns of targets and global row numbers, which are exact in float64 below 2**53."""
    targets = as_column(y, name="y")
    return np.column_stack([targets, np.arange(start, start + len(targets))]).astype(np.float64)


def _select_columns(features: NDArray[np.int64] | None, X: Any) -> Any:
    """Return some columns of a block, or all, as an array."""
    rows = X if sparse.issparse(X) else np.asarray(X)
    return rows if features is None else rows[:, features]


def _repeat_rows(rows: Any, counts: NDArray[np.int64]) -> Any:
    """Return each row of a block repeated as often as it was drawn."""
    return rows[np.repeat(np.arange(len(counts)), counts)]


# --- linear members as one fit ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DrawAssignment(FoldAssignment):
    """Assignment of a batched fit in which each split is a member, and draws are weights.

    Codes of rows are their global numbers, from which the draws are computed when needed. Rows must
    be drawn with equal probabilities, since codes have no weights.
    """

    draws: RowDraws
    counted: ClassVar[bool] = True

    @property
    def n_splits(self) -> int:  # type: ignore[override]
        """Return the number of members."""
        return len(self.draws.seeds)

    def assign_roles(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int64]:
        """Return the draws of each row."""
        return self.draws.count_rows(split, codes)


def _fit_batched(
    members: Sequence[Any], draws: RowDraws, X: Any, y: Any, classes: NDArray[Any] | None
) -> list[Any] | None:
    """Fit clones of linear members as the columns of one fit; None if that is impossible.

    `y` holds targets and global row numbers, as `BaggedRows.numbered_inputs` returns them.
    """
    # A batched fit needs codes plus 1.
    collection = as_collection(X, y + np.array([0.0, 1.0]), None, multi_output=True)
    for member in members:
        member._check_params()
    # Each member is a separate candidate, fitted only to the split with the same number.
    pairs = [(k, k) for k in range(len(members))]
    try:
        with open_batched_models(members[0], collection, DrawAssignment(draws), classes) as batch:
            fits = CandidateFits(batch, members, pairs, (), ScoreParts()).compute_fits()
            fitted = [fit.estimator for fit in fits]
            for member in fitted:
                member.history_ = batch.job.make_history(*batch.last)
                remember_dtypes(member, X)
    except NotBatchableError:
        return None
    return fitted


# --- out-of-bag scores -----------------------------------------------------------------------


def _sum_oob_predictions(
    bagged: BaggedRows, fitted: list[Any], n_classes: int | None
) -> list[Delayed]:
    """Return for each block, lazily, the result of `_sum_block_oob_predictions`."""
    # A function without arguments that returns the tuple, so that it is sent to workers once.
    shared = share_in_graph(partial(tuple, (fitted, bagged.features, bagged.draws, n_classes)))
    predict = delayed(_sum_block_oob_predictions, pure=False)
    blocks = zip(bagged.rows.parts, bagged.starts, strict=True)
    return [predict(shared, int(start), X, weight) for (X, _, weight), start in blocks]


def _sum_block_oob_predictions(
    shared: Any, first: int, X: Any, weight: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return sums of the predictions of members for rows that they have not drawn.

    Also return the number of members that predicted each row. For a classifier, probabilities or
    votes are summed; for a regressor, predictions.
    """
    fitted, features_of_members, draws, n_classes = shared()
    n = X.shape[0]
    rows = X if sparse.issparse(X) else np.asarray(X)
    sums = np.zeros(n if n_classes is None else (n, n_classes))
    n_members = np.zeros(n, np.int64)
    weight = _expand_weights(n, weight)
    for number, (member, features) in enumerate(zip(fitted, features_of_members, strict=True)):
        undrawn = np.flatnonzero(draws.count_range(number, first, n, weight) == 0)
        if not len(undrawn):
            continue
        unseen = rows[undrawn][:, features]
        n_members[undrawn] += 1
        if n_classes is None:
            sums[undrawn] += member.predict(unseen)
        elif hasattr(member, "predict_proba"):
            # A member may have seen only some of the classes: it has columns only for these.
            class_numbers = np.asarray(member.classes_, np.int64)
            sums[np.ix_(undrawn, class_numbers)] += member.predict_proba(unseen)
        else:
            # Without probabilities, a member has one vote per row.
            sums[undrawn, np.asarray(member.predict(unseen), np.int64)] += 1
    return sums, n_members


def _score_oob_predictions(
    bagged: BaggedRows, predictions: list[Delayed], n_classes: int | None
) -> tuple[float, int]:
    """Return the accuracy, or R^2, of the predictions, and the number of rows without any."""
    parts = [
        (block, y, None) for block, (_, y, _) in zip(predictions, bagged.rows.parts, strict=True)
    ]
    # Without inputs, whose rows differ from those of these blocks.
    rows = replace(bagged.rows, parts=parts, inputs=(None, None, None))
    sums = reduce_parts(rows, partial(_sum_block_scores, n_classes), _add_block_scores)
    if n_classes is not None:
        n, n_without, n_right = sums
        return float(n_right / n), int(n_without)
    moments, (n_without, squared_errors) = sums
    # Moments are of deviations from the mean, whose sum is 0.
    return float(r2_of_sums(1.0, squared_errors, 0.0, moments.squares).item()), int(n_without)


def _sum_block_scores(
    n_classes: int | None, index: int, predictions: Any, y: Any, weight: Any
) -> Any:
    """Return a block's sums for the score and the number of rows without predictions.

    For a classifier (rows, rows without predictions, correct rows); for a regressor, moments of the
    targets, and (rows without predictions, squared errors). None for no rows.
    """
    sums, n_members = predictions
    y = as_column(y, name="y", index=index)
    if not len(y):
        return None
    n_without = (n_members == 0).sum()
    # As in scikit-learn, rows without predictions are scored too: as the first class, or as 0.
    if n_classes is not None:
        return np.array([len(y), n_without, (sums.argmax(axis=1) == y).sum()])
    predicted = sums / np.maximum(n_members, 1)
    values = y.astype(np.float64)
    squared_errors = ((values - predicted) ** 2).sum()
    return WeightedMoments.from_values(values, np.ones(len(y))), np.array(
        [n_without, squared_errors]
    )


def _add_block_scores(block_scores: list[Any]) -> Any:
    if not isinstance(block_scores[0], tuple):
        return np.sum(block_scores, axis=0)
    spreads, sums = zip(*block_scores, strict=True)
    return reduce(add, spreads), reduce(add, sums)


def _average_oob_predictions(predictions: tuple[Any, Any]) -> NDArray[np.float64]:
    """Return the out-of-bag shares of classes of a block's rows, or their mean predictions.

    For rows that every member drew, shares are NaN and means 0, as in scikit-learn.
    """
    sums, n_members = predictions
    with np.errstate(divide="ignore", invalid="ignore"):
        if sums.ndim == 2:
            return np.asarray(sums / sums.sum(axis=1)[:, None])
        return np.asarray(sums / np.maximum(n_members, 1))


# --- estimators ------------------------------------------------------------------------------


class BaggingMixin(OnBlocks):
    """Mixin of the bagged ensembles, placed before scikit-learn's class."""

    _reads_rows = True

    estimator: Any
    classes_: NDArray[Any]
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
    _drawn_rows: DrawnSamples | None = None

    @taking_client
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit each member to rows and columns that it draws.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
        y : dask Array or Series, or in memory, of shape (n_rows,), or the name of a column of X
        sample_weight : like `y`, optional
            Weights in proportion to which rows are drawn, as in recent versions of scikit-learn.
        client : distributed.Client, optional
            Client to compute with; the current one by default.
        **fit_params
            Metadata that scikit-learn's routing sends to members.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        self._check_estimator()
        self._drawn_rows = None
        X, y, sample_weight = convert_named_columns(*convert_to_host(X, y, sample_weight))
        if not is_dask(X):
            X, y, fit_arguments = prepare_in_memory(
                X, y, {**fit_params, "sample_weight": sample_weight}, labels=is_classifier(self)
            )
            if self._adds_members:
                self._check_same_columns(X, np.shape(X)[1:])
                if is_classifier(self):
                    self._check_same_labels(np.unique(np.asarray(y)))
            fitted: Self = super().fit(X, y, **fit_arguments)  # type: ignore[misc]
            remember_dtypes(self, X)
            return fitted
        with translate_parameter_errors():
            self._validate_params()  # type: ignore[attr-defined]
            # Sets `estimator_`, from which scikit-learn's `_make_estimator` makes the members.
            self._validate_estimator(self._get_estimator())  # type: ignore[attr-defined]
        X, y, params = prepare_lazy_inputs(X, y, {"sample_weight": sample_weight})
        # Without the weights, which affect the draws and are not passed to the members.
        (member_params,) = route_member_params(self, [("estimator", self.estimator_)], fit_params)
        if is_classifier(self):
            # As in scikit-learn, members are fitted to class numbers.
            labels = find_labels(y)
            if self._adds_members:
                self._check_same_labels(labels)
            self.classes_ = labels
            self.n_classes_ = len(self.classes_)
            y = encode_labels(y, self.classes_)
        weight = params.get("sample_weight")
        seeds = self._draw_member_seeds()
        if not len(seeds):
            warnings.warn(
                "Warm-start fitting without increasing n_estimators does not fit new trees.",
                stacklevel=user_stack_level(),
            )
            return self
        bagged = self._draw_inputs(X, y, weight, seeds)
        self._fit_members(bagged, make_sample_row(bagged.rows.inputs[0]), member_params)
        return self

    def _as_of_fit(self) -> Any:
        # scikit-learn divides the sum of the members' predictions by the parameter as it is now.
        n_members = len(vars(self).get("estimators_", ()))
        if n_members in (0, self.n_estimators):
            return self
        fitted = copy(self)
        fitted.n_estimators = n_members
        return fitted

    def _check_estimator(self) -> None:
        """Raise for an estimator whose predictions cannot be joined; scikit-learn fails later."""
        estimator = self.estimator
        if estimator is not None and not (
            hasattr(estimator, "fit") and hasattr(estimator, "predict")
        ):
            raise InvalidParameterError(
                f"The 'estimator' parameter of {type(self).__name__} must be an object "
                f"implementing 'fit' and 'predict' or None. Got {estimator!r} instead."
            )
        if is_classifier(self) and estimator is not None and is_regressor(estimator):
            raise InvalidParameterError(
                f"estimator={estimator!r} is a regressor, and its predictions are no votes for "
                "labels. Pass a classifier, or use BaggingRegressor."
            )

    @property
    def _adds_members(self) -> bool:
        """Return whether a fit adds to the members of the last one."""
        return self.warm_start and bool(vars(self).get("estimators_"))

    def _check_same_columns(self, X: Any, row_shape: tuple[int, ...]) -> None:
        """Raise for other columns than those of the last fit, to whose members a fit adds."""
        check_feature_names(self, X, reset=False)
        check_row_shape(row_shape, (self.n_features_in_,), type(self).__name__)

    def _check_same_labels(self, labels: NDArray[Any]) -> None:
        """Raise for other labels than those of the last fit, to whose members a fit adds."""
        if not np.array_equal(labels, self.classes_):
            raise InvalidDataError(
                f"warm_start=True adds to members that know the labels {self.classes_.tolist()}, "
                f"and y has {labels.tolist()}. Set warm_start=False."
            )

    def _draw_member_seeds(self) -> NDArray[np.int64]:
        """Return a seed for each member to be fitted."""
        if self.warm_start and self.oob_score:
            raise InvalidParameterError(
                "Out of bag estimate only available if warm_start=False. Change one of them."
            )
        if not self.bootstrap and self.oob_score:
            raise InvalidParameterError(
                "Out of bag estimation only available if bootstrap=True. Set it, or leave "
                "oob_score out."
            )
        n_fitted = len(self.estimators_) if self._adds_members else 0
        if n_fitted > self.n_estimators:
            raise InvalidParameterError(
                f"n_estimators={self.n_estimators} must be larger or equal to "
                f"len(estimators_)={n_fitted} when warm_start==True. Raise it."
            )
        state = check_random_state(self.random_state)
        if not n_fitted:
            self.estimators_, self.estimators_features_ = [], []
        else:
            # Skip the seeds of existing members, so that a warm start gives the same ensemble as
            # one fit of all.
            state.randint(_SEED_LIMIT, size=n_fitted)
        seeds: NDArray[np.int64] = state.randint(_SEED_LIMIT, size=self.n_estimators - n_fitted)
        return seeds

    def _draw_inputs(self, X: Any, y: Any, weight: Any, seeds: NDArray[np.int64]) -> BaggedRows:
        """Resolve `max_samples` and `max_features` to numbers, and draw rows and columns."""
        rows = as_collection(X, y, weight, numeric=False)
        d = int(make_sample_row(rows.inputs[0]).shape[1])
        if self._adds_members:
            self._check_same_columns(X, (d,))
        else:
            check_feature_names(self, X, reset=True)
        self.n_features_in_ = d
        counts = count_rows(rows)
        n, total = int(counts.sum()), None
        if not n:
            raise make_no_rows_error()
        # Rows are drawn with probabilities weight / total, which needs a pass over the weights.
        if weight is not None:
            total = reduce_parts(rows, _sum_block_weights, lambda parts: float(sum(parts)))
            if not self.bootstrap:
                raise InvalidParameterError(
                    "On Dask collections, sample_weight needs drawing with replacement. Use "
                    "bootstrap=True, or leave the weights out."
                )
        max_samples = n if self.max_samples is None else self.max_samples
        if isinstance(max_samples, Integral):
            m = int(max_samples)
        else:  # as in scikit-learn, a share of the rows, or of the sum of their weights
            m = max(int(float(max_samples) * (n if total is None else total)), 1)
        if not self.bootstrap and m > n:
            raise InvalidParameterError(
                f"Effective max_samples={m} must be <= n_samples={n} to be able to sample without "
                "replacement. Lower max_samples."
            )
        k = self.max_features
        k = int(k) if isinstance(k, Integral) else int(k * d)
        if k > d:
            raise InvalidParameterError(
                f"max_features must be <= n_features: {self.max_features} of {d}. Lower it."
            )
        k = max(k, 1)
        # Attributes that scikit-learn's own methods read.
        self._max_samples, self._max_features, self._seeds = m, k, seeds
        all_features = k == d and not self.bootstrap_features
        features = [
            np.arange(d)
            if all_features
            else _draw_columns(int(seed), d, k, self.bootstrap_features)
            for seed in seeds
        ]
        draws = RowDraws(seeds, n, m, self.bootstrap, total)
        return BaggedRows(rows, counts.cumsum() - counts, draws, features, all_features)

    def _fit_members(self, bagged: BaggedRows, sample: Any, params: dict[str, Any]) -> None:
        """Fit a member for each seed, in one batched fit if possible, and set attributes."""
        draws = bagged.draws
        members = [
            self._make_estimator(append=False, random_state=int(seed))  # type: ignore[attr-defined]
            for seed in draws.seeds
        ]
        classes = np.arange(self.n_classes_) if is_classifier(self) else None
        # A batched fit accepts no other arguments, reads the same columns for all its models, and
        # draws rows only by their numbers.
        may_batch = (
            not params
            and bagged.all_features
            and draws.weight is None
            and len(members) > 1
            and (classes is None or len(classes) > 1)
            and can_batch(members)
        )
        with report_operation(type(self).__name__, getattr(self, "verbose", 0)):
            report_phase(f"one fit of {len(members)} members")
            fitted = None
            if may_batch:
                fitted = _fit_batched(members, draws, *bagged.numbered_inputs(sample), classes)
            if fitted is None:
                by_weight = has_fit_parameter(self.estimator_, "sample_weight")
                jobs = []
                for i, member in enumerate(members):
                    X, y, weight = bagged.member_inputs(i, sample, by_weight)
                    member_params = (
                        params if weight is None else {**params, "sample_weight": weight}
                    )
                    jobs.append((member, X, y, member_params))
                fitted = fit_members(jobs)
        self.estimators_ = self.estimators_ + fitted
        self.estimators_features_ = self.estimators_features_ + bagged.features
        # Weights are needed to repeat the draws only if these were in proportion to weights
        # (`estimators_samples_`).
        weights = [part[2] for part in bagged.rows.parts] if draws.weight else None
        self._drawn_rows = DrawnSamples(draws, bagged.starts, weights)
        self.__dict__.pop("oob_score_", None)
        if self.oob_score:
            self._set_oob_attributes(bagged)

    def _set_oob_attributes(self, bagged: BaggedRows) -> None:
        """Set the out-of-bag score, and the lazy predictions on which it is based."""
        n_classes = self.n_classes_ if is_classifier(self) else None
        predictions = _sum_oob_predictions(bagged, self.estimators_, n_classes)
        self.oob_score_, n_without = _score_oob_predictions(bagged, predictions, n_classes)
        if n_without:
            warnings.warn(
                f"Some inputs ({n_without}) do not have OOB scores. This probably means too few "
                "estimators were used to compute any reliable oob estimates.",
                stacklevel=user_stack_level(),
            )
        row_shape = () if n_classes is None else (n_classes,)
        average = delayed(_average_oob_predictions, pure=False)
        averages = [average(block) for block in predictions]
        name = "oob_prediction_" if n_classes is None else "oob_decision_function_"
        setattr(self, name, join_lazy_blocks(averages, bagged.rows, np.empty((0, *row_shape))))

    @property
    def estimators_samples_(self) -> list[Any]:
        """Numbers of the rows that each member has drawn; lazy after a fit to a Dask collection."""
        drawn_samples = self._drawn_rows
        if drawn_samples is None:
            row_numbers: list[Any] = super().estimators_samples_  # type: ignore[misc]
            return row_numbers
        return [drawn_samples.find_rows(i) for i in range(len(drawn_samples.draws.seeds))]

    def __getstate__(self) -> dict[str, Any]:
        # Lazy attributes refer to the collection of the fit, which a pickle does not contain.
        state: Any = super().__getstate__()
        if self._drawn_rows is not None and self._drawn_rows.weights is not None:
            state.pop("_drawn_rows")
        return {name: value for name, value in state.items() if not is_dask(value)}


def _draw_columns(seed: int, d: int, k: int, replace: bool) -> NDArray[np.int64]:
    """Return the numbers of `k` of `d` columns, drawn as scikit-learn draws them."""
    state = check_random_state(seed)
    if replace:
        return np.asarray(state.randint(0, d, k), np.int64)
    return np.asarray(sample_without_replacement(d, k, random_state=state), np.int64)


def _sum_block_weights(index: int, X: Any, y: Any, weight: Any) -> float:
    """Return the sum of a block's weights, to which probabilities of draws are proportional."""
    values = _expand_weights(X.shape[0], weight)
    if values is None or not np.isfinite(values).all() or (values < 0).any():
        raise InvalidDataError(
            f"Weights of block {index} are negative or not finite. Drop these rows."
        )
    return float(values.sum())


class BaggingClassifier(BaggingMixin, ensemble.BaggingClassifier):
    """Bagging classifier: averages members that are fitted to drawn rows and columns.

    Rows in memory are left to scikit-learn. On a Dask collection the draws of a row depend on the
    seed, the member and the row's number among all, so the ensemble is the same on any number of
    workers. Members that take weights get the numbers of draws as weights, and no row is copied;
    for others, rows are repeated block by block on their workers. Linear members with a solver are
    fitted in one batched fit; others of this package one after the other, each on the whole
    cluster; members of other packages in parallel tasks, on rows gathered on a worker.

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


class BaggingRegressor(BaggingMixin, ensemble.BaggingRegressor):
    """Bagging regressor: averages members that are fitted to drawn rows and columns.

    Rows in memory are left to scikit-learn; Dask collections as in :class:`BaggingClassifier`.

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
