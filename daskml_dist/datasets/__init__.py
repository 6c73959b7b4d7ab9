"""Generated data sets of any size, readers of public ones, and partitions of rows into clients.

All return lazy Dask collections.
"""

from __future__ import annotations

from daskml_dist.datasets._clicks import make_clicks
from daskml_dist.datasets._clients import (
    partition_by_class,
    partition_by_column,
    partition_by_dirichlet,
    partition_by_groups,
)
from daskml_dist.datasets._criteo import read_criteo
from daskml_dist.datasets._generated import (
    make_blobs,
    make_classification,
    make_counts,
    make_regression,
)

__all__ = [
    "make_blobs",
    "make_classification",
    "make_clicks",
    "make_counts",
    "make_regression",
    "partition_by_class",
    "partition_by_column",
    "partition_by_dirichlet",
    "partition_by_groups",
    "read_criteo",
]
