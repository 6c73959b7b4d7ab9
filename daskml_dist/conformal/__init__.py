"""Conformal prediction: intervals and label sets that contain the truth at a guaranteed rate."""

from __future__ import annotations

from daskml_dist.conformal.adaptive import AdaptiveConformalInference
from daskml_dist.conformal.classifier import ConformalClassifier
from daskml_dist.conformal.quantile_regressor import ConformalizedQuantileRegressor
from daskml_dist.conformal.regressor import ConformalRegressor

__all__ = [
    "AdaptiveConformalInference",
    "ConformalClassifier",
    "ConformalRegressor",
    "ConformalizedQuantileRegressor",
]
