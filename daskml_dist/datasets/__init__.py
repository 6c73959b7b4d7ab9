"""Drawn data sets of any size, as lazy Dask Arrays, for benchmarks and tests."""

from __future__ import annotations

from daskml_dist.datasets._generated import (
    make_blobs,
    make_classification,
    make_counts,
    make_regression,
)

__all__ = ["make_blobs", "make_classification", "make_counts", "make_regression"]
