"""Mixtures of distributions."""

from __future__ import annotations

from daskml_dist.mixture.gaussian_mixture import GaussianMixture

__all__ = ["GaussianMixture"]
