"""Looks into fitted models: which features they depend on, and how."""

from __future__ import annotations

from daskml_dist.inspection.partial_dependence import partial_dependence
from daskml_dist.inspection.permutation_importance import permutation_importance

__all__ = ["partial_dependence", "permutation_importance"]
