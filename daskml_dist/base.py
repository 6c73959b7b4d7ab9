"""Base classes for custom estimators; :doc:`/extending` shows how to use them.

An estimator trained by gradient steps derives from `BaseSteps`, one fitted by a round solver from
`BaseRounds`. An estimator that learns a target also derives from `Supervised`, or from
`BaseClassifier`, which adds labels, predictions and accuracy.
"""

from daskml_dist.estimators.base import BaseOnRows, Supervised
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.estimators.solver_rounds import BaseRounds

__all__ = ["BaseClassifier", "BaseOnRows", "BaseRounds", "BaseSteps", "Supervised"]
