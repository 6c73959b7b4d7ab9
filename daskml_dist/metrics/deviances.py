"""Deviances of predicted means of Tweedie's distributions.

Source: Jorgensen (1987), "Exponential dispersion models".
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray
from scipy.special import xlogy

from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.metrics._columns import ScoredRows, called, check_total
from daskml_dist.metrics._faces import face
from daskml_dist.metrics._means import add, block_sums, mean_of_blocks
from daskml_dist.metrics._outputs import explained, undefined
from daskml_dist.metrics._readers import check_not_negative
from daskml_dist.metrics.regression import OF_ONE, SINGLE

__all__ = [
    "d2_tweedie_score",
    "mean_gamma_deviance",
    "mean_poisson_deviance",
    "mean_tweedie_deviance",
]


def _tweedie(y_true: Any, y_pred: Any, sample_weight: Any, *, power: float = 0) -> float:
    # A bad option is told before there is work.
    called(theirs.mean_tweedie_deviance, [1.0], [1.0], power=power)
    each = partial(theirs.mean_tweedie_deviance, power=power)
    return float(mean_of_blocks(each, SINGLE, y_true, y_pred, sample_weight)[0])


class _DevianceSums(NamedTuple):
    n_rows: int
    sums: NDArray[np.float64]  # of weights, of deviances and of the potential of y_true
    targets: WeightedMoments


def _d2(y_true: Any, y_pred: Any, sample_weight: Any, *, power: float = 0) -> Any:
    called(theirs.mean_tweedie_deviance, [1.0], [1.0], power=power)
    collection = SINGLE.align(y_true, y_pred, sample_weight)
    found = SINGLE.reduce(partial(_deviance, power=power), _merge, collection)
    if found.n_rows < 2:
        return undefined("D^2")
    weight, deviance, potential = found.sums
    check_total(weight)
    # A deviance is a Bregman divergence: from their mean, numbers have that of the mean of a
    # convex function over its value at the mean.
    mean = float(found.targets.mean[0])
    spread = found.targets.squares
    if power != 0:
        spread = np.array([2 * (potential - weight * float(_potential(np.array(mean), power)))])
    return explained(np.array([deviance]), np.maximum(spread, 0.0), "uniform_average")


def _deviance(rows: ScoredRows, power: float) -> _DevianceSums:
    weights = rows.weights
    check_not_negative(weights)
    sums = block_sums(partial(theirs.mean_tweedie_deviance, power=power), rows)
    potential = weights @ _potential(rows.y_true.astype("float64", copy=False), power)
    return _DevianceSums(
        len(weights), np.r_[sums, potential], WeightedMoments.of(rows.y_true, weights)
    )


def _merge(parts: list[_DevianceSums]) -> _DevianceSums:
    n_rows, sums, targets = zip(*parts, strict=True)
    spread = targets[0]
    for other in targets[1:]:
        spread = spread + other
    return _DevianceSums(sum(n_rows), add(list(sums)), spread)


def _potential(y: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Convex function that the deviance of a power comes of."""
    if power == 0:
        return np.zeros_like(y)  # its own sum of squares keeps more digits
    if power == 1:
        return np.asarray(xlogy(y, y))
    if power == 2:
        return np.asarray(-np.log(y))
    positive = np.maximum(y, 0.0) if power < 0 else y
    return np.asarray(positive ** (2 - power) / ((1 - power) * (2 - power)))


d2_tweedie_score = face(
    theirs.d2_tweedie_score,
    _d2,
    SINGLE,
    "Share of the deviance from the mean that is predicted.",
    of=OF_ONE,
    module=__name__,
)
mean_gamma_deviance = face(
    theirs.mean_gamma_deviance,
    partial(_tweedie, power=2),
    SINGLE,
    "Mean deviance of gamma distributions, which relative errors make.",
    of=OF_ONE,
    module=__name__,
)
mean_poisson_deviance = face(
    theirs.mean_poisson_deviance,
    partial(_tweedie, power=1),
    SINGLE,
    "Mean deviance of Poisson distributions, of counts.",
    of=OF_ONE,
    module=__name__,
)
mean_tweedie_deviance = face(
    theirs.mean_tweedie_deviance,
    _tweedie,
    SINGLE,
    "Mean deviance of Tweedie's distributions of a power.",
    of=OF_ONE,
    module=__name__,
)
