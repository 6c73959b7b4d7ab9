"""Data: anything a user may hand to `fit` becomes aligned row blocks."""

from __future__ import annotations

from daskml_dist.data.blocks import (
    Block,
    BlockInfo,
    check_finite,
    inspect_block,
    make_block,
)
from daskml_dist.data.collection import Collection, as_collection, is_dask
from daskml_dist.data.conversion import as_rows

__all__ = [
    "Block",
    "BlockInfo",
    "Collection",
    "as_collection",
    "as_rows",
    "check_finite",
    "inspect_block",
    "is_dask",
    "make_block",
]
