"""Conformalised quantile regression: calibrated intervals between two predicted quantiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from daskml_dist.conformal._scores import QuantileScore
from daskml_dist.conformal.regressor import IntervalRegressor, predict_numbers
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses import Quantile
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.parameters.checks import check_flag

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _ScoredQuantiles:
    """Score of a target by the predicted quantiles of three fits; picklable."""

    score: QuantileScore

    def __call__(self, fits: tuple[Any, ...], X: Any, y: Floats) -> Floats:
        return self.score(y, *predict_ends(fits, X))


def predict_ends(fits: tuple[Any, ...], X: Any) -> tuple[Floats, Floats]:
    """Return the lower and the upper predicted quantile of rows, in this order."""
    low, high = predict_numbers(fits[0], X), predict_numbers(fits[1], X)
    # Quantiles of separate fits may cross.
    return np.minimum(low, high), np.maximum(low, high)


class ConformalizedQuantileRegressor(OnBlocks, IntervalRegressor):
    """Quantile regressor whose intervals have a guaranteed coverage.

    Two quantiles, ``alpha / 2`` and ``1 - alpha / 2``, are fitted to the training rows. Their
    distance varies with the spread of the targets from row to row; calibration rows determine the
    shift of both with which intervals have the requested coverage.

    Parameters
    ----------
    estimator : regressor, or tuple of two or three
        Regressor with a quantile as a parameter, such as
        ``HistGradientBoostingRegressor(loss="quantile")``, ``SGDRegressor(loss="quantile")``,
        scikit-learn's ``QuantileRegressor()``, or a pipeline that ends in one. Or the regressors
        of the lower and the upper quantile, and of point predictions.
    alpha : float, default=0.1
        Share of new rows whose interval may miss the target.
    symmetric : bool, default=True
        Whether both ends are moved by the same amount; False calibrates each to ``alpha / 2``.
    quantile_param : str or None, default=None
        Name of the parameter that is the quantile; None: it is found.
    cv : splitter, iterable or None, default=None
        One split; None: a quarter of the rows calibrates.
    group_by, likelihood_ratio, random_state
        As in :class:`ConformalRegressor`.

    Attributes
    ----------
    estimator_ : regressor
        Estimator of point predictions: the median, or the third of those given; else None, and
        `predict` returns the middle of the interval before calibration.
    quantile_estimators_ : tuple of regressor
        Estimators of the lower and of the upper quantile.
    tables_ : ScoreTables
        Distributions of the calibration scores.

    References
    ----------
    Y. Romano, E. Patterson and E. Candes, "Conformalized quantile regression", NeurIPS (2019).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import QuantileRegressor
    >>> from daskml_dist.conformal import ConformalizedQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((2000, 1))
    >>> y = X[:, 0] * rng.normal(size=2000)
    >>> quantiles = QuantileRegressor(alpha=0)
    >>> model = ConformalizedQuantileRegressor(quantiles, alpha=0.2, random_state=0)
    >>> low, high = model.fit(X[:1000], y[:1000]).predict_interval(X[1000:]).T
    >>> bool(0.7 < ((low <= y[1000:]) & (y[1000:] <= high)).mean() < 0.9)
    True
    """

    def __init__(
        self,
        estimator: Any,
        *,
        alpha: float = 0.1,
        symmetric: bool = True,
        quantile_param: str | None = None,
        cv: Any = None,
        group_by: Any = None,
        likelihood_ratio: Any = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.alpha = alpha
        self.symmetric = symmetric
        self.quantile_param = quantile_param
        self.cv = cv
        self.group_by = group_by
        self.likelihood_ratio = likelihood_ratio
        self.random_state = random_state

    def _score(self) -> Callable[[Any, Any, Any], Floats]:
        return _ScoredQuantiles(QuantileScore(self.symmetric))

    def _check_params(self) -> None:
        check_flag("symmetric", self.symmetric)
        self._list_members()

    def _list_members(self) -> list[Any]:
        if isinstance(self.estimator, tuple | list):
            if len(self.estimator) not in (2, 3):
                raise InvalidParameterError(
                    f"estimator holds {len(self.estimator)} regressors: give one for the lower "
                    "quantile, one for the upper, and optionally one for point predictions."
                )
            return list(self.estimator)
        half_alpha = float(self.alpha) / 2
        # The median is for point predictions; scores use the other two.
        return [
            set_quantile(self.estimator, share, self.quantile_param)
            for share in (half_alpha, 1 - half_alpha, 0.5)
        ]

    def _pools_fits(self) -> bool:
        if self.n_splits_ > 1:
            raise InvalidParameterError(
                f"cv={self.cv!r} makes {self.n_splits_} splits, but quantiles are calibrated on "
                "a single split. Leave cv=None, or use ConformalRegressor for CV+."
            )
        return True

    def _choose_point_estimator(self, fitted: Any) -> Any:
        self.quantile_estimators_ = tuple(fitted[:2])
        return fitted[2] if len(fitted) == 3 else None

    def _fit_all(self, *args: Any) -> Any:
        return None  # `_pools_fits` refuses several splits

    def _predict_points(self, X: Any) -> Any:
        """Return the median, or the middle of two quantiles."""
        if self.estimator_ is not None:
            return super()._predict_points(X)
        return np.mean(predict_ends(self.quantile_estimators_, X), axis=0)

    def _make_intervals(self, X: Any, alpha: float) -> Floats:
        low, high = predict_ends(self.quantile_estimators_, X)
        widths = self._list_limits(X, alpha)
        return np.column_stack([low - widths[0], high + widths[-1]])


def set_quantile(estimator: Any, quantile: float, name: str | None) -> Any:
    """Return a clone of a regressor that estimates a quantile."""
    regressor = clone(estimator)
    params = regressor.get_params(deep=True)
    if name is not None:
        if name not in params:
            raise InvalidParameterError(
                f"quantile_param={name!r} is not a parameter of {type(estimator).__name__}."
            )
        return regressor.set_params(**{name: quantile})
    # The shortest name first: for a pipeline the last step that has one, for an estimator its own.
    for key in sorted(params, key=len):
        prefix, last = key[: key.rfind("__") + 2] if "__" in key else "", key.rpartition("__")[2]
        loss = params.get(f"{prefix}loss", params.get(f"{prefix}objective"))
        is_quantile = isinstance(loss, Quantile) or (isinstance(loss, str) and loss == "quantile")
        if last == "quantile":
            if loss is not None and not is_quantile:
                raise InvalidParameterError(
                    f"{prefix}loss={loss!r} does not estimate quantiles. Use "
                    f'{prefix}loss="quantile".'
                )
            return regressor.set_params(**{key: quantile})
        if last not in ("loss", "objective") or not is_quantile or f"{prefix}quantile" in params:
            continue
        # Estimators trained by steps have a loss; scikit-learn's GradientBoostingRegressor and
        # LightGBM name the quantile alpha.
        if isinstance(loss, Quantile) or f"{prefix}optimizer" in params:
            return regressor.set_params(**{key: Quantile(quantile)})
        if f"{prefix}alpha" in params:
            return regressor.set_params(**{f"{prefix}alpha": quantile})
    raise InvalidParameterError(
        f"{type(estimator).__name__} has no quantile parameter. Use a quantile regressor, such "
        'as HistGradientBoostingRegressor(loss="quantile"), name its parameter with '
        "quantile_param, or give a tuple of two regressors."
    )
