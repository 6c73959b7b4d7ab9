"""Clusters of rows."""

from __future__ import annotations

from daskml_dist.cluster.bisecting_k_means import BisectingKMeans
from daskml_dist.cluster.k_means import KMeans

__all__ = ["BisectingKMeans", "KMeans"]
