"""Recommenders: items that users will like, learned from their ratings or use of items."""

from __future__ import annotations

from daskml_dist.recommender.als import ALS
from daskml_dist.recommender.factorization_machine import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
)
from daskml_dist.recommender.field_aware import FieldAwareFMClassifier
from daskml_dist.recommender.matrix_factorization import MatrixFactorization
from daskml_dist.recommender.two_tower import TwoTower
from daskml_dist.recommender.wide_and_deep import DeepFMClassifier, WideAndDeepClassifier

__all__ = [
    "ALS",
    "DeepFMClassifier",
    "FactorizationMachineClassifier",
    "FactorizationMachineRegressor",
    "FieldAwareFMClassifier",
    "MatrixFactorization",
    "TwoTower",
    "WideAndDeepClassifier",
]
