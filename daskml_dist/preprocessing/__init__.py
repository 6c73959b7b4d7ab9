"""Scaling and encoding, fitted in one pass over Dask collections and applied lazily."""

from __future__ import annotations

from daskml_dist.preprocessing.categorizer import Categorizer, DummyEncoder
from daskml_dist.preprocessing.encoders import LabelEncoder, OneHotEncoder, OrdinalEncoder
from daskml_dist.preprocessing.feature_expansions import KBinsDiscretizer, PolynomialFeatures
from daskml_dist.preprocessing.scalers import (
    MaxAbsScaler,
    MinMaxScaler,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from daskml_dist.preprocessing.target_encoder import TargetEncoder

__all__ = [
    "Categorizer",
    "DummyEncoder",
    "KBinsDiscretizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PolynomialFeatures",
    "QuantileTransformer",
    "RobustScaler",
    "StandardScaler",
    "TargetEncoder",
]
