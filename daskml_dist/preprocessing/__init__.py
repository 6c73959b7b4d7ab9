"""Scaling and encoding, fitted in one pass over Dask collections and applied lazily."""

from __future__ import annotations

from daskml_dist.preprocessing.standard_scaler import StandardScaler

__all__ = ["StandardScaler"]
