"""Components of rows: few columns that tell most of many."""

from __future__ import annotations

from daskml_dist.decomposition.latent_dirichlet_allocation import LatentDirichletAllocation

__all__ = ["LatentDirichletAllocation"]
