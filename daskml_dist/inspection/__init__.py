"""Inspection of fitted models: which features their predictions depend on, and how."""

from __future__ import annotations

from daskml_dist.inspection.partial_dependence import partial_dependence
from daskml_dist.inspection.permutation_importance import permutation_importance
from daskml_dist.inspection.shap_values import Explanation, shap_values

__all__ = ["Explanation", "partial_dependence", "permutation_importance", "shap_values"]
