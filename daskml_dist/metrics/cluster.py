"""Scores of clusters in scikit-learn's submodule path; see `metrics/clusters.py`."""

from __future__ import annotations

from daskml_dist.metrics.clusters import silhouette_samples, silhouette_score

__all__ = ["silhouette_samples", "silhouette_score"]
