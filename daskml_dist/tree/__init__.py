"""Decision trees."""

from __future__ import annotations

from daskml_dist.tree.decision_tree_classifier import DecisionTreeClassifier
from daskml_dist.tree.decision_tree_regressor import DecisionTreeRegressor

__all__ = ["DecisionTreeClassifier", "DecisionTreeRegressor"]
