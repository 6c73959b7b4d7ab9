"""Matrix decompositions: a few components that approximate many columns."""

from __future__ import annotations

from daskml_dist.decomposition.latent_dirichlet_allocation import LatentDirichletAllocation
from daskml_dist.decomposition.nmf import NMF
from daskml_dist.decomposition.principal_components import PCA, IncrementalPCA, TruncatedSVD

__all__ = ["NMF", "PCA", "IncrementalPCA", "LatentDirichletAllocation", "TruncatedSVD"]
