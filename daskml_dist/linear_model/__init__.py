"""Linear models trained by distributed gradient steps."""

from __future__ import annotations

from daskml_dist.linear_model.sgd_classifier import SGDClassifier
from daskml_dist.linear_model.sgd_regressor import SGDRegressor

__all__ = ["SGDClassifier", "SGDRegressor"]
