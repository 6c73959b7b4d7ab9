"""Methods shared by regressors: R^2 from one pass over the rows, and one more training pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import take_named_columns
from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.errors import DivergedError, InvalidDataError
from daskml_dist.losses.base import Loss
from daskml_dist.losses.survival import AFT, Cox
from daskml_dist.models.base import r2_of_sums
from daskml_dist.parameters.checks import check_some_weight

if TYPE_CHECKING:
    from daskml_dist.policies.base import Policy

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
        The mean over the targets if there are several. A constant target scores 1 if it is
        predicted exactly, else 0; with fewer than two rows it is NaN. For losses of censored times
        (:class:`daskml_dist.losses.AFT`) it is the concordance index.
    """
    loss = getattr(self, "_loss_of_fit", None)
    if isinstance(loss, AFT | Cox):
        return _score_concordance(self, loss, X, y, sample_weight)
    # The method `score` of every regressor; its `_inverse_link` turns raw predictions into targets.
    statistic = partial(_sum_squares, self._inverse_link())
    sums: _SquareSums = self._sum_over_blocks(statistic, X, y, sample_weight)
    check_some_weight(sums.targets.weight)
    if sums.n_rows < 2:
        return math.nan
    # Moments are of deviations from the mean, whose sum is 0.
    return float(r2_of_sums(sums.targets.weight, sums.errors, 0.0, sums.targets.squares).mean())


def _score_concordance(self: Any, loss: Loss, X: Any, y: Any, sample_weight: Any) -> float:
    """Return how often, of two comparable times, the longer one is predicted to be longer."""
    # Here, so that estimators do not import all metrics.
    from daskml_dist.metrics._columns import MissingValues
    from daskml_dist.metrics.survival import concordance_index

    X, y, sample_weight = take_named_columns(X, y, sample_weight)
    predicted = self.predict(X)
    # For hazards a larger prediction means a shorter time.
    predicted = -predicted if isinstance(loss, Cox) else predicted
    try:
        return concordance_index(y, predicted, sample_weight=sample_weight)
    except MissingValues as error:
        if error.column != "y_pred":
            raise
        # Raw predictions are finite, so their exponentials have overflowed.
        raise DivergedError(
            f"Some predictions are too large for floats. {loss.overflow_remedy}"
        ) from error


def partial_fit(
    self: Any, X: Any, y: Any = None, sample_weight: Any = None, *,
    policy: str | Policy | None = None, client: Any = None,
) -> Any:  # fmt: skip
    """Make one pass over more rows, starting from the last state.

    Parameters
    ----------
    X, y, sample_weight, policy, client
        As in :meth:`fit`.

    Returns
    -------
    self
    """
    self._fit_one_pass(X, y, sample_weight, policy, client, None)
    return self


@dataclass(frozen=True, eq=False)
class _SquareSums:
    """Sums from which R^2 is computed: moments of targets, and their weighted squared errors."""

    n_rows: int
    targets: WeightedMoments
    errors: NDArray[np.float64]

    def __add__(self, other: _SquareSums) -> _SquareSums:
        return _SquareSums(
            self.n_rows + other.n_rows, self.targets + other.targets, self.errors + other.errors
        )


def _sum_squares(
    inverse_link: _Link, y: NDArray[Any], raw: NDArray[Any], weight: NDArray[np.float64]
) -> _SquareSums:
    """Return the sums of some rows."""
    if raw.size != y.size:
        raise InvalidDataError(
            f"y has {y.size // len(y)} target(s) per row, and the model predicts "
            f"{raw.size // len(y)}. Pass the columns of y that the model was fitted to."
        )
    predicted = inverse_link(raw).reshape(y.shape)
    residual = np.subtract(y, predicted, dtype=np.float64)
    squared_errors = np.atleast_1d(weight @ residual**2)
    return _SquareSums(len(y), WeightedMoments.from_values(y, weight), squared_errors)
