"""Choice of columns by their variance or their relation to the target, over all rows."""

from __future__ import annotations

from daskml_dist.feature_selection.scores import chi2, f_classif, f_regression, r_regression
from daskml_dist.feature_selection.selectors import (
    GenericUnivariateSelect,
    SelectFdr,
    SelectFpr,
    SelectFwe,
    SelectKBest,
    SelectPercentile,
    VarianceThreshold,
)

__all__ = [
    "GenericUnivariateSelect",
    "SelectFdr",
    "SelectFpr",
    "SelectFwe",
    "SelectKBest",
    "SelectPercentile",
    "VarianceThreshold",
    "chi2",
    "f_classif",
    "f_regression",
    "r_regression",
]
