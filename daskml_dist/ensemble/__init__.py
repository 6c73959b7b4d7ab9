"""Ensembles of trees."""

from __future__ import annotations

from daskml_dist.ensemble.hist_gradient_boosting_classifier import HistGradientBoostingClassifier
from daskml_dist.ensemble.hist_gradient_boosting_regressor import HistGradientBoostingRegressor

__all__ = ["HistGradientBoostingClassifier", "HistGradientBoostingRegressor"]
