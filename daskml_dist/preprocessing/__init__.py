"""Scaling and encoding, fitted in one pass over Dask collections and applied lazily."""

from __future__ import annotations

from daskml_dist.preprocessing.categorizer import Categorizer, DummyEncoder
from daskml_dist.preprocessing.k_bins_discretizer import KBinsDiscretizer
from daskml_dist.preprocessing.label_encoder import LabelEncoder
from daskml_dist.preprocessing.max_abs_scaler import MaxAbsScaler
from daskml_dist.preprocessing.min_max_scaler import MinMaxScaler
from daskml_dist.preprocessing.one_hot_encoder import OneHotEncoder
from daskml_dist.preprocessing.ordinal_encoder import OrdinalEncoder
from daskml_dist.preprocessing.polynomial_features import PolynomialFeatures
from daskml_dist.preprocessing.quantile_transformer import QuantileTransformer
from daskml_dist.preprocessing.robust_scaler import RobustScaler
from daskml_dist.preprocessing.standard_scaler import StandardScaler
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
