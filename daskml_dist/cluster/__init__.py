"""Clustering of rows."""

from __future__ import annotations

from daskml_dist.cluster.bisecting_k_means import BisectingKMeans
from daskml_dist.cluster.k_means import KMeans
from daskml_dist.cluster.mini_batch_k_means import MiniBatchKMeans

__all__ = ["BisectingKMeans", "KMeans", "MiniBatchKMeans"]
