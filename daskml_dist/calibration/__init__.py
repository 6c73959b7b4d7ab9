"""Calibration of the probabilities that classifiers predict."""

from __future__ import annotations

from daskml_dist.calibration.calibrated_classifier_cv import CalibratedClassifierCV
from daskml_dist.calibration.calibration_display import CalibrationDisplay
from daskml_dist.metrics.ranking import calibration_curve

__all__ = ["CalibratedClassifierCV", "CalibrationDisplay", "calibration_curve"]
