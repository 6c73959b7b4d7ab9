"""Fits of a conformal predictor, and the scores of rows that were not used to train them.

With one split (`cv=None`, ``ShuffleSplit(1)``) an estimator is fitted to the training rows and its
scores of the other rows calibrate it: split conformal prediction. With several splits each row is
scored by the fit that it was held out of (CV+, jackknife+). A frozen estimator is assumed to have
been trained on none of the rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags

from daskml_dist.conformal._score_tables import (
    HeldOutScores,
    ScoreTables,
    check_alpha,
    check_likelihood_ratios,
    tabulate_scores,
)
from daskml_dist.data.collection import Collection, as_collection, count_rows_of_block
from daskml_dist.data.conversion import (
    as_column,
    convert_foreign,
    convert_missing_to_nan,
    convert_named_columns,
    convert_to_host,
    copy_to_host,
    describe_block,
    take_rows,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.row_checks import check_group_labels
from daskml_dist.diagnostics.operation_progress import (
    report_operation,
    report_phase,
    report_reading,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.estimators.transformer import answer_lazily
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.inspection._blocks import check_column
from daskml_dist.meta_estimators.members import (
    check_given,
    check_weighable,
    copy_feature_attributes,
    fit_folds,
    fit_members,
    has_few_entries,
    prepare_in_memory,
    prepare_lazy_inputs,
)
from daskml_dist.model_selection._validation import Splits, fit_clone
from daskml_dist.models.batched import TEST, FoldAssignment
from daskml_dist.parameters.checks import taking_client

Array = NDArray[Any]
#: Share of the rows for calibration, if one split is made by default.
CALIBRATION_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class HeldOutScorer:
    """Scores of a block's held-out rows; callable because :func:`share_in_graph` shares functions.

    Parameters
    ----------
    fits : list
        For each split the fitted estimator, or tuple of several, that scores its test rows.
    folds : FoldAssignment or None
        None: the only fit was trained on none of the rows.
    score : callable
        ``score(fit, X, y)`` returns the scores of rows, of shape (n, n_sides).
    group : callable or None
        ``group(X, y)`` returns a label for each row.
    ratio : callable or None
        ``ratio(X)`` returns the likelihood ratio of each row.
    labels : bool
        Whether y holds labels.
    """

    fits: list[Any]
    folds: FoldAssignment | None
    score: Callable[[Any, Any, Array], NDArray[np.float64]]
    group: Callable[[Any, Array], Array] | None
    ratio: Callable[[Any], Any] | None
    labels: bool

    def __call__(self) -> HeldOutScorer:
        """Return self."""
        return self

    def score_block(self, index: int, X: Any, codes: Any, y: Any) -> HeldOutScores | None:
        """Return the scores of a block's held-out rows; None if there are none."""
        n = count_rows_of_block(X)
        if not n:
            return None
        # Members may be scikit-learn's, which support neither pandas' missing values nor GPUs.
        X = convert_missing_to_nan(copy_to_host(X))
        y = self._read_target(y, index, n)
        if self.folds is None:
            tested = [np.arange(n)]
        else:
            # With one split its training rows have no score; with several each row has one.
            roles = [self.folds.assign_roles(codes, k) == TEST for k in range(len(self.fits))]
            if len(roles) > 1 and not (np.sum(roles, axis=0) == 1).all():
                raise InvalidParameterError(
                    "cv: every row must be in the test rows of exactly one split, whose fit "
                    "scores it. Use KFold, GroupKFold, LeaveOneOut, or one split: "
                    "ShuffleSplit(1)."
                )
            tested = [np.flatnonzero(role) for role in roles]
        parts = [
            self._score_rows(number, take_rows(X, rows), y[rows])
            for number, rows in enumerate(tested)
            if len(rows)
        ]
        return _join_scores(parts) if parts else None

    def _read_target(self, values: Any, index: int, n: int) -> Array:
        """Return the targets of a block, checked."""
        y = check_column(values, "y", index, n)
        if self.labels:
            return y
        y = y.astype(np.float64)
        if not np.isfinite(y).all():
            raise InvalidDataError(
                f"{describe_block(index)}Input y contains NaN or infinity. Drop these rows."
            )
        return y

    def _score_rows(self, split_index: int, X: Any, y: Array) -> HeldOutScores:
        """Return the scores of rows by the fit of a split."""
        n = len(y)
        scores = np.asarray(self.score(self.fits[split_index], X, y), np.float64)
        if np.isnan(scores).any():
            raise InvalidDataError(
                "The estimator predicts NaN for some calibration rows, which cannot be used. "
                "Impute missing values: SimpleImputer()."
            )
        return HeldOutScores(
            scores,
            np.full(n, split_index),
            None if self.group is None else self.group(X, y),
            None if self.ratio is None else check_likelihood_ratios(self.ratio(X), n),
        )


def _join_scores(fit_scores: list[HeldOutScores]) -> HeldOutScores:
    """Return the scores of several fits as one."""
    if len(fit_scores) == 1:
        return fit_scores[0]
    groups = (
        None if fit_scores[0].groups is None else np.concatenate([p.groups for p in fit_scores])
    )
    ratios = (
        None if fit_scores[0].ratios is None else np.concatenate([p.ratios for p in fit_scores])
    )
    scores, members = (
        np.concatenate([getattr(p, name) for p in fit_scores]) for name in ("scores", "members")
    )
    return HeldOutScores(scores, members, groups, ratios)


def _score_block(shared: Any, index: int, X: Any, codes: Any, y: Any) -> Any:
    scorer: HeldOutScorer = shared()
    return scorer.score_block(index, X, codes, y)


def score_held_out(rows: Collection, codes: list[Any], scorer: HeldOutScorer) -> Collection:
    """Return a collection whose blocks are the `HeldOutScores` of the blocks of rows."""
    if rows.kind == "memory":
        # Scored immediately, once for all passes.
        parts = [
            (scorer.score_block(i, X, code, y), None, None)
            for i, ((X, y, _), code) in enumerate(zip(rows.parts, codes, strict=True))
        ]
    else:
        score, shared = delayed(_score_block, pure=False), share_in_graph(scorer)
        parts = [
            (score(shared, i, X, code, y), None, None)
            for i, ((X, y, _), code) in enumerate(zip(rows.parts, codes, strict=True))
        ]
    return replace(rows, parts=parts, inputs=(None, None, None))  # the inputs are other rows


# --- groups of rows and likelihood ratios -------------------------------------------------------


@dataclass(frozen=True)
class ColumnGroups:
    """Groups of rows by the values of a column of X, by its name or position."""

    column: Any

    def __call__(self, X: Any, y: Any = None) -> Array:
        """Return the label of each row."""
        if isinstance(self.column, str):
            if not hasattr(X, "columns") or self.column not in X.columns:
                raise InvalidParameterError(
                    f"group_by={self.column!r} names no column of X. Use one of its names, a "
                    "position, or a function of rows."
                )
            values = X[self.column]
        else:
            values = X.iloc[:, self.column] if hasattr(X, "iloc") else X[:, self.column]
        return check_group_labels(as_column(values, name="group_by"), "group_by")


@dataclass(frozen=True, eq=False)
class FunctionGroups:
    """Groups of rows by a function of the user's."""

    function: Callable[[Any], Any]

    def __call__(self, X: Any, y: Any = None) -> Array:
        """Return the label of each row."""
        labels = as_column(self.function(X), name="group_by")
        if len(labels) != count_rows_of_block(X):
            raise InvalidParameterError(
                f"group_by gives {len(labels)} labels for {count_rows_of_block(X)} rows. Give one "
                "per row."
            )
        return check_group_labels(labels, "group_by")


def make_groups(group_by: Any) -> Callable[..., Array] | None:
    """Return the function of rows for `group_by`."""
    if group_by is None:
        return None
    if callable(group_by):
        return FunctionGroups(group_by)
    is_position = isinstance(group_by, int | np.integer) and not isinstance(group_by, bool)
    if isinstance(group_by, str) or is_position:
        return ColumnGroups(group_by)
    raise InvalidParameterError(
        f"group_by={group_by!r}: use a column's name or position, a function of rows, or None."
    )


@dataclass(frozen=True, eq=False)
class ClassifierRatio:
    """Likelihood ratio of rows: a classifier's odds that a row is a new one (its second class)."""

    classifier: Any

    def __call__(self, X: Any) -> NDArray[np.float64]:
        """Return the ratio of each row."""
        p = np.asarray(self.classifier.predict_proba(X), np.float64)
        # A bound on the odds, so that a row with probability 1 does not get all the weight.
        return np.asarray(p[:, 1] / np.maximum(p[:, 0], 1e-12))


def make_ratio(likelihood_ratio: Any) -> Callable[[Any], Any] | None:
    """Return the function of rows for `likelihood_ratio`."""
    if likelihood_ratio is None:
        return None
    if hasattr(likelihood_ratio, "predict_proba"):
        if len(getattr(likelihood_ratio, "classes_", ())) != 2:
            raise InvalidParameterError(
                "likelihood_ratio: the classifier is not fitted, or does not have two classes. "
                "Fit it to calibration rows as class 0 and new rows as class 1."
            )
        return ClassifierRatio(likelihood_ratio)
    if callable(likelihood_ratio):
        ratio: Callable[[Any], Any] = likelihood_ratio
        return ratio
    raise InvalidParameterError(
        f"likelihood_ratio={likelihood_ratio!r}: use a function of rows, or a fitted classifier "
        "that separates calibration rows (class 0) from new rows (class 1)."
    )


# --- the base of conformal predictors -----------------------------------------------------------


class ConformalPredictor(MetaEstimatorMixin, BaseEstimator):
    """Base class of estimators that calibrate another one on rows that were not used to train it.

    A subclass defines the scores of rows (:meth:`_score`) and makes intervals or sets from the
    distributions of scores, `tables_`.
    """

    estimator: Any
    alpha: float
    cv: Any
    group_by: Any
    likelihood_ratio: Any
    random_state: Any
    estimator_: Any
    fold_estimators_: Any
    n_splits_: int
    tables_: ScoreTables
    #: Whether y holds labels.
    _labels = False
    #: Number of sides of intervals that are calibrated separately.
    _n_sides = 1

    # -- defined by subclasses ----------------------------------------------------------------

    @abstractmethod
    def _score(self) -> Callable[[Any, Any, Array], NDArray[np.float64]]:
        """Return a picklable function of (fit, X, y) to scores, of shape (n, n_sides)."""

    @abstractmethod
    def _make_splitter(self) -> Any:
        """Return the splitter of one split for ``cv=None``."""

    def _list_members(self) -> list[Any]:
        """Return the unfitted estimators that score a row together."""
        return [self.estimator]

    def _make_groups(self) -> Callable[..., Array] | None:
        return make_groups(self.group_by)

    def _check_params(self) -> None:
        """Raise for invalid parameters."""

    def _pools_fits(self) -> bool:
        """Return whether the scores of all fits are pooled in one distribution."""
        if self.n_splits_ > 1 and self.likelihood_ratio is not None:
            raise InvalidParameterError(
                f"likelihood_ratio needs a single split, and cv={self.cv!r} makes "
                f"{self.n_splits_}. Leave cv=None."
            )
        return self.n_splits_ == 1

    # -- fitting --------------------------------------------------------------------------------

    @taking_client
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the estimator, and calibrate it on rows that were not used to train it.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
        y : dask Array or Series, or in memory, of shape (n_rows,), or the name of a column of X
        sample_weight : like `y`, optional
            Weights in the fit of the estimator; calibration rows count one each.
        client : distributed.Client, optional
            Client to compute with; the current one by default.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A parameter is invalid.
        InvalidDataError
            The calibration rows are too few for `alpha`; the error names the possible coverage.
        """
        check_given(y)
        alpha = check_alpha(self.alpha)
        self._check_params()
        # A fit that fails must not leave scores of the previous fit together with other estimators.
        self.__dict__.pop("tables_", None)
        groups, ratio = self._make_groups(), make_ratio(self.likelihood_ratio)
        X, y, sample_weight = convert_named_columns(*convert_to_host(X, y, sample_weight))
        weighted = {} if sample_weight is None else {"sample_weight": sample_weight}
        check_weighable([("estimator", member) for member in self._list_members()], weighted)
        if is_dask(X):
            X, y, params = prepare_lazy_inputs(X, y, weighted)
        else:
            X, y, params = prepare_in_memory(X, y, weighted, labels=self._labels)
            X = self._read_rows(X)
        y = self._prepare_target(X, y)
        with report_operation(type(self).__name__, None):
            fits, folds, codes = self._fit_splits(X, y, params)
            pooled = self._pools_fits()
            # Scores are a lazy collection like the rows: each block is scored on its worker.
            report_phase("calibrating")
            rows = as_collection(
                X, y, None, numeric=False, classification=self._labels, any_shape=True
            )
            scorer = HeldOutScorer(fits, folds, self._score(), groups, ratio, self._labels)
            blocks = score_held_out(rows, codes or [None] * len(rows.parts), scorer)
            if pooled:
                blocks = _pool_fits(blocks)
            with report_reading("calibrating"):
                tables = tabulate_scores(
                    blocks, (alpha / self._n_sides,), self._n_sides, weighted=ratio is not None
                )
        # With ratios the weight of a new row matters: if that of the other rows is too small, its
        # interval is infinite.
        if ratio is None:
            tables.check_enough(alpha)
        self.tables_ = tables
        first = fits[0]
        copy_feature_attributes(self, first[0] if isinstance(first, tuple) else first)
        return self

    def _prepare_target(self, X: Any, y: Any) -> Any:
        """Return the targets in the form that members are fitted to."""
        return y

    def _fit_splits(
        self, X: Any, y: Any, params: dict[str, Any]
    ) -> tuple[list[Any], FoldAssignment | None, list[Any]]:
        """Fit the estimators of all splits; return each split's scoring fit, and the rows' codes.

        `estimator_` is set, and `fold_estimators_` if there are several splits.
        """
        members = self._list_members()
        if all(isinstance(member, FrozenEstimator) for member in members):
            for member in members:
                check_fitted(member)
            fitted = tuple(members) if len(members) > 1 else members[0]
            self.n_splits_, self.fold_estimators_ = 1, None
            self.estimator_ = self._choose_point_estimator(fitted)
            return [fitted], None, []
        cv = self._make_splitter() if self.cv is None else self.cv
        has_few = has_few_entries(X)
        by_member = []
        splits = Splits(self, X, y, None, params, cv)
        for member in members:
            by_member.append(fit_folds(member, splits, has_few))
        fits = list(zip(*by_member, strict=True)) if len(members) > 1 else by_member[0]
        self.n_splits_ = splits.n_splits
        if self.n_splits_ == 1:
            self.fold_estimators_ = None
            self.estimator_ = self._choose_point_estimator(fits[0])
        else:
            # Point predictions use the fit to all rows; intervals and sets use the folds' fits.
            self.fold_estimators_ = fits
            self.estimator_ = self._fit_all(members, X, y, params, has_few)
        codes = [splits.codes] if splits.codes is not None else splits.rows.code_parts
        return fits, splits.roles, codes

    def _choose_point_estimator(self, fitted: Any) -> Any:
        """Return the fit for point predictions, among those of one split."""
        return fitted

    def _fit_all(
        self, members: list[Any], X: Any, y: Any, params: dict[str, Any], has_few_rows: bool
    ) -> Any:
        """Return the estimator fitted to all rows."""
        (member,) = members
        if not is_dask(X):
            return fit_clone(member, X, y, params)
        return fit_members([(member, X, y, params)], has_few_rows)[0]

    # -- predicting -----------------------------------------------------------------------------

    def _map_block_method(self, name: str, X: Any, alpha: Any, empty: Array) -> Any:
        """Return the lazy results of a method for a Dask collection; None for rows in memory.

        `empty` is the result of no rows: a made-up row may be of no group, or refused by a score.
        """
        check_fitted(self)
        level = check_alpha(self.alpha if alpha is None else alpha)
        # Weighted quantiles depend on the new row, and are infinite if rows are too few.
        if self.likelihood_ratio is None:
            self.tables_.check_enough(level)
        if is_dask(X := convert_foreign(X)):
            return answer_lazily(self, name, X, {"alpha": level}, empty)
        return None

    def _read_rows(self, X: Any) -> Any:
        """Return rows in memory in the form that members need."""
        rows = convert_missing_to_nan(copy_to_host(convert_foreign(X)))
        return rows if hasattr(rows, "shape") else np.asarray(rows)

    def _groups_of(self, X: Any) -> Array | None:
        """Return the groups of rows; None without groups."""
        groups = self._make_groups()
        return None if groups is None else groups(X)

    @property
    def _first_estimator(self) -> Any:
        """Return the estimator that the user gave; the first if there are several."""
        is_sequence = isinstance(self.estimator, tuple | list) and len(self.estimator)
        return self.estimator[0] if is_sequence else self.estimator

    def _ratios_of(self, X: Any) -> NDArray[np.float64] | None:
        """Return the likelihood ratios of rows; None without them."""
        ratio = make_ratio(self.likelihood_ratio)
        return None if ratio is None else check_likelihood_ratios(ratio(X), X.shape[0])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "tables_")

    def __sklearn_tags__(self) -> Any:
        tags, wrapped = super().__sklearn_tags__(), get_tags(self._first_estimator)
        tags.input_tags = wrapped.input_tags
        tags.target_tags = wrapped.target_tags
        return tags


def _pool_fits(blocks: Collection) -> Collection:
    """Return blocks of scores whose rows all count as scored by fit 0."""
    pool = _pool_block if blocks.kind == "memory" else delayed(_pool_block, pure=False)
    return replace(blocks, parts=[(pool(part[0]), None, None) for part in blocks.parts])


def _pool_block(block_scores: HeldOutScores | None) -> HeldOutScores | None:
    return (
        None
        if block_scores is None
        else replace(block_scores, members=np.zeros_like(block_scores.members))
    )
