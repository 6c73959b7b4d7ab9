"""Components of rows: few columns that tell most of many."""

from __future__ import annotations

from daskml_dist.decomposition.incremental_pca import IncrementalPCA
from daskml_dist.decomposition.latent_dirichlet_allocation import LatentDirichletAllocation
from daskml_dist.decomposition.nmf import NMF
from daskml_dist.decomposition.pca import PCA
from daskml_dist.decomposition.truncated_svd import TruncatedSVD

__all__ = ["NMF", "PCA", "IncrementalPCA", "LatentDirichletAllocation", "TruncatedSVD"]
