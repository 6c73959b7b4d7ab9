"""Filling of missing values, fitted in one pass over Dask collections and applied lazily."""

from __future__ import annotations

from daskml_dist.impute.simple_imputer import SimpleImputer

__all__ = ["SimpleImputer"]
