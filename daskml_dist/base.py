"""Base classes for estimators of your own; :doc:`/extending` shows how they are used.

An estimator trained by gradient steps derives from `BaseSteps`, one fitted by a round solver from
`BaseRounds`; one that learns a target derives from `Supervised` too, or from `BaseClassifier`,
which brings labels, predictions and accuracy.
"""

from daskml_dist.estimators.base import BaseOnRows, Supervised
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.estimators.solver_rounds import BaseRounds

__all__ = ["BaseClassifier", "BaseOnRows", "BaseRounds", "BaseSteps", "Supervised"]
