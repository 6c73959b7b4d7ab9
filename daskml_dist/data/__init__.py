"""Data: converts any input of `fit` to aligned row blocks."""

from __future__ import annotations

import sys

from daskml_dist.data.blocks import Block, BlockInfo, check_finite, inspect_block, make_block
from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.conversion import as_rows
from daskml_dist.data.lazy import is_dask

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

# Registers how Dask serialises blocks. Needed on workers only, where distributed is loaded before
# any block exists.
if "distributed" in sys.modules:
    import daskml_dist.data.device_wire  # noqa: F401
