"""Ensembles: of trees, and of any other estimators."""

from __future__ import annotations

from daskml_dist.ensemble.bagging import BaggingClassifier, BaggingRegressor
from daskml_dist.ensemble.forests import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from daskml_dist.ensemble.hist_gradient_boosting import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from daskml_dist.ensemble.hist_gradient_boosting_ranker import HistGradientBoostingRanker
from daskml_dist.ensemble.voting_and_stacking import (
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)

__all__ = [
    "BaggingClassifier",
    "BaggingRegressor",
    "ExtraTreesClassifier",
    "ExtraTreesRegressor",
    "HistGradientBoostingClassifier",
    "HistGradientBoostingRanker",
    "HistGradientBoostingRegressor",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "StackingClassifier",
    "StackingRegressor",
    "VotingClassifier",
    "VotingRegressor",
]
