"""Distributed machine learning on Dask, behind scikit-learn's interface."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
