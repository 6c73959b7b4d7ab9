"""R^2 of the regressors, of rows in memory or lazily."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.parameters.checks import check_some_weight

_Link = Callable[[NDArray[Any]], NDArray[Any]]


def score_r2(self: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Return R^2 of the prediction, in one pass over the blocks.

    Parameters
    ----------
    X, y, sample_weight
        As in :meth:`fit`.

    Returns
    -------
    float
        NaN where y is constant; the mean of that of each target where there are several.
    """
    # The method `score` of every regressor, which says by `_inverse_link` what raw predictions are.
    statistic = _Residuals(self._inverse_link())
    found: _Fit = self._sum_over_blocks(statistic, X, y, sample_weight)
    check_some_weight(found.targets.weight)
    errors, spread = found.errors, found.targets.squares
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(spread > 0, 1 - errors / spread, np.nan).mean())


@dataclass(frozen=True, eq=False)
class _Fit:
    """Sums that R^2 is made from: of targets, and of their weighted squared errors."""

    targets: WeightedMoments
    errors: NDArray[np.float64]

    def __add__(self, other: _Fit) -> _Fit:
        return _Fit(self.targets + other.targets, self.errors + other.errors)


class _Residuals:
    """Sums of some rows that R^2 is made from."""

    def __init__(self, inverse_link: _Link) -> None:
        self._inverse_link = inverse_link

    def __call__(self, y: NDArray[Any], raw: NDArray[Any], weight: NDArray[np.float64]) -> _Fit:
        predicted = self._inverse_link(raw).reshape(y.shape)
        residual = np.subtract(y, predicted, dtype=np.float64)
        return _Fit(WeightedMoments.of(y, weight), np.atleast_1d(weight @ residual**2))
