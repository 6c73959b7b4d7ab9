"""Intervals of a stream whose data drift: the level is adapted to the observed errors.

I. Gibbs and E. Candes, "Adaptive conformal inference under distribution shift", NeurIPS 2021. After
each row the level rises by ``gamma * alpha`` if the interval contained the target, and falls by
``gamma * (1 - alpha)`` if it did not. For any data, the share of errors in T rows then differs from
alpha by ``(max(alpha, 1 - alpha) + gamma) / (gamma * T)`` at most.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, insort
from collections import deque
from typing import Any, Self

import numpy as np
from dask.base import compute
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone

from daskml_dist.conformal._score_tables import check_alpha, find_conformal_rank
from daskml_dist.conformal.regressor import predict_numbers
from daskml_dist.data.blocks import check_length
from daskml_dist.data.collection import (
    as_collection,
    count_rows_of_block,
    take_named_columns,
)
from daskml_dist.data.conversion import as_column, convert_foreign, convert_missing_to_nan
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.row_checks import check_feature_names
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.estimators.transformer import answer_lazily
from daskml_dist.inference.fitted import is_fitted
from daskml_dist.meta_estimators.members import copy_feature_attributes
from daskml_dist.parameters.checks import check_count, check_flag, check_number

Floats = NDArray[np.float64]


class AdaptiveConformalInference(EstimatorMixin, MetaEstimatorMixin, BaseEstimator):
    """Prediction intervals on a stream that keep their coverage under drift.

    Each batch is predicted before its targets are learned. The width of intervals is a quantile of
    the last rows' scores, at a level that is adapted to the errors (Gibbs and Candes 2021).

    Parameters
    ----------
    estimator : regressor
        A fitted one predicts without changes until the first batch is learned; an unfitted one
        learns the first batch.
    alpha : float, default=0.1
        Share of rows whose interval may miss the target.
    gamma : float, default=0.01
        By how much an error moves the level: more follows drifts faster, and lets the width vary
        more.
    window : int, default=1000
        Number of last rows whose scores determine the width.
    update : bool, default=True
        Whether the estimator learns each batch, by ``partial_fit``, once it was predicted.

    Attributes
    ----------
    estimator_ : regressor
    level_ : float
        Level of the next interval; at 0 and below it is infinite, at 1 and above empty.
    n_rows_, n_errors_ : int
        Number of predicted rows, and of those outside of their intervals.
    coverage_ : float
        Share of rows inside; NaN before the first one.

    Notes
    -----
    The share of errors in T rows differs from `alpha` by at most
    ``(max(alpha, 1 - alpha) + gamma) / (gamma * T)``, on any data.

    References
    ----------
    I. Gibbs and E. Candes, "Adaptive conformal inference under distribution shift", NeurIPS (2021).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.conformal import AdaptiveConformalInference
    >>> from daskml_dist.linear_model import SGDRegressor
    >>> rng = np.random.default_rng(0)
    >>> model = AdaptiveConformalInference(SGDRegressor(learning_rate=0.1, random_state=0))
    >>> for batch in range(20):
    ...     X = rng.normal(size=(100, 2))
    ...     model = model.partial_fit(X, X @ [1.0, batch] + rng.normal(size=100))
    >>> 0.8 < model.coverage_ < 1
    True
    """

    estimator_: Any
    level_: float
    n_rows_: int
    n_errors_: int
    _scores: Floats

    def __init__(
        self,
        estimator: Any,
        *,
        alpha: float = 0.1,
        gamma: float = 0.01,
        window: int = 1000,
        update: bool = True,
    ) -> None:
        self.estimator = estimator
        self.alpha = alpha
        self.gamma = gamma
        self.window = window
        self.update = update

    @property
    def coverage_(self) -> float:
        """Share of rows inside their intervals."""
        n: int = getattr(self, "n_rows_", 0)
        return 1 - self.n_errors_ / n if n else float("nan")

    def fit(self, X: Any, y: Any = None) -> Self:
        """Begin a new stream with a batch; arguments and errors as in :meth:`partial_fit`.

        Returns
        -------
        self
        """
        fresh = clone(self)
        fresh.estimator = self.estimator  # a clone of a fitted one would have forgotten
        fresh.partial_fit(X, y)
        copy_feature_attributes(self, fresh)  # names of an earlier stream go
        self.__dict__.update(vars(fresh))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Predict a batch, adapt the level to its errors, and learn it.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
            Blocks of a Dask collection are batches in their order, computed one at a time.
        y : like a column of X, or its name

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A parameter is invalid, or the estimator cannot learn by ``partial_fit``.
        InvalidDataError
            Targets are missing, or NaN.
        """
        self._check_params()
        if y is None:
            raise InvalidDataError("requires y to be passed, but the target y is None. Pass y.")
        X, y, _ = take_named_columns(X, y, None)
        if hasattr(self, "level_"):
            check_feature_names(self, X, reset=False)
        rows = as_collection(X, y, None, numeric=False)
        # Blocks are computed one by one: each is predicted by the model learned from the previous
        # ones. The state is replaced after the whole batch: a batch that fails does not change it.
        updated = self._copy_state()
        for number, (block, target, _) in enumerate(rows.parts):
            index = None
            if rows.kind != "memory":
                (block, target), index = compute((block, target))[0], number
            if block.shape[0]:
                updated._take_batch(convert_missing_to_nan(block), target, index)
        self.__dict__.update(vars(updated))
        copy_feature_attributes(self, self.estimator_)
        return self

    def _check_params(self) -> None:
        check_alpha(self.alpha)
        check_number("gamma", self.gamma, lambda v: v > 0, "> 0")
        check_count("window", self.window)
        check_flag("update", self.update)
        needs_partial_fit = self.update or not is_fitted(
            vars(self).get("estimator_", self.estimator)
        )
        if needs_partial_fit and not hasattr(self.estimator, "partial_fit"):
            raise InvalidParameterError(
                f"{type(self.estimator).__name__} has no partial_fit. Pass a fitted estimator "
                "with update=False, or one that learns batch by batch, such as SGDRegressor."
            )

    def _copy_state(self) -> Self:
        """Return a copy that a batch may change."""
        copied = copy.copy(self)
        if not hasattr(self, "level_"):
            copied.level_, copied.n_rows_, copied.n_errors_ = float(self.alpha), 0, 0
            copied._scores = np.empty(0)
            is_ready = is_fitted(self.estimator)
            copied.estimator_ = copy.deepcopy(self.estimator) if is_ready else clone(self.estimator)
        else:
            copied.estimator_ = copy.deepcopy(self.estimator_) if self.update else self.estimator_
        return copied

    def _take_batch(self, X: Any, target: Any, index: int | None) -> None:
        """Predict a batch, adapt the level to its errors, and learn it."""
        column = as_column(target, name="y", index=index)
        check_length(count_rows_of_block(X), column, "y", index or 0)
        y = column.astype(np.float64)
        if not np.isfinite(y).all():
            raise InvalidDataError("Input y contains NaN or infinity. Drop these rows.")
        # The first batch of an unfitted model has no predictions, and no errors.
        if is_fitted(self.estimator_):
            scores = np.abs(y - predict_numbers(self.estimator_, X))
            if np.isnan(scores).any():
                raise InvalidDataError(
                    f"{type(self.estimator_).__name__} predicts NaN for some rows. Impute "
                    "missing values, or start again with fit() if the model has diverged."
                )
            self._follow_errors(scores)
            if not self.update:
                return
        self.estimator_.partial_fit(X, column)

    def _follow_errors(self, scores: Floats) -> None:
        """Change the level by the errors of rows, one after the other, and keep their scores."""
        window = deque(self._scores.tolist(), maxlen=int(self.window))
        ordered = sorted(window)  # kept in order beside the window: a quantile is one look
        for score in scores.tolist():
            is_error = score > _find_width(ordered, self.level_)
            # The update of Gibbs and Candes (2021): an error makes the next interval wider.
            self.level_ += self.gamma * (self.alpha - is_error)
            self.n_rows_ += 1
            self.n_errors_ += is_error
            # The oldest score leaves the window.
            if len(window) == window.maxlen:
                del ordered[bisect_left(ordered, window[0])]
            window.append(score)
            insort(ordered, score)
        self._scores = np.array(window)

    def predict_interval(self, X: Any) -> Any:
        """Predict intervals at the current level.

        Parameters
        ----------
        X : as in :meth:`partial_fit`

        Returns
        -------
        ndarray, or lazy dask Array if X is a Dask collection
            Of shape (n_rows, 2): lower and upper ends, float64; infinite if the scores of the
            window are too few for the level, and (inf, -inf) if the level is 1 or more.
        """
        check_fitted(self)
        if is_dask(X := convert_foreign(X)):
            return answer_lazily(self, "predict_interval", X, {}, np.empty((0, 2)))
        predicted = predict_numbers(self.estimator_, convert_missing_to_nan(X))
        width = _find_width(np.sort(self._scores).tolist(), self.level_)
        return np.column_stack([predicted - width, predicted + width])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "level_") and is_fitted(self.estimator_)


def _find_width(ordered: list[float], level: float) -> float:
    """Return the quantile of sorted scores; inf at levels <= 0, -inf at levels >= 1."""
    if level >= 1:
        return -np.inf
    # Levels leave [0, 1] by design: at 0 and below the next interval contains any target.
    n = len(ordered)
    rank = n + 1 if level <= 0 else find_conformal_rank(n, level)
    return ordered[rank - 1] if rank <= n else np.inf
