"""Components of rows: few columns that tell most of many."""

from __future__ import annotations

from daskml_dist.decomposition.latent_dirichlet_allocation import LatentDirichletAllocation
from daskml_dist.decomposition.pca import PCA

__all__ = ["PCA", "LatentDirichletAllocation"]
