"""Recommenders: what users will like, learned from what they rated or used."""

from __future__ import annotations

from daskml_dist.recommender.als import ALS
from daskml_dist.recommender.matrix_factorization import MatrixFactorization

__all__ = ["ALS", "MatrixFactorization"]
