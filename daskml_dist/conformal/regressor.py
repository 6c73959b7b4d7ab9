"""Conformal intervals around a regressor's predictions: split conformal, CV+ and jackknife+."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from daskml_dist.conformal._held_out import CALIBRATION_SHARE, ConformalPredictor
from daskml_dist.conformal._score_tables import (
    ScoreKey,
    ScoreTable,
    find_conformal_rank,
    iterate_groups,
)
from daskml_dist.conformal._scores import RESIDUAL_SCORES, ResidualScore
from daskml_dist.errors import InvalidDataError
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.model_selection import ShuffleSplit
from daskml_dist.parameters.checks import check_flag, check_one_of

Floats = NDArray[np.float64]
#: Ways to combine the fits of several splits.
_METHODS = ("plus", "minmax", "base")


@dataclass(frozen=True, eq=False)
class _ScoredPrediction:
    """Score of a target by a fit's prediction; picklable."""

    score: ResidualScore

    def __call__(self, fit: Any, X: Any, y: Floats) -> Floats:
        return self.score(y, predict_numbers(fit, X))


def predict_numbers(fit: Any, X: Any) -> Floats:
    """Return the predictions of a regressor of one target, as float64 of one dimension."""
    predictions = np.asarray(fit.predict(X), np.float64)
    if predictions.ndim == 2 and predictions.shape[1] > 1:
        raise InvalidDataError(
            f"The regressor predicts {predictions.shape[1]} targets, but intervals are for one. "
            "Fit a regressor for each target."
        )
    return predictions.reshape(-1)


class IntervalRegressor(RegressorMixin, ConformalPredictor):
    """Base class of regressors that predict intervals, for rows in memory."""

    symmetric: bool

    @property
    def _n_sides(self) -> int:  # type: ignore[override]
        return 1 if self.symmetric else 2

    def _make_splitter(self) -> Any:
        return ShuffleSplit(1, test_size=CALIBRATION_SHARE, random_state=self.random_state)

    def predict(self, X: Any) -> Any:
        """Return point predictions, by the estimator alone."""
        return self._predict_points(self._read_rows(X))

    def _predict_points(self, X: Any) -> Any:
        """Return point predictions of rows in memory."""
        return self.estimator_.predict(X)

    def predict_interval(self, X: Any, alpha: float | None = None) -> Any:
        """Predict intervals that contain the targets of a share ``1 - alpha`` of new rows.

        Parameters
        ----------
        X : as in :meth:`fit`
        alpha : float, optional
            That of the constructor by default.

        Returns
        -------
        ndarray, or lazy dask Array where X is a Dask collection
            Of shape (n_rows, 2): lower and upper ends, float64; infinite if a row's likelihood
            ratio is too large for the calibration rows.

        Raises
        ------
        InvalidDataError
            The calibration rows are too few for `alpha`; a row is of a group that none of them has.
        """
        lazy = self._map_block_method("predict_interval", X, alpha, np.empty((0, 2)))
        if lazy is not None:
            return lazy
        level = float(self.alpha if alpha is None else alpha)
        return self._make_intervals(self._read_rows(X), level)

    @abstractmethod
    def _make_intervals(self, X: Any, alpha: float) -> Floats:
        """Return the intervals of rows in memory."""

    def _list_limits(self, X: Any, alpha: float) -> list[Floats]:
        """Return the quantile of the scores of each side, for each of the given rows."""
        groups, ratios = self._groups_of(X), self._ratios_of(X)
        return [
            self.tables_.limits_of_rows(side, alpha, groups, ratios, X.shape[0])
            for side in range(self.tables_.n_sides)
        ]


class ConformalRegressor(OnBlocks, IntervalRegressor):
    """Regressor with prediction intervals of guaranteed coverage.

    Any regressor, of this package, scikit-learn or with the same methods, is calibrated on rows
    that were not used to train it. An interval of a new row then contains its target with a
    probability of at least ``1 - alpha``, for any model and distribution of the rows, if
    calibration rows and new ones come from the same distribution (or differ by a known
    `likelihood_ratio`).

    Parameters
    ----------
    estimator : regressor
        A `FrozenEstimator` is not fitted again: all rows calibrate it.
    alpha : float, default=0.1
        Share of new rows whose interval may miss the target.
    conformity : {"absolute", "relative"}, default="absolute"
        Score of a target: its distance from the prediction, or that as a share of the prediction
        (of positive targets), which makes intervals grow with it.
    symmetric : bool, default=True
        Whether both sides have the same width; False calibrates each side to ``alpha / 2``.
    cv : int, splitter, iterable or None, default=None
        None: one split, with a quarter of the rows for calibration (split conformal). Several
        splits use all rows for both, each row scored by the fit that it was held out of: CV+, and
        jackknife+ with ``LeaveOneOut()``.
    method : {"plus", "minmax", "base"}, default="plus"
        With several splits: ``"plus"`` covers at least ``1 - 2 * alpha`` for certain and about
        ``1 - alpha`` in practice; ``"minmax"`` at least ``1 - alpha``, and is wider; ``"base"``
        puts the same quantile around the fit to all rows, which promises nothing.
    group_by : str, int, callable or None, default=None
        Groups that are each covered (Mondrian): a column of X by name or position, or a function of
        rows to labels.
    likelihood_ratio : callable, classifier or None, default=None
        Ratio of the densities of new and of calibration rows (covariate shift): a function of rows,
        or a fitted classifier of calibration rows (class 0) and new ones (class 1), whose odds are
        used. Only with one split.
    random_state : int, RandomState instance or None, default=None
        Seed of the split that ``cv=None`` makes.

    Attributes
    ----------
    estimator_ : regressor
        Fitted to the training rows of the only split, or to all rows if there are several.
    fold_estimators_ : list of regressor, or None
        Fits of several splits.
    n_splits_ : int
    tables_ : ScoreTables
        Distributions of the calibration scores.

    Notes
    -----
    Scores of up to 2**20 calibration rows are kept, and quantiles are exact in one pass. With more
    rows a second pass finds the quantile exactly (one split, ``"minmax"``, ``"base"``); ``"plus"``,
    and `likelihood_ratio`, use a sketch whose error bound widens intervals by some ten-thousandths
    of the rows.

    References
    ----------
    J. Lei et al., "Distribution-free predictive inference for regression", JASA 113 (2018).
    R. Foygel Barber, E. Candes, A. Ramdas and R. Tibshirani, "Predictive inference with the
    jackknife+", Annals of Statistics 49 (2021). R. Tibshirani et al., "Conformal prediction under
    covariate shift", NeurIPS (2019). V. Vovk, "Conditional validity of inductive conformal
    predictors", ACML (2012), for groups.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.conformal import ConformalRegressor
    >>> from daskml_dist.linear_model import Ridge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 2))
    >>> y = X @ [1.0, 2.0] + rng.normal(size=2000)
    >>> model = ConformalRegressor(Ridge(), alpha=0.1, random_state=0).fit(X[:1000], y[:1000])
    >>> low, high = model.predict_interval(X[1000:]).T
    >>> bool(0.85 < ((low <= y[1000:]) & (y[1000:] <= high)).mean() < 0.95)
    True
    """

    def __init__(
        self,
        estimator: Any,
        *,
        alpha: float = 0.1,
        conformity: str = "absolute",
        symmetric: bool = True,
        cv: Any = None,
        method: str = "plus",
        group_by: Any = None,
        likelihood_ratio: Any = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.alpha = alpha
        self.conformity = conformity
        self.symmetric = symmetric
        self.cv = cv
        self.method = method
        self.group_by = group_by
        self.likelihood_ratio = likelihood_ratio
        self.random_state = random_state

    def _score(self) -> Callable[[Any, Any, Any], Floats]:
        return _ScoredPrediction(ResidualScore(self.conformity == "relative", self.symmetric))

    def _check_params(self) -> None:
        check_one_of("conformity", self.conformity, RESIDUAL_SCORES)
        check_one_of("method", self.method, _METHODS)
        check_flag("symmetric", self.symmetric)

    def _pools_fits(self) -> bool:
        return super()._pools_fits() or self.method != "plus"

    def _make_intervals(self, X: Any, alpha: float) -> Floats:
        score = ResidualScore(self.conformity == "relative", self.symmetric)
        if self.n_splits_ > 1 and self.method == "plus":
            return self._join_intervals(X, score, alpha)
        widths = self._list_limits(X, alpha)  # one for both sides, or one for each
        # With `minmax` the ends are the outermost of all fits, else those of one fit.
        is_outermost = self.n_splits_ > 1 and self.method == "minmax"
        fits = self.fold_estimators_ if is_outermost else [self.estimator_]
        predicted = [predict_numbers(fit, X) for fit in fits]
        units = [score.find_units(center) for center in predicted]
        pairs = list(zip(predicted, units, strict=True))
        lows = [center - widths[0] * unit for center, unit in pairs]
        highs = [center + widths[-1] * unit for center, unit in pairs]
        return np.column_stack([np.min(lows, axis=0), np.max(highs, axis=0)])

    def _join_intervals(self, X: Any, score: ResidualScore, alpha: float) -> Floats:
        """Return the intervals of CV+ and jackknife+ (Barber et al. 2021)."""
        from daskml_dist.backends.fold_quantiles import select_shifted

        tables, by_key = self.tables_, self.tables_.tables
        # A row of fold k is compared with the new one by fit k, which was trained on neither of
        # them.
        centers = np.column_stack([predict_numbers(fit, X) for fit in self.fold_estimators_])
        units = np.column_stack([score.find_units(column) for column in centers.T])
        ends = np.empty((len(centers), 2))
        for group, rows in iterate_groups(self._groups_of(X), tables.groups):
            center, scale = np.ascontiguousarray(centers[rows]), np.ascontiguousarray(units[rows])
            # Each fit's prediction, minus and plus each score of the rows that it was held out of.
            # The lower end is the upper end of the mirrored numbers.
            for side, sign in ((0, -1.0), (tables.n_sides - 1, 1.0)):
                arrays = _FoldArrays.from_tables(by_key, group, side, centers.shape[1])
                rank = find_conformal_rank(arrays.weight, tables.share_of_side(alpha))
                bounds = np.empty(len(center))
                select_shifted(
                    sign * center, scale, arrays.values, arrays.reached, arrays.starts,
                    rank + arrays.error, bounds,
                )  # fmt: skip
                ends[rows, int(sign > 0)] = sign * bounds
        return ends


@dataclass(frozen=True, eq=False)
class _FoldArrays:
    """Sorted scores of all folds of a group, concatenated.

    Parameters
    ----------
    values, reached : ndarray of float64
        Scores, and the rows up to each in its fold.
    starts : ndarray of int64 of shape (n_folds + 1,)
    weight : float
        Rows of all folds.
    error : float
        By how much all of `reached` together may be too large.
    """

    values: Floats
    reached: Floats
    starts: NDArray[np.int64]
    weight: float
    error: float

    @classmethod
    def from_tables(
        cls, tables: Mapping[ScoreKey, ScoreTable], group: Any, side: int, n_folds: int
    ) -> _FoldArrays:
        """Return the scores of a group and side."""
        keys = [ScoreKey(fold, group, side) for fold in range(n_folds)]
        # A fold may lack a group.
        fold_tables = [tables.get(key) for key in keys]
        empty = np.empty(0)
        return cls(
            np.concatenate([empty if table is None else table.values for table in fold_tables]),
            np.concatenate([empty if table is None else table.reached for table in fold_tables]),
            np.cumsum([0, *(0 if table is None else len(table.values) for table in fold_tables)]),
            sum(0.0 if table is None else table.weight for table in fold_tables),
            sum(0.0 if table is None else table.error for table in fold_tables),
        )
