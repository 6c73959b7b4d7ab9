"""Distributed machine learning on Dask, behind scikit-learn's interface."""

from __future__ import annotations

from daskml_dist._run import Run
from daskml_dist._version import __version__

__all__ = ["Run", "__version__"]
