"""Ensembles: of trees, and of any other estimators."""

from __future__ import annotations

from daskml_dist.ensemble.bagging_classifier import BaggingClassifier
from daskml_dist.ensemble.bagging_regressor import BaggingRegressor
from daskml_dist.ensemble.extra_trees_classifier import ExtraTreesClassifier
from daskml_dist.ensemble.extra_trees_regressor import ExtraTreesRegressor
from daskml_dist.ensemble.hist_gradient_boosting_classifier import HistGradientBoostingClassifier
from daskml_dist.ensemble.hist_gradient_boosting_regressor import HistGradientBoostingRegressor
from daskml_dist.ensemble.random_forest_classifier import RandomForestClassifier
from daskml_dist.ensemble.random_forest_regressor import RandomForestRegressor
from daskml_dist.ensemble.stacking_classifier import StackingClassifier
from daskml_dist.ensemble.stacking_regressor import StackingRegressor
from daskml_dist.ensemble.voting_classifier import VotingClassifier
from daskml_dist.ensemble.voting_regressor import VotingRegressor

__all__ = [
    "BaggingClassifier",
    "BaggingRegressor",
    "ExtraTreesClassifier",
    "ExtraTreesRegressor",
    "HistGradientBoostingClassifier",
    "HistGradientBoostingRegressor",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "StackingClassifier",
    "StackingRegressor",
    "VotingClassifier",
    "VotingRegressor",
]
