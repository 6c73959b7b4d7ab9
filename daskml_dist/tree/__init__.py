"""Decision trees."""

from __future__ import annotations

from daskml_dist.tree.decision_trees import DecisionTreeClassifier, DecisionTreeRegressor

__all__ = ["DecisionTreeClassifier", "DecisionTreeRegressor"]
