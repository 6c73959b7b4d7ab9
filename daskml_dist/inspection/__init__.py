"""Looks into fitted models: which features they depend on."""

from __future__ import annotations

from daskml_dist.inspection.permutation_importance import permutation_importance

__all__ = ["permutation_importance"]
