"""Deviance of targets from their own mean: the denominator of D^2, added over blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends.namespace import cast
from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.losses.tweedie_deviances import compute_tweedie_deviances


@dataclass(frozen=True, eq=False)
class TotalDeviance:
    """Deviance of the targets from their own mean; that of disjoint rows is added.

    Parameters
    ----------
    power : float
    targets : WeightedMoments
    deviance : float
        Weighted sum.
    """

    power: float
    targets: WeightedMoments
    deviance: float

    @classmethod
    def from_values(cls, values: Any, weights: Any, power: float) -> TotalDeviance:
        """Return the deviance of some targets, which may lie on a GPU."""
        y = cast(values, np.dtype(np.float64))
        targets = WeightedMoments.from_values(y, weights)
        if power == 0:  # normal distribution
            return cls(power, targets, float(targets.squares[0]))
        origin, offset = float(targets.origin[0]), float(targets.offset[0])
        # A mean of 0 has no deviance: then all targets with a weight are 0 (or none has one).
        if power > 0 and origin + offset <= 0:
            return cls(power, targets, 0.0)
        mean = 0 * y + (origin + offset)
        deviances = compute_tweedie_deviances(y, mean, (y - origin) - offset, power)
        return cls(power, targets, float(copy_to_host(weights @ deviances)))

    def __add__(self, other: TotalDeviance) -> TotalDeviance:
        targets = self.targets + other.targets
        deviance = self.deviance + other.deviance
        # A deviance is twice a Bregman divergence (Banerjee et al., JMLR 2005): that of rows from
        # any point is that from their own mean, plus that of their mean from the point. For a power
        # of 0 this is the pairwise update of Chan, Golub and LeVeque.
        for part in (self.targets, other.targets):
            if part.weight > 0 and (self.power <= 0 or targets.mean[0] > 0):
                gap = (part.origin - targets.origin) + (part.offset - targets.offset)
                between = compute_tweedie_deviances(part.mean, targets.mean, gap, self.power)
                deviance += part.weight * float(between[0])
        return TotalDeviance(self.power, targets, deviance)
